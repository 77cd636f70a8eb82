/*
 * A share believes its coordinator nothing but whom to talk to. What it gives, it chose itself; what the result is, its
 * own sink found; and it records and publishes only what its coordinator, a publisher of the group, signed and decided
 * on, if that is what was found here. Until then the sink only lends memory: whatever goes wrong, ending its process
 * gives all back and leaves the old version as it was.
 *
 * Engines keep their sockets from done or broken to the next word of the coordinator, so that none of the others takes
 * us for the cause of what it sees.
 */
#include "server/sync/share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/sync/admission.h"
#include "server/sync/base/fields.h"
#include "server/sync/base/order.h"
#include "server/sync/group.h"
#include "server/sync/history.h"
#include "server/sync/joint.h"

#define SHARES_MAX 16 /* at a time: each has three processes and memory */
#define ABORT_WHY_MAX (8 * WHY_SIZE) /* all that a coordinator says of why a sync came to nothing */
#define EPOCH_MAX ((uint64_t)1 << 32)
#define PROGRESS_NS (SECOND / 4)
#define CHUNK ((uint64_t)1 << 20)

static const struct {
	const char *phase;
	unsigned stay;
	const char *doing; /* for sentences */
} STATES[] = {
	[SHARE_QUEUED] = {"prepare", PARTY_QUEUED, "while it waited for its turn"},
	[SHARE_ATTACH] = {"prepare", PARTY_WANT, "while it attached its version"},
	[SHARE_MAKE] = {"prepare", PARTY_CREATE, "while it made room"},
	[SHARE_READY] = {"ready", PARTY_READY, "while it waited for the others"},
	[SHARE_OPENING] = {"open", PARTY_OPENING, "while links were opened"},
	[SHARE_OPEN] = {"open", PARTY_OPEN, "while links were opened"},
	[SHARE_MOVING] = {"bytes", PARTY_MOVING, "while bytes moved"},
	[SHARE_BROKEN] = {"bytes", PARTY_MOVING, "while bytes moved"},
	[SHARE_VERIFYING] = {"verify", PARTY_VERIFYING, "while it verified"},
	[SHARE_VERIFIED] = {"verified", PARTY_VERIFIED, "after it had verified"},
	[SHARE_PUBLISHING] = {"commit", PARTY_PUBLISHING, "while it published"},
};

const char *share_phase(const struct share *s)
{
	if (s->state == SHARE_ENDED)
		return s->state_name;
	return s->state == SHARE_READY && s->is_moved ? "moved" : STATES[s->state].phase;
}

const char *share_ended_in(const struct share *s)
{
	return STATES[s->ended_in].phase;
}

unsigned share_stay(const struct share *s)
{
	return s->state == SHARE_ENDED ? PARTY_ENDED : STATES[s->state].stay;
}

struct share *share_find_of_buffer(struct agent *a, const char *buffer)
{
	struct share *s;

	list_for_each(s, &a->shares, link)
		if (s->state != SHARE_ENDED && strcmp(s->head->buffer, buffer) == 0)
			return s;
	return NULL;
}

uint64_t share_deadline(const struct share *s)
{
	if (s->state == SHARE_ENDED)
		return 0;
	if (s->state == SHARE_PUBLISHING)
		return s->deadline_ns; /* committed: nothing as a whole can take that back */
	return s->deadline_ns && s->deadline_ns < s->whole_ns ? s->deadline_ns : s->whole_ns;
}

/* Tells the coordinator; steals `fields`, which may be NULL. */
static void tell(struct agent *a, const struct share *s, const char *type, json_t *fields)
{
	if (!fields)
		fields = json_object();
	json_object_set_new(fields, "type", json_string(type));
	json_object_set_new(fields, "sync", json_string(s->invitation.sync));
	agent_send(a, s->coordinator, fields);
}

/* 0: no deadline. */
static void set_state(struct agent *a, struct share *s, enum share_state state, uint64_t wait_ns)
{
	s->state = state;
	s->deadline_ns = wait_ns ? agent_now(a) + wait_ns : 0;
	history_share_event(a, s);
}

static bool is_under_way(const struct share *s)
{
	return s->state == SHARE_OPENING || s->state == SHARE_OPEN || s->state == SHARE_MOVING;
}

/* --- The end ------------------------------------------------------------------------------------ */

