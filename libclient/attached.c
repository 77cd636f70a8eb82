/*
 * The facts of an attachment, in one call: for bindings, where each call costs more than what it returns
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "libclient/buffer.h"
#include "weightd.h"

int weightd_buffer_attached(const struct weightd_buffer *b, struct weightd_attached *ret)
{
	struct weightd_attached facts = {
		.size = ret->size < sizeof(facts) ? ret->size : sizeof(facts),
		.name = b->name,
		.device = b->device,
		.version = b->version,
		.data = b->memory.data,
		.n_bytes = b->data_size,
		.layout_hash = b->layout_hash,
		.digest = b->has_digest ? b->digest : NULL,
		.memory = (enum weightd_memory)b->memory.location.memory,
		.n_tensors = b->layout.header->n_tensors,
		.data_offset = b->memory.offset,
		.is_mutable = b->is_mutable,
		.has_owner = b->has_uid,
		.owner = b->uid,
	};

	if (ret->size < offsetof(struct weightd_attached, layout_hash))
		return -EINVAL; /* the caller forgot to set it */
	memcpy(ret, &facts, facts.size);
	return 0;
}
