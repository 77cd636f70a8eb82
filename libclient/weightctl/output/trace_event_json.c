/*
 * Trace events: an array of JSON, an object a line. Readers require that slices of one thread do not overlap, unless
 * one contains the other. Spans of a client that are open at the same time therefore have lanes, threads of their
 * own.
 */
#include "libclient/weightctl/output/trace_event_json.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "libclient/weightctl/output/cli_error.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/ports.h"
#include "libclient/weightctl/output/size.h"

#define TEXT_MAX 127 /* bytes of a name: weightd-trace has none that is longer */
#define LANES_MAX 64 /* lanes for acts of one thread */
#define PLACES_MAX 65536 /* recorded slices of each kind at which arrows may begin */
#define RECEIVES "fd_receive"
#define GIVES "fd_send" /* the slice of a process that gave away what another one received */
#define KEY_MAX 512 /* three names and some numbers */

/* Ends the program if there is no memory for it. */
static json_t *made(json_t *o)
{
	if (!o)
		cli_out_of_memory();
	return o;
}

static void trace_event_set(json_t *o, const char *key, json_t *value)
{
	if (json_object_set_new(o, key, made(value)) < 0)
		cli_out_of_memory();
}

static const char *text_or(const json_t *packet, const char *key, const char *otherwise)
{
	const char *text = json_field_text(packet, key);

	return text && strlen(text) <= TEXT_MAX ? text : otherwise;
}

static json_t *text_json(const json_t *packet, const char *key)
{
	return made(json_string(text_or(packet, key, "-")));
}

static uint64_t number(const json_t *packet, const char *key)
{
	return json_field_number(packet, key, 0);
}

/* On the timeline. */
static int64_t shifted(const struct trace_events *c, uint64_t ns)
{
	return (int64_t)ns + c->offset_ns;
}

static double us(const struct trace_events *c, uint64_t ns)
{
	return (double)shifted(c, ns) / 1000;
}

void trace_events_put(struct trace_events *c, json_t *event)
{
	if (c->comma)
		(void)fputs(",\n", c->f);
	c->comma = true;
	if (json_dumpf(made(event), c->f,
		       JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(16)) < 0)
		cli_out_of_memory();
	json_decref(event);
}

static uint64_t client_of(const json_t *packet)
{
	return number(json_object_get(packet, "client"), "id");
}

/* The key of its span. Keys of one client have a common prefix. */
static void span_key(const json_t *packet, char ret[KEY_MAX])
{
	(void)snprintf(ret, KEY_MAX, "%" PRIu64 " %s", client_of(packet),
		       text_or(packet, "sync", ""));
}

/* From 0. What is in no span has the first, too. */
static json_int_t lane_of(const struct trace_events *c, const json_t *packet)
{
	char key[KEY_MAX];

	span_key(packet, key);
	return json_integer_value(json_object_get(c->lanes, key));
}

/* The first lane that no span with that prefix of its key has. */
static json_int_t free_lane(const struct trace_events *c, const char *prefix)
{
	size_t n = json_object_size(c->lanes);
	cleanup(cli_freep) bool *taken = calloc(n + 1, sizeof(*taken));
	json_int_t lane = 0;
	const char *key;
	json_t *value;

	if (!taken)
		cli_out_of_memory();
	json_object_foreach(c->lanes, key, value)
	{
		lane = json_integer_value(value);
		if (!strncmp(key, prefix, strlen(prefix)) && lane < (json_int_t)n)
			taken[lane] = true;
	}
	for (lane = 0; taken[lane];)
		lane++;
	return lane;
}

/* The first that no other open span of the client has. */
static void take_lane(struct trace_events *c, json_t *packet)
{
	char key[KEY_MAX], prefix[32];

	span_key(packet, key);
	if (json_object_get(c->lanes, key))
		return;
	(void)snprintf(prefix, sizeof(prefix), "%" PRIu64 " ", client_of(packet));
	trace_event_set(c->lanes, key, json_integer(free_lane(c, prefix)));
}

/*
 * The number of a process or thread, which is written with its name the first time. `process` is 0 for a process.
 */