/* The coordinator, who knows more, says all of it by itself. */
static char *explain(const struct agent *a, const struct share *s, const char *why)
{
	bool has_where = strstr(why, " while ") || strstr(why, " after ");
	const char *us = a->config->name;
	char *sentence;

	if (strncmp(why, "sync ", 5) == 0)
		return strdup(why);
	return asprintf(&sentence, "sync %s: %s@%ju was not %s on %s: %s%s%s; %s %s",
			s->invitation.sync, s->head->buffer, (uintmax_t)s->invitation.pair.number,
			s->state == SHARE_PUBLISHING ? "published" : "committed", us, why,
			has_where ? "" : ", ", has_where ? "" : STATES[s->state].doing, us,
			s->state == SHARE_PUBLISHING ? "will fetch it" : "serves what it had") < 0
		       ? NULL
		       : sentence;
}

static void end(struct agent *a, struct share *s, const char *state_name, const char *why)
{
	if (why && !s->why)
		s->why = explain(a, s, why);
	work_end(a, &s->engine);
	work_end(a, &s->sink);
	work_end(a, &s->source);
	s->ended_in = s->state;
	s->state = SHARE_ENDED;
	s->state_name = state_name;
	history_share_end(a, s);
	a->look_again = true;
}

__attribute__((format(printf, 3, 4))) static void drop(struct agent *a, struct share *s,
						       const char *format, ...)
{
	char why[WHY_SIZE];
	va_list args;

	if (s->state == SHARE_PUBLISHING || s->state == SHARE_ENDED)
		return;
	va_start(args, format);
	vsnprintf(why, sizeof(why), format, args);
	va_end(args);
	end(a, s, "failed", why);
}

void share_give_way(struct agent *a, struct share *s, unsigned peer)
{
	tell(a, s, "aborted", NULL);
	drop(a, s, "%s began another sync", agent_peer_name(a, peer));
}

/* Drops it and tells the coordinator. */
static void give_up(struct agent *a, struct share *s, const char *code, const char *why)
{
	tell(a, s, s->state < SHARE_READY ? "refuse" : "failed",
	     json_pack("{s:s, s:s}", "code", code, "why", why));
	drop(a, s, "%s", why);
}

static void out_of_order(struct agent *a, struct share *s, const char *type)
{
	agent_hang_up(a, s->coordinator, "%s of sync %s came out of order, or of another form",
		      type, s->invitation.sync);
	give_up(a, s, "order", "its coordinator sent what it should not");
}

/* --- The engine --------------------------------------------------------------------------------- */

/* `who`: the node that is to blame; NULL: our own engine. */
static void broken(struct agent *a, struct share *s, const char *code, const char *who,
		   const char *why)
{
	set_state(a, s, SHARE_BROKEN, 0);
	tell(a, s, "broken",
	     json_pack("{s:I, s:s, s:s, s:s?}", "epoch", (json_int_t)s->epoch, "code", code, "why",
		       why, "who", who));
}

static void on_opened(struct agent *a, struct share *s, const json_t *message)
{
	unsigned n = (unsigned)json_array_size(s->nodes);
	json_t *hellos;

	if (s->state != SHARE_OPENING || field_array(message, "hellos", n, &hellos) < 0 ||
	    owned_read(message, n, &s->owned) < 0) {
		broken(a, s, "failed", NULL, "the engine answered something else than was asked");
		return;
	}
	s->expected = owned_total(&s->owned);
	set_state(a, s, SHARE_OPEN, 0);
	tell(a, s, "opened",
	     json_pack("{s:I, s:O, s:I, s:O, s:O}", "epoch", (json_int_t)s->epoch, "hellos", hellos,
		       "expected", (json_int_t)s->expected, "shares",
		       json_object_get(message, "shares"), "n_others",
		       json_object_get(message, "n_others")));
}

static void on_progress(struct agent *a, struct share *s, const json_t *message)
{
	uint64_t now = agent_now(a), done, since = now - s->reported_ns;

	if (s->state != SHARE_MOVING || field_number(message, "done", s->expected, &done) < 0 ||
	    done < s->done)
		return;
	s->deadline_ns = now + 2 * a->config->stall_ns;
	s->done = done;
	if ((since < PROGRESS_NS && done != s->expected) || done == s->reported || !since)
		return;
	s->rate = (uint64_t)((double)(done - s->reported) * 1e9 / (double)since);
	s->reported = done;
	s->reported_ns = now;
	tell(a, s, "progress",
	     json_pack("{s:I, s:I, s:I}", "epoch", (json_int_t)s->epoch, "done", (json_int_t)done,
		       "rate", (json_int_t)s->rate));
	history_share_event(a, s);
}

