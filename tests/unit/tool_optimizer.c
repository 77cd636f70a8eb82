/*
 * The optimizer of libweightd-train on plain files, for tests/integration/train/test_adamw_bits.py
 *
 * tool_optimizer NAME N RANKS STEPS LR WEIGHT_DECAY BETA1 BETA2 EPS MOMENTUM NESTEROV TYPE. Reads N parameters, floats, then
 * STEPS times RANKS gradients of N elements of TYPE (f32, bf16, f16) from standard input; writes the parameters and two
 * moments after each step to standard output, and behind them, unless TYPE is f32, the parameters rounded to it.
 * $WEIGHTD_TRAIN_ISA chooses the kernels.
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
static alignas(64) uint16_t rounded[N_MAX];

static void elements_read(void *to, size_t size, size_t n)
{
	if (fread(to, size, n, stdin) != n) {
		fprintf(stderr, "tool_optimizer: the input ends early\n");
		exit(1);
	}
}

static void elements_write(const void *from, size_t size, size_t n)
{
	if (fwrite(from, size, n, stdout) != n) {
		fprintf(stderr, "tool_optimizer: the output failed\n");
		exit(1);
	}
}

static enum weightd_optimizer optimizer_of(const char *name)
{
	return !strcmp(name, "adamw")  ? WEIGHTD_ADAMW
	       : !strcmp(name, "adam") ? WEIGHTD_ADAM
				       : WEIGHTD_SGD;
}

static enum kernel_type type_of(const char *name)
{
	return !strcmp(name, "bf16") ? KERNEL_BF16 : !strcmp(name, "f16") ? KERNEL_F16 : KERNEL_F32;
}

int main(int argc, char *argv[])
{
	if (argc != 13) {
		fprintf(stderr,
			"usage: %s NAME N RANKS STEPS LR WEIGHT_DECAY BETA1 BETA2 EPS MOMENTUM "
			"NESTEROV TYPE\n",
			argv[0]);
		return 2;
	}
	size_t n = strtoul(argv[2], NULL, 10), n_steps = strtoul(argv[4], NULL, 10);
	uint32_t n_ranks = (uint32_t)strtoul(argv[3], NULL, 10);
	double lr = strtod(argv[5], NULL);
	enum kernel_type type = type_of(argv[12]);
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
				 .new_v = state[2],
				 .new_rounded = type == KERNEL_F32 ? NULL : rounded,
				 .rounded_type = type};

	if (n > N_MAX || n_ranks > RANKS_MAX)
		return 2;
	elements_read(state[0], sizeof(float), n);
	for (size_t step = 1; step <= n_steps; step++) {
		struct journal_step journal = {.grad_type = type};

		for (uint32_t rank = 0; rank < n_ranks; rank++) {
			elements_read(grads[rank], kernel_type_size(type), n);
			journal.grads[rank] = grads[rank];
		}
		optimizer_begin(&journal, &plan, &lr, step);
		optimizer_weigh(&journal, (const double[RANKS_MAX]){0}, n_ranks, 0, n_ranks);
		optimizer_run(&journal, 0, 0, &s, n);
		for (size_t i = 0; i < 3; i++)
			elements_write(state[i], sizeof(float), n);
		if (s.new_rounded)
			elements_write(rounded, sizeof(*rounded), n);
	}
	return fclose(stdout) ? 1 : 0;
}
