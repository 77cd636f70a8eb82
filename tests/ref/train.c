/*
 * train: one rank of a job that trains the reference model
 *
 * Every process of a job is started with the same options and a rank of its own, and started again with them after a
 * death. It continues where it was by what the job has: parameters, and a cursor with the position in the data and the
 * state of the random numbers. --create NAME makes a job and writes its token, which the ranks find in $WEIGHTD_JOB.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weightd-train.h>

#include "tests/ref/data.h"
#include "tests/ref/half.h"
#include "tests/ref/task.h"
#include "tests/ref/units.h"

/* The caller's state, saved with each step. */
struct cursor {
	uint64_t step;
	uint64_t position; /* samples that all ranks together have used */
	uint64_t rng; /* state of this rank's dropout */
	uint64_t scales; /* hash of the loss scales of all steps, and of those that overflowed */
};

#define RECONNECTS 12

enum phase {
	PHASE_START = 1,
	PHASE_COMPUTE,
	PHASE_UPDATE,
	PHASE_END
};

/* Element `rank` of the file --progress: a test sees where a rank is, or where it was killed. */
struct progress {
	_Atomic uint64_t step; /* in work, or committed at the end */
	_Atomic uint32_t phase;
	_Atomic uint32_t n_starts;
	_Atomic int32_t pid;
	uint8_t pad[44];
};

struct trainer {
	struct task task;
	struct weightd *w;
	struct model *model;
	struct weightd_plan *plan;
	struct weightd_train *train;
	uint32_t rank; /* among those of all nodes */
	uint32_t local; /* of its node, and of the node's job */
	struct cursor cursor;
	enum weightd_dtype dtype, grad_dtype;
	const void *views[MODEL_TENSORS_MAX]; /* of PARAM */
	float *values[MODEL_TENSORS_MAX]; /* of parameters in 16 bits: as fp32 */
	const float *params[MODEL_TENSORS_MAX]; /* one of both */
	float *grads[MODEL_TENSORS_MAX];
	bool is_stored[MODEL_TENSORS_MAX]; /* the gradient is in GRAD */
	float *scratch[MODEL_TENSORS_MAX]; /* of gradients that are stored later, or must not be written again */
	void *buffers[MODEL_TENSORS_MAX];
	struct units units;
	bool has_units, pools_grads; /* of the strategy */
	uint32_t n_buckets, next_bucket; /* next_bucket: the one that is handed over next */
	uint32_t n_events; /* of the step: units opened, and buckets handed over */
	struct progress *progress;
	struct weightd_traffic filled,
		counted; /* traffic until training began, and until it ended */
	uint64_t fingerprint; /* hash of PARAM when training began */
	void *whole; /* all parameters in the end */
	uint64_t whole_size;
	uint64_t first; /* step of this process */
	bool is_evaluating;
	double evaluated; /* sum of losses of the last pass that changed nothing */
	uint64_t loaded; /* bytes that weightd_train_load() read from files */
	FILE *losses;
};

__attribute__((noreturn)) static void fail(const struct trainer *t, const char *call, int r)
{
	const char *sentence = weightd_train_error();

	if (!sentence[0] && t->w)
		sentence = weightd_error(t->w);
	(void)fprintf(stderr, "train: rank %" PRIu32 ": %s: %s: %s\n", t->rank, call,
		      strerrorname_np(-r), sentence);
	exit(1);
}

static void *check(void *p)
{
	if (!p || p == MAP_FAILED) {
		perror("train");
		exit(2);
	}
	return p;
}

static void report_phase(struct trainer *t, uint64_t step, enum phase phase)
{
	if (!t->progress)
		return;
	atomic_store(&t->progress->step, step);
	atomic_store(&t->progress->phase, phase);
}

