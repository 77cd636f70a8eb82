#include "libclient/train/save/collect.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "libclient/train/plan/sentence.h"
#include "libclient/train/plan/spread.h"
#include "libclient/train/save/saving.h"

/* The answer of node 0. */
struct collect_result {
	int32_t result;
	char sentence[CONTROL_SENTENCE];
};

/* A rank that was killed before it came here will not come: its successor goes on with the next step. */
static int check_lost(const struct saving *s)
{
	if (atomic_load_explicit(&s->train->exchange.link.n_lost, memory_order_relaxed) == s->n_lost)
		return 0;
	return train_fail(-EOWNERDEAD,
			  "rank %u of another node was lost before it took part in the save of step "
			  "%" PRIu64 "; save again",
			  s->train->arena.rank, s->snapshot.step);
}

static int check_wait(void *saving, bool is_interrupted)
{
	const struct saving *s = saving;

	(void)is_interrupted;
	if (s->place.is_cancelled)
		return train_fail(-ECANCELED, "the save was cancelled");
	return s->is_connected ? 0 : check_lost(s);
}

/* A connection ends with the process behind it. */
static int lost(const struct saving *s, int r)
{
	char sentence[CONTROL_SENTENCE];

	if (r != -EPIPE)
		return r;
	(void)snprintf(sentence, sizeof(sentence), "%s", weightd_train_error());
	return train_fail(-EOWNERDEAD, "%s; the checkpoint of step %" PRIu64 " failed: save again",
			  sentence, s->snapshot.step);
}

static int connect_all(struct saving *s)
{
	struct weightd_train *t = s->train;
	int r;

	s->has_tried = true;
	s->star = (struct star){.what = "save",
				.step = s->snapshot.step,
				.deadline_ms = t->place.deadline_ms,
				.check = check_wait,
				.data = s};
	r = star_place(&t->exchange.link, t->plan, false, &s->star.place);
	if (r == 0)
		r = star_open(&s->star, t->plan);
	s->is_connected = r == 0;
	return r;
}

static void disconnect_all(struct saving *s)
{
	star_close(&s->star);
	s->is_connected = false;
}

/* --- Node 0 ---------------------------------------------------------------------------------------- */

static int receive_rank(struct saving *s, uint32_t node)
{
	const struct weightd_plan *p = s->train->plan;
	struct snapshot_rank *rank = &s->snapshot.ranks[node];
	int r = star_receive(&s->star, node, &rank->state_size, sizeof(rank->state_size));

	if (r == 0 && rank->state_size > p->state_size)
		r = train_fail(-EPROTOTYPE,
			       "rank %u of node %u has a state of %" PRIu64
			       " bytes, and the plan has room for %u",
			       s->train->arena.rank, node, rank->state_size, p->state_size);
	if (r == 0)
		r = star_receive(&s->star, node, rank->state, rank->state_size);
	return r < 0 ? r : star_receive(&s->star, node, rank->buffers, p->buffer_size);
}

/* The elements have `size` bytes. */
static int receive_state(struct saving *s, uint32_t node, void *state, uint64_t size)
{
	struct plan_interval owned = s->snapshot.owned;
	struct spread parts = spread_of_node(s->train->plan, node, owned);
	struct plan_piece part;
	int r = 0;

	while (r == 0 && spread_next(&parts, &part))
		r = star_receive(&s->star, node,
				 (uint8_t *)state + (part.interval.begin - owned.begin) * size,
				 (part.interval.end - part.interval.begin) * size);
	return r;
}

static int receive_node(struct saving *s, uint32_t node)
{
	const struct weightd_plan *p = s->train->plan;
	int r = receive_rank(s, node);

	if (!plan_share(p, 0, node))
		return r;
	if (r == 0 && s->snapshot.param && plan_shards_params(p))
		r = receive_state(s, node, s->snapshot.param,
				  plan_element_size(p, WEIGHTD_KIND_PARAM));
	for (uint32_t i = 0; r == 0 && i < CHECKPOINT_STATES_MAX; i++)
		if (s->snapshot.states[i] && plan_shards_state(p))
			r = receive_state(s, node, s->snapshot.states[i], sizeof(float));
	return r;
}

/* From all nodes, also after a failure: a connection that is closed with bytes in it loses the answer, too. */
static int receive_all(struct saving *s)
{
	const struct weightd_plan *p = s->train->plan;
	char sentence[CONTROL_SENTENCE] = "";
	int first = 0;

	for (uint32_t node = 1; node < p->n_nodes && first != -ECANCELED; node++) {
		int r;

		s->star.waited_ms = 0; /* not for the one before, which may be late */
		r = receive_node(s, node);
		if (r == 0 || first < 0)
			continue;
		first = r;
		(void)snprintf(sentence, sizeof(sentence), "%s", weightd_train_error());
	}
	return first < 0 ? train_fail(first, "%s", sentence) : 0;
}

int collect_receive(struct saving *s)
{
	int r = s->train->plan->n_nodes > 1 ? connect_all(s) : 0;

	if (r == 0)
		r = receive_all(s);
	return lost(s, r);
}

void collect_end(struct saving *s, int result)
{
	const struct weightd_plan *p = s->train->plan;
	struct collect_result end = {.result = result};

	if (p->n_nodes == 1)
		return;
	(void)snprintf(end.sentence, sizeof(end.sentence), "%s",
		       result < 0 ? weightd_train_error() : "");
	if (result != -ECANCELED && !s->has_tried)
		(void)collect_receive(s); /* the save has failed without it */
	/* A node that was lost sees that by itself. */
	for (uint32_t node = 1; s->is_connected && node < p->n_nodes; node++)
		(void)star_send(&s->star, node, &end, sizeof(end));
	disconnect_all(s);
	(void)train_fail(result, "%s", end.sentence);
}

/* --- Other nodes ----------------------------------------------------------------------------------- */

static int send_snapshot(struct saving *s)
{
	const struct weightd_plan *p = s->train->plan;
	const struct snapshot_rank *rank = &s->snapshot.ranks[s->train->arena.node];
	struct spread parts = spread_of_node(p, s->train->arena.node, s->snapshot.owned);
	uint64_t n = spread_count(parts);
	int r = star_send(&s->star, 0, &rank->state_size, sizeof(rank->state_size));

	if (r == 0)
		r = star_send(&s->star, 0, rank->state, rank->state_size);
	if (r == 0)
		r = star_send(&s->star, 0, rank->buffers, p->buffer_size);
	if (r == 0 && s->snapshot.param)
		r = star_send(&s->star, 0, s->snapshot.param,
			      n * plan_element_size(p, WEIGHTD_KIND_PARAM));
	for (uint32_t i = 0; r == 0 && i < CHECKPOINT_STATES_MAX; i++)
		if (s->snapshot.states[i])
			r = star_send(&s->star, 0, s->snapshot.states[i], n * sizeof(float));
	return r;
}

static int receive_result(struct saving *s)
{
	struct collect_result end;
	int r = star_receive(&s->star, 0, &end, sizeof(end));

	if (r < 0)
		return r;
	end.sentence[sizeof(end.sentence) - 1] = '\0';
	return end.result < 0 ? train_fail(end.result, "%s", end.sentence) : 0;
}

int collect_send(struct saving *s)
{
	int r = connect_all(s);

	s->star.deadline_ms =
		-1; /* node 0 receives from one after the other, and a disk takes its time */
	if (r == 0)
		r = send_snapshot(s);
	if (r == 0)
		r = receive_result(s);
	disconnect_all(s);
	return lost(s, r);
}
