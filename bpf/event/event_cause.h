/*
 * Origins: the act that another act has something from, of the same process or of another one
 */
#pragma once

#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>

#include "bpf/base/process.h"

struct probe_call;
struct probes;

struct event_cause {
	uint64_t number; /* of the act */
	uint64_t ns;
	pid_t pid;
	char comm[COMM_SIZE];
};

/* The act that is told of this call, now. */
struct event_cause event_cause_of(const struct probes *p, const struct probe_call *c);
/* NULL: nobody saw it, and "from" is null. */
void event_cause_set(json_t *event, const struct event_cause *cause);