static void progress_open(struct trainer *t)
{
	size_t size = task_local(&t->task) * sizeof(struct progress);
	int fd = open(t->task.progress, O_RDWR | O_CLOEXEC);
	struct progress *all;

	if (fd < 0)
		check(NULL);
	all = check(mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
	(void)close(fd);
	t->progress = &all[t->local];
	atomic_fetch_add(&t->progress->n_starts, 1);
	atomic_store(&t->progress->pid, getpid());
	report_phase(t, 0, PHASE_START);
}

/* --- Start -------------------------------------------------------------------------------------- */

/* A weightd that died is started anew by its keeper: the job is still there. */
static bool is_connection_lost(int r)
{
	return r == -ENOTCONN || r == -ECONNRESET || r == -ECONNREFUSED || r == -EPIPE;
}

/* Each attempt waits for a server that starts, for up to 5 s. */
static int connection_open(struct trainer *t)
{
	int r = -ETIMEDOUT;

	for (int i = 0; i < RECONNECTS && (r == -ETIMEDOUT || is_connection_lost(r)); i++)
		r = weightd_connect(t->w, NULL);
	return r;
}

/* `given`, or the variable where that is UINT32_MAX. */
static uint32_t number_find(uint32_t given, const char *variable)
{
	const char *text = getenv(variable);

	return given != UINT32_MAX || !text ? given : (uint32_t)strtoul(text, NULL, 10);
}

static void rank_find(struct trainer *t)
{
	const struct task *task = &t->task;

	t->rank = t->local = number_find(number_find(task->rank, "LOCAL_RANK"), "RANK");
	if (task->nodes > 1)
		t->rank += number_find(task->node, "GROUP_RANK") * task_local(task);
}

static int job_create(struct trainer *t)
{
	struct weightd_job_options options = {
		.size = sizeof(options),
		.n_ranks = task_local(&t->task),
		.linger_ms = (int64_t)t->task.linger_ms,
	};
	char token[WEIGHTD_TOKEN_MAX];
	int r = weightd_job_create(t->w, t->task.create, &options, token);

	if (r < 0)
		fail(t, "weightd_job_create", r);
	return puts(token) < 0 ? 2 : 0;
}

static enum weightd_step_form form_find(const char *name)
{
	return strcmp(name, "fused") == 0       ? WEIGHTD_STEP_FUSED
	       : strcmp(name, "two-phase") == 0 ? WEIGHTD_STEP_TWO_PHASE
						: WEIGHTD_STEP_AUTO;
}

static enum weightd_optimizer optimizer_find(const char *name)
{
	return strcmp(name, "sgd") == 0    ? WEIGHTD_SGD
	       : strcmp(name, "adam") == 0 ? WEIGHTD_ADAM
					   : WEIGHTD_ADAMW;
}

static enum weightd_on_death on_death_find(const char *name)
{
	return strcmp(name, "fail") == 0     ? WEIGHTD_DEATH_FAIL
	       : strcmp(name, "finish") == 0 ? WEIGHTD_DEATH_FINISH
					     : WEIGHTD_DEATH_WAIT;
}

/* Makes the plan that of a rank with another release of the library: its image has the release in a field of its own. */
static void plan_release(struct trainer *t)
{
	char ours[16] = {0}, theirs[16] = {0};
	struct weightd_plan *other;
	uint64_t size;
	const void *image = weightd_plan_image(t->plan, &size);
	uint8_t *changed = check(malloc(size));
	int r;

	(void)snprintf(ours, sizeof(ours), "%d.%d.%d", WEIGHTD_VERSION_MAJOR, WEIGHTD_VERSION_MINOR,
		       WEIGHTD_VERSION_PATCH);
	(void)snprintf(theirs, sizeof(theirs), "%s", t->task.release);
	memcpy(changed, image, size);
	memcpy(check(memmem(changed, size, ours, sizeof(ours))), theirs, sizeof(theirs));
	r = weightd_plan_parse(changed, size, &other);
	if (r < 0)
		fail(t, "weightd_plan_parse", r);
	free(changed);
	weightd_plan_free(t->plan);
	t->plan = other;
}

static struct weightd_mesh *mesh_make(const struct trainer *t)
{
	const struct task *task = &t->task;
	struct weightd_mesh_dim dims[] = {{"dp", task->n}, {.name = "shard"}};
	struct weightd_mesh *mesh;
	int r;

	if (task->replicas) {
		dims[0] = (struct weightd_mesh_dim){"replicate", task->replicas};
		dims[1].size = task->n / task->replicas;
	}
	r = weightd_mesh_new(dims, task->replicas ? 2 : 1, &mesh);
	if (r < 0)
		fail(t, "weightd_mesh_new", r);
	return mesh;
}

static void plan_make(struct trainer *t)
{
	const struct task *task = &t->task;
	struct weightd_train_tensor tensors[MODEL_TENSORS_MAX] = {0};
	struct weightd_group groups[TASK_GROUPS];
	struct weightd_mesh *mesh = mesh_make(t);
	struct weightd_scaling scaling = {
		.size = sizeof(scaling),
		.init = task->scale,
		.growth = 2,
		.backoff = 0.5,
		.interval = task->scale_interval,
	};
	struct weightd_plan_options options = {
		.size = sizeof(options),
		.mesh = mesh,
		.strategy = task->strategy,
		.optimizer = optimizer_find(task->optimizer),
		.groups = groups,
		.n_groups = task->groups,
		.form = form_find(task->form),
		.bucket_bytes = task->bucket_bytes,
		.overlap = task->overlap,
		.staleness = task->staleness,
		.n_copies = task->copies,
		.state_size = task->state_size,
		.without_journal = task->without_journal,
		.grad_dtype = t->grad_dtype,
		.scaling = task->scale > 0 ? &scaling : NULL,
		.n_nodes = task->nodes,
		.sync_every = task->sync_every,
		.keeps_units = task->keeps_units,
		.without_prefetch = task->without_prefetch,
	};
	int r;

	for (uint32_t i = 0; i < task->groups; i++)
		groups[i] = (struct weightd_group){
			.size = sizeof(groups[i]),
			.weight_decay = i ? 0 : task->weight_decay,
			.beta1 = task->beta1,
			.beta2 = task->beta2,
			.eps = task->eps,
			.momentum = task->momentum,
			.nesterov = task->nesterov,
		};
	for (uint32_t i = 0; i < model_n_tensors(t->model); i++) {
		const struct model_tensor *from = model_tensor(t->model, i);
		bool is_frozen = task_is_frozen(task, from);

		tensors[i] = (struct weightd_train_tensor){
			.size = sizeof(tensors[i]),
			.name = from->name,
			.shape = from->shape,
			.n_dims = from->n_dims,
			.dtype = from->is_buffer && from->n == 1 ? WEIGHTD_U64
				 : from->is_buffer || is_frozen  ? WEIGHTD_F32
								 : t->dtype,
			.role = from->is_buffer ? WEIGHTD_BUFFER : WEIGHTD_PARAM,
			.frozen = is_frozen,
			.group = from->is_buffer ? 0 : task_group(task, from),
		};
		if (t->has_units && !from->is_buffer && !is_frozen) {
			tensors[i].unit = t->units.of_module[from->module];
			tensors[i].level = t->units.levels[tensors[i].unit];
		}
	}
	r = weightd_plan_new(tensors, model_n_tensors(t->model), &options, &t->plan);
	if (r < 0)
		fail(t, "weightd_plan_new", r);
	weightd_mesh_free(mesh);
	if (task->release)
		plan_release(t);
	for (uint32_t i = 0; t->pools_grads && i < model_n_tensors(t->model); i++) {
		uint32_t bucket;

		if (weightd_plan_bucket(t->plan, i, &bucket) == 0 && bucket >= t->n_buckets)
			t->n_buckets = bucket + 1;
	}
}

static void tensor_fill(struct trainer *t, uint32_t i)
{
	const struct model_tensor *tensor = model_tensor(t->model, i);
	uint64_t element = tensor->is_buffer && tensor->n == 1 ? 8 : sizeof(float);
	float *values = check(calloc(tensor->n, element));
	int r;

	if (!tensor->is_buffer)
		model_init(t->model, i, t->task.seed, values);
	r = weightd_train_fill(t->train, i, values);
	if (r < 0)
		fail(t, "weightd_train_fill", r);
	free(values);
}

/* Parameters have their values from rank 0, buffers from each rank. */
static void tensors_fill(struct trainer *t)
{
	bool gives_params = t->rank == 0 && weightd_train_is_empty(t->train);

	for (uint32_t i = 0; i < model_n_tensors(t->model); i++)
		if (model_tensor(t->model, i)->is_buffer ? weightd_train_step(t->train) == 0
							 : gives_params)
			tensor_fill(t, i);
}

/* Bytes that this process has read by system calls. */
static uint64_t bytes_read(void)
{
	FILE *f = check(fopen("/proc/self/io", "re"));
	uint64_t n = 0;

	if (fscanf(f, "rchar: %" SCNu64, &n) != 1)
		check(NULL);
	(void)fclose(f);
	return n;
}

static void checkpoint_load(struct trainer *t)
{
	uint64_t before = bytes_read();
	int r = weightd_train_load(t->train, t->task.load);

	if (r < 0)
		fail(t, "weightd_train_load", r);
	t->loaded = bytes_read() - before;
}

static void cursor_load(struct trainer *t)
{
	uint64_t size, step = weightd_train_step(t->train);
	const void *state = weightd_train_state(t->train, &size);

	t->cursor = (struct cursor){.rng = t->task.seed * 1000 + t->rank};
	if (size)
		memcpy(&t->cursor, state, sizeof(t->cursor));
	if (t->cursor.step != step || (size && size != sizeof(t->cursor))) {
		(void)fprintf(stderr,
			      "train: rank %" PRIu32 ": the cursor of %" PRIu64
			      " bytes is of step %" PRIu64 ", not %" PRIu64 "\n",
			      t->rank, size, t->cursor.step, step);
		exit(1);
	}
}

/* FNV-1a, by words. */
static uint64_t fingerprint(const uint64_t *words, uint64_t size)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (uint64_t i = 0; i < size / sizeof(*words); i++)
		hash = (hash ^ words[i]) * 0x100000001b3u;
	return hash;
}

