/*
 * Into a GPU: each reading thread has a lane of the pinned staging, two buffers, and reads to one while the other is
 * copied. Meanwhile the GPU digests what has arrived, in another stream, and that has to be what was read.
 *
 * With several GPUs, each copies from the memory of one before it that it reaches, so that the bytes pass a chain; one that
 * reaches none copies from the pinned memory.
 *
 * All of it happens in the primary context, whatever is current in the calling thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/digest.h"
#include "libclient/cuda/cuda.h"
#include "libclient/cuda/staging.h"
#include "libclient/load/sink.h"

#define STRETCH_LEAVES 2u
#define STRETCH_SIZE (STRETCH_LEAVES * DIGEST_LEAF_SIZE)
_Static_assert(2 * STRETCH_SIZE == STAGING_LANE_SIZE, "two bounces a lane");
#define VERIFY_LEAVES 16384u /* at a time: some milliseconds */
#define ARRIVAL_LEAVES 16u /* digested at a time while others are copied */

/* A GPU that receives the bytes. */
struct target {
	struct weightd_writer *wr;
	const struct place *place;
	int source; /* the target that it copies from; -1: the pinned memory */
	cu_stream stream; /* our own: independent of all other streams */
	struct arrival arrival; /* none: its memory is digested at the end */
	cu_event arrived; /* behind the copies of leaves that are digested next */
};

struct bounce {
	char *data; /* pinned */
	cu_event *copied; /* of each target; NULL: there is none yet */
};

/* A thread's own. */
struct lane {
	struct bounce bounces[2];
	unsigned turn;
};

struct ring {
	struct target *targets;
	unsigned n_targets;
	cu_event *events; /* all of the bounces */
	struct staging staging; /* a lane of it for each of ours */
	pthread_mutex_t lock; /* protects the next three */
	bool *is_queued; /* the copies of a stretch are queued */
	uint64_t n_stretches; /* that are queued, from the first one on */
	uint64_t n_digested; /* leaves whose digests are queued */
	unsigned n_lanes;
	struct lane lanes[];
};

static struct weightd_writer *writer_of(const struct sink *k, unsigned i)
{
	return i == 0 ? k->wr : k->copies->list[i - 1];
}

static int find_source(const struct ring *ring, unsigned target)
{
	for (int i = (int)target - 1; i >= 0; i--)
		if (cuda_open_to(&ring->targets[i].wr->memory, ring->targets[target].place))
			return i;
	return -1;
}

static struct bounce *bounce_at(struct ring *ring, unsigned i)
{
	return &ring->lanes[i / 2].bounces[i % 2];
}

