/*
 * Tests that values of strategies that pool gradients reach all nodes whole: first ones, and those written between steps
 *
 * Each process of rank 0 of node 0 gives other values, so that a mixture of two of them is seen. Ranks are killed before each
 * word that they publish, before transfers, behind them with half of what they received lost, and in the midst of copies.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "libclient/train/plan/spread.h"
#include "tests/unit/train_model.h"
#include "tests/unit/train_node_jobs.h"

#define VICTIMS 2
#define LIVES_MAX 4
#define STAGES 3 /* first values; then two writes, each of its tensors, and none of "bias" */
#define UNITS 4
#define MODEL_TENSORS 6
#define MODEL_FROZEN 2
#define FROZEN_SIZE (3 * 70)

/* Tensors that are written in a stage, by their bits. */
static const unsigned stage_tensors[STAGES] = {0x3f, 0x35, 0x28};

struct victim {
	uint32_t rank; /* of the mesh; UINT32_MAX: none */
	uint64_t position; /* it dies before it publishes this one; 0: at an event */
	bool follows; /* events count from the death of the victim before on */
	unsigned fatal; /* the event, from 1 on */
	_Atomic unsigned n_events;
	_Atomic bool has_died;
};

/* A run, and the deaths in it; shared by its processes. */
struct scene {
	struct setup setup;
	uint32_t n_copies;
	struct victim victims[VICTIMS];
	_Atomic unsigned n_lives; /* of rank 0 of node 0 */
	_Atomic unsigned lives[STAGES]; /* the one whose values are those of the stage; 0: not known */
	uint32_t publisher; /* of the mesh; UINT32_MAX: none, and no rank takes part */
	uint32_t refused; /* likewise: its version is */
	bool is_full; /* a version has no room for its second tensor */
	uint8_t version[65536];
};

static struct scene *scene;
static uint32_t mesh_rank; /* of this process; UINT32_MAX: none */
static unsigned life; /* of rank 0 of node 0 */

/* --- Kills ------------------------------------------------------------------------------------------- */

const struct kernels *__real_kernels_get(void);
void __real_wait_publish(struct control_word *word, uint64_t value);
int __real_link_exchange(struct link *l, const struct weightd_transfer *transfers, uint32_t n,
			 engine_check *check, void *data, int deadline_ms);
const struct kernels *__wrap_kernels_get(void);
void __wrap_wait_publish(struct control_word *word, uint64_t value);
int __wrap_link_exchange(struct link *l, const struct weightd_transfer *transfers, uint32_t n,
			 engine_check *check, void *data, int deadline_ms);

/* True: this process dies here. */
static bool event_is_fatal(void)
{
	for (uint32_t i = 0; scene && i < VICTIMS; i++) {
		struct victim *v = &scene->victims[i];

		if (v->rank != mesh_rank || v->has_died || (v->follows && !v[-1].has_died) ||
		    ++v->n_events != v->fatal)
			continue;
		v->has_died = true;
		return true;
	}
	return false;
}

static void event(void)
{
	if (event_is_fatal())
		(void)raise(SIGKILL);
}

static void mortal_round(void *to, enum kernel_type type, const float *from, size_t n)
{
	size_t half = n / 2 / 32 * 32;

	__real_kernels_get()->round(to, type, from, half);
	event();
	__real_kernels_get()->round((uint8_t *)to + half * kernel_type_size(type), type,
				    from + half, n - half);
}

const struct kernels *__wrap_kernels_get(void)
{
	static struct kernels mortal;

	mortal = *__real_kernels_get();
	mortal.round = mortal_round;
	return &mortal;
}

void __wrap_wait_publish(struct control_word *word, uint64_t value)
{
	event();
	if (scene && mesh_rank == scene->victims[0].rank && value == scene->victims[0].position &&
	    !atomic_exchange(&scene->victims[0].has_died, true))
		(void)raise(SIGKILL);
	__real_wait_publish(word, value);
}

/* The connection has brought all, or the others at least have sent all: the second half was not written any more. */
static void lose_half(const struct weightd_transfer *transfers, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < transfers[i].n_receive; k++) {
			const struct weightd_segment *s = &transfers[i].receive[k];

			memset((uint8_t *)s->data + s->size / 2, 0xff, s->size - s->size / 2);
		}
}

