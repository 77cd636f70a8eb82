/*
 * The model. S bytes to N nodes, R = N - 1 of them receivers; B a node's rate in each direction, c a chunk, l the
 * latency of a hop, k = ceil(log2 N), F how many times slower a straggler is.
 *
 *	chain		S/B + l + (R - 1)(c/B + l)
 *			nodes forward chunks at once: one more node costs a hop
 *	tree		2 S/B + l + (d - 1)(2 c/B + l)		d = floor(log2 N); for N = 2 the chain
 *			the same, binary: two children share a node's rate
 *	binomial	u(N) S/B + k l				u(1) = 0, u(n) = k + max u(child)
 *			libraries broadcast so: a node receives all before it sends, and then sends to its k
 *			children at once, which share its rate. Hence 1, 2, 3 for 2, 3, 4 nodes, as measured with
 *			Gloo and OpenMPI; the textbook, one child after the other, has 1, 2, 2
 *	ring		2 R/N S/B + (R + 1) l
 *			scatter, then all-gather in a ring
 *	one-to-all	R S/B + l
 *
 * Stragglers have the places where they do the least harm: last in a chain, leaves of a tree. There they delay only
 * themselves:
 *
 *	chain		F S/B + l + (R - n) (c/B + l) + (n - 1)(F c/B + l)
 *	tree		max(2, F) S/B and the hops; with more of them than leaves, 2 F S/B for all nodes
 *	binomial	(F - 1) S/B later; with more of them than leaves, F times for all nodes
 *	ring		max(R, F) S/NB + F R/N S/B: all bytes pass through each node, and none is earlier
 *	one-to-all	max(R, F) S/B
 *
 * A failure is a node in the middle that falls silent at half of the time, which is detected after the stall timeout.
 * The chain and the tree are then formed again and continue where each node stopped, so that a failure costs that
 * timeout, REOPEN_S and the hops to the last node; bytes that nodes before the failure received meanwhile are sent
 * again. Libraries start from the beginning: half of the time is lost, too. One-to-all loses only the node.
 *
 * Each node digests S at its own rate: the publisher before bytes move, the others after they have received them.
 */
#include "libclient/weightctl/verbs/push_model.h"

#include <math.h>

#define REOPEN_S 0.1 /* processes of engines start, and two questions go to every node */

static double receivers(const struct push_model_cluster *c)
{
	return (double)(c->n_nodes - 1);
}

/* S/B */
static double line(const struct push_model_cluster *c)
{
	return (double)c->n_bytes / c->rate;
}

/* c/B; a version may be smaller than a chunk */
static double chunk(const struct push_model_cluster *c)
{
	return (double)(c->chunk < c->n_bytes ? c->chunk : c->n_bytes) / c->rate;
}

/* F, or 1 without stragglers */
static double slowness(const struct push_model_cluster *c)
{
	return c->n_stragglers ? c->slowness : 1;
}

static unsigned log2_floor(uint64_t n)
{
	return 63 - (unsigned)__builtin_clzll(n);
}

static unsigned log2_ceil(uint64_t n)
{
	return log2_floor(n) + !!(n & (n - 1));
}

/* Bytes that a node still receives, at this rate, until the failure is detected. */
static double received_meanwhile(const struct push_model_cluster *c, double rate)
{
	return fmin(c->stall_s * rate, (double)c->n_bytes / 2);
}

static void fail_and_resume(const struct push_model_cluster *c, double way_s, double again_bytes,
			    struct push_model *f)
{
	double cost = (double)c->n_failures * (c->stall_s + REOPEN_S + way_s);

	f->moves_s += cost;
	f->others_s += cost;
	f->again_bytes = (double)c->n_failures * again_bytes;
}

static void fail_and_start_anew(const struct push_model_cluster *c, struct push_model *f)
{
	double n = (double)c->n_failures;

	f->moves_s += n * (f->moves_s / 2 + c->stall_s);
	f->others_s += n * (f->others_s / 2 + c->stall_s);
	f->again_bytes = n * f->all_bytes / 2;
}

