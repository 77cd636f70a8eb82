#include "server/buffers/slot_reuse.h"

#include <stddef.h>

#include "server/base/fault.h"
#include "server/buffers/buffer.h"
#include "server/buffers/tally.h"
#include "server/buffers/version.h"
#include "server/memory/gpu_free.h"
#include "server/memory/slot.h"

bool slot_reuse_keep(struct version *v)
{
	struct buffer *b = v->buffer;

	if (b->spare == v)
		return true;
	if (!b->reusable || b->removed || b->spare || v->slot->sealed ||
	    gpu_free_has_begun(&v->slot->gpu_free) || !v->number ||
	    v->generation != b->generation || slot_is_lost(v->slot))
		return false;
	b->spare = v;
	tally_change(b);
	fault_point("recycle-kept");
	return true;
}

struct version *slot_reuse_find(struct buffer *b, uid_t uid, uint64_t data_size)
{
	struct version *v = b->spare;

	if (!v)
		return NULL;
	if (v->slot->data_size == data_size && v->uid == uid && v->slot->uid == uid &&
	    v->generation == b->generation && !slot_in_use(v->slot) && slot_open(v->slot) == 0)
		return v;
	slot_reuse_forget(b);
	return NULL;
}

void slot_reuse_forget(struct buffer *b)
{
	struct version *v = b->spare;

	b->spare = NULL;
	tally_change(b);
	if (v && gpu_free_run(v->slot))
		version_free(v);
}
