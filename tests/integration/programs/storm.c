/*
 * Readers that connect and die.
 *
 *	storm SOCKET NAME ROUNDS
 *
 * Each is a process that connects, attaches and reads a byte. One in three exits without detaching, one
 * kills itself, and one is killed at whatever point it has reached by then.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "weightd.h"

#define N_AT_ONCE 4

static void read_and_die(const char *path, const char *name, unsigned round)
{
	struct weightd_buffer *buffer;
	struct weightd *w;
	int r;

	if (weightd_new(&w) < 0)
		_exit(1);
	r = weightd_connect(w, path);
	if (r == 0)
		r = weightd_attach(w, name, NULL, &buffer);
	if (r < 0) {
		fprintf(stderr, "%s\n", weightd_error(w));
		_exit(1);
	}
	if (*(const volatile char *)weightd_buffer_data(buffer, NULL) != 'd')
		_exit(2);
	if (round % 3 == 1)
		(void)kill(getpid(), SIGKILL);
	_exit(0);
}

/* True when the child ended as it should have. */
static bool reap(void)
{
	int status;

	if (wait(&status) < 0)
		return false;
	return WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0;
}

int main(int argc, char **argv)
{
	unsigned n_rounds = argc == 4 ? (unsigned)strtoul(argv[3], NULL, 10) : 0;
	unsigned n_wrong = 0;

	for (unsigned round = 0; round < n_rounds; round++) {
		pid_t pid = fork();

		if (pid < 0) {
			perror("fork");
			return 1;
		}
		if (pid == 0)
			read_and_die(argv[1], argv[2], round);
		if (round % 3 == 2)
			(void)kill(pid, SIGKILL);
		if (round >= N_AT_ONCE)
			n_wrong += !reap();
	}
	for (unsigned i = 0; i < N_AT_ONCE; i++)
		n_wrong += !reap();
	printf("%u rounds, %u wrong\n", n_rounds, n_wrong);
	return n_rounds == 0 || n_wrong > 0;
}
