#include "server/sync/nccl/worker.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/num.h"

/* --- Progress ---------------------------------------------------------------------------------- */

static void worker_moved(struct worker *w)
{
	w->moved_ns = num_now_ns();
}

/* Removes finished buckets from the queue, in order. Returns the error of the first one left. */
static cu_result take_buckets(struct worker *w)
{
	while (w->n > 0) {
		const struct bucket *b = &w->buckets[w->first];
		cu_result result = w->e->gpu.driver->event_query(b->event);

		if (result)
			return result;
		w->first = (w->first + 1) % WORKER_DEPTH;
		w->n--;
		worker_moved(w);
		engine_arrived(w->e, b->done, b->sent);
	}
	return CU_OK;
}

/* --- Deadlines --------------------------------------------------------------------------------- */

/* Counts the work that ended before the failure: it is not sent again. */
static bool worker_fails(struct worker *w, nccl_result result)
{
	char said[NCCL_WHY_SIZE];
	/* Failures of other nodes have these results; all others are this node's own. */
	const bool is_at_link = result == NCCL_REMOTE_ERROR || result == NCCL_SYSTEM_ERROR;

	(void)take_buckets(w);
	nccl_explain(&w->e->nccl, w->comm, result, said);
	return engine_break(w->e, is_at_link, "%s failed: %s", atomic_load(&w->e->doing), said);
}

bool worker_check(struct worker *w, cu_result result)
{
	char said[CUDA_WHY_SIZE];

	if (result == CU_OK)
		return true;
	cuda_driver_explain(w->e->gpu.driver, result, said);
	return engine_break(w->e, false, "%s failed: %s", atomic_load(&w->e->doing), said);
}

static bool is_late(struct worker *w)
{
	uint64_t silent_ns = num_now_ns() - w->moved_ns;

	if (silent_ns <= w->e->engine_loop.order.stall_ns)
		return false;
	return !engine_break(w->e, !w->is_parted, "%s made no progress for %.1f s",
			     atomic_load(&w->e->doing), (double)silent_ns / 1e9);
}

bool worker_settle(struct worker *w, nccl_result result)
{
	const struct nccl *n = &w->e->nccl;

	worker_moved(w);
	for (;;) {
		nccl_result asked = NCCL_OK;

		if (result == NCCL_IN_PROGRESS)
			asked = n->async_error(w->comm, &result);
		if (asked || (result && result != NCCL_IN_PROGRESS))
			return worker_fails(w, asked ? asked : result);
		if (result == NCCL_OK)
			return true;
		if (is_late(w))
			return false;
		engine_pause(w->e);
	}
}

/* The communicator has no error, while the GPU works. */
static bool is_well(struct worker *w)
{
	nccl_result result = NCCL_OK, asked = NCCL_OK;

	if (!w->is_parted)
		asked = w->e->nccl.async_error(w->comm, &result);
	if (asked || (result && result != NCCL_IN_PROGRESS))
		return worker_fails(w, asked ? asked : result);
	return !is_late(w);
}

static bool worker_await(struct worker *w, cu_event event)
{
	cu_result result;

	worker_moved(w);
	while ((result = w->e->gpu.driver->event_query(event)) == CU_NOT_READY) {
		if (!is_well(w))
			return false;
		engine_pause(w->e);
	}
	return worker_check(w, result);
}

bool worker_flush(struct worker *w)
{
	cu_event event = w->buckets[0].event;
	cu_result result = w->e->gpu.driver->event_record(event, w->e->gpu.stream);

	return worker_check(w, result) && worker_await(w, event);
}

/* --- Calls of NCCL ----------------------------------------------------------------------------- */

bool worker_group_begin(struct worker *w)
{
	nccl_result result = w->e->nccl.group_start();

	w->grouped = NCCL_OK;
	return !result || worker_fails(w, result);
}

void worker_group_add(struct worker *w, nccl_result result)
{
	/* A communicator that does not block may answer so within a group, too. */
	if (!w->grouped && result != NCCL_IN_PROGRESS)
		w->grouped = result;
}

bool worker_group_end(struct worker *w)
{
	nccl_result result = w->e->nccl.group_end();

	return w->grouped ? worker_fails(w, w->grouped) : worker_settle(w, result);
}

