/*
 * sync.conf
 *
 * What weightd-sync is told, read once at its start. Every error is reported with its line, what it is about
 * and the way out; nothing is guessed.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/base/log.h"
#include "server/sync/base/stripes.h"
#include "server/sync/net/net_config.h"
#include "server/sync/state/agent_config.h"

#define CONFIG_PATH "/etc/weightd/sync.conf"
#define CONFIG_NAME_MAX                                                                            \
	42 /* bytes of the name of a node or group: what [group NAME] has room for */

struct config {
	char **strings; /* all that is pointed to below */
	unsigned n_strings;

	const char *path;
	const char *name;
	const char *listen; /* as it was written */
	struct address listen_at;
	const char *data_addresses[STRIPES_MAX];
	unsigned n_data_addresses;
	const char *state;
	const char *socket;
	const char *weightd; /* NULL: where libweightd finds it */
	const char *trace; /* socket of weightd-trace */
	enum log_level log_level;

	const char *ca;
	const char *certificate;
	const char *key;
	const char *crl; /* NULL: no certificates are revoked */

	bool data_tls;
	const struct transport *transport;
	bool patches; /* patches of pushed versions, from one to the next */
	struct network *trusted; /* with bytes in the clear */
	unsigned n_trusted;

	struct peer_config *peers;
	unsigned n_peers;
	struct group *groups;
	unsigned n_groups;

	uint64_t max_bytes; /* 0: no limit of ours; the memory of the machine if nothing is said */
	uint64_t repair_rate; /* 0: no limit */
	uint64_t prepare_ns;
	uint64_t stall_ns;
	uint64_t heartbeat_ns;

	const char *operators; /* NULL: no group */
	gid_t operators_gid;
};

/*
 * Reads the file. `socket` comes before what it says, unless it is NULL. -EINVAL: all that is wrong was logged; other
 * errors, too.
 */
int config_load(const char *path, const char *socket, struct config *ret);

/* The same of a text; `path` is for the errors. */
int config_parse(const char *path, const char *text, size_t size, struct config *ret);

void config_deinit(struct config *c);

/* False, with a sentence, where bytes would leave this node for an address that is not trusted with them. */
bool config_trusts(const struct config *c, const struct sockaddr *at, const char *whose,
		   char why[WHY_SIZE]);
