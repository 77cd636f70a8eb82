/*
 * The cost of many agents, in one process and in virtual time, with their messages as frames:
 * tool_members NODES LOST. Node 0 pushes to all the others; LOST of them die while bytes move, and
 * as many connections break, and two seconds later they are restored. One JSON object on standard
 * output:
 *
 *	members, lost
 *	commit_s		virtual, from the push to its end
 *	converge_s		virtual, from the push until all serve it
 *	messages, bytes		frames of all, from the push until all are notified, without layouts and leaves
 *	cpu_s			real, of all agents and their world meanwhile
 *	coordinator_bytes	heap at rest, without connections: node 0
 *	member_bytes		the same of each other one
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base/num.h"
#include "sim_link.h"

#define S SIM_SECOND
#define STEP (S / 100)
#define RATE (64 * MIB) /* all of the bandwidth: a second */
#define AWAY (2 * S)
#define LONGEST (600 * S)

static double cpu_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static size_t heap(void)
{
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

static bool note_progress(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	bool *moves = s->userdata;

	(void)from, (void)to;
	*moves |= strcmp(json_string_value(json_object_get(message, "type")), "progress") == 0;
	return true;
}

static bool bytes_move(struct sim *s)
{
	return *(bool *)s->userdata;
}

/* Spread evenly, so that the chain breaks in as many places. */
static void lose(struct sim *s, unsigned lost)
{
	unsigned n = s->options.n_nodes, apart = n / (lost + 1);

	for (unsigned i = 1; i <= lost; i++)
		sim_kill(s, i * apart);
	for (unsigned i = 1; i <= lost; i++)
		sim_link_drop(s, 0, i * apart - 1);
	sim_run(s, AWAY);
	for (unsigned i = 1; i <= lost; i++)
		sim_start(s, i * apart);
}

/* The heap of these agents, which are freed. */
static size_t heap_of(struct sim *s, unsigned first, unsigned last)
{
	size_t before = heap();

	for (unsigned i = first; i <= last; i++) {
		s->nodes[i].is_dying = true; /* no messages to others */
		s->nodes[i].agent = agent_free(s->nodes[i].agent);
	}
	return before - heap();
}

static unsigned argument(int argc, char **argv, int i)
{
	unsigned long n = argc > i ? strtoul(argv[i], NULL, 10) : 0;

	return n <= MEMBERS_MAX ? (unsigned)n : 0;
}

int main(int argc, char **argv)
{
	unsigned n = argument(argc, argv, 1), lost = argument(argc, argv, 2);
	uint64_t began, ended, converged;
	bool moves = false;
	char sync[SYNC_ID_SIZE];
	size_t coordinator;
	double cpu;
	struct sim *s;

	if (argc != 3 || n < 2 || lost > n / 3) {
		(void)fprintf(stderr, "tool_members: wants NODES LOST, of which a third at most\n");
		return 2;
	}
	s = sim_new(&(struct sim_options){
		.n_nodes = n, .policy = POLICY_QUORUM, .seed = 1, .as_frames = true});
	for (unsigned i = 0; i < n; i++)
		s->nodes[i].rate = RATE;
	sim_run(s, 2 * S); /* they connect and exchange heads */
	s->n_messages = s->n_frame_bytes = 0;
	s->userdata = &moves;
	s->on_message = note_progress;
	began = s->now_ns;
	cpu = cpu_s();
	assert_int_equal(sim_push(s, 0, sync), 0);
	if (lost && sim_run_until(s, bytes_move, LONGEST))
		lose(s, lost);
	assert_true(sim_run_until(s, sim_ended, LONGEST));
	ended = s->now_ns;
	while (!sim_is_converged(s)) {
		assert_true(s->now_ns - began < LONGEST);
		sim_run(s, STEP);
	}
	converged = s->now_ns;
	sim_run(s, S); /* they exchange heads */
	cpu = cpu_s() - cpu;
	(void)printf("{\"members\": %u, \"lost\": %u, \"commit_s\": %.3f, \"converge_s\": %.3f, "
		     "\"messages\": %ju, \"bytes\": %ju, \"cpu_s\": %.3f, ",
		     n, lost, (double)(ended - began) / 1e9, (double)(converged - began) / 1e9,
		     (uintmax_t)s->n_messages, (uintmax_t)s->n_frame_bytes, cpu);
	sim_run(s, 10 * S);
	coordinator = heap_of(s, 0, 0);
	(void)printf("\"coordinator_bytes\": %zu, \"member_bytes\": %zu}\n", coordinator,
		     heap_of(s, 1, n - 1) / (n - 1));
	sim_free(s);
	return 0;
}