static json_int_t id_of(struct trace_events *c, json_int_t process, const char *name,
			const char *key)
{
	const json_t *known = json_object_get(c->ids, key);
	json_int_t id = known ? json_integer_value(known) : ++c->last_id;

	if (known)
		return id;
	trace_event_set(c->ids, key, json_integer(id));
	trace_events_put(c, json_pack("{ss ss sI sI s{ss}}", "name",
				      process ? "thread_name" : "process_name", "ph", "M", "pid",
				      process ? process : id, "tid", process ? id : 0, "args",
				      "name", name));
	return id;
}

static json_int_t process_of(struct trace_events *c, const json_t *packet)
{
	const json_t *client = json_object_get(packet, "client");
	char key[KEY_MAX], name[KEY_MAX];

	(void)snprintf(key, sizeof(key), "%s\n%" PRIu64 " %s", c->node ? c->node : "",
		       client_of(packet), text_or(packet, "peer", ""));
	(void)snprintf(name, sizeof(name), "%s%s%s (%s %" PRIu64 ")", c->node ? c->node : "",
		       c->node ? ": " : "", text_or(packet, "peer", "-"),
		       text_or(client, "comm", "-"), number(client, "pid"));
	return id_of(c, 0, name, key);
}

/* "payload", of the second lane "payload 2". */
static void lane_name(char ret[KEY_MAX], const char *what, json_int_t lane)
{
	(void)snprintf(ret, KEY_MAX, lane ? "%s %" JSON_INTEGER_FORMAT : "%s", what, lane + 1);
}

static json_int_t thread_of(struct trace_events *c, const json_t *packet, json_int_t process)
{
	char key[2 * KEY_MAX], name[KEY_MAX];

	lane_name(name, text_or(packet, "role", "-"), lane_of(c, packet));
	(void)snprintf(key, sizeof(key), "%" JSON_INTEGER_FORMAT "\n%s", process, name);
	return id_of(c, process, name, key);
}

/* Sets "pid" and "tid" of the event and returns its place. Takes `event`. */
static struct trace_slice put_on_thread(struct trace_events *c, const json_t *packet, json_t *event)
{
	struct trace_slice at = {.process = process_of(c, packet)};

	at.thread = thread_of(c, packet, at.process);
	trace_event_set(made(event), "pid", json_integer(at.process));
	trace_event_set(event, "tid", json_integer(at.thread));
	trace_events_put(c, event);
	return at;
}

static void put_counter(struct trace_events *c, const json_t *packet, const char *what, uint64_t ns,
			json_int_t value)
{
	char name[KEY_MAX];

	lane_name(name, what, lane_of(c, packet));
	trace_events_put(c, json_pack("{ss ss sI sf s{sI}}", "name", name, "ph", "C", "pid",
				      process_of(c, packet), "ts", us(c, ns), "args",
				      text_or(packet, "role", "-"), value));
}

static bool knows_rate(const json_t *packet)
{
	return !json_is_null(json_object_get(packet, "delivered"));
}

static void put_rate(struct trace_events *c, const json_t *packet, const json_t *before)
{
	uint64_t began_ns = number(packet, "began_ns"), now_ns = number(packet, "now_ns");
	uint64_t done = number(packet, "delivered") + number(packet, "received"), done_before = 0;
	uint64_t before_ns = began_ns;

	if (before && number(before, "began_ns") == began_ns) {
		done_before = number(before, "delivered") + number(before, "received");
		before_ns = number(before, "now_ns");
	}
	if (!knows_rate(packet) || done < done_before || now_ns <= before_ns)
		return;
	put_counter(c, packet, "rate (B/s)", now_ns,
		    (json_int_t)size_per_second(done - done_before, now_ns - before_ns));
}

/* It is the one that was seen before if nothing moved since. */
static void take_stall(struct trace_events *c, const json_t *packet, const char *key)
{
	const json_t *stall = json_object_get(packet, "stall");
	json_t *stalls = json_object_get(c->stalls, key), *last;
	uint64_t since_ns = number(stall, "since_ns"), now_ns = number(packet, "now_ns");

	if (since_ns > now_ns || !json_field_text(stall, "cause"))
		return;
	if (!stalls) {
		stalls = json_array();
		trace_event_set(c->stalls, key, stalls);
	}
	last = json_array_get(stalls, json_array_size(stalls) - 1);
	if (!last || number(last, "since_ns") != since_ns) {
		last = made(json_pack("{sI}", "since_ns", (json_int_t)since_ns));
		if (json_array_append_new(stalls, last) < 0)
			cli_out_of_memory();
	}
	trace_event_set(last, "cause", text_json(stall, "cause"));
	trace_event_set(last, "until_ns", json_integer((json_int_t)now_ns));
}

