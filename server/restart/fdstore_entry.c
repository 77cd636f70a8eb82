#include "server/restart/fdstore_entry.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

int fdstore_init(struct fdstore *k, int first_fd, unsigned max, size_t names_max)
{
	/* Once and for all; what is never used is never resident. */
	struct fdstore_entry *list = calloc(max + 1, sizeof(*list));

	if (!list)
		return -ENOMEM;
	*k = (struct fdstore){.list = list, .max = max, .first_fd = first_fd, .names_max = names_max};
	return 0;
}

void fdstore_deinit(struct fdstore *k)
{
	while (k->n > 0)
		(void)fd_close(k->first_fd + (int)--k->n);
	free(take_ptr(k->list));
}

bool fdstore_entry_is_name(const char *name, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (name[i] <= ' ' || name[i] > '~' || name[i] == ':')
			return false;
	return size > 0 && size <= FDSTORE_NAME_MAX;
}

static bool is_same(const struct fdstore_entry *a, int a_fd, const struct fdstore_entry *b, int b_fd)
{
	pid_t self = getpid();

	if (strcmp(a->name, b->name) != 0 || a->is_file != b->is_file || a->dev != b->dev ||
	    a->ino != b->ino || a->access != b->access)
		return false;
	/*
	 * Files of one device node, and anonymous ones, share their inode. Where a sandbox forbids the
	 * question, one that is kept twice does less harm than one that is lost.
	 */
	return a->is_file || syscall(SYS_kcmp, self, self, KCMP_FILE, a_fd, b_fd) == 0;
}

static int fdstore_entry_describe(const char *name, int fd, struct fdstore_entry *ret)
{
	int flags = fcntl(fd, F_GETFL);
	struct stat st;

	if (flags < 0 || fstat(fd, &st) < 0)
		return -errno;
	*ret = (struct fdstore_entry){
		.is_file = S_ISREG(st.st_mode),
		.access = flags & O_ACCMODE,
		.dev = st.st_dev,
		.ino = st.st_ino,
	};
	memcpy(ret->name, name, strlen(name));
	return 0;
}

int fdstore_add(struct fdstore *k, const char *name, int fd)
{
	cleanup(fd_closep) int given = fd;
	int place = k->first_fd + (int)k->n;
	struct fdstore_entry new;
	int r;

	assert(fdstore_entry_is_name(name, strlen(name)) && fd >= place);
	r = fdstore_entry_describe(name, fd, &new);
	if (r < 0)
		return r;
	for (unsigned i = 0; i < k->n; i++)
		if (is_same(&k->list[i], k->first_fd + (int)i, &new, fd))
			return 0;
	if (k->n == k->max)
		return -ENOSPC;
	if (k->names_size + strlen(name) + 1 > k->names_max)
		return -E2BIG;
	if (fd == place)
		(void)take_fd(given);
	else if (dup3(fd, place, O_CLOEXEC) < 0)
		return -errno;
	k->list[k->n++] = new;
	k->names_size += strlen(name) + 1;
	return 0;
}

/* The last one moves to where this one was. */
static void fdstore_remove_at(struct fdstore *k, unsigned i)
{
	unsigned last = k->n - 1;

	k->names_size -= strlen(k->list[i].name) + 1;
	if (i != last) {
		int r = dup3(k->first_fd + (int)last, k->first_fd + (int)i, O_CLOEXEC);

		assert(r >= 0); /* both are open */
		k->list[i] = k->list[last];
	}
	(void)fd_close(k->first_fd + (int)last);
	k->n = last;
}

void fdstore_remove(struct fdstore *k, const char *name)
{
	for (unsigned i = k->n; i-- > 0;)
		if (!strcmp(k->list[i].name, name))
			fdstore_remove_at(k, i);
}

void fdstore_pass(const struct fdstore *k)
{
	for (unsigned i = 0; i < k->n; i++)
		(void)fcntl(k->first_fd + (int)i, F_SETFD, 0); /* it is open: cannot fail */
}

void fdstore_append_names(const struct fdstore *k, char *s)
{
	s += strlen(s);
	for (unsigned i = 0; i < k->n; i++) {
		*s++ = ':';
		s = stpcpy(s, k->list[i].name);
	}
}
