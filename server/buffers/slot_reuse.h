/*
 * Slots that are used again
 *
 * A reusable buffer does not free the slot of the version that left last: the next writer gets it, without
 * waiting for pages, and with its old bytes. Only within one buffer, whose permissions have not changed since the
 * slot was published; only to the user who wrote it; and only once the kernel says that nobody else has it
 * open or mapped.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct buffer;
struct server;
struct version;

/* True when `v`, which nobody holds, is to be used again, and so not to be freed now. */
bool slot_reuse_keep(struct version *v);

/* The version whose slot waits, open for writing, if it fits and may be given to `uid`; else NULL. */
struct version *slot_reuse_find(struct buffer *b, uid_t uid, uint64_t data_size);

/* Frees what waits: of a buffer, or the first there is on a device, NULL for any. True when there was something. */
void slot_reuse_forget(struct buffer *b);
bool slot_reuse_evict(struct server *server, const char *device);
