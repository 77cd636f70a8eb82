#include "libclient/train/save/snapshot.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/num.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/scale.h"
#include "libclient/train/trainer.h"

#define ALIGN 64

static uint64_t room(uint64_t size)
{
	return (size + ALIGN - 1) / ALIGN * ALIGN;
}

/* Bytes of the owned elements in a kind of memory. */
static uint64_t owned_size(const struct snapshot *s, const struct weightd_plan *p,
			   enum weightd_kind kind)
{
	return (s->owned.end - s->owned.begin) * plan_element_size(p, kind);
}

static int allocate(struct snapshot *s, const struct weightd_plan *p)
{
	struct checkpoint_state state;
	char size[NUM_SIZE_MAX];
	void *memory;

	s->size = room(owned_size(s, p, WEIGHTD_KIND_PARAM)) + room(p->buffer_size) +
		  room(s->state_size) + ALIGN;
	for (uint32_t i = 0; checkpoint_state(p, i, &state); i++)
		s->size += room(owned_size(s, p, state.kind));
	memory = mmap(NULL, s->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return train_fail(-ENOMEM,
				  "no memory for the %s of this rank's part, which a save copies",
				  num_format_size(size, s->size));
	s->memory = memory;
	return 0;
}

/* Copies to the next free place, `*at`. */
static void *put(uint8_t **at, const void *from, uint64_t size)
{
	uint8_t *to = *at;

	if (size)
		memcpy(to, from, size);
	*at += room(size);
	return to;
}

/* Shards of other ranks, too: a tensor may begin in this rank's and end in another's. */
static int put_states(struct weightd_train *t, struct snapshot *s, uint8_t **at)
{
	const struct weightd_plan *p = t->plan;
	uint32_t range = plan_is_replicated(p) ? t->arena.rank : 0;
	struct checkpoint_state state;

	for (uint32_t i = 0; s->owned.begin < s->owned.end && checkpoint_state(p, i, &state); i++) {
		uint64_t size = owned_size(s, p, state.kind);
		uint64_t offset = (state.moment * p->n_elements + s->owned.begin) * sizeof(float);
		const void *mapped = arena_map_range(&t->arena, state.kind, range, offset, size);

		if (!mapped)
			return -ENOMEM;
		s->states[i] = put(at, mapped, size);
		arena_unmap_range(&t->arena, mapped);
	}
	return 0;
}

/* Those of the last step, which a restart would find, too. */
static void put_buffers(struct weightd_train *t, struct snapshot *s, uint8_t **at)
{
	const uint8_t *from = s->step ? t->arena.buffers + (s->step % 2) * t->arena.buffer_stride
				      : t->buffers;

	if (t->buffers)
		s->buffers = put(at, from, t->plan->buffer_size);
}

static const uint8_t *param_of(const struct weightd_train *t, uint64_t element)
{
	return (const uint8_t *)t->arena.param +
	       element * plan_element_size(t->plan, WEIGHTD_KIND_PARAM);
}

int snapshot_take(struct weightd_train *t, struct snapshot *ret)
{
	struct snapshot s = {.owned = checkpoint_owned(t->plan, t->arena.rank), .step = t->step};
	const void *state = weightd_train_state(t, &s.state_size);
	uint8_t *at;
	int r = allocate(&s, t->plan);

	if (r < 0)
		return r;
	at = s.memory;
	s.n_skipped = trainer_words(t)->n_skipped[s.step % 2];
	if (t->plan->has_scaling)
		s.scale = scale_at(&t->arena, s.step);
	s.param = put(&at, param_of(t, s.owned.begin), owned_size(&s, t->plan, WEIGHTD_KIND_PARAM));
	r = put_states(t, &s, &at);
	if (r < 0) {
		snapshot_free(&s);
		return r;
	}
	put_buffers(t, &s, &at);
	s.state = put(&at, state, s.state_size);
	*ret = s;
	return 0;
}

void snapshot_free(struct snapshot *s)
{
	if (s->memory)
		(void)munmap(s->memory, s->size);
	*s = (struct snapshot){0};
}
