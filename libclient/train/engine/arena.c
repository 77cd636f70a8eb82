#include "libclient/train/engine/arena.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/mapping.h"
#include "ipc/base/num.h"
#include "libclient/train/engine/identity.h"
#include "libclient/train/plan/sentence.h"

CLEANUP_POINTER(struct weightd_plan, weightd_plan_free);

static void arena_closep(struct arena **a)
{
	if (*a)
		arena_close(*a);
}

/* --- Joining ------------------------------------------------------------------------------------ */

static int join_differs(struct weightd *w, const struct weightd_plan *plan, const char *token)
{
	cleanup(weightd_plan_freep) struct weightd_plan *theirs = NULL;
	cleanup(freep) void *image = NULL;
	char difference[512];
	uint64_t size;

	if (weightd_job_description(w, token, &image, &size) < 0 ||
	    weightd_plan_parse(image, size, &theirs) < 0)
		return train_fail(
			-EPROTOTYPE,
			"the job of this token was not made with a plan of this release of weightd-train; "
			"start all ranks with one release, on a new job");
	if (weightd_plan_compare(plan, theirs, difference, sizeof(difference)) == 0)
		return train_fail(
			-EPROTOTYPE,
			"the job of this token has the same plan in parts of other sizes; start all ranks "
			"with one release, on a new job");
	return train_fail(
		-EPROTOTYPE,
		"this rank and the first one have different plans: %s; start all ranks with the same "
		"model and options, or create another job",
		difference);
}

/* "JOURNAL 1 x 4.1 MB, PARAM 1 x 55 MB, ... = 270 MB" */
static void parts_phrase(const struct weightd_plan *plan, char *ret, size_t size)
{
	char bytes[NUM_SIZE_MAX];
	uint64_t sum = 0;
	size_t used = 0;

	for (uint32_t i = 0; i < plan->n_parts && used < size; i++) {
		const struct plan_part *part = &plan->parts[i];

		sum += part->n * part->stride;
		used += (size_t)snprintf(ret + used, size - used, "%s%s %u x %s", i ? ", " : "",
					 weightd_kind_name(part->kind), part->n,
					 num_format_size(bytes, part->stride));
	}
	if (used < size)
		(void)snprintf(ret + used, size - used, " = %s", num_format_size(bytes, sum));
}

static int join_failed(struct weightd *w, const struct weightd_plan *plan, const char *token, int r)
{
	char arithmetic[512];

	if (r == -EPROTOTYPE)
		return join_differs(w, plan, token);
	if (r != -ENOMEM && r != -EDQUOT)
		return train_fail(r, "%s", weightd_error(w));
	parts_phrase(plan, arithmetic, sizeof(arithmetic));
	return train_fail(r, "there is no room for %s: %s", arithmetic, weightd_error(w));
}

/* Before this rank joins: the first one decides what the job contains. A job that is not listed is refused by the join. */
static int check_n_ranks(const struct arena *a, struct weightd *w, const char *token)
{
	uint32_t n_ranks;
	int r = identity_count_ranks(w, token, &n_ranks);

	if (r < 0)
		return r == -ENOENT ? 0 : r;
	if (n_ranks != a->plan->n_ranks)
		return train_fail(
			-EPROTOTYPE,
			"the job has %u ranks, the mesh of the plan has %u; create the job with as many, or "
			"make a mesh of %u",
			n_ranks, a->plan->n_ranks, n_ranks);
	return 0;
}

static int arena_join(struct arena *a, struct weightd *w, const char *token)
{
	struct weightd_part parts[WEIGHTD_KINDS] = {0};
	struct weightd_join_options options = {
		.size = sizeof(options),
		.rank = a->rank,
		.n_parts = a->plan->n_parts,
		.parts = parts,
	};
	int r = check_n_ranks(a, w, token);

	if (r < 0)
		return r;
	options.description = weightd_plan_image(a->plan, &options.description_size);
	for (uint32_t i = 0; i < a->plan->n_parts; i++) {
		const struct plan_part *part = &a->plan->parts[i];

		parts[i].size = sizeof(parts[i]);
		parts[i].kind = weightd_kind_name(part->kind);
		if (__builtin_mul_overflow(part->stride, part->n, &parts[i].n_bytes))
			return train_fail(-EOVERFLOW, "%s of %u x %" PRIu64 " bytes is too large",
					  parts[i].kind, part->n, part->stride);
	}
	r = weightd_job_join(w, token, &options, &a->job);
	if (r < 0)
		return join_failed(w, a->plan, token, r);
	return 0;
}

