/*
 * Into a GPU: each reading thread has two buffers of pinned memory, and reads to one while the other is
 * copied. When all are there, the GPU digests what has arrived, and that has to be what was read.
 *
 * All of it happens in the primary context, whatever is current in the calling thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "ipc/base/cleanup.h"
#include "ipc/digest.h"
#include "libclient/cuda/cuda.h"
#include "libclient/load/sink.h"

#define STRETCH_LEAVES 2u
#define STRETCH_SIZE (STRETCH_LEAVES * DIGEST_LEAF_SIZE)
#define VERIFY_LEAVES 16384u /* at a time: some milliseconds */

struct bounce {
	char *data; /* pinned */
	cu_event copied; /* NULL: there is none yet */
};

/* A thread's own. */
struct lane {
	struct bounce bounces[2];
	unsigned turn;
};

struct ring {
	const struct place *place;
	cu_stream stream; /* our own: independent of all other streams */
	char *pinned;
	unsigned n_lanes;
	struct lane lanes[];
};

static int make_ring(struct ring *ring, struct sentence *s)
{
	const struct cuda_driver *d = ring->place->driver;
	const size_t size = (size_t)ring->n_lanes * 2 * STRETCH_SIZE;
	void *pinned;
	cu_result result = d->mem_host_alloc(&pinned, size, CU_HOST_ALLOC_PORTABLE);

	if (result) {
		int r = gpu_error(d, result, "the driver", s);

		return sentence_set(s, r,
				    "%zu MiB of host memory to copy from cannot be pinned (%.200s); "
				    "fewer threads need less",
				    size >> 20, s->text);
	}
	ring->pinned = pinned;
	result = d->stream_create(&ring->stream, CU_STREAM_NON_BLOCKING);
	for (unsigned i = 0; result == CU_OK && i < 2 * ring->n_lanes; i++) {
		struct bounce *bounce = &ring->lanes[i / 2].bounces[i % 2];

		bounce->data = ring->pinned + i * STRETCH_SIZE;
		result = d->event_create(&bounce->copied,
					 CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
	}
	return result ? gpu_error(d, result, "the GPU accepts no copies", s) : 0;
}

static int cuda_open(struct sink *k, unsigned n_threads, struct sentence *s)
{
	const struct cuda_state *state = k->wr->memory.state;
	struct ring *ring = calloc(1, sizeof(*ring) + n_threads * sizeof(*ring->lanes));
	cleanup(place_leave) struct visit visit = {0};
	int r;

	if (!ring)
		return sentence_set(s, -ENOMEM, "out of memory");
	ring->place = &state->place;
	ring->n_lanes = n_threads;
	k->state = ring;
	r = place_enter_primary(ring->place, &visit, s);
	/* A model without a byte needs no reading threads. */
	return r < 0 || n_threads == 0 ? r : make_ring(ring, s);
}

static int copies_failed(const struct ring *ring, cu_result result, struct sentence *s)
{
	return gpu_error(ring->place->driver, result, "the copy to the GPU has failed", s);
}

static int cuda_begin(struct sink *k, unsigned thread, uint64_t leaf, char **ret, struct sentence *s)
{
	struct ring *ring = k->state;
	struct lane *lane = &ring->lanes[thread];
	struct bounce *bounce = &lane->bounces[lane->turn];
	cleanup(place_leave) struct visit visit = {0};
	int r = place_enter_primary(ring->place, &visit, s);
	cu_result result;

	(void)leaf;
	if (r < 0)
		return r;
	/* At once for an event that was never recorded. */
	result = ring->place->driver->event_synchronize(bounce->copied);
	if (result)
		return copies_failed(ring, result, s);
	*ret = bounce->data;
	return 0;
}

static int cuda_end(struct sink *k, unsigned thread, uint64_t leaf, uint64_t size,
		    struct sentence *s)
{
	struct ring *ring = k->state;
	const struct cuda_driver *d = ring->place->driver;
	struct lane *lane = &ring->lanes[thread];
	struct bounce *bounce = &lane->bounces[lane->turn];
	cu_ptr to = (cu_ptr)(uintptr_t)k->wr->memory.data + leaf * DIGEST_LEAF_SIZE;
	cleanup(place_leave) struct visit visit = {0};
	int r = place_enter_primary(ring->place, &visit, s);
	cu_result result;

	if (r < 0)
		return r;
	result = d->memcpy_to_device_async(to, bounce->data, size, ring->stream);
	if (result == CU_OK)
		result = d->event_record(bounce->copied, ring->stream);
	lane->turn ^= 1;
	return result ? copies_failed(ring, result, s) : 0;
}

/* Waits for all copies, including those of threads that have ended. */
static int wait_for_copies(struct ring *ring, struct sentence *s)
{
	cleanup(place_leave) struct visit visit = {0};
	int r = place_enter_primary(ring->place, &visit, s);
	cu_result result = CU_OK;

	if (r < 0)
		return r;
	for (unsigned i = 0; result == CU_OK && i < 2 * ring->n_lanes; i++)
		result = ring->place->driver->event_synchronize(
			ring->lanes[i / 2].bounces[i % 2].copied);
	return result ? copies_failed(ring, result, s) : 0;
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

static int cuda_finish(struct sink *k, struct progress *progress, struct sentence *s)
{
	const struct weightd_writer *wr = k->wr;
	int r = wait_for_copies(k->state, s);

	for (uint64_t i = 0; r == 0 && i < wr->n_leaves; i += VERIFY_LEAVES) {
		uint64_t n = wr->n_leaves - i < VERIFY_LEAVES ? wr->n_leaves - i : VERIFY_LEAVES;

		r = progress_report(progress, "verify", i * DIGEST_LEAF_SIZE, wr->data_size);
		r = r < 0 ? sentence_set(s, r, "the load was cancelled") : verify_part(wr, i, n, s);
	}
	if (r == 0 && progress_report(progress, "verify", wr->data_size, wr->data_size) < 0)
		r = sentence_set(s, -ECANCELED, "the load was cancelled");
	return r;
}

static void free_ring(struct ring *ring)
{
	const struct cuda_driver *d = ring->place->driver;

	/* Copies read the pinned memory: they have to be over, or given up by the driver. */
	if (ring->stream) {
		(void)d->stream_synchronize(ring->stream);
		(void)d->stream_destroy(ring->stream);
	}
	for (unsigned i = 0; i < 2 * ring->n_lanes; i++)
		if (ring->lanes[i / 2].bounces[i % 2].copied)
			(void)d->event_destroy(ring->lanes[i / 2].bounces[i % 2].copied);
	if (ring->pinned)
		(void)d->mem_host_free(ring->pinned);
}

static void cuda_close(struct sink *k)
{
	struct ring *ring = k->state;
	struct visit visit = {0};
	struct sentence ignored; /* the first failure has set the sentence */

	if (!ring)
		return;
	if (place_enter_primary(ring->place, &visit, &ignored) == 0)
		free_ring(ring);
	place_leave(&visit);
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
