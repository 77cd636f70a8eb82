/*
 * A job without weightd
 *
 * The functions of weightd.h about jobs, for unit tests of the training library whose ranks are children of the test: the
 * parts are memfds that the children inherit, and the record locks are those of the real library. The test calls
 * train_job_start() before it forks.
 */
#pragma once

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weightd.h>

#include "ipc/base/fd.h"

#define TRAIN_JOB_NAME "run"
#define TRAIN_JOB_TOKEN TRAIN_JOB_NAME ":0"

/* State that weightd would have. */
struct train_job_server {
	uint32_t n_ranks;
	int fds[WEIGHTD_PARTS_MAX]; /* of parts, empty until the first rank joins */
	int description_fd; /* its lock orders the joins */
	uint32_t n_parts;
	char kinds[WEIGHTD_PARTS_MAX][WEIGHTD_PART_KIND_MAX + 1];
	uint64_t sizes[WEIGHTD_PARTS_MAX];
	uint64_t description_size;
	_Atomic bool removed;
	_Atomic uint32_t n_left;
};

struct weightd_job {
	uint32_t rank;
};

struct weightd_list {
	struct weightd_job_info job;
};

static struct train_job_server *train_job; /* shared by all processes of a test */

__attribute__((unused)) static void train_job_start(uint32_t n_ranks)
{
	train_job = mmap(NULL, sizeof(*train_job), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert(train_job != MAP_FAILED);
	train_job->n_ranks = n_ranks;
	for (int i = 0; i < WEIGHTD_PARTS_MAX; i++)
		if (fd_memfd("part", 0, &train_job->fds[i]) < 0)
			abort();
	if (fd_memfd("description", 0, &train_job->description_fd) < 0)
		abort();
}

__attribute__((unused)) static void train_job_stop(void)
{
	for (int i = 0; i < WEIGHTD_PARTS_MAX; i++)
		(void)close(train_job->fds[i]);
	(void)close(train_job->description_fd);
	(void)munmap(train_job, sizeof(*train_job));
	train_job = NULL;
}

/* A rank, or another process of the test: exits with what fn returns, and does not outlive the test. */
__attribute__((unused)) static pid_t train_job_fork(int (*fn)(uint32_t rank, void *data),
						    uint32_t rank, void *data)
{
	pid_t pid = fork();

	assert(pid >= 0);
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)alarm(360);
		_exit(fn(rank, data));
	}
	return pid;
}

/* The exit status, or 128 and the signal. */
__attribute__((unused)) static int train_job_join(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		assert(errno == EINTR);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int train_job_lock(int fd, int command, short type, off_t byte, pid_t *ret_pid)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
	int r = fcntl(fd, command, &lock) < 0 ? -errno : 0;

	if (ret_pid)
		*ret_pid = lock.l_type == F_UNLCK ? 0 : lock.l_pid;
	return r;
}

static int train_job_make(const struct weightd_join_options *options)
{
	for (uint32_t i = 0; i < options->n_parts; i++) {
		if (ftruncate(train_job->fds[i], (off_t)options->parts[i].n_bytes) < 0)
			return -errno;
		strcpy(train_job->kinds[i], options->parts[i].kind);
		train_job->sizes[i] = options->parts[i].n_bytes;
	}
	if (pwrite(train_job->description_fd, options->description, options->description_size, 0) !=
	    (ssize_t)options->description_size)
		return -EIO;
	train_job->description_size = options->description_size;
	train_job->n_parts = options->n_parts;
	return 0;
}

static int train_job_compare(const struct weightd_join_options *options)
{
	void *theirs = NULL;
	uint64_t size;
	int r = weightd_job_description(NULL, TRAIN_JOB_TOKEN, &theirs, &size);

	if (r == 0 && (size != options->description_size || train_job->n_parts != options->n_parts ||
		       memcmp(theirs, options->description, size) != 0))
		r = -EPROTOTYPE;
	for (uint32_t i = 0; r == 0 && i < options->n_parts; i++)
		if (strcmp(train_job->kinds[i], options->parts[i].kind) != 0 ||
		    train_job->sizes[i] != options->parts[i].n_bytes)
			r = -EPROTOTYPE;
	free(theirs);
	return r;
}