bool worker_gather(struct worker *w, const void *ours, size_t size)
{
	struct engine *e = w->e;
	const struct cuda_driver *d = e->gpu.driver;
	const cu_ptr at = worker_scratch(w, offsetof(struct pinned, gathered));
	const size_t all = size * e->place.n_ranks, mine = size * e->place.rank;
	const cu_ptr from = at + mine;

	memcpy(w->pinned->gathered + mine, ours, size);
	return worker_check(w, d->memcpy_to_device_async(from, w->pinned->gathered + mine, size,
							 e->gpu.stream)) &&
	       worker_settle(w, e->nccl.all_gather((void *)(uintptr_t)from, (void *)(uintptr_t)at,
						   size, NCCL_UINT8, w->comm, e->gpu.stream)) &&
	       worker_check(w,
			    d->memcpy_to_host_async(w->pinned->gathered, at, all, e->gpu.stream)) &&
	       worker_flush(w);
}

bool worker_read_leaf(struct worker *w, cu_ptr from, size_t size)
{
	struct engine *e = w->e;

	return worker_check(w, e->gpu.driver->memcpy_to_host_async(w->pinned->leaf, from, size,
								   e->gpu.stream)) &&
	       worker_flush(w);
}

/* --- Forming and parting ----------------------------------------------------------------------- */

static bool worker_form(struct worker *w)
{
	struct engine *e = w->e;
	struct nccl_id id;
	struct nccl_config config = {
		.size = sizeof(config),
		.magic = NCCL_CONFIG_MAGIC,
		.version = NCCL_CONFIG_VERSION,
		.blocking = 0,
		.cga_cluster_size = NCCL_UNDEFINED,
		.min_ctas = NCCL_UNDEFINED,
		.max_ctas = NCCL_UNDEFINED,
		.split_share = NCCL_UNDEFINED,
	};

	engine_does(e, "NCCL's communicator");
	memcpy(id.bytes, e->place.id, sizeof(id.bytes));
	return worker_settle(w, e->nccl.init(&w->comm, (int)e->place.n_ranks, id,
					     (int)e->place.rank, &config));
}

/*
 * Waits for all nodes: one that has all may still hold bytes that another needs, since NCCL sends
 * in the background.
 */
static bool worker_part(struct worker *w)
{
	struct engine *e = w->e;
	const struct cuda_driver *d = e->gpu.driver;
	struct pinned *pinned = w->pinned;
	const cu_ptr at = worker_scratch(w, offsetof(struct pinned, count));
	void *p = (void *)(uintptr_t)at;

	engine_does(e, "NCCL's count of the nodes that have all");
	pinned->one = 1;
	if (!worker_check(w, d->memcpy_to_device_async(at, &pinned->one, sizeof(pinned->one),
						       e->gpu.stream)) ||
	    !worker_settle(w, e->nccl.all_reduce(p, p, 1, NCCL_UINT32, NCCL_SUM, w->comm,
						 e->gpu.stream)) ||
	    !worker_check(w, d->memcpy_to_host_async(&pinned->count, at, sizeof(pinned->count),
						     e->gpu.stream)) ||
	    !worker_flush(w))
		return false;
	if (pinned->count != e->place.n_ranks)
		return engine_break(e, false, "%u of %u nodes have all, by NCCL's own count",
				    pinned->count, e->place.n_ranks);
	engine_does(e, "NCCL's end");
	w->is_parted = worker_settle(w, e->nccl.finalize(w->comm));
	return w->is_parted;
}

/* --- The bytes --------------------------------------------------------------------------------- */

bool worker_end_bucket(struct worker *w, uint64_t n_done, uint64_t n_sent)
{
	struct bucket *b = &w->buckets[(w->first + w->n) % WORKER_DEPTH];

	b->done = w->done += n_done;
	b->sent = w->sent += n_sent;
	w->queued += n_sent;
	w->n++;
	return worker_check(w, w->e->gpu.driver->event_record(b->event, w->e->gpu.stream));
}

/* A node that does not limit the rate waits on its GPU for those that do. */
static bool may_queue(const struct worker *w, uint64_t begun_ns)
{
	const struct operation *o = w->e->operation;
	const struct place *p = &w->e->place;
	double ns;

	if (w->n == WORKER_DEPTH || !o->has_more(w))
		return false;
	if (p->max_rate == 0 || (o->is_limited_by_source && p->rank != 0))
		return true;
	ns = (double)w->queued / (double)p->max_rate * 1e9;
	return (double)(num_now_ns() - begun_ns) >= ns;
}