static struct weightd_traffic traffic_get(const struct trainer *t)
{
	struct weightd_traffic traffic = {.size = sizeof(traffic)};
	int r = weightd_train_traffic(t->train, &traffic);

	if (r < 0)
		fail(t, "weightd_train_traffic", r);
	return traffic;
}

static bool may_call_again(const struct trainer *t, int r)
{
	return t->task.keep_on && (r == -EOWNERDEAD || r == -ETIMEDOUT);
}

static bool may_begin_again(const struct trainer *t, int r)
{
	return may_call_again(t, r) || (t->task.begins_late && r == -ETIMEDOUT);
}

static int job_open(struct trainer *t)
{
	struct weightd_nodes nodes = {
		.size = sizeof(nodes),
		.node = t->task.node,
		.node_from_env = t->task.node == UINT32_MAX,
		.address = t->task.master,
		.port = (uint16_t)t->task.port,
	};
	struct weightd_train_options options = {
		.size = sizeof(options),
		.rank = t->local,
		.rank_from_env = t->task.rank == UINT32_MAX,
		.deadline_ms = t->task.deadline_ms,
		.on_death = on_death_find(t->task.on_death),
		.nodes = t->task.nodes > 1 ? &nodes : NULL,
	};
	int r = weightd_train_open(t->w, t->plan, &options, &t->train);

	for (int i = 0; i < RECONNECTS && is_connection_lost(r); i++) {
		r = connection_open(t);
		if (r == 0)
			r = weightd_train_open(t->w, t->plan, &options, &t->train);
	}
	return r;
}

