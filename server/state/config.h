/*
 * The configuration
 *
 * The settings of /etc/weightd/weightd.conf and of the command line. One table has every key, its
 * type, its bounds and its default; a test compares it with weightd.conf(5) and the example file.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/base/log.h"
#include "server/base/setting.h"
#include "server/base/subordinate.h"
#include "server/state/quota.h"

#define CONFIG_PATH "/etc/weightd/weightd.conf"
#define CONFIG_GIVEN_MAX 3

/* Readers of a user that is above its limit of QUOTA_HELD. */
enum config_over {
	CONFIG_OVER_KEEP, /* stay */
	CONFIG_OVER_KILL, /* are killed, the oldest first */
};

#define CONFIG_USERS_MAX 32

struct config_users {
	uid_t uids[CONFIG_USERS_MAX];
	unsigned n;
};

struct config {
	char socket[108]; /* "": see listener_init() */
	uint64_t socket_mode;
	uint64_t reserve;
	enum log_level log_level;
	gid_t admin_gid; /* -1: none */
	uint64_t store_max; /* descriptors */
	uint64_t resume_timeout_s;
	uint64_t limits[QUOTA_KINDS]; /* limits of each user */
	struct quota_override *overrides;
	unsigned n_overrides;
	uint64_t loop_ms; /* of each second, for each user */
	enum config_over over;
	struct config_users trusted; /* their buffers may end readers */
	char subuid[512]; /* "": subordinate users count as others */
	struct subordinates subordinates; /* that config_load() found in that file */
	struct buffer_names *names; /* reserved names of buffers; NULL: none */
	bool cuda_enabled;
	char cuda_allocator[512]; /* "": weightd-cuda, beside weightd's own program */
	uint64_t cuda_reserve; /* bytes of each GPU */
	uint64_t cuda_timeout_s;
	uint64_t cuda_idle_timeout_s;
	uint64_t mode; /* mode of a new buffer */
	uint64_t keep;
};

/* The sources of a configuration. The caller owns the strings. */
struct config_source {
	const char *path; /* NULL: CONFIG_PATH, if there is such a file */
	struct {
		const char *key; /* in [server] */
		const char *value;
	} given[CONFIG_GIVEN_MAX]; /* on the command line, which wins; ends with a NULL key */
};

extern const struct setting config_keys[];
extern const unsigned config_n_keys;

void config_init(struct config *c); /* the defaults */
void config_deinit(struct config *c);

/* -EINVAL when [server] has no such key or the key does not take the value. Silent. */
int config_set(struct config *c, const char *key, const char *value);

/* Applies the command line. Its values are those that config_set() accepts. */
void config_give(struct config *c, const struct config_source *source);

/*
 * Reads text as if it were in the file `path`. Logs its failures: -EINVAL for errors in it, -ENOSYS when
 * this weightd cannot read any. May block, since users are looked up by name.
 */
int config_parse(const char *path, const char *text, size_t size, struct config *ret);

/* Defaults, the file, the command line, each over the one before. As config_parse(); -errno. */
int config_load(const struct config_source *source, struct config *ret);

/*
 * Takes from `next` what may change while the daemon runs, and logs which other keys would have to wait
 * for a restart. The overrides, names and subordinate users stay in `next`.
 */
void config_reload(struct config *c, const struct config *next);