int __wrap_link_exchange(struct link *l, const struct weightd_transfer *transfers, uint32_t n,
			 engine_check *check, void *data, int deadline_ms)
{
	int r;

	event();
	r = __real_link_exchange(l, transfers, n, check, data, deadline_ms);
	if (r < 0 || !event_is_fatal())
		return r;
	lose_half(transfers, n);
	return raise(SIGKILL);
}

/* --- The model --------------------------------------------------------------------------------------- */

/* Replicas, and the nodes of each. */
static void model_replicate(struct model *m, const struct setup *setup)
{
	const struct weightd_mesh_dim dims[] = {{"replicate", setup->n_replicas},
						{"dp", setup->n_ranks / setup->n_replicas}};

	weightd_mesh_free(m->mesh);
	assert_int_equal(weightd_mesh_new(dims, 2, &m->mesh), 0);
	m->options.mesh = m->mesh;
}

static struct weightd_plan *plan_of(const struct scene *s)
{
	enum weightd_dtype dtype = s->setup.dtype ? s->setup.dtype : WEIGHTD_F32;
	struct weightd_plan *plan;
	struct model m;

	model_init(&m, s->setup.n_ranks, s->setup.strategy, WEIGHTD_ADAMW);
	(void)model_add(&m, "wide", WEIGHTD_PARAM, dtype, 29, 31);
	(void)model_add(&m, "bias", WEIGHTD_PARAM, dtype, 1, 37);
	model_add(&m, "base", WEIGHTD_PARAM, WEIGHTD_U8, 3, 70)->frozen = true;
	model_add(&m, "deep", WEIGHTD_PARAM, dtype, 67, 16)->unit = 1;
	model_add(&m, "tail", WEIGHTD_PARAM, dtype, 131, 7)->unit = 2;
	model_add(&m, "last", WEIGHTD_PARAM, dtype, 1, 1)->unit = 3;
	if (s->setup.n_replicas)
		model_replicate(&m, &s->setup);
	m.options.n_nodes = s->setup.n_nodes;
	m.options.bucket_bytes = 2048;
	m.options.n_copies = s->n_copies;
	plan = model_plan(&m);
	model_deinit(&m);
	return plan;
}

static float value_of(uint64_t element, unsigned stage, unsigned of_life)
{
	return value_first(element) + (float)(1 + stage) * 4 + (float)of_life * 32;
}

/* The last stage, so far, that writes the tensor. */
static unsigned stage_of(uint32_t tensor, unsigned stage)
{
	while (!(stage_tensors[stage] & 1u << tensor))
		stage--;
	return stage;
}

typedef int put(struct weightd_train *t, uint32_t tensor, const void *data);

static void values_give(struct weightd_train *t, unsigned stage, put *give)
{
	const struct weightd_plan *p = weightd_train_plan(t);

	for (uint32_t i = 0; i < p->n_tensors; i++) {
		const struct weightd_train_tensor *tensor = &p->tensors[i];
		struct plan_interval elements = plan_elements(p, tensor);
		float *values;

		if (!(stage_tensors[stage] & 1u << i))
			continue;
		values = calloc(tensor->n_bytes, sizeof(float));
		for (uint64_t e = elements.begin; !tensor->frozen && e < elements.end; e++)
			values[e - elements.begin] = value_of(e, stage, life);
		if (tensor->frozen)
			memset(values, (int)(stage * 16 + life), tensor->n_bytes);
		assert(give(t, i, values) == 0);
		free(values);
		event();
	}
}

/* --- Versions ---------------------------------------------------------------------------------------- */

/* In the place of weightd's: tensors one after the other. */
struct weightd_writer {
	uint64_t n_written;
	uint8_t bytes[65536];
};

int weightd_create(struct weightd *w, const char *name, const struct weightd_layout *layout,
		   const struct weightd_create_options *options, struct weightd_writer **ret)
{
	(void)w;
	(void)layout;
	(void)options;
	if (!strcmp(name, "refused"))
		return -EACCES;
	*ret = calloc(1, sizeof(**ret));
	assert(*ret);
	return 0;
}

