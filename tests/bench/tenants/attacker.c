/*
 * attacker UID ATTACK CONNECTIONS TARGET BUFFERS: one process of at most two threads that does harm to a server
 * attacker UID burn SHARE: its control, the same process that computes for SHARE of one core's time
 *
 * The server is the one of $WEIGHTD_SOCKET, TARGET a buffer of another user. Attacks that are worse with many buffers
 * make BUFFERS of them first. Becomes the user UID. Writes "prepared" once it has all that the attack needs and "ready"
 * once each connection had an answer; works until standard input ends, and then writes a line: nanoseconds of processor
 * time, nanoseconds at work, connections made, requests sent, answers and refusals among them. Without arguments: the
 * names of the attacks.
 */
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/bench/stopwatch.h"
#include "tests/bench/tenants/attacks.h"
#include "tests/bench/tenants/burn.h"

static atomic_bool burn_stop;

static void become(uid_t uid)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &limit);
	}
	if (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
		stopwatch_fail("cannot become uid %d: %s", (int)uid, strerror(errno));
}

static void *squad_thread(void *squad)
{
	squad_run(squad, -1);
	return NULL;
}

static void *burn_thread(void *share)
{
	burn(*(double *)share, &burn_stop);
	return NULL;
}

static pthread_t thread_start(void *(*body)(void *), void *argument)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, body, argument) != 0)
		stopwatch_fail("no thread");
	return thread;
}

static void say(const char *what)
{
	(void)puts(what);
	(void)fflush(stdout);
}

static void attack_run(struct crowd *c)
{
	struct squad *s = c->squads;
	pthread_t second = 0;

	if (c->n_squads > 1)
		second = thread_start(squad_thread, &s[1]);
	squad_run(&s[0], STDIN_FILENO);
	if (c->n_squads > 1)
		(void)pthread_join(second, NULL);
}

/* The second thread computes as well; this one waits, so the other may use all of the share. */
static void burn_run(double share)
{
	pthread_t threads[CROWD_THREADS_MAX];
	char byte;

	share /= CROWD_THREADS_MAX;
	for (int i = 0; i < CROWD_THREADS_MAX; i++)
		threads[i] = thread_start(burn_thread, &share);
	say("ready");
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	atomic_store(&burn_stop, true);
	for (int i = 0; i < CROWD_THREADS_MAX; i++)
		(void)pthread_join(threads[i], NULL);
}

static void print_counts(const struct crowd *c, uint64_t cpu_ns, uint64_t ns)
{
	uint64_t n_connected = 0, n_sent = 0, n_answered = 0, n_refused = 0;

	for (unsigned i = 0; i < c->n_squads; i++) {
		n_connected += c->squads[i].n_connected;
		n_sent += c->squads[i].n_sent;
		n_answered += c->squads[i].n_answered;
		n_refused += c->squads[i].n_refused;
	}
	(void)printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
		     cpu_ns, ns, n_connected, n_sent, n_answered, n_refused);
}

int main(int argc, char **argv)
{
	const char *path = getenv("WEIGHTD_SOCKET");
	struct crowd crowd = {0};
	uint64_t began, cpu_began;
	bool burns;

	if (argc < 2) {
		attacks_print();
		return 0;
	}
	burns = argc == 4 && !strcmp(argv[2], "burn");
	if (!burns && (argc != 6 || !attack_find(argv[2]) || !path))
		stopwatch_fail("wants UID ATTACK CONNECTIONS TARGET BUFFERS and $WEIGHTD_SOCKET");
	become((uid_t)stopwatch_number(argv[1]));
	if (!burns) {
		crowd.attack = attack_find(argv[2]);
		crowd.target = argv[4];
		crowd.n_buffers = (uint32_t)stopwatch_number(argv[5]);
		crowd_init(&crowd, path, (uint32_t)stopwatch_number(argv[3]));
	}
	say("prepared");
	began = stopwatch_ns();
	cpu_began = stopwatch_cpu_ns();
	if (burns)
		burn_run(strtod(argv[3], NULL));
	else
		attack_run(&crowd);
	print_counts(&crowd, stopwatch_cpu_ns() - cpu_began, stopwatch_ns() - began);
	crowd_deinit(&crowd);
	return 0;
}
