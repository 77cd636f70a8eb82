/*
 * Collectives on windows
 *
 * Small ones go through the stage: a rank copies its data there, one barrier, and each takes what it needs. The stage has
 * two halves for even and odd barriers: a rank that entered barrier e + 1 has read all that was handed over in e.
 *
 * Large ones work in place: a barrier, after which each rank does the part that it owns for all (sums it once and writes
 * it to every range; or copies it to every range), and a barrier. So each byte is read once from memory, not once
 * for each rank.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ipc/base/num.h"
#include "libclient/train/engine/window.h"
#include "libclient/train/plan/sentence.h"

#define CUT 32 /* elements */
#define BLOCK                                                                                      \
	((uint64_t)32 << 10) /* bytes that are copied to several places while they are cached */
/*
 * Measured, with ranges that are written before and read after. Sums are in place: their outputs are in the cache, from
 * where a non-temporal store would have to evict them first (1.5 to 3 times as long). Copies of less find readers in time.
 */
#define STREAM_MIN (4 * MIB) /* of all ranges */
#define STAGED_SPINNING ((uint64_t)1 << 10) /* a barrier of 0.1 us is cheaper than the detour */
#define STAGED_SUM_SLEEPING ((uint64_t)32 << 10) /* on the stage, each rank sums all */
#define STAGED_COPY_SLEEPING ((uint64_t)WINDOW_STAGE)

/* A collective on bytes [offset, offset + size) of each range. */
struct collective {
	struct weightd_window *win;
	enum weightd_dtype dtype;
	uint64_t offset, size;
	uint64_t cuts[WEIGHTD_RANKS_MAX + 1]; /* bytes from offset on */
	bool streams; /* copies by non-temporal stores */
};

static bool fits_stage(const struct collective *c, uint64_t max_sleeping)
{
	return c->size <= (c->win->place.spins ? STAGED_SPINNING : max_sleeping);
}

static int collective_init(struct collective *c, struct weightd_window *win, uint64_t offset,
			   uint64_t size, uint64_t element_size)
{
	int r = window_check(win);
	uint64_t end;

	if (r < 0)
		return r;
	*c = (struct collective){.win = win, .offset = offset, .size = size};
	if (offset % WINDOW_LINE != 0)
		return train_fail(-EINVAL, "offset %" PRIu64 " in a window is no multiple of %d",
				  offset, WINDOW_LINE);
	if (__builtin_add_overflow(offset, size, &end) || end > win->size)
		return train_fail(-EINVAL,
				  "%" PRIu64 " bytes from offset %" PRIu64
				  " on do not fit into a window of "
				  "%" PRIu64 " bytes; open a larger one",
				  size, offset, win->size);
	(void)weightd_cuts((size + element_size - 1) / element_size, CUT, win->n_ranks, c->cuts);
	for (uint32_t i = 0; i <= win->n_ranks; i++) {
		c->cuts[i] *= element_size;
		c->cuts[i] = c->cuts[i] < size ? c->cuts[i] : size;
	}
	c->streams = size >= STREAM_MIN / win->n_ranks;
	return 0;
}

/* Likewise, of elements that are fp32 or bf16. */
static int collective_init_typed(struct collective *c, struct weightd_window *win, uint64_t offset,
				 uint64_t n, enum weightd_dtype dtype)
{
	uint64_t element_size = dtype == WEIGHTD_F32 ? 4 : 2, size;
	int r;

	if (dtype != WEIGHTD_F32 && dtype != WEIGHTD_BF16)
		return train_fail(-EOPNOTSUPP,
				  "collectives are for fp32 and bf16 (WEIGHTD_F32, WEIGHTD_BF16)");
	if (__builtin_mul_overflow(n, element_size, &size))
		return train_fail(-EINVAL,
				  "%" PRIu64 " elements of %" PRIu64
				  " bytes do not fit into a window",
				  n, element_size);
	r = collective_init(c, win, offset, size, element_size);
	c->dtype = dtype;
	return r;
}

static uint8_t *collective_at(const struct collective *c, uint32_t rank, uint64_t at)
{
	return window_range(c->win, rank) + c->offset + at;
}

static uint8_t *stage_at(const struct collective *c, uint32_t rank, uint64_t at)
{
	return window_stage(c->win, rank, c->win->epoch) + at;
}