/* --- Mapping ------------------------------------------------------------------------------------ */

static int mapping_keep(struct arena *a, void *start, uint64_t size)
{
	struct arena_mapping *mappings = reallocarray(a->mappings, a->n_mappings + 1,
						      sizeof(*mappings));

	if (!mappings)
		return -ENOMEM;
	a->mappings = mappings;
	mappings[a->n_mappings++] = (struct arena_mapping){.start = start, .size = size};
	return 0;
}

static void mappings_free(struct arena *a)
{
	while (a->n_mappings) {
		struct arena_mapping *m = &a->mappings[--a->n_mappings];

		mapping_free(m->start, m->size);
	}
	free(a->mappings);
	a->mappings = NULL;
}

int arena_fd(const struct arena *a, enum weightd_kind kind)
{
	const struct plan_part *part = plan_part(a->plan, kind);

	return weightd_job_fd(a->job, (uint32_t)(part - a->plan->parts));
}

/*
 * Maps bytes of a part. `ret` is the address of `offset`, NULL for no bytes; `prot` PROT_READ or PROT_WRITE too. A part that
 * the plan lacks is not mapped.
 */
static int arena_map(struct arena *a, enum weightd_kind kind, uint64_t offset, uint64_t size,
		     int prot, void *ret)
{
	const struct plan_part *part = plan_part(a->plan, kind);
	uint64_t start = offset & ~(uint64_t)(PLAN_PAGE - 1);
	void *mapped;
	int r;

	if (!part || size == 0)
		return 0;
	size += offset - start;
	r = mapping_new_part(arena_fd(a, kind), start, size, prot, NULL, &mapped);
	if (r == 0 && (prot & PROT_WRITE) && madvise(mapped, size, MADV_DONTFORK) < 0)
		r = -errno;
	if (r == 0)
		r = mapping_keep(a, mapped, size);
	if (r < 0)
		return train_fail(r, "cannot map %" PRIu64 " bytes of %s: %s", size,
				  weightd_kind_name(kind), strerror(-r));
	*(void **)ret = (char *)mapped + (offset - start);
	return 0;
}

#define READ PROT_READ
#define WRITE (PROT_READ | PROT_WRITE)

static uint64_t stride_of(const struct arena *a, enum weightd_kind kind)
{
	const struct plan_part *part = plan_part(a->plan, kind);

	return part ? part->stride : 0;
}

/* Bytes of a range of a kind that are in use. */
static uint64_t used_of(const struct arena *a, enum weightd_kind kind)
{
	const struct plan_part *part = plan_part(a->plan, kind);

	return part ? part->used : 0;
}

/* Elements, or places, of a range that begins at `offset` of its part. */
static int arena_map_interval(struct arena *a, enum weightd_kind kind, uint64_t offset,
			      struct plan_interval interval, void *ret)
{
	uint64_t size = plan_element_size(a->plan, kind);

	return arena_map(a, kind, offset + interval.begin * size,
			 (interval.end - interval.begin) * size, WRITE, ret);
}

/* Parameters of a->updated, originals and moments of a->updates, of rank a->rank. */
static int arena_map_updated(struct arena *a)
{
	const struct weightd_plan *p = a->plan;
	bool is_replicated = plan_is_replicated(p);
	uint32_t range = is_replicated ? a->rank : 0;
	struct plan_interval places = plan_places(a->updates);
	int r = 0;

	a->params = calloc(p->n_copies, sizeof(*a->params));
	if (!a->params)
		return train_fail(-ENOMEM, "no memory");
	if (plan_shards_params(p))
		r = arena_map_interval(a, WEIGHTD_KIND_PARAM, 0, places, &a->params[0]);
	for (uint32_t i = 0; r == 0 && !plan_shards_params(p) && i < p->n_copies; i++)
		if (!is_replicated || i == plan_copy(p, a->rank))
			r = arena_map_interval(a, WEIGHTD_KIND_PARAM,
					       i * stride_of(a, WEIGHTD_KIND_PARAM), a->updated,
					       &a->params[i]);
	if (r == 0)
		r = arena_map_interval(a, WEIGHTD_KIND_MASTER,
				       range * stride_of(a, WEIGHTD_KIND_MASTER), places,
				       &a->master);
	for (uint32_t i = 0; r == 0 && i < p->n_moments; i++)
		r = arena_map_interval(a, WEIGHTD_KIND_MOMENTS,
				       range * stride_of(a, WEIGHTD_KIND_MOMENTS) +
					       i * p->n_state * sizeof(float),
				       places, &a->moments[i]);
	return r;
}

