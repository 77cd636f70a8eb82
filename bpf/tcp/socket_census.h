/*
 * A census of the connections of a row: how many there are, and how many there should be
 *
 * Sometimes the kernel runs no program at the end of a connection. A look then finds fewer connections than were
 * counted and did not end since the look before: their last bytes are unknown.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "bpf/tcp/meter.bpf.h"

struct socket_census {
	uint64_t open, closed; /* at the last look: by the totals, which have them since before it */
	uint64_t seen; /* number seen by this look */
	uint64_t missing; /* the least that all of the last looks in a row missed */
	uint64_t since_ns; /* time of the first of these looks */
	unsigned n_looks; /* number of these looks */
	uint64_t lost; /* given up: they are closed, and no event was reported */
};

void socket_census_begin(struct socket_census *c);
void socket_census_see(struct socket_census *c);
/* `t` is what the row has after the look. */
void socket_census_end(struct socket_census *c, const struct totals *t, uint64_t now_ns);
/* Something may be missing in the totals. */
bool socket_census_is_short(const struct socket_census *c);