static void add_row(struct trace_events *c, json_t *packet)
{
	uint64_t rtt_us = number(packet, "rtt_us");
	char key[32];

	take_lane(c, packet);
	(void)snprintf(key, sizeof(key), "%" PRIu64, number(packet, "row"));
	put_rate(c, packet, json_object_get(c->rows, key));
	take_stall(c, packet, key);
	if (rtt_us)
		put_counter(c, packet, "rtt (us)", number(packet, "now_ns"), (json_int_t)rtt_us);
	trace_event_set(c->rows, key, json_incref(packet));
}

/* Inside of the slice of its row, which readers require first. */
static void put_stalls(struct trace_events *c, const json_t *packet, uint64_t end_ns,
		       const char *row)
{
	uint64_t since_ns, until_ns, last_ns = number(packet, "began_ns");
	json_t *stall;
	size_t i;

	json_array_foreach(json_object_get(c->stalls, row), i, stall)
	{
		since_ns = number(stall, "since_ns");
		until_ns = number(stall, "until_ns");
		if (since_ns < last_ns)
			since_ns = last_ns;
		if (until_ns > end_ns)
			until_ns = end_ns;
		if (since_ns >= until_ns)
			continue;
		last_ns = until_ns;
		(void)put_on_thread(
			c, packet,
			json_pack("{so ss ss sf sf sO}", "name",
				  made(json_sprintf("stalled: %s", text_or(stall, "cause", "-"))),
				  "ph", "X", "cat", "stall", "ts", us(c, since_ns), "dur",
				  (double)(until_ns - since_ns) / 1000, "args", stall));
	}
	(void)json_object_del(c->stalls, row);
}

/* Writes the slice of a row, with all of its fields. */
static void put_slice(struct trace_events *c, json_t *packet, uint64_t end_ns, const char *row)
{
	uint64_t began_ns = number(packet, "began_ns");
	uint64_t took_ns = end_ns > began_ns ? end_ns - began_ns : 0;
	struct trace_slice slice;

	if (knows_rate(packet))
		put_counter(c, packet, "rate (B/s)", end_ns, 0);
	slice = put_on_thread(c, packet,
			      json_pack("{so ss so sf sf sO}", "name", text_json(packet, "sync"),
					"ph", "X", "cat", text_json(packet, "role"), "ts",
					us(c, began_ns), "dur", (double)took_ns / 1000, "args",
					packet));
	slice.begin_ns = shifted(c, began_ns);
	slice.end_ns = slice.begin_ns + (int64_t)took_ns;
	put_stalls(c, packet, began_ns + took_ns, row);
	if (c->note)
		c->note(c->context, packet, &slice);
}

/* All of its rows precede it. */
static void end_span(struct trace_events *c, json_t *packet)
{
	char wanted[KEY_MAX], key[KEY_MAX];
	const char *name;
	json_t *row;
	void *next;

	span_key(packet, wanted);
	json_object_foreach_safe(c->rows, next, name, row)
	{
		span_key(row, key);
		if (strcmp(key, wanted) != 0)
			continue;
		put_slice(c, row, number(packet, "ns"), name);
		(void)json_object_del(c->rows, name);
	}
	(void)json_object_del(c->lanes, wanted);
}

static void add_event(struct trace_events *c, json_t *packet)
{
	(void)put_on_thread(c, packet,
			    json_pack("{so ss ss sf sO}", "name", text_json(packet, "kind"), "ph",
				      "i", "s", "t", "ts", us(c, number(packet, "ns")), "args",
				      packet));
}

/* A gap concerns all threads. */
static void add_gap(struct trace_events *c, json_t *packet)
{
	trace_events_put(c, json_pack("{ss ss ss si si sf sO}", "name", "gap", "ph", "i", "s", "g",
				      "pid", 0, "tid", 0, "ts", us(c, number(packet, "to_ns")),
				      "args", packet));
}

/*
 * The process of the event, as a process of the timeline of its own: the event belongs to no sync. If the process is
 * unknown, the weightd that reported it.
 */
