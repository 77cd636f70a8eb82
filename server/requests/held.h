/*
 * Held memory
 *
 * Memory that exists only because of readers: versions that have ended, also those of removed buffers, and
 * versions beyond `keep`. While the user that published such a version has no lease on it, it is charged to one of its
 * readers: the user that has held it longest, and then the next one. After the last lease it stays charged to the user
 * of that lease while a process maps it.
 *
 * A user above its limit (QUOTA_HELD) gets no further lease, once it is charged for two such versions. One is always
 * allowed, so that a reader can attach the next version beside it. No lease is ever taken away.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define HELD_TEXT_MAX 192
#define HELD_BEFORE ". Of the memory that only readers keep, " /* after the way out */

struct buffer;
struct lease;
struct server;
struct session;
struct version;

/* The memory and the number of versions that a user is charged for. */
uint64_t held_by_user(const struct server *s, uid_t uid, unsigned *ret_n);

/* True for a user above its limit. */
bool held_is_over(const struct server *s, uid_t uid);

/* The version that a user has been charged for longest; NULL: none. */
struct version *held_oldest(const struct server *s, uid_t uid);

/* The lease of the user that is charged for the version that began first; NULL: none is left. */
const struct lease *held_lease(const struct version *v);

/*
 * True if the client may attach the version; else the request was answered with an error. A user other than the
 * buffer's owner gets at most half of the versions that others leave of BUFFER_VERSIONS_MAX.
 */
bool held_allows(struct session *s, struct version *v);

/*
 * The users that are charged for most memory on a device (NULL: on any), or that hold most versions of a buffer: at most
 * three, behind `before`, for the end of a sentence. "" for none. Returns `text`.
 */
const char *held_describe(const struct server *s, const char *device, const char *before,
			  char text[HELD_TEXT_MAX]);
const char *held_describe_versions(const struct buffer *b, const char *before,
				   char text[HELD_TEXT_MAX]);