/* What each of our links carried, beside what was planned for it. */
static void count(struct agent *a, struct share *s, const json_t *message)
{
	const json_t *links = json_object_get(message, "links");
	const struct operation *op = s->invitation.operation;
	json_t *node;
	size_t i;

	json_array_foreach(s->nodes, i, node)
	{
		const char *name = json_string_value(json_object_get(node, "node"));
		const json_t *link = json_object_get(links, name);
		uint64_t planned;

		if (i == s->rank)
			continue;
		planned = op->planned(&s->owned, (unsigned)i, s->rank);
		metrics_on_received(a, name, planned, json_object_get(link, "in"));
		metrics_on_sent(a, name, planned, json_object_get(link, "out"));
	}
	tally_add(&s->tally, operation_planned(op, &s->owned, s->rank),
		  json_object_get(message, "in"));
}

static void on_done(struct agent *a, struct share *s, const json_t *message)
{
	if (s->state != SHARE_MOVING) {
		broken(a, s, "failed", NULL, "the engine ended before it was started");
		return;
	}
	count(a, s, message);
	s->done = s->expected;
	s->is_moved = true;
	set_state(a, s, SHARE_READY, 0);
	tell(a, s, "done",
	     json_pack("{s:I, s:O?, s:O?}", "epoch", (json_int_t)s->epoch, "in",
		       json_object_get(message, "in"), "out", json_object_get(message, "out")));
}

static void on_failed(struct agent *a, struct share *s, const json_t *message)
{
	const char *why = "its engine failed", *who = NULL, *code = "failed";

	(void)field_string(message, "why", WHY_SIZE - 1, &why);
	(void)field_string(message, "code", 32, &code);
	(void)field_string_or_null(message, "who", NODE_MAX, &who);
	broken(a, s, code, who, why);
}

static void on_engine_message(struct agent *a, struct work *w, const json_t *message, int *fds,
			      unsigned n_fds)
{
	struct share *s = container_of(w, struct share, engine);
	const char *op;

	(void)fds, (void)n_fds;
	if (!is_under_way(s))
		return;
	if (field_string(message, "op", 32, &op) < 0)
		op = "";
	if (strcmp(op, "opened") == 0)
		on_opened(a, s, message);
	else if (strcmp(op, "progress") == 0)
		on_progress(a, s, message);
	else if (strcmp(op, "done") == 0)
		on_done(a, s, message);
	else
		on_failed(a, s, message);
}

static void on_engine_end(struct agent *a, struct work *w, const char *how)
{
	struct share *s = container_of(w, struct share, engine);
	char why[WHY_SIZE];

	if (!is_under_way(s))
		return;
	snprintf(why, sizeof(why), "the engine of %s ended (%s)", a->config->name, how);
	broken(a, s, "failed", NULL, why);
}

/* -EBADMSG; otherwise `*ret_rank` is ours among `nodes`. */
static int check_nodes(const struct agent *a, const json_t *nodes, unsigned *ret_rank)
{
	const json_t *node;
	bool is_in = false;
	size_t i;

	json_array_foreach(nodes, i, node)
	{
		const char *name, *address;

		if (field_string(node, "node", NODE_MAX, &name) < 0 ||
		    field_string(node, "address", 255, &address) < 0)
			return -EBADMSG;
		if (strcmp(name, a->config->name) != 0)
			continue;
		*ret_rank = (unsigned)i;
		is_in = true;
	}
	return is_in ? 0 : -EBADMSG;
}

static void open_engine(struct agent *a, struct share *s, const char *token)
{
	const struct operation *op = s->invitation.operation;
	int fds[] = {s->data_fd, s->memory_fd, s->tensors_fd};
	char why[WHY_SIZE];

	s->engine = (struct work){.on_message = on_engine_message, .on_end = on_engine_end};
	if (work_start(a, &s->engine, op->engine, why) < 0) {
		give_up(a, s, "engine", why);
		return;
	}
	set_state(a, s, SHARE_OPENING, a->config->prepare_ns);
	work_tell(a, &s->engine,
		  json_pack("{s:s, s:s, s:s, s:n, s:s, s:I, s:s, s:s, s:O, s:I, s:I, s:I, s:s}",
			    "op", "open", "operation", op->name, "node", a->config->name, "from",
			    "sync", s->invitation.sync, "epoch", (json_int_t)s->epoch, "address",
			    a->config->data_addresses[0], "token", token, "nodes", s->nodes,
			    "n_bytes", (json_int_t)s->n_bytes, "chunk", (json_int_t)CHUNK, "stall_ms",
			    (json_int_t)(a->config->stall_ns / 1000000), "security", "none"),
		  fds, 3);
}

