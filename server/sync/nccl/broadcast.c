#include "server/sync/nccl/broadcast.h"

#include <endian.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "server/sync/base/cursor.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/nccl/worker.h"

static struct cursor queued; /* the worker's */

static int broadcast_open(struct engine *e, const json_t *order, char why[ENGINE_ORDER_WHY_SIZE])
{
	(void)order, (void)why;
	e->previous = e->engine_loop.order.from;
	e->is_first = !e->previous[0];
	e->total = e->engine_loop.order.total;
	cursor_init(&queued, &e->engine_loop.order.ranges);
	return 0;
}

/* The source sends the id that NCCL made, the others report that their memory is mapped. */
static json_t *broadcast_opened(const struct engine *e)
{
	char hello[2 * NCCL_ID_SIZE + 1];

	field_hex(e->id.bytes, sizeof(e->id.bytes), hello);
	return json_pack("{ss*}", "hello", e->is_first ? hello : NULL);
}

static int broadcast_start(struct engine *e, const json_t *order, char why[ENGINE_ORDER_WHY_SIZE])
{
	int r = engine_order_read_place(order, &e->place, why);

	if (r < 0)
		return r;
	if (e->is_first != (e->place.rank == 0) ||
	    (e->is_first && memcmp(e->place.id, e->id.bytes, sizeof(e->place.id)) != 0))
		return engine_order_wrong(why, "`rank` 0 is the source, which sent the `hello`");
	return 0;
}

static json_t *broadcast_done(const struct engine *e)
{
	return json_pack("{so so}", "in", engine_describe_bytes(e->total, !e->is_first), "out",
			 engine_describe_bytes(e->total, e->is_first));
}

static bool broadcast_prepare(struct worker *w)
{
	struct engine *e = w->e;
	const struct engine_order *o = &e->engine_loop.order;

	return worker_map(w, o->memory_fd, o->map_size, e->is_first, &e->memory);
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

static bool broadcast_greet(struct worker *w)
{
	struct engine *e = w->e;
	const struct cuda_driver *d = e->gpu.driver;
	struct pinned *pinned = w->pinned;
	const cu_ptr at = worker_scratch(w, offsetof(struct pinned, ours));
	void *p = (void *)(uintptr_t)at;

	engine_does(e, "NCCL's greeting");
	if (!digest_order(e, pinned->ours))
		return engine_break(e, false, "no memory to greet the others");
	if (!worker_check(w, d->memcpy_to_device_async(at, pinned->ours, sizeof(pinned->ours),
						       e->gpu.stream)) ||
	    !worker_settle(w, e->nccl.broadcast(p, p, sizeof(pinned->ours), NCCL_UINT8, 0, w->comm,
						e->gpu.stream)) ||
	    !worker_check(w, d->memcpy_to_host_async(pinned->theirs, at, sizeof(pinned->theirs),
						     e->gpu.stream)) ||
	    !worker_flush(w))
		return false;
	if (memcmp(pinned->ours, pinned->theirs, sizeof(pinned->ours)) != 0)
		return engine_break(e, true,
				    "the source is in another sync or epoch, or sends other ranges");
	return true;
}

static bool broadcast_has_more(const struct worker *w)
{
	return queued.at < w->e->total;
}

static bool broadcast_queue(struct worker *w)
{
	struct engine *e = w->e;
	const uint64_t before = queued.at;
	uint64_t room = e->engine_loop.order.chunk, n, offset;

	while (room > 0 && (n = cursor_piece(&queued, room, &offset)) > 0) {
		void *p = (void *)(uintptr_t)(e->memory + offset);

		/* In place: the source's memory is only read. */
		if (!worker_settle(w, e->nccl.broadcast(p, p, n, NCCL_UINT8, 0, w->comm,
							e->gpu.stream)))
			return false;
		cursor_advance(&queued, n);
		room -= n;
	}
	return worker_end_bucket(w, queued.at - before, queued.at - before);
}

const struct operation broadcast_operation = {
	.doing = "NCCL's broadcast",
	.is_limited_by_source = true,
	.open = broadcast_open,
	.opened = broadcast_opened,
	.start = broadcast_start,
	.done = broadcast_done,
	.prepare = broadcast_prepare,
	.greet = broadcast_greet,
	.has_more = broadcast_has_more,
	.queue = broadcast_queue,
};
