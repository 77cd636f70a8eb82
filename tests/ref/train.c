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
	uint32_t rank;
	struct cursor cursor;
	enum weightd_dtype dtype, grad_dtype;
	const void *views[MODEL_TENSORS_MAX]; /* of PARAM */
	float *values[MODEL_TENSORS_MAX]; /* of parameters in 16 bits: as fp32 */
	const float *params[MODEL_TENSORS_MAX]; /* one of both */
	float *grads[MODEL_TENSORS_MAX];
	bool is_stored[MODEL_TENSORS_MAX]; /* the gradient is in GRAD */
	float *scratch[MODEL_TENSORS_MAX]; /* of gradients that are stored later, or must not be written again */
	void *buffers[MODEL_TENSORS_MAX];
	struct progress *progress;
	struct weightd_traffic filled; /* traffic until training began */
	uint64_t fingerprint; /* hash of PARAM when training began */
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
	size_t size = t->task.n * sizeof(struct progress);
	int fd = open(t->task.progress, O_RDWR | O_CLOEXEC);
	struct progress *all;

	if (fd < 0)
		check(NULL);
	all = check(mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
	(void)close(fd);
	t->progress = &all[t->rank];
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

static uint32_t rank_find(const struct task *t)
{
	const char *text = getenv("LOCAL_RANK");

	if (!text)
		text = getenv("RANK");
	if (t->rank != UINT32_MAX || !text)
		return t->rank;
	return (uint32_t)strtoul(text, NULL, 10);
}

static int job_create(struct trainer *t)
{
	struct weightd_job_options options = {
		.size = sizeof(options),
		.n_ranks = t->task.n,
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

static void plan_make(struct trainer *t)
{
	const struct task *task = &t->task;
	struct weightd_mesh_dim dim = {"dp", task->n};
	struct weightd_train_tensor tensors[MODEL_TENSORS_MAX] = {0};
	struct weightd_group groups[TASK_GROUPS];
	struct weightd_mesh *mesh;
	struct weightd_scaling scaling = {
		.size = sizeof(scaling),
		.init = task->scale,
		.growth = 2,
		.backoff = 0.5,
		.interval = task->scale_interval,
	};
	struct weightd_plan_options options = {
		.size = sizeof(options),
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
	};
	int r = weightd_mesh_new(&dim, 1, &mesh);

	if (r < 0)
		fail(t, "weightd_mesh_new", r);
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
	}
	options.mesh = mesh;
	r = weightd_plan_new(tensors, model_n_tensors(t->model), &options, &t->plan);
	if (r < 0)
		fail(t, "weightd_plan_new", r);
	weightd_mesh_free(mesh);
	if (task->release)
		plan_release(t);
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

/* FNV-1a of this rank's PARAM, by words. */
static uint64_t fingerprint(const struct trainer *t)
{
	uint64_t size, hash = 0xcbf29ce484222325u;
	const uint64_t *words = weightd_train_range(t->train, WEIGHTD_KIND_PARAM, &size);

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

static int job_open(struct trainer *t)
{
	struct weightd_train_options options = {
		.size = sizeof(options),
		.rank = t->rank,
		.rank_from_env = t->task.rank == UINT32_MAX,
		.deadline_ms = t->task.deadline_ms,
		.on_death = on_death_find(t->task.on_death),
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
	int r;

	plan_make(t);
	r = job_open(t);
	if (r < 0)
		fail(t, "weightd_train_open", r);
	if (t->task.load && weightd_train_is_empty(t->train))
		checkpoint_load(t);
	else
		tensors_fill(t);
	r = weightd_train_begin(t->train);
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
	t->fingerprint = fingerprint(t);
	(void)printf("began %" PRIu64 "\n", t->cursor.step);
	(void)fflush(stdout);
}

/* --- Steps -------------------------------------------------------------------------------------- */

/* Gradients are summed in GRAD itself, and not rounded or scaled afterwards. */
static bool is_direct(const struct trainer *t)
{
	return t->grad_dtype == WEIGHTD_F32 && t->task.scale == 0 && t->task.small == 1 &&
	       !t->task.inf_at;
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

static void gradient_complete(void *arg, uint32_t tensor)
{
	struct trainer *t = arg;
	int r;

	if (!is_trained(t, tensor))
		return;
	gradient_store(t, tensor);
	r = weightd_train_ready(t->train, tensor);
	if (r < 0)
		fail(t, "weightd_train_ready", r);
}

/* A layer that is not used has a gradient of zeros. */
static void gradients_clear(struct trainer *t)
{
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

static void values_load(struct trainer *t)
{
	for (uint32_t i = 0; i < model_n_tensors(t->model); i++)
		if (t->values[i])
			half_widen(t->values[i], t->views[i], t->dtype,
				   model_tensor(t->model, i)->n);
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

/* Forward and backward of this rank's samples; advances the cursor. Returns the number of samples. */
static uint32_t batches_run(struct trainer *t, uint64_t step, double *ret_loss)
{
	const struct task *task = &t->task;
	uint32_t batch = task_batch(task, step), share = data_share(batch, t->rank, task->n);
	uint32_t n = share * task->no_sync;
	struct model_pass p = {
		.params = t->params,
		.grads = t->grads,
		.buffers = t->buffers,
		.scale = 1 / (float)n,
		.rng = &t->cursor.rng,
		.arg = t,
	};
	double loss = 0;

	scales_add(t);
	values_load(t);
	gradients_clear(t);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t at = t->cursor.position + (uint64_t)(i / share) * batch +
			      (uint64_t)(i % share) * task->n + t->rank;
		struct data data;
		struct model_sample s = {data.tokens, data.targets, t->rank == 0};

		data_sample(&task->model, task->seed, at, &data);
		p.complete = i + 1 == n ? gradient_complete : NULL;
		loss += model_run(t->model, &s, &p);
	}
	for (uint32_t i = 0; i < model_n_tensors(t->model); i++)
		if (is_trained(t, i))
			gradient_store(t, i);
	t->cursor.position += (uint64_t)batch * task->no_sync;
	t->cursor.step = step;
	*ret_loss = n ? loss / n : 0;
	return n;
}

static void hold(uint64_t step)
{
	char byte;

	(void)printf("holding %" PRIu64 "\n", step);
	(void)fflush(stdout);
	if (read(STDIN_FILENO, &byte, 1) < 0)
		exit(2);
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
		if (!t->task.keep_on || (r != -EOWNERDEAD && r != -ETIMEDOUT))
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

	report_phase(t, step, PHASE_COMPUTE);
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
			      "\"scale\": %.17g}\n",
			      step, t->rank, n, loss, norm, r < 0 ? "true" : "false",
			      weightd_train_overflowed(t->train) ? "true" : "false",
			      weightd_train_scale(t->train));
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

/* The whole parts once, and of each rank what only it has. */
static void dump(const struct trainer *t)
{
	char name[32];
	uint64_t size;
	const void *state = weightd_train_state(t->train, &size);

	(void)snprintf(name, sizeof(name), "%" PRIu32 ".state", t->rank);
	file_write(t, name, state, size);
	state = weightd_train_range(t->train, WEIGHTD_KIND_PARAM, &size);
	(void)snprintf(name, sizeof(name), "%" PRIu32 ".PARAM", t->rank);
	file_write(t, name, state, size);
	for (uint32_t i = 0; i < model_n_tensors(t->model); i++) {
		const struct model_tensor *tensor = model_tensor(t->model, i);

		(void)snprintf(name, sizeof(name), "%" PRIu32 ".%s", t->rank, tensor->name);
		if (tensor->is_buffer)
			file_write(t, name, t->buffers[i], tensor->n * (tensor->n == 1 ? 8 : 4));
	}
	if (t->rank == 0) {
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
		      "}, ",
		      name, t->read, t->written, t->sent);
}

static void report(const struct trainer *t)
{
	FILE *f = check(fopen(t->task.report, "we"));
	struct weightd_traffic predicted = {.size = sizeof(predicted)}, counted = traffic_get(t);
	uint64_t begin, end, size;

	if (weightd_plan_traffic(t->plan, t->rank, &predicted) < 0 ||
	    weightd_plan_shard(t->plan, t->rank, &begin, &end) < 0)
		fail(t, "weightd_plan_traffic", -EINVAL);
	(void)weightd_train_range(t->train, WEIGHTD_KIND_PARAM, &size);
	(void)fprintf(f, "{\"rank\": %" PRIu32 ", \"isa\": \"%s\", ", t->rank, weightd_train_isa());
	traffic_print(f, "predicted", &predicted);
	traffic_print(f, "counted", &counted);
	traffic_print(f, "filled", &t->filled);
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
		      ", %" PRIu64 "], \"param\": %" PRIu64 ", \"began\": \"%016" PRIx64
		      "\", \"ended\": \"%016" PRIx64 "\", \"step\": %" PRIu64 "}\n",
		      t->loaded, weightd_plan_padding(t->plan), begin, end, size, t->fingerprint,
		      fingerprint(t), weightd_train_step(t->train));
	if (fclose(f))
		check(NULL);
}

static void trainer_close(struct trainer *t)
{
	uint64_t version;
	int r = 0;

	report_phase(t, t->task.steps, PHASE_END);
	if (t->task.dump)
		dump(t);
	if (t->task.report)
		report(t);
	if (t->task.publish && t->rank == 0)
		r = weightd_train_publish(t->train, t->task.publish, &version);
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
	t.rank = rank_find(&t.task);
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
	if (t.task.losses)
		t.losses = check(fopen(t.task.losses, "ae"));
	trainer_open(&t);
	for (step = weightd_train_step(t.train) + 1; step <= t.task.steps; step++) {
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
