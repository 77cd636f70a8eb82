/*
 * A row can have several slices, one for each span: if both ends have the same number, the first belongs to the
 * first. Uncertain pairs have no arrow.
 */
#include "libclient/weightctl/output/trace_arrow.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/weightctl/output/cli_error.h"
#include "libclient/weightctl/output/json_field.h"

#define TEXT_MAX 127 /* bytes of a name, as of weightd-trace's */
#define KEY_MAX 640 /* four of them */

#define NONE (-1)
#define SEVERAL (-2)

struct piece { /* a slice and its bytes; UINT64_MAX: unknown */
	struct trace_slice slice;
	uint64_t sent, received;
};

struct trace_arrow_end {
	char sync[TEXT_MAX + 1];
	json_int_t partner; /* NONE, SEVERAL or an index */
	size_t n_pieces;
	struct piece *pieces;
};

static json_t *object(void)
{
	json_t *o = json_object();

	if (!o)
		cli_out_of_memory();
	return o;
}

static void map_set(json_t *map, const char *key, json_int_t value)
{
	if (json_object_set_new(map, key, json_integer(value)) < 0)
		cli_out_of_memory();
}

static json_int_t map_get(const json_t *map, const char *key)
{
	const json_t *value = json_object_get(map, key);

	return value ? json_integer_value(value) : NONE;
}

static const char *text(const json_t *packet, const char *key)
{
	const char *s = json_field_text(packet, key);

	return s && strlen(s) <= TEXT_MAX && !strchr(s, '\n') ? s : NULL; /* lines of keys */
}

/* The key of a row between `node` and its `peer`. */
static void name_key(const json_t *row, const char *node, const char *peer, char ret[KEY_MAX])
{
	(void)snprintf(ret, KEY_MAX, "%s\n%" PRIu64 "\n%s\n%s\n%s", text(row, "sync"),
		       json_field_number(row, "version", 0), text(row, "role"), node, peer);
}

/* An index that two have is that of none. */
static void map_claim(json_t *map, const char *key, json_int_t end)
{
	json_int_t other = map_get(map, key);

	map_set(map, key, other == NONE || other == end ? end : SEVERAL);
}

/* The row of the packet, or NONE if it cannot be determined. */
static json_int_t end_of(struct trace_arrows *a, const json_t *packet)
{
	uint64_t number = json_field_number(packet, "row", UINT64_MAX);
	json_int_t end = (json_int_t)a->n_ends;
	char key[KEY_MAX];

	if (number == UINT64_MAX || !text(packet, "sync") || !text(packet, "role") ||
	    !text(packet, "peer"))
		return NONE;
	(void)snprintf(key, sizeof(key), "%s\n%" PRIu64 "\n%s", a->node, number,
		       text(packet, "sync"));
	if (json_object_get(a->by_row, key))
		return map_get(a->by_row, key);
	a->ends = cli_grown(a->ends, a->n_ends, sizeof(*a->ends));
	a->ends[a->n_ends] = (struct trace_arrow_end){.partner = NONE};
	(void)strcpy(a->ends[a->n_ends++].sync, text(packet, "sync"));
	map_set(a->by_row, key, end);
	name_key(packet, a->node, text(packet, "peer"), key);
	map_claim(a->by_name, key, end);
	return end;
}

void trace_arrows_add(struct trace_arrows *a, const json_t *packet)
{
	const char *local = text(packet, "local"), *remote = text(packet, "remote");
	json_int_t end = local && remote ? end_of(a, packet) : NONE;
	char key[KEY_MAX];

	if (end == NONE)
		return;
	(void)snprintf(key, sizeof(key), "%s\n%s\n%s", text(packet, "sync"), local, remote);
	map_claim(a->by_connection, key, end);
}

void trace_arrows_note(struct trace_arrows *a, const json_t *row, const struct trace_slice *slice)
{
	json_int_t i = end_of(a, row);
	struct trace_arrow_end *end;

	if (i == NONE)
		return;
	end = &a->ends[i];
	end->pieces = cli_grown(end->pieces, end->n_pieces, sizeof(*end->pieces));
	end->pieces[end->n_pieces++] = (struct piece){
		.slice = *slice,
		.sent = json_field_number(row, "delivered", UINT64_MAX),
		.received = json_field_number(row, "received", UINT64_MAX),
	};
}

