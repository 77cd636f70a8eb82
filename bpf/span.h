/*
 * Spans: the time between "begin" and "end" of a sync, while its rows are looked at again and again
 */
#pragma once

#include "bpf/client.h"

/* NULL: memory ran out. Its rows have begun. */
struct span *span_new(struct client *c, const char *sync, uint64_t began_ns);
/* While its rows are there still: observers receive what is in them. */
void span_free(struct client *c, struct span *span);
