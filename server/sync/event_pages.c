#include "server/sync/event_pages.h"

#include "server/sync/base/json_packet.h"

#define NODES_BYTES_MAX                                                                            \
	(JSON_PACKET_SIZE_MAX / 2) /* in one packet; the other half is for the other fields */

static json_t *page_of(const json_t *event, const json_t *nodes)
{
	return json_pack("{s:s, s:O?, s:O}", "event", "nodes", "sync",
			 json_object_get(event, "sync"), "nodes", nodes);
}

json_t *event_pages_split(const json_t *event)
{
	cleanup(json_freep) json_t *pages = json_array();
	cleanup(json_freep) json_t *nodes = json_array();
	cleanup(json_freep) json_t *last = json_copy((json_t *)event);
	size_t i, n_bytes = 0;
	json_t *node;

	json_array_foreach(json_object_get(event, "nodes"), i, node)
	{
		size_t n = json_dumpb(node, NULL, 0, JSON_COMPACT) + 1;

		if (json_array_size(nodes) && n_bytes + n > NODES_BYTES_MAX) {
			if (json_array_append_new(pages, page_of(event, nodes)) < 0)
				return NULL;
			json_decref(nodes);
			nodes = json_array();
			n_bytes = 0;
		}
		n_bytes += n;
		if (json_array_append(nodes, node) < 0)
			return NULL;
	}
	if (json_array_size(pages) && json_object_set(last, "nodes", nodes) < 0)
		return NULL;
	return json_array_append(pages, last) < 0 ? NULL : take_ptr(pages);
}