static void trainer_open(struct trainer *t)
{
	const void *range;
	uint64_t size;
	int r;

	plan_make(t);
	do
		r = job_open(t);
	while (may_begin_again(t, r));
	if (r < 0)
		fail(t, "weightd_train_open", r);
	if (t->task.load && weightd_train_is_empty(t->train))
		checkpoint_load(t);
	else
		tensors_fill(t);
	do
		r = weightd_train_begin(t->train);
	while (may_begin_again(t, r));
	if (r < 0)
		fail(t, "weightd_train_begin", r);
	for (uint32_t i = 0; i < model_n_tensors(t->model); i++) {
		const struct model_tensor *tensor = model_tensor(t->model, i);

		if (tensor->is_buffer) {
			t->buffers[i] = weightd_train_buffer(t->train, i);
			continue;
		}
		t->views[i] = weightd_train_param(t->train, i);
		t->params[i] = t->views[i];
		if (t->dtype != WEIGHTD_F32 && !task_is_frozen(&t->task, tensor))
			t->params[i] = t->values[i] = check(calloc(tensor->n, sizeof(float)));
		t->scratch[i] = check(calloc(tensor->n, sizeof(float)));
	}
	cursor_load(t);
	t->filled = traffic_get(t);
	range = weightd_train_range(t->train, WEIGHTD_KIND_PARAM, &size);
	t->fingerprint = range ? fingerprint(range, size) : 0;
	(void)printf("began %" PRIu64 "\n", t->cursor.step);
	(void)fflush(stdout);
}

/* --- Steps -------------------------------------------------------------------------------------- */

static void hold(uint64_t step)
{
	char byte;

	(void)printf("holding %" PRIu64 "\n", step);
	(void)fflush(stdout);
	if (read(STDIN_FILENO, &byte, 1) < 0)
		exit(2);
}

/* Counts what a rank may be killed after. */
static void event_count(struct trainer *t)
{
	uint64_t step = weightd_train_step(t->train) + 1;

	if (task_is_at(t->task.hold_within, step, ++t->n_events))
		hold(step);
}

/* Gradients are summed in GRAD itself, and not rounded or scaled afterwards. */
static bool is_direct(const struct trainer *t)
{
	return t->grad_dtype == WEIGHTD_F32 && t->task.scale == 0 && t->task.small == 1 &&
	       !t->task.inf_at && !t->pools_grads;
}

static bool is_trained(const struct trainer *t, uint32_t tensor)
{
	return t->views[tensor] && !task_is_frozen(&t->task, model_tensor(t->model, tensor));
}

/* Gives GRAD the sums, once, unless others may read them already. */
static void gradient_store(struct trainer *t, uint32_t tensor)
{
	const struct model_tensor *found = model_tensor(t->model, tensor);
	double factor = t->task.small * weightd_train_scale(t->train);
	uint64_t step = weightd_train_step(t->train) + 1;

	if (t->is_stored[tensor] || is_direct(t) || !weightd_train_wants(t->train, tensor))
		return;
	t->is_stored[tensor] = true;
	if (task_is_at(t->task.inf_at, step, t->rank))
		t->grads[tensor][found->n / 2] = INFINITY;
	half_round(weightd_train_grad(t->train, tensor), t->grad_dtype, t->grads[tensor],
		   (float)factor, found->n);
}

static void gradient_hand_over(struct trainer *t, uint32_t tensor)
{
	int r;

	gradient_store(t, tensor);
	r = weightd_train_ready(t->train, tensor);
	if (r < 0)
		fail(t, "weightd_train_ready", r);
}

/* Hands over a bucket; false: it has gradients of tensors before `first`, which are not complete. */
static bool bucket_hand_over(struct trainer *t, uint32_t bucket, uint32_t first)
{
	uint32_t n = model_n_tensors(t->model), of;
	int r;

	for (uint32_t i = 0; i < first; i++)
		if (weightd_plan_bucket(t->plan, i, &of) == 0 && of == bucket)
			return false;
	r = weightd_train_bucket_open(t->train, bucket);
	if (r < 0)
		fail(t, "weightd_train_bucket_open", r);
	for (uint32_t i = n; i-- > first;)
		if (weightd_plan_bucket(t->plan, i, &of) == 0 && of == bucket)
			gradient_hand_over(t, i);
	event_count(t);
	return true;
}

/* With pooled gradients all that are in one bucket, once backward is done with the first of them. */
static void gradient_complete(void *arg, uint32_t tensor)
{
	struct trainer *t = arg;

	if (!t->pools_grads && is_trained(t, tensor))
		gradient_hand_over(t, tensor);
	while (t->next_bucket < t->n_buckets && bucket_hand_over(t, t->next_bucket, tensor))
		t->next_bucket++;
}

/* A layer that is not used has a gradient of zeros. */
static void gradients_clear(struct trainer *t)
{
	t->next_bucket = 0;
	for (uint32_t i = 0; i < model_n_tensors(t->model); i++) {
		if (!t->params[i])
			continue;
		t->grads[i] = is_direct(t) && weightd_train_wants(t->train, i)
				      ? weightd_train_grad(t->train, i)
				      : t->scratch[i];
		t->is_stored[i] = false;
		memset(t->grads[i], 0, model_tensor(t->model, i)->n * sizeof(float));
	}
}

static void value_load(struct trainer *t, uint32_t tensor)
{
	if (t->values[tensor])
		half_widen(t->values[tensor], t->views[tensor], t->dtype,
			   model_tensor(t->model, tensor)->n);
}

