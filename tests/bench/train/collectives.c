/*
 * collectives RANK RANKS BYTES: a rank with a window of so many bytes, for rounds (rounds.h)
 *
 * "all_reduce", "all_reduce_bf16", "reduce_scatter": in place. "all_gather": parts of the ranks, into memory of each rank.
 * "barrier": an all-gather of what all map. "check": 1 if sums are right.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/bench/connection.h"
#include "tests/bench/stopwatch.h"
#include "tests/bench/train/rounds.h"
#include "weightd-train.h"

#define HUGE 2097152

struct collective {
	struct weightd_window *window;
	void *private;
	struct round *round;
	int (*run)(const struct collective *c);
};

static int all_reduce(const struct collective *c)
{
	return weightd_window_all_reduce(c->window, 0, c->round->size / 4, WEIGHTD_F32);
}

static int all_reduce_bf16(const struct collective *c)
{
	return weightd_window_all_reduce(c->window, 0, c->round->size / 2, WEIGHTD_BF16);
}

static int reduce_scatter(const struct collective *c)
{
	return weightd_window_reduce_scatter(c->window, 0, c->round->size / 4, WEIGHTD_F32);
}

static int all_gather(const struct collective *c)
{
	return weightd_window_all_gather(c->window, 0, c->round->size / 4, WEIGHTD_F32, c->private);
}

static int barrier(const struct collective *c)
{
	return weightd_window_barrier(c->window);
}

static const struct {
	const char *verb;
	int (*run)(const struct collective *c);
} verbs[] = {
	{"all_reduce", all_reduce},
	{"all_reduce_bf16", all_reduce_bf16},
	{"reduce_scatter", reduce_scatter},
	{"all_gather", all_gather},
	{"barrier", barrier},
};

static void check(int r)
{
	if (r < 0)
		stopwatch_fail("%s", weightd_train_error());
}

static void collective_begin(void *context)
{
	const struct collective *c = context;

	check(weightd_window_barrier(c->window));
}

static void collective_run(void *context)
{
	const struct collective *c = context;

	check(c->run(c));
}

/* The sum of rank + 1 over all ranks, in the first, the last and the middle element. */
static uint64_t sum_is_right(struct collective *c, uint32_t rank, uint32_t n_ranks)
{
	float *data = weightd_window_data(c->window, rank);
	uint64_t n = c->round->size / 4;
	float want = (float)(n_ranks * (n_ranks + 1)) / 2;
	bool is_right;

	for (uint64_t i = 0; i < n; i++)
		data[i] = (float)(rank + 1);
	check(all_reduce(c));
	is_right = data[0] == want && data[n / 2] == want && data[n - 1] == want;
	check(weightd_window_barrier(c->window));
	memset(data, 0, n * sizeof(float));
	check(weightd_window_barrier(c->window));
	return is_right;
}

static void round_run(struct rounds *rounds, struct collective *c, uint32_t rank, uint32_t n_ranks)
{
	for (size_t i = 0; i < sizeof(verbs) / sizeof(*verbs); i++)
		if (!strcmp(c->round->verb, verbs[i].verb)) {
			c->run = verbs[i].run;
			rounds_measure(rounds, c->round, collective_begin, collective_run, c);
			return;
		}
	rounds_answer(rounds, (const uint64_t[]){sum_is_right(c, rank, n_ranks)}, 1);
}

int main(int argc, char **argv)
{
	struct weightd_train_options options = {.size = sizeof(options), .deadline_ms = 60000};
	struct round round;
	struct collective c = {.round = &round};
	struct rounds rounds;
	struct weightd *w;
	uint32_t n_ranks;
	uint64_t size;

	if (argc != 4)
		stopwatch_fail("wants RANK RANKS BYTES");
	options.rank = (uint32_t)stopwatch_number(argv[1]);
	n_ranks = (uint32_t)stopwatch_number(argv[2]);
	size = stopwatch_number(argv[3]);
	w = connect_anew();
	check(weightd_window_open(w, &options, size, &c.window));
	c.private = aligned_alloc(HUGE, (size + HUGE - 1) / HUGE * HUGE);
	if (!c.private)
		stopwatch_fail("out of memory");
	memset(c.private, 0, size);
	rounds = rounds_open(options.rank);
	while (rounds_next(&rounds, &round))
		round_run(&rounds, &c, options.rank, n_ranks);
	weightd_window_free(c.window);
	weightd_close(w);
	free(c.private);
	return 0;
}