/* Waits for a moment, unless queued work is done. */
static bool wait_for_some(struct worker *w)
{
	const unsigned n = w->n;
	cu_result result = take_buckets(w);

	if (result != CU_NOT_READY && !worker_check(w, result))
		return false;
	if (w->n < n)
		return true;
	if (n == 0)
		worker_moved(w); /* the rate limit, no stall */
	if (!is_well(w))
		return false;
	engine_pause(w->e);
	return true;
}

/* A bucket at this rate must not look like a stall. */
static bool is_fast_enough(struct engine *e)
{
	const uint64_t chunk = e->engine_loop.order.chunk,
		       size = chunk < e->total ? chunk : e->total;
	const double min = (double)size * 2e9 / (double)e->engine_loop.order.stall_ns;

	return !e->place.max_rate || (double)e->place.max_rate >= min ||
	       engine_break_from(e, "refused", NULL,
				 "%ju bytes a second are too few for NCCL, which moves %ju at a time; "
				 "allow %.0f, or use another engine",
				 (uintmax_t)e->place.max_rate, (uintmax_t)size, min + 1);
}

static bool worker_carry(struct worker *w)
{
	struct engine *e = w->e;
	const uint64_t begun_ns = num_now_ns();

	engine_does(e, e->operation->doing);
	worker_moved(w);
	while (w->n > 0 || e->operation->has_more(w))
		if (!(may_queue(w, begun_ns) ? e->operation->queue(w) : wait_for_some(w)))
			return false;
	return true;
}

/* --- Start and end ----------------------------------------------------------------------------- */

static void note_call(void *userdata, const char *what)
{
	engine_does(userdata, what);
}

bool worker_map(struct worker *w, int fd, uint64_t map_size, bool is_read_only, cu_ptr *ret)
{
	struct engine *e = w->e;
	char why[GPU_WHY_SIZE];

	engine_does(e, "the mapping of the memory");
	if (map_size == 0 || gpu_map(&e->gpu, fd, map_size, is_read_only, ret, why) == 0)
		return true;
	return engine_break(e, false, "%s", why);
}

static bool open_all(struct worker *w)
{
	struct engine *e = w->e;
	char why[GPU_WHY_SIZE];
	cu_result result = CU_OK;
	nccl_result minted;

	if (gpu_open(&e->gpu, e->engine_loop.order.gpu, note_call, e, why) < 0)
		return engine_break(e, false, "%s", why);
	w->pinned = e->gpu.pinned;
	if (!e->operation->prepare(w))
		return false;
	engine_does(e, "NCCL's start");
	for (unsigned i = 0; result == CU_OK && i < WORKER_DEPTH; i++)
		result = e->gpu.driver->event_create(&w->buckets[i].event, CU_EVENT_DISABLE_TIMING);
	if (!worker_check(w, result))
		return false;
	if (nccl_open(&e->nccl, why) < 0)
		return engine_break(e, false, "%s", why);
	/* The process that makes the id listens until it ends. */
	minted = e->is_first ? e->nccl.get_id(&e->id) : NCCL_OK;
	return !minted || worker_fails(w, minted);
}
_Static_assert(GPU_WHY_SIZE >= NCCL_WHY_SIZE, "one sentence has room for both");

static void *worker_work(void *arg)
{
	static struct worker w;
	struct engine *e = w.e = arg;

	if (open_all(&w)) {
		engine_is_open(e);
		engine_await_start(e);
		if (is_fast_enough(e) && worker_form(&w) && e->operation->greet(&w) &&
		    worker_carry(&w) && worker_part(&w) &&
		    (!e->operation->finish || e->operation->finish(&w))) {
			engine_is_done(e);
			engine_does(e, NULL);
			return NULL;
		}
	}
	/*
	 * The failure is reported; the abort ends kernels of ours, which would otherwise occupy the
	 * GPU until the process ends.
	 */
	if (w.comm)
		(void)e->nccl.abort(w.comm);
	return NULL;
}

int worker_start(struct engine *e, char why[ENGINE_ORDER_WHY_SIZE])
{
	pthread_t thread;
	int r = pthread_create(&thread, NULL, worker_work, e);

	if (r != 0) {
		(void)snprintf(why, ENGINE_ORDER_WHY_SIZE, "no thread to work: %s", strerror(r));
		return -r;
	}
	(void)pthread_detach(thread);
	return 0;
}
