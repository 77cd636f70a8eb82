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

bool buffer_only_keeps(const struct buffer *b, const struct version *v)
{
	return v->n_leases == 0 && v->number != b->current;
}

/* The oldest that may go; with `must_free`, one with memory that no process holds. */
static struct version *oldest_kept(const struct buffer *b, bool must_free)
{
	struct version *v;

	list_for_each(v, &b->versions, link)
		if (buffer_only_keeps(b, v) && !(must_free && slot_is_held(v->slot)))
			return v;
	return NULL;
}

bool buffer_end_old(struct buffer *b)
{
	struct version *v;
	bool some = false;

	while (b->n_versions > b->keep && (v = oldest_kept(b, false))) {
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

uint64_t buffers_kept_bytes(const struct server *server, const char *device)
{
	struct version *v;
	struct buffer *b;
	uint64_t size = 0;

	list_for_each(b, &server->buffers, link) {
		if (!buffer_is_on(b, device))
			continue;
		list_for_each(v, &b->versions, link)
			if (buffer_only_keeps(b, v))
				size += v->slot->size;
		if (b->spare)
			size += b->spare->slot->size;
	}
	return size;
}

bool buffers_evict(struct server *server, const char *device, uint64_t missing)
{
	struct version *oldest = NULL;
	struct buffer *b;

	if (buffers_kept_bytes(server, device) < missing)
		return false;
	if (slot_reuse_evict(server, device))
		return true;
	list_for_each(b, &server->buffers, link) {
		struct version *v = buffer_is_on(b, device) ? oldest_kept(b, true) : NULL;

		if (v && (!oldest || v->published_ns < oldest->published_ns))
			oldest = v;
	}
	if (!oldest)
		return false;
	buffer_drop_version(oldest->buffer, oldest, WIRE_END_MEMORY);
	return true;
}
