#include "libclient/train/save/places.h"

#include <string.h>

#include "libclient/train/saved.h"
#include "libclient/train/trainer.h"

struct plan_interval places_params(const struct weightd_train *t,
				   const struct weightd_train_tensor *tensor)
{
	struct plan_interval all = plan_elements(t->plan, tensor), part = t->arena.updated;

	part.begin = part.begin > all.begin ? part.begin : all.begin;
	part.end = part.end < all.end ? part.end : all.end;
	if (part.begin >= part.end)
		return (struct plan_interval){0, 0};
	return (struct plan_interval){part.begin - all.begin, part.end - all.begin};
}

static uint8_t *param_in(const struct weightd_train *t, uint32_t copy,
			 const struct weightd_train_tensor *tensor, uint64_t element)
{
	uint64_t at = plan_elements(t->plan, tensor).begin + element - t->arena.updated.begin;

	return (uint8_t *)t->arena.params[copy] +
	       at * plan_element_size(t->plan, WEIGHTD_KIND_PARAM);
}

uint8_t *places_param(const struct weightd_train *t, const struct weightd_train_tensor *tensor,
		      uint64_t element)
{
	return param_in(t, plan_copy(t->plan, t->arena.rank), tensor, element);
}

void places_copy(const struct weightd_train *t, const struct weightd_train_tensor *tensor,
		 struct plan_interval part)
{
	uint32_t own = plan_copy(t->plan, t->arena.rank);
	uint64_t size = (part.end - part.begin) * plan_element_size(t->plan, WEIGHTD_KIND_PARAM);

	for (uint32_t i = 0; size && i < t->plan->n_copies; i++)
		if (i != own && t->arena.params[i])
			memcpy(param_in(t, i, tensor, part.begin),
			       places_param(t, tensor, part.begin), size);
}

void *places_state(const struct weightd_train *t, const struct checkpoint_state *state, uint64_t at)
{
	const struct arena *a = &t->arena;
	float *first = state->kind == WEIGHTD_KIND_MASTER ? a->master : a->moments[state->moment];

	if (state->kind == WEIGHTD_KIND_PARAM)
		return arena_param_at(a, at);
	return first + (at - plan_places(a->updates).begin);
}

struct control_saved *places_slot(const struct weightd_train *t, uint64_t step)
{
	struct control_saved *saved = arena_saved(&t->arena, t->arena.rank, step);

	return memset(saved, 0, t->arena.layout.saved_stride);
}

void places_keep(const struct weightd_train *t, uint64_t step)
{
	saved_write_buffers(t, step);
	__atomic_store_n(&arena_saved(&t->arena, t->arena.rank, step)->step, step, __ATOMIC_RELEASE);
}
