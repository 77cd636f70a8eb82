/*
 * The recorder: sends the events of questions to observers, and keeps them for clients that ask later
 */
#pragma once

#include "bpf/request.h"

#define EVENTS_MAX 4096 /* that are kept */

/* The operations of tracer::collector. */
extern const struct collector_ops event_recorder_ops;

/* Answers with the events that are kept, the oldest first; their kind is "acted". */
int event_recorder_op(struct request *q);