static void values_load(struct trainer *t)
{
	for (uint32_t i = 0; !t->has_units && i < model_n_tensors(t->model); i++)
		value_load(t, i);
}

static void unit_opened(void *arg, uint32_t unit)
{
	struct trainer *t = arg;

	for (uint32_t i = 0; i < model_n_tensors(t->model); i++)
		if (is_trained(t, i) && t->units.of_module[model_tensor(t->model, i)->module] == unit)
			value_load(t, i);
	event_count(t);
}

static void units_go(struct trainer *t, uint32_t unit, bool is_backward)
{
	enum weightd_pass pass = is_backward ? WEIGHTD_PASS_BACKWARD : WEIGHTD_PASS_FORWARD;
	int r = units_move(&t->units, t->train, unit,
			   t->is_evaluating ? WEIGHTD_PASS_EVALUATION : pass);

	if (r < 0)
		fail(t, "weightd_train_unit_open", r);
}

/* The root remains open between forward and backward. */
static void module_enter(void *arg, enum model_module module, bool is_backward)
{
	struct trainer *t = arg;
	uint32_t unit = UNITS_NONE;

	if (module < MODEL_MODULES)
		unit = t->units.of_module[module];
	else if (t->units.n_levels > 1)
		unit = 0;
	if (unit != UNITS_NONE || module == MODEL_MODULES)
		units_go(t, unit, is_backward);
}

/* FNV-1a, a word at a time. */
static void scales_add(struct trainer *t)
{
	double scale = weightd_train_scale(t->train);
	uint64_t bits;

	memcpy(&bits, &scale, sizeof(bits));
	bits += weightd_train_overflowed(t->train);
	t->cursor.scales = (t->cursor.scales ^ bits) * 0x100000001b3u;
}

/* A pass of `n` samples of this rank, from sample `at` of all on. Returns the sum of their losses. */
static double pass_run(struct trainer *t, uint64_t at, uint32_t n, const struct model_pass *p)
{
	struct data *data = check(calloc(n + 1, sizeof(*data)));
	struct model_sample *samples = check(calloc(n + 1, sizeof(*samples)));
	double loss;

	for (uint32_t i = 0; i < n; i++) {
		data_sample(&t->task.model, t->task.seed, at + (uint64_t)i * t->task.n + t->rank,
			    &data[i]);
		samples[i] = (struct model_sample){data[i].tokens, data[i].targets, t->rank == 0};
	}
	loss = model_run(t->model, samples, n, p);
	if (t->has_units)
		units_go(t, UNITS_NONE, true);
	free(samples);
	free(data);
	return loss;
}

static struct model_pass pass_make(struct trainer *t)
{
	return (struct model_pass){
		.params = t->params,
		.enter = t->has_units ? module_enter : NULL,
		.arg = t,
	};
}

/* Changes nothing: a rank that was killed does it again, as it is a part of the step that comes next. */
static void evaluate(struct trainer *t, uint64_t step)
{
	uint32_t n = data_share(task_batch(&t->task, step), t->rank, t->task.n);
	uint64_t rng = step;
	struct model_pass p = pass_make(t);

	values_load(t);
	p.rng = &rng;
	t->is_evaluating = true;
	t->evaluated = pass_run(t, t->cursor.position, n, &p);
	t->is_evaluating = false;
}

static bool is_to_evaluate(const struct trainer *t, uint64_t step)
{
	const struct task *task = &t->task;

	if (!task->evaluate_every || step == 1 || (step - 1) % task->evaluate_every)
		return false;
	return !task->evaluate_behind || step != t->first;
}

/* Opens the last unit before others open the first one. */
static void order_break(struct trainer *t)
{
	units_go(t, t->units.n - 1, false);
	units_go(t, UNITS_NONE, false);
}

/* In one pass, or in one for each sample; the last pass of a step completes the gradients. Adds to the loss. */
static void batch_run(struct trainer *t, uint64_t at, uint32_t n, struct model_pass *p,
		      bool is_last, double *loss)
{
	uint32_t n_passes = t->task.by_sample ? n : 1, each = t->task.by_sample ? 1 : n;

	for (uint32_t i = 0; i < n_passes; i++) {
		p->complete = is_last && i + 1 == n_passes ? gradient_complete : NULL;
		*loss += pass_run(t, at + (uint64_t)i * each * t->task.n, each, p);
	}
}

/* Forward and backward of this rank's samples; advances the cursor. Returns the number of samples. */
static uint32_t batches_run(struct trainer *t, uint64_t step, double *ret_loss)
{
	const struct task *task = &t->task;
	uint32_t batch = task_batch(task, step), share = data_share(batch, t->rank, task->n);
	uint32_t n = share * task->no_sync;
	struct model_pass p = pass_make(t);
	double loss = 0;

	p.grads = t->grads;
	p.buffers = t->buffers;
	p.scale = 1 / (float)n;
	p.rng = &t->cursor.rng;
	scales_add(t);
	values_load(t);
	gradients_clear(t);
	if (t->has_units && task_is_at(task->disorder, step, t->rank))
		order_break(t);
	for (uint32_t i = 0; i < task->no_sync; i++)
		batch_run(t, t->cursor.position + (uint64_t)i * batch, share, &p,
			  i + 1 == task->no_sync, &loss);
	if (t->pools_grads)
		gradient_complete(t, 0);
	for (uint32_t i = 0; !t->pools_grads && i < model_n_tensors(t->model); i++)
		if (is_trained(t, i))
			gradient_store(t, i);
	t->cursor.position += (uint64_t)batch * task->no_sync;
	t->cursor.step = step;
	*ret_loss = n ? loss / n : 0;
	return n;
}

