#include "bpf/event/event.h"

const char *const event_source_names[N_EVENT_SOURCES] = {
	[EVENTS_OF_PROBES] = "probes",
	[EVENTS_OF_WEIGHTD] = "weightd",
	[EVENTS_OF_DESCRIPTORS] = "descriptors",
};

void event_emit(struct collector *c, json_t *event)
{
	c->last_event++;
	event_set_number(event, "number", c->last_event);
	c->ops->emit(c, event);
}

void event_count_lost(struct collector *c, uint64_t n, enum event_source source)
{
	c->ops->count_lost(c, n, source);
}

void event_report_unseen(struct collector *c, const char *path, uint64_t since_ns,
			 enum event_source source)
{
	c->ops->report_unseen(c, path, since_ns, source);
}

void event_set_number(json_t *event, const char *key, uint64_t number)
{
	(void)json_object_set_new(event, key, json_integer((json_int_t)number));
}
