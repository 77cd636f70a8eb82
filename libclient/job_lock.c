/*
 * The kernel does not distinguish locks of one process, so that conflicts inside it are found here, in a list of all.
 */
#include "libclient/job_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/libc.h"
#include "ipc/base/num.h"

#define ENDING_NS UINT64_C(2000000000) /* how long a process may take to unmap what it has */
#define ACTING_NS UINT64_C(60000000000) /* and another rank, to finish an update in its place */
#define RETRY_MS 5
/* PF_EXITING, PF_POSTCOREDUMP and PF_DUMPCORE, in field 9 of /proc/PID/stat. */
#define FLAGS_ENDING 0x20cu

/* Protects `locks` and the members. Between threads with a connection each. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct list locks = {&locks, &locks};

static void mutex_lock(void)
{
	(void)pthread_mutex_lock(&mutex);
}

static void mutex_unlock(void)
{
	(void)pthread_mutex_unlock(&mutex);
}

/* A child of a process with threads, such as a loader of data, must not inherit the mutex as locked. */
static void mutex_survive_forks(void)
{
	(void)pthread_atfork(mutex_lock, mutex_unlock, mutex_unlock);
}

int job_lock_new(int fd, struct job_lock **ret)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct job_lock *l = calloc(1, sizeof(*l));
	struct stat st;

	(void)pthread_once(&once, mutex_survive_forks);
	if (!l || fstat(fd, &st) < 0) {
		int r = l ? -errno : -ENOMEM;

		free(l);
		(void)fd_close(fd);
		return r;
	}
	l->owner = getpid();
	l->fd = fd;
	l->dev = st.st_dev;
	l->ino = st.st_ino;
	mutex_lock();
	list_append(&locks, &l->link);
	mutex_unlock();
	*ret = l;
	return 0;
}

static bool is_same_file(const struct job_lock *a, const struct job_lock *b)
{
	return a->dev == b->dev && a->ino == b->ino;
}

/* Locked as well, from before until after the rank, by a process that is another one. */
static uint32_t byte_of_acting(uint32_t rank)
{
	return WIRE_JOB_RANKS_MAX + rank;
}

static int set_lock(const struct job_lock *l, uint32_t byte, short type)
{
	struct flock range = {
		.l_type = type,
		.l_whence = SEEK_SET,
		.l_start = byte,
		.l_len = 1,
	};

	return fcntl(l->fd, F_SETLK, &range) < 0 ? -errno : 0;
}

static void release(struct job_lock *l, uint32_t byte)
{
	if (l->bytes[byte] && l->owner == getpid())
		(void)set_lock(l, byte, F_UNLCK); /* cannot fail for a byte that is locked */
	l->bytes[byte] = false;
}

/* True if closing a descriptor of the file would release a lock that somebody relies on. */
static bool is_file_locked(const struct job_lock *file)
{
	const struct job_lock *l;

	list_for_each(l, &locks, link)
		if (!l->is_idle && is_same_file(l, file) && l->owner == getpid())
			return true;
	return false;
}

static void close_idle(const struct job_lock *file)
{
	const dev_t dev = file->dev;
	const ino_t ino = file->ino;
	struct job_lock *l, *tmp;

	list_for_each_safe(l, tmp, &locks, link) {
		if (!l->is_idle || l->dev != dev || l->ino != ino)
			continue;
		list_remove(&l->link);
		(void)fd_close(l->fd);
		free(l);
	}
}

void job_lock_free(struct job_lock *l)
{
	if (!l)
		return;
	mutex_lock();
	for (uint32_t byte = 0; byte < JOB_LOCK_BYTES; byte++)
		release(l, byte);
	l->is_idle = true;
	if (!is_file_locked(l))
		close_idle(l);
	mutex_unlock();
}

/* Under the mutex. */
static bool is_ours(const struct job_lock *file, uint32_t byte)
{
	const struct job_lock *l;

	list_for_each(l, &locks, link)
		if (is_same_file(l, file) && l->owner == getpid() && l->bytes[byte])
			return true;
	return false;
}

/* Under the mutex. */
static pid_t find_holder(const struct job_lock *l, uint32_t byte)
{
	struct flock range = {
		.l_type = F_WRLCK,
		.l_whence = SEEK_SET,
		.l_start = byte,
		.l_len = 1,
	};

	if (is_ours(l, byte))
		return getpid();
	if (fcntl(l->fd, F_GETLK, &range) < 0 || range.l_type == F_UNLCK)
		return 0;
	return range.l_pid > 0 ? range.l_pid : -1;
}

pid_t job_lock_holder(const struct job_lock *l, uint32_t rank)
{
	pid_t holder;

	mutex_lock();
	holder = find_holder(l, rank);
	mutex_unlock();
	return holder;
}

bool job_lock_is_acting(const struct job_lock *l, uint32_t rank, pid_t pid)
{
	return job_lock_holder(l, byte_of_acting(rank)) == pid;
}

int64_t job_lock_rank_of(const struct job_lock *l, pid_t pid)
{
	for (uint32_t rank = 0; rank < WIRE_JOB_RANKS_MAX; rank++)
		if (job_lock_holder(l, rank) == pid && !job_lock_is_acting(l, rank, pid))
			return rank;
	return -1;
}