/* Those of others in one mapping, which covers this rank's as well; its own a second time. */
static int arena_map_grads(struct arena *a)
{
	uint32_t n_slots = a->plan->n_slots, n = a->plan->n_ranks * n_slots;
	uint64_t stride = stride_of(a, WEIGHTD_KIND_GRAD);
	char *all = NULL, *own = NULL;
	void **grads = calloc(n, sizeof(*grads));
	int r;

	a->grads = grads;
	if (!grads)
		return train_fail(-ENOMEM, "no memory");
	r = arena_map(a, WEIGHTD_KIND_GRAD, 0, n * stride, READ, &all);
	if (r == 0)
		r = arena_map(a, WEIGHTD_KIND_GRAD, a->rank * n_slots * stride, n_slots * stride,
			      WRITE, &own);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < n; i++)
		grads[i] = i / n_slots == a->rank ? own + (i % n_slots) * stride : all + i * stride;
	return 0;
}

/* All places of all nodes: the rank that fills parameters has values for those of other ranks, too. */
static int arena_map_received(struct arena *a)
{
	uint32_t n = a->plan->n_nodes;
	uint64_t stride = stride_of(a, WEIGHTD_KIND_RECEIVED);
	char *all = NULL;
	int r;

	if (n == 1)
		return 0;
	a->received = calloc(n, sizeof(*a->received));
	if (!a->received)
		return train_fail(-ENOMEM, "no memory");
	r = arena_map(a, WEIGHTD_KIND_RECEIVED, 0, n * stride, WRITE, &all);
	for (uint32_t i = 0; r == 0 && i < n; i++)
		a->received[i] = (float *)(void *)(all + i * stride);
	return r;
}

static int arena_map_parts(struct arena *a)
{
	const struct weightd_plan *p = a->plan;
	int r = arena_map(a, WEIGHTD_KIND_JOURNAL, 0, a->layout.size, WRITE, &a->journal);

	if (r == 0)
		r = arena_map(a, WEIGHTD_KIND_PARAM,
			      plan_copy(p, a->rank) * stride_of(a, WEIGHTD_KIND_PARAM),
			      used_of(a, WEIGHTD_KIND_PARAM), READ, &a->param);
	if (r == 0)
		r = arena_map_grads(a);
	if (r == 0)
		r = arena_map(a, WEIGHTD_KIND_REDUCED, 0, used_of(a, WEIGHTD_KIND_REDUCED), WRITE,
			      &a->reduced);
	if (r == 0)
		r = arena_map_received(a);
	for (uint32_t i = 0; r == 0 && i < 2; i++)
		r = arena_map(a, WEIGHTD_KIND_STAGED, i * stride_of(a, WEIGHTD_KIND_STAGED),
			      used_of(a, WEIGHTD_KIND_STAGED), WRITE, &a->staged[i]);
	if (r == 0)
		r = arena_map(a, WEIGHTD_KIND_GATHERED, 0, used_of(a, WEIGHTD_KIND_GATHERED), WRITE,
			      &a->gathered);
	if (r == 0)
		r = arena_map(a, WEIGHTD_KIND_FROZEN, 0, p->frozen_size, READ, &a->frozen);
	if (r == 0)
		r = arena_map_updated(a);
	a->buffer_stride = stride_of(a, WEIGHTD_KIND_BUFFER);
	if (r == 0)
		r = arena_map(a, WEIGHTD_KIND_BUFFER, 2 * a->rank * a->buffer_stride,
			      2 * a->buffer_stride, WRITE, &a->buffers);
	return r;
}

