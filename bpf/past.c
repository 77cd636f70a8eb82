#include "bpf/past.h"

#include "bpf/tracer.h"

int past_op(struct request *q)
{
	struct client *c = q->client;
	uint64_t lost = c->lost;
	int r = request_may_observe(q);

	if (r < 0)
		return r;
	kept_answer(&c->tracer->past, c, "past");
	return request_check_all_told(q, lost, "there are more rows");
}
