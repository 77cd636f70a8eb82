/*
 * An agent: a process with a context on a GPU and one connection to weightd, which executes the
 * lines of its standard input one after the other, and answers each with a line. It can be killed
 * at any time, which is its purpose. Commands are in the table at the end; sections of `run` send
 * them.
 */
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/handles.h"
#include "tests/gpu/kernels.h"
#include "tests/gpu/replay.h"
#include "tests/gpu/reply.h"
#include "weightd.h"

#define N_WORDS_MAX 16
#define CHUNK ((size_t)32 << 20)

struct agent {
	struct gpu gpu;
	struct weightd *w;
	struct weightd_writer *writer;
	struct weightd_buffer *buffer;
	struct replay replay;
};

static unsigned long number(const char *word)
{
	return strtoul(word, NULL, 0);
}

static void reply_weightd(struct agent *a, int r)
{
	if (r < 0)
		reply_failed(r, "%s", weightd_error(a->w));
	else
		reply_done(", \"value\": %d", r);
}

static void reply_cuda(struct agent *a, cu_result r)
{
	reply_result(a->gpu.cuda, r);
}

/* The bytes commands work on: those of the writer while there is one that has not published. */
static cu_ptr bytes_of(struct agent *a, uint64_t *ret_size)
{
	if (a->writer)
		return (cu_ptr)(uintptr_t)weightd_writer_data(a->writer, ret_size);
	*ret_size = 0;
	return a->buffer ? (cu_ptr)(uintptr_t)weightd_buffer_data(a->buffer, ret_size) : 0;
}

/* --- The GPU --- */

static void run_open(struct agent *a, char **words)
{
	char why[CUDA_WHY_SIZE], name[128] = "";
	const struct cuda_driver *cuda;
	uint64_t begin = now_ns(), took;
	struct cu_uuid uuid;
	int driver = 0, n_gpus = 0, r = gpu_open(&a->gpu, (int)number(words[1]), why);
	char text[33];

	took = now_ns() - begin;

	if (r) {
		reply_failed(r, "%s", why);
		return;
	}
	cuda = a->gpu.cuda;
	(void)cuda->device_name(name, sizeof(name), a->gpu.ordinal);
	(void)cuda->device_uuid(&uuid, a->gpu.ordinal);
	(void)cuda->driver_version(&driver);
	(void)cuda->device_count(&n_gpus);
	for (int i = 0; i < 16; i++)
		(void)snprintf(text + 2 * i, 3, "%02x", uuid.bytes[i]);
	reply_done(", \"name\": \"%s\", \"uuid\": \"%s\", \"driver\": %d, \"gpus\": %d, \"ns\": %lu, "
		   "\"init_ns\": %lu, \"context_ns\": %lu, \"module_ns\": %lu",
		   name, text, driver, n_gpus, took, a->gpu.init_ns, a->gpu.context_ns,
		   a->gpu.module_ns);
}

static void run_info(struct agent *a, char **words)
{
	size_t free = 0, total = 0;
	cu_result r = a->gpu.cuda->mem_info(&free, &total);

	(void)words;
	if (r)
		reply_cuda(a, r);
	else
		reply_done(", \"free\": %zu, \"total\": %zu", free, total);
}

static void run_fill(struct agent *a, char **words)
{
	uint64_t size;
	cu_ptr p = bytes_of(a, &size);
	cu_result r = gpu_fill(&a->gpu, p, size, (uint32_t)number(words[1]));

	reply_cuda(a, r ? r : a->gpu.cuda->stream_synchronize(a->gpu.stream));
}

/* Queued only: publish has to wait for it. */
static void run_fill_later(struct agent *a, char **words)
{
	uint64_t size;
	cu_ptr p = bytes_of(a, &size);

	reply_cuda(a, gpu_fill(&a->gpu, p, size, (uint32_t)number(words[1])));
}

static void run_sum(struct agent *a, char **words)
{
	uint64_t size, sum = 0;
	cu_ptr p = bytes_of(a, &size);
	cu_result r = gpu_sum(&a->gpu, p, size, &sum);

	(void)words;
	if (r)
		reply_cuda(a, r);
	else
		reply_done(", \"sum\": %lu", sum);
}

static void run_spin(struct agent *a, char **words)
{
	uint64_t size;
	cu_ptr p = bytes_of(a, &size);

	reply_cuda(a, gpu_spin(&a->gpu, p, size, number(words[1]) * 1000000));
}

