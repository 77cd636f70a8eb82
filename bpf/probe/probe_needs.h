/*
 * Features of the kernel that probes need, each tried alone
 */
#pragma once

#include "bpf/base/support.h"

#define N_PROBE_NEEDS 3

struct probe_need {
	const char *program; /* its name in probes.bpf.c; NULL: a way to watch mappings, of any kind */
	const char *name;
	const char *since;
	const char *lost;
};

extern const struct probe_need probe_needs[N_PROBE_NEEDS];

struct probe_findings {
	char why_not[N_PROBE_NEEDS][WHY_SIZE]; /* "": the kernel has it */
};

/* Tries each need. */
void probe_needs_check(struct probe_findings *ret);