static json_int_t process_of_act(struct trace_events *c, const json_t *packet)
{
	const json_t *weightd = json_object_get(packet, "weightd");
	bool is_weightd = weightd && !number(packet, "pid");
	uint64_t pid = number(is_weightd ? weightd : packet, "pid");
	char key[KEY_MAX], name[KEY_MAX];

	(void)snprintf(key, sizeof(key), "%s\nact %" PRIu64, c->node ? c->node : "", pid);
	(void)snprintf(name, sizeof(name), "%s%s%s (%" PRIu64 ")", c->node ? c->node : "",
		       c->node ? ": " : "", text_or(packet, "comm", is_weightd ? "weightd" : "-"),
		       pid);
	return id_of(c, 0, name, key);
}

/* It has a track for each sync, where its phases follow one another. */
static bool is_phase(const json_t *packet)
{
	return !strcmp(text_or(packet, "act", ""), "sync_phase");
}

/*
 * The thread of the event, or for an unknown thread a lane: the first one that is free by then. False if none is, and
 * it cannot be a slice.
 */
static bool place_act(struct trace_events *c, const json_t *packet, uint64_t begin_ns,
		      uint64_t end_ns, struct trace_slice *ret)
{
	char key[2 * KEY_MAX], what[KEY_MAX], name[KEY_MAX];
	json_int_t lane = 0;
	bool is_free = false;

	if (is_phase(packet))
		(void)snprintf(what, sizeof(what), "%s of %s", text_or(packet, "role", "-"),
			       text_or(packet, "sync", "-"));
	else if (number(packet, "tid"))
		(void)snprintf(what, sizeof(what), "thread %" PRIu64, number(packet, "tid"));
	else
		(void)snprintf(what, sizeof(what), "%s", text_or(packet, "act", "-"));
	for (; !is_free && lane < LANES_MAX; lane++) {
		const json_t *busy;

		lane_name(name, what, lane);
		(void)snprintf(key, sizeof(key), "%" JSON_INTEGER_FORMAT "\n%s", ret->process, name);
		busy = json_object_get(c->busy, key);
		is_free = !busy || (uint64_t)json_integer_value(busy) <= begin_ns;
	}
	if (is_free)
		trace_event_set(c->busy, key, json_integer((json_int_t)end_ns));
	ret->thread = id_of(c, ret->process, name, key);
	return is_free;
}

static void put_arrow(struct trace_events *c, const char *phase, const struct trace_slice *at,
		      int64_t ns)
{
	json_t *event = json_pack("{ss ss ss sI sI sI sf}", "name", "handle", "cat", "act", "ph",
				  phase, "id", c->last_arrow, "pid", at->process, "tid", at->thread,
				  "ts", (double)ns / 1000);

	/* It ends in the slice around it, not in the next one. */
	if (*phase == 'f')
		trace_event_set(made(event), "bp", json_string("e"));
	trace_events_put(c, event);
}

static void act_key(const struct trace_events *c, const json_t *act, char ret[KEY_MAX])
{
	(void)snprintf(ret, KEY_MAX, "%s\n%" PRIu64, c->node ? c->node : "", number(act, "number"));
}

/*
 * The giver in an event that has the giver and the time, but not the giver's own event: there is none. NULL: it has
 * none of them.
 */
static const json_t *giver_of(const json_t *packet)
{
	const json_t *from = json_object_get(packet, "from");

	return json_field_number(from, "ns", UINT64_MAX) != UINT64_MAX &&
			       !json_object_get(from, "number")
		       ? from
		       : NULL;
}

/* Records a slice at which arrows may begin. */
static void trace_slice_note(json_t *places, const char *key, const struct trace_slice *slice)
{
	if (json_object_size(places) >= PLACES_MAX) /* the oldest slices get no arrow any more */
		(void)json_object_clear(places);
	trace_event_set(places, key,
			json_pack("[III]", slice->process, slice->thread, slice->begin_ns));
}

/* Writes a gift once for all its receivers, on a track of its own. */
static void put_giver(struct trace_events *c, const json_t *from, const char *key)
{
	struct trace_slice at = {.process = process_of_act(c, from),
				 .begin_ns = shifted(c, number(from, "ns"))};
	char track[KEY_MAX];

	(void)snprintf(track, sizeof(track), "%" JSON_INTEGER_FORMAT "\n" GIVES, at.process);
	at.thread = id_of(c, at.process, GIVES, track);
	trace_events_put(c, json_pack("{ss ss ss ss sf sI sI}", "name", GIVES, "ph", "i", "s", "t",
				      "cat", "act", "ts", us(c, number(from, "ns")), "pid",
				      at.process, "tid", at.thread));
	trace_slice_note(c->gifts, key, &at);
}

