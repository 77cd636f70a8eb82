#include "server/buffers/version.h"

#include <assert.h>
#include <stdlib.h>

#include "server/base/fault.h"
#include "server/base/subordinate.h"
#include "server/buffers/buffer.h"
#include "server/buffers/buffer_commit.h"
#include "server/buffers/event.h"
#include "server/buffers/held_charge.h"
#include "server/buffers/reaper.h"
#include "server/buffers/tally.h"
#include "server/memory/layout_table.h"
#include "server/memory/slot.h"
#include "server/memory/version_files.h"
#include "server/state/server.h"

struct version *version_blank(void)
{
	struct version *v = calloc(1, sizeof(*v));

	if (!v)
		return NULL;
	list_init(&v->link);
	list_init(&v->leases);
	list_init(&v->holds);
	list_init(&v->held_link);
	v->last_reader = v->holder = HELD_NOBODY;
	return v;
}

void version_add(struct version *v, struct buffer *b)
{
	v->buffer = b;
	buffer_ref(b);
	if (v->ended_ns) {
		list_append(&b->leaving, &v->link);
		b->n_leaving++;
		reaper_follow(b);
	} else {
		list_append(&b->versions, &v->link);
		b->n_versions++;
	}
	tally_change(b);
}

struct hold *version_hold(const struct version *v, uid_t uid)
{
	uid_t payer = subordinate_payer(uid);
	struct hold *h;

	list_for_each(h, &v->holds, link)
		if (h->uid == payer)
			return h;
	return NULL;
}

uint32_t version_flags(const struct version *v)
{
	return (v->has_digest ? WIRE_VERSION_DIGEST : 0) |
	       (v->buffer->exclusive ? WIRE_VERSION_MUTABLE : 0) |
	       (v->slot->data_offset ? WIRE_VERSION_IMAGE : 0) | (v->files ? WIRE_VERSION_FILES : 0);
}

uint32_t version_flags_for(const struct version *v, uint64_t features)
{
	uint32_t flags = version_flags(v);

	return features & WIRE_FEATURE_IMAGE ? flags
					     : flags & (WIRE_VERSION_DIGEST | WIRE_VERSION_MUTABLE);
}

void version_end(struct version *v, enum wire_end why)
{
	struct buffer *b = v->buffer;

	assert(!v->ended_ns);
	v->ended_ns = buffer_now_ns();
	v->why = why;
	quota_refund(&v->charge); /* its bytes stay charged until they are free */
	list_remove(&v->link);
	b->n_versions--;
	list_append(&b->leaving, &v->link);
	b->n_leaving++;
	reaper_follow(b);
	tally_change(b);
	if (buffer_has_name(b))
		event_of_version(WIRE_EVENT_VERSION_GONE, v);
}

void version_free(struct version *v)
{
	struct buffer *b = v->buffer;

	assert(v->n_leases == 0);
	list_remove(&v->link);
	if (v->ended_ns)
		b->n_leaving--;
	else
		b->n_versions--;
	if (b->spare == v)
		b->spare = NULL;
	held_forget(v);
	/* Out of the store, then out of the manifest: what recovery finds in neither never was. */
	slot_free(v->slot);
	layout_table_unref(v->table);
	version_files_unref(v->files);
	tally_change(b);
	fault_point("free-removed");
	buffer_save(b);
	fault_point("free-saved");
	quota_refund(&v->charge);
	free(v);
	buffer_unref(b);
}
