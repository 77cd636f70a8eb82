/*
 * Charges for held memory
 *
 * The charge for memory that exists only because of readers moves from the user that published it to one of its
 * readers:
 * the user that has held it longest without a break. While its publisher has a lease on it, the charge stays with the
 * publisher; after the last lease, with the user of that, while a process maps the memory. The charge stays in the objects that hold it: the slot refunds it when its memory is free.
 */
#pragma once

#include <sys/types.h>

#define HELD_NOBODY ((uid_t)-1)

struct buffer;
struct version;

/* Moves the charges for a buffer's versions to where they belong, after a change of its versions or their leases. */
void held_settle(struct buffer *b);

/* Takes a version that is being freed off the list of held ones. */
void held_forget(struct version *v);