/* From the slice of the act that it has something from, if that is there. */
static void draw_from(struct trace_events *c, const json_t *packet, const struct trace_slice *to)
{
	const json_t *from = json_object_get(packet, "from"), *giver = giver_of(packet), *known;
	const json_t *places = giver ? c->gifts : c->exports;
	struct trace_slice begin;
	char key[KEY_MAX];
	int64_t ns;

	if (giver) {
		(void)snprintf(key, sizeof(key), "%s\n" GIVES " %" PRIu64 " %" PRIu64,
			       c->node ? c->node : "", number(giver, "pid"), number(giver, "ns"));
		if (!json_object_get(places, key))
			put_giver(c, giver, key);
	} else {
		act_key(c, from, key);
	}
	known = json_object_get(places, key);
	if (!known)
		return;
	begin = (struct trace_slice){
		.process = json_integer_value(json_array_get(known, 0)),
		.thread = json_integer_value(json_array_get(known, 1)),
		.begin_ns = json_integer_value(json_array_get(known, 2)),
	};
	ns = to->begin_ns > begin.begin_ns ? to->begin_ns : begin.begin_ns;
	if (ns > to->end_ns) /* back in time */
		return;
	c->last_arrow++;
	put_arrow(c, "s", &begin, begin.begin_ns);
	put_arrow(c, "f", to, ns);
}

/*
 * Records an event from which arrows may begin: not one that a client reported about itself, nor a gift, of which
 * there may be many.
 */
static void note_act(struct trace_events *c, const json_t *packet, const struct trace_slice *slice)
{
	char key[KEY_MAX];

	if (!number(packet, "number") || json_field_text(packet, "source") ||
	    !strcmp(text_or(packet, "act", ""), RECEIVES))
		return;
	act_key(c, packet, key);
	trace_slice_note(c->exports, key, slice);
}

static void add_act(struct trace_events *c, json_t *packet)
{
	uint64_t end_ns = number(packet, "ns");
	uint64_t took_ns = json_field_number(packet, "took_ns", UINT64_MAX);
	uint64_t begin_ns = took_ns <= end_ns ? end_ns - took_ns : end_ns;
	struct trace_slice at = {.process = process_of_act(c, packet),
				 .begin_ns = shifted(c, begin_ns),
				 .end_ns = shifted(c, end_ns)};
	bool is_slice = place_act(c, packet, begin_ns, end_ns, &at) && took_ns <= end_ns;
	json_t *event = json_pack("{so ss ss sf sO}", "name",
				  text_json(packet, is_phase(packet) ? "phase" : "act"), "ph",
				  is_slice ? "X" : "i", "cat", is_phase(packet) ? "phase" : "act",
				  "ts", us(c, is_slice ? begin_ns : end_ns), "args", packet);

	trace_event_set(made(event), "pid", json_integer(at.process));
	trace_event_set(event, "tid", json_integer(at.thread));
	if (is_slice)
		trace_event_set(event, "dur", json_real((double)took_ns / 1000));
	else
		trace_event_set(event, "s", json_string("t"));
	trace_events_put(c, event);
	if (!is_slice)
		at.begin_ns = at.end_ns;
	note_act(c, packet, &at);
	draw_from(c, packet, &at);
}

static void set_port_rate(json_t *rates, const char *name, uint64_t rate)
{
	if (rate != UINT64_MAX)
		trace_event_set(rates, name, json_integer((json_int_t)rate));
}