/* The tensors of the test's plan, in its order. */
static uint64_t offset_of(const struct weightd_plan *p, uint32_t tensor)
{
	uint64_t offset = 0;

	for (uint32_t i = 0; i < tensor; i++)
		offset += p->tensors[i].n_bytes;
	return offset;
}

int weightd_writer_find(const struct weightd_writer *wr, const char *name,
			struct weightd_tensor *ret)
{
	struct weightd_plan *p = plan_of(scene);
	uint32_t tensor;
	int r = weightd_plan_find(p, name, &tensor);

	(void)wr;
	if (!r)
		ret->offset = offset_of(p, tensor);
	weightd_plan_free(p);
	return r;
}

int weightd_writer_write(struct weightd_writer *wr, uint64_t offset, const void *from, uint64_t n)
{
	if (scene->is_full && wr->n_written)
		return -ENOSPC;
	assert(offset + n <= sizeof(wr->bytes));
	memcpy(wr->bytes + offset, from, n);
	wr->n_written += n;
	return 0;
}

int weightd_writer_publish(struct weightd_writer *wr, uint64_t *ret_version)
{
	memcpy(scene->version, wr->bytes, sizeof(wr->bytes));
	*ret_version = wr->n_written;
	return 0;
}

void weightd_writer_free(struct weightd_writer *wr)
{
	free(wr);
}

/* --- Comparison -------------------------------------------------------------------------------------- */

/* Memory of a node's job, whole. */
static const uint8_t *node_map(const struct weightd_plan *p, uint32_t node, enum weightd_kind kind)
{
	const struct plan_part *part = plan_part(p, kind);
	void *memory;

	if (!part)
		return NULL;
	memory = mmap(NULL, part->n * part->stride, PROT_READ, MAP_SHARED,
		      jobs[node]->fds[part - p->parts], 0);
	assert(memory != MAP_FAILED);
	return memory;
}

static void node_unmap(const struct weightd_plan *p, enum weightd_kind kind, const uint8_t *memory)
{
	const struct plan_part *part = plan_part(p, kind);

	if (part)
		(void)munmap((void *)memory, part->n * part->stride);
}

static bool is_param(const struct weightd_plan *p, const uint8_t *param, float value)
{
	enum kernel_type type = optimizer_type(p->param_dtype);
	uint8_t rounded[4] = {0};

	kernels_at(0)->round(rounded, type, &value, 1);
	return !memcmp(param, rounded, kernel_type_size(type));
}

/* The life whose values a stage has; the first element that is seen shows it. */
static unsigned life_of(const struct weightd_plan *p, unsigned stage, const uint8_t *param,
			uint64_t element)
{
	for (unsigned i = 1; !scene->lives[stage] && i <= LIVES_MAX; i++) {
		unsigned unknown = 0;

		if (is_param(p, param, value_of(element, stage, i)))
			(void)atomic_compare_exchange_strong(&scene->lives[stage], &unknown, i);
	}
	return scene->lives[stage];
}

static uint32_t tensor_at(const struct weightd_plan *p, uint64_t element)
{
	for (uint32_t i = 0; i < p->n_tensors; i++) {
		struct plan_interval elements = plan_elements(p, &p->tensors[i]);

		if (plan_is_trained(&p->tensors[i]) && element >= elements.begin &&
		    element < elements.end)
			return i;
	}
	return UINT32_MAX; /* padding */
}

static float value_expected(const struct weightd_plan *p, uint64_t element, unsigned stage,
			    const uint8_t *param)
{
	uint32_t tensor = tensor_at(p, element);

	if (tensor == UINT32_MAX)
		return 0;
	stage = stage_of(tensor, stage);
	return value_of(element, stage, life_of(p, stage, param, element));
}

static bool is_value(const struct weightd_plan *p, const uint8_t *param, const float *master,
		     uint64_t element, unsigned stage)
{
	float expected = value_expected(p, element, stage, param);

	if (is_param(p, param, expected) && (!master || *master == expected))
		return true;
	fprintf(stderr, "element %llu is %.9g, not %.9g\n", (unsigned long long)element,
		master ? (double)*master : NAN, (double)expected);
	return false;
}

