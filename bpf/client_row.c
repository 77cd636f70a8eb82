/*
 * A row is the client's, and the meter counts under its number. It joins the totals of its peer when it is made, and
 * leaves them when it is freed, so that no byte is lost or counted twice.
 */
#include "bpf/client_row.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bpf/messages.h"
#include "bpf/rows.h"
#include "bpf/tcp/peer_totals.h"
#include "bpf/tracer.h"
#include "bpf/watch.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"

/* The process that the request is about. */
static void init_process(struct process *p, const struct request *q)
{
	const struct client *c = q->client;

	if (q->cgroup) {
		*p = (struct process){.cgroup = strdup(q->cgroup)};
		return;
	}
	process_init(p, q->pid ? q->pid : c->pid);
	if (!q->pid)
		(void)strcpy(p->comm, c->comm);
}

int client_row_take(struct request *q, struct row **ret)
{
	struct client *c = q->client;
	struct meter *m = c->tracer->collector.meter;
	cleanup(freep) struct row *row = NULL;
	const char *transport, *why;
	json_int_t expected;
	struct label label;
	int r;

	if (!label_parse(q->json, &label, &why) || !row_parse_expected(q->json, &expected, &why) ||
	    !row_parse_transport(q->json, &transport, &why)) {
		(void)snprintf(q->why, sizeof(q->why), "%s", why);
		return -EINVAL;
	}
	list_for_each(*ret, &c->rows, link)
		if (label_equal(&(*ret)->label, &label)) {
			if (expected >= 0)
				(*ret)->expected = expected;
			if (transport)
				(void)strcpy((*ret)->transport, transport);
			return 0;
		}
	if (c->n_rows == ROWS_MAX) {
		(void)snprintf(q->why, sizeof(q->why),
			       "a client may have at most %u rows; 'forget' a sync that has ended",
			       ROWS_MAX);
		return -EDQUOT;
	}
	row = calloc(1, sizeof(*row));
	if (!row)
		return -ENOMEM;
	row->number = ++c->tracer->last_row;
	row->label = label;
	row->expected = expected;
	(void)strcpy(row->transport, transport ? transport : "tcp");
	row->began_ns = num_now_ns();
	row->n_misses = c->tracer->n_misses;
	r = m->kind->add_row(m, row->number);
	if (r < 0)
		return r;
	r = messages_take_row(c, row);
	if (r < 0) {
		m->kind->remove_row(m, row->number);
		return r;
	}
	init_process(&row->process, q);
	peer_totals_join(&c->tracer->metrics.peers, row);
	list_append(&c->rows, &row->link);
	c->n_rows++;
	*ret = take_ptr(row);
	return 0;
}

void client_row_free(struct client *c, struct row *row)
{
	struct meter *m = c->tracer->collector.meter;
	struct reading now;
	struct watch *w, *next;

	if (rows_read(c->tracer, row, &now) == 0)
		peer_totals_take(row, &now);
	peer_totals_leave(&c->tracer->metrics.peers, row);
	list_for_each_safe(w, next, &c->watches, link)
		if (w->row == row->number)
			watch_free(w);
	messages_end_row(m, row);
	m->kind->remove_row(m, row->number);
	list_remove(&row->link);
	c->n_rows--;
	free(row->calls);
	process_deinit(&row->process);
	free(row);
}
