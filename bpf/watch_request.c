/*
 * Parses the request and checks the rights: a client may watch processes and groups of its own user, root all.
 */
#include "bpf/watch_request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bpf/base/cgroup.h"
#include "bpf/client_row.h"
#include "bpf/tracer.h"
#include "bpf/watch.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/libc.h"

#define GROUP_PATH_SHOWN_MAX 128
#define GROUP_NAME_SIZE (GROUP_PATH_SHOWN_MAX + 32)

/* The process has ended, and the kernel may reuse its number. */
static void on_exit_of_watched(struct source *s, uint32_t events)
{
	(void)events;
	watch_free(container_of(s, struct watch, source));
}

static bool may_watch(const struct request *q, const struct stat *st)
{
	uid_t uid = q->client->uid;

	return uid == 0 || (uid == st->st_uid && uid != OVERFLOW_UID);
}

/* Refuses to watch `what`, which belongs to another user, or to an unmapped one. */
static int watch_refuse(struct request *q, const struct stat *st, const char *what)
{
	if (st->st_uid == OVERFLOW_UID)
		(void)snprintf(q->why, sizeof(q->why),
			       "%s may belong to any user, as all that are not mapped here are user "
			       "%u: only root may watch it",
			       what, OVERFLOW_UID);
	else
		(void)snprintf(q->why, sizeof(q->why),
			       "%s belongs to another user: only root may watch it", what);
	return -EPERM;
}

/* The kernel cannot reuse the number of the process while `ret_fd` shows that it lives. */
static int open_process(struct request *q, pid_t pid, int *ret_fd)
{
	cleanup(fd_closep) int fd = libc_pidfd_open(pid);
	char path[32];
	struct stat st;

	(void)snprintf(path, sizeof(path), "/proc/%d", pid);
	if (fd < 0 || stat(path, &st) < 0) {
		(void)snprintf(q->why, sizeof(q->why), "there is no process %d", pid);
		return -ESRCH;
	}
	if (!may_watch(q, &st)) {
		char text[32];

		(void)snprintf(text, sizeof(text), "process %d", pid);
		return watch_refuse(q, &st, text);
	}
	*ret_fd = take_fd(fd);
	return 0;
}

/* Names a group by its path, unless that is too long for a sentence. */
static void name_group(const char *path, char ret[GROUP_NAME_SIZE])
{
	if (strlen(path) <= GROUP_PATH_SHOWN_MAX)
		(void)snprintf(ret, GROUP_NAME_SIZE, "control group '%s'", path);
	else
		(void)strcpy(ret, "such control group");
}

/* A number of a group is never another's. */
static int find_cgroup(struct request *q, const char *path, uint64_t *ret, char **ret_path)
{
	cleanup(fd_closep) int fd = -1;
	char name[GROUP_NAME_SIZE];
	struct stat st;
	int r = cgroup_open(path, &fd, ret_path);

	if (r == 0 && fstat(fd, &st) < 0)
		r = -errno;
	if (r == 0 && !may_watch(q, &st))
		return watch_refuse(q, &st, "that control group");
	if (r < 0) {
		name_group(path, name);
		(void)snprintf(q->why, sizeof(q->why), "there is no %s of version 2 here: %s",
			       r == -ENOTSUP ? "hierarchy of control groups" : name, strerror(-r));
		return r;
	}
	*ret = st.st_ino;
	return 0;
}

static int watch_begin(struct request *q, struct watch *w)
{
	struct meter *m = q->client->tracer->collector.meter;
	struct row *row;
	int r = client_row_take(q, &row);

	if (r < 0)
		return r;
	w->row = row->number;
	r = w->pid ? m->kind->watch(m, w->pid, w->row) : m->kind->watch_cgroup(m, w->cgroup, w->row);
	if (r == -EEXIST && w->pid)
		(void)snprintf(q->why, sizeof(q->why), "process %d is already watched", w->pid);
	else if (r == -EEXIST)
		(void)snprintf(q->why, sizeof(q->why), "that control group is already watched");
	return r;
}

static int watch_process(struct request *q, struct watch *w)
{
	struct tracer *t = q->client->tracer;
	json_int_t pid = json_integer_value(json_object_get(q->json, "pid"));
	int r;

	if (pid <= 0 || pid > INT32_MAX) {
		(void)snprintf(q->why, sizeof(q->why), "'pid' must be the number of a process");
		return -EINVAL;
	}
	w->pid = q->pid = (pid_t)pid;
	r = open_process(q, w->pid, &w->source.fd);
	if (r == 0)
		r = watch_begin(q, w);
	if (r < 0)
		return r;
	r = loop_add(t->collector.loop, &w->source, w->source.fd, EPOLLIN, on_exit_of_watched);
	if (r < 0)
		watch_end(w);
	return r;
}

static int watch_cgroup(struct request *q, struct watch *w)
{
	const char *given = json_string_value(json_object_get(q->json, "cgroup"));
	cleanup(freep) char *path = NULL;
	int r;

	if (!given || *given != '/' || json_object_get(q->json, "pid")) {
		(void)snprintf(q->why, sizeof(q->why),
			       "'cgroup' must be a path that begins with '/', without a 'pid' beside "
			       "it");
		return -EINVAL;
	}
	r = find_cgroup(q, given, &w->cgroup, &path);
	q->cgroup = path;
	return r < 0 ? r : watch_begin(q, w);
}

int watch_request_op(struct request *q)
{
	struct tracer *t = q->client->tracer;
	cleanup(freep) struct watch *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return -ENOMEM;
	if (!t->collector.meter->kind->watch) {
		(void)snprintf(q->why, sizeof(q->why),
			       "only BPF can follow the sockets of processes: %s",
			       t->collector.why_not_bpf);
		return -EOPNOTSUPP;
	}
	if (q->client->n_watches >= WATCHES_MAX && q->client->uid != 0 &&
	    q->client->uid != geteuid()) {
		(void)snprintf(q->why, sizeof(q->why),
			       "a client that is not root's may watch at most %u processes and "
			       "control groups; 'forget' a sync that has ended",
			       WATCHES_MAX);
		return -EDQUOT;
	}
	w->client = q->client;
	w->source.fd = -1;
	r = json_object_get(q->json, "cgroup") ? watch_cgroup(q, w) : watch_process(q, w);
	if (r < 0) {
		(void)fd_close(w->source.fd);
		return r;
	}
	list_append(&q->client->watches, &w->link);
	q->client->n_watches++;
	(void)take_ptr(w);
	return 0;
}