/* Of the node's pieces: PARAM by element or by place, and MASTER. */
static bool pieces_are(const struct weightd_plan *p, uint32_t node, const uint8_t *param,
		       const float *master, unsigned stage)
{
	struct spread parts = spread_of_node(p, node, (struct plan_interval){0, p->n_elements});
	uint64_t size = plan_element_size(p, WEIGHTD_KIND_PARAM);
	struct plan_piece part;
	bool is_right = true;

	while (is_right && spread_next(&parts, &part))
		for (uint64_t e = part.interval.begin; is_right && e < part.interval.end; e++) {
			uint64_t at = part.at + (e - part.interval.begin);
			const uint8_t *in_param = param + size * (plan_shards_params(p) ? at : e);

			is_right = is_value(p, in_param, master ? &master[at] : NULL, e, stage);
		}
	return is_right;
}

/* Copies of PARAM, whole, of a plan in which each node has it. The life of each stage is known. */
static bool copies_are(const struct weightd_plan *p, const uint8_t *param, unsigned stage)
{
	uint64_t size = plan_element_size(p, WEIGHTD_KIND_PARAM);
	uint64_t stride = plan_part(p, WEIGHTD_KIND_PARAM)->stride;
	bool is_right = true;

	for (uint32_t copy = 0; copy < p->n_copies && !plan_shards_params(p); copy++)
		for (uint64_t e = 0; is_right && e < p->n_elements; e++)
			is_right = is_value(p, param + copy * stride + e * size, NULL, e, stage);
	return is_right;
}

static bool frozen_is(const uint8_t *frozen, unsigned stage)
{
	unsigned from = stage_of(MODEL_FROZEN, stage), of_life = frozen[0] - from * 16;

	for (uint32_t i = 0; i < FROZEN_SIZE; i++)
		if (frozen[i] != frozen[0])
			return false;
	return of_life == scene->lives[from];
}

static bool node_is(const struct weightd_plan *p, uint32_t node, unsigned stage)
{
	const uint8_t *param = node_map(p, node, WEIGHTD_KIND_PARAM);
	const uint8_t *master = node_map(p, node, WEIGHTD_KIND_MASTER);
	const uint8_t *frozen = node_map(p, node, WEIGHTD_KIND_FROZEN);
	bool is_right = pieces_are(p, node, param, (const float *)(const void *)master, stage) &&
			copies_are(p, param, stage) && frozen_is(frozen, stage);

	node_unmap(p, WEIGHTD_KIND_PARAM, param);
	node_unmap(p, WEIGHTD_KIND_MASTER, master);
	node_unmap(p, WEIGHTD_KIND_FROZEN, frozen);
	return is_right;
}

static bool version_is(const struct weightd_plan *p, unsigned stage)
{
	uint64_t size = plan_element_size(p, WEIGHTD_KIND_PARAM);
	bool is_right = frozen_is(scene->version + offset_of(p, MODEL_FROZEN), stage);

	for (uint32_t i = 0; i < p->n_tensors; i++) {
		struct plan_interval elements = plan_elements(p, &p->tensors[i]);
		const uint8_t *param = scene->version + offset_of(p, i);

		if (!plan_is_trained(&p->tensors[i]))
			continue;
		for (uint64_t e = elements.begin; is_right && e < elements.end; e++, param += size)
			is_right = is_value(p, param, NULL, e, stage);
	}
	return is_right;
}

/* --- Ranks ------------------------------------------------------------------------------------------- */

static struct weightd_train *train_open(uint32_t rank)
{
	const struct weightd_train_options options = {.size = sizeof(options),
						      .token = TRAIN_JOB_TOKEN,
						      .rank = rank % ranks_of(&scene->setup),
						      .nodes = rank_nodes,
						      .deadline_ms = 60000};
	struct weightd_plan *plan = plan_of(scene);
	struct weightd_train *t = NULL;

	if (weightd_train_open(NULL, plan, &options, &t) < 0)
		(void)rank_fail("open", 0);
	weightd_plan_free(plan);
	return t;
}

/* No rank is past the next stage before this one has looked. */
static int rank_look(const struct weightd_train *t, unsigned stage)
{
	if (t->arena.rank != 0 || node_is(t->plan, t->arena.node, stage))
		return 0;
	fprintf(stderr, "node %u, stage %u: other values\n", t->arena.node, stage);
	return 1;
}

