#include "bpf/ended_rows.h"

#include "bpf/tracer.h"

int past_op(struct request *q)
{
	struct client *c = q->client;
	int r = request_may_observe(q);

	if (r < 0)
		return r;
	kept_answer(&c->tracer->past, c, "past");
	return 0;
}
