/*
 * A connection that begins or ends during a look makes the look find too many, never too few, with one exception: the
 * kernel's iterator may leave a connection out when another one ends that it has just passed. So several looks are
 * needed, over some time.
 */
#include "bpf/tcp/socket_census.h"

#define LOOKS 5
#define LOOKS_NS 500000000u
#define LOOKS_DOUBTED 2 /* not certain, but the row must not count as exact */

void socket_census_begin(struct socket_census *c)
{
	c->seen = 0;
}

void socket_census_see(struct socket_census *c)
{
	c->seen++;
}

void socket_census_end(struct socket_census *c, const struct totals *t, uint64_t now_ns)
{
	int64_t missing = (int64_t)(c->open - c->lost - c->seen - (t->closed - c->closed));

	c->open = t->sockets - t->closed;
	c->closed = t->closed;
	if (missing <= 0) {
		c->n_looks = 0;
		return;
	}
	if (c->n_looks++ == 0) {
		c->since_ns = now_ns;
		c->missing = (uint64_t)missing;
	}
	if ((uint64_t)missing < c->missing)
		c->missing = (uint64_t)missing;
	if (c->n_looks < LOOKS || now_ns - c->since_ns < LOOKS_NS)
		return;
	c->lost += c->missing;
	c->n_looks = 0;
}

bool socket_census_is_short(const struct socket_census *c)
{
	return c->lost > 0 || c->n_looks >= LOOKS_DOUBTED;
}