static void fill_chain(const struct push_model_cluster *c, struct push_model *f)
{
	double r = receivers(c), hop = chunk(c) + c->latency_s, n = (double)c->n_stragglers;
	double way = c->latency_s + (r - 1) * hop;

	f->moves_s = f->others_s = line(c) + way;
	if (c->n_stragglers) {
		double slow_hop = slowness(c) * chunk(c) + c->latency_s;

		f->moves_s = slowness(c) * line(c) + c->latency_s + (r - n) * hop +
			     (n - 1) * slow_hop;
		f->others_s = line(c) + c->latency_s + fmax(r - n - 1, 0) * hop;
	}
	f->root_bytes = f->link_bytes = (double)c->n_bytes;
	f->n_links = c->n_nodes - 1;
	f->all_bytes = r * (double)c->n_bytes;
	fail_and_resume(c, way, r / 2 * received_meanwhile(c, c->rate), f);
}

static void fill_tree(const struct push_model_cluster *c, struct push_model *f)
{
	bool has_slow_parents = c->n_stragglers > (c->n_nodes + 1) / 2;
	double r = receivers(c), children = c->n_nodes > 2 ? 2 : 1;
	double factor = children * (has_slow_parents ? slowness(c) : 1);
	double way = c->latency_s +
		     (log2_floor(c->n_nodes) - 1) * (children * chunk(c) + c->latency_s);

	f->others_s = factor * line(c) + way;
	f->moves_s = fmax(factor, slowness(c)) * line(c) + way;
	f->root_bytes = children * (double)c->n_bytes;
	f->link_bytes = (double)c->n_bytes;
	f->n_links = c->n_nodes - 1;
	f->all_bytes = r * (double)c->n_bytes;
	fail_and_resume(c, way, r * received_meanwhile(c, c->rate / children), f);
}

/* u(n) of the opening. The largest children of a node have n - 2^(k-1) and 2^(k-2) nodes below them. */
static double binomial_units(uint64_t n)
{
	unsigned k;
	double full;

	if (n < 2)
		return 0;
	k = log2_ceil(n);
	full = k < 2 ? 0 : (k - 2.0) * (k - 1.0) / 2;
	return k + fmax(full, binomial_units(n - ((uint64_t)1 << (k - 1))));
}

static void fill_binomial(const struct push_model_cluster *c, struct push_model *f)
{
	double r = receivers(c), k = log2_ceil(c->n_nodes);
	double units = binomial_units(c->n_nodes), way = k * c->latency_s;
	bool all = c->n_stragglers > c->n_nodes / 2;

	f->others_s = units * line(c) * (all ? slowness(c) : 1) + way;
	f->moves_s = f->others_s + (all ? 0 : (slowness(c) - 1) * line(c));
	f->root_bytes = k * (double)c->n_bytes;
	f->link_bytes = (double)c->n_bytes;
	f->n_links = c->n_nodes - 1;
	f->all_bytes = r * (double)c->n_bytes;
	fail_and_start_anew(c, f);
}

static void fill_ring(const struct push_model_cluster *c, struct push_model *f)
{
	double r = receivers(c), n = (double)c->n_nodes, s = (double)c->n_bytes;

	f->moves_s = f->others_s = (fmax(r, slowness(c)) + slowness(c) * r) / n * line(c) +
				   (r + 1) * c->latency_s;
	f->root_bytes = 2 * r / n * s;
	f->link_bytes = s; /* from the publisher to the next one, which has its part by the scatter */
	f->n_links = 2 * c->n_nodes - 2;
	f->all_bytes = r * s + r / n * s;
	fail_and_start_anew(c, f);
}

static void fill_one_to_all(const struct push_model_cluster *c, struct push_model *f)
{
	double r = receivers(c);

	f->moves_s = fmax(r, slowness(c)) * line(c) + c->latency_s;
	f->others_s = r * line(c) + c->latency_s;
	f->root_bytes = f->all_bytes = r * (double)c->n_bytes;
	f->link_bytes = (double)c->n_bytes;
	f->n_links = c->n_nodes - 1;
	f->again_bytes = 0;
}

const struct push_model_schedule push_model_schedules[] = {
	{"chain", true, fill_chain},
	{"tree", false, fill_tree},
	{"binomial", false, fill_binomial},
	{"ring", false, fill_ring},
	{"one-to-all", false, fill_one_to_all},
	{},
};

void push_model_make(const struct push_model_schedule *s, const struct push_model_cluster *c,
		     struct push_model *ret)
{
	*ret = (struct push_model){};
	s->fill(c, ret);
	ret->total_s = ret->moves_s + 2 * (double)c->n_bytes / c->digest_rate;
}
