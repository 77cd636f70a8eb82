/*
 * Reports of events for weightd-trace: bpf/client_event.c has the same words and members
 */
#pragma once

#include <stdbool.h>

#include "bpf/nccl/comm.h"
#include "bpf/nccl/slot.h"
#include "bpf/nccl/sum.h"
#include "bpf/nccl/text.h"

/* Totals of a communicator so far. */
struct comm_sums {
	uint64_t colls, p2ps;
	uint64_t unreported; /* the part of these calls that were not reported one by one */
};

void report_of_comm(struct text *t, const struct comm *c, const struct comm_sums *sums,
		    bool is_closed, uint64_t now_ns);
void report_of_task(struct text *t, const struct comm *c, const struct slot *task);
void report_of_sum(struct text *t, const struct comm *c, const struct sum *sum);
/* Reports that others were lost. */
void report_of_gap(struct text *t, uint64_t lost, uint64_t from_ns, uint64_t now_ns);
