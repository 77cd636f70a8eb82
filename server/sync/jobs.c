#include "server/sync/jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/child.h"
#include "server/sync/base/json_packet.h"

#define QUEUE_MAX 256 /* messages that a process has not taken */
#define BATCH 16 /* messages of one that are heard before others have their turn */

struct message {
	struct list link; /* job::queue */
	json_t *json;
	int fds[JSON_PACKET_FDS_MAX]; /* ours */
	unsigned n_fds;
};

struct job {
	struct list link; /* jobs::all, or jobs::dying */
	struct jobs *jobs;
	void *owner;
	struct child child;
	struct source socket;
	struct source end; /* the pidfd */
	struct list queue; /* struct message */
	unsigned n_queue;
	char *buffer; /* the job works for it; NULL: for none */
	bool forgotten; /* job_end() was called: its events are dropped */
	char how[CHILD_WHY_SIZE]; /* why it was ended by job_fail(); "": it has to say itself */
};

void jobs_init(struct jobs *j, struct loop *l, const struct jobs_events *events, void *userdata)
{
	*j = (struct jobs){.loop = l, .events = events, .userdata = userdata};
	list_init(&j->all);
	list_init(&j->dying);
}

static struct message *message_free(struct message *m)
{
	if (!m)
		return NULL;
	json_decref(m->json);
	for (unsigned i = 0; i < m->n_fds; i++)
		(void)fd_close(m->fds[i]);
	free(m);
	return NULL;
}
CLEANUP_POINTER(struct message, message_free);

static void drop_queue(struct job *job)
{
	struct message *m, *next;

	list_for_each_safe(m, next, &job->queue, link) {
		list_remove(&m->link);
		message_free(m);
	}
	job->n_queue = 0;
}

static struct job *job_free(struct job *job)
{
	drop_queue(job);
	list_remove(&job->link);
	free(job->buffer);
	free(job);
	return NULL;
}
CLEANUP_POINTER(struct job, job_free);

/* From here on only its end is waited for; it is never freed before that, not even while it is being heard. */
static void stop_talking(struct job *job)
{
	loop_remove(&job->socket);
	drop_queue(job);
	child_kill(&job->child);
}

/*
 * Returns whether another job of the same buffer was ended and is not gone: it may still write,
 * weightd lets no other make a version meanwhile, and bytes that are read may change.
 */
static bool is_held(const struct job *job)
{
	const struct job *other;

	list_for_each(other, &job->jobs->dying, link)
		if (job->buffer && other->buffer && !strcmp(job->buffer, other->buffer))
			return true;
	return false;
}

static void send_queue(struct job *job)
{
	struct message *m, *next;

	if (is_held(job)) {
		loop_modify(&job->socket, EPOLLIN); /* until that is gone */
		return;
	}
	list_for_each_safe(m, next, &job->queue, link) {
		int r = json_packet_send(job->child.fd, m->json, m->fds, m->n_fds);

		if (r == -EAGAIN)
			return;
		if (r < 0) {
			stop_talking(job);
			return;
		}
		list_remove(&m->link);
		message_free(m);
		job->n_queue--;
	}
	loop_modify(&job->socket, EPOLLIN);
}

/* False: nothing more to hear. */
static bool job_hear(struct job *job)
{
	struct jobs *j = job->jobs;
	struct json_packet t;
	int r = json_packet_receive(job->child.fd, MSG_DONTWAIT, &t);

	if (r < 0) {
		if (r != -EAGAIN)
			stop_talking(job); /* it hung up, or speaks no language of ours */
		return false;
	}
	j->events->on_said(j->userdata, job->owner, t.message, t.fds, t.n_fds);
	json_packet_deinit(&t);
	return !job->forgotten && job->socket.loop;
}

/* Messages that had to wait may be sent now. */
static void release_held(struct jobs *j)
{
	struct job *job;

	list_for_each(job, &j->all, link)
		if (job->n_queue > 0 && job->socket.loop)
			loop_modify(&job->socket, EPOLLIN | EPOLLOUT);
}

static void job_bury(struct job *job)
{
	struct jobs *j = job->jobs;
	char how[CHILD_WHY_SIZE];

	loop_remove(&job->end); /* its number may be another's as soon as it is closed */
	(void)child_end(&job->child, how); /* waits for nothing: it is over */
	if (!job->forgotten)
		j->events->on_end(j->userdata, job->owner, job->how[0] ? job->how : how);
	job_free(job);
	release_held(j);
}