static bool has_died(uint32_t rank)
{
	for (uint32_t i = 0; i < VICTIMS; i++)
		if (scene->victims[i].rank == rank && scene->victims[i].has_died)
			return true;
	return false;
}

/* All take part; the version is right, or fails, and the others notice nothing. */
static int rank_publish(struct weightd_train *t, uint32_t rank)
{
	bool is_refused = rank == scene->refused, publishes = rank == scene->publisher || is_refused;
	const char *name = is_refused ? "refused" : publishes ? "model" : NULL;
	int expected = is_refused ? -EACCES : publishes && scene->is_full ? -ENOSPC : 0;
	uint64_t version;
	int r;

	if (scene->publisher == UINT32_MAX)
		return 0;
	r = weightd_train_publish(t, name, &version);
	if (r == -EALREADY && has_died(rank))
		return 0; /* in weightd_train_close() */
	if (r != expected)
		return rank_fail("publish", r);
	if (publishes && !r && !version_is(t->plan, STAGES - 1))
		return rank_fail("another version", 0);
	if (plan_shards_params(t->plan) && !has_died(rank) && weightd_train_write_begin(t) != -EINVAL)
		return rank_fail("values are written behind units", 0);
	return 0;
}

static int rank_live(uint32_t rank, void *data)
{
	struct weightd_train *t;

	(void)data;
	mesh_rank = rank;
	life = rank == 0 ? ++scene->n_lives : LIVES_MAX + 1; /* values of others do not count */
	t = train_open(rank);
	if (!t)
		return 1;
	if (t->arena.rank == 0 && weightd_train_is_empty(t))
		values_give(t, 0, weightd_train_fill);
	if (weightd_train_begin(t) < 0)
		return rank_fail("begin", 0);
	for (unsigned stage = 1; stage < STAGES; stage++) {
		if (weightd_train_write_begin(t) < 0)
			return rank_fail("write_begin", 0);
		if (t->arena.rank == 0)
			values_give(t, stage, weightd_train_write);
		if (weightd_train_write_end(t) < 0)
			return rank_fail("write_end", 0);
	}
	if (rank_look(t, STAGES - 1) || rank_publish(t, rank))
		return 1;
	if (weightd_train_close(t) < 0)
		return rank_fail("close", 0);
	weightd_train_free(t);
	return 0;
}

/* Starts a rank again after each death. */
static int rank_revive(uint32_t rank, void *data)
{
	int status;

	do
		status = train_job_join(train_job_fork(rank_live, rank, data));
	while (status == 128 + SIGKILL);
	return status;
}

static int node_main(uint32_t rank, void *data)
{
	return node_run(&scene->setup, rank, data, false, rank_revive);
}

/* --- Runs -------------------------------------------------------------------------------------------- */

static void scene_start(const struct setup *setup, uint32_t n_copies)
{
	scene = mmap(NULL, sizeof(*scene), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	assert_ptr_not_equal(scene, MAP_FAILED);
	scene->setup = *setup;
	scene->n_copies = n_copies;
	scene->publisher = scene->refused = UINT32_MAX;
	for (uint32_t i = 0; i < VICTIMS; i++)
		scene->victims[i].rank = UINT32_MAX;
}

/* Returns the events of the first victim. */
static unsigned scene_run(void)
{
	struct weightd_plan *p = plan_of(scene);
	pid_t pids[RANKS_MAX];
	unsigned n;

	nodes_start(&scene->setup);
	for (uint32_t rank = 0; rank < scene->setup.n_ranks; rank++)
		pids[rank] = train_job_fork(node_main, rank, NULL);
	for (uint32_t rank = 0; rank < scene->setup.n_ranks; rank++)
		assert_int_equal(train_job_join(pids[rank]), 0);
	for (uint32_t node = 0; node < nodes_of(&scene->setup); node++) {
		assert_true(node_is(p, node, STAGES - 1));
		train_job = jobs[node];
		train_job_stop();
	}
	places_stop(&scene->setup);
	weightd_plan_free(p);
	n = scene->victims[0].n_events;
	(void)munmap(scene, sizeof(*scene));
	scene = NULL;
	return n;
}

static const struct setup setups[] = {
	{.strategy = "zero2", .n_nodes = 2, .n_ranks = 2},
	{.strategy = "zero2", .n_nodes = 2, .n_ranks = 4, .dtype = WEIGHTD_BF16},
	{.strategy = "zero3", .n_nodes = 2, .n_ranks = 4},
	{.strategy = "zero3", .n_nodes = 3, .n_ranks = 3, .dtype = WEIGHTD_BF16},
	{.strategy = "zero2", .n_nodes = 1, .n_ranks = 2, .dtype = WEIGHTD_BF16},
	{.strategy = "zero3", .n_nodes = 1, .n_ranks = 2},
	{.strategy = "zero3", .n_nodes = 4, .n_ranks = 4, .n_replicas = 2, .dtype = WEIGHTD_BF16},
	{.strategy = "zero2", .n_nodes = 4, .n_ranks = 4, .n_replicas = 2},
	{.strategy = "zero3", .n_nodes = 2, .n_ranks = 4, .n_replicas = 2},
};

static void test_all_nodes_have_what_node_0_gives(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(setups); i++) {
		scene_start(&setups[i], 0);
		(void)scene_run();
	}
}