/* Answers if the spinning work still runs. */
static void run_query(struct agent *a, char **words)
{
	cu_result r = a->gpu.cuda->stream_query(a->gpu.busy_stream);

	(void)words;
	if (r && r != CU_NOT_READY)
		reply_cuda(a, r);
	else
		reply_done(", \"busy\": %s", r ? "true" : "false");
}

static void run_sync(struct agent *a, char **words)
{
	(void)words;
	reply_cuda(a, a->gpu.cuda->ctx_synchronize());
}

static void run_poke(struct agent *a, char **words)
{
	uint64_t size;

	reply_cuda(a, gpu_poke(&a->gpu, bytes_of(a, &size), (uint32_t)number(words[1])));
}

static void run_rates(struct agent *a, char **words)
{
	double from_host = 0, on_device = 0;
	cu_result r = gpu_copy_rate(&a->gpu, number(words[1]) << 20, &from_host, &on_device);

	if (r)
		reply_cuda(a, r);
	else
		reply_done(", \"from_host\": %.0f, \"on_device\": %.0f", from_host, on_device);
}

/* --- A graph: the sum, captured once --- */

static void aim(struct agent *a)
{
	a->replay.gpu = &a->gpu;
	a->replay.data = bytes_of(a, &a->replay.size);
}

static void run_capture(struct agent *a, char **words)
{
	int r;

	(void)words;
	aim(a);
	r = replay_capture(&a->replay);
	if (r == -ENOSYS)
		reply_failed(r, "the driver has no graphs");
	else
		reply_cuda(a, r);
}

static void run_replay(struct agent *a, char **words)
{
	uint64_t sum = 0;
	cu_result r;

	(void)words;
	if (!a->replay.graph) {
		reply_failed(-ENOSYS, "nothing was captured");
		return;
	}
	r = replay_once(&a->replay, &sum);
	if (r)
		reply_cuda(a, r);
	else
		reply_done(", \"sum\": %lu", sum);
}

/* replay-loop REPLAYS SWAPS [NAME DEVICE VERSION VERSION]: of the graph, or of the kernel if there is none */
static void run_replay_loop(struct agent *a, char **words)
{
	struct replay_plan plan = {
		.w = a->w,
		.buffer = a->buffer,
		.n_replays = number(words[1]),
		.n_swaps = number(words[2]),
	};

	if (words[3] && words[4] && words[5] && words[6]) {
		plan.name = words[3];
		plan.device = words[4];
		plan.versions[0] = number(words[5]);
		plan.versions[1] = number(words[6]);
	}
	aim(a);
	if (a->buffer && plan.n_replays)
		replay_loop(&a->replay, &plan);
	else
		reply_failed(-EINVAL, "nothing is attached, or nothing to be replayed");
}

/* --- weightd --- */

static bool has_option(char **words, const char *option)
{
	for (; *words; words++)
		if (!strcmp(*words, option))
			return true;
	return false;
}

static int make_layout(uint64_t size, uint64_t n, struct weightd_layout **ret)
{
	uint64_t n_words = size / n / 256 * 64; /* words of each tensor: whole alignments */
	int r = weightd_layout_new(256, ret);

	for (uint64_t i = 0; r >= 0 && i < n; i++) {
		char name[32];

		(void)snprintf(name, sizeof(name), "t.%lu", i);
		r = weightd_layout_add(*ret, name, WEIGHTD_U32, 1, &n_words, WEIGHTD_PARAM, NULL);
	}
	return r;
}

/* create NAME DEVICE BYTES TENSORS [exclusive] [ipc] */
static void run_create(struct agent *a, char **words)
{
	struct weightd_create_options o = {
		.size = sizeof(o),
		.device = words[2],
		.new_layout = true,
		.exclusive = has_option(words, "exclusive"),
		.handle = has_option(words, "ipc") ? WEIGHTD_HANDLE_IPC : WEIGHTD_HANDLE_VMM,
		.pause_timeout_ms = 20000,
	};
	struct weightd_layout *layout = NULL;
	uint64_t begin = now_ns();
	int r = make_layout(number(words[3]), number(words[4]), &layout);

	weightd_writer_free(a->writer);
	a->writer = NULL;
	if (r >= 0)
		r = weightd_create(a->w, words[1], layout, &o, &a->writer);
	weightd_layout_free(layout);
	if (r < 0)
		reply_weightd(a, r);
	else
		reply_done(", \"ns\": %lu", now_ns() - begin);
}

static void run_publish(struct agent *a, char **words)
{
	uint64_t version = 0, begin = now_ns();
	int r = weightd_writer_publish_on(a->writer, a->gpu.stream, &version);

	(void)words;
	if (r < 0) {
		reply_weightd(a, r);
		return;
	}
	reply_done(", \"version\": %lu, \"ns\": %lu", version, now_ns() - begin);
	weightd_writer_free(a->writer);
	a->writer = NULL;
}

