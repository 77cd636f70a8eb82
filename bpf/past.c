#include "bpf/past.h"

#include <stdlib.h>

#include "bpf/tracer.h"
#include "ipc/base/cleanup.h"

/* As text, which takes a tenth of what an object does. */
struct ended {
	struct list link; /* tracer::past */
	char *text;
};

static void ended_free(struct tracer *t, struct ended *e)
{
	list_remove(&e->link);
	t->n_past--;
	free(e->text);
	free(e);
}

void past_add(struct tracer *t, const json_t *total)
{
	struct ended *e = calloc(1, sizeof(*e));

	if (e)
		e->text = json_dumps(total, JSON_COMPACT);
	if (!e || !e->text) {
		free(e);
		return;
	}
	if (t->n_past == PAST_MAX)
		ended_free(t, container_of(t->past.next, struct ended, link));
	list_append(&t->past, &e->link);
	t->n_past++;
}

int past_op(struct request *q)
{
	struct client *c = q->client;
	uint64_t lost = c->lost;
	const struct ended *e;
	json_t *row;
	int r = request_may_observe(q);

	if (r < 0)
		return r;
	list_for_each(e, &c->tracer->past, link) {
		row = json_loads(e->text, 0, NULL);
		(void)json_object_set_new(
			row, "kind", json_string("past")); /* what observers are told comes between */
		client_answer(c, row);
	}
	return request_check_all_told(q, lost, "there are more rows");
}

void past_free(struct tracer *t)
{
	struct ended *e, *next;

	list_for_each_safe(e, next, &t->past, link)
		ended_free(t, e);
}