static void job_on_socket(struct source *source, uint32_t events)
{
	struct job *job = container_of(source, struct job, socket);

	if (events & EPOLLOUT)
		send_queue(job);
	for (unsigned i = 0; i < BATCH && job->socket.loop && job_hear(job); i++)
		;
}

/* Messages from before its end come first. */
static void job_on_over(struct source *source, uint32_t events)
{
	struct job *job = container_of(source, struct job, end);

	(void)events;
	while (job->socket.loop && !job->forgotten && job_hear(job))
		;
	loop_remove(&job->socket);
	job_bury(job);
}

static struct job *job_new(struct jobs *j, const char *buffer, void *owner)
{
	cleanup(job_freep) struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	job->jobs = j;
	job->owner = owner;
	list_init(&job->queue);
	list_init(&job->link);
	child_init(&job->child);
	job->buffer = buffer ? strdup(buffer) : NULL;
	return buffer && !job->buffer ? NULL : take_ptr(job);
}

int job_start(struct jobs *j, const char *program, const char *argument, const char *buffer,
	      void *owner, struct job **ret, char why[WHY_SIZE])
{
	cleanup(job_freep) struct job *job = job_new(j, buffer, owner);
	char reason[CHILD_WHY_SIZE];
	int r;

	if (!job) {
		(void)snprintf(why, WHY_SIZE, "no memory to start %s", program);
		return -ENOMEM;
	}
	r = child_start(&job->child, "", program, argument, reason);
	if (r < 0) {
		(void)snprintf(why, WHY_SIZE, "%s", reason);
		return r;
	}
	r = loop_add(j->loop, &job->end, job->child.pidfd, EPOLLIN, job_on_over);
	if (r == 0)
		r = loop_add(j->loop, &job->socket, job->child.fd, EPOLLIN, job_on_socket);
	if (r < 0) {
		(void)snprintf(why, WHY_SIZE, "cannot watch %s: %s", program, strerror(-r));
		loop_remove(&job->end);
		child_kill(&job->child);
		(void)child_end(&job->child, reason);
		return r;
	}
	list_append(&j->all, &job->link);
	*ret = take_ptr(job);
	return 0;
}

static int job_queue(struct job *job, const json_t *message, const int *fds, unsigned n_fds)
{
	cleanup(message_freep) struct message *m = calloc(1, sizeof(*m));

	if (!m || job->n_queue >= QUEUE_MAX || n_fds > JSON_PACKET_FDS_MAX)
		return -ENOBUFS;
	for (unsigned i = 0; i < n_fds; i++) {
		m->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
		if (m->fds[i] < 0)
			return -errno;
		m->n_fds++;
	}
	m->json = json_deep_copy(message);
	if (!m->json)
		return -ENOMEM;
	list_append(&job->queue, &m->link);
	m = NULL;
	job->n_queue++;
	loop_modify(&job->socket, EPOLLIN | EPOLLOUT);
	return 0;
}

pid_t job_pid(const struct job *job)
{
	return job->child.pid;
}

void job_tell(struct job *job, const json_t *message, const int *fds, unsigned n_fds)
{
	int r = -EAGAIN;

	if (!job->socket.loop)
		return; /* it is over, and that is told soon */
	if (job->n_queue == 0 && !is_held(job))
		r = json_packet_send(job->child.fd, message, fds, n_fds);
	if (r == -EAGAIN)
		r = job_queue(job, message, fds, n_fds);
	if (r < 0)
		stop_talking(job);
}

void job_fail(struct job *job, const char *how)
{
	(void)snprintf(job->how, sizeof(job->how), "%s", how);
	stop_talking(job);
}

void job_end(struct job *job)
{
	struct jobs *j = job->jobs;

	job->forgotten = true;
	list_remove(&job->link);
	list_append(&j->dying, &job->link);
	stop_talking(job);
}

static void end_all(struct list *jobs)
{
	struct job *job, *next;
	char how[CHILD_WHY_SIZE];

	list_for_each_safe(job, next, jobs, link) {
		stop_talking(job);
		loop_remove(&job->end);
		(void)child_end(&job->child, how);
		job_free(job);
	}
}

void jobs_deinit(struct jobs *j)
{
	end_all(&j->all);
	end_all(&j->dying);
}