/* The first rank decides: ranks of several nodes may open the job at the same time. */
static int head_claim(struct arena *a)
{
	uint32_t ours = a->node + 1, first = 0;

	if (__atomic_compare_exchange_n(&arena_head(a)->node, &first, ours, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE) ||
	    first == ours)
		return 0;
	return train_fail(-EINVAL,
			  "job '%s' is that of node %u, and rank %u was started as one of "
			  "node %u; give each node a job of its own",
			  weightd_job_name(a->job), first - 1, a->rank, a->node);
}

/*
 * Behind the node, the head is a pure function of the plan, which is the same in all ranks: each writes the same words, and
 * one that is killed between them leaves nothing that the next one does not write again.
 */
static int arena_init_head(struct arena *a)
{
	struct control_head *head = arena_head(a);
	uint64_t magic = __atomic_load_n(&head->magic, __ATOMIC_ACQUIRE);

	if (magic == 0) {
		int r = head_claim(a);

		if (r < 0)
			return r;
		__atomic_store_n(&head->abi, CONTROL_ABI, __ATOMIC_RELAXED);
		__atomic_store_n(&head->n_ranks, a->plan->n_ranks, __ATOMIC_RELAXED);
		__atomic_store_n(&head->state_size, a->plan->state_size, __ATOMIC_RELAXED);
		__atomic_store_n(&head->magic, CONTROL_MAGIC, __ATOMIC_RELEASE);
		return 0;
	}
	if (magic != CONTROL_MAGIC || head->abi != CONTROL_ABI ||
	    head->n_ranks != a->plan->n_ranks || head->state_size != a->plan->state_size)
		return train_fail(
			-EPROTOTYPE,
			"the journal of job '%s' is of another release of weightd-train (form %u, ours is "
			"%d); finish it with that release, or create another job",
			weightd_job_name(a->job), head->abi, CONTROL_ABI);
	return head_claim(a);
}

int arena_open(struct weightd *w, const struct weightd_plan *plan, const char *token, uint32_t node,
	       uint32_t rank, struct arena *ret)
{
	struct arena arena = {.plan = plan, .node = node, .rank = rank};
	cleanup(arena_closep) struct arena *a = &arena;
	int r;

	if (rank >= plan->n_ranks)
		return train_fail(-EINVAL,
				  "there is no rank %u: the mesh of the plan has %u ranks%s", rank,
				  plan->n_ranks, plan->n_nodes > 1 ? " on each node" : "");
	a->layout = control_layout(plan);
	a->updated = plan_updated(plan, rank);
	a->updates = plan_updates(plan, node, rank);
	r = arena_join(a, w, token);
	if (r == 0)
		r = arena_map_parts(a);
	if (r == 0)
		r = arena_init_head(a);
	if (r < 0)
		return r;
	*ret = *take_ptr(a);
	return 0;
}

void arena_close(struct arena *a)
{
	mappings_free(a);
	free((void *)a->params);
	free((void *)a->grads);
	free((void *)a->received);
	weightd_job_free(a->job);
	memset(a, 0, sizeof(*a));
}

/* --- Mapping more ------------------------------------------------------------------------------- */

int arena_borrow(struct arena *a, uint32_t rank, struct arena *ret)
{
	struct arena borrowed = *a;
	int r;

	borrowed.rank = rank;
	borrowed.updated = plan_updated(a->plan, rank);
	borrowed.updates = plan_updates(a->plan, a->node, rank);
	borrowed.params = NULL;
	borrowed.master = NULL;
	borrowed.moments[0] = borrowed.moments[1] = NULL;
	borrowed.buffers = NULL;
	borrowed.mappings = NULL;
	borrowed.n_mappings = 0;
	r = arena_map(&borrowed, WEIGHTD_KIND_PARAM,
		      plan_copy(a->plan, rank) * stride_of(a, WEIGHTD_KIND_PARAM),
		      used_of(a, WEIGHTD_KIND_PARAM), READ, &borrowed.param);
	if (r == 0)
		r = arena_map_updated(&borrowed);
	if (r < 0) {
		arena_borrow_end(&borrowed);
		return r;
	}
	*ret = borrowed;
	return 0;
}

void arena_borrow_end(struct arena *borrowed)
{
	mappings_free(borrowed);
	free((void *)borrowed->params);
	memset(borrowed, 0, sizeof(*borrowed));
}

