/*
 * Slots that are used again
 *
 * A reusable buffer keeps the slot of the version that left last: the next writer gets it with its
 * old bytes, and does not wait for pages. The slot stays in its buffer. The buffer's permissions
 * must be those of its publication; it goes to the user that wrote it, once the kernel shows that
 * no other process has it open or mapped.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct buffer;
struct version;

/* True when `v`, which no process holds, is kept for reuse, and must not be freed now. */
bool slot_reuse_keep(struct version *v);

/* The kept version, open for writing, if its slot fits and `uid` may have it; else NULL. */
struct version *slot_reuse_find(struct buffer *b, uid_t uid, uint64_t data_size);

/* Frees what waits. */
void slot_reuse_forget(struct buffer *b);