/* All bytes of the port since the last sample, of any program. */
static void add_port(struct trace_events *c, json_t *packet)
{
	cleanup(json_decrefp) json_t *rates = made(json_object());
	char key[KEY_MAX], name[KEY_MAX];
	const json_t *before;

	(void)snprintf(name, sizeof(name), "%s%sRDMA %s/%" PRIu64, c->node ? c->node : "",
		       c->node ? ": " : "", text_or(packet, "device", "-"), number(packet, "port"));
	(void)snprintf(key, sizeof(key), "%s\nport %s/%" PRIu64, c->node ? c->node : "",
		       text_or(packet, "device", "-"), number(packet, "port"));
	before = json_object_get(c->ports, key);
	set_port_rate(rates, "out", ports_rate(before, packet, "xmit_bytes"));
	set_port_rate(rates, "in", ports_rate(before, packet, "recv_bytes"));
	if (json_object_size(rates) > 0)
		trace_events_put(c, json_pack("{ss ss sI sf sO}", "name", "rate (B/s)", "ph", "C",
					      "pid", id_of(c, 0, name, key), "ts",
					      us(c, number(packet, "ns")), "args", rates));
	trace_event_set(c->ports, key, json_incref(packet));
}

static const struct kind {
	const char *name;
	void (*add)(struct trace_events *c, json_t *packet);
	const char *ns; /* when it was */
} kinds[] = {
	{"begin", take_lane, "ns"},      {"progress", add_row, "now_ns"},
	{"total", add_row, "now_ns"},    {"end", end_span, "ns"},
	{"open", add_event, "ns"},       {"close", add_event, "ns"},
	{"retransmit", add_event, "ns"}, {"gap", add_gap, "to_ns"},
	{"act", add_act, "ns"},          {"port", add_port, "ns"},
};

static const struct kind *kind_of(const json_t *packet)
{
	const char *name = json_field_text(packet, "kind");

	for (size_t i = 0; name && i < sizeof(kinds) / sizeof(*kinds); i++)
		if (!strcmp(kinds[i].name, name))
			return &kinds[i];
	return NULL;
}

static int earlier_ns(const json_t *packet, const char *key, uint64_t *ret)
{
	uint64_t ns = json_field_number(packet, key, UINT64_MAX);

	if (ns > TRACE_EVENTS_NS_MAX)
		return -EINVAL;
	if (ns < *ret)
		*ret = ns;
	return 0;
}

int trace_events_first_ns(const json_t *packet, uint64_t *ret)
{
	const struct kind *kind = kind_of(packet);
	uint64_t ns = UINT64_MAX;
	int r = kind ? earlier_ns(packet, kind->ns, &ns) : 0;

	if (kind && kind->add == add_row && r == 0)
		r = earlier_ns(packet, "began_ns", &ns);
	if (kind && kind->add == add_act && r == 0 && json_field_number(packet, "took_ns", 0) <= ns)
		ns -= json_field_number(packet, "took_ns", 0);
	if (kind && kind->add == add_act && r == 0 && giver_of(packet))
		r = earlier_ns(giver_of(packet), "ns", &ns);
	if (r == 0)
		*ret = ns;
	return r;
}

void trace_events_begin(struct trace_events *c, FILE *f)
{
	*c = (struct trace_events){.f = f,
				   .ids = made(json_object()),
				   .lanes = made(json_object()),
				   .rows = made(json_object()),
				   .stalls = made(json_object()),
				   .ports = made(json_object()),
				   .busy = made(json_object()),
				   .exports = made(json_object()),
				   .gifts = made(json_object())};
	(void)fputs("[\n", f);
}

void trace_events_add(struct trace_events *c, json_t *packet)
{
	const struct kind *kind = kind_of(packet);

	if (!kind)
		return;
	if (number(packet, kind->ns) > c->last_ns)
		c->last_ns = number(packet, kind->ns);
	kind->add(c, packet);
}

void trace_events_end_spans(struct trace_events *c)
{
	const char *name;
	json_t *row;

	json_object_foreach(c->rows, name, row)
	{
		trace_event_set(row, "unfinished", json_true());
		put_slice(c, row, c->last_ns, name);
	}
	(void)json_object_clear(c->rows);
	(void)json_object_clear(c->lanes);
}

void trace_events_begin_node(struct trace_events *c, const char *node, int64_t offset_ns)
{
	trace_events_end_spans(c);
	c->last_ns = 0;
	c->node = node;
	c->offset_ns = offset_ns;
}

void trace_events_end(struct trace_events *c)
{
	trace_events_end_spans(c);
	(void)fputs("\n]\n", c->f);
	json_decref(c->ids);
	json_decref(c->lanes);
	json_decref(c->rows);
	json_decref(c->stalls);
	json_decref(c->ports);
	json_decref(c->busy);
	json_decref(c->exports);
	json_decref(c->gifts);
}
