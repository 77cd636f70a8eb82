/*
 * A sample goes into the last packet if that is of its family and has room.
 */
#include "server/base/json/metric.h"

#include <string.h>

static json_t *samples_for(json_t *packets, const struct metric *m)
{
	const json_t *last = json_array_get(packets, json_array_size(packets) - 1);
	const char *name = json_string_value(json_object_get(last, "metric"));
	json_t *samples = json_object_get(last, "samples");

	if (name && !strcmp(name, m->name) && json_array_size(samples) < METRIC_SAMPLES_MAX)
		return samples;
	samples = json_array();
	(void)json_array_append_new(packets, json_pack("{ss ss ss? ss so}", "metric", m->name,
						       "type", m->type, "unit", m->unit, "help",
						       m->help, "samples", samples));
	return samples;
}

void metric_append(json_t *packets, const struct metric *m, json_t *labels, uint64_t value)
{
	const char *key = m->unit && !strcmp(m->unit, "seconds") ? "value_ns" : "value";

	(void)json_array_append_new(samples_for(packets, m),
				    json_pack("{so sI}", "labels", labels, key, (json_int_t)value));
}
