#include "server/buffers/device_usage.h"

#include <stdbool.h>

#include "server/buffers/buffer.h"
#include "server/buffers/version.h"
#include "server/buffers/writer.h"
#include "server/memory/gpu_free.h"
#include "server/memory/slot.h"
#include "server/state/server.h"

static uint64_t bytes_of(const struct slot *s, bool being_freed)
{
	if (!s || gpu_free_is_over(&s->gpu_free) || gpu_free_has_begun(&s->gpu_free) != being_freed)
		return 0;
	/* On a GPU nothing before there is memory, and then what it takes there. */
	return s->backend->opaque ? s->memory.location.map_size : s->size;
}

uint64_t buffer_bytes(const struct buffer *b)
{
	const struct version *v;
	uint64_t size = 0;

	list_for_each(v, &b->versions, link)
		size += bytes_of(v->slot, false);
	list_for_each(v, &b->leaving, link)
		size += bytes_of(v->slot, false);
	return size;
}

uint64_t buffer_charged_bytes(const struct buffer *b, uid_t uid)
{
	const struct version *v;
	uint64_t size = 0;

	list_for_each(v, &b->versions, link)
		size += v->slot && v->slot->uid == uid ? v->slot->charge.amount : 0;
	list_for_each(v, &b->leaving, link)
		size += v->slot && v->slot->uid == uid ? v->slot->charge.amount : 0;
	return size;
}

static uint64_t bytes_in(const struct list *buffers, const char *device, bool being_freed)
{
	const struct version *v;
	const struct buffer *b;
	uint64_t size = 0;

	list_for_each(b, buffers, link) {
		if (!buffer_is_on(b, device))
			continue;
		list_for_each(v, &b->versions, link)
			size += bytes_of(v->slot, being_freed);
		list_for_each(v, &b->leaving, link)
			size += bytes_of(v->slot, being_freed);
		if (b->writer && !b->writer->target && b->writer->kept)
			size += bytes_of(b->writer->slot, being_freed);
	}
	return size;
}

uint64_t buffers_bytes(const struct server *server, const char *device)
{
	return bytes_in(&server->buffers, device, false) + bytes_in(&server->removed, device, false);
}

uint64_t buffers_bytes_being_freed(const struct server *server, const char *device)
{
	return bytes_in(&server->buffers, device, true) + bytes_in(&server->removed, device, true);
}
