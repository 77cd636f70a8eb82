/*
 * Causes: the event that another event follows from, of the same process or of another one
 */
#pragma once

#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>

#include "bpf/base/process.h"

struct event_cause {
	uint64_t number; /* number of the event */
	uint64_t ns;
	pid_t pid;
	char comm[COMM_SIZE];
};

struct event_cause event_cause_of(uint64_t number, uint64_t ns, pid_t pid,
				  const char comm[COMM_SIZE]);
/* NULL: it was not seen, and "from" is null. */
void event_cause_set(json_t *event, const struct event_cause *cause);
