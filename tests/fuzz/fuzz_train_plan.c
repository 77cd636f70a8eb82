/*
 * Parses an arbitrary plan, as JSON or in its binary form by the first byte: what is accepted is written again, and is then
 * the same plan.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/train/plan/control.h"
#include "tests/fuzz/fuzz.h"

/* The replica adds up a part of the piece. */
static void check_replicas(const struct weightd_plan *p, uint32_t node,
			   const struct plan_piece *piece)
{
	struct plan_piece part = plan_replica_part(p, piece, node);

	MUST(p->n_nodes % p->n_sharing == 0);
	MUST(part.interval.begin >= piece->interval.begin &&
	     part.interval.begin <= part.interval.end && part.interval.end <= piece->interval.end);
	MUST(part.at - piece->at == part.interval.begin - piece->interval.begin);
}

/* Pieces of a rank of the mesh: inside the range, and their places inside those of MASTER and of RECEIVED. */
static void check_pieces(const struct weightd_plan *p, uint32_t node, uint32_t rank)
{
	const struct plan_pieces *owned = plan_pieces(p, node, rank);
	const struct plan_pieces *updates = plan_updates(p, node, rank);

	for (uint32_t i = 0; i < owned->n; i++) {
		const struct plan_piece *piece = &owned->pieces[i];
		uint64_t n = piece->interval.end - piece->interval.begin;

		MUST(piece->interval.begin <= piece->interval.end &&
		     piece->interval.end <= p->n_elements);
		MUST(i == 0 || piece->at >= piece[-1].at + (piece[-1].interval.end -
							    piece[-1].interval.begin));
		MUST(p->n_nodes == 1 || piece->received + n <= p->n_received);
		check_replicas(p, node, piece);
	}
	MUST(plan_places(updates).end <= p->n_state);
}

/* Units are the range; each has a room in GATHERED where nodes have parts of it, and a FETCH. */
static void check_units(const struct weightd_plan *p)
{
	uint64_t end = 0, gathered = weightd_plan_bytes(p, WEIGHTD_KIND_GATHERED);

	for (uint32_t i = 0; i < p->n_units; i++) {
		const struct plan_unit *u = &p->units[i];
		uint64_t size = (u->interval.end - u->interval.begin) *
				plan_element_size(p, WEIGHTD_KIND_PARAM);

		MUST(u->interval.begin == end && u->interval.end > end);
		end = u->interval.end;
		if (!plan_shards_params(p))
			continue;
		MUST(u->room < p->n_rooms && size <= p->rooms[u->room].size);
		MUST(p->rooms[u->room].offset + p->rooms[u->room].size <= gathered);
		MUST(plan_fetch(p, i)->bucket == p->n_units - 1 - i);
	}
	MUST(p->n_units == 0 || (end == p->n_elements && p->n_units == p->n_buckets));
	for (uint32_t i = 0; i < p->n_tensors; i++)
		MUST(p->tensors[i].unit < (p->n_units ? p->n_units : 1));
	MUST(p->n_asked <= p->n_exchanges && p->n_rooms <= p->n_units);
}

static void check_rest(const struct weightd_plan *p)
{
	struct weightd_traffic t = {.size = sizeof(t)};
	uint64_t end = 0;

	for (uint32_t i = 0; i < p->n_nodes * p->n_ranks; i++) {
		check_pieces(p, i / p->n_ranks, i % p->n_ranks);
		MUST(weightd_plan_traffic(p, i, &t) == 0);
	}
	for (uint32_t r = 0; r < p->n_ranks; r++) {
		struct plan_interval updated = plan_updated(p, r);

		MUST(updated.begin <= updated.end && updated.end <= p->n_elements);
		MUST(plan_copy(p, r) < p->n_copies);
	}
	for (uint32_t i = 0; i < p->n_runs; i++) {
		MUST(p->runs[i].interval.begin == end && p->runs[i].group < p->n_groups);
		end = p->runs[i].interval.end;
	}
	MUST(end == p->n_elements);
	check_units(p);
	MUST(control_layout(p).size == weightd_plan_bytes(p, WEIGHTD_KIND_JOURNAL));
	for (uint32_t i = 0; i < p->n_parts; i++)
		MUST(p->parts[i].n * p->parts[i].stride / p->parts[i].stride == p->parts[i].n);
}

static void check_again(const struct weightd_plan *p)
{
	struct weightd_plan *again = NULL;
	char *json = NULL, difference[64];
	uint64_t size;
	const void *image = weightd_plan_image(p, &size);

	MUST(weightd_plan_parse(image, size, &again) == 0);
	MUST(weightd_plan_compare(p, again, difference, sizeof(difference)) == 0);
	weightd_plan_free(again);
	MUST(weightd_plan_json(p, &json) == 0);
	MUST(weightd_plan_parse_json(json, strlen(json), &again) == 0);
	MUST(weightd_plan_compare(p, again, difference, sizeof(difference)) == 0);
	weightd_plan_free(again);
	free(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct weightd_plan *p = NULL;
	int r;

	if (size == 0)
		return 0;
	r = data[0] == 'J' ? weightd_plan_parse_json((const char *)data + 1, size - 1, &p)
			   : weightd_plan_parse(data + 1, size - 1, &p);
	if (r < 0) {
		MUST(r == -EBADMSG && !p && weightd_train_error()[0]);
		return 0;
	}
	check_rest(p);
	check_again(p);
	weightd_plan_free(p);
	return 0;
}