/* Hands bytes over to the barrier that comes next, which the caller of stage_at() has entered. */
static int stage_hand_over(const struct collective *c, uint64_t at, uint64_t size)
{
	struct weightd_window *win = c->win;

	memcpy(window_stage(win, win->rank, win->epoch + 1) + at, collective_at(c, win->rank, at),
	       size);
	return weightd_window_barrier(win);
}

/* --- Sums --------------------------------------------------------------------------------------- */

/* Whole cache lines. */
static void sum_lines(const struct collective *c, const uint8_t *const *from, uint8_t *const *to,
		      uint32_t n_to, uint64_t size)
{
	const struct kernels *k = c->win->kernels;
	struct kernel_grads grads = {.grads = (const void *const *)from,
				     .n = c->win->n_ranks,
				     .scale = 1};

	if (c->dtype == WEIGHTD_F32)
		k->sum((float *const *)to, n_to, &grads, size / 4, false);
	else
		k->sum_bf16((uint16_t *const *)to, n_to, (const uint16_t *const *)from,
			    c->win->n_ranks, size / 2, false);
}

/* The last bytes of a sum have company in their line that is not ours: they are summed beside it. */
static void sum_tail(const struct collective *c, const uint8_t *const *from, uint8_t *const *to,
		     uint32_t n_to, uint64_t size)
{
	alignas(WINDOW_LINE) uint8_t lines[WEIGHTD_RANKS_MAX][WINDOW_LINE];
	alignas(WINDOW_LINE) uint8_t sum[WINDOW_LINE];
	const uint8_t *sources[WEIGHTD_RANKS_MAX];

	for (uint32_t i = 0; i < c->win->n_ranks; i++) {
		memset(lines[i], 0, WINDOW_LINE);
		memcpy(lines[i], from[i], size);
		sources[i] = lines[i];
	}
	sum_lines(c, sources, (uint8_t *[]){sum}, 1, WINDOW_LINE);
	for (uint32_t i = 0; i < n_to; i++)
		memcpy(to[i], sum, size);
}

/* Sums bytes of all ranks, in their order; places advance by what was summed. */
static void collective_sum(const struct collective *c, const uint8_t **from, uint8_t **to,
			   uint32_t n_to, uint64_t size)
{
	uint64_t lines = size / WINDOW_LINE * WINDOW_LINE;

	if (lines)
		sum_lines(c, from, to, n_to, lines);
	if (lines == size)
		return;
	for (uint32_t i = 0; i < c->win->n_ranks; i++)
		from[i] += lines;
	for (uint32_t i = 0; i < n_to; i++)
		to[i] += lines;
	sum_tail(c, from, to, n_to, size - lines);
}

/* Bytes [begin, end) of all stages, into this rank's range. */
static int reduce_staged(struct collective *c, uint64_t begin, uint64_t end)
{
	const uint8_t *from[WEIGHTD_RANKS_MAX];
	uint8_t *to[] = {collective_at(c, c->win->rank, begin)};
	int r = stage_hand_over(c, 0, c->size);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < c->win->n_ranks; i++)
		from[i] = stage_at(c, i, begin);
	collective_sum(c, from, to, 1, end - begin);
	return 0;
}

/* This rank's part, from all ranges into the ranges of all, or into its own. */
static int reduce_in_place(struct collective *c, bool to_all)
{
	struct weightd_window *win = c->win;
	uint64_t begin = c->cuts[win->rank], end = c->cuts[win->rank + 1];
	const uint8_t *from[WEIGHTD_RANKS_MAX];
	uint8_t *to[WEIGHTD_RANKS_MAX];
	int r = weightd_window_barrier(win);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < win->n_ranks; i++) {
		from[i] = collective_at(c, i, begin);
		to[i] = collective_at(c, to_all ? i : win->rank, begin);
	}
	collective_sum(c, from, to, to_all ? win->n_ranks : 1, end - begin);
	return weightd_window_barrier(win);
}

int weightd_window_all_reduce(struct weightd_window *win, uint64_t offset, uint64_t n,
			      enum weightd_dtype dtype)
{
	struct collective c;
	int r = collective_init_typed(&c, win, offset, n, dtype);

	if (r < 0)
		return r;
	return fits_stage(&c, STAGED_SUM_SLEEPING) ? reduce_staged(&c, 0, c.size)
						   : reduce_in_place(&c, true);
}

int weightd_window_reduce_scatter(struct weightd_window *win, uint64_t offset, uint64_t n,
				  enum weightd_dtype dtype)
{
	struct collective c;
	int r = collective_init_typed(&c, win, offset, n, dtype);

