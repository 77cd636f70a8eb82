/*
 * The kernel measures how long a connection had nothing to send, no room at either end, or no answer; all other time
 * it is busy. That is as it should be, unless so much is lost that TCP keeps only a few segments on their way: then
 * the losses take that time.
 */
#include "bpf/tcp/stall.h"

#include <string.h>

/*
 * One byte of 200: TCP then keeps no more than 1.2 / sqrt(1 / 200) = 17 segments on their way (RFC 3649).
 */
#define LOSSY 200
/* Nothing arrives for so long, and that is no pause between two acknowledgements. */
#define STALL_NS 200000000u
#define ROUND_TRIPS 4

const char *const limit_names[N_LIMITS] = {
	[LIMIT_BUSY] = "busy",
	[LIMIT_RECEIVE_WINDOW] = "receive_window",
	[LIMIT_SEND_BUFFER] = "send_buffer",
	[LIMIT_PRODUCER] = "producer",
	[LIMIT_PACING] = "pacing",
	[LIMIT_LOSS] = "loss",
	[LIMIT_SILENT] = "silent",
};

/*
 * Waiting in vain is taken from what TCP did meanwhile, which it may have called something else before: what
 * one has too little of, the others have too much. The sum is right, always. They pay in this order: a look calls
 * busy time something else, but never that the receiver had no room. Waiting that began before the first reading, and
 * that only a later look found, pays last: its share from before is in none of the others.
 */
static void stall_settle(uint64_t ns[N_LIMITS])
{
	static const enum limit payers[N_LIMITS] = {
		LIMIT_BUSY,           LIMIT_PACING, LIMIT_PRODUCER, LIMIT_SEND_BUFFER,
		LIMIT_RECEIVE_WINDOW, LIMIT_LOSS,   LIMIT_SILENT,
	};
	uint64_t owed = 0, paid;

	for (int i = 0; i < N_LIMITS; i++)
		if (ns[i] > INT64_MAX) {
			owed -= ns[i];
			ns[i] = 0;
		}
	for (int i = 0; i < N_LIMITS; i++) {
		uint64_t *has = &ns[payers[i]];

		paid = owed < *has ? owed : *has;
		*has -= paid;
		owed -= paid;
	}
}

static bool is_sent(uint64_t submitted, uint64_t received)
{
	return submitted > 0 && submitted >= received;
}

static void name_largest(struct division *d)
{
	d->by = LIMIT_BUSY;
	for (int i = 0; i < N_LIMITS; i++)
		if (d->ns[i] > d->ns[d->by])
			d->by = (enum limit)i;
}

static void stall_divide(const struct totals *before, const struct totals *now, struct division *ret)
{
	uint64_t c[N_COUNTERS];

	for (int i = 0; i < N_COUNTERS; i++)
		c[i] = now->counter[i] - before->counter[i];
	for (int i = 0; i < N_LIMITS; i++)
		ret->ns[i] = now->limit_ns[i] - before->limit_ns[i];
	stall_settle(ret->ns);
	if (c[COUNTER_RETRANS_BYTES] > 0 && c[COUNTER_RETRANS_BYTES] * LOSSY >= c[COUNTER_WIRE]) {
		ret->ns[LIMIT_LOSS] += ret->ns[LIMIT_BUSY];
		ret->ns[LIMIT_BUSY] = 0;
	}
	name_largest(ret);
}

bool division_of(const struct totals *before, const struct totals *now, struct division *ret)
{
	if (!is_sent(now->counter[COUNTER_SUBMITTED] - before->counter[COUNTER_SUBMITTED],
		     now->counter[COUNTER_RECEIVED] - before->counter[COUNTER_RECEIVED]))
		return false;
	stall_divide(before, now, ret);
	return true;
}

bool division_since(const struct totals *since, const struct totals *now, struct division *ret)
{
	if (!is_sent(now->counter[COUNTER_SUBMITTED], now->counter[COUNTER_RECEIVED]))
		return false;
	stall_divide(since, now, ret);
	return true;
}

void division_rest(struct division *d, uint64_t ns)
{
	uint64_t *producer_ns = &d->ns[LIMIT_PRODUCER];

	*producer_ns -= ns < *producer_ns ? ns : *producer_ns;
	name_largest(d);
}

void rest_look(struct rest *r, const struct totals *now, bool has_all)
{
	uint64_t producer_ns = now->limit_ns[LIMIT_PRODUCER];
	int64_t grown = (int64_t)(producer_ns - r->producer_ns); /* from below 0, perhaps */

	if (r->is_on && grown > 0)
		r->ns += (uint64_t)grown;
	r->is_on = has_all;
	r->producer_ns = producer_ns;
}

void stall_look(struct stall *s, const struct totals *now, uint64_t now_ns)
{
	if (s->since_ns > 0 && now->counter[COUNTER_DELIVERED] == s->since.counter[COUNTER_DELIVERED])
		return;
	*s = (struct stall){.since_ns = now_ns, .since = *now};
}

bool stall_cause(const struct stall *s, const struct totals *now, uint64_t now_ns, uint32_t rtt_us,
		 enum limit *ret)
{
	uint64_t least_ns = UINT64_C(1000) * ROUND_TRIPS * rtt_us;
	struct division d;

	if (least_ns < STALL_NS)
		least_ns = STALL_NS;
	if (s->since_ns == 0 || now_ns - s->since_ns < least_ns ||
	    !division_since(&s->since, now, &d))
		return false;
	*ret = d.by;
	return true;
}

static uint64_t length_of(const struct stalled *s)
{
	return s->until_ns - s->since_ns;
}

void stalls_take(struct stalls *s, const struct stalled *found)
{
	unsigned shortest = 0;

	if (s->n > 0 && s->list[s->n - 1].since_ns == found->since_ns) {
		s->list[s->n - 1] = *found;
		return;
	}
	if (s->n == STALLS_MAX) {
		for (unsigned i = 1; i < s->n; i++)
			if (length_of(&s->list[i]) < length_of(&s->list[shortest]))
				shortest = i;
		if (length_of(found) <= length_of(&s->list[shortest]))
			return; /* as yet */
		s->n--;
		memmove(&s->list[shortest], &s->list[shortest + 1],
			(s->n - shortest) * sizeof(*found));
	}
	s->list[s->n++] = *found;
}
