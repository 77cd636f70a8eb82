#include "bpf/event/event.h"

#include "bpf/event/fd_passing.h"
#include "bpf/follow.h"
#include "bpf/probe/probes.h"
#include "bpf/tracer.h"

/* Whose word it is, where another says what he did: he may say that it was root. */
static const json_t *teller_of(const json_t *act)
{
	const json_t *weightd = json_object_get(act, "weightd");

	return json_object_get(weightd ? weightd : act, "uid");
}

void act_tell(struct tracer *t, json_t *act)
{
	t->last_act++;
	(void)json_object_set_new(act, "number", json_integer((json_int_t)t->last_act));
	if (act)
		kept_add(&t->acts, teller_of(act), act);
	metrics_on_act(&t->metrics, json_string_value(json_object_get(act, "act")));
	follow_tell_act(t, act);
	tracer_look_soon(t); /* who was too slow for it is told so */
}

void act_set_number(json_t *act, const char *key, uint64_t number)
{
	(void)json_object_set_new(act, key, json_integer((json_int_t)number));
}

int act_op(struct request *q)
{
	struct client *c = q->client;
	int r = request_may_observe(q);

	if (r < 0)
		return r;
	probes_take(c->tracer->probes);
	passing_take(c->tracer->passing);
	kept_answer(&c->tracer->acts, c, "acted");
	return 0;
}
