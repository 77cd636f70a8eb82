#include "bpf/event/event.h"

#include "bpf/event/fd_passing.h"
#include "bpf/follow.h"
#include "bpf/probe/probes.h"
#include "bpf/tracer.h"

/* Whose word it is, where another says what he did: he may say that it was root. */
static const json_t *owner_of(const json_t *event)
{
	const json_t *weightd = json_object_get(event, "weightd");

	return json_object_get(weightd ? weightd : event, "uid");
}

void event_emit(struct tracer *t, json_t *event)
{
	t->last_event++;
	(void)json_object_set_new(event, "number", json_integer((json_int_t)t->last_event));
	if (event)
		event_log_add(&t->events, owner_of(event), event);
	metrics_on_event(&t->metrics, json_string_value(json_object_get(event, "act")));
	follow_send_event(t, event);
	tracer_look_soon(t); /* who was too slow for it is told so */
}

void event_set_number(json_t *event, const char *key, uint64_t number)
{
	(void)json_object_set_new(event, key, json_integer((json_int_t)number));
}

int event_op(struct request *q)
{
	struct client *c = q->client;
	int r = request_may_observe(q);

	if (r < 0)
		return r;
	probes_take(c->tracer->probes);
	fd_passing_take(c->tracer->fd_passing);
	event_log_answer(&c->tracer->events, c, "acted");
	return 0;
}