/* Returns 0, or -EDOM for a step that changed nothing. */
static int update(struct trainer *t, uint64_t step, uint32_t n_samples, double loss)
{
	double rates[TASK_GROUPS];
	bool unused[MODEL_TENSORS_MAX];
	struct weightd_update u = {
		.size = sizeof(u),
		.lr = rates,
		.weight = t->task.weights ? n_samples : 0,
		.has_loss = true,
		.loss = task_is_at(t->task.nan_at, step, t->rank) ? NAN : loss,
		.max_norm = t->task.max_norm,
		.state = &t->cursor,
		.state_size = sizeof(t->cursor),
		.unused = unused,
	};
	int r;

	task_rates(&t->task, step, rates);
	for (uint32_t i = 0; i < model_n_tensors(t->model); i++)
		unused[i] = task_rests(&t->task, model_tensor(t->model, i), step);
	while ((r = weightd_train_update(t->train, &u)) < 0 && r != -EDOM) {
		if (!may_call_again(t, r))
			fail(t, "weightd_train_update", r);
		(void)fprintf(stderr, "train: rank %" PRIu32 " calls again: %s\n", t->rank,
			      weightd_train_error());
		hold(step);
	}
	if (r == -EDOM)
		(void)fprintf(stderr, "train: rank %" PRIu32 ": %s\n", t->rank,
			      weightd_train_error());
	return r;
}

static void step_run(struct trainer *t, uint64_t step)
{
	double loss;
	uint32_t n;
	int r;

	if (task_holds(&t->task, step))
		hold(step);
	report_phase(t, step, PHASE_COMPUTE);
	t->n_events = 0;
	if (is_to_evaluate(t, step))
		evaluate(t, step);
	n = batches_run(t, step, &loss);
	if (step == t->task.hold_at)
		hold(step);
	report_phase(t, step, PHASE_UPDATE);
	r = update(t, step, n, loss);
	if (t->losses) {
		char norm[32] = "null";

		if (isfinite(weightd_train_norm(t->train)))
			(void)snprintf(norm, sizeof(norm), "%.9g", weightd_train_norm(t->train));
		(void)fprintf(t->losses,
			      "{\"step\": %" PRIu64 ", \"rank\": %" PRIu32 ", \"samples\": %" PRIu32
			      ", \"loss\": %.17g, \"norm\": %s, \"skipped\": %s, \"overflowed\": %s, "
			      "\"scale\": %.17g, \"evaluated\": %.17g}\n",
			      step, t->rank, n, loss, norm, r < 0 ? "true" : "false",
			      weightd_train_overflowed(t->train) ? "true" : "false",
			      weightd_train_scale(t->train), t->evaluated);
		(void)fflush(t->losses);
	}
}

/* A save that fails is reported, and training goes on. */
static void save_wait(const struct trainer *t)
{
	if (weightd_train_save_wait(t->train) < 0)
		(void)fprintf(stderr, "train: rank %" PRIu32 ": save: %s\n", t->rank,
			      weightd_train_error());
}

static void step_save(const struct trainer *t, uint64_t step)
{
	struct weightd_checkpoint_options options = {.size = sizeof(options), .keep = t->task.keep};
	int r;

	if (!t->task.save || step % t->task.save_every || step < t->task.save_from)
		return;
	save_wait(t);
	if (step == t->task.hold_save)
		hold(step);
	r = weightd_train_save(t->train, t->task.save, &options);
	if (r < 0)
		(void)fprintf(stderr, "train: rank %" PRIu32 ": save: %s\n", t->rank,
			      weightd_train_error());
	if (t->task.save_wait)
		save_wait(t);
}

/* --- End ---------------------------------------------------------------------------------------- */

static void file_write(const struct trainer *t, const char *name, const void *bytes, size_t size)
{
	char path[4096];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s.%s", t->task.dump, name);
	f = check(fopen(path, "we"));
	if (fwrite(bytes, 1, size, f) != size || fclose(f))
		check(NULL);
}

/* Descriptor of a part of the job, by the name of its memory: the library shows no moments. -1: none. */
static int part_find(const char *kind)
{
	DIR *folder = check(opendir("/proc/self/fd"));
	int found = -1;

	for (struct dirent *e; found < 0 && (e = readdir(folder));) {
		char target[512], *end;
		ssize_t n = readlinkat(dirfd(folder), e->d_name, target, sizeof(target) - 1);

		if (n < 0)
			continue;
		target[n] = 0;
		end = strstr(target, kind);
		if (strncmp(target, "/memfd:", 7) == 0 && end &&
		    strcmp(end + strlen(kind), " (deleted)") == 0)
			found = (int)strtol(e->d_name, NULL, 10);
	}
	(void)closedir(folder);
	return found;
}

