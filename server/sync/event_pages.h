/*
 * Event pages
 *
 * The end event of a sync contains every node, and a thousand of them do not fit into one packet.
 * So most nodes are sent before it, in as many {"event":"nodes", "sync", "nodes":[...]} as needed,
 * and the end event has the last of them.
 */
#pragma once

#include <jansson.h>

/*
 * The packets of an event, in order; the last one is the event itself with the rest. NULL: no
 * memory.
 */
json_t *event_pages_split(const json_t *event);
