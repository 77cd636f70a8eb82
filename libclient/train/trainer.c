/*
 * The trainer: a rank from its opening to its end
 *
 * The words in the job define the step of a rank. Opening reads them, and finishes the step that this rank, or all ranks,
 * died in.
 */
#include "libclient/train/trainer.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "libclient/train/engine/identity.h"
#include "libclient/train/engine/isa.h"
#include "libclient/train/executor.h"
#include "libclient/train/fill.h"
#include "libclient/train/loaded.h"
#include "libclient/train/plan/given.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/saved.h"
#include "libclient/train/scale.h"

CLEANUP_POINTER(struct weightd_train, weightd_train_free);

uint64_t trainer_version(const struct weightd_train *t, uint64_t step)
{
	return step > t->plan->staleness ? step - t->plan->staleness : 0;
}

void trainer_complete(struct weightd_train *t, uint64_t step)
{
	t->step = step;
	status_complete(&t->status, step);
	if (!t->has_met_all)
		wait_place_meet(&t->place);
	t->has_met_all = true;
	overlap_begin(t, step + 1);
}

/* --- Opening --------------------------------------------------------------------------------------- */

static int open_memory(struct weightd_train *t)
{
	int r;

	t->filled = calloc(fill_ranges(t->plan), sizeof(*t->filled));
	if (t->plan->buffer_size)
		t->buffers = aligned_alloc(64, (t->plan->buffer_size + 63) / 64 * 64);
	if (!t->filled || (t->plan->buffer_size && !t->buffers))
		return train_fail(-ENOMEM, "no memory for %llu bytes of buffers",
				  (unsigned long long)t->plan->buffer_size);
	if (t->buffers)
		memset(t->buffers, 0, t->plan->buffer_size);
	r = touched_init(&t->touched, t->plan);
	if (!r)
		r = handover_init(t);
	return r < 0 ? r : units_init(t);
}

static void abandon(struct control_save *save, uint64_t number, uint32_t rank)
{
	if (trainer_word(&save->ended) >= number)
		return;
	save->result = -EOWNERDEAD;
	(void)snprintf(save->sentence, sizeof(save->sentence),
		       "rank %u was killed during the save of step %" PRIu64 "; save again", rank,
		       number >> CONTROL_SAVE_SHIFT);
	wait_publish(&save->ended, number);
}

/* A save that the process before was in will not be continued. */
static void open_abandon_save(struct weightd_train *t)
{
	struct control_save *save = &trainer_words(t)->save;
	uint64_t number = trainer_word(&save->begun);

	abandon(save, number, t->arena.rank);
	if (t->arena.rank == 0)
		abandon(&arena_head(&t->arena)->save, number, 0);
}

/* Gradients that this rank handed over are the step that it was in. */
static int open_finish_step(struct weightd_train *t)
{
	uint64_t step = loaded_open(t);
	int r = saved_restore(t, step);

	if (!r)
		r = executor_advance(t, trainer_version(t, step), step);
	t->nan_step = 0; /* reported, or lost, with the process that was this rank */
	if (r < 0)
		return r;
	t->step = step;
	status_set_step(&t->status, step);
	return 0;
}

/* Finishing for the dead needs their memory, and the other nodes a message of theirs. */
static int check_death(const struct weightd_plan *p, const struct weightd_train_options *o)
{
	if (p->n_nodes == 1 || o->on_death != WEIGHTD_DEATH_FINISH)
		return 0;
	return train_fail(-EINVAL,
			  "WEIGHTD_DEATH_FINISH is for one node, and the plan has %u: no rank can "
			  "take the place of a dead one in its connections; use WEIGHTD_DEATH_WAIT",
			  p->n_nodes);
}

/* NULL, or zeros: all is that of the environment. */
static int open_nodes(struct weightd_train *t, const struct weightd_train_options *o, uint32_t rank,
		      uint32_t *ret_node)
{
	struct weightd_nodes nodes = {.size = sizeof(nodes)};
	uint32_t node = 0;
	int r = check_death(t->plan, o);

	if (!r && o->nodes)
		r = given_copy(o->nodes, GIVEN_NODES_MIN, &nodes, sizeof(nodes),
			       "struct weightd_nodes");
	if (!r)
		r = identity_node(o->nodes ? &nodes : NULL, t->plan->n_nodes, &node);
	if (!r)
		r = exchange_init(t, &nodes, node, rank);
	if (!r)
		*ret_node = node;
	return r;
}

/* calloc() does not align enough. */
static struct weightd_train *trainer_new(void)
{
	struct weightd_train *t = aligned_alloc(alignof(struct weightd_train), sizeof(*t));