int weightd_job_join(struct weightd *w, const char *token,
		     const struct weightd_join_options *options, struct weightd_job **ret)
{
	int lock_fd = train_job->description_fd, r;

	(void)w;
	if (strcmp(token, TRAIN_JOB_TOKEN) != 0 || options->rank >= train_job->n_ranks)
		return -EACCES;
	r = train_job_lock(lock_fd, F_SETLKW, F_WRLCK, 0, NULL);
	if (r == 0)
		r = train_job->n_parts ? train_job_compare(options) : train_job_make(options);
	if (r == 0 && train_job_lock(train_job->fds[0], F_SETLK, F_WRLCK, options->rank, NULL) < 0)
		r = -EBUSY;
	(void)train_job_lock(lock_fd, F_SETLK, F_UNLCK, 0, NULL);
	if (r < 0)
		return r;
	*ret = calloc(1, sizeof(**ret));
	assert(*ret);
	(*ret)->rank = options->rank;
	return 0;
}

int weightd_job_description(struct weightd *w, const char *token, void **ret, uint64_t *ret_size)
{
	(void)w;
	(void)token;
	if (!train_job->n_parts)
		return -ENODATA;
	*ret = malloc(train_job->description_size + 1);
	assert(*ret);
	*ret_size = train_job->description_size;
	return pread(train_job->description_fd, *ret, *ret_size, 0) == (ssize_t)*ret_size ? 0 : -EIO;
}

const char *weightd_job_name(const struct weightd_job *j)
{
	(void)j;
	return TRAIN_JOB_NAME;
}

uint32_t weightd_job_n_ranks(const struct weightd_job *j)
{
	(void)j;
	return train_job->n_ranks;
}

uint32_t weightd_job_rank(const struct weightd_job *j)
{
	return j->rank;
}

int weightd_job_fd(const struct weightd_job *j, uint32_t part)
{
	(void)j;
	return part < train_job->n_parts ? train_job->fds[part] : -ENOENT;
}

int weightd_job_holder(const struct weightd_job *j, uint32_t rank)
{
	pid_t pid;
	int r = train_job_lock(train_job->fds[0], F_GETLK, F_WRLCK, rank, &pid);

	assert(r == 0);
	return rank == j->rank ? getpid() : pid;
}

int weightd_job_hold(struct weightd_job *j, uint32_t rank)
{
	(void)j;
	return train_job_lock(train_job->fds[0], F_SETLK, F_WRLCK, rank, NULL) < 0 ? -EBUSY : 0;
}

void weightd_job_release(struct weightd_job *j, uint32_t rank)
{
	(void)j;
	(void)train_job_lock(train_job->fds[0], F_SETLK, F_UNLCK, rank, NULL);
}

int weightd_job_check(struct weightd_job *j)
{
	(void)j;
	return train_job->removed ? -ESTALE : 0;
}

int weightd_job_leave(struct weightd_job *j)
{
	(void)j;
	train_job->n_left++;
	return train_job->removed ? -ESTALE : 0;
}

void weightd_job_free(struct weightd_job *j)
{
	if (j)
		weightd_job_release(j, j->rank);
	free(j);
}

int weightd_list_jobs(struct weightd *w, struct weightd_list **ret)
{
	(void)w;
	*ret = calloc(1, sizeof(**ret));
	assert(*ret);
	(*ret)->job = (struct weightd_job_info){.size = sizeof((*ret)->job),
						.name = TRAIN_JOB_NAME,
						.n_ranks = train_job->n_ranks};
	return 0;
}

const struct weightd_job_info *weightd_list_job(const struct weightd_list *l, size_t i)
{
	return i == 0 ? &l->job : NULL;
}

size_t weightd_list_count(const struct weightd_list *l)
{
	(void)l;
	return 1;
}

void weightd_list_free(struct weightd_list *l)
{
	free(l);
}

const char *weightd_error(const struct weightd *w)
{
	(void)w;
	return "the job refused this rank";
}
