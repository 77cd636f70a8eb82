#include "sim_queue.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

struct queued {
	uint64_t at_ns, order;
	struct event *event;
};

static bool is_before(const struct queued *x, const struct queued *y)
{
	return x->at_ns != y->at_ns ? x->at_ns < y->at_ns : x->order < y->order;
}

void sim_queue_push(struct sim_queue *q, struct event e)
{
	struct queued new = {e.at_ns, q->order++, malloc(sizeof(e))};
	size_t i = q->n++;

	if (q->n > q->room) {
		q->room = q->room ? 2 * q->room : 256;
		q->at = reallocarray(q->at, q->room, sizeof(*q->at));
	}
	assert_true(q->at && new.event);
	*new.event = e;
	for (; i && is_before(&new, &q->at[(i - 1) / 2]); i = (i - 1) / 2)
		q->at[i] = q->at[(i - 1) / 2];
	q->at[i] = new;
}

const struct event *sim_queue_peek(const struct sim_queue *q)
{
	return q->at[0].event;
}

struct event sim_queue_pop(struct sim_queue *q)
{
	struct queued first = q->at[0], last = q->at[--q->n];
	struct event e = *first.event;
	size_t i = 0, child;

	while ((child = 2 * i + 1) < q->n) {
		if (child + 1 < q->n && is_before(&q->at[child + 1], &q->at[child]))
			child++;
		if (!is_before(&q->at[child], &last))
			break;
		q->at[i] = q->at[child];
		i = child;
	}
	if (q->n)
		q->at[i] = last;
	free(first.event);
	return e;
}

void sim_event_deinit(struct event *e)
{
	json_decref(e->json);
	free(e->frame);
	for (unsigned i = 0; i < e->n_fds; i++)
		if (e->fds[i] >= 0)
			close(e->fds[i]);
}

void sim_queue_deinit(struct sim_queue *q)
{
	while (q->n) {
		struct event e = sim_queue_pop(q);

		sim_event_deinit(&e);
	}
	free(q->at);
}
