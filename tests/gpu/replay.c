/*
 * A replay is waited for, as a server of a model waits for its tokens, and its end is taken from the host's clock:
 * what a reader loses by a swap is what the interval between two ends has grown by.
 */
#include "tests/gpu/replay.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#include "ipc/base/cleanup.h"
#include "tests/gpu/reply.h"

#define N_SUMS_MAX 64
#define N_BETWEEN 10 /* replays between two flips, and after the last swap */

struct swap {
	size_t interval;
	uint64_t ns, flip_ns;
};

struct record {
	uint64_t *ends;
	size_t n_ends;
	struct swap *swaps;
	size_t n_swaps;
	uint64_t sums[N_SUMS_MAX];
	size_t n_sums;
};

/* Those of graphs are in no table: weightd needs none. */
static void *driver_symbol(const char *name)
{
	return dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
}

static cu_result queue(struct replay *p)
{
	struct gpu *gpu = p->gpu;
	cu_result r = gpu->cuda->memset8_async(gpu->out, 0, sizeof(uint64_t), gpu->stream);

	return r ? r : gpu_queue_sum(gpu, p->data, p->size, gpu->stream);
}

int replay_capture(struct replay *p)
{
	cu_result (*begin)(cu_stream, int) = driver_symbol("cuStreamBeginCapture_v2");
	cu_result (*end)(cu_stream, void **) = driver_symbol("cuStreamEndCapture");
	cu_result (*make)(void **, void *,
			  unsigned long long) = driver_symbol("cuGraphInstantiateWithFlags");
	void *graph = NULL;
	cu_result r;

	if (!begin || !end || !make)
		return -ENOSYS;
	if (!(r = begin(p->gpu->stream, CU_CAPTURE_RELAXED)) && !(r = queue(p)) &&
	    !(r = end(p->gpu->stream, &graph)))
		r = make(&p->graph, graph, 0);
	return r;
}

cu_result replay_once(struct replay *p, uint64_t *ret_sum)
{
	static cu_result (*launch)(void *, cu_stream);
	cu_result r;

	if (p->graph && !launch)
		launch = driver_symbol("cuGraphLaunch");
	r = p->graph ? launch(p->graph, p->gpu->stream) : queue(p);
	if (!r)
		r = p->gpu->cuda->stream_synchronize(p->gpu->stream);
	return r ? r : p->gpu->cuda->memcpy_to_host(ret_sum, p->gpu->out, sizeof(*ret_sum));
}

static void note_sum(struct record *record, uint64_t sum)
{
	for (size_t i = 0; i < record->n_sums; i++)
		if (record->sums[i] == sum)
			return;
	if (record->n_sums < N_SUMS_MAX)
		record->sums[record->n_sums++] = sum;
}

/* The other one of the two versions, every N_BETWEEN replays. */
static int flip(const struct replay_plan *plan, struct record *record, uint64_t *ret_ns)
{
	size_t turn = record->n_swaps % 2;
	uint64_t begin = now_ns();
	int r;

	if (!plan->versions[0] || record->n_ends % N_BETWEEN)
		return 0;
	r = weightd_rollback(plan->w, plan->name, plan->device, plan->versions[turn], NULL);
	*ret_ns = now_ns() - begin;
	return r;
}

static int swap(struct replay *p, const struct replay_plan *plan, struct record *record)
{
	uint64_t current, begin, flip_ns = 0;
	int r;

	if (!plan->n_swaps || record->n_swaps == plan->n_swaps)
		return 0;
	r = flip(plan, record, &flip_ns);
	if (r < 0)
		return r;
	r = weightd_buffer_latest(plan->buffer, &current);
	if (r < 0 || current == weightd_buffer_version(plan->buffer))
		return r;
	begin = now_ns();
	r = weightd_buffer_swap_on(plan->buffer, p->gpu->stream);
	if (r > 0)
		record->swaps[record->n_swaps++] = (struct swap){record->n_ends - 1,
								 now_ns() - begin, flip_ns};
	return r;
}

static void reply_record(struct record *record)
{
	cleanup(freep) uint64_t *column = calloc(record->n_swaps + 1, sizeof(*column));

	if (!column) {
		reply_failed(-ENOMEM, "out of memory");
		return;
	}
	reply_open();
	reply_member("first_ns", record->ends[0]);
	for (size_t i = record->n_ends - 1; i > 0; i--)
		record->ends[i] -= record->ends[i - 1];
	reply_list("intervals_ns", record->ends + 1, record->n_ends - 1);
	reply_list("sums", record->sums, record->n_sums);
	for (size_t i = 0; i < record->n_swaps; i++)
		column[i] = record->swaps[i].interval;
	reply_list("swap_intervals", column, record->n_swaps);
	for (size_t i = 0; i < record->n_swaps; i++)
		column[i] = record->swaps[i].ns;
	reply_list("swap_ns", column, record->n_swaps);
	for (size_t i = 0; i < record->n_swaps; i++)
		column[i] = record->swaps[i].flip_ns;
	reply_list("flip_ns", column, record->n_swaps);
	reply_close();
}

/* Some replays follow the last swap. */
static bool is_over(const struct replay_plan *plan, const struct record *record)
{
	return record->n_ends == plan->n_replays ||
	       (plan->n_swaps && record->n_swaps == plan->n_swaps &&
		record->n_ends >= record->swaps[record->n_swaps - 1].interval + N_BETWEEN);
}

void replay_loop(struct replay *p, const struct replay_plan *plan)
{
	struct record record = {0};
	cleanup(freep) uint64_t *ends = calloc(plan->n_replays, sizeof(*ends));
	cleanup(freep) struct swap *swaps = calloc(plan->n_swaps + 1, sizeof(*swaps));
	cu_result result = CU_OK;
	uint64_t sum = 0;
	int r = 0;

	record.ends = ends;
	record.swaps = swaps;
	if (!ends || !swaps) {
		reply_failed(-ENOMEM, "out of memory");
		return;
	}
	while (!is_over(plan, &record) && r >= 0) {
		result = replay_once(p, &sum);
		if (result)
			break;
		ends[record.n_ends++] = now_ns();
		note_sum(&record, sum);
		r = swap(p, plan, &record);
	}
	if (result)
		reply_result(p->gpu->cuda, result);
	else if (r < 0)
		reply_failed(r, "%s", weightd_error(plan->w));
	else
		reply_record(&record);
}
