/*
 * Rows of all clients: found by number, updated by a mark of the meter, and read as of that
 */
#pragma once

#include "bpf/client.h"

#define ROWS_PERIOD_NS 100000000u /* between two marks while a span is open */

/* NULL: the client has none of that number. */
struct row *rows_own(const struct client *c, uint32_t number);
/* The row of any client. */
struct row *rows_find(const struct tracer *t, uint32_t number, struct client **ret_owner);
struct span *rows_find_span(const struct client *c, const char *sync);

/* Updates all rows. 0, or negative errno. */
int rows_mark(struct tracer *t);
/* Reads what a row has, as of then or later. 0, or negative errno. */
int rows_read(struct tracer *t, const struct row *row, struct reading *ret);
/*
 * Reads what a row has as of the last mark and, if its sync has begun, looks for stalls: call it before the row is
 * sent. 0, or negative errno.
 */
int rows_look(const struct client *c, struct row *row, struct reading *ret);

/* Followers receive, within 100 ms, what they missed and what there is. */
void rows_look_soon(struct tracer *t);
/* A span was opened, or ended: while there is one, the meter is marked every 100 ms. */
void rows_count_spans(struct tracer *t, int change);
