/*
 * Implements what bpf/base/collector.h promises to questions. An event is numbered already; it is kept even if it has
 * no observer.
 */
#include "bpf/event_recorder.h"

#include "bpf/follow.h"
#include "bpf/metrics.h"
#include "bpf/rows.h"
#include "bpf/tracer.h"

static struct tracer *tracer_of(struct collector *c)
{
	return container_of(c, struct tracer, collector);
}

/*
 * The owner of an event that a weightd reported is that weightd's user, whatever uid is in it: a weightd may claim
 * that root attached.
 */
static const json_t *owner_of(const json_t *event)
{
	const json_t *weightd = json_object_get(event, "weightd");

	return json_object_get(weightd ? weightd : event, "uid");
}

static void recorder_emit(struct collector *c, json_t *event)
{
	struct tracer *t = tracer_of(c);

	if (event)
		event_log_add(&t->events, owner_of(event), event);
	metrics_on_event(&t->metrics, json_string_value(json_object_get(event, "act")));
	follow_send_event(t, event);
	rows_look_soon(t); /* clients that were too slow for it learn that */
}

static void recorder_count_lost(struct collector *c, uint64_t n, enum event_source source)
{
	follow_count_lost(tracer_of(c), n, source);
}

static void recorder_report_unseen(struct collector *c, const char *path, uint64_t since_ns,
				   enum event_source source)
{
	follow_send_unseen(tracer_of(c), path, since_ns, source);
}

const struct collector_ops event_recorder_ops = {
	.emit = recorder_emit,
	.count_lost = recorder_count_lost,
	.report_unseen = recorder_report_unseen,
};

int event_recorder_op(struct request *q)
{
	struct tracer *t = q->client->tracer;

	for (size_t i = 0; i < N_QUESTIONS; i++)
		if (t->questions[i]->kind->take && !*t->questions[i]->why)
			t->questions[i]->kind->take(t->questions[i]);
	event_log_answer(&t->events, &q->answer, "acted");
	return 0;
}
