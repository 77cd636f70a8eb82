/*
 * Nodes without a network, for test_train_nodes_state.c
 *
 * All ranks of several nodes, each node with a job of its own, in one process, which runs them operation by operation in a
 * random order. An exchange copies from the memory of the other nodes at the moment when its receiver is there: later than a
 * connection would, and as late as one that was lost and made again. So it sees whether what a node sends is still there.
 */
#pragma once

#include <math.h>

#include "libclient/train/saved.h"
#include "libclient/train/scale.h"
#include "libclient/train/step.h"
#include "tests/unit/train_job.h"
#include "tests/unit/train_model.h"

#define NODES_MAX 4
#define LOCAL_MAX 3
#define MESH_MAX (NODES_MAX * LOCAL_MAX)
#define STEPS 6
#define POISON 0xff /* as floats: NaN */

struct setup {
	const char *strategy;
	uint32_t n_nodes, n_ranks;
	enum weightd_optimizer optimizer; /* 0: AdamW */
	enum weightd_dtype dtype, grad_dtype; /* 0: F32; that of the parameters */
	enum weightd_step_form form;
	uint32_t n_copies; /* "shared"; 0: 1 */
	uint32_t sync_every;
	bool overlap, without_journal;
	bool is_small; /* fewer elements than ranks */
	bool is_weighted, has_unused;
	double max_norm, init_scale;
	uint64_t nan_step, overflow_step; /* of the last rank */
};

struct state_rank {
	uint32_t node, rank;
	struct weightd_train *t;
	struct step step;
	uint64_t number; /* of the step; STEPS + 1: done */
	uint32_t op;
	bool is_ready; /* the others may receive what the operation sends */
	uint64_t sent;
};

/* Results of all lives of the ranks. */
struct state_record {
	double norms[STEPS + 1]; /* 0: not known */
};

struct state_world {
	const struct setup *setup;
	struct weightd_plan *plan;
	struct train_job_server *jobs[NODES_MAX];
	struct state_record *record;
	struct state_rank ranks[MESH_MAX]; /* in the order of the mesh */
};

/* --- Kills ---------------------------------------------------------------------------------------- */

/* The half of a kernel or of a transfer, its end, and each word before it is published is an event, which may be the last. */
static struct {
	unsigned n, fatal; /* from 1 on; 0: none */
} events;

static inline void event(void)
{
	if (++events.n == events.fatal)
		(void)raise(SIGKILL);
}

/* --- The model ------------------------------------------------------------------------------------ */

static inline uint32_t mesh_size(const struct setup *setup)
{
	return setup->n_nodes * setup->n_ranks;
}

static inline struct weightd_plan *state_plan(const struct setup *setup)
{
	enum weightd_dtype dtype = setup->dtype ? setup->dtype : WEIGHTD_F32;
	struct weightd_plan *plan;
	struct model m;

	model_init(&m, mesh_size(setup), setup->strategy,
		   setup->optimizer ? setup->optimizer : WEIGHTD_ADAMW);
	(void)model_add(&m, "wide", WEIGHTD_PARAM, dtype, setup->is_small ? 3 : 29, 5);
	if (!setup->is_small) {
		model_add(&m, "bias", WEIGHTD_PARAM, dtype, 1, 37)->group = 1;
		(void)model_add(&m, "deep", WEIGHTD_PARAM, dtype, 67, 16);
		(void)model_add(&m, "tail", WEIGHTD_PARAM, dtype, 131, 7);
	}
	m.scaling.init = setup->init_scale;
	m.scaling.interval = 3;
	m.options.n_groups = 2;
	m.options.n_nodes = setup->n_nodes;
	m.options.sync_every = setup->sync_every;
	m.options.form = setup->form;
	m.options.bucket_bytes = 2048;
	m.options.overlap = setup->overlap;
	m.options.state_size = 64;
	m.options.without_journal = setup->without_journal;
	m.options.grad_dtype = setup->grad_dtype;
	m.options.scaling = setup->init_scale > 0 ? &m.scaling : NULL;
	if (setup->n_copies)
		m.options.n_copies = setup->n_copies;
	plan = model_plan(&m);
	model_deinit(&m);
	return plan;
}

