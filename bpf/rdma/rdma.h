/*
 * What there is of RDMA on this machine: its ports, its queue pairs and the counters that those are bound to
 *
 * The kernel tells all of it to anybody, so that any client may ask.
 */
#pragma once

#include "bpf/request.h"

/* The ports, and where the request says "qps": true the queue pairs and counters; see weightd-trace(8). */
int rdma_op(struct request *q);
/* The ports alone, if there are any. */
void rdma_answer_ports(struct client *c);
/* For the doctor: what there is, and why not. */
void rdma_answer_doctor(struct client *c);