void *arena_map_all(struct arena *a, enum weightd_kind kind, uint32_t range)
{
	void *all = NULL;
	const struct plan_part *part = plan_part(a->plan, kind);

	if (arena_map(a, kind, range * part->stride, part->used, WRITE, &all) < 0)
		return NULL;
	return all;
}

/* The mapping with an address. */
static void unmap_at(struct arena *a, const void *address)
{
	const char *at = address;

	for (uint32_t i = 0; at && i < a->n_mappings; i++) {
		struct arena_mapping *m = &a->mappings[i];

		if (at >= (char *)m->start && at < (char *)m->start + m->size) {
			mapping_free(m->start, m->size);
			*m = a->mappings[--a->n_mappings];
			return;
		}
	}
}

void arena_unmap_all(struct arena *a, const void *all)
{
	unmap_at(a, all);
}

const void *arena_map_range(struct arena *a, enum weightd_kind kind, uint32_t range,
			    uint64_t offset, uint64_t size)
{
	void *mapped = NULL;

	if (arena_map(a, kind, range * stride_of(a, kind) + offset, size, READ, &mapped) < 0)
		return NULL;
	return mapped;
}

void arena_unmap_range(struct arena *a, const void *mapped)
{
	unmap_at(a, mapped);
}

void *arena_element(const struct arena *a, enum weightd_kind kind, uint64_t element)
{
	const struct weightd_plan *p = a->plan;
	uint64_t in_updated = element - a->updated.begin;

	switch (kind) {
	case WEIGHTD_KIND_REDUCED:
		return a->reduced + element;
	case WEIGHTD_KIND_MASTER:
		return a->master + in_updated;
	default:
		return (uint8_t *)a->params[plan_copy(p, a->rank)] +
		       in_updated * plan_element_size(p, kind);
	}
}

void *arena_param_at(const struct arena *a, uint64_t place)
{
	return (uint8_t *)a->params[0] + (place - plan_places(a->updates).begin) *
						 plan_element_size(a->plan, WEIGHTD_KIND_PARAM);
}

float *arena_node_sum(const struct arena *a, uint32_t bucket, uint64_t element)
{
	if (a->staged[0])
		return a->staged[bucket % 2] + (element - a->plan->buckets[bucket].begin);
	return a->reduced + element;
}

float *arena_sums(const struct arena *a)
{
	return plan_pools_grads(a->plan) ? a->reduced : a->received[a->node];
}

/* --- Places in the journal ---------------------------------------------------------------------- */

struct control_head *arena_head(const struct arena *a)
{
	return (struct control_head *)(void *)a->journal;
}

struct control_rank *arena_rank(const struct arena *a, uint32_t rank)
{
	return (struct control_rank *)(void *)(a->journal + a->layout.ranks) + rank;
}

struct control_summary *arena_summary(const struct arena *a, uint64_t step, uint32_t node)
{
	uint64_t number = (2ull * a->rank + step % 2) * a->plan->n_nodes + node;

	return (struct control_summary *)(void *)(a->journal + a->layout.summaries +
						  number * a->layout.summary_stride);
}

struct control_status *arena_status(const struct arena *a, uint32_t rank)
{
	return (struct control_status *)(void *)(a->journal + a->layout.status) + rank;
}

struct control_bucket *arena_bucket(const struct arena *a, uint32_t rank, uint32_t bucket)
{
	return (struct control_bucket *)(void *)(a->journal + a->layout.buckets) +
	       (size_t)rank * a->plan->n_buckets + bucket;
}

struct control_saved *arena_saved(const struct arena *a, uint32_t rank, uint64_t step)
{
	uint32_t n = CONTROL_SAVED(a->plan);
	uint64_t slot = (uint64_t)rank * n + step % n;

	return (struct control_saved *)(void *)(a->journal + a->layout.saved +
						slot * a->layout.saved_stride);
}

struct control_word *arena_room(const struct arena *a, uint32_t rank, uint32_t room)
{
	return (struct control_word *)(void *)(a->journal + a->layout.rooms) +
	       (size_t)rank * a->plan->n_rooms + room;
}

uint8_t *arena_log(const struct arena *a, uint32_t rank)
{
	return a->journal + a->layout.logs + rank * a->layout.log_stride;
}
