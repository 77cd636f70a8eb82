/*
 * Ranks depend on nothing of weightctl: no pipe, no terminal, no signal at its death. A process that a rank has started,
 * such as one that loads data, may still write its memory: it is killed before a successor starts.
 */
#include "libclient/weightctl/verbs/train_rank.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/libc.h"
#include "libclient/weightctl/output/cli_error.h"

__attribute__((format(printf, 2, 3))) static void put(const char *name, const char *format, ...)
{
	va_list args;
	char *text;

	va_start(args, format);
	if (vasprintf(&text, format, args) < 0 || setenv(name, text, 1) < 0)
		cli_out_of_memory();
	va_end(args);
	free(text);
}

static void put_default(const char *name, const char *value)
{
	if (setenv(name, value, 0) < 0)
		cli_out_of_memory();
}

/* As torchrun does. Without the store of an agent rank 0 makes one. */
void train_rank_environment(const struct train_program *program)
{
	const struct train_nodes *nodes = program->nodes;

	put("WORLD_SIZE", "%" PRIu32, program->n_ranks * nodes->n);
	put("LOCAL_WORLD_SIZE", "%" PRIu32, program->n_ranks);
	put("ROLE_WORLD_SIZE", "%" PRIu32, program->n_ranks * nodes->n);
	put("GROUP_WORLD_SIZE", "%" PRIu32, nodes->n);
	put("GROUP_RANK", "%" PRIu32, nodes->node);
	put("ROLE_NAME", "default");
	put("MASTER_ADDR", "%s", nodes->address);
	put("MASTER_PORT", "%u", nodes->port);
	put("TORCHELASTIC_MAX_RESTARTS", "%u", program->n_restarts_max);
	put("TORCHELASTIC_RUN_ID", "%s", program->run_id);
	put("TORCHELASTIC_USE_AGENT_STORE", "False");
	put_default("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
	if (program->n_ranks > 1)
		put_default("OMP_NUM_THREADS", "1");
	put("WEIGHTD_JOB", "%s", program->token);
	put("WEIGHTD_SOCKET", "%s", program->socket);
}

/* Without the signals that weightctl blocks for itself. */
static int spawn(struct train_rank *rank, const struct train_program *program)
{
	posix_spawnattr_t attributes;
	sigset_t none;
	int r = posix_spawnattr_init(&attributes);

	if (r != 0)
		return -r;
	(void)sigemptyset(&none);
	(void)posix_spawnattr_setsigmask(&attributes, &none);
	(void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
	r = posix_spawn(&rank->pid, program->path, NULL, &attributes, program->argv, environ);
	(void)posix_spawnattr_destroy(&attributes);
	return -r;
}

int train_rank_start(struct train_rank *rank, const struct train_program *program)
{
	uint32_t of_all = program->nodes->node * program->n_ranks + rank->rank;
	int r;

	put("RANK", "%" PRIu32, of_all);
	put("LOCAL_RANK", "%" PRIu32, rank->rank);
	put("ROLE_RANK", "%" PRIu32, of_all);
	put("TORCHELASTIC_RESTART_COUNT", "%u", rank->n_restarts);
	r = spawn(rank, program);
	if (r < 0) {
		rank->pid = 0;
		return r;
	}
	rank->pidfd = libc_pidfd_open(rank->pid);
	if (rank->pidfd >= 0)
		return 0;
	r = -errno;
	train_rank_signal(rank, SIGKILL, true);
	(void)train_rank_reap(rank);
	return r;
}

void train_rank_signal(const struct train_rank *rank, int signal, bool all)
{
	/* It is a child that was not waited for: the number is its own. */
	if (rank->pid > 0)
		(void)kill(all ? -rank->pid : rank->pid, signal);
}

int train_rank_reap(struct train_rank *rank)
{
	siginfo_t info = {};
	int status;

	while (waitid(P_PID, (id_t)rank->pid, &info, WEXITED | WNOWAIT) < 0 && errno == EINTR)
		continue;
	status = info.si_code == CLD_EXITED ? info.si_status : EXIT_SIGNAL + info.si_status;
	if (status)
		train_rank_signal(rank, SIGKILL, true);
	while (waitpid(rank->pid, NULL, 0) < 0 && errno == EINTR)
		continue;
	rank->pid = 0;
	if (rank->pidfd >= 0)
		(void)close(rank->pidfd);
	rank->pidfd = -1;
	return status;
}