static uint64_t part_size(const char *kind)
{
	struct stat st = {0};
	int fd = part_find(kind);

	return fd >= 0 && fstat(fd, &st) == 0 ? (uint64_t)st.st_size : 0;
}

static void part_dump(const struct trainer *t, const char *kind)
{
	uint64_t size = part_size(kind);
	void *bytes;

	if (!size)
		return;
	bytes = check(mmap(NULL, size, PROT_READ, MAP_SHARED, part_find(kind), 0));
	file_write(t, kind, bytes, size);
	(void)munmap(bytes, size);
}

/* Elements of the flat range, padding included. */
static uint64_t elements_count(const struct trainer *t)
{
	uint64_t begin, end;

	if (weightd_plan_shard(t->plan, task_local(&t->task) - 1, &begin, &end) < 0)
		check(NULL);
	return end;
}

static void params_copy(void *arg, uint32_t unit)
{
	struct trainer *t = arg;
	struct weightd_train_tensor tensor = {.size = sizeof(tensor)};

	for (uint32_t i = 0; i < model_n_tensors(t->model); i++) {
		if (!is_trained(t, i))
			continue;
		if (weightd_plan_tensor(t->plan, i, &tensor) < 0)
			check(NULL);
		if (!t->has_units || tensor.unit == unit)
			memcpy((uint8_t *)t->whole + tensor.offset, t->views[i], tensor.n_bytes);
	}
	if (t->has_units)
		event_count(t);
}

/* As weightd_train_range() has them, which has none where they are not all there at once. */
static void params_read(struct trainer *t)
{
	t->whole_size = elements_count(t) * (t->dtype == WEIGHTD_F32 ? 4 : 2);
	t->whole = check(calloc(1, t->whole_size));
	t->n_events = 0;
	if (!t->has_units) {
		params_copy(t, UNITS_NONE);
		return;
	}
	t->units.opened = params_copy;
	for (uint32_t i = 0; i < t->units.n; i++)
		units_go(t, i, false);
	units_go(t, UNITS_NONE, false);
}

/* The whole parts once, and of each rank what only it has. */
static void dump(const struct trainer *t)
{
	char name[32];
	uint64_t size;
	const void *state = weightd_train_state(t->train, &size);

	(void)snprintf(name, sizeof(name), "%" PRIu32 ".state", t->local);
	file_write(t, name, state, size);
	(void)snprintf(name, sizeof(name), "%" PRIu32 ".PARAM", t->local);
	file_write(t, name, t->whole, t->whole_size);
	for (uint32_t i = 0; i < model_n_tensors(t->model); i++) {
		const struct model_tensor *tensor = model_tensor(t->model, i);

		(void)snprintf(name, sizeof(name), "%" PRIu32 ".%s", t->local, tensor->name);
		if (tensor->is_buffer)
			file_write(t, name, t->buffers[i], tensor->n * (tensor->n == 1 ? 8 : 4));
	}
	if (t->local == 0) {
		part_dump(t, "PARAM");
		part_dump(t, "MASTER");
		part_dump(t, "MOMENTS");
		part_dump(t, "FROZEN");
	}
}

static void traffic_print(FILE *f, const char *name, const struct weightd_traffic *t)
{
	(void)fprintf(f,
		      "\"%s\": {\"read\": %" PRIu64 ", \"written\": %" PRIu64 ", \"sent\": %" PRIu64
		      ", \"sent_replicas\": %" PRIu64 "}, ",
		      name, t->read, t->written, t->sent, t->sent_replicas);
}

/* Lengths of the intervals of elements that the rank updates. */
static void pieces_print(FILE *f, const struct trainer *t)
{
	uint64_t begin, end;

	(void)fprintf(f, "\"pieces\": [");
	for (uint32_t i = 0; weightd_plan_piece(t->plan, t->rank, i, &begin, &end) == 0; i++)
		(void)fprintf(f, "%s%" PRIu64, i ? ", " : "", end - begin);
	(void)fprintf(f, "], ");
}

/* The bucket of an element: that of the tensor, or of the padding behind it. */
static uint32_t bucket_of(const struct trainer *t, uint64_t element)
{
	struct weightd_train_tensor tensor = {.size = sizeof(tensor)};
	uint32_t bucket = 0, found;

	for (uint32_t i = 0; i < model_n_tensors(t->model); i++) {
		if (!is_trained(t, i) || weightd_plan_tensor(t->plan, i, &tensor) < 0 ||
		    weightd_plan_bucket(t->plan, i, &found) < 0)
			continue;
		if (tensor.offset / (t->dtype == WEIGHTD_F32 ? 4 : 2) <= element)
			bucket = found;
	}
	return bucket;
}

/* Likewise by bucket, of a plan with pooled gradients for several nodes. */
static void buckets_print(FILE *f, const struct trainer *t)
{
	uint64_t begin, end, *n = check(calloc(t->n_buckets + 1, sizeof(*n)));

	for (uint32_t i = 0; weightd_plan_piece(t->plan, t->rank, i, &begin, &end) == 0; i++)
		if (begin < end && t->pools_grads)
			n[bucket_of(t, begin)] += end - begin;
	(void)fprintf(f, "\"buckets\": [");
	for (uint32_t i = 0; i < t->n_buckets; i++)
		(void)fprintf(f, "%s%" PRIu64, i ? ", " : "", n[i]);
	(void)fprintf(f, "], ");
	free(n);
}

