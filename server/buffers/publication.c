#include "server/buffers/publication.h"

#include "server/base/fault.h"
#include "server/buffers/buffer.h"
#include "server/buffers/buffer_commit.h"
#include "server/buffers/event.h"
#include "server/buffers/reaper.h"
#include "server/buffers/retention.h"
#include "server/buffers/version.h"
#include "server/state/server.h"

void buffer_publish(struct buffer *b, struct version *v)
{
	v->number = b->next_version++;
	v->generation = b->generation;
	version_add(v, b);
	b->current = v->number;
	b->state = HEAD_READY;
	event_of_version(WIRE_EVENT_PUBLISHED, v); /* sent in the next round, after the commit */
	(void)buffer_end_old(b);
	fault_point("publish-sealed");
	buffer_save(b);
	fault_point("publish-committed");
	buffer_flip(b);
	fault_point("publish-flipped");
	reaper_soon(b->server->reaper); /* not now: the writer waits for its answer */
}

void buffer_rollback(struct buffer *b, struct version *v)
{
	b->current = v->number;
	fault_point("rollback-begun");
	buffer_save(b);
	fault_point("rollback-committed");
	buffer_flip(b);
	fault_point("rollback-flipped");
	event_of_version(WIRE_EVENT_ROLLED_BACK, v);
}

void buffer_rewrite(struct buffer *b, struct version *v)
{
	v->why = WIRE_END_REWRITTEN; /* the number that was, not the memory */
	event_of_version(WIRE_EVENT_VERSION_GONE, v);
	v->why = WIRE_END_NONE;
	v->number = b->next_version++;
	b->current = v->number;
	b->state = HEAD_READY;
	fault_point("rewrite-finished");
	buffer_save(b);
	b->manifest->n_strangers = 0; /* passed_over, just committed, covers them */
	fault_point("rewrite-committed");
	buffer_flip(b);
	fault_point("rewrite-flipped");
	event_of_version(WIRE_EVENT_PUBLISHED, v);
}
