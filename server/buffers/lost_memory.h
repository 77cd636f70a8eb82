/*
 * Lost memory
 *
 * Memory that lives in another process dies with it, and its descriptors hang up. The version is
 * then lost. It is never served again: the newest one that is left replaces it, and readers that
 * map it find out from the head page and from the descriptor.
 */
#pragma once

#include <stdbool.h>

struct buffer;
struct slot;

/* Ends the version that has the slot. The function of slot_ops::lost. */
void lost_memory_handle(struct slot *s);

/* Handles a loss now, before the loop finds it. True when the memory is lost. */
bool lost_memory_check(struct slot *s);

/* The current version may be one that was lost: the newest there is takes its place. The caller saves. */
void lost_memory_fall_back(struct buffer *b);
