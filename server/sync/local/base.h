/*
 * Bases
 *
 * A version of the local weightd that a new one resembles: the leaves that both have, by the tables, are copied from
 * there and do not travel. A base is believed nothing: what it has else than its table says, verify finds, and it is
 * sent again.
 */
#pragma once

#include "server/sync/local/task.h"

struct base {
	struct weightd_buffer *buffer; /* NULL: there is none */
	struct ranges missing; /* what the new version does not get from it */
	char why[FAULT_WHY_SIZE]; /* it cannot be used; "": it can, or was not named */
};

/*
 * The base that the message names beside a table of its leaves, for the task's new version. That the local weightd
 * has it no more is no failure: then all is missing.
 */
int base_new(const struct task *e, const struct json_packet *t, const struct target *target,
	     struct base **ret, struct fault *f);
/* NULL is fine. */
struct base *base_free(struct base *b);
CLEANUP_POINTER(struct base, base_free);

/* Copies all that is not missing, into memory that others write at the same time: they write the missing bytes. */
void base_copy(const struct task *e, const struct base *b);

/*
 * What is missing is made of the base's bytes and of what the patch of this file says of them. That it says nonsense
 * is no failure either: `why`, of FAULT_WHY_SIZE, then says so, and else is "".
 */
void base_patch(const struct task *e, const struct base *b, int fd, char *why);
