/*
 * The question about probes: what processes ask of libraries, and what weightd reports by its own probes
 */
#pragma once

#include "bpf/base/question.h"
#include "bpf/rdma/qp.h"

/* Answers with what is attached to weightd now. */
extern const struct question_kind question_probes;

/* The one queue pair that has this name all that time, after all calls that have returned; NULL: none, or more than one. */
const struct qp *probe_question_find_qp(struct question *q, const struct qp_name *name,
					uint64_t since_ns, uint64_t until_ns);