static void test_all_copies_of_parameters_have_the_values(void **state)
{
	struct setup setup = setups[1];

	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		setup.dtype = i ? WEIGHTD_BF16 : 0;
		scene_start(&setup, 2);
		(void)scene_run();
	}
}

/* Rank 0 of node 0, rank 0 of another node, and a rank that has no part in it. */
static void test_each_event_may_be_the_last(void **state)
{
	static const struct {
		uint32_t setup, rank;
		unsigned strides[2]; /* of the events; in the long form */
	} deaths[] = {{3, 0, {7, 1}}, {2, 2, {11, 2}}, {2, 1, {23, 5}}};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(deaths); i++) {
		unsigned stride = deaths[i].strides[is_long_form()];
		bool is_over = false;

		for (unsigned fatal = 1; !is_over; fatal += stride) {
			scene_start(&setups[deaths[i].setup], 0);
			scene->publisher = 1;
			scene->victims[0].rank = deaths[i].rank;
			scene->victims[0].fatal = fatal;
			is_over = scene_run() < fatal;
		}
	}
}

/* Rank 0 of node 0 and of another node, at any two events. */
static void test_two_ranks_may_die(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < (is_long_form() ? 16 : 4); i++) {
		scene_start(&setups[1 + 2 * (i % 2)], 0);
		for (uint32_t k = 0; k < VICTIMS; k++) {
			scene->victims[k].rank = k * ranks_of(&scene->setup);
			scene->victims[k].fatal = 1 + draw(60);
		}
		(void)scene_run();
	}
}

static void test_a_version_is_of_all_nodes(void **state)
{
	(void)state;
	for (uint32_t i = 2; i < 4; i++)
		for (uint32_t kind = 0; kind < 3; kind++) {
			scene_start(&setups[i], 0);
			scene->publisher = kind;
			scene->refused = kind == 1 ? 2 : UINT32_MAX;
			scene->is_full = kind == 2;
			(void)scene_run();
		}
}

/*
 * Rank 0 of node 0 dies when all others have the values, and think that it knows; then another one loses half of those that it
 * receives again.
 */
static void test_values_that_are_sent_again_may_be_lost(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 16; i += is_long_form() ? 1 : 5) {
		scene_start(&setups[2 + i % 2], 0);
		scene->victims[0].rank = 0;
		scene->victims[0].position = control_exchange(0, control_values(1, CONTROL_SENT));
		scene->victims[1] = (struct victim){.rank = ranks_of(&scene->setup),
						    .follows = true,
						    .fatal = 1 + i / 2};
		(void)scene_run();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_nodes_have_what_node_0_gives),
		cmocka_unit_test(test_all_copies_of_parameters_have_the_values),
		cmocka_unit_test(test_a_version_is_of_all_nodes),
		cmocka_unit_test(test_each_event_may_be_the_last),
		cmocka_unit_test(test_two_ranks_may_die),
		cmocka_unit_test(test_values_that_are_sent_again_may_be_lost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