static inline float value_first(uint64_t element)
{
	return (float)(element * 2654435761u % 1000) / 1000 - 0.50001f; /* never 0 */
}

static inline float value_grad(float param, uint32_t rank, uint64_t step, uint64_t element)
{
	float noise = (float)((element + step * 31 + rank * 17) * 40503u % 512) / 512 - 0.5f;

	return param * (0.2f + 0.1f * (float)rank) + noise;
}

static inline double rate(uint64_t step, uint32_t group)
{
	return (group ? 0.02 : 0.01) / (1 + 0.1 * (double)step);
}

static inline double weight_of(const struct setup *setup, uint32_t rank)
{
	return setup->is_weighted ? 1 + 2 * rank : 0;
}

/* In turns a parameter is unused by all ranks of the mesh, by all but one, or by none. */
static inline bool is_unused(const struct setup *setup, uint64_t step, uint32_t tensor,
			     uint32_t rank)
{
	uint64_t turn = (step + tensor) % 3;

	if (!setup->has_unused)
		return false;
	return turn == 0 || (turn == 1 && rank != step % mesh_size(setup));
}

/* GRAD of a rank of the mesh from PARAM. */
static inline void grads_make(const struct setup *setup, const struct weightd_plan *p,
			      const void *param, uint32_t rank, uint64_t step, double scale,
			      void *grad)
{
	const struct kernels *k = kernels_at(0);
	float *values = malloc(p->n_elements * sizeof(float));
	enum kernel_type type = optimizer_type(p->grad_dtype);

	k->widen(values, param, optimizer_type(p->param_dtype), p->n_elements);
	for (uint32_t i = 0; i < p->n_tensors; i++) {
		struct plan_interval elements = plan_elements(p, &p->tensors[i]);
		bool unused = is_unused(setup, step, i, rank);

		for (uint64_t e = elements.begin; e < elements.end; e++)
			values[e] = unused ? 0 : value_grad(values[e], rank, step, e) * (float)scale;
		if (step == setup->overflow_step && rank + 1 == mesh_size(setup))
			values[elements.begin] = INFINITY;
		k->round((uint8_t *)grad + elements.begin * kernel_type_size(type), type,
			 values + elements.begin, elements.end - elements.begin);
	}
	free(values);
}

/* --- Memory --------------------------------------------------------------------------------------- */

/* A part of a node's job, whole and writable, until the process ends. */
static inline uint8_t *state_map(const struct state_world *w, uint32_t node, enum weightd_kind kind)
{
	const struct plan_part *part = plan_part(w->plan, kind);
	void *memory;

	if (!part)
		return NULL;
	memory = mmap(NULL, part->n * part->stride, PROT_READ | PROT_WRITE, MAP_SHARED,
		      w->jobs[node]->fds[part - w->plan->parts], 0);
	assert(memory != MAP_FAILED);
	return memory;
}

static inline void state_unmap(const struct state_world *w, enum weightd_kind kind, uint8_t *memory)
{
	const struct plan_part *part = plan_part(w->plan, kind);

	if (memory)
		(void)munmap(memory, part->n * part->stride);
}

static inline uint64_t stride_of(const struct weightd_plan *p, enum weightd_kind kind)
{
	const struct plan_part *part = plan_part(p, kind);

	return part ? part->stride : 0;
}

/* The range of MASTER or MOMENTS of a rank. */
static inline uint64_t state_range(const struct weightd_plan *p, uint32_t rank)
{
	return plan_is_replicated(p) ? rank : 0;
}

/* MASTER, or moment `index`, of a rank from place 0 on. */
static inline float *state_at(const struct weightd_plan *p, uint8_t *memory, enum weightd_kind kind,
			      uint32_t rank, uint32_t index)
{
	return (float *)(void *)(memory + state_range(p, rank) * stride_of(p, kind)) +
	       index * p->n_state;
}