static void on_open(struct agent *a, struct share *s, const json_t *message)
{
	uint8_t token[32];
	uint64_t epoch;
	json_t *nodes;
	char hex[65];

	if (s->state != SHARE_READY || s->is_moved ||
	    field_number(message, "epoch", EPOCH_MAX, &epoch) < 0 || epoch <= s->epoch ||
	    field_bytes(message, "token", token, sizeof(token)) < 0 ||
	    field_array(message, "nodes", OPERATION_NODES_MAX, &nodes) < 0 ||
	    check_nodes(a, nodes, &s->rank) < 0) {
		out_of_order(a, s, "open");
		return;
	}
	json_decref(s->nodes);
	s->nodes = json_incref(nodes);
	s->epoch = epoch;
	s->done = s->reported = s->rate = s->expected = 0;
	open_engine(a, s, field_hex(token, sizeof(token), hex));
}

static void on_start(struct agent *a, struct share *s, const json_t *message)
{
	uint64_t max_rate, whole_ns;
	json_t *hellos;

	if (s->state != SHARE_OPEN ||
	    field_array(message, "hellos", json_array_size(s->nodes), &hellos) < 0 ||
	    field_number_or(message, "max_rate", INT64_MAX, 0, &max_rate) < 0) {
		out_of_order(a, s, "start");
		return;
	}
	s->reported_ns = agent_now(a);
	whole_ns = s->reported_ns + 2 * agent_time_to_move(a, 2 * s->n_bytes, max_rate);
	s->whole_ns = max_rate && whole_ns > s->whole_ns ? whole_ns : s->whole_ns;
	set_state(a, s, SHARE_MOVING, 2 * a->config->stall_ns);
	work_tell(a, &s->engine,
		  json_pack("{s:s, s:O, s:I}", "op", "start", "hellos", hellos, "max_rate",
			    (json_int_t)max_rate),
		  NULL, 0);
}

/* It may have been under way while we told that the epoch is done or broken. */
static void on_stop(struct agent *a, struct share *s, const json_t *message)
{
	(void)message;
	if (!is_under_way(s) && s->state != SHARE_BROKEN && s->state != SHARE_READY)
		return;
	work_end(a, &s->engine);
	s->is_moved = false;
	set_state(a, s, SHARE_READY, 0);
	tell(a, s, "stopped", json_pack("{s:I}", "epoch", (json_int_t)s->epoch));
}

/* --- What we make ------------------------------------------------------------------------------- */

static void on_made(struct agent *a, struct share *s, int *fds, unsigned n_fds)
{
	char hex[65];

	if (s->state != SHARE_MAKE || n_fds != 1) {
		give_up(a, s, "failed", "the sink answered something else than was asked");
		return;
	}
	s->memory_fd = take_fd(fds[0]);
	set_state(a, s, SHARE_READY, 0);
	tell(a, s, "ready",
	     json_pack("{s:I, s:I, s:I, s:s, s:s}", "version", (json_int_t)s->lent, "n_bytes",
		       (json_int_t)s->n_bytes, "layout_bytes", (json_int_t)s->layout_bytes, "layout",
		       field_hex(s->layout, 32, hex), "address", a->config->data_addresses[0]));
}

static void on_verified(struct agent *a, struct share *s, const json_t *message, int *fds,
			unsigned n_fds)
{
	char root[65], leaves[65];

	if (s->state != SHARE_VERIFYING || n_fds != 1 ||
	    field_bytes(message, "root", s->root, 32) < 0 ||
	    field_bytes(message, "leaves", s->leaves, 32) < 0) {
		give_up(a, s, "failed", "the sink answered something else than was asked");
		return;
	}
	s->leaves_fd = take_fd(fds[0]);
	set_state(a, s, SHARE_VERIFIED, 0);
	tell(a, s, "verified",
	     json_pack("{s:s, s:s}", "root", field_hex(s->root, 32, root), "leaves",
		       field_hex(s->leaves, 32, leaves)));
}

