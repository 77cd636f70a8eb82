#include "tests/fake/state.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>

#include "ipc/base/fd.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* lock_fd */
static int lock_fd = -1;

const char *state_folder(void)
{
	const char *folder = getenv("FAKE_CUDA_STATE");

	return folder && *folder ? folder : NULL;
}

void state_path(const char *name, char *ret, size_t size)
{
	*ret = 0;
	if (state_folder())
		(void)snprintf(ret, size, "%s/%s", state_folder(), name);
}

void state_lock(void)
{
	char path[4096];

	(void)pthread_mutex_lock(&mutex);
	state_path("lock", path, sizeof(path));
	lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (lock_fd >= 0)
		(void)flock(lock_fd, LOCK_EX);
}

void state_unlock(void)
{
	lock_fd = fd_close(lock_fd);
	(void)pthread_mutex_unlock(&mutex);
}

unsigned long long state_number(const char *variable, unsigned long long otherwise)
{
	const char *text = getenv(variable);
	unsigned long long n;
	char *end;

	if (!text || !*text)
		return otherwise;
	n = strtoull(text, &end, 0);
	if (*end == 'K')
		return n << 10;
	if (*end == 'M')
		return n << 20;
	return *end == 'G' ? n << 30 : n;
}
