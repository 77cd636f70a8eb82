/*
 * The optimizer of libweightd-train on plain files, for tests/integration/train/test_adamw_bits.py
 *
 * tool_optimizer NAME N RANKS STEPS LR WEIGHT_DECAY BETA1 BETA2 EPS MOMENTUM NESTEROV. Reads N parameters, then STEPS times
 * RANKS gradients of N elements, from standard input; writes the parameters and two moments after each step to standard
 * output. $WEIGHTD_TRAIN_ISA chooses the kernels.
 */
#include <errno.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/train/optimizer.h"

#define N_MAX 65536
#define RANKS_MAX 8

static alignas(64) float state[3][N_MAX], grads[RANKS_MAX][N_MAX];

static void floats_read(float *to, size_t n)
{
	if (fread(to, sizeof(float), n, stdin) != n) {
		fprintf(stderr, "tool_optimizer: the input ends early\n");
		exit(1);
	}
}

static enum weightd_optimizer optimizer_of(const char *name)
{
	return !strcmp(name, "adamw")  ? WEIGHTD_ADAMW
	       : !strcmp(name, "adam") ? WEIGHTD_ADAM
				       : WEIGHTD_SGD;
}

int main(int argc, char *argv[])
{
	if (argc != 12) {
		fprintf(stderr,
			"usage: %s NAME N RANKS STEPS LR WEIGHT_DECAY BETA1 BETA2 EPS MOMENTUM "
			"NESTEROV\n",
			argv[0]);
		return 2;
	}
	size_t n = strtoul(argv[2], NULL, 10), n_steps = strtoul(argv[4], NULL, 10);
	uint32_t n_ranks = (uint32_t)strtoul(argv[3], NULL, 10);
	double lr = strtod(argv[5], NULL);
	struct weightd_group group = {
		.size = sizeof(group),
		.weight_decay = strtod(argv[6], NULL),
		.beta1 = strtod(argv[7], NULL),
		.beta2 = strtod(argv[8], NULL),
		.eps = strtod(argv[9], NULL),
		.momentum = strtod(argv[10], NULL),
		.nesterov = strtol(argv[11], NULL, 10),
	};
	struct weightd_plan plan = {.optimizer = optimizer_of(argv[1]),
				    .groups = &group,
				    .n_groups = 1};
	struct kernel_state s = {.param = state[0],
				 .m = state[1],
				 .v = state[2],
				 .new_param = state[0],
				 .new_m = state[1],
				 .new_v = state[2]};

	if (n > N_MAX || n_ranks > RANKS_MAX)
		return 2;
	floats_read(state[0], n);
	for (size_t step = 1; step <= n_steps; step++) {
		struct journal_step journal = {};

		for (uint32_t rank = 0; rank < n_ranks; rank++) {
			floats_read(grads[rank], n);
			journal.grads[rank] = grads[rank];
		}
		optimizer_begin(&journal, &plan, &lr, step);
		optimizer_weigh(&journal, (const double[RANKS_MAX]){0}, n_ranks);
		optimizer_run(&journal, 0, 0, &s, n);
		for (size_t i = 0; i < 3; i++)
			if (fwrite(state[i], sizeof(float), n, stdout) != n)
				return 1;
	}
	return fclose(stdout) ? 1 : 0;
}
