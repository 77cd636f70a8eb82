#include "server/sync/nccl/worker.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "server/sync/base/cursor.h"
#include "server/sync/base/merkle.h"

#define DEPTH 4 /* buckets that are queued on the GPU */
#define AT_GREETING 0 /* offset in the scratch memory */
#define AT_COUNT 64

struct bucket {
	cu_event event;
	uint64_t end; /* its end in the stream of bytes */
};

/*
 * Values that the GPU reads and writes when its stream reaches them. They are in pinned memory: a
 * copy from other memory may block until the work queued before it is done, and after the death of
 * a peer that work never ends.
 */
struct pinned {
	uint8_t ours[MERKLE_HASH_SIZE], theirs[MERKLE_HASH_SIZE];
	uint32_t one, count;
};
_Static_assert(sizeof(struct pinned) <= GPU_SCRATCH_SIZE, "gpu_open() pins as much");

struct worker {
	struct engine *e;
	nccl_comm comm; /* NULL: none yet */
	struct pinned *pinned;
	struct cursor queued;
	struct bucket buckets[DEPTH]; /* a ring; all other work shares one event */
	unsigned first, n;
	uint64_t moved_ns; /* time of the last progress */
};

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
		w->first = (w->first + 1) % DEPTH;
		w->n--;
		worker_moved(w);
		engine_arrived(w->e, b->end);
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

static bool fails_on_gpu(struct worker *w, cu_result result)
{
	char said[CUDA_WHY_SIZE];

	cuda_driver_explain(w->e->gpu.driver, result, said);
	return engine_break(w->e, false, "%s failed: %s", atomic_load(&w->e->doing), said);
}

static bool is_late(struct worker *w)
{
	uint64_t silent_ns = num_now_ns() - w->moved_ns;

	if (silent_ns <= w->e->engine_loop.order.stall_ns)
		return false;
	return !engine_break(w->e, true, "%s made no progress for %.1f s",
			     atomic_load(&w->e->doing), (double)silent_ns / 1e9);
}

/* Waits until the communicator has completed the last call, which returned `result`. */
static bool worker_settle(struct worker *w, nccl_result result)
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
	nccl_result result, asked = w->e->nccl.async_error(w->comm, &result);

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
	return result == CU_OK || fails_on_gpu(w, result);
}

/* Waits until all queued work is done. */
static bool worker_flush(struct worker *w)
{
	cu_event event = w->buckets[0].event;
	cu_result result = w->e->gpu.driver->event_record(event, w->e->gpu.stream);

	return result == CU_OK ? worker_await(w, event) : fails_on_gpu(w, result);
}

/* --- Greeting and parting ---------------------------------------------------------------------- */

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

/* Digests the order: NCCL would write any bytes, even if the other end has another size. */
static bool digest_order(const struct engine *e, uint8_t ret[MERKLE_HASH_SIZE])
{
	const struct engine_order *o = &e->engine_loop.order;
	const size_t n = 4 + 2 * o->ranges.n;
	cleanup(freep) uint64_t *words = calloc(n + 1, sizeof(*words));
	uint64_t *at = words;

	if (!words)
		return false;
	memcpy(at++, o->sync, sizeof(o->sync));
	*at++ = htobe64(o->epoch);
	*at++ = htobe64(o->n_bytes);
	*at++ = htobe64(o->chunk);
	for (size_t i = 0; i < o->ranges.n; i++) {
		*at++ = htobe64(o->ranges.at[i].offset);
		*at++ = htobe64(o->ranges.at[i].size);
	}
	merkle_hash(words, n * sizeof(*words), ret);
	return true;
}
_Static_assert(PREAMBLE_SYNC_SIZE == sizeof(uint64_t), "it is one of the words");

static bool worker_greet(struct worker *w)
{
	struct engine *e = w->e;
	const struct cuda_driver *d = e->gpu.driver;
	struct pinned *pinned = w->pinned;
	cu_ptr at = e->gpu.scratch + AT_GREETING;
	void *p = (void *)(uintptr_t)at;
	cu_result result;

	engine_does(e, "NCCL's greeting");
	if (!digest_order(e, pinned->ours))
		return engine_break(e, false, "no memory to greet the others");
	result = d->memcpy_to_device_async(at, pinned->ours, sizeof(pinned->ours), e->gpu.stream);
	if (result)
		return fails_on_gpu(w, result);
	if (!worker_settle(w, e->nccl.broadcast(p, p, sizeof(pinned->ours), NCCL_UINT8, 0, w->comm,
						e->gpu.stream)))
		return false;
	result = d->memcpy_to_host_async(pinned->theirs, at, sizeof(pinned->theirs), e->gpu.stream);
	if (result)
		return fails_on_gpu(w, result);
	if (!worker_flush(w))
		return false;
	if (memcmp(pinned->ours, pinned->theirs, sizeof(pinned->ours)) != 0)
		return engine_break(e, true,
				    "the source is in another sync or epoch, or sends other ranges");
	return true;
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
	cu_ptr at = e->gpu.scratch + AT_COUNT;
	void *p = (void *)(uintptr_t)at;
	cu_result result;

	engine_does(e, "NCCL's count of the nodes that have all");
	pinned->one = 1;
	result = d->memcpy_to_device_async(at, &pinned->one, sizeof(pinned->one), e->gpu.stream);
	if (result)
		return fails_on_gpu(w, result);
	if (!worker_settle(w, e->nccl.all_reduce(p, p, 1, NCCL_UINT32, NCCL_SUM, w->comm,
						 e->gpu.stream)))
		return false;
	result = d->memcpy_to_host_async(&pinned->count, at, sizeof(pinned->count), e->gpu.stream);
	if (result)
		return fails_on_gpu(w, result);
	if (!worker_flush(w))
		return false;
	if (pinned->count != e->place.n_ranks)
		return engine_break(e, false, "%u of %u nodes have all, by NCCL's own count",
				    pinned->count, e->place.n_ranks);
	engine_does(e, "NCCL's end");
	return worker_settle(w, e->nccl.finalize(w->comm));
}

