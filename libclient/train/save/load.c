/*
 * Loads: each rank reads what it updates, and no other bytes of the tensors. With several nodes those of node 0 read, for the
 * same rank of the others as well: see save/share.h.
 */
#include <errno.h>
#include <inttypes.h>

#include "ipc/base/cleanup.h"
#include "libclient/train/loaded.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/plan/spread.h"
#include "libclient/train/save/loading.h"
#include "libclient/train/save/places.h"
#include "libclient/train/save/share.h"
#include "libclient/train/scale.h"
#include "libclient/train/trainer.h"

static int load_state(struct loading *l, const struct weightd_train_tensor *tensor,
		      const struct checkpoint_state *state)
{
	struct weightd_train *t = l->t;
	struct plan_interval elements = plan_elements(t->plan, tensor);
	struct spread parts = spread_of_rank(t->plan, t->arena.node, t->arena.rank, elements);
	struct plan_piece part;
	int r = 0;

	while (r == 0 && spread_next(&parts, &part))
		r = loading_read_state(l, tensor, state,
				       (struct plan_interval){part.interval.begin - elements.begin,
							      part.interval.end - elements.begin},
				       places_state(t, state, part.at));
	return r;
}

static int load_params(struct loading *l, const struct weightd_train_tensor *tensor)
{
	struct plan_interval part;
	int r;

	if (plan_shards_params(l->t->plan))
		return load_state(l, tensor, &checkpoint_params);
	part = places_params(l->t, tensor);
	if (part.begin == part.end)
		return 0;
	r = loading_read_state(l, tensor, &checkpoint_params, part,
			       places_param(l->t, tensor, part.begin));
	if (r == 0)
		places_copy(l->t, tensor, part);
	return r;
}

static int load_states(struct loading *l, const struct weightd_train_tensor *tensor)
{
	struct checkpoint_state state;
	int r = 0;

	for (uint32_t i = 0; r == 0 && checkpoint_state(l->t->plan, i, &state); i++)
		r = load_state(l, tensor, &state);
	return r;
}

/* Calls `load` for each trained tensor. Files are in the order of tensors. */
static int for_each_tensor(struct loading *l,
			   int (*load)(struct loading *l, const struct weightd_train_tensor *tensor))
{
	const struct weightd_plan *p = l->t->plan;
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < p->n_tensors; i++)
		if (plan_is_trained(&p->tensors[i]) && p->tensors[i].n_bytes)
			r = load(l, &p->tensors[i]);
	return r;
}

/* Those that are not trained have one copy, which rank 0 fills. */
static int load_frozen(struct loading *l)
{
	struct weightd_train *t = l->t;
	uint8_t *all = NULL;
	int r = 0;

	for (uint32_t i = 0; r == 0 && t->arena.rank == 0 && i < t->plan->n_tensors; i++) {
		const struct weightd_train_tensor *tensor = &t->plan->tensors[i];

		if (!tensor->frozen || !tensor->n_bytes)
			continue;
		if (!all)
			all = arena_map_all(&t->arena, WEIGHTD_KIND_FROZEN, 0);
		if (!all)
			return -ENOMEM;
		r = loading_read_frozen(l, tensor, all + tensor->offset);
	}
	if (all)
		arena_unmap_all(&t->arena, all);
	return r;
}

static int load_rank(struct loading *l)
{
	struct weightd_train *t = l->t;
	struct control_saved *saved = places_slot(t, l->description.step);
	uint32_t rank = checkpoint_rank(t->plan, t->arena.node, t->arena.rank);
	int r = loading_read_rank(l, rank, t->buffers, saved + 1, &saved->state_size);

	if (r == 0)
		places_keep(t, l->description.step);
	return r;
}

static int load_all(struct loading *l)
{
	int r = for_each_tensor(l, load_params);

	if (r == 0)
		r = for_each_tensor(l, load_states);
	if (r == 0)
		r = load_frozen(l);
	return r < 0 ? r : load_rank(l);
}

/* --- Calls ----------------------------------------------------------------------------------------- */

/* The process before this one loaded this checkpoint, and the others have begun with it. */
static bool is_loaded(const struct weightd_train *t, uint64_t step)
{
	return step && t->step == 0 && trainer_word(&trainer_words(t)->grad) == step &&
	       trainer_word(&arena_head(&t->arena)->filled) == control_loaded(step);
}

static int check_load(const struct weightd_train *t)
{
	uint64_t step = trainer_word(&trainer_words(t)->grad);

	if (t->step || (step && t->is_begun) || t->handover.step)
		return train_fail(-EALREADY,
				  "job '%s' has begun step %" PRIu64
				  ", and a checkpoint is loaded before the first one",
				  weightd_job_name(t->arena.job), step ? step : 1);
	if (t->write.is_open)
		return train_fail(-EINVAL, "call weightd_train_write_end() before a load");
	if (units_were_opened(t))
		return train_fail(-EINVAL, "units of parameters were opened before "
					   "(weightd_train_unit_open()); load a checkpoint first");
	return 0;
}

static struct control_scale scale_of(const struct loading *l)
{
	const struct weightd_train *t = l->t;

	if (!t->plan->has_scaling || l->description.has_scale)
		return l->description.scale;
	return scale_at(&t->arena, 0);
}

/* Loads on a node that reads the checkpoint. */
static int load_here(struct weightd_train *t, const char *path)
{
	cleanup(loading_deinit) struct loading l = {0};
	int r = loading_open(&l, t, path), r_check;

	if (r == 0 && is_loaded(t, l.description.step)) {
		t->loaded.step = l.description.step;
		return 0;
	}
	if (r == 0) {
		r_check = check_load(t);
		if (r_check < 0)
			return r_check; /* so it is on all nodes */
		r = load_all(&l);
	}
	if (r == 0)
		t->loaded = (struct trainer_loaded){.is_there = true,
						    .step = l.description.step,
						    .n_skipped = l.description.n_skipped,
						    .scale = scale_of(&l)};
	return t->plan->n_nodes > 1 ? share_send(&l, r) : r;
}

/* Several nodes: the others may be past the load of the process before this one. */
static int load_again(struct weightd_train *t)
{
	uint64_t filled = control_loaded_step(trainer_word(&arena_head(&t->arena)->filled));

	if (is_loaded(t, filled)) {
		t->loaded.step = filled;
		return 1;
	}
	return loaded_find(t);
}

static int load_values_of_checkpoint(struct weightd_train *t, const char *path)
{
	int r;

	if (t->plan->n_nodes == 1)
		return load_here(t, path);
	r = load_again(t);
	if (r)
		return r < 0 ? r : 0;
	if (t->arena.node == 0)
		return load_here(t, path);
	r = check_load(t);
	return r < 0 ? r : share_receive(t);
}

/* The others may have settled it already, once they had word of this rank. */
static int settle(struct weightd_train *t)
{
	int r = 0;

	/* The thread waits for requests of the step that would have been next. */
	if (t->is_begun && plan_pools_grads(t->plan))
		r = queue_finish(t, t->step + 1);
	if (r == 0 && !is_loaded(t, t->loaded.step))
		r = loaded_settle(t);
	if (r == 0)
		r = loaded_adopt(t, t->loaded.step);
	if (r == 0 && t->is_begun)
		overlap_begin(t, t->step + 1);
	return r;
}

int weightd_train_load(struct weightd_train *t, const char *path)
{
	int r = trainer_check(t);

	if (r == 0)
		r = load_values_of_checkpoint(t, path);
	if (r < 0)
		return r;
	return t->is_begun || is_loaded(t, t->loaded.step) ? settle(t) : 0;
}
