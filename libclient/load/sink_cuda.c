/*
 * Into a GPU: each reading thread has two buffers of pinned memory, and reads to one while the other is
 * copied. When all are there, the GPU digests what has arrived, and that has to be what was read.
 *
 * With several GPUs, each copies from the memory of one before it that it reaches, so that the bytes pass a chain; one that
 * reaches none copies from the pinned memory.
 *
 * All of it happens in the primary context, whatever is current in the calling thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/digest.h"
#include "libclient/cuda/cuda.h"
#include "libclient/load/sink.h"

#define STRETCH_LEAVES 2u
#define STRETCH_SIZE (STRETCH_LEAVES * DIGEST_LEAF_SIZE)
#define VERIFY_LEAVES 16384u /* at a time: some milliseconds */

/* A GPU that receives the bytes. */
struct target {
	struct weightd_writer *wr;
	const struct place *place;
	int source; /* the target that it copies from; -1: the pinned memory */
	cu_stream stream; /* our own: independent of all other streams */
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
	char *pinned;
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
	return result ? gpu_error(d, result, "the GPU accepts no copies", s) : 0;
}

/* All GPUs can copy from it. */
static int pin(struct ring *ring, struct sentence *s)
{
	const struct cuda_driver *d = ring->targets[0].place->driver;
	const size_t size = (size_t)ring->n_lanes * 2 * STRETCH_SIZE;
	cleanup(place_leave) struct visit visit = {0};
	void *pinned;
	cu_result result;
	int r = place_enter_primary(ring->targets[0].place, &visit, s);

	if (r < 0)
		return r;
	result = d->mem_host_alloc(&pinned, size, CU_HOST_ALLOC_PORTABLE);
	if (result) {
		r = gpu_error(d, result, "the driver", s);
		return sentence_set(s, r,
				    "%zu MiB of host memory to copy from cannot be pinned (%.200s); "
				    "fewer threads need less",
				    size >> 20, s->text);
	}
	ring->pinned = pinned;
	return 0;
}

static int make_ring(struct ring *ring, struct sentence *s)
{
	int r = pin(ring, s);

	for (unsigned i = 0; r == 0 && i < 2 * ring->n_lanes; i++) {
		bounce_at(ring, i)->data = ring->pinned + i * STRETCH_SIZE;
		bounce_at(ring, i)->copied = ring->events + (size_t)i * ring->n_targets;
	}
	for (unsigned i = 0; r == 0 && i < ring->n_targets; i++)
		r = open_target(ring, i, s);
	return r;
}

static int cuda_open(struct sink *k, unsigned n_threads, struct sentence *s)
{
	const unsigned n_targets = 1 + (unsigned)k->copies->n;
	struct ring *ring = calloc(1, sizeof(*ring) + n_threads * sizeof(*ring->lanes));

	if (!ring)
		return sentence_set(s, -ENOMEM, "out of memory");
	k->state = ring;
	ring->targets = calloc(n_targets, sizeof(*ring->targets));
	ring->events = calloc((size_t)n_targets * 2 * n_threads + 1, sizeof(*ring->events));
	if (!ring->targets || !ring->events)
		return sentence_set(s, -ENOMEM, "out of memory");
	ring->n_targets = n_targets;
	ring->n_lanes = n_threads;
	for (unsigned i = 0; i < n_targets; i++) {
		const struct cuda_state *state = writer_of(k, i)->memory.state;

		ring->targets[i] = (struct target){.wr = writer_of(k, i), .place = &state->place};
	}
	/* A model without a byte needs no reading threads. */
	return n_threads == 0 ? 0 : make_ring(ring, s);
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
	return r;
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

static int verify_part(const struct weightd_writer *wr, uint64_t first, uint64_t n,
		       struct sentence *s)
{
	uint64_t bad;
	int r = writer_compare(wr, first, n, &bad, s);

	if (r != -EILSEQ)
		return r < 0 ? sentence_set(s, r, "the bytes on the GPU cannot be digested: %.300s",
					    s->text)
			     : 0;
	return sentence_set(s, r,
			    "the bytes from %" PRIu64 " to %" PRIu64
			    " on the GPU are not those that were read; load again, and check the "
			    "memory of the GPU and of the machine if it happens twice",
			    bad * DIGEST_LEAF_SIZE, (bad + 1) * DIGEST_LEAF_SIZE);
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

static int cuda_finish(struct sink *k, struct progress *progress, struct sentence *s)
{
	struct ring *ring = k->state;
	const uint64_t size = k->wr->data_size, n_leaves = k->wr->n_leaves;
	int r = wait_for_copies(ring, s);

	for (unsigned i = 0; r == 0 && i < ring->n_targets; i++) {
		struct weightd_writer *wr = ring->targets[i].wr;

		if (i > 0)
			share_digests(k->wr, wr);
		for (uint64_t at = 0; r == 0 && at < n_leaves; at += VERIFY_LEAVES) {
			uint64_t left = n_leaves - at;

			r = report_verified(progress, i * size + at * DIGEST_LEAF_SIZE,
					    ring->n_targets * size, s);
			if (r == 0)
				r = verify_part(wr, at, left < VERIFY_LEAVES ? left : VERIFY_LEAVES,
						s);
		}
	}
	return r < 0 ? r
		     : report_verified(progress, ring->n_targets * size, ring->n_targets * size, s);
}

/* Copies read pinned memory, and memory of other targets: they have to be over, or given up by the driver. */
static void stop_target(struct ring *ring, unsigned i)
{
	const struct target *t = &ring->targets[i];
	const struct cuda_driver *d = t->place->driver;
	struct visit visit = {0};
	struct sentence ignored; /* the first failure has set the sentence */

	if (t->stream && place_enter_primary(t->place, &visit, &ignored) == 0) {
		(void)d->stream_synchronize(t->stream);
		(void)d->stream_destroy(t->stream);
		for (unsigned j = 0; j < 2 * ring->n_lanes; j++)
			if (bounce_at(ring, j)->copied[i])
				(void)d->event_destroy(bounce_at(ring, j)->copied[i]);
	}
	place_leave(&visit);
}

static void unpin(struct ring *ring)
{
	const struct place *place = ring->targets[0].place;
	struct visit visit = {0};
	struct sentence ignored;

	if (ring->pinned && place_enter_primary(place, &visit, &ignored) == 0)
		(void)place->driver->mem_host_free(ring->pinned);
	place_leave(&visit);
}

static void cuda_close(struct sink *k)
{
	struct ring *ring = k->state;

	if (!ring)
		return;
	for (unsigned i = 0; i < ring->n_targets; i++)
		stop_target(ring, i);
	if (ring->n_targets > 0)
		unpin(ring);
	free(ring->targets);
	free(ring->events);
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
