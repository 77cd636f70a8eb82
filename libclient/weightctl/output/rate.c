#include "libclient/weightctl/output/rate.h"

void rate_begin(struct rate *r, uint64_t now, uint64_t done)
{
	const struct rate_mark mark = {now, done};

	*r = (struct rate){mark, mark, mark};
}

void rate_update(struct rate *r, uint64_t now, uint64_t done)
{
	if (done < r->last.done || (done > r->last.done && rate_stalled_ns(r, now))) {
		rate_begin(r, now, done);
		return;
	}
	if (done > r->last.done)
		r->last = (struct rate_mark){now, done};
	if (now - r->next.ns >= RATE_WINDOW_NS) {
		r->from = r->next;
		r->next = (struct rate_mark){now, done};
	}
}

uint64_t rate_stalled_ns(const struct rate *r, uint64_t now)
{
	return now - r->last.ns < RATE_STALL_NS ? 0 : now - r->last.ns;
}

uint64_t rate_bytes(const struct rate *r, uint64_t now, uint64_t *ret_ns)
{
	*ret_ns = now - r->from.ns;
	return r->last.done - r->from.done;
}
