#include "server/buffers/lost_memory.h"

#include <inttypes.h>

#include "ipc/base/num.h"
#include "server/base/log.h"
#include "server/buffers/buffer.h"
#include "server/buffers/buffer_commit.h"
#include "server/buffers/paused_reader.h"
#include "server/buffers/reaper.h"
#include "server/buffers/slot_reuse.h"
#include "server/buffers/version.h"
#include "server/buffers/writer.h"
#include "server/memory/slot.h"
#include "server/state/server.h"

void lost_memory_fall_back(struct buffer *b)
{
	struct version *newest = buffer_newest(b);

	if (!b->current || buffer_current(b) || b->removed)
		return;
	b->current = newest ? newest->number : 0;
	b->state = newest ? HEAD_READY : HEAD_EMPTY;
	if (newest)
		log_error("'%s@%" PRIu64 "' on %s is served instead", b->name, newest->number,
			  b->device);
	else
		log_error("'%s' on %s has no version left; load it again", b->name, b->device);
}

static void lost_memory_end_version(struct version *v)
{
	struct buffer *b = v->buffer;
	bool was_current = v->number == b->current;

	if (v->ended_ns) {
		if (b->spare == v)
			slot_reuse_forget(b);
		return; /* readers that map it hold it, but it gets no new ones */
	}
	version_end(v, WIRE_END_LOST);
	buffer_audit(b, AUDIT_LOSE, NULL, v->number);
	lost_memory_fall_back(b);
	buffer_save(b);
	if (was_current)
		buffer_flip(b);
	paused_readers_changed(b);
	reaper_soon(b->server->reaper);
}

static bool find_in(struct list *versions, const struct slot *s)
{
	struct version *v;

	list_for_each(v, versions, link)
		if (v->slot == s) {
			lost_memory_end_version(v);
			return true;
		}
	return false;
}

static bool find_in_buffer(struct buffer *b, const struct slot *s)
{
	if (b->writer && !b->writer->target && b->writer->slot == s) {
		/* The client finds out when it publishes, or from the descriptor. */
		log_error("the version being written to '%s' on %s is lost: the process that held "
			  "its memory is dead",
			  b->name, b->device);
		return true;
	}
	return find_in(&b->versions, s) || find_in(&b->leaving, s);
}

void lost_memory_handle(struct slot *s)
{
	struct list *lists[] = {&s->server->buffers, &s->server->removed};
	struct buffer *b;

	slot_unwatch(s);
	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		list_for_each(b, lists[i], link)
			if (find_in_buffer(b, s))
				return;
}

bool lost_memory_check(struct slot *s)
{
	if (!slot_is_lost(s))
		return false;
	if (s->hangup.loop)
		lost_memory_handle(s);
	return true;
}
