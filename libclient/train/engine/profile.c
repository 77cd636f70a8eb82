/*
 * Profiles of collectives, as nccl-tests has them: back to back, after a warm-up. The ranges are zero meanwhile, so that
 * sums neither overflow nor become denormal.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "libclient/train/engine/window.h"
#include "libclient/train/plan/given.h"
#include "libclient/train/plan/sentence.h"

#define N_WARM_UP 5
#define ROUNDS_MIN 7
#define ROUNDS_MAX 50000
#define ROUNDS_NS ((uint64_t)200000000)

/* One collective on `n` elements. */
struct subject {
	struct weightd_window *win;
	uint64_t n, n_bytes;
	enum weightd_dtype dtype;
};

static int run_all_reduce(const struct subject *s)
{
	return weightd_window_all_reduce(s->win, 0, s->n, s->dtype);
}

static int run_reduce_scatter(const struct subject *s)
{
	return weightd_window_reduce_scatter(s->win, 0, s->n, s->dtype);
}

static int run_all_gather(const struct subject *s)
{
	return weightd_window_all_gather(s->win, 0, s->n, s->dtype, NULL);
}

static int run_broadcast(const struct subject *s)
{
	return weightd_window_broadcast(s->win, 0, s->n_bytes, 0);
}

static int run_barrier(const struct subject *s)
{
	return weightd_window_barrier(s->win);
}

static const struct row {
	const char *name;
	int (*run)(const struct subject *s);
	/* Bytes over a link in units of the size: factor * (n - 1) / n, or `whole`. */
	double factor, whole;
} rows[] = {
	[WEIGHTD_ALL_REDUCE] = {"all-reduce", run_all_reduce, 2, 0},
	[WEIGHTD_REDUCE_SCATTER] = {"reduce-scatter", run_reduce_scatter, 1, 0},
	[WEIGHTD_ALL_GATHER] = {"all-gather", run_all_gather, 1, 0},
	[WEIGHTD_BROADCAST] = {"broadcast", run_broadcast, 0, 1},
	[WEIGHTD_BARRIER] = {"barrier", run_barrier, 0, 0},
};

static const struct row *find_row(enum weightd_collective c)
{
	return (unsigned)c < ARRAY_LEN(rows) && rows[c].run ? &rows[c] : NULL;
}

const char *weightd_collective_name(enum weightd_collective c)
{
	return find_row(c) ? find_row(c)->name : NULL;
}

/* Rank 0 decides how many rounds there are, by the time of the warm-up. */
static int warm_up(const struct row *row, const struct subject *s, uint32_t *n_rounds)
{
	struct weightd_window *win = s->win;
	uint64_t begin, took, n;
	int r = weightd_window_barrier(win);

	begin = num_now_ns();
	for (unsigned i = 0; r == 0 && i < N_WARM_UP; i++)
		r = row->run(s);
	took = (num_now_ns() - begin) / N_WARM_UP + 1;
	n = ROUNDS_NS / took;
	n = n < ROUNDS_MIN ? ROUNDS_MIN : n > ROUNDS_MAX ? ROUNDS_MAX : n;
	if (r == 0 && win->rank == 0)
		atomic_store(&window_head(win)->n_rounds, *n_rounds ? *n_rounds : (uint32_t)n);
	if (r == 0)
		r = weightd_window_barrier(win);
	*n_rounds = atomic_load(&window_head(win)->n_rounds);
	return r;
}

static int compare_times(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static double median_ns(uint64_t *times, uint32_t n)
{
	qsort(times, n, sizeof(*times), compare_times);
	return n % 2 ? (double)times[n / 2] : (double)(times[n / 2 - 1] + times[n / 2]) / 2;
}

static int run_rounds(const struct row *row, const struct subject *s, uint32_t n_rounds,
		      struct weightd_profile *p)
{
	cleanup(freep) uint64_t *times = calloc(n_rounds, sizeof(*times));
	uint64_t before = num_now_ns();
	double n = s->win->n_ranks, median;

	if (!times)
		return train_fail(-ENOMEM, "no memory for the times of %u rounds", n_rounds);
	for (uint32_t i = 0; i < n_rounds; i++) {
		int r = row->run(s);
		uint64_t now = num_now_ns();

		if (r < 0)
			return r;
		times[i] = now - before;
		before = now;
	}
	median = median_ns(times, n_rounds);
	p->n_rounds = n_rounds;
	p->median_us = median / 1e3;
	p->min_us = (double)times[0] / 1e3;
	p->algbw = row->factor + row->whole > 0 ? (double)s->n_bytes / (median / 1e9) : 0;
	p->busbw = p->algbw * (row->factor * (n - 1) / n + row->whole);
	return 0;
}

int weightd_window_profile(struct weightd_window *win, enum weightd_collective collective,
			   uint64_t n_bytes, enum weightd_dtype dtype, uint32_t n_rounds,
			   struct weightd_profile *ret)
{
	struct weightd_profile p = {.collective = collective,
				    .n_bytes = n_bytes,
				    .n_ranks = win->n_ranks};
	struct subject s = {.win = win,
			    .n = n_bytes / (dtype == WEIGHTD_F32 ? 4 : 2),
			    .n_bytes = n_bytes,
			    .dtype = dtype};
	const struct row *row = find_row(collective);
	int r;

	if (!row)
		return train_fail(-EINVAL, "there is no collective %d", (int)collective);
	if (n_bytes > win->size || n_bytes % 4 != 0)
		return train_fail(-EINVAL,
				  "cannot measure %" PRIu64 " bytes in a window of %" PRIu64
				  "; ask for less, in "
				  "multiples of 4",
				  n_bytes, win->size);
	r = weightd_window_barrier(win);
	if (r == 0)
		memset(window_range(win, win->rank), 0, n_bytes);
	if (r == 0)
		r = warm_up(row, &s, &n_rounds);
	if (r == 0)
		r = run_rounds(row, &s, n_rounds, &p);
	return r < 0 ? r
		     : given_return(ret, GIVEN_PROFILE_MIN, &p, sizeof(p), "struct weightd_profile");
}
