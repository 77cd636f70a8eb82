/*
 * The collector as its questions see it: where they wait for the kernel, and where their events go
 *
 * A question never includes the collector's own headers. The collector fills this in.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "bpf/base/support.h"

enum event_source {
	EVENTS_OF_PROBES,
	EVENTS_OF_WEIGHTD,
	EVENTS_OF_DESCRIPTORS,
	N_EVENT_SOURCES,
};

struct collector;
struct loop;
struct meter;

/* Only bpf/event/event.c calls these; it has a function for each. */
struct collector_ops {
	void (*emit)(struct collector *c, json_t *event);
	void (*count_lost)(struct collector *c, uint64_t n, enum event_source source);
	void (*report_unseen)(struct collector *c, const char *path, uint64_t since_ns,
			      enum event_source source);
};

struct collector {
	const struct collector_ops *ops;
	struct loop *loop;
	uint32_t ring_size; /* bytes of each ring of events */
	const char *sysfs; /* the folder in which the kernel lists devices */
	bool is_forced; /* probes were asked for, whatever the kernel's release */
	struct meter *meter;
	char why_not_bpf[WHY_SIZE]; /* the meter is not made of BPF programs; "": it is */
	uint64_t last_event; /* number of the event that was emitted last */
};
