#include "bpf/watch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/pidfd.h>
#include <sys/stat.h>

#include "bpf/tracer.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

void watch_free(struct watch *w)
{
	struct tracer *t = w->client->tracer;

	t->meter->kind->unwatch(t->meter, w->pid);
	loop_remove(t->loop_fd, &w->waiter);
	(void)fd_close(w->waiter.fd);
	list_remove(&w->link);
	free(w);
}

/* The process is gone, and its number is another's soon. */
static void on_exit_of_watched(struct waiter *w, uint32_t events)
{
	(void)events;
	watch_free(container_of(w, struct watch, waiter));
}

/* Its number cannot become another's while `ret_fd` says that it lives. */
static int open_process(struct request *q, pid_t pid, int *ret_fd)
{
	cleanup(fd_closep) int fd = pidfd_open(pid, 0);
	char path[32];
	struct stat st;

	(void)snprintf(path, sizeof(path), "/proc/%d", pid);
	if (fd < 0 || stat(path, &st) < 0) {
		(void)snprintf(q->why, sizeof(q->why), "there is no process %d", pid);
		return -ESRCH;
	}
	if (q->client->uid != 0 && (q->client->uid != st.st_uid || q->client->uid == OVERFLOW_UID)) {
		(void)snprintf(q->why, sizeof(q->why),
			       "process %d is another user's: only root may watch it", pid);
		return -EPERM;
	}
	*ret_fd = take_fd(fd);
	return 0;
}

int watch_op(struct request *q)
{
	struct tracer *t = q->client->tracer;
	json_int_t pid = json_integer_value(json_object_get(q->json, "pid"));
	cleanup(freep) struct watch *w = calloc(1, sizeof(*w));
	struct row *row;
	int r;

	if (!w)
		return -ENOMEM;
	if (!t->meter->kind->watch) {
		(void)snprintf(q->why, sizeof(q->why),
			       "sockets of processes are followed by BPF alone: %s", t->why_not_bpf);
		return -EOPNOTSUPP;
	}
	if (pid <= 0 || pid > INT32_MAX) {
		(void)snprintf(q->why, sizeof(q->why), "'pid' has to be the number of a process");
		return -EINVAL;
	}
	w->client = q->client;
	w->pid = (pid_t)pid;
	w->waiter = (struct waiter){.fd = -1, .ready = on_exit_of_watched};
	r = open_process(q, w->pid, &w->waiter.fd);
	if (r == 0)
		r = request_take_row(q, &row);
	if (r == 0)
		r = t->meter->kind->watch(t->meter, w->pid, row->number);
	if (r == -EEXIST)
		(void)snprintf(q->why, sizeof(q->why), "process %d is watched already", w->pid);
	if (r == 0) {
		r = loop_add(t->loop_fd, &w->waiter);
		if (r < 0)
			t->meter->kind->unwatch(t->meter, w->pid);
	}
	if (r < 0) {
		(void)fd_close(w->waiter.fd);
		return r;
	}
	list_append(&q->client->watches, &w->link);
	(void)take_ptr(w);
	return 0;
}