/* --- The bytes --------------------------------------------------------------------------------- */

static bool queue_bucket(struct worker *w)
{
	struct engine *e = w->e;
	struct bucket *b = &w->buckets[(w->first + w->n) % DEPTH];
	uint64_t room = e->engine_loop.order.chunk, n, offset;
	cu_result result;

	while (room > 0 && (n = cursor_piece(&w->queued, room, &offset)) > 0) {
		void *p = (void *)(uintptr_t)(e->gpu.memory + offset);

		/* In place: the source's memory is only read. */
		if (!worker_settle(w, e->nccl.broadcast(p, p, n, NCCL_UINT8, 0, w->comm,
							e->gpu.stream)))
			return false;
		cursor_advance(&w->queued, n);
		room -= n;
	}
	b->end = w->queued.at;
	w->n++;
	result = e->gpu.driver->event_record(b->event, e->gpu.stream);
	return result == CU_OK || fails_on_gpu(w, result);
}

/* Only the source limits the rate; the others wait for it on their GPUs. */
static bool may_queue(const struct worker *w, uint64_t begun_ns)
{
	const struct place *p = &w->e->place;
	double ns;

	if (w->n == DEPTH || w->queued.at == w->e->engine_loop.order.total)
		return false;
	if (p->rank != 0 || p->max_rate == 0)
		return true;
	ns = (double)w->queued.at / (double)p->max_rate * 1e9;
	return (double)(num_now_ns() - begun_ns) >= ns;
}

/* Waits for a moment, unless queued work is done. */
static bool wait_for_some(struct worker *w)
{
	const unsigned n = w->n;
	cu_result result = take_buckets(w);

	if (result && result != CU_NOT_READY)
		return fails_on_gpu(w, result);
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
	const uint64_t size = e->engine_loop.order.chunk < e->engine_loop.order.total
				      ? e->engine_loop.order.chunk
				      : e->engine_loop.order.total;
	const double min = (double)size * 2e9 / (double)e->engine_loop.order.stall_ns;

	return !e->place.max_rate || (double)e->place.max_rate >= min ||
	       engine_break(e, false,
			    "%ju bytes a second are too few for NCCL, which moves %ju at a time; "
			    "allow %.0f, or use another engine",
			    (uintmax_t)e->place.max_rate, (uintmax_t)size, min + 1);
}

static bool worker_carry(struct worker *w)
{
	struct engine *e = w->e;
	const uint64_t begun_ns = num_now_ns();

	engine_does(e, "NCCL's broadcast");
	worker_moved(w);
	cursor_init(&w->queued, &e->engine_loop.order.ranges);
	while (w->n > 0 || w->queued.at < e->engine_loop.order.total)
		if (!(may_queue(w, begun_ns) ? queue_bucket(w) : wait_for_some(w)))
			return false;
	return true;
}

/* --- Start and end ----------------------------------------------------------------------------- */

static void note_call(void *userdata, const char *what)
{
	engine_does(userdata, what);
}

static bool open_all(struct worker *w)
{
	struct engine *e = w->e;
	const struct engine_order *o = &e->engine_loop.order;
	const bool is_source = !o->from[0];
	char why[GPU_WHY_SIZE];
	cu_result result = CU_OK;
	nccl_result minted = NCCL_OK;

	if (gpu_open(&e->gpu, o->gpu, o->memory_fd, o->map_size, is_source, note_call, e, why) < 0)
		return engine_break(e, false, "%s", why);
	w->pinned = e->gpu.pinned;
	engine_does(e, "NCCL's start");
	for (unsigned i = 0; result == CU_OK && i < DEPTH; i++)
		result = e->gpu.driver->event_create(&w->buckets[i].event, CU_EVENT_DISABLE_TIMING);
	if (result)
		return fails_on_gpu(w, result);
	if (nccl_open(&e->nccl, why) < 0)
		return engine_break(e, false, "%s", why);
	/* The process that makes the id listens until it ends. */
	if (is_source)
		minted = e->nccl.get_id(&e->id);
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
		if (is_fast_enough(e) && worker_form(&w) && worker_greet(&w) && worker_carry(&w) &&
		    worker_part(&w)) {
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
