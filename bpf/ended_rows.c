#include "bpf/ended_rows.h"

#include "bpf/tracer.h"

int ended_rows_op(struct request *q)
{
	struct client *c = q->client;
	int r = request_may_observe(q);

	if (r < 0)
		return r;
	event_log_answer(&c->tracer->ended_rows, c, "past");
	return 0;
}