static void trace_arrows_pair(struct trace_arrows *a, json_int_t one, json_int_t other)
{
	struct trace_arrow_end *end = &a->ends[one];

	end->partner = end->partner == NONE || end->partner == other ? other : SEVERAL;
}

/* Changes the order of two parts of `key`, which begin behind its line `n`. */
static void swapped(const char *key, int n, char ret[KEY_MAX])
{
	const char *first = key, *second;

	while (n--)
		first = strchr(first, '\n') + 1;
	second = strchr(first, '\n') + 1;
	(void)snprintf(ret, KEY_MAX, "%.*s%s\n%.*s", (int)(first - key), key, second,
		       (int)(second - first - 1), first);
}

/* Two ends, one of which has a key of which the other has it swapped; with `only_new` those that have no partner yet. */
static void pair_by(struct trace_arrows *a, json_t *map, int n, bool only_new)
{
	char key[KEY_MAX];
	const char *name;
	json_t *value;

	json_object_foreach(map, name, value)
	{
		json_int_t one = json_integer_value(value), other;

		swapped(name, n, key);
		other = map_get(map, key);
		if (one < 0 || other < 0 || one >= other)
			continue;
		if (only_new && (a->ends[one].partner != NONE || a->ends[other].partner != NONE))
			continue;
		trace_arrows_pair(a, one, other);
		trace_arrows_pair(a, other, one);
	}
}

static void trace_arrows_put(struct trace_events *c, const char *phase, json_int_t id,
			     const char *name, const struct trace_slice *slice, int64_t ns)
{
	json_t *event = json_pack("{ss ss ss sI sI sI sf}", "name", name, "cat", "sync", "ph",
				  phase, "id", id, "pid", slice->process, "tid", slice->thread,
				  "ts", (double)ns / 1000);

	/* It ends in the slice around it, not in the next one. */
	if (*phase == 'f' && event && json_object_set_new(event, "bp", json_string("e")) < 0)
		cli_out_of_memory();
	trace_events_put(c, event);
}

/* From where the one begins to where the other does, but not back in time. */
static void draw_arrow(struct trace_arrows *a, struct trace_events *c, const char *sync,
		       const struct trace_slice *from, const struct trace_slice *to)
{
	int64_t ns = to->begin_ns > from->begin_ns ? to->begin_ns : from->begin_ns;

	if (ns > to->end_ns) {
		a->n_backward++;
		return;
	}
	trace_arrows_put(c, "s", ++a->last_id, sync, from, from->begin_ns);
	trace_arrows_put(c, "f", a->last_id, sync, to, ns);
}

/* Draws to the end that received more than it sent; both ways if that was the same. */
static void draw_pair(struct trace_arrows *a, struct trace_events *c, const char *sync,
		      const struct piece *one, const struct piece *other)
{
	uint64_t out = one->sent == UINT64_MAX ? other->received : one->sent;
	uint64_t back = one->received == UINT64_MAX ? other->sent : one->received;

	if (out == UINT64_MAX || back == UINT64_MAX || (out == 0 && back == 0))
		return;
	if (out >= back)
		draw_arrow(a, c, sync, &one->slice, &other->slice);
	if (back >= out)
		draw_arrow(a, c, sync, &other->slice, &one->slice);
}

void trace_arrows_draw(struct trace_arrows *a, struct trace_events *c)
{
	pair_by(a, a->by_connection, 1, false);
	pair_by(a, a->by_name, 3, true);
	for (size_t i = 0; i < a->n_ends; i++) {
		const struct trace_arrow_end *one = &a->ends[i], *other;

		if (one->partner <= (json_int_t)i)
			continue;
		other = &a->ends[one->partner];
		if (other->partner != (json_int_t)i || other->n_pieces != one->n_pieces)
			continue;
		for (size_t k = 0; k < one->n_pieces; k++)
			draw_pair(a, c, one->sync, &one->pieces[k], &other->pieces[k]);
	}
}

void trace_arrows_init(struct trace_arrows *a)
{
	*a = (struct trace_arrows){.by_row = object(),
				   .by_connection = object(),
				   .by_name = object()};
}

void trace_arrows_deinit(struct trace_arrows *a)
{
	for (size_t i = 0; i < a->n_ends; i++)
		free(a->ends[i].pieces);
	free(a->ends);
	json_decref(a->by_row);
	json_decref(a->by_connection);
	json_decref(a->by_name);
}
