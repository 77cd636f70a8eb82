/*
 * The kernel measures how long a connection had nothing to send, no room at either end, or nobody who
 * answered; all other time it is busy. That is as it should be, unless so much is lost that TCP dares to
 * keep but a few segments on their way: then the losses take that time.
 */
#include "bpf/stall.h"

/* Of 200 bytes one: TCP then keeps no more than 1.2 / sqrt(1 / 200) = 17 segments on their way (RFC 3649). */
#define LOSSY 200

const char *const limit_names[N_LIMITS] = {
	[LIMIT_BUSY] = "busy",
	[LIMIT_RECEIVE_WINDOW] = "receive_window",
	[LIMIT_SEND_BUFFER] = "send_buffer",
	[LIMIT_PRODUCER] = "producer",
	[LIMIT_LOSS] = "loss",
	[LIMIT_SILENT] = "silent",
};

/*
 * Waiting in vain is taken from what TCP did meanwhile, which it may have called something else before: what
 * one has too little of, the others have too much. The sum is right, always.
 */
static void settle(uint64_t ns[N_LIMITS_OF_TCP])
{
	uint64_t owed = 0, paid;

	for (int i = 0; i < N_LIMITS_OF_TCP; i++)
		if (ns[i] > INT64_MAX) {
			owed -= ns[i];
			ns[i] = 0;
		}
	for (int i = 0; i < N_LIMITS_OF_TCP; i++) {
		paid = owed < ns[i] ? owed : ns[i];
		ns[i] -= paid;
		owed -= paid;
	}
}

bool division_of(const struct totals *before, const struct totals *now, struct division *ret)
{
	uint64_t c[N_COUNTERS];

	for (int i = 0; i < N_COUNTERS; i++)
		c[i] = now->counter[i] - before->counter[i];
	if (c[COUNTER_SUBMITTED] == 0 || c[COUNTER_SUBMITTED] < c[COUNTER_RECEIVED])
		return false;
	for (int i = 0; i < N_LIMITS; i++)
		ret->ns[i] = now->limit_ns[i] - before->limit_ns[i];
	settle(ret->ns);
	if (c[COUNTER_RETRANS_BYTES] > 0 && c[COUNTER_RETRANS_BYTES] * LOSSY >= c[COUNTER_WIRE]) {
		ret->ns[LIMIT_LOSS] += ret->ns[LIMIT_BUSY];
		ret->ns[LIMIT_BUSY] = 0;
	}
	ret->by = LIMIT_BUSY;
	for (int i = 0; i < N_LIMITS; i++)
		if (ret->ns[i] > ret->ns[ret->by])
			ret->by = (enum limit)i;
	return true;
}