static int try_locked(struct job_lock *l, uint32_t byte, pid_t *ret_holder)
{
	int r = is_ours(l, byte) ? -EAGAIN : set_lock(l, byte, F_WRLCK);

	if (r == -EAGAIN || r == -EACCES) {
		*ret_holder = find_holder(l, byte);
		return -EBUSY;
	}
	l->bytes[byte] = r == 0;
	return r;
}

static int lock_try(struct job_lock *l, uint32_t rank, pid_t *ret_holder)
{
	int r;

	mutex_lock();
	r = try_locked(l, rank, ret_holder);
	mutex_unlock();
	return r;
}

int job_lock_act(struct job_lock *l, uint32_t rank, pid_t *ret_holder)
{
	uint32_t acting = byte_of_acting(rank);
	int r;

	mutex_lock();
	r = try_locked(l, acting, ret_holder);
	if (r == 0) {
		r = try_locked(l, rank, ret_holder);
		if (r < 0)
			release(l, acting);
	}
	mutex_unlock();
	return r;
}

void job_lock_end_act(struct job_lock *l, uint32_t rank)
{
	mutex_lock();
	release(l, rank);
	release(l, byte_of_acting(rank));
	mutex_unlock();
}

static FILE *open_proc(pid_t pid, const char *file)
{
	char path[64];

	(void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
	return fopen(path, "re");
}

static void file_closep(FILE **f)
{
	if (*f)
		(void)fclose(*f);
}

/* True for a zombie, and for a process that the kernel is taking down. */
static bool is_exiting(pid_t pid)
{
	cleanup(file_closep) FILE *f = open_proc(pid, "stat");
	char line[512];
	const char *fields;
	unsigned flags;
	char state;

	if (!f || !fgets(line, sizeof(line), f))
		return true; /* it was reaped, or there is no /proc: the caller waits for its end, and finds out */
	fields = strrchr(line, ')'); /* the name before it may contain anything */
	if (!fields || sscanf(fields, ") %c %*d %*d %*d %*d %*d %u", &state, &flags) != 2)
		return false;
	return state == 'Z' || state == 'X' || (flags & FLAGS_ENDING);
}

/* True if it has a SIGKILL that it has not noticed yet. */
static bool is_killed(pid_t pid)
{
	cleanup(file_closep) FILE *f = open_proc(pid, "status");
	char line[256];
	uint64_t pending;

	while (f && fgets(line, sizeof(line), f))
		if ((sscanf(line, "SigPnd: %" SCNx64, &pending) == 1 ||
		     sscanf(line, "ShdPnd: %" SCNx64, &pending) == 1) &&
		    pending & (UINT64_C(1) << (SIGKILL - 1)))
			return true;
	return false;
}

/* Waits for the end of a process, no longer than to `end_ns`. */
static bool wait_for_end(int pidfd, uint64_t end_ns)
{
	struct pollfd ended = {.fd = pidfd, .events = POLLIN};
	uint64_t now_ns = num_now_ns();

	return poll(&ended, 1, now_ns < end_ns ? (int)((end_ns - now_ns) / 1000000) : 0) > 0;
}

enum holder_state {
	HOLDER_LIVES, /* and is the rank */
	HOLDER_ACTS, /* in the place of the rank, for a moment */
	HOLDER_ENDED,
};

/* Waits for a holder that is ending, and a moment for one that acts. */
static enum holder_state wait_for_holder(const struct job_lock *l, uint32_t rank, pid_t pid,
					 uint64_t start_ns)
{
	cleanup(fd_closep) int pidfd = -1;

	if (job_lock_is_acting(l, rank, pid) && num_now_ns() < start_ns + ACTING_NS) {
		(void)poll(NULL, 0, RETRY_MS); /* no event announces that it is done */
		return HOLDER_ACTS;
	}
	if (pid < 0)
		return HOLDER_LIVES;
	pidfd = libc_pidfd_open(pid);
	if (pidfd < 0)
		return errno == ESRCH ? HOLDER_ENDED : HOLDER_LIVES;
	if (is_exiting(pid) || is_killed(pid))
		return wait_for_end(pidfd, start_ns + ENDING_NS) ? HOLDER_ENDED : HOLDER_LIVES;
	return HOLDER_LIVES;
}

int job_lock_take(struct job_lock *l, uint32_t rank, pid_t *ret_holder)
{
	const uint64_t start_ns = num_now_ns();
	bool is_last = false;
	pid_t ended = 0;

	for (;;) {
		int r = lock_try(l, rank, ret_holder);
		enum holder_state state;

		if (r != -EBUSY || *ret_holder == getpid())
			return r;
		if (*ret_holder == 0)
			continue; /* released meanwhile */
		state = wait_for_holder(l, rank, *ret_holder, start_ns);
		if (is_last && state != HOLDER_ACTS)
			return r;
		switch (state) {
		case HOLDER_LIVES:
			is_last = true; /* its number may have been another process's before */
			break;
		case HOLDER_ENDED:
			/* One that still holds it shares its descriptors with another process. */
			is_last = *ret_holder == ended;
			ended = *ret_holder;
			break;
		case HOLDER_ACTS:
			is_last = false;
			break;
		}
	}
}

bool job_lock_is_removed(const struct job_lock *l)
{
	struct stat st;

	return fstat(l->fd, &st) == 0 && (st.st_mode & S_ISVTX);
}
