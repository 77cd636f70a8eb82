#include "server/buffers/retention.h"

#include "server/base/fault.h"
#include "server/buffers/buffer.h"
#include "server/buffers/buffer_commit.h"
#include "server/buffers/event.h"
#include "server/buffers/paused_reader.h"
#include "server/buffers/reaper.h"
#include "server/buffers/slot_reuse.h"
#include "server/buffers/version.h"
#include "server/memory/slot.h"
#include "server/state/server.h"

static struct version *oldest_kept(const struct buffer *b)
{
	struct version *v;

	list_for_each(v, &b->versions, link)
		if (buffer_only_keeps(b, v))
			return v;
	return NULL;
}

bool buffer_end_old(struct buffer *b)
{
	struct version *v;
	bool some = false;

	while (b->n_versions > b->keep && (v = oldest_kept(b))) {
		version_end(v, WIRE_END_KEEP);
		some = true;
	}
	return some;
}

void buffer_trim(struct buffer *b)
{
	if (!buffer_end_old(b))
		return;
	fault_point("trim-begun");
	buffer_save(b);
	fault_point("trim-committed");
	reaper_reap(b);
}

void buffer_drop_version(struct buffer *b, struct version *v, enum wire_end why)
{
	version_end(v, why);
	fault_point("drop-begun");
	buffer_save(b);
	fault_point("drop-committed");
	paused_readers_changed(b);
	reaper_reap(b);
}

void buffer_drop(struct buffer *b)
{
	struct version *v, *tmp;

	b->removed = true;
	list_remove(&b->link);
	list_append(&b->server->removed, &b->link);
	b->server->n_buffers--;
	quota_refund(&b->charge); /* its descriptors stay charged until they are free */
	event_of_buffer(WIRE_EVENT_REMOVED, b);
	list_for_each_safe(v, tmp, &b->versions, link)
		version_end(v, WIRE_END_DROPPED);
	b->state = HEAD_GONE;
	slot_reuse_forget(b);
	fault_point("remove-begun");
	buffer_save(b);
	fault_point("remove-committed");
	buffer_flip(b);
	paused_readers_resume(b); /* there is nothing to wait for any more */
	paused_readers_changed(b);
	reaper_reap(b);
	buffer_unref(b);
}
