/*
 * Stalls: what held up the bytes of a row, and for how long
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "bpf/tcp/meter.bpf.h"

/* None of its bytes gets to the other end. */
struct stall {
	uint64_t since_ns; /* when the last byte was delivered, as far as looks show; 0: there was no look */
	struct totals since;
};

/* One that was, or still is. */
struct stalled {
	uint64_t since_ns, until_ns; /* the last look that found it */
	enum limit cause;
};

#define STALLS_MAX 8

/* The longest of a row, in the order in which they began. */
struct stalls {
	struct stalled list[STALLS_MAX];
	unsigned n;
};

struct division {
	uint64_t ns[N_LIMITS]; /* parts of the time of all its connections together */
	enum limit by; /* the largest */
};

/* The rest of a row that has all its bytes: that there are no more to send is no stall. */
struct rest {
	bool is_on; /* at the last look */
	uint64_t producer_ns; /* the row's share of that limit then */
	uint64_t ns; /* the rest's part of that time */
};

extern const char *const limit_names[N_LIMITS];

/* Something may have been delivered. */
void stall_look(struct stall *s, const struct totals *now, uint64_t now_ns);
/* False: it is none, or not long enough to be one. */
bool stall_cause(const struct stall *s, const struct totals *now, uint64_t now_ns, uint32_t rtt_us,
		 enum limit *ret);

/* A look found it, which may have found it before. */
void stalls_take(struct stalls *s, const struct stalled *found);

void rest_look(struct rest *r, const struct totals *now, bool has_all);

/*
 * Divides the time between two readings of a row. False: the row did not send, so that nothing held it up.
 */
bool division_of(const struct totals *before, const struct totals *now, struct division *ret);
/* The same of a part of its time, in which a row that sends may have been held up so that nothing was sent. */
bool division_since(const struct totals *since, const struct totals *now, struct division *ret);
/* So much of that was rest, and is in it no more. */
void division_rest(struct division *d, uint64_t ns);
