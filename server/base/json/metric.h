/*
 * Metrics as packets of JSON, for OpenMetrics
 *
 * A family of samples is one packet with its head and up to METRIC_SAMPLES_MAX samples, or several, as packets of a
 * control socket are bounded. All families are counters or gauges.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#define METRIC_SAMPLES_MAX 24 /* in a packet: each may have two names, escaped */

struct metric {
	const char *name;
	const char *type; /* "counter", "gauge" */
	const char *unit; /* end of the name; NULL: none */
	const char *help;
};

/* Appends a sample. Takes `labels`. A value in seconds is given, and sent, in nanoseconds. */
void metric_append(json_t *packets, const struct metric *m, json_t *labels, uint64_t value);