	if (!t)
		return NULL;
	memset(t, 0, sizeof(*t));
	t->pid = getpid();
	return t;
}

int weightd_train_open(struct weightd *w, const struct weightd_plan *plan,
		       const struct weightd_train_options *options, struct weightd_train **ret)
{
	cleanup(weightd_train_freep) struct weightd_train *t = trainer_new();
	char token[WEIGHTD_TOKEN_MAX];
	uint64_t image_size;
	const void *image = weightd_plan_image(plan, &image_size);
	struct weightd_train_options o = {.size = sizeof(o)};
	uint32_t rank, node;
	int r;

	if (!t)
		return train_fail(-ENOMEM, "no memory for the trainer");
	t->w = w;
	r = options ? given_copy(options, GIVEN_TRAIN_OPTIONS_MIN, &o, sizeof(o),
				 "struct weightd_train_options")
		    : 0;
	if (!r)
		r = isa_check();
	if (!r)
		r = identity_resolve(options ? &o : NULL, token, &rank);
	if (!r)
		r = weightd_plan_parse(image, image_size, &t->plan);
	if (!r)
		r = open_nodes(t, &o, rank, &node);
	if (!r)
		r = arena_open(w, t->plan, token, node, rank, &t->arena);
	if (r < 0)
		return r;
	wait_place_init(&t->place, t->arena.job, rank, t->plan->n_ranks, &o);
	t->place.is_starting = true;
	if (plan_shards_params(t->plan)) {
		t->place.serve = exchange_serve;
		t->place.serve_data = t;
	}
	status_init(&t->status, arena_status(&t->arena, rank));
	t->place.lane = &t->status.main;
	t->before.read = trainer_words(t)->traffic_read;
	t->before.written = trainer_words(t)->traffic_written;
	t->before.sent = trainer_words(t)->traffic_sent;
	t->before.sent_replicas = trainer_words(t)->traffic_replicas;
	t->norm = NAN;
	open_abandon_save(t);
	r = open_memory(t);
	if (!r)
		r = open_finish_step(t);
	if (r < 0)
		return r;
	status_enter(&t->status.main, CONTROL_COMPUTING);
	*ret = take_ptr(t);
	return 0;
}

void weightd_train_free(struct weightd_train *t)
{
	if (!t)
		return;
	if (t->pid == getpid()) {
		if (t->saving.state)
			t->saving.end(t);
		overlap_deinit(t);
		exchange_deinit(t);
		if (t->arena.job)
			arena_close(&t->arena);
	}
	units_deinit(t);
	handover_deinit(t);
	touched_deinit(&t->touched);
	values_free(t);
	free((void *)t->filled);
	free(t->buffers);
	weightd_plan_free(t->plan);
	free(t);
}

int weightd_train_close(struct weightd_train *t)
{
	int r = trainer_check(t);

	if (!r && t->saving.state)
		r = t->saving.wait(t);
	/* Units that were fetched ahead are not needed; the thread leaves the link. */
	if (!r && t->is_begun && plan_pools_grads(t->plan))
		r = queue_finish(t, t->step + 1);
	/* With staleness, the last updates are still to be made. */
	if (!r && t->is_begun)
		r = executor_advance(t, t->step, t->step);
	/* Another node may need what this rank sent last. */
	if (!r && t->is_begun)
		r = exchange_end(t);
	if (r < 0)
		return r;
	r = weightd_job_leave(t->arena.job);
	if (r == 0)
		status_enter(&t->status.main, CONTROL_DONE);
	return r < 0 ? train_fail(r, "%s", weightd_error(t->w)) : 0;
}

/* --- First values ---------------------------------------------------------------------------------- */

int weightd_train_begin(struct weightd_train *t)
{
	struct control_word *filled = &arena_head(&t->arena)->filled;
	struct wait_reason reason = {.topic = CONTROL_FIRST_VALUES,
				     .what = "fill the parameters",
				     .for_successor = true};
	bool is_first = t->arena.rank == 0 && !t->loaded.is_there;
	bool is_kept = !values_are_pooled(t->plan); /* values outlive this process */
	int r = trainer_check(t);

	if (r < 0 || t->is_begun)
		return r;
	if (t->arena.rank == 0)
		fill_end(t);
	if (is_first && is_kept)
		wait_publish_max(filled, 1);
	if (t->loaded.is_there)
		r = loaded_settle(t);
	else if (!is_first || is_kept)
		r = wait_for(&t->place, filled, 1, &reason);
	if (!r)
		r = exchange_fetch(t, 0, 0);
	if (!r)
		r = exchange_values(t, 0, 0);
	if (!r && is_first)
		wait_publish_max(filled, 1);
	if (!r)
		r = loaded_adopt(t, control_loaded_step(trainer_word(filled)));
	if (r < 0)
		return r;
	t->place.is_starting = false;
	r = overlap_init(t, &t->place);
	if (r < 0)
		return r;
	t->is_begun = true;
	overlap_begin(t, t->step + 1);
	return 0;
}

