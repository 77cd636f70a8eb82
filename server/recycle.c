#include "server/recycle.h"

#include <stddef.h>

#include "ipc/base/cleanup.h"
#include "server/buffer.h"
#include "server/server.h"
#include "server/slot.h"

bool recycle_keep(struct version *v)
{
	struct buffer *b = v->buffer;

	if (b->spare == v)
		return true;
	if (!b->reusable || b->removed || b->spare || v->slot->sealed || !v->number ||
	    v->generation != b->generation)
		return false;
	b->spare = v;
	return true;
}

/* Opens again what slot_in_use() has closed for good. */
static bool reopen(struct slot *s)
{
	return s->backend->reader(s->probe_fd, &s->reader_fd) == 0 && slot_open(s) == 0;
}

bool recycle_slot(struct buffer *b, uid_t uid, uint64_t data_size, struct slot **ret)
{
	struct version *v = b->spare;

	if (!v)
		return false;
	if (v->slot->data_size != data_size || v->uid != uid || v->slot->uid != uid ||
	    v->generation != b->generation || slot_in_use(v->slot) || !reopen(v->slot)) {
		recycle_forget(b);
		return false;
	}
	*ret = take_ptr(v->slot);
	version_free(v);
	return true;
}

void recycle_forget(struct buffer *b)
{
	struct version *v = b->spare;

	b->spare = NULL;
	if (v)
		version_free(v);
}

bool recycle_evict(struct server *server)
{
	struct buffer *b;

	list_for_each(b, &server->buffers, link)
		if (b->spare) {
			recycle_forget(b);
			return true;
		}
	return false;
}