	if (r < 0)
		return r;
	return fits_stage(&c, STAGED_SUM_SLEEPING)
		       ? reduce_staged(&c, c.cuts[win->rank], c.cuts[win->rank + 1])
		       : reduce_in_place(&c, false);
}

/* --- Copies ------------------------------------------------------------------------------------- */

static void copy_bytes(const struct collective *c, uint8_t *to, const uint8_t *from, uint64_t size)
{
	uint64_t lines = (uintptr_t)to % WINDOW_LINE ? 0 : size / WINDOW_LINE * WINDOW_LINE;

	if (lines)
		c->win->kernels->copy(to, from, lines, c->streams);
	memcpy(to + lines, from + lines, size - lines);
}

/* Copies bytes of the range of `source` to the same place in all others. */
static void copy_to_all(const struct collective *c, uint32_t source, uint64_t begin, uint64_t end)
{
	for (uint64_t at = begin; at < end; at += BLOCK) {
		uint64_t size = end - at < BLOCK ? end - at : BLOCK;

		for (uint32_t i = 1; i < c->win->n_ranks; i++)
			copy_bytes(c, collective_at(c, (source + i) % c->win->n_ranks, at),
				   collective_at(c, source, at), size);
	}
}

static int gather_staged(struct collective *c, uint8_t *to)
{
	struct weightd_window *win = c->win;
	uint64_t begin = c->cuts[win->rank];
	int r = stage_hand_over(c, begin, c->cuts[win->rank + 1] - begin);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < win->n_ranks; i++)
		memcpy(to + c->cuts[i], stage_at(c, i, c->cuts[i]), c->cuts[i + 1] - c->cuts[i]);
	return 0;
}

/* Parts of all ranges, from the own one on, so that ranks do not read the same memory. */
static int gather_out(struct collective *c, uint8_t *to)
{
	struct weightd_window *win = c->win;
	int r = weightd_window_barrier(win);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < win->n_ranks; i++) {
		uint32_t source = (win->rank + i) % win->n_ranks;
		uint64_t begin = c->cuts[source];

		copy_bytes(c, to + begin, collective_at(c, source, begin),
			   c->cuts[source + 1] - begin);
	}
	kernels_fence();
	return weightd_window_barrier(win);
}

static int gather_in_place(struct collective *c)
{
	struct weightd_window *win = c->win;
	int r = weightd_window_barrier(win);

	if (r < 0)
		return r;
	copy_to_all(c, win->rank, c->cuts[win->rank], c->cuts[win->rank + 1]);
	kernels_fence();
	return weightd_window_barrier(win);
}

int weightd_window_all_gather(struct weightd_window *win, uint64_t offset, uint64_t n,
			      enum weightd_dtype dtype, void *to)
{
	struct collective c;
	int r = collective_init_typed(&c, win, offset, n, dtype);

	if (r < 0)
		return r;
	if (fits_stage(&c, STAGED_COPY_SLEEPING))
		return gather_staged(&c, to ? to : collective_at(&c, win->rank, 0));
	return to ? gather_out(&c, to) : gather_in_place(&c);
}

static int broadcast_staged(struct collective *c, uint32_t root)
{
	struct weightd_window *win = c->win;
	int r = stage_hand_over(c, 0, win->rank == root ? c->size : 0);

	if (r == 0 && win->rank != root)
		memcpy(collective_at(c, win->rank, 0), stage_at(c, root, 0), c->size);
	return r;
}

/* Each rank copies a part of the root's range to all. */
static int broadcast_in_place(struct collective *c, uint32_t root)
{
	struct weightd_window *win = c->win;
	int r;

	r = weightd_window_barrier(win);
	if (r < 0)
		return r;
	copy_to_all(c, root, c->cuts[win->rank], c->cuts[win->rank + 1]);
	kernels_fence();
	return weightd_window_barrier(win);
}

int weightd_window_broadcast(struct weightd_window *win, uint64_t offset, uint64_t n_bytes,
			     uint32_t root)
{
	struct collective c;
	int r = collective_init(&c, win, offset, n_bytes, 2);

	if (r < 0)
		return r;
	if (root >= win->n_ranks)
		return train_fail(-EINVAL, "there is no rank %u: the window has %u ranks", root,
				  win->n_ranks);
	return fits_stage(&c, STAGED_COPY_SLEEPING) ? broadcast_staged(&c, root)
						    : broadcast_in_place(&c, root);
}
