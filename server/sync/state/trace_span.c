#include "server/sync/state/trace_span.h"

#include <errno.h>
#include <string.h>

#include "server/sync/base/json_fields.h"
#include "server/sync/state/agent_hooks.h"
#include "server/sync/state/transport.h"

#define SOCKETS_MAX 256 /* sockets of one engine: only a hostile one has more */

static void trace_span_ask(struct agent *a, json_t *request, int fd)
{
	if (request)
		a->env->trace(a->userdata, request, fd);
	json_decref(request);
}

/*
 * NCCL makes its own connections, and does not name their peers. So all of its TCP bytes are in one
 * row, which is for people. The agent ignores that row, as engines of this kind report no sockets.
 */
static void trace_span_watch(struct agent *a, const struct work *engine)
{
	json_t *request = json_pack("{s:s, s:s, s:I, s:s, s:s, s:s}", "op", "watch", "sync",
				    engine->trace_span.sync, "version",
				    (json_int_t)engine->trace_span.version, "peer", "*", "role",
				    "payload", "transport", transport_nccl.name);

	if (request)
		a->env->trace_job(a->userdata, request, engine->job);
	json_decref(request);
}

static void trace_span_announce(struct agent *a, struct work *engine)
{
	engine->trace_span.n_sockets = 0;
	trace_span_ask(a, json_pack("{s:s, s:s}", "op", "begin", "sync", engine->trace_span.sync),
		       -1);
	if (engine->kind == JOB_NCCL)
		trace_span_watch(a, engine);
}

void trace_span_begin(struct agent *a, struct work *engine, const char *sync,
		      struct version_id version_id)
{
	(void)strcpy(engine->trace_span.sync, sync);
	engine->trace_span.version = version_id.number;
	engine->trace_span.is_resumed = false;
	list_append(&a->trace_spans, &engine->trace_span.link);
	trace_span_announce(a, engine);
}

void trace_span_resume(struct agent *a, const char *sync)
{
	struct work *engine;

	list_for_each(engine, &a->trace_spans, trace_span.link) {
		if (strcmp(engine->trace_span.sync, sync) != 0)
			continue;
		engine->trace_span.is_resumed = true;
		trace_span_announce(a, engine);
		if (engine->kind != JOB_NCCL)
			work_tell(a, engine, json_pack("{s:s}", "op", "sockets"), NULL, 0);
	}
}

/* Stops tracing this engine. */
static void trace_span_forget(struct work *engine)
{
	list_remove(&engine->trace_span.link);
	engine->trace_span.sync[0] = '\0';
}

/* The protocol of its engine on TCP, for people. */
static const char *speaks(const struct agent *a, const struct work *engine)
{
	if (engine->kind == JOB_GLOO)
		return transport_gloo.name;
	return a->config->tls ? "tls" : transport_tcp.name;
}

bool trace_span_on_job(struct agent *a, struct work *w, const json_t *message, const int *fds,
		       unsigned n_fds)
{
	const char *op = json_string_value(json_object_get(message, "op")), *node;
	bool dialled;
	uint64_t expected;
	json_t *tag;

	if (!op || strcmp(op, "socket") != 0)
		return false;
	if (!w->trace_span.sync[0] || w->trace_span.n_sockets == SOCKETS_MAX || n_fds != 1 ||
	    field_string(message, "node", NODE_MAX, &node) < 0 ||
	    field_bool_or(message, "dialled", false, &dialled) < 0 ||
	    field_number(message, "expected", INT64_MAX, &expected) < 0)
		return true; /* its bytes are missing at the end, and that is detected */
	w->trace_span.n_sockets++;
	tag = json_pack("{s:s, s:s, s:I, s:s, s:s, s:s}", "op", "tag", "sync", w->trace_span.sync,
			"version", (json_int_t)w->trace_span.version, "peer", node, "role",
			"payload", "transport", speaks(a, w));
	if (!w->trace_span.is_resumed) /* otherwise it is counted from now on */
		(void)json_object_update_new(tag, json_pack("{s:b, s:I}", "dialled", dialled,
							    "expected", (json_int_t)expected));
	trace_span_ask(a, tag, fds[0]);
	return true;
}

/* The peers with a link that carried bytes in this direction: other links only carry answers. */
static json_t *others(const json_t *done, const char *way)
{
	json_t *names = json_array(), *link;
	const char *name;

	json_object_foreach(json_object_get(done, "links"), name, link)
	{
		if (json_is_object(json_object_get(link, way)))
			json_array_append_new(names, json_string(name));
	}
	return names;
}

void trace_span_end(struct agent *a, struct work *engine, unsigned coordinator, const char *from,
		    const json_t *done)
{
	const char *sync = engine->trace_span.sync;
	bool is_mesh = from && !from[0];
	json_t *note;

	if (!sync[0])
		return;
	/* The bytes of a resumed span are incomplete, with any number of sockets. */
	note = json_pack("{s:O*, s:b, s:I}", "sockets",
			 engine->trace_span.is_resumed ? NULL : json_object_get(done, "sockets"),
			 "receives", json_is_object(json_object_get(done, "in")), "coordinator",
			 (json_int_t)coordinator);
	json_object_set_new(note, "from", is_mesh ? others(done, "in") : json_pack("[s*]", from));
	if (is_mesh)
		json_object_set_new(note, "to", others(done, "out"));
	trace_span_ask(a, json_pack("{s:s, s:s, s:o}", "op", "end", "sync", sync, "note", note), -1);
	trace_span_ask(a, json_pack("{s:s, s:s}", "op", "forget", "sync", sync), -1);
	trace_span_forget(engine);
}

