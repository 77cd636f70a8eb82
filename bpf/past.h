/*
 * Rows whose span has ended: the last of them, of all clients, so that who asks later hears of them, too
 */
#pragma once

#include "bpf/request.h"

#define PAST_MAX 2048 /* rows */

/* A copy, for which the oldest goes once there are too many. Without memory there is none. */
void past_add(struct tracer *t, const json_t *total);
/* The rows, the oldest first. */
int past_op(struct request *q);
void past_free(struct tracer *t);
