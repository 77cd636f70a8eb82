/*
 * A part of builds for tests. It is set up before main(), so that nothing of it is in main().
 */
#include "server/base/fault.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"

/* clang-format off */
static const char *const points[] = {
	"start-inherited", "start-listening", "start-recovered", "stop-begun", "stop-left",
	"recovery-buffer", "recovery-version", "recovery-writer", "recovery-before-save", "recovery-before-head",
	"manifest-record", "manifest-checksum", "manifest-commit",
	"store-put", "store-removed", "store-barrier",
	"files-begun", "files-saved", "files-kept", "files-committed", "files-removed",
	"create-begun", "create-provided", "create-saved", "create-stored", "create-kept", "create-answered",
	"resume-adopted", "resume-published",
	"publish-begun", "publish-digests", "publish-slot-sealed", "publish-sealed", "publish-committed", "publish-flipped",
	"publish-answered", "share-saved", "share-stored", "share-kept",
	"abort-begun", "abort-saved", "torn-begun",
	"attach-leased", "attach-answered", "renew-leased", "detach-freed",
	"rollback-begun", "rollback-committed", "rollback-flipped",
	"drop-begun", "drop-committed", "trim-begun", "trim-committed", "remove-begun", "remove-committed",
	"free-removed", "free-saved", "release-begun", "recycle-kept", "recycle-taken",
	"replace-begun", "replace-committed",
	"update-asked", "update-paused", "update-evicted", "update-committed", "pause-taken", "pause-answered",
	"rewrite-finished", "rewrite-committed", "rewrite-flipped",
	"access-begun", "access-saved",
	"job-record", "job-checksum", "job-commit",
	"job-created", "job-kept", "job-create-answered",
	"job-begun", "job-provided", "job-saved", "job-stored", "job-memory-kept", "job-memory-committed",
	"job-joined", "job-answered", "job-leave-begun", "job-left",
	"recovery-job", "job-recovered", "job-remove-begun", "job-remove-committed", "job-removed",
};
/* clang-format on */

static _Atomic uint64_t own_passages[ARRAY_LEN(points)];
static _Atomic uint64_t *passages =
	own_passages; /* shared with the processes before and after this one */
static uint64_t deadly[ARRAY_LEN(points)]; /* number of the passage that kills; 0: none */

static size_t find_point(const char *name, size_t size)
{
	size_t i = 0;

	while (i < ARRAY_LEN(points) &&
	       (strlen(points[i]) != size || memcmp(points[i], name, size) != 0))
		i++;
	return i;
}

__attribute__((noreturn)) static void fail(const char *what, const char *which)
{
	(void)fprintf(stderr, "weightd: %s: %s\n", what, which);
	abort();
}

/* "publish-begun:2,free-saved:1" */
static void read_deadly(const char *s)
{
	while (*s) {
		size_t size = strcspn(s, ":");
		size_t i = find_point(s, size);
		char *end;

		if (i == ARRAY_LEN(points) || s[size] != ':')
			fail("WEIGHTD_FAULT names no point", s);
		deadly[i] = strtoull(s + size + 1, &end, 10);
		if (deadly[i] == 0 || (*end && *end != ','))
			fail("WEIGHTD_FAULT has no number", s);
		s = *end ? end + 1 : end;
	}
}

static void map_passages(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	void *p;

	if (fd < 0 || ftruncate(fd, sizeof(own_passages)) < 0)
		fail(path, strerror(errno));
	p = mmap(NULL, sizeof(own_passages), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		fail(path, strerror(errno));
	(void)fd_close(fd);
	passages = p;
}

static void list_points(void)
{
	for (size_t i = 0; i < ARRAY_LEN(points); i++)
		(void)puts(points[i]);
	exit(EXIT_SUCCESS);
}

__attribute__((constructor)) static void set_up(void)
{
	const char *fault = getenv("WEIGHTD_FAULT");
	const char *state = getenv("WEIGHTD_FAULT_STATE");

	if (fault && !strcmp(fault, "list"))
		list_points();
	if (fault)
		read_deadly(fault);
	if (state)
		map_passages(state);
}

void fault_point(const char *name)
{
	size_t i = find_point(name, strlen(name));

	assert(i < ARRAY_LEN(points)); /* it is not listed above, and no test would go there */
	if (atomic_fetch_add(&passages[i], 1) + 1 != deadly[i])
		return;
	(void)dprintf(STDERR_FILENO, "weightd: killed at %s:%llu\n", name,
		      (unsigned long long)deadly[i]);
	(void)raise(SIGKILL);
}