static inline uint64_t length(struct plan_interval i)
{
	return i.end - i.begin;
}

static inline void values_make(const struct weightd_plan *p, float *ret)
{
	memset(ret, 0, p->n_elements * sizeof(*ret));
	for (uint32_t i = 0; i < p->n_tensors; i++) {
		struct plan_interval elements = plan_elements(p, &p->tensors[i]);

		for (uint64_t e = elements.begin; e < elements.end; e++)
			ret[e] = value_first(e);
	}
}

static inline void state_fill_rank(const struct state_world *w, uint32_t node, uint32_t rank,
				   const float *values, uint8_t *master, uint8_t *moments)
{
	const struct weightd_plan *p = w->plan;
	const struct plan_pieces *updates = plan_updates(p, node, rank);

	for (uint32_t i = 0; i < updates->n; i++) {
		const struct plan_piece *piece = &updates->pieces[i];
		uint64_t size = length(piece->interval) * sizeof(float);

		if (master)
			memcpy(state_at(p, master, WEIGHTD_KIND_MASTER, rank, 0) + piece->at,
			       values + piece->interval.begin, size);
		for (uint32_t j = 0; j < p->n_moments; j++)
			memset(state_at(p, moments, WEIGHTD_KIND_MOMENTS, rank, j) + piece->at, 0,
			       size);
	}
}

static const enum weightd_kind poisoned[] = {WEIGHTD_KIND_PARAM, WEIGHTD_KIND_REDUCED,
					     WEIGHTD_KIND_RECEIVED, WEIGHTD_KIND_MASTER,
					     WEIGHTD_KIND_MOMENTS};

/* First values; the rest is poison. */
static inline void state_fill(const struct state_world *w, uint32_t node)
{
	const struct weightd_plan *p = w->plan;
	float *values = malloc(p->n_elements * sizeof(*values));
	uint8_t *memory[WEIGHTD_KINDS] = {NULL};

	values_make(p, values);
	for (size_t i = 0; i < ARRAY_LEN(poisoned); i++) {
		enum weightd_kind kind = poisoned[i];

		memory[kind] = state_map(w, node, kind);
		if (memory[kind])
			memset(memory[kind], POISON, weightd_plan_bytes(p, kind));
	}
	for (uint32_t i = 0; i < p->n_copies; i++)
		kernels_at(0)->round(memory[WEIGHTD_KIND_PARAM] +
					     i * stride_of(p, WEIGHTD_KIND_PARAM),
				     optimizer_type(p->param_dtype), values, p->n_elements);
	for (uint32_t rank = 0; rank < p->n_ranks; rank++)
		state_fill_rank(w, node, rank, values, memory[WEIGHTD_KIND_MASTER],
				memory[WEIGHTD_KIND_MOMENTS]);
	for (size_t i = 0; i < ARRAY_LEN(poisoned); i++)
		state_unmap(w, poisoned[i], memory[poisoned[i]]);
	free(values);
}

/* --- Worlds --------------------------------------------------------------------------------------- */

