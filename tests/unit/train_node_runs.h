/*
 * Runs of several nodes
 *
 * All ranks of a setup, killed or not, and the bits that they must leave: those of a plain loop.
 */
#pragma once

#include <poll.h>
#include <sys/pidfd.h>

#include "tests/unit/train_node_jobs.h"

/* --- Nodes -------------------------------------------------------------------------------------------- */

static bool has_pairs; /* or Gloo */

static inline int node_main(uint32_t rank, void *data)
{
	return node_run(data, rank, data, has_pairs, rank_main);
}

static inline void expect_result(const struct setup *setup, const struct union_result *ours,
				 const struct result *plain)
{
	assert_int_equal(ours->n_elements, plain->n_elements);
	floats_compare("parameter", ours->value, plain->values, plain->n_elements);
	floats_compare("first moment", ours->m, plain->m, plain->n_elements);
	floats_compare("second moment", ours->v, plain->v, plain->n_elements);
	for (uint32_t node = 0; node < setup->n_nodes; node++)
		if (ours->params[node])
			assert_memory_equal(ours->params[node], plain->param,
					    plain->n_elements * (setup->dtype ? 2 : 4));
}

static inline void expect_plain(const struct setup *setup, const struct union_result *ours)
{
	struct result plain = oracle_run(setup);

	expect_result(setup, ours, &plain);
	for (uint64_t step = 0; step <= N_STEPS; step++) {
		assert_true(ours->scales.scales[step] == plain.scales.scales[step]);
		assert_int_equal(ours->scales.overflowed[step], plain.scales.overflowed[step]);
	}
	result_free(&plain);
}

static inline struct union_result nodes_run(const struct setup *setup)
{
	pid_t pids[RANKS_MAX];

	nodes_start(setup);
	for (uint32_t rank = 0; rank < setup->n_ranks; rank++)
		pids[rank] = train_job_fork(node_main, rank, (void *)setup);
	for (uint32_t rank = 0; rank < setup->n_ranks; rank++)
		assert_int_equal(train_job_join(pids[rank]), 0);
	return nodes_stop(setup);
}

static inline void expect_bits(const struct setup *setup)
{
	struct union_result ours = nodes_run(setup);

	expect_plain(setup, &ours);
	union_free(&ours);
}

/* Nodes, and ranks of all of them. */
static const struct setup shapes[] = {
	{.n_nodes = 2, .n_ranks = 2},
	{.n_nodes = 3, .n_ranks = 3},
	{.n_nodes = 4, .n_ranks = 4},
	{.n_nodes = 2, .n_ranks = 4},
};

static inline struct setup kind_in_shape(const struct setup *kind, const struct setup *shape)
{
	struct setup setup = *kind;

	setup.n_nodes = shape->n_nodes;
	setup.n_ranks = shape->n_ranks;
	return setup;
}

/* --- Kills -------------------------------------------------------------------------------------------- */

struct lives {
	pid_t pids[RANKS_MAX]; /* 0: done */
	int fds[RANKS_MAX];
	uint32_t n_done;
	unsigned n_kills;
};

static inline void rank_start(struct lives *l, const struct setup *setup, uint32_t rank)
{
	l->pids[rank] = train_job_fork(node_main, rank, (void *)setup);
	l->fds[rank] = pidfd_open(l->pids[rank], 0);
	assert_true(l->fds[rank] >= 0);
}

/* A rank is done, and has been waited for. */
static inline void rank_end(struct lives *l, uint32_t rank)
{
	close(l->fds[rank]);
	l->fds[rank] = -1;
	l->pids[rank] = 0;
	l->n_done++;
}

/* Waits for the end of a rank, which was killed or is done; starts it anew if it was killed. */
static inline void rank_reap(struct lives *l, const struct setup *setup, uint32_t rank)
{
	int status = train_job_join(l->pids[rank]);

	if (status == 128 + SIGKILL) {
		l->n_kills++;
		close(l->fds[rank]);
		rank_start(l, setup, rank);
		return;
	}
	assert_int_equal(status, 0);
	rank_end(l, rank);
}

/* Waits for the first rank that ends, or the time. */
static inline void ranks_wait(struct lives *l, const struct setup *setup, int64_t ns)
{
	struct pollfd fds[RANKS_MAX];
	struct timespec time = {.tv_nsec = ns};

	for (uint32_t i = 0; i < setup->n_ranks; i++)
		fds[i] = (struct pollfd){.fd = l->fds[i], .events = POLLIN};
	(void)ppoll(fds, setup->n_ranks, &time, NULL);
	for (uint32_t i = 0; i < setup->n_ranks; i++)
		if (fds[i].revents)
			rank_reap(l, setup, i);
}

enum victims {
	VICTIM_NODE = 2, /* below: a rank */
	VICTIM_ALL,
	VICTIMS
};

/* Kills a rank, all of a node, or all, at random moments, `n_kills` times or until all are done. */
static inline struct union_result run_killed(const struct setup *setup, unsigned n_kills,
					     unsigned seed)
{
	struct lives l = {.n_done = 0};
	uint32_t n = ranks_of(setup);

	srand(seed);
	nodes_start(setup);
	for (uint32_t rank = 0; rank < setup->n_ranks; rank++)
		rank_start(&l, setup, rank);
	while (l.n_done < setup->n_ranks) {
		int victims = rand() % VICTIMS;
		uint32_t victim = (uint32_t)rand() % setup->n_ranks;

		ranks_wait(&l, setup, l.n_kills < n_kills ? 1000000 + rand() % 19000000 : 999999999);
		for (uint32_t rank = 0; l.n_kills < n_kills && rank < setup->n_ranks; rank++)
			if (l.pids[rank] && (victims == VICTIM_ALL || rank == victim ||
					     (victims == VICTIM_NODE && rank / n == victim / n)))
				kill(l.pids[rank], SIGKILL);
	}
	print_message("%u kills\n", l.n_kills);
	return nodes_stop(setup);
}

/* $WEIGHTD_KILLS asks for more kills, or for fewer. */
static inline unsigned kills_wanted(unsigned usual)
{
	const char *wanted = getenv("WEIGHTD_KILLS");

	return wanted ? (unsigned)atoi(wanted) : usual;
}
