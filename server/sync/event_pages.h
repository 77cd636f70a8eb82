/*
 * Event pages
 *
 * The end of a sync names every node, and a thousand of them have no room in one packet: most of the nodes go ahead,
 * {"event":"nodes", "sync", "nodes":[...]}, as often as is needed, and the end has the last of them.
 */
#pragma once

#include <jansson.h>

/* The packets of an event, in order, the last one being the event itself with what is left. NULL: no memory. */
json_t *event_pages_split(const json_t *event);