static void levels_print(FILE *f, const struct trainer *t)
{
	(void)fprintf(f, "\"levels\": [");
	for (uint32_t i = 0; t->has_units && i < t->units.n; i++)
		(void)fprintf(f, "%s%" PRIu32, i ? ", " : "", t->units.levels[i]);
	(void)fprintf(f, "], ");
}

static void report(const struct trainer *t)
{
	FILE *f = check(fopen(t->task.report, "we"));
	struct weightd_traffic predicted = {.size = sizeof(predicted)};
	uint64_t begin, end;

	if (weightd_plan_traffic(t->plan, t->rank, &predicted) < 0 ||
	    weightd_plan_shard(t->plan, t->rank, &begin, &end) < 0)
		fail(t, "weightd_plan_traffic", -EINVAL);
	(void)fprintf(f, "{\"rank\": %" PRIu32 ", \"isa\": \"%s\", ", t->rank, weightd_train_isa());
	traffic_print(f, "predicted", &predicted);
	traffic_print(f, "counted", &t->counted);
	traffic_print(f, "filled", &t->filled);
	pieces_print(f, t);
	buckets_print(f, t);
	levels_print(f, t);
	(void)fprintf(f, "\"plan\": {");
	for (enum weightd_kind k = 0; k < WEIGHTD_KINDS; k++)
		(void)fprintf(f, "%s\"%s\": %" PRIu64, k ? ", " : "", weightd_kind_name(k),
			      weightd_plan_bytes(t->plan, k));
	(void)fprintf(f, "}, \"parts\": {");
	for (enum weightd_kind k = 0; k < WEIGHTD_KINDS; k++)
		(void)fprintf(f, "%s\"%s\": %" PRIu64, k ? ", " : "", weightd_kind_name(k),
			      part_size(weightd_kind_name(k)));
	(void)fprintf(f,
		      "}, \"loaded\": %" PRIu64 ", \"padding\": %" PRIu64 ", \"shard\": [%" PRIu64
		      ", %" PRIu64 "], \"tensors\": %" PRIu32 ", \"param\": %" PRIu64
		      ", \"began\": \"%016" PRIx64 "\", \"ended\": \"%016" PRIx64
		      "\", \"step\": %" PRIu64 "}\n",
		      t->loaded, weightd_plan_padding(t->plan), begin, end,
		      weightd_plan_n_tensors(t->plan), t->whole_size, t->fingerprint,
		      fingerprint(t->whole, t->whole_size), weightd_train_step(t->train));
	if (fclose(f))
		check(NULL);
}

static void trainer_close(struct trainer *t)
{
	uint64_t version;
	int r = 0;

	report_phase(t, t->task.steps, PHASE_END);
	t->counted = traffic_get(t);
	if (t->task.dump || t->task.report)
		params_read(t);
	if (t->task.dump)
		dump(t);
	if (t->task.report)
		report(t);
	if (t->task.publish && (t->rank == 0 || t->has_units))
		r = weightd_train_publish(t->train, t->rank == 0 ? t->task.publish : NULL, &version);
	if (r < 0)
		fail(t, "weightd_train_publish", r);
	save_wait(t);
	r = weightd_train_close(t->train);
	if (r < 0)
		fail(t, "weightd_train_close", r);
}

static void trainer_free(struct trainer *t)
{
	weightd_train_free(t->train);
	weightd_plan_free(t->plan);
	for (uint32_t i = 0; i < MODEL_TENSORS_MAX; i++)
		free(t->scratch[i]);
	for (uint32_t i = 0; i < MODEL_TENSORS_MAX; i++)
		free(t->values[i]);
	free(t->whole);
	model_free(t->model);
	weightd_close(t->w);
	if (t->losses)
		(void)fclose(t->losses);
}

int main(int argc, char **argv)
{
	struct trainer t = {0};
	uint64_t step;
	int r;

	task_parse(argc, argv, "train", &t.task);
	rank_find(&t);
	if (t.task.progress)
		progress_open(&t);
	r = weightd_new(&t.w);
	if (r == 0)
		r = connection_open(&t);
	if (r < 0)
		fail(&t, "weightd_connect", r);
	if (t.task.create) {
		r = job_create(&t);
		weightd_close(t.w);
		return r;
	}
	t.dtype = half_find(t.task.dtype);
	t.grad_dtype = half_find(t.task.grad_dtype ? t.task.grad_dtype : t.task.dtype);
	t.model = check(model_new(&t.task.model));
	t.has_units = strcmp(t.task.strategy, "zero3") == 0;
	t.pools_grads = t.has_units || strcmp(t.task.strategy, "zero2") == 0;
	units_init(&t.units, &t.task, t.model);
	t.units.opened = unit_opened;
	t.units.arg = &t;
	if (t.task.losses)
		t.losses = check(fopen(t.task.losses, "ae"));
	trainer_open(&t);
	t.first = weightd_train_step(t.train) + 1;
	for (step = t.first; step <= t.task.steps; step++) {
		step_run(&t, step);
		step_save(&t, step);
		if (step == t.task.stop_after)
			break;
	}
	if (step > t.task.steps)
		trainer_close(&t);
	trainer_free(&t);
	return 0;
}