static int attach(struct agent *a, char **words, const char *map_device)
{
	struct weightd_attach_options o = {
		.size = sizeof(o),
		.device = words[2],
		.map_device = map_device,
		.timeout_ms = 20000,
	};

	weightd_detach(a->buffer);
	a->buffer = NULL;
	return weightd_attach(a->w, words[1], &o, &a->buffer);
}

/* attach NAME DEVICE [THE GPU THAT MAPS IT] */
static void run_attach(struct agent *a, char **words)
{
	uint64_t begin = now_ns(), size;
	int r = attach(a, words, words[3]);

	if (r < 0) {
		reply_weightd(a, r);
		return;
	}
	begin = now_ns() - begin;
	(void)weightd_buffer_data(a->buffer, &size);
	reply_done(", \"version\": %lu, \"size\": %lu, \"ns\": %lu",
		   weightd_buffer_version(a->buffer), size, begin);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* time-attach NAME DEVICE TIMES: attach alone, without the detach between */
static void run_time_attach(struct agent *a, char **words)
{
	size_t n = number(words[3]);
	cleanup(freep) uint64_t *took = calloc(n + 1, sizeof(*took));

	for (size_t i = 0; took && i < n; i++) {
		uint64_t begin;
		int r;

		weightd_detach(a->buffer);
		a->buffer = NULL;
		begin = now_ns();
		r = attach(a, words, NULL);
		took[i] = now_ns() - begin;
		if (r < 0) {
			reply_weightd(a, r);
			return;
		}
	}
	qsort(took, n, sizeof(*took), compare);
	reply_done(", \"ns\": %lu, \"max_ns\": %lu", took[n / 2], took[n - 1]);
}

static void run_detach(struct agent *a, char **words)
{
	(void)words;
	weightd_detach(a->buffer);
	a->buffer = NULL;
	reply_ok();
}

/* compare SEED: all bytes, copied back, with what gpu_fill wrote */
static void run_compare(struct agent *a, char **words)
{
	uint32_t seed = (uint32_t)number(words[1]);
	cleanup(freep) uint32_t *chunk = malloc(CHUNK);
	uint64_t size, wrong = 0;
	int r = 0;

	(void)weightd_buffer_data(a->buffer, &size);
	for (uint64_t at = 0; chunk && at < size && r >= 0; at += CHUNK) {
		uint64_t n = size - at < CHUNK ? size - at : CHUNK;

		r = weightd_buffer_read(a->buffer, at, chunk, n);
		for (uint64_t i = 0; r >= 0 && i < n / 4; i++)
			wrong += chunk[i] != kernel_word(at / 4 + i, seed);
	}
	if (r < 0)
		reply_weightd(a, r);
	else
		reply_done(", \"wrong\": %lu, \"words\": %lu", wrong, size / 4);
}

static void run_verify(struct agent *a, char **words)
{
	uint64_t begin = now_ns();
	int r = weightd_buffer_verify(a->buffer);

	(void)words;
	if (r < 0)
		reply_weightd(a, r);
	else
		reply_done(", \"ns\": %lu", now_ns() - begin);
}

/* swap [on]: waits for all streams, or for the one in which sums are made */
static void run_swap(struct agent *a, char **words)
{
	void *stream = words[1] ? (void *)a->gpu.stream : WEIGHTD_ALL_STREAMS;
	uint64_t begin = now_ns();
	int r = weightd_buffer_swap_on(a->buffer, stream);

	if (r < 0)
		reply_weightd(a, r);
	else
		reply_done(", \"value\": %d, \"version\": %lu, \"ns\": %lu", r,
			   weightd_buffer_version(a->buffer), now_ns() - begin);
}

static void run_pause(struct agent *a, char **words)
{
	reply_weightd(a, weightd_buffer_pause(a->buffer, (int)number(words[1])));
}

static void run_state(struct agent *a, char **words)
{
	uint64_t version = 0;
	enum weightd_state state = weightd_buffer_state(a->buffer, &version);

	(void)words;
	reply_done(", \"state\": %d, \"version\": %lu", (int)state, version);
}

static void run_release(struct agent *a, char **words)
{
	uint64_t begin = now_ns();
	int r = weightd_buffer_release(a->buffer, NULL);

	(void)words;
	if (r < 0)
		reply_weightd(a, r);
	else
		reply_done(", \"ns\": %lu", now_ns() - begin);
}

static void run_reacquire(struct agent *a, char **words)
{
	uint64_t begin = now_ns();
	int r = weightd_buffer_reacquire(a->buffer);

	(void)words;
	if (r < 0)
		reply_weightd(a, r);
	else
		reply_done(", \"value\": %d, \"ns\": %lu", r, now_ns() - begin);
}

/* --- Other ways to share, and descriptors --- */

static void run_ipc_make(struct agent *a, char **words)
{
	handles_make_ipc(&a->gpu, number(words[1]), number(words[2]), words[3]);
}

static void run_ipc_time(struct agent *a, char **words)
{
	handles_time_ipc(&a->gpu, words[1]);
}

static void run_vmm_make(struct agent *a, char **words)
{
	handles_make_vmm(&a->gpu, number(words[1]), number(words[2]), words[3]);
}

static void run_vmm_serve(struct agent *a, char **words)
{
	(void)words;
	handles_serve_vmm(&a->gpu);
}

static void run_vmm_time(struct agent *a, char **words)
{
	handles_time_vmm(&a->gpu, number(words[1]), number(words[2]), words[3]);
}

static void run_vmm_remap(struct agent *a, char **words)
{
	handles_time_remap(&a->gpu, number(words[1]), number(words[2]));
}

static void run_poll_handle(struct agent *a, char **words)
{
	(void)words;
	handles_poll(&a->gpu);
}

static void run_tamper(struct agent *a, char **words)
{
	handles_tamper(&a->gpu, (int)number(words[1]), (uint32_t)number(words[2]), number(words[3]),
		       number(words[4]));
}

static void run_steal(struct agent *a, char **words)
{
	handles_steal(&a->gpu, (int)number(words[1]), (uint32_t)number(words[2]), number(words[3]));
}

struct command {
	const char *name;
	int n_words; /* at least, with the name */
	void (*run)(struct agent *a, char **words);
};

static const struct command commands[] = {
	{"open", 2, run_open},
	{"info", 1, run_info},
	{"fill", 2, run_fill},
	{"fill-later", 2, run_fill_later},
	{"sum", 1, run_sum},
	{"spin", 2, run_spin},
	{"query", 1, run_query},
	{"sync", 1, run_sync},
	{"poke", 2, run_poke},
	{"rates", 2, run_rates},
	{"capture", 1, run_capture},
	{"replay", 1, run_replay},
	{"replay-loop", 3, run_replay_loop},
	{"create", 5, run_create},
	{"publish", 1, run_publish},
	{"attach", 3, run_attach},
	{"time-attach", 4, run_time_attach},
	{"detach", 1, run_detach},
	{"compare", 2, run_compare},
	{"verify", 1, run_verify},
	{"swap", 1, run_swap},
	{"pause", 2, run_pause},
	{"state", 1, run_state},
	{"release", 1, run_release},
	{"reacquire", 1, run_reacquire},
	{"ipc-make", 4, run_ipc_make},
	{"ipc-time", 2, run_ipc_time},
	{"vmm-make", 4, run_vmm_make},
	{"vmm-serve", 1, run_vmm_serve},
	{"vmm-time", 4, run_vmm_time},
	{"vmm-remap", 3, run_vmm_remap},
	{"poll-handle", 1, run_poll_handle},
	{"tamper", 5, run_tamper},
	{"steal", 4, run_steal},
};

static void run_line(struct agent *a, char *line)
{
	char *words[N_WORDS_MAX + 1] = {NULL}, *rest = line;
	int n = 0;

	for (char *word; n < N_WORDS_MAX && (word = strsep(&rest, " \n"));)
		if (*word)
			words[n++] = word;
	words[n] = NULL;
	for (size_t i = 0; n && i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(words[0], commands[i].name) && n >= commands[i].n_words) {
			commands[i].run(a, words);
			return;
		}
	reply_failed(-EINVAL, "no such command, or not enough words: %s", n ? words[0] : "");
}

int main(void)
{
	struct agent a = {0};
	struct rlimit files;
	char line[4096];

	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max; /* thousands of handles */
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
	/* An agent that uses only the GPU has no server. */
	if (weightd_new(&a.w) < 0 || (getenv("WEIGHTD_SOCKET") && weightd_connect(a.w, NULL) < 0)) {
		(void)fprintf(stderr, "agent: %s\n", weightd_error(a.w));
		weightd_close(a.w);
		return 1;
	}
	while (fgets(line, sizeof(line), stdin))
		run_line(&a, line);
	weightd_writer_free(a.writer);
	weightd_detach(a.buffer);
	weightd_close(a.w);
	return 0;
}
