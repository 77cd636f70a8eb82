/*
 * Stripe pairing
 *
 * Over which addresses the bytes of a link go: the first of one node to the first of the other, the second to the
 * second, as far as both have some. Each pair carries a stripe of the stream, see base/stripes.h. Whoever broke
 * twice in a sync by its address of some place does without it there, as long as it has others.
 */
#pragma once

#include "server/sync/base/stripes.h"
#include "server/sync/coordinator/broadcast.h"

/* Places of addresses; `from` and `to` NULL: this node. How many: at least one. */
unsigned stripe_pairing_of(const struct agent *a, const struct broadcast *b,
			   const struct member *from, const struct member *to,
			   uint8_t ret[STRIPES_MAX]);
unsigned stripe_pairing_count(const struct agent *a, const struct broadcast *b,
			      const struct member *from, const struct member *to);

/* The receiver's addresses for the sender's engine; NULL: it needs the first alone. */
json_t *stripe_pairing_tell(const struct agent *a, const struct broadcast *b,
			    const struct member *from, const struct member *to);
/* Reads all addresses at which the engine of a member listens, if it has several. -EBADMSG. */
int stripe_pairing_read(struct member *m, const json_t *opened);
/* A link broke that an engine of `m`, or of this node if that is NULL, tells of: which stripe, if it says. */
void stripe_pairing_note_broken(struct broadcast *b, struct member *from, struct member *to,
				const json_t *failed);
/* Before the next epoch: once for each that broke, however many told of it. */
void stripe_pairing_settle(struct agent *a, struct broadcast *b);