/* --- Accessors -------------------------------------------------------------------------------------- */

const struct weightd_plan *weightd_train_plan(const struct weightd_train *t)
{
	return t->plan;
}

uint32_t weightd_train_rank(const struct weightd_train *t)
{
	return t->arena.rank;
}

uint64_t weightd_train_step(const struct weightd_train *t)
{
	return t->step;
}

/* NULL: no such tensor. */
static const struct weightd_train_tensor *tensor_find(const struct weightd_train *t, uint32_t tensor)
{
	return tensor < t->plan->n_tensors ? &t->plan->tensors[tensor] : NULL;
}

/* GRAD of this rank in the step that comes next. */
static uint8_t *grad_next(const struct weightd_train *t)
{
	uint32_t n_slots = t->plan->n_slots;

	return t->arena.grads[t->arena.rank * n_slots + (t->step + 1) % n_slots];
}

const void *weightd_train_param(const struct weightd_train *t, uint32_t tensor)
{
	const struct weightd_train_tensor *found = tensor_find(t, tensor);

	if (!found || found->role != WEIGHTD_PARAM)
		return NULL;
	if (found->frozen && !t->arena.frozen)
		return t->arena.param; /* all of them are empty */
	if (t->units.windows && !found->frozen)
		return found->n_bytes ? units_param(t, plan_elements(t->plan, found).begin)
				      : t->units.windows;
	return (found->frozen ? t->arena.frozen : (const uint8_t *)t->arena.param) + found->offset;
}

/* NULL: another bucket is there. Without elements it is in none, and any address will do. */
static void *grad_in_pool(const struct weightd_train *t, const struct weightd_train_tensor *tensor)
{
	const struct weightd_plan *p = t->plan;
	uint64_t begin = plan_elements(p, tensor).begin;
	uint32_t bucket;

	if (!tensor->n_bytes)
		return grad_next(t);
	bucket = plan_bucket_of(p, begin);
	if (!handover_is_open(t, bucket))
		return NULL;
	return grad_next(t) +
	       (begin - plan_grad_first(p, bucket)) * plan_element_size(p, WEIGHTD_KIND_GRAD);
}

void *weightd_train_grad(const struct weightd_train *t, uint32_t tensor)
{
	const struct weightd_train_tensor *found = tensor_find(t, tensor);

	if (!found || !plan_is_trained(found))
		return NULL;
	if (plan_pools_grads(t->plan))
		return grad_in_pool(t, found);
	return grad_next(t) +
	       plan_elements(t->plan, found).begin * plan_element_size(t->plan, WEIGHTD_KIND_GRAD);
}

void *weightd_train_buffer(const struct weightd_train *t, uint32_t tensor)
{
	const struct weightd_train_tensor *found = tensor_find(t, tensor);

	return found && found->role == WEIGHTD_BUFFER ? t->buffers + found->offset : NULL;
}

const void *weightd_train_range(const struct weightd_train *t, enum weightd_kind kind,
				uint64_t *ret_size)
{
	if (kind != WEIGHTD_KIND_PARAM && kind != WEIGHTD_KIND_GRAD)
		return NULL;
	if (kind == WEIGHTD_KIND_PARAM ? t->units.windows != NULL : plan_pools_grads(t->plan))
		return NULL;
	if (ret_size)
		*ret_size = t->plan->n_elements * plan_element_size(t->plan, kind);
	return kind == WEIGHTD_KIND_PARAM ? t->arena.param : grad_next(t);
}

const void *weightd_train_state(const struct weightd_train *t, uint64_t *ret_size)
{
	const struct control_saved *saved;

	*ret_size = 0;
	if (trainer_check(t) < 0 || !t->step)
		return NULL;
	saved = arena_saved(&t->arena, t->arena.rank, t->step);
	*ret_size = saved->state_size;
	return saved + 1;
}

double weightd_train_scale(const struct weightd_train *t)
{
	if (trainer_check(t) < 0)
		return NAN;
	return t->plan->has_scaling ? scale_at(&t->arena, t->step).scale : 1;
}

bool weightd_train_overflowed(const struct weightd_train *t)
{
	return trainer_check(t) == 0 && t->plan->has_scaling &&
	       scale_at(&t->arena, t->step).has_overflowed;
}
