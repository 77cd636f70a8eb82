/*
 * update RANK RANKS ELEMENTS journal|plain|bf16: a rank whose gradients are ready, for rounds (rounds.h)
 *
 * "bf16" has parameters and gradients of that type, and the journal.
 *
 * "update": reduction, AdamW and commit of one step. "memory": bytes of PARAM, GRAD, MOMENTS, JOURNAL and padding by the plan.
 * "traffic": bytes that this rank read and wrote, and sent on sockets.
 */
#include <string.h>

#include "tests/bench/stopwatch.h"
#include "tests/bench/train/rounds.h"
#include "tests/bench/train/trainer.h"

/* The update itself waits for all. */
static void update_begin(void *context)
{
	(void)context;
}

static void update_run(void *context)
{
	trainer_step(context);
}

static void memory_answer(struct rounds *r, const struct weightd_plan *p)
{
	const uint64_t bytes[] = {weightd_plan_bytes(p, WEIGHTD_KIND_PARAM),
				  weightd_plan_bytes(p, WEIGHTD_KIND_GRAD),
				  weightd_plan_bytes(p, WEIGHTD_KIND_MOMENTS),
				  weightd_plan_bytes(p, WEIGHTD_KIND_JOURNAL),
				  weightd_plan_bytes(p, WEIGHTD_KIND_BUFFER),
				  weightd_plan_padding(p)};

	rounds_answer(r, bytes, sizeof(bytes) / sizeof(*bytes));
}

static void traffic_answer(struct rounds *r, const struct weightd_train *t)
{
	struct weightd_traffic traffic = {.size = sizeof(traffic)};

	if (weightd_train_traffic(t, &traffic) < 0)
		stopwatch_fail("%s", weightd_train_error());
	rounds_answer(r, (const uint64_t[]){traffic.read, traffic.written, traffic.sent}, 3);
}

int main(int argc, char **argv)
{
	struct trainer_options options = {};
	struct rounds rounds;
	struct trainer t;
	struct round round;

	if (argc != 5)
		stopwatch_fail("wants RANK RANKS ELEMENTS journal|plain|bf16");
	options.rank = (uint32_t)stopwatch_number(argv[1]);
	options.n_ranks = (uint32_t)stopwatch_number(argv[2]);
	options.n_elements = stopwatch_number(argv[3]);
	options.without_journal = !strcmp(argv[4], "plain");
	options.is_bf16 = !strcmp(argv[4], "bf16");
	t = trainer_open(&options);
	rounds = rounds_open(options.rank);
	while (rounds_next(&rounds, &round)) {
		if (!strcmp(round.verb, "update"))
			rounds_measure(&rounds, &round, update_begin, update_run, &t);
		else if (!strcmp(round.verb, "memory"))
			memory_answer(&rounds, t.plan);
		else
			traffic_answer(&rounds, t.train);
	}
	(void)weightd_train_close(t.train);
	weightd_train_free(t.train);
	weightd_plan_free(t.plan);
	weightd_close(t.w);
	return 0;
}
