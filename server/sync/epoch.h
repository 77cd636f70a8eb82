/*
 * Epochs
 *
 * One attempt to get bytes along the chain of those that lack some. When any part of it breaks, all of it
 * is stopped and the next one carries what is still missing, in an order that has learnt from the last.
 */
#pragma once

#include "server/sync/transaction.h"

#define EPOCH_RANGES_MAX 1024 /* of one epoch, so that an engine is told in one packet */

/* Begins the next one, if anybody lacks anything: 0 nobody does, 1 it began. Or the transaction failed: -1. */
int epoch_begin(struct agent *a, struct transaction *t);
/* Only tells what it would send. Or the transaction failed: -1. */
int epoch_plan(struct agent *a, struct transaction *t);
/* All have opened. */
void epoch_start(struct agent *a, struct transaction *t);
void epoch_stop(struct agent *a, struct transaction *t);

void epoch_on_opened(struct agent *a, struct transaction *t, struct member *m,
		     const json_t *message);
void epoch_on_progress(struct agent *a, struct transaction *t, struct member *m,
		       const json_t *message);
void epoch_on_done(struct agent *a, struct transaction *t, struct member *m, const json_t *message);
void epoch_on_broken(struct agent *a, struct transaction *t, struct member *m,
		     const json_t *message);
void epoch_on_stopped(struct agent *a, struct transaction *t, struct member *m,
		      const json_t *message);

/* The one before it in the chain; NULL: this node, or it is in none. */
struct member *epoch_before(const struct transaction *t, const struct member *m);
/* Bytes per second into its members, of those that were ever measured; 0: nobody was. */
uint64_t epoch_median_rate(const struct agent *a, const struct transaction *t);

/* Bytes that a link carries for these ranges in so many stripes, towards the receiver; 0: unknown, as it is under TLS. */
uint64_t epoch_planned(const struct agent *a, bool gloo, const struct ranges *ranges,
		       unsigned n_stripes);

/* What an engine is told first. `from` and `token` are NULL at the source. */
json_t *epoch_open_engine(struct agent *a, const char *sync, uint64_t epoch, uint64_t n_bytes,
			  const char *from, const char *token, const struct ranges *ranges);
