/*
 * RDMA on this machine: its ports, its queue pairs and the counters that those are bound to
 *
 * The kernel shows all of it to any process, so that any client may ask.
 */
#pragma once

#include "bpf/base/question.h"

/* Answers with the ports, and for "qps": true with queue pairs and counters; see weightd-trace(8). */
extern const struct question_kind question_rdma;

/* Adds the ports alone, if there are any. */
void rdma_add_ports(const char *sysfs, struct answer *a);
