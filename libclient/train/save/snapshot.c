#include "libclient/train/save/snapshot.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/num.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/plan/spread.h"
#include "libclient/train/scale.h"
#include "libclient/train/trainer.h"

#define ALIGN 64

static uint64_t room(uint64_t size)
{
	return (size + ALIGN - 1) / ALIGN * ALIGN;
}

/*
 * Elements that this rank has room for, of a kind of which each node of a replica has its own, or that all nodes have. Node 0
 * collects from its own replica.
 */
static uint64_t count_elements(const struct weightd_train *t, const struct snapshot *s,
			       bool is_sharded)
{
	uint32_t node = t->arena.node;

	if (!node)
		return s->owned.end - s->owned.begin;
	if (!is_sharded || !plan_share(t->plan, 0, node))
		return 0;
	return spread_count(spread_of_node(t->plan, node, s->owned));
}

static uint64_t param_size(const struct weightd_train *t, const struct snapshot *s)
{
	return count_elements(t, s, plan_shards_params(t->plan)) *
	       plan_element_size(t->plan, WEIGHTD_KIND_PARAM);
}

static uint64_t state_size(const struct weightd_train *t, const struct snapshot *s)
{
	return count_elements(t, s, plan_shards_state(t->plan)) * sizeof(float);
}

/* Room for the buffers and the state of one rank. */
static uint64_t rank_size(const struct weightd_plan *p)
{
	return room(p->buffer_size) + room(p->state_size);
}

static int allocate(const struct weightd_train *t, struct snapshot *s)
{
	const struct weightd_plan *p = t->plan;
	struct checkpoint_state state;
	char size[NUM_SIZE_MAX];
	void *memory;

	s->size = ALIGN + rank_size(p) * (t->arena.node ? 1 : p->n_nodes) + room(param_size(t, s));
	for (uint32_t i = 0; checkpoint_state(p, i, &state); i++)
		s->size += room(state_size(t, s));
	memory = mmap(NULL, s->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return train_fail(-ENOMEM,
				  "no memory for the %s of this rank's part, which a save copies",
				  num_format_size(size, s->size));
	s->memory = memory;
	return 0;
}

/* Takes the next free place, `*at`. */
static void *take(uint8_t **at, uint64_t size)
{
	uint8_t *to = *at;

	*at += room(size);
	return to;
}

static int copy_part(struct weightd_train *t, const struct checkpoint_state *state,
		     const struct plan_piece *part, void *to)
{
	const struct weightd_plan *p = t->plan;
	uint32_t range = plan_is_replicated(p) ? t->arena.rank : 0;
	uint64_t element = plan_element_size(p, state->kind);
	uint64_t size = (part->interval.end - part->interval.begin) * element;
	uint64_t offset = (state->moment * p->n_state + part->at) * element;
	const void *mapped = arena_map_range(&t->arena, state->kind, range, offset, size);

	if (!mapped)
		return -ENOMEM;
	memcpy(to, mapped, size);
	arena_unmap_range(&t->arena, mapped);
	return 0;
}

/* Those of other ranks' shards, too: a tensor may begin in this rank's and end in another's. */
static int copy_state(struct weightd_train *t, const struct checkpoint_state *state,
		      const struct snapshot *s, void *to)
{
	uint64_t size = plan_element_size(t->plan, state->kind);
	struct spread parts = spread_of_node(t->plan, t->arena.node, s->owned);
	struct plan_piece part;
	uint64_t n = 0;
	int r = 0;

	while (r == 0 && spread_next(&parts, &part)) {
		uint64_t first = t->arena.node ? n : part.interval.begin - s->owned.begin;

		r = copy_part(t, state, &part, (uint8_t *)to + first * size);
		n += part.interval.end - part.interval.begin;
	}
	return r;
}

static const uint8_t *param_of(const struct weightd_train *t, uint64_t element)
{
	return (const uint8_t *)t->arena.param +
	       element * plan_element_size(t->plan, WEIGHTD_KIND_PARAM);
}

static int put_params(struct weightd_train *t, struct snapshot *s, uint8_t **at)
{
	uint64_t size = param_size(t, s);

	if (!size)
		return 0;
	s->param = take(at, size);
	if (plan_shards_params(t->plan))
		return copy_state(t, &checkpoint_params, s, s->param);
	memcpy(s->param, param_of(t, s->owned.begin), size);
	return 0;
}

static int put_states(struct weightd_train *t, struct snapshot *s, uint8_t **at)
{
	uint64_t size = state_size(t, s);
	struct checkpoint_state state;
	int r = 0;

	for (uint32_t i = 0; r == 0 && size && checkpoint_state(t->plan, i, &state); i++) {
		s->states[i] = take(at, size);
		r = copy_state(t, &state, s, s->states[i]);
	}
	return r;
}

/* Copies the rank's state of the last step, which a restart would find, too. */
static void put_rank(struct weightd_train *t, struct snapshot *s)
{
	struct snapshot_rank *own = &s->ranks[t->arena.node];
	const uint8_t *buffers = s->step ? t->arena.buffers + (s->step % 2) * t->arena.buffer_stride
					 : t->buffers;
	const void *state = weightd_train_state(t, &own->state_size);

	if (t->buffers)
		memcpy(own->buffers, buffers, t->plan->buffer_size);
	if (own->state_size)
		memcpy(own->state, state, own->state_size);
}

/* Takes memory for all ranks that this one writes, or sends. */
static void take_ranks(struct weightd_train *t, struct snapshot *s, uint8_t **at)
{
	const struct weightd_plan *p = t->plan;

	for (uint32_t node = 0; node < p->n_nodes; node++) {
		if (t->arena.node && node != t->arena.node)
			continue;
		if (p->buffer_size)
			s->ranks[node].buffers = take(at, p->buffer_size);
		s->ranks[node].state = take(at, p->state_size);
	}
}

int snapshot_take(struct weightd_train *t, struct snapshot *ret)
{
	struct snapshot s = {.owned = checkpoint_owned(t->plan, t->arena.rank), .step = t->step};
	uint8_t *at;
	int r = allocate(t, &s);

	if (r < 0)
		return r;
	at = s.memory;
	s.n_skipped = trainer_words(t)->n_skipped[s.step % 2];
	if (t->plan->has_scaling)
		s.scale = scale_at(&t->arena, s.step);
	r = put_params(t, &s, &at);
	if (r == 0)
		r = put_states(t, &s, &at);
	if (r < 0) {
		snapshot_free(&s);
		return r;
	}
	take_ranks(t, &s, &at);
	put_rank(t, &s);
	*ret = s;
	return 0;
}

void snapshot_free(struct snapshot *s)
{
	if (s->memory)
		(void)munmap(s->memory, s->size);
	*s = (struct snapshot){0};
}
