/*
 * Bases
 *
 * A version of the local weightd that resembles the new one. Leaves that both have, by their
 * tables, are copied from it and are not sent. A base is not trusted: verify detects bytes that
 * differ from its table, and these are sent again.
 */
#pragma once

#include "server/sync/local/task.h"

struct base {
	struct weightd_buffer *buffer; /* NULL: no base */
	struct ranges missing; /* bytes that the new version does not get from it */
	char why[FAULT_WHY_SIZE]; /* why it cannot be used; "": it can, or none was named */
};

/*
 * The base that the message names, with a table of its leaves, for the task's new version. If the
 * local weightd no longer has it, that is no failure: then all bytes are missing.
 */
int base_new(const struct task *e, const struct json_packet *t, const struct target *target,
	     struct base **ret, struct fault *f);
/* Accepts NULL. */
struct base *base_free(struct base *b);
CLEANUP_POINTER(struct base, base_free);

/* Copies all bytes that are not missing, while engines write the missing ones. */
void base_copy(const struct task *e, const struct base *b);

/*
 * Makes the missing bytes from the base and the patch in this file. An invalid patch is no failure:
 * `why`, of FAULT_WHY_SIZE, is then the reason, and else "".
 */
void base_patch(const struct task *e, const struct base *b, int fd, char *why);