void trace_span_drop(struct agent *a, struct work *engine)
{
	if (!engine->trace_span.sync[0])
		return;
	a->env->trace_drop(a->userdata, engine->trace_span.sync);
	trace_span_forget(engine);
}

void trace_span_phase(struct agent *a, const char *sync, const char *role, const char *phase,
		      uint64_t began_ns, uint64_t ended_ns)
{
	trace_span_ask(a,
		       json_pack("{s:s, s:s, s:[{s:s, s:s, s:s, s:s, s:I, s:I}]}", "op", "tell",
				 "source", "sync", "acts", "act", "sync_phase", "sync", sync,
				 "role", role, "phase", phase, "ns", (json_int_t)ended_ns,
				 "took_ns", (json_int_t)(ended_ns - began_ns)),
		       -1);
}

/* The bytes of one link. */
struct carried {
	const char *peer;
	uint64_t sockets, received, submitted;
};

/*
 * A connection that weightd-trace saw only in part, or not closely enough, counts as unknown.
 * -EBADMSG.
 */
static int read_row(const json_t *row, struct carried *ret)
{
	const json_t *quality = json_object_get(row, "quality");
	const char *received, *submitted;
	bool partial;

	if (field_string(row, "peer", NODE_MAX, &ret->peer) < 0 ||
	    field_string(quality, "received", 16, &received) < 0 ||
	    field_string(quality, "submitted", 16, &submitted) < 0 ||
	    strcmp(received, "exact") != 0 || strcmp(submitted, "exact") != 0 ||
	    field_bool_or(row, "partial", true, &partial) < 0 || partial)
		return -EBADMSG;
	if (field_number(row, "sockets", UINT32_MAX, &ret->sockets) < 0 ||
	    field_number(row, "received", INT64_MAX, &ret->received) < 0 ||
	    field_number(row, "submitted", INT64_MAX, &ret->submitted) < 0)
		return -EBADMSG;
	return 0;
}

/* All of it is known. */
static bool is_whole(const json_t *rows, uint64_t n_sockets)
{
	struct carried c;
	uint64_t n = 0;
	json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		if (read_row(row, &c) < 0)
			return false;
		n += c.sockets;
	}
	return n == n_sockets;
}

static bool is_among(const json_t *names, const char *name)
{
	json_t *one;
	size_t i;

	json_array_foreach(names, i, one)
	{
		if (strcmp(json_string_value(one), name) == 0)
			return true;
	}
	return false;
}

/*
 * Returns the received bytes. Without a list of receivers, bytes were sent to all that are no
 * senders.
 */
static uint64_t count_links(struct agent *a, const json_t *note, const json_t *rows)
{
	const json_t *from = json_object_get(note, "from"), *to = json_object_get(note, "to");
	uint64_t sum = 0;
	json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		struct carried c = {0};
		bool is_in;

		(void)read_row(row, &c); /* it succeeded before */
		is_in = is_among(from, c.peer);
		if (is_in)
			metrics_on_received_traced(a, c.peer, c.received);
		if (to ? is_among(to, c.peer) : !is_in)
			metrics_on_sent_traced(a, c.peer, c.submitted);
		sum += is_in ? c.received : 0;
	}
	return sum;
}

void trace_span_on_rows(struct agent *a, const json_t *request, const json_t *rows)
{
	const char *sync = json_string_value(json_object_get(request, "sync"));
	const json_t *note = json_object_get(request, "note");
	unsigned coordinator = (unsigned)json_integer_value(json_object_get(note, "coordinator"));
	uint64_t n_sockets, received;

	if (field_number(note, "sockets", UINT32_MAX, &n_sockets) < 0 || !is_whole(rows, n_sockets))
		return;
	received = count_links(a, note, rows);
	if (!json_is_true(json_object_get(note, "receives")))
		return;
	a->hooks->on_traced(a, coordinator == AGENT_SELF ? ROLE_PUBLISHER : ROLE_MEMBER, sync,
			    received);
	if (coordinator != AGENT_SELF)
		(void)agent_send(a, coordinator,
				 json_pack("{s:s, s:s, s:I}", "type", "traced", "sync", sync, "bytes",
					   /* A peer that is down misses it. */
					   (json_int_t)received));
}

void trace_span_on_message(struct agent *a, unsigned peer, const json_t *message)
{
	const char *sync;
	uint64_t n;

	if (field_string(message, "sync", SYNC_ID_SIZE - 1, &sync) < 0 ||
	    field_number(message, "bytes", INT64_MAX, &n) < 0)
		agent_hang_up(a, peer, "'traced' without a sync or bytes");
	else
		a->hooks->on_traced(a, ROLE_PUBLISHER, sync, n);
}
