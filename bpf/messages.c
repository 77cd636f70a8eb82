/*
 * Each ends by its own timer, and before its rows do. What runs in the kernel for it is attached while there
 * is a row whose calls are counted, and no longer.
 */
#include "bpf/messages.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>

#include "bpf/tracer.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"

struct messages *messages_find(const struct client *c, const char *sync)
{
	struct messages *m;

	list_for_each(m, &c->messages, link)
		if (!strcmp(m->sync, sync))
			return m;
	return NULL;
}

static int begin_row(struct meter *meter, struct row *row)
{
	cleanup(freep) struct row_calls *calls = calloc(1, sizeof(*calls));
	int r;

	if (!calls)
		return -ENOMEM;
	r = meter->kind->begin_calls(meter, row->number);
	if (r < 0)
		return r;
	calls->began_ns = num_now_ns();
	free(row->calls);
	row->calls = take_ptr(calls);
	return 0;
}

void messages_end_row(struct meter *meter, struct row *row)
{
	if (!row->calls || row->calls->ended_ns)
		return;
	/* They are there, as begin_calls() put them there. */
	(void)meter->kind->read_calls(meter, row->number, &row->calls->counts);
	meter->kind->end_calls(meter, row->number);
	row->calls->ended_ns = num_now_ns();
}

void messages_free(struct messages *m)
{
	struct row *row;

	if (!m)
		return;
	list_for_each(row, &m->client->rows, link)
		if (!strcmp(row->label.sync, m->sync))
			messages_end_row(m->client->tracer->meter, row);
	loop_remove(m->client->tracer->loop_fd, &m->waiter);
	(void)fd_close(m->waiter.fd);
	list_remove(&m->link);
	free(m);
}

static void on_end(struct waiter *w, uint32_t events)
{
	(void)events;
	messages_free(container_of(w, struct messages, waiter));
}

/* It counts for no less than these seconds: they begin when all rows did. */
static int set_timer(const struct messages *m, unsigned seconds)
{
	const struct itimerspec at = {.it_value.tv_sec = seconds};

	return timerfd_settime(m->waiter.fd, 0, &at, NULL) < 0 ? -errno : 0;
}

static int open_timer(struct messages *m)
{
	cleanup(fd_closep) int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	int r;

	if (fd < 0)
		return -errno;
	m->waiter = (struct waiter){.fd = fd, .ready = on_end};
	r = loop_add(m->client->tracer->loop_fd, &m->waiter);
	if (r < 0)
		return r;
	(void)take_fd(fd);
	return 0;
}

static int begin_rows(struct client *c, const char *sync)
{
	struct row *row;
	int r = -ENOENT;

	list_for_each(row, &c->rows, link) {
		if (strcmp(row->label.sync, sync) != 0)
			continue;
		r = begin_row(c->tracer->meter, row);
		if (r < 0)
			return r;
	}
	return r;
}

int messages_begin(struct client *c, const char *sync, unsigned seconds)
{
	cleanup(freep) struct messages *owned = calloc(1, sizeof(*owned));
	struct messages *m = owned;
	int r;

	if (!m)
		return -ENOMEM;
	m->client = c;
	(void)strcpy(m->sync, sync);
	r = open_timer(m);
	if (r < 0)
		return r;
	messages_free(messages_find(c, sync));
	list_append(&c->messages, &take_ptr(owned)->link);
	r = begin_rows(c, sync);
	if (r == 0)
		r = set_timer(m, seconds);
	if (r < 0)
		messages_free(m);
	return r;
}

int messages_take_row(struct client *c, struct row *row)
{
	return messages_find(c, row->label.sync) ? begin_row(c->tracer->meter, row) : 0;
}
