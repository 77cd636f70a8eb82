/*
 * Each ends by its own timer, and before its rows do. Its programs are attached while calls of a row are counted, and
 * no longer.
 */
#include "bpf/messages.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bpf/tracer.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"

#define SECOND_NS UINT64_C(1000000000)

struct messages *messages_find(const struct client *c, const char *sync, bool of_all)
{
	struct messages *m;

	list_for_each(m, &c->messages, link)
		if (m->of_all == of_all && !strcmp(m->sync, sync))
			return m;
	return NULL;
}

static bool is_wanted(const struct client *owner, const struct row *row)
{
	const struct client *c;

	if (messages_find(owner, row->label.sync, false))
		return true;
	list_for_each(c, &owner->tracer->clients, link)
		if (c->n_messages_of_all && messages_find(c, row->label.sync, true))
			return true;
	return false;
}

static int begin_row(struct meter *meter, struct row *row)
{
	cleanup(freep) struct row_calls *calls = calloc(1, sizeof(*calls));
	int r;

	if (!calls)
		return -ENOMEM;
	messages_end_row(meter, row);
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

static void end_rows(const struct messages *m, const struct client *owner)
{
	struct row *row;

	list_for_each(row, &owner->rows, link)
		if (!strcmp(row->label.sync, m->sync) && !is_wanted(owner, row))
			messages_end_row(owner->tracer->collector.meter, row);
}

void messages_free(struct messages *m)
{
	struct client *c;

	if (!m)
		return;
	list_remove(&m->link);
	m->client->n_messages--;
	m->client->n_messages_of_all -= m->of_all;
	list_for_each(c, &m->client->tracer->clients, link)
		if (m->of_all || c == m->client)
			end_rows(m, c);
	timer_stop(&m->timer);
	free(m);
}

static void on_messages_end(struct timer *timer)
{
	messages_free(container_of(timer, struct messages, timer));
}

static int begin_rows(const struct messages *m)
{
	struct tracer *t = m->client->tracer;
	struct client *c;
	struct row *row;
	bool has_row = false;
	int r;

	list_for_each(c, &t->clients, link) {
		if (!m->of_all && c != m->client)
			continue;
		list_for_each(row, &c->rows, link) {
			if (strcmp(row->label.sync, m->sync) != 0)
				continue;
			r = begin_row(t->collector.meter, row);
			if (r < 0)
				return r;
			has_row = true;
		}
	}
	return has_row ? 0 : -ENOENT;
}

static bool messages_has_room(const struct client *c)
{
	return c->n_messages < MESSAGES_MAX || c->uid == 0 || c->uid == geteuid();
}

int messages_begin(struct client *c, const char *sync, bool of_all, unsigned seconds)
{
	cleanup(freep) struct messages *owned = calloc(1, sizeof(*owned));
	struct messages *m = owned;
	int r;

	if (!m)
		return -ENOMEM;
	if (!messages_has_room(c) && !messages_find(c, sync, of_all))
		return -EDQUOT;
	m->client = c;
	m->of_all = of_all;
	(void)strcpy(m->sync, sync);
	timer_init(&m->timer, on_messages_end);
	messages_free(messages_find(c, sync, of_all));
	list_append(&c->messages, &take_ptr(owned)->link);
	c->n_messages++;
	c->n_messages_of_all += of_all;
	r = begin_rows(m);
	if (r < 0)
		messages_free(m);
	else
		timer_start(c->tracer->collector.loop, &m->timer,
			    num_now_ns() + seconds * SECOND_NS); /* no less: all rows have begun */
	return r;
}

int messages_take_row(struct client *c, struct row *row)
{
	return is_wanted(c, row) ? begin_row(c->tracer->collector.meter, row) : 0;
}