static void on_published(struct agent *a, struct share *s, const json_t *message)
{
	uint64_t version;

	if (s->state != SHARE_PUBLISHING) {
		give_up(a, s, "failed", "the sink published what it was not asked to");
		return;
	}
	if (field_number(message, "version", INT64_MAX, &version) < 0)
		version = 0; /* that it was published is known all the same */
	s->version = version;
	tell(a, s, "committed", json_pack("{s:I}", "version", (json_int_t)version));
	end(a, s, "committed", NULL);
	if (version)
		head_set_base(s->head, version, s->n_bytes, s->root, s->leaves_fd);
	head_set_serving(a, s->head, version);
}

/* The commit stands, by the record; the bytes will be fetched. */
static void on_sink_failed(struct agent *a, struct share *s, const char *code, const char *why)
{
	if (s->state == SHARE_PUBLISHING) {
		tell(a, s, "failed", json_pack("{s:s, s:s}", "code", code, "why", why));
		end(a, s, "failed", why);
		head_set_lost(a, s->head);
	} else {
		give_up(a, s, code, why);
	}
}

static void on_sink_message(struct agent *a, struct work *w, const json_t *message, int *fds,
			    unsigned n_fds)
{
	struct share *s = container_of(w, struct share, sink);
	const char *op, *code = "failed", *why = "the sink did not say why it failed";

	if (s->state == SHARE_ENDED)
		return;
	if (field_string(message, "op", 32, &op) < 0)
		op = "";
	if (strcmp(op, "created") == 0) {
		on_made(a, s, fds, n_fds);
	} else if (strcmp(op, "verified") == 0) {
		on_verified(a, s, message, fds, n_fds);
	} else if (strcmp(op, "published") == 0) {
		on_published(a, s, message);
	} else {
		(void)field_string(message, "code", 32, &code);
		(void)field_string(message, "why", WHY_SIZE, &why);
		on_sink_failed(a, s, code, why);
	}
}

static void on_sink_end(struct agent *a, struct work *w, const char *how)
{
	struct share *s = container_of(w, struct share, sink);
	char why[WHY_SIZE];

	if (s->state == SHARE_ENDED)
		return;
	snprintf(why, sizeof(why), "the sink process of %s ended (%s)", a->config->name, how);
	on_sink_failed(a, s, "failed", why);
}

static void make(struct agent *a, struct share *s)
{
	const struct group *group = group_find(a->config, s->invitation.group);
	char why[WHY_SIZE], hex[65];
	json_t *message;

	s->sink = (struct work){.on_message = on_sink_message, .on_end = on_sink_end};
	if (work_start(a, &s->sink, JOB_SINK, why) < 0) {
		give_up(a, s, "failed", why);
		return;
	}
	set_state(a, s, SHARE_MAKE, agent_time_for(a, s->n_bytes));
	message = json_pack("{s:s, s:s?, s:s, s:s, s:I, s:s}", "op", s->invitation.operation->make,
			    "socket", a->config->weightd_socket, "buffer", s->head->buffer,
			    "device", "host", "n_bytes", (json_int_t)s->n_bytes, "layout",
			    field_hex(s->layout, 32, hex));
	if (group)
		rights_add(&group->rights, message);
	work_tell(a, &s->sink, message, &s->layout_fd, 1);
}

/* --- What we give ------------------------------------------------------------------------------- */

/* False: ours does not fit to what the coordinator has, and it was told how. */
static bool fits(struct agent *a, struct share *s)
{
	const struct invitation *i = &s->invitation;
	const char *other = agent_peer_name(a, s->coordinator), *us = a->config->name;
	char why[WHY_SIZE] = "";

	if (!s->n_bytes)
		snprintf(why, sizeof(why), "version %ju of %s has no bytes", (uintmax_t)s->lent,
			 s->head->buffer);
	else if (a->config->max_bytes && s->n_bytes > a->config->max_bytes)
		snprintf(why, sizeof(why), "it has %ju bytes, and max-bytes of %s is %ju",
			 (uintmax_t)s->n_bytes, us, (uintmax_t)a->config->max_bytes);
	else if (i->has_layout && s->n_bytes != i->n_bytes)
		snprintf(why, sizeof(why),
			 "version %ju of %s on %s has %ju bytes, and that on %s has %ju: their "
			 "tensors differ",
			 (uintmax_t)s->lent, s->head->buffer, us, (uintmax_t)s->n_bytes, other,
			 (uintmax_t)i->n_bytes);
	else if (i->has_layout && memcmp(s->layout, i->layout, 32) != 0)
		snprintf(why, sizeof(why),
			 "version %ju of %s on %s has as many bytes as that on %s, but its tensors "
			 "have other names, types, shapes or places",
			 (uintmax_t)s->lent, s->head->buffer, us, other);
	if (why[0])
		give_up(a, s, "layout", why);
	return !why[0];
}

