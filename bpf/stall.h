/*
 * What held up the bytes of a row, and for how long
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "bpf/flows/flows.h"

struct division {
	uint64_t ns[N_LIMITS]; /* of the time of all its connections together */
	enum limit by; /* what had most of it */
};

extern const char *const limit_names[N_LIMITS];

/* What was between two readings of a row. False: it did not send, so that nothing held that up. */
bool division_of(const struct totals *before, const struct totals *now, struct division *ret);