static inline void state_init(struct state_world *w, const struct setup *setup)
{
	struct arena a;

	*w = (struct state_world){.setup = setup, .plan = state_plan(setup)};
	w->record = mmap(NULL, sizeof(*w->record), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert(w->record != MAP_FAILED);
	for (uint32_t node = 0; node < setup->n_nodes; node++) {
		train_job_start(setup->n_ranks);
		w->jobs[node] = train_job;
		/* The first rank that joins makes the parts. */
		if (arena_open(NULL, w->plan, TRAIN_JOB_TOKEN, node, 0, &a) < 0)
			fail_msg("%s", weightd_train_error());
		arena_close(&a);
		state_fill(w, node);
	}
}

static inline void state_deinit(struct state_world *w)
{
	for (uint32_t node = 0; node < w->setup->n_nodes; node++) {
		train_job = w->jobs[node];
		train_job_stop();
	}
	(void)munmap(w->record, sizeof(*w->record));
	weightd_plan_free(w->plan);
}

static inline struct weightd_train *train_new(struct state_world *w, uint32_t node, uint32_t rank)
{
	struct weightd_train *t = aligned_alloc(alignof(struct weightd_train), sizeof(*t));

	memset(t, 0, sizeof(*t));
	t->plan = w->plan;
	train_job = w->jobs[node];
	if (arena_open(NULL, w->plan, TRAIN_JOB_TOKEN, node, rank, &t->arena) < 0 ||
	    touched_init(&t->touched, w->plan) < 0) {
		fprintf(stderr, "%s\n", weightd_train_error());
		abort();
	}
	return t;
}

static inline struct state_rank *local_rank(struct state_world *w, uint32_t node, uint32_t rank)
{
	return &w->ranks[node * w->setup->n_ranks + rank];
}

static inline struct control_rank *words_of(const struct state_rank *r)
{
	return trainer_words(r->t);
}

/* --- Operations ----------------------------------------------------------------------------------- */

static inline void transfer(struct state_rank *from, void *target, const void *source, uint64_t size)
{
	memcpy(target, source, size / 2);
	event();
	memcpy((uint8_t *)target + size / 2, (const uint8_t *)source + size / 2, size - size / 2);
	from->sent += size;
}

static inline void receive_parts(struct state_rank *r, struct state_rank *from,
				 const struct plan_op *op)
{
	const struct arena *a = &r->t->arena;
	uint32_t owner = op->type == PLAN_SCATTER ? r->node : from->node;
	bool is_early = op->type == PLAN_SCATTER && op->bucket != UINT32_MAX;
	const struct touched *touched = is_early ? NULL : step_touched(&r->step);
	struct touched_parts w = touched_parts_of(touched, plan_pieces(a->plan, owner, r->rank),
						  op->type == PLAN_SCATTER ? op->bucket
									   : UINT32_MAX);
	struct plan_piece part;

	while (touched_parts_next(&w, &part))
		transfer(from, step_target(a, op, from->node, &part),
			 step_source(&from->t->arena, op, &part),
			 length(part.interval) * plan_element_size(a->plan, op->from));
}

static inline void receive(struct state_rank *r, struct state_rank *from, const struct plan_op *op)
{
	struct control_summary *ours = arena_summary(&r->t->arena, r->number, from->node),
			       *theirs = arena_summary(&from->t->arena, r->number, from->node);

	if (op->type == PLAN_AGREE)
		transfer(from, ours, theirs, r->t->arena.layout.summary_stride);
	else if (op->type == PLAN_DECIDE)
		transfer(from, &ours->norm, &theirs->norm, sizeof(ours->norm));
	else
		receive_parts(r, from, op);
}

static inline bool is_there(const struct state_rank *other, const struct state_rank *r)
{
	if (other->number != r->number)
		return other->number > r->number;
	return other->op > r->op || (other->op == r->op && other->is_ready);
}

/* False: other nodes are not there yet. */
static inline bool exchange_try(struct state_world *w, struct state_rank *r,
				const struct plan_op *op)
{
	struct control_word *line = &words_of(r)->line;
	uint64_t position = control_exchange(r->number, op->exchange);

	r->is_ready = true;
	if (trainer_word(line) >= position)
		return true;
	for (uint32_t node = 0; node < w->setup->n_nodes; node++)
		if (!is_there(local_rank(w, node, r->rank), r))
			return false;
	for (uint32_t node = 0; node < w->setup->n_nodes; node++)
		if (node != r->node)
			receive(r, local_rank(w, node, r->rank), op);
	wait_publish(line, position);
	return true;
}

/* All ranks of the node have the word. */
static inline bool all_have(struct state_world *w, const struct state_rank *r, size_t word,
			    uint64_t value)
{
	for (uint32_t i = 0; i < w->setup->n_ranks; i++) {
		uint8_t *words = (uint8_t *)words_of(local_rank(w, r->node, i));

		if (trainer_word((struct control_word *)(void *)(words + word)) < value)
			return false;
	}
	return true;
}

static inline void hand_over(struct state_world *w, struct state_rank *r)
{
	struct weightd_train *t = r->t;
	const struct weightd_plan *p = w->plan;
	uint32_t rank = r->node * p->n_ranks + r->rank;
	bool unused[TENSORS] = {false};
	double lr[] = {rate(r->number, 0), rate(r->number, 1)};
	struct weightd_update u = {
		.size = sizeof(u),
		.lr = lr,
		.weight = weight_of(w->setup, rank),
		.has_loss = true,
		.loss = r->number == w->setup->nan_step && rank + 1 == mesh_size(w->setup) ? NAN : 1,
		.max_norm = w->setup->max_norm,
		.unused = unused};

	for (uint32_t i = 0; i < p->n_tensors; i++)
		unused[i] = is_unused(w->setup, r->number, i, rank);
	grads_make(w->setup, p, t->arena.param, rank, r->number,
		   p->has_scaling ? scale_at(&t->arena, r->number - 1).scale : 1,
		   t->arena.grads[r->rank]);
	saved_write(t, &u, r->number);
	wait_publish(&words_of(r)->grad, r->number);
}

static inline bool compute_try(struct state_world *w, struct state_rank *r)
{
	if (!r->is_ready && trainer_word(&words_of(r)->grad) < r->number)
		hand_over(w, r);
	r->is_ready = true;
	if (!all_have(w, r, offsetof(struct control_rank, grad), r->number))
		return false;
	r->step = (struct step){.t = r->t, .number = r->number, .until = r->number};
	if (!plan_sums_nodes(w->plan))
		step_init(&r->step, &r->t->arena, r->number);
	return true;
}

/* As the thread of overlap.h does it. */
static inline void sum_early(struct state_rank *r, uint32_t bucket)
{
	const struct arena *a = &r->t->arena;
	struct control_word *reduced = &arena_bucket(a, a->rank, bucket)->reduced;
	struct journal_step sums;

	if (trainer_word(reduced) >= 2 * r->number - 1)
		return;
	step_weigh_equally(&sums, a->plan);
	step_set_grads(&sums, a, r->number);
	sums.touched = touched_find(&r->t->touched, a, r->number);
	step_sum_bucket(r->t, &sums, a, bucket);
	wait_publish(reduced, 2 * r->number - 1);
}

static inline bool is_due(const struct state_rank *r, const struct plan_op *op)
{
	return r->number % op->every == 0;
}

static inline bool scatter_try(struct state_world *w, struct state_rank *r, const struct plan_op *op)
{
	const struct weightd_plan *p = w->plan;

	if (!is_due(r, op))
		return true;
	if (op->bucket != UINT32_MAX)
		sum_early(r, op->bucket);
	else if (plan_sums_nodes(p) &&
		 (r->step.is_skipped || (p->overlap && !r->step.update.is_weighted)))
		return true;
	return exchange_try(w, r, op);
}

static inline bool agree_try(struct state_world *w, struct state_rank *r, const struct plan_op *op)
{
	step_summarize(&r->t->arena, r->number);
	if (!exchange_try(w, r, op))
		return false;
	step_init(&r->step, &r->t->arena, r->number);
	return true;
}

static inline void record_norm(struct state_world *w, const struct state_rank *r)
{
	double *norm = &w->record->norms[r->number];

	if (w->setup->sync_every)
		return; /* each node has its own */
	assert(*norm == 0 || memcmp(norm, &r->t->norm, sizeof(*norm)) == 0);
	*norm = r->t->norm;
}

static inline bool decide_try(struct state_world *w, struct state_rank *r, const struct plan_op *op)
{
	if (r->step.is_skipped)
		return true;
	step_measure(&r->step, &r->t->arena);
	if (op->exchange) {
		if (!exchange_try(w, r, op))
			return false;
		step_add_norms(&r->step);
	}
	if (!all_have(w, r, offsetof(struct control_rank, norm_step), r->number))
		return false;
	step_decide(&r->step);
	record_norm(w, r);
	return true;
}

static inline bool gather_try(struct state_world *w, struct state_rank *r, const struct plan_op *op)
{
	const struct step *s = &r->step;

	if (!is_due(r, op) || (plan_sums_nodes(w->plan) && (s->is_skipped || s->has_overflowed)))
		return true;
	if (!exchange_try(w, r, op))
		return false;
	if (op->to == WEIGHTD_KIND_REDUCED && !all_have(w, r, offsetof(struct control_rank, line),
							control_exchange(r->number, op->exchange)))
		return false;
	step_spread(&r->step, op);
	return true;
}

static inline bool commit_try(struct state_world *w, struct state_rank *r)
{
	step_commit(&r->step, &r->t->arena);
	return all_have(w, r, offsetof(struct control_rank, param), r->number);
}

/* False: the rank waits for others. */
static inline bool op_try(struct state_world *w, struct state_rank *r)
{
	const struct plan_op *op = &w->plan->ops[r->op];

	switch (op->type) {
	case PLAN_COMPUTE:
		return compute_try(w, r);
	case PLAN_AGREE:
		return agree_try(w, r, op);
	case PLAN_REDUCE:
		step_reduce(&r->step, &r->t->arena, op->bucket);
		return true;
	case PLAN_SCATTER:
		return scatter_try(w, r, op);
	case PLAN_SUM:
		if (is_due(r, op))
			step_sum_nodes(&r->step, op);
		return true;
	case PLAN_DECIDE:
		return decide_try(w, r, op);
	case PLAN_UPDATE:
		step_update(&r->step, &r->t->arena);
		return true;
	case PLAN_GATHER:
		return gather_try(w, r, op);
	case PLAN_COMMIT:
		return commit_try(w, r);
	case PLAN_FETCH: /* no plan here shards PARAM, or has replicas */
	case PLAN_SCATTER_REPLICAS:
	case PLAN_GATHER_REPLICAS:
		break;
	}
	abort();
}

static inline void rank_advance(struct state_world *w, struct state_rank *r)
{
	r->is_ready = false;
	if (++r->op < w->plan->n_ops)
		return;
	r->op = 0;
	r->number++;
}

/* The step that the words are in. */
static inline void rank_resume(struct state_world *w, struct state_rank *r)
{
	uint64_t step = trainer_word(&words_of(r)->grad);

	r->number = all_have(w, r, offsetof(struct control_rank, param), step) ? step + 1 : step;
	r->op = 0;
	r->is_ready = false;
}

/* Runs all ranks from where their words are, in an order that `seed` draws. */
static inline void world_run(struct state_world *w, unsigned seed)
{
	uint32_t n = mesh_size(w->setup), n_left = 0, n_waits = 0;

	srandom(seed);
	for (uint32_t i = 0; i < n; i++) {
		struct state_rank *r = &w->ranks[i];

		r->node = i / w->setup->n_ranks;
		r->rank = i % w->setup->n_ranks;
		r->t = train_new(w, r->node, r->rank);
	}
	for (uint32_t i = 0; i < n; i++) {
		rank_resume(w, &w->ranks[i]);
		n_left += w->ranks[i].number <= STEPS;
	}
	while (n_left) {
		struct state_rank *r = &w->ranks[draw(n)];

		if (r->number > STEPS)
			continue;
		if (op_try(w, r)) {
			rank_advance(w, r);
			n_left -= r->number > STEPS;
			n_waits = 0;
		}
		assert(++n_waits < 10000); /* all wait */
	}
}

static inline void world_close(struct state_world *w)
{
	for (uint32_t i = 0; i < mesh_size(w->setup); i++) {
		struct state_rank *r = &w->ranks[i];

		train_job = w->jobs[r->node];
		arena_close(&r->t->arena);
		touched_deinit(&r->t->touched);
		free(r->t);
	}
}