static void on_attached(struct agent *a, struct share *s, const json_t *message, int *fds,
			unsigned n_fds)
{
	if (s->state != SHARE_ATTACH || n_fds != 3 ||
	    field_number(message, "version", INT64_MAX, &s->lent) < 0 ||
	    field_number(message, "n_bytes", INT64_MAX / 4, &s->n_bytes) < 0 ||
	    field_number(message, "layout_bytes", INT64_MAX, &s->layout_bytes) < 0 ||
	    field_bytes(message, "layout", s->layout, 32) < 0) {
		give_up(a, s, "failed", "the source answered something else than was asked");
		return;
	}
	if (!fits(a, s))
		return;
	s->layout_fd = take_fd(fds[0]);
	s->data_fd = take_fd(fds[1]);
	s->tensors_fd = take_fd(fds[2]);
	s->whole_ns = agent_now(a) + 2 * agent_time_to_move(a, 2 * s->n_bytes, 0);
	make(a, s);
}

static void on_source_message(struct agent *a, struct work *w, const json_t *message, int *fds,
			      unsigned n_fds)
{
	struct share *s = container_of(w, struct share, source);
	const char *op, *code = "failed", *why = "the source did not say why it failed";

	if (s->state == SHARE_ENDED || s->state == SHARE_PUBLISHING)
		return;
	if (field_string(message, "op", 32, &op) == 0 && strcmp(op, "attached") == 0) {
		on_attached(a, s, message, fds, n_fds);
		return;
	}
	(void)field_string(message, "code", 32, &code);
	(void)field_string(message, "why", WHY_SIZE - 1, &why);
	give_up(a, s, code, why);
}

static void on_source_end(struct agent *a, struct work *w, const char *how)
{
	struct share *s = container_of(w, struct share, source);
	char why[WHY_SIZE];

	if (s->state == SHARE_ENDED || s->state == SHARE_PUBLISHING)
		return;
	snprintf(why, sizeof(why), "the source process of %s ended (%s)", a->config->name, how);
	give_up(a, s, "failed", why);
}

static void begin(struct agent *a, struct share *s)
{
	char why[WHY_SIZE];

	s->source = (struct work){.on_message = on_source_message, .on_end = on_source_end};
	s->whole_ns = agent_now(a) + 2 * agent_time_to_move(a, 2 * s->invitation.n_bytes, 0);
	if (work_start(a, &s->source, JOB_SOURCE, why) < 0) {
		give_up(a, s, "failed", why);
		return;
	}
	if (s->had_to_wait)
		tell(a, s, "begun", NULL);
	set_state(a, s, SHARE_ATTACH, agent_time_for(a, 0));
	work_tell(a, &s->source,
		  json_pack("{s:s, s:s?, s:s, s:s, s:i}", "op", s->invitation.operation->lend,
			    "socket", a->config->weightd_socket, "buffer", s->head->buffer,
			    "device", "host", "version", 0),
		  NULL, 0);
}

void share_begin_next(struct agent *a)
{
	struct share *s;
	unsigned n = 0;

	list_for_each(s, &a->shares, link)
		n += s->state != SHARE_QUEUED && s->state != SHARE_ENDED;
	list_for_each(s, &a->shares, link) {
		if (n >= SHARES_MAX)
			return;
		if (s->state != SHARE_QUEUED)
			continue;
		n++;
		begin(a, s);
	}
}

/* --- Joining ------------------------------------------------------------------------------------ */