static int open_target(struct ring *ring, unsigned i, struct sentence *s)
{
	struct target *t = &ring->targets[i];
	const struct cuda_driver *d = t->place->driver;
	cleanup(place_leave) struct visit visit = {0};
	int r = place_enter_primary(t->place, &visit, s);
	cu_result result;

	if (r < 0)
		return r;
	t->source = find_source(ring, i);
	result = d->stream_create(&t->stream, CU_STREAM_NON_BLOCKING);
	for (unsigned j = 0; result == CU_OK && j < 2 * ring->n_lanes; j++)
		result = d->event_create(&bounce_at(ring, j)->copied[i],
					 CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
	if (result == CU_OK && cuda_arrival_init(&t->arrival, &t->wr->memory, t->wr->data_size))
		result = d->event_create(&t->arrived, CU_EVENT_DISABLE_TIMING);
	return result ? gpu_error(d, result, "the GPU accepts no copies", s) : 0;
}

/* While other loads of this process have all of the staging. */
static int ring_wait(void *userdata, struct sentence *s)
{
	const struct sink *k = userdata;
	int r = progress_report(k->progress, k->phase, 0, k->wr->data_size);

	return r < 0 ? progress_failed(k->progress, s) : 0;
}

static int make_ring(struct sink *k, unsigned *n_threads, struct sentence *s)
{
	struct ring *ring = k->state;
	int r = staging_borrow(&ring->staging, ring->targets[0].place, *n_threads, ring_wait, k, s);

	if (r < 0)
		return r;
	*n_threads = ring->n_lanes = ring->staging.n;
	for (unsigned i = 0; i < 2 * ring->n_lanes; i++) {
		bounce_at(ring, i)->data = staging_data(&ring->staging, i / 2) +
					   i % 2 * STRETCH_SIZE;
		bounce_at(ring, i)->copied = ring->events + (size_t)i * ring->n_targets;
	}
	for (unsigned i = 0; r == 0 && i < ring->n_targets; i++)
		r = open_target(ring, i, s);
	return r;
}

static int cuda_open(struct sink *k, unsigned *n_threads, struct sentence *s)
{
	const unsigned n_targets = 1 + (unsigned)k->copies->n;
	struct ring *ring = calloc(1, sizeof(*ring) + *n_threads * sizeof(*ring->lanes));

	if (!ring)
		return sentence_set(s, -ENOMEM, "out of memory");
	k->state = ring;
	(void)pthread_mutex_init(&ring->lock, NULL);
	ring->targets = calloc(n_targets, sizeof(*ring->targets));
	ring->events = calloc((size_t)n_targets * 2 * *n_threads + 1, sizeof(*ring->events));
	ring->is_queued = calloc(k->wr->n_leaves / STRETCH_LEAVES + 1, sizeof(*ring->is_queued));
	if (!ring->targets || !ring->events || !ring->is_queued)
		return sentence_set(s, -ENOMEM, "out of memory");
	ring->n_targets = n_targets;
	for (unsigned i = 0; i < n_targets; i++) {
		const struct cuda_state *state = writer_of(k, i)->memory.state;

		ring->targets[i] = (struct target){.wr = writer_of(k, i), .place = &state->place};
	}
	k->node = gpu_numa_node(ring->targets[0].place->driver, ring->targets[0].place->device);
	/* A model without a byte needs no reading threads. */
	return *n_threads == 0 ? 0 : make_ring(k, n_threads, s);
}

static int copy_failed(const struct target *t, cu_result result, struct sentence *s)
{
	return gpu_error(t->place->driver, result, "the copy to the GPU has failed", s);
}

/* At once for an event that was never recorded. */
static int await_copy(const struct target *t, cu_event copied, struct sentence *s)
{
	cleanup(place_leave) struct visit visit = {0};
	int r = place_enter_primary(t->place, &visit, s);
	cu_result result;

	if (r < 0)
		return r;
	result = t->place->driver->event_synchronize(copied);
	return result ? copy_failed(t, result, s) : 0;
}

static int cuda_begin(struct sink *k, unsigned thread, uint64_t leaf, char **ret, struct sentence *s)
{
	struct ring *ring = k->state;
	struct lane *lane = &ring->lanes[thread];
	struct bounce *bounce = &lane->bounces[lane->turn];
	int r = 0;

	(void)leaf;
	for (unsigned i = 0; r == 0 && i < ring->n_targets; i++)
		if (ring->targets[i].source < 0)
			r = await_copy(&ring->targets[i], bounce->copied[i], s);
	if (r == 0)
		*ret = bounce->data;
	return r;
}

static cu_ptr address_of(const struct target *t, uint64_t leaf)
{
	return (cu_ptr)(uintptr_t)t->wr->memory.data + leaf * DIGEST_LEAF_SIZE;
}

/* Queues the copy to one of the targets, behind that to its source. */
static int copy_to(const struct ring *ring, unsigned target, const struct bounce *bounce,
		   uint64_t leaf, uint64_t size, struct sentence *s)
{
	const struct target *t = &ring->targets[target];
	const struct cuda_driver *d = t->place->driver;
	cleanup(place_leave) struct visit visit = {0};
	int r = place_enter_primary(t->place, &visit, s);
	cu_result result;

	if (r < 0)
		return r;
	if (t->source < 0) {
		result = d->memcpy_to_device_async(address_of(t, leaf), bounce->data, size,
						   t->stream);
	} else {
		result = d->stream_wait_event(t->stream, bounce->copied[t->source], 0);
		if (result == CU_OK)
			result = d->memcpy_on_device_async(
				address_of(t, leaf), address_of(&ring->targets[t->source], leaf),
				size, t->stream);
	}
	if (result == CU_OK)
		result = d->event_record(bounce->copied[target], t->stream);
	return result ? copy_failed(t, result, s) : 0;
}

/* Queues the digests of leaves up to `end`, whose copies are queued. With the lock. */
static int digest_to(struct ring *ring, uint64_t end, struct sentence *s)
{
	const uint64_t first = ring->n_digested;
	int r = 0;

	for (unsigned i = 0; r == 0 && i < ring->n_targets; i++) {
		struct target *t = &ring->targets[i];
		const struct cuda_driver *d = t->place->driver;
		cleanup(place_leave) struct visit visit = {0};
		cu_result result;

		if (!t->arrival.m)
			continue;
		r = place_enter_primary(t->place, &visit, s);
		if (r < 0)
			break;
		result = d->event_record(t->arrived, t->stream);
		r = result ? copy_failed(t, result, s)
			   : cuda_arrival_queue(&t->arrival, first, end - first, t->arrived, s);
	}
	ring->n_digested = end;
	return r;
}

/* Stretches end in any order, and are digested in theirs, some at once. */
static int digest_arrived(struct ring *ring, const struct weightd_writer *wr, uint64_t leaf,
			  struct sentence *s)
{
	uint64_t end;
	int r = 0;

	(void)pthread_mutex_lock(&ring->lock);
	ring->is_queued[leaf / STRETCH_LEAVES] = true;
	while (ring->n_stretches * STRETCH_LEAVES < wr->n_leaves &&
	       ring->is_queued[ring->n_stretches])
		ring->n_stretches++;
	end = ring->n_stretches * STRETCH_LEAVES;
	if (end >= wr->n_leaves)
		end = wr->n_leaves;
	if (end - ring->n_digested >= ARRIVAL_LEAVES ||
	    (end == wr->n_leaves && end > ring->n_digested))
		r = digest_to(ring, end, s);
	(void)pthread_mutex_unlock(&ring->lock);
	return r;
}

static int cuda_end(struct sink *k, unsigned thread, uint64_t leaf, uint64_t size,
		    struct sentence *s)
{
	struct ring *ring = k->state;
	struct lane *lane = &ring->lanes[thread];
	const struct bounce *bounce = &lane->bounces[lane->turn];
	int r = 0;

	for (unsigned i = 0; r == 0 && i < ring->n_targets; i++)
		r = copy_to(ring, i, bounce, leaf, size, s);
	lane->turn ^= 1;
	return r < 0 ? r : digest_arrived(ring, k->wr, leaf, s);
}

/* Waits for all copies, including those of threads that have ended. */
static int wait_for_copies(struct ring *ring, struct sentence *s)
{
	int r = 0;

	for (unsigned i = 0; r == 0 && i < 2 * ring->n_lanes; i++)
		for (unsigned j = 0; r == 0 && j < ring->n_targets; j++)
			r = await_copy(&ring->targets[j], bounce_at(ring, i)->copied[j], s);
	return r;
}

static int verify_failed(uint64_t bad, struct sentence *s)
{
	return sentence_set(s, -EILSEQ,
			    "the bytes from %" PRIu64 " to %" PRIu64
			    " on the GPU are not those that were read; load again, and check the "
			    "memory of the GPU and of the machine if it happens twice",
			    bad * DIGEST_LEAF_SIZE, (bad + 1) * DIGEST_LEAF_SIZE);
}

static int verify_part(const struct weightd_writer *wr, uint64_t first, uint64_t n,
		       struct sentence *s)
{
	uint64_t bad;
	int r = writer_compare(wr, first, n, &bad, s);

	if (r == -EILSEQ)
		return verify_failed(bad, s);
	return r < 0 ? sentence_set(s, r, "the bytes on the GPU cannot be digested: %.300s", s->text)
		     : 0;
}

/* All of it, of which the GPU has made digests. */
static int verify_arrived(struct target *t, struct sentence *s)
{
	const struct weightd_writer *wr = t->wr;
	cleanup(freep) void *found = malloc(wr->n_leaves * HASH_SIZE);
	int r;

	if (!found)
		return sentence_set(s, -ENOMEM, "out of memory");
	r = cuda_arrival_take(&t->arrival, wr->n_leaves, found, s);
	if (r < 0)
		return sentence_set(s, r, "the bytes on the GPU cannot be digested: %.300s",
				    s->text);
	for (uint64_t i = 0; i < wr->n_leaves; i++)
		if (memcmp((char *)found + i * HASH_SIZE, wr->leaves[i], HASH_SIZE) != 0)
			return verify_failed(i, s);
	return 0;
}

/* The digests of what was read are those of each copy. */
static void share_digests(const struct weightd_writer *from, struct weightd_writer *to)
{
	memcpy(to->leaves, from->leaves, from->n_leaves * HASH_SIZE);
	for (uint64_t i = 0; i < from->n_leaves; i++)
		to->leaf_done[i] = from->leaf_done[i];
}

static int report_verified(struct progress *progress, uint64_t done, uint64_t total,
			   struct sentence *s)
{
	int r = progress_report(progress, "verify", done, total);

	return r < 0 ? progress_failed(progress, s) : 0;
}

/* The bytes of one GPU, `before` of all having been verified. */
static int verify_target(struct target *t, struct progress *progress, uint64_t before,
			 uint64_t total, struct sentence *s)
{
	const uint64_t n_leaves = t->wr->n_leaves;
	int r = report_verified(progress, before, total, s);

	if (r == 0 && t->arrival.m)
		return verify_arrived(t, s);
	for (uint64_t at = 0; r == 0 && at < n_leaves; at += VERIFY_LEAVES) {
		uint64_t left = n_leaves - at;

		r = verify_part(t->wr, at, left < VERIFY_LEAVES ? left : VERIFY_LEAVES, s);
		if (r == 0 && left > VERIFY_LEAVES)
			r = report_verified(progress,
					    before + (at + VERIFY_LEAVES) * DIGEST_LEAF_SIZE, total,
					    s);
	}
	return r;
}

static int cuda_finish(struct sink *k, struct sentence *s)
{
	struct ring *ring = k->state;
	struct progress *progress = k->progress;
	const uint64_t size = k->wr->data_size, total = ring->n_targets * size;
	int r = wait_for_copies(ring, s);

	for (unsigned i = 0; r == 0 && i < ring->n_targets; i++) {
		struct target *t = &ring->targets[i];

		if (i > 0)
			share_digests(k->wr, t->wr);
		r = verify_target(t, progress, i * size, total, s);
	}
	return r < 0 ? r : report_verified(progress, total, total, s);
}

/* Copies read pinned memory, and memory of other targets: they have to be over, or given up by the driver. */
static void stop_target(struct ring *ring, unsigned i)
{
	struct target *t = &ring->targets[i];
	const struct cuda_driver *d = t->place->driver;
	struct visit visit = {0};
	struct sentence ignored; /* the first failure has set the sentence */

	cuda_arrival_deinit(&t->arrival);
	if (t->stream && place_enter_primary(t->place, &visit, &ignored) == 0) {
		if (t->arrived)
			(void)d->event_destroy(t->arrived);
		(void)d->stream_synchronize(t->stream);
		(void)d->stream_destroy(t->stream);
		for (unsigned j = 0; j < 2 * ring->n_lanes; j++)
			if (bounce_at(ring, j)->copied[i])
				(void)d->event_destroy(bounce_at(ring, j)->copied[i]);
	}
	place_leave(&visit);
}

static void cuda_close(struct sink *k)
{
	struct ring *ring = k->state;

	if (!ring)
		return;
	for (unsigned i = 0; i < ring->n_targets; i++)
		stop_target(ring, i);
	staging_return(&ring->staging);
	(void)pthread_mutex_destroy(&ring->lock);
	free(ring->targets);
	free(ring->events);
	free(ring->is_queued);
	free(ring);
}

const struct sink_kind sink_cuda = {
	.n_threads = 8,
	.n_leaves = STRETCH_LEAVES,
	.is_used_again = true,
	.open = cuda_open,
	.begin = cuda_begin,
	.end = cuda_end,
	.finish = cuda_finish,
	.close = cuda_close,
};
