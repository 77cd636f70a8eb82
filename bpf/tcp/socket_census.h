/*
 * A census of the connections of a row: how many are there, against how many should be
 *
 * The kernel was seen not to run any program at the end of a connection. A look then finds fewer connections than were
 * counted and did not end since the look before: what these carried in the end nobody knows.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "bpf/tcp/meter.bpf.h"

struct socket_census {
	uint64_t open, closed; /* at the last look: by the totals, which have them since before it */
	uint64_t seen; /* by this look */
	uint64_t missing; /* by all of the last looks in a row, the least */
	uint64_t since_ns; /* of these */
	unsigned n_looks; /* likewise */
	uint64_t lost; /* that are given up: they are closed, and nobody was told */
};

void socket_census_begin(struct socket_census *c);
void socket_census_see(struct socket_census *c);
/* `t` is what the row has after the look. */
void socket_census_end(struct socket_census *c, const struct totals *t, uint64_t now_ns);
/* Something may be missing in the totals. */
bool socket_census_is_short(const struct socket_census *c);
