/*
 * Pieces: each shard is cut into as many parts as there are nodes, bucket by bucket, so that every bucket is work, and traffic,
 * of all nodes. Nodes that average parameters exchange whole shards, which are cut at once; one node owns them.
 *
 * A shard overlaps with few buckets, which follow each other: there are no pieces of the rest.
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "libclient/train/plan/build.h"
#include "libclient/train/plan/sentence.h"

static struct plan_interval cut_at_once(const struct weightd_plan *p, uint32_t bucket)
{
	return plan_sums_nodes(p) ? p->buckets[bucket] : (struct plan_interval){0, p->n_elements};
}

/* The pieces of a rank, on every node; not yet cut. */
static struct plan_pieces find_buckets(const struct weightd_plan *p, uint32_t rank)
{
	uint64_t begin = p->cuts[rank], end = p->cuts[rank + 1];
	struct plan_pieces found = {.n = 1};

	/* The first bucket has the last elements. */
	if (begin < end && plan_sums_nodes(p)) {
		found.first = plan_bucket_of(p, end - 1);
		found.n = plan_bucket_of(p, begin) - found.first + 1;
	}
	return found;
}

static int find_pieces(struct weightd_plan *p)
{
	for (uint32_t rank = 0; rank < p->n_ranks; rank++) {
		p->owned[rank] = find_buckets(p, rank);
		p->n_pieces += p->owned[rank].n;
	}
	p->pieces = calloc((size_t)p->n_nodes * p->n_pieces, sizeof(*p->pieces));
	if (!p->pieces)
		return train_out_of_memory();
	for (uint32_t node = 0; node < p->n_nodes; node++) {
		const struct plan_piece *next = &p->pieces[(size_t)node * p->n_pieces];

		for (uint32_t rank = 0; rank < p->n_ranks; rank++) {
			struct plan_pieces *owned = &p->owned[(size_t)node * p->n_ranks + rank];

			*owned = p->owned[rank];
			owned->pieces = next;
			next += owned->n;
		}
	}
	return 0;
}

/* Cuts `interval` into piece `index` of each node, and returns the most elements that one has. */
static uint64_t cut_interval(struct weightd_plan *p, struct plan_interval interval, uint32_t index,
			     uint64_t at, uint64_t received)
{
	uint64_t cuts[WEIGHTD_NODES_MAX + 1], most = 0;

	(void)weightd_cuts(interval.end - interval.begin, PLAN_CUT, p->n_sharing, cuts);
	for (uint32_t node = 0; node < p->n_nodes; node++) {
		uint32_t i = node % p->n_sharing;
		uint64_t n = cuts[i + 1] - cuts[i];

		p->pieces[(size_t)node * p->n_pieces + index] = (struct plan_piece){
			{interval.begin + cuts[i], interval.begin + cuts[i + 1]}, at, received};
		most = n > most ? n : most;
	}
	return most;
}

/*
 * Places are the same on all nodes: each has room for the longest piece. `in_bucket` counts the elements that ranks have in
 * each bucket; it is NULL where RECEIVED has all pieces at once.
 */
static uint64_t cut_shards(struct weightd_plan *p, uint64_t *in_bucket)
{
	uint64_t at = 0;
	uint32_t index = 0;

	for (uint32_t rank = 0; rank < p->n_ranks; rank++)
		for (uint32_t i = 0; i < p->owned[rank].n; i++) {
			uint32_t bucket = p->owned[rank].first + i;
			struct plan_interval part = plan_owned(p, rank, cut_at_once(p, bucket));
			uint64_t received = in_bucket ? in_bucket[bucket] : at;
			uint64_t most = cut_interval(p, part, index++, at, received);

			at += most;
			if (in_bucket)
				in_bucket[bucket] += most;
		}
	return at;
}

/* Elements of a range of RECEIVED: of all pieces, or of those of one bucket. */
static uint64_t find_received(const struct weightd_plan *p, const uint64_t *in_bucket,
			      uint64_t n_places)
{
	uint64_t most = 0;

	for (uint32_t i = 0; in_bucket && i < p->n_buckets; i++)
		most = in_bucket[i] > most ? in_bucket[i] : most;
	return in_bucket ? most : n_places;
}

static void count_elements(struct plan_pieces *pieces)
{
	for (uint32_t i = 0; i < pieces->n; i++)
		pieces->n_elements += pieces->pieces[i].interval.end -
				      pieces->pieces[i].interval.begin;
}

/* Each rank updates its shard, or everything, on each node. */
static void update_all(struct weightd_plan *p)
{
	for (uint32_t i = 0; i < p->n_nodes * p->n_ranks; i++) {
		struct plan_interval updated = plan_updated(p, i % p->n_ranks);

		p->whole[i] = (struct plan_piece){updated, updated.begin, updated.begin};
		p->updates[i] = (struct plan_pieces){.pieces = &p->whole[i], .n = 1};
	}
}

int build_pieces(struct weightd_plan *p)
{
	bool by_bucket = plan_sums_nodes(p) && plan_pools_grads(p);
	uint32_t n = p->n_nodes * p->n_ranks;
	cleanup(freep) uint64_t *in_bucket = NULL;
	uint64_t n_places;
	int r;

	if (by_bucket)
		in_bucket = calloc(p->n_buckets, sizeof(*in_bucket));
	if (by_bucket && !in_bucket)
		return train_out_of_memory();

	p->owned = calloc(n, sizeof(*p->owned));
	p->updates = calloc(n, sizeof(*p->updates));
	p->whole = calloc(n, sizeof(*p->whole));
	if (!p->owned || !p->updates || !p->whole)
		return train_out_of_memory();
	r = find_pieces(p);
	if (r < 0)
		return r;
	n_places = cut_shards(p, in_bucket);
	p->n_received = p->n_nodes > 1 ? find_received(p, in_bucket, n_places) : 0;
	if (plan_shards_state(p)) {
		memcpy(p->updates, p->owned, n * sizeof(*p->updates));
		p->n_state = n_places;
	} else {
		update_all(p);
		p->n_state = p->n_elements;
	}
	for (uint32_t i = 0; i < n; i++) {
		count_elements(&p->owned[i]);
		count_elements(&p->updates[i]);
	}
	return 0;
}