static int read_invitation(const json_t *message, struct invitation *ret)
{
	const char *sync, *operation, *group, *buffer;

	*ret = (struct invitation){0};
	if (field_string(message, "sync", SYNC_ID_SIZE - 1, &sync) < 0 ||
	    field_string(message, "operation", 32, &operation) < 0 ||
	    field_string(message, "group", GROUP_MAX, &group) < 0 ||
	    field_string(message, "buffer", BUFFER_MAX, &buffer) < 0 ||
	    field_number(message, "term", INT64_MAX, &ret->pair.term) < 0 ||
	    field_number(message, "number", INT64_MAX, &ret->pair.number) < 0 ||
	    field_number(message, "time_ns", INT64_MAX, &ret->time_ns) < 0 ||
	    field_number_or(message, "n_bytes", INT64_MAX / 4, 0, &ret->n_bytes) < 0 ||
	    field_number_or(message, "layout_bytes", INT64_MAX, 0, &ret->layout_bytes) < 0)
		return -EBADMSG;
	ret->has_layout = json_object_get(message, "layout");
	if (ret->has_layout && field_bytes(message, "layout", ret->layout, 32) < 0)
		return -EBADMSG;
	ret->operation = operation_find(operation);
	snprintf(ret->sync, sizeof(ret->sync), "%s", sync);
	snprintf(ret->group, sizeof(ret->group), "%s", group);
	snprintf(ret->buffer, sizeof(ret->buffer), "%s", buffer);
	return 0;
}

static void refuse(struct agent *a, unsigned peer, const struct invitation *i, const char *code,
		   const struct head *h, const char *why)
{
	json_t *message = json_pack("{s:s, s:s, s:s, s:s}", "type", "refuse", "sync", i->sync,
				    "code", code, "why", why);

	if (h && h->document && peer != AGENT_SELF)
		json_object_set_new(message, "heads", json_pack("[o]", head_to_json(h)));
	agent_send(a, peer, message);
}

static struct share *share_new(struct agent *a, unsigned peer, const struct invitation *i,
			       struct head *h)
{
	struct share *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->invitation = *i;
	s->coordinator = peer;
	s->head = h;
	s->layout_fd = s->data_fd = s->tensors_fd = s->memory_fd = s->leaves_fd = -1;
	s->started_ns = a->edge->time_ns(a->world);
	s->whole_ns = agent_now(a) + 2 * agent_time_to_move(a, 2 * i->n_bytes, 0);
	list_append(&a->shares, &s->link);
	return s;
}

void share_on_join(struct agent *a, unsigned peer, const json_t *message)
{
	struct invitation i;
	char why[WHY_SIZE] = "";
	struct head *h = NULL;
	const char *code;
	struct share *s;

	if (read_invitation(message, &i) < 0 || (!i.has_layout && peer != AGENT_SELF)) {
		agent_hang_up(a, peer, "JOIN of another form");
		return;
	}
	code = admission_refusal_of_share(a, peer, &i, &h, why);
	s = code ? NULL : share_new(a, peer, &i, h);
	if (!s) {
		refuse(a, peer, &i, code ? code : "memory", h, code ? why : "out of memory");
		return;
	}
	head_set_asked(a, h, NO_PEER);
	share_begin_next(a);
	if (s->state == SHARE_QUEUED) {
		s->had_to_wait = true;
		tell(a, s, "queued", NULL);
	}
}

/* --- What the coordinator says ------------------------------------------------------------------- */

static void on_verify(struct agent *a, struct share *s, const json_t *message)
{
	(void)message;
	if (s->state != SHARE_READY || !s->is_moved) {
		out_of_order(a, s, "verify");
		return;
	}
	work_end(a, &s->engine);
	work_end(a, &s->source); /* what it gave is in the result */
	set_state(a, s, SHARE_VERIFYING, agent_time_to_verify(a, s->n_bytes));
	work_tell(a, &s->sink, json_pack("{s:s}", "op", "verify"), NULL, 0);
}

/* Whether it is what was asked for and found here, and newer than what is. -EBADMSG or -EKEYREJECTED. */
static int check_document(struct agent *a, const struct share *s, const struct document *d,
			  char why[WHY_SIZE])
{
	const struct invitation *i = &s->invitation;

	snprintf(why, WHY_SIZE, "its coordinator signed another version than was verified here");
	if (!d->decision || strcmp(d->publisher, agent_peer_name(a, s->coordinator)) != 0 ||
	    strcmp(d->group, i->group) != 0 || strcmp(d->buffer, i->buffer) != 0 ||
	    pair_compare(d->pair, i->pair) != 0 || d->n_bytes != s->n_bytes ||
	    d->layout_bytes != s->layout_bytes || memcmp(d->layout, s->layout, 32) != 0 ||
	    memcmp(d->root, s->root, 32) != 0 || memcmp(d->leaves, s->leaves, 32) != 0)
		return -EBADMSG;
	return document_check(a, d, why);
}

