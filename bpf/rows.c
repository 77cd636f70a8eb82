/*
 * A mark costs a run of a BPF program, or a request for each socket: functions that read rows do without one, and the
 * caller decides when to mark.
 */
#include "bpf/rows.h"

#include <string.h>

#include "bpf/tcp/meter-bpf.h"
#include "bpf/tracer.h"
#include "ipc/base/num.h"

struct row *rows_own(const struct client *c, uint32_t number)
{
	struct row *row;

	list_for_each(row, &c->rows, link)
		if (row->number == number)
			return row;
	return NULL;
}

struct row *rows_find(const struct tracer *t, uint32_t number, struct client **ret_owner)
{
	struct client *c;
	struct row *row;

	list_for_each(c, &t->clients, link) {
		row = rows_own(c, number);
		if (row) {
			*ret_owner = c;
			return row;
		}
	}
	return NULL;
}

struct span *rows_find_span(const struct client *c, const char *sync)
{
	struct span *span;

	list_for_each(span, &c->spans, link)
		if (!strcmp(span->sync, sync))
			return span;
	return NULL;
}

void rows_look_soon(struct tracer *t)
{
	timer_start_once(t->collector.loop, &t->timer, ROWS_PERIOD_NS);
}

void rows_count_spans(struct tracer *t, int change)
{
	t->n_spans += (unsigned)change;
	if (t->n_spans > 0)
		timer_start_once(t->collector.loop, &t->timer, ROWS_PERIOD_NS);
}

static void sample_take(const struct sample *s, void *context)
{
	struct client *owner;
	struct row *row = rows_find(context, s->row, &owner);

	if (!row)
		return;
	socket_census_see(&row->census);
	if (s->srtt_us > row->rtt_us)
		row->rtt_us = s->srtt_us;
}

/* Ends the census of all rows after a look. */
static void end_census(struct tracer *t)
{
	uint64_t now_ns = num_now_ns();
	struct reading now;
	struct client *c;
	struct row *row;

	list_for_each(c, &t->clients, link)
		list_for_each(row, &c->rows, link)
			if (t->collector.meter->kind->read(t->collector.meter, row->number, &now) ==
			    0)
				socket_census_end(&row->census, &now.totals, now_ns);
}

int rows_mark(struct tracer *t)
{
	struct client *c;
	struct row *row;
	int r;

	list_for_each(c, &t->clients, link)
		list_for_each(row, &c->rows, link) {
			row->rtt_us = 0;
			socket_census_begin(&row->census);
		}
	r = t->collector.meter->kind->mark(t->collector.meter, sample_take, t);
	t->n_misses = meter_misses(t->collector.meter);
	if (r == 0 && t->collector.meter->kind->sees_ends)
		end_census(t);
	return r;
}

static void quality_doubt(enum quality *q)
{
	if (*q == QUALITY_EXACT)
		*q = QUALITY_SAMPLED;
}

int rows_read(struct tracer *t, const struct row *row, struct reading *ret)
{
	int r = t->collector.meter->kind->read(t->collector.meter, row->number, ret);

	if (r < 0)
		return r;
	ret->totals.closed += row->census.lost;
	if (!socket_census_is_short(&row->census) && row->n_misses == t->n_misses)
		return 0;
	for (int i = 0; i < N_COUNTERS; i++)
		quality_doubt(&ret->quality[i]);
	quality_doubt(&ret->opened);
	quality_doubt(&ret->ended);
	return 0;
}

int rows_look(const struct client *c, struct row *row, struct reading *ret)
{
	int r = rows_read(c->tracer, row, ret);

	if (r == 0)
		row_look(row, ret, rows_find_span(c, row->label.sync) != NULL);
	return r;
}
