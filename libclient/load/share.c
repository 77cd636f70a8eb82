#include "libclient/load/share.h"

#include <string.h>

#include "libclient/buffer.h"
#include "libclient/connection/client.h"

CLEANUP_POINTER(struct weightd_list, weightd_list_free);
CLEANUP_POINTER(struct weightd_buffer, weightd_detach);

static bool may_be_same(const struct weightd_writer *wr, const struct weightd_buffer_info *b)
{
	return b->memory == WEIGHTD_MEMORY_HOST && b->state == WEIGHTD_READY && !b->exclusive &&
	       !b->reusable && !memcmp(b->layout_hash, wr->layout.header->hash, HASH_SIZE) &&
	       !memcmp(b->digest, writer_digest(wr), HASH_SIZE);
}

/* A failure to attach or to share is none to load: the version may be gone, or may not be attached. */
static bool share_with(struct weightd_writer *wr, const struct weightd_buffer_info *info)
{
	const struct weightd_attach_options options = {
		.size = sizeof(options),
		.device = info->device,
		.version = info->version,
	};
	cleanup(weightd_detachp) struct weightd_buffer *b = NULL;

	return weightd_attach(wr->w, info->name, &options, &b) == 0 &&
	       writer_publish_shared(wr, b) == 0;
}

int share_publish(struct weightd_writer *wr, uint64_t *ret_version)
{
	cleanup(weightd_list_freep) struct weightd_list *list = NULL;
	const struct weightd_buffer_info *info;
	int r;

	if (!wr->w->shares || wr->memory.location.memory != WIRE_MEMORY_HOST)
		return 1;
	r = writer_digest_all(wr, client_sentence(wr->w));
	if (r == 0)
		r = weightd_list(wr->w, NULL, &list);
	if (r < 0)
		return r;
	for (size_t i = 0; (info = weightd_list_buffer(list, i)); i++) {
		if (may_be_same(wr, info) && share_with(wr, info)) {
			*ret_version = wr->version;
			return 0;
		}
	}
	return 1;
}