static void on_commit(struct agent *a, struct share *s, const json_t *message)
{
	cleanup(document_freep) struct document *d = NULL;
	char why[WHY_SIZE];
	int r = 0;

	if (s->state != SHARE_VERIFIED || document_parse(message, &d) < 0) {
		out_of_order(a, s, "commit");
		return;
	}
	if (check_document(a, s, d, why) < 0) {
		give_up(a, s, "decision", why);
		return;
	}
	/* The fence first: the opening of head.c says why. Our own decision wrote it already. */
	if (s->coordinator != AGENT_SELF)
		r = head_commit(a, s->head, d, 0, HEAD_BEHIND);
	if (r < 0) {
		snprintf(why, sizeof(why), "the record of %s could not be written: %s",
			 a->config->name, strerror(-r));
		give_up(a, s, "record", why);
		return;
	}
	set_state(a, s, SHARE_PUBLISHING, agent_time_for(a, s->n_bytes));
	work_tell(a, &s->sink, json_pack("{s:s}", "op", "publish"), NULL, 0);
}

static void on_abort(struct agent *a, struct share *s, const json_t *message)
{
	bool is_planned;
	const char *why;

	if (s->state == SHARE_PUBLISHING)
		return; /* it was decided */
	if (field_string(message, "why", ABORT_WHY_MAX, &why) < 0)
		why = "its coordinator gave no reason";
	tell(a, s, "aborted", NULL);
	if (field_bool_or(message, "planned", false, &is_planned) == 0 && is_planned)
		end(a, s, "planned", NULL);
	else
		drop(a, s, "%s", why);
}

static const struct {
	const char *type;
	bool of_epoch; /* dropped where its epoch is another one */
	void (*fn)(struct agent *a, struct share *s, const json_t *message);
} MESSAGES[] = {
	{"open", false, on_open},     {"start", true, on_start},    {"stop", true, on_stop},
	{"verify", false, on_verify}, {"commit", false, on_commit}, {"abort", false, on_abort},
};

bool share_on_message(struct agent *a, unsigned peer, const char *sync, const char *type,
		      const json_t *message)
{
	struct share *s, *found = NULL;
	uint64_t epoch;

	list_for_each(s, &a->shares, link)
		if (s->state != SHARE_ENDED && s->coordinator == peer &&
		    strcmp(s->invitation.sync, sync) == 0)
			found = s;
	if (!found)
		return false;
	for (unsigned i = 0; i < sizeof(MESSAGES) / sizeof(MESSAGES[0]); i++) {
		if (strcmp(MESSAGES[i].type, type) != 0)
			continue;
		if (MESSAGES[i].of_epoch && field_number(message, "epoch", EPOCH_MAX, &epoch) < 0)
			out_of_order(a, found, type);
		else if (!MESSAGES[i].of_epoch || epoch == found->epoch)
			MESSAGES[i].fn(a, found, message);
		return true;
	}
	return false;
}

void share_on_peer_down(struct agent *a, struct share *s, const char *why)
{
	drop(a, s, "its coordinator %s went away: %s", agent_peer_name(a, s->coordinator), why);
}

void share_on_timer(struct agent *a, struct share *s, uint64_t now)
{
	char why[WHY_SIZE];

	if (s->state == SHARE_ENDED || now < share_deadline(s))
		return;
	if (now >= s->whole_ns && s->state != SHARE_PUBLISHING) {
		give_up(a, s, "deadline", "it took too long as a whole");
	} else if (is_under_way(s)) {
		snprintf(why, sizeof(why), "the engine of %s moved nothing for %ju s",
			 a->config->name, (uintmax_t)(2 * a->config->stall_ns / SECOND));
		broken(a, s, "failed", NULL, why);
	} else {
		snprintf(why, sizeof(why), "the local weightd of %s did not answer in time (%s)",
			 a->config->name, share_phase(s));
		on_sink_failed(a, s, "deadline", why);
	}
}

void share_free(struct agent *a, struct share *s)
{
	int fds[] = {s->layout_fd, s->data_fd, s->tensors_fd, s->memory_fd, s->leaves_fd};

	work_end(a, &s->engine);
	work_end(a, &s->sink);
	work_end(a, &s->source);
	for (unsigned i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	json_decref(s->nodes);
	free(s->why);
	list_remove(&s->link);
	free(s);
}
