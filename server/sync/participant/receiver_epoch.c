/*
 * An engine of this node lives for one epoch, and what it says counts while that lasts. However it ends, what came is
 * kept, and the coordinator is told what is still missing.
 */
#include "server/sync/participant/receiver_epoch.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "server/sync/base/engine_order.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/state/data_way.h"
#include "server/sync/state/group.h"
#include "server/sync/state/patch_chain.h"
#include "server/sync/state/retry.h"
#include "server/sync/state/time_limit.h"
#include "server/sync/state/trace_span.h"
#include "server/sync/state/transport.h"

#define CHUNK_MAX ((uint64_t)1 << 30)

/* The bytes of the epoch that are still missing. */
static struct ranges *missing(struct receiver *rec)
{
	return rec->by_patch ? &rec->patch_missing : &rec->missing;
}

/* All of it came: with that nothing is missing, until verify says so. */
static void apply_patch(struct agent *a, struct receiver *rec)
{
	work_tell(a, &rec->participant.sink, json_pack("{s:s}", "op", "patch"), &rec->patch_fd, 1);
	rec->patch_fd = fd_close(rec->patch_fd);
	ranges_deinit(&rec->missing);
	ranges_init(&rec->missing);
}

/* Notes the bytes that arrived, and ends the engine. */
static void engine_over(struct agent *a, struct receiver *rec, uint64_t done)
{
	uint64_t before = ranges_total(missing(rec));
	struct ranges came;

	work_end(a, &rec->participant.engine);
	ranges_init(&came);
	/* Without memory, what came is asked for again. */
	if (done <= rec->participant.expected && ranges_prefix(&rec->ranges, done, &came) == 0)
		(void)ranges_remove_all(missing(rec), &came);
	ranges_deinit(&came);
	if (rec->by_patch && before && !rec->patch_missing.n)
		apply_patch(a, rec);
	if (ranges_total(missing(rec)) < before)
		rec->participant.idle_ns = agent_now(a) + retry_patience(a);
	participant_set_state(a, &rec->participant, PARTICIPANT_READY, 0);
}

/* `stripe` may be NULL. */
static void tell_broken(struct agent *a, struct receiver *rec, uint64_t done, const char *from,
			const char *to, const char *why, json_t *stripe)
{
	if (rec->participant.state == PARTICIPANT_MOVING)
		byte_count_add_broken(&rec->participant.byte_count);
	engine_over(a, rec, done);
	participant_tell(a, &rec->participant, "broken",
			 json_pack("{s:I, s:s, s:s?, s:s?, s:o, s:O*}", "epoch",
				   (json_int_t)rec->participant.epoch, "why", why, "from", from, "to",
				   to, "missing", ranges_to_json(missing(rec)), "stripe", stripe));
}

static void receiver_epoch_break(struct agent *a, struct receiver *rec, uint64_t done,
				 const char *from, const char *to, const char *why)
{
	tell_broken(a, rec, done, from, to, why, NULL);
}

/* Describes the addresses of its engine, if there are several. -EBADMSG. */
static int describe_ports(const struct agent *a, const struct receiver *rec, const json_t *opened,
			  json_t **ret)
{
	unsigned n = a->config->n_data_addresses;
	json_t *ports;
	const json_t *port;
	size_t i;

	*ret = NULL;
	if (n == 1 || !rec->transport->has_stripes)
		return 0;
	if (field_array(opened, "ports", STRIPES_MAX, &ports) < 0 || json_array_size(ports) != n)
		return -EBADMSG;
	*ret = json_array();
	json_array_foreach(ports, i, port)
		json_array_append_new(*ret, json_pack("{s:s, s:I}", "address",
						      a->config->data_addresses[i], "port",
						      json_integer_value(port)));
	return 0;
}

void receiver_epoch_on_opened(struct agent *a, struct participant *p, const json_t *message)
{
	struct receiver *rec = receiver_of(p);
	const char *hello;
	json_t *stripes;
	uint64_t port;

	if (p->state != PARTICIPANT_OPENING ||
	    field_number_or(message, "port", 65535, 0, &port) < 0 ||
	    (!port && !rec->transport->is_nccl) ||
	    field_string_or_null(message, "hello", TRANSPORT_HELLO_MAX, &hello) < 0 ||
	    describe_ports(a, rec, message, &stripes) < 0) {
		receiver_epoch_break(a, rec, 0, NULL, NULL,
				     "the engine answered something else than was asked");
		return;
	}
	participant_set_state(a, p, PARTICIPANT_OPEN, 0);
	participant_tell(a, p, "opened",
			 json_pack("{s:I, s:s, s:I, s:o*, s:o, s:s*}", "epoch",
				   (json_int_t)p->epoch, "address", a->config->data_addresses[0],
				   "port", (json_int_t)port, "stripes", stripes, "missing",
				   ranges_to_json(missing(rec)), "hello", hello));
}

void receiver_epoch_on_done(struct agent *a, struct participant *p, const json_t *message)
{
	struct receiver *rec = receiver_of(p);
	json_t *in = json_object_get(message, "in"), *out = json_object_get(message, "out");
	uint64_t planned;

	if (p->state != PARTICIPANT_MOVING) {
		receiver_epoch_break(a, rec, 0, NULL, NULL,
				     "the engine ended before it was started");
		return;
	}
	p->done = p->expected;
	planned = rec->transport->planned(&rec->ranges, rec->n_stripes_in);
	byte_count_add(&p->byte_count, planned, in);
	metrics_on_received(a, p->from, planned, in);
	if (rec->to[0])
		metrics_on_sent(a, rec->to,
				rec->transport->planned(&rec->ranges, rec->n_stripes_out), out);
	trace_span_end(a, &p->engine, p->coordinator, p->from, message);
	engine_over(a, rec, p->expected);
	participant_tell(a, p, "done",
			 json_pack("{s:I, s:O?, s:O?}", "epoch", (json_int_t)p->epoch, "in", in,
				   "out", out));
}

void receiver_epoch_on_broken(struct agent *a, struct participant *p, const json_t *message)
{
	struct receiver *rec = receiver_of(p);
	const char *why = "its engine failed", *from = NULL, *to = NULL;
	uint64_t done;

	(void)field_string(message, "why", WHY_SIZE - 1, &why);
	(void)field_string_or_null(message, "from", NODE_MAX, &from);
	(void)field_string_or_null(message, "to", NODE_MAX, &to);
	if (field_number(message, "done", p->expected, &done) < 0 || done < p->done)
		done = p->done;
	tell_broken(a, rec, done, from, to, why, json_object_get(message, "stripe"));
}

void receiver_epoch_on_engine_end(struct agent *a, struct participant *p, const char *why)
{
	receiver_epoch_break(a, receiver_of(p), p->done, NULL, NULL, why);
}

void receiver_epoch_on_stalled(struct agent *a, struct participant *p, const char *why)
{
	struct receiver *rec = receiver_of(p);
	bool opens = p->state ==
		     PARTICIPANT_OPENING; /* there is no link yet that could be at fault */

	receiver_epoch_break(a, rec, p->done, opens ? NULL : p->from,
			     !opens && rec->to[0] ? rec->to : NULL, why);
}

struct opening {
	uint64_t epoch, patch, chunk; /* `patch`: its size; 0: it is of the version */
	uint8_t token[32];
	const char *from, *engine;
	struct ranges ranges;
};

static int read_open(const struct receiver *rec, const json_t *message, struct opening *ret)
{
	const uint64_t n_bytes = rec->document->n_bytes;

	if (field_number(message, "epoch", EPOCH_MAX, &ret->epoch) < 0 ||
	    ret->epoch <= rec->participant.epoch ||
	    field_bytes(message, "token", ret->token, 32) < 0 ||
	    field_string(message, "from", NODE_MAX, &ret->from) < 0 ||
	    field_string(message, "engine", TRANSPORT_NAME_MAX, &ret->engine) < 0 ||
	    field_number_or(message, "chunk", CHUNK_MAX, TRANSPORT_CHUNK, &ret->chunk) < 0 ||
	    !ret->chunk || ret->chunk % TRANSPORT_CHUNK ||
	    field_number_or(message, "patch", n_bytes / PATCH_CHAIN_WORTH, 0, &ret->patch) < 0)
		return -EBADMSG;
	if (ranges_from_json(json_object_get(message, "ranges"), ret->patch ? ret->patch : n_bytes,
			     &ret->ranges) < 0)
		return -EBADMSG;
	return ret->ranges.n && ret->ranges.n <= TRANSPORT_RANGES_MAX ? 0 : -EBADMSG;
}

/*
 * Memory for a patch, which was never one of the version's: what is sent of it comes to nothing but time. -errno; of
 * another size than the one before, -EBADMSG.
 */
static int receiver_epoch_make_room(struct receiver *rec, uint64_t size)
{
	cleanup(fd_closep) int fd = -1;
	int r;

	if (rec->participant.patch_size)
		return rec->participant.patch_size == size && rec->patch_fd >= 0 ? 0 : -EBADMSG;
	r = ranges_add(&rec->patch_missing, 0, size);
	if (r == 0)
		r = fd_memfd("weightd-sync-patch", size, &fd);
	if (r == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		r = -errno;
	if (r < 0)
		return r; /* all of it stays missing */
	rec->patch_fd = take_fd(fd);
	rec->participant.patch_size = size;
	return 0;
}

/* Leaves of a GPU's memory that a chain brings are staged before. */
static bool is_staged(const struct receiver *rec)
{
	return rec->memory.gpu[0] && !rec->transport->is_nccl && !rec->by_patch;
}

static const int *memory_of(const struct receiver *rec)
{
	if (rec->by_patch)
		return &rec->patch_fd;
	return is_staged(rec) ? &rec->staged_fd : &rec->participant.memory_fd;
}

static void receiver_epoch_open_engine(struct agent *a, struct receiver *rec)
{
	struct participant *p = &rec->participant;
	const struct carriage c = {
		.transport = rec->transport,
		.sync = p->sync,
		.epoch = p->epoch,
		.n_bytes = rec->by_patch ? p->patch_size : p->n_bytes,
		.data_offset = memory_of(rec) == &p->memory_fd ? p->data_offset : 0,
		.ranges = &rec->ranges,
		.from = p->from,
		.token = rec->token,
		.memory = &rec->memory,
		.chunk = rec->chunk,
	};
	char why[WHY_SIZE];

	p->open_ns = transport_time_to_open(a, rec->transport);
	p->stall_ns = transport_patience(a, rec->transport);
	if (participant_start_engine(a, p, rec->transport->job, why) < 0)
		receiver_epoch_break(a, rec, 0, NULL, NULL, why);
	else
		work_tell(a, &p->engine, transport_open(a, &c), memory_of(rec), 1);
}

/* Bytes on the GPU are in the staging, too: incoming bytes are looked for there alone. */
static void receiver_epoch_stage(struct agent *a, struct receiver *rec)
{
	struct participant *p = &rec->participant;

	rec->n_staging++;
	p->open_ns = time_limit_for(a, p->expected);
	participant_set_state(a, p, PARTICIPANT_OPENING, p->open_ns);
	work_tell(a, &p->sink,
		  json_pack("{s:s, s:o}", "op", "stage", "ranges", ranges_to_json(&rec->ranges)),
		  NULL, 0);
}

void receiver_epoch_on_staged(struct agent *a, struct receiver *rec, int *fds, unsigned n_fds)
{
	if (!rec->n_staging || n_fds != 1) {
		participant_give_up(a, &rec->participant, "failed",
				    "the sink answered something else than was asked");
		return;
	}
	(void)fd_close(rec->staged_fd);
	rec->staged_fd = take_fd(fds[0]);
	/* An epoch that was stopped meanwhile may have asked before this one. */
	if (--rec->n_staging == 0 && rec->participant.state == PARTICIPANT_OPENING && is_staged(rec))
		receiver_epoch_open_engine(a, rec);
}

static void take_open(struct receiver *rec, struct opening *o)
{
	participant_take_epoch(&rec->participant, o->epoch);
	ranges_deinit(&rec->ranges);
	rec->ranges = o->ranges;
	rec->participant.expected = ranges_total(&rec->ranges);
	snprintf(rec->participant.from, sizeof(rec->participant.from), "%s", o->from);
	field_hex(o->token, sizeof(o->token), rec->token);
	rec->to[0] = '\0';
	rec->chunk = o->chunk;
	rec->by_patch = o->patch;
}

void receiver_epoch_on_open(struct agent *a, struct participant *p, const json_t *message)
{
	struct receiver *rec = receiver_of(p);
	const struct transport *transport;
	struct opening o = {0};
	char why[WHY_SIZE] = "";
	int r;

	if (p->state != PARTICIPANT_READY || read_open(rec, message, &o) < 0) {
		ranges_deinit(&o.ranges);
		participant_out_of_order(a, p, "open");
		return;
	}
	take_open(rec, &o);
	transport = transport_find(o.engine);
	r = o.patch ? receiver_epoch_make_room(rec, o.patch) : 0;
	if (r < 0)
		snprintf(why, sizeof(why), "%s has no memory for a patch: %s", a->config->name,
			 strerror(-r));
	else if (!transport)
		snprintf(why, sizeof(why), "%s knows no engine '%s'", a->config->name, o.engine);
	else if (transport->is_nccl && (!rec->memory.gpu[0] || o.patch))
		snprintf(why, sizeof(why), "%s was not asked to have memory of a GPU for NCCL",
			 a->config->name);
	if (why[0]) {
		receiver_epoch_break(a, rec, 0, NULL, NULL, why);
		return;
	}
	rec->transport = transport;
	if (is_staged(rec))
		receiver_epoch_stage(a, rec);
	else
		receiver_epoch_open_engine(a, rec);
}

/* Reads the next node of the chain: null, or all of its fields. */
static int check_next(const struct agent *a, const json_t *next, const char **ret_node)
{
	const char *address;
	uint8_t token[32];
	uint64_t port;

	*ret_node = NULL;
	if (json_is_null(next))
		return 0;
	if (field_string(next, "node", NODE_MAX, ret_node) < 0 ||
	    field_string(next, "address", 255, &address) < 0 ||
	    field_number(next, "port", 65535, &port) < 0 || !port ||
	    field_bytes(next, "token", token, 32) < 0 || !data_ways_are_sound(a, next))
		return -EBADMSG;
	return 0;
}

/* These nodes have the bytes. A coordinator that makes others dial one of them for a push probes that address. */
static bool has_it_already(const struct agent *a, const struct participant *p, const char *node)
{
	return strcmp(node, a->config->name) == 0 ||
	       strcmp(node, agent_peer_name(a, p->coordinator)) == 0;
}

/* Nobody else is dialled for a coordinator, whatever it says of where that is. */
static bool is_of_group(const struct agent *a, const struct participant *p, const char *node)
{
	const struct group *g = group_find(a->config, p->group);

	return g && (group_has_member(g, node) || group_has_publisher(g, node));
}

static bool may_dial_next(const struct agent *a, const json_t *next, const char *node,
			  char why[WHY_SIZE])
{
	const char *address = json_string_value(json_object_get(next, "address"));
	const json_t *stripe;
	size_t i;

	json_array_foreach(json_object_get(next, "stripes"), i, stripe)
	{
		const char *at = json_string_value(json_object_get(stripe, "address"));

		if (!a->env->may_dial(a->userdata, at, node, why))
			return false;
	}
	return a->env->may_dial(a->userdata, address, node, why);
}

static void begin_to_move(struct agent *a, struct receiver *rec, uint64_t max_rate)
{
	struct participant *p = &rec->participant;
	uint64_t whole_ns = 0;

	if (max_rate)
		whole_ns = rec->begun_ns +
			   2 * time_limit_to_move(a, rec->document->n_bytes, max_rate);
	p->whole_ns = whole_ns > p->whole_ns ? whole_ns : p->whole_ns;
	p->reported_ns = agent_now(a);
	participant_set_state(a, p, PARTICIPANT_MOVING, p->stall_ns);
}

/* The engine finds out what else is wrong with its place. */
static void start_nccl(struct agent *a, struct receiver *rec, const json_t *message)
{
	struct participant *p = &rec->participant;
	uint64_t rank, n_ranks, max_rate;
	json_t *addresses;
	const char *hello;

	if (p->state != PARTICIPANT_OPEN || field_number(message, "rank", MEMBERS_MAX, &rank) < 0 ||
	    field_number(message, "n_ranks", MEMBERS_MAX + 1, &n_ranks) < 0 ||
	    field_string(message, "hello", TRANSPORT_HELLO_MAX, &hello) < 0 ||
	    field_array(message, "addresses", MEMBERS_MAX + 1, &addresses) < 0 ||
	    json_array_size(addresses) != n_ranks ||
	    field_number_or(message, "max_rate", INT64_MAX, 0, &max_rate) < 0) {
		participant_out_of_order(a, p, "start");
		return;
	}
	rec->n_stripes_in = 1;
	begin_to_move(a, rec, max_rate);
	work_tell(a, &p->engine,
		  json_pack("{s:s, s:I, s:I, s:s, s:I, s:O}", "op", "start", "rank",
			    (json_int_t)rank, "n_ranks", (json_int_t)n_ranks, "hello", hello,
			    "max_rate", (json_int_t)max_rate, "addresses", addresses),
		  NULL, 0);
}

/* The fields of "start" to a member of a chain. */
struct chain_start {
	json_t *next;
	const char *to; /* NULL: it is the last one */
	const char *hello, *from_address;
	uint64_t n_stripes, max_rate;
};

static const struct {
	const char *key;
	uint64_t max, otherwise;
	size_t offset;
} START_NUMBERS[] = {
	{"from_stripes", STRIPES_MAX, 1, offsetof(struct chain_start, n_stripes)},
	{"max_rate", INT64_MAX, 0, offsetof(struct chain_start, max_rate)},
};

static const struct {
	const char *key;
	size_t max;
	size_t offset;
} START_STRINGS[] = {
	{"from_hello", TRANSPORT_HELLO_MAX, offsetof(struct chain_start, hello)},
	{"from_address", 255, offsetof(struct chain_start, from_address)},
};

static int read_start(struct agent *a, const json_t *message, struct chain_start *ret)
{
	char *at = (char *)ret;
	int r;

	ret->next = json_object_get(message, "next");
	r = ret->next ? check_next(a, ret->next, &ret->to) : -EBADMSG;
	for (unsigned i = 0; r == 0 && i < sizeof(START_NUMBERS) / sizeof(START_NUMBERS[0]); i++)
		r = field_number_or(message, START_NUMBERS[i].key, START_NUMBERS[i].max,
				    START_NUMBERS[i].otherwise,
				    (uint64_t *)(void *)(at + START_NUMBERS[i].offset));
	for (unsigned i = 0; r == 0 && i < sizeof(START_STRINGS) / sizeof(START_STRINGS[0]); i++)
		r = field_string_or_null(message, START_STRINGS[i].key, START_STRINGS[i].max,
					 (const char **)(void *)(at + START_STRINGS[i].offset));
	if (r == 0 && (!ret->n_stripes || (ret->max_rate && ret->max_rate < ENGINE_ORDER_RATE_MIN)))
		r = -EBADMSG;
	return r;
}

static void start_chain(struct agent *a, struct receiver *rec, const json_t *message)
{
	struct participant *p = &rec->participant;
	struct chain_start s = {0};
	char why[WHY_SIZE];

	if (p->state != PARTICIPANT_OPEN || read_start(a, message, &s) < 0 ||
	    (s.to && has_it_already(a, p, s.to))) {
		participant_out_of_order(a, p, "start");
		return;
	}
	if (s.to && !is_of_group(a, p, s.to)) {
		snprintf(why, sizeof(why), "%s has no node '%s' in the group '%s'", a->config->name,
			 s.to, p->group);
		receiver_epoch_break(a, rec, 0, a->config->name, s.to, why);
		return;
	}
	/* It owns up to that before others hear that its engine ended, and comes behind them. */
	if (s.to && !may_dial_next(a, s.next, s.to, why)) {
		receiver_epoch_break(a, rec, 0, NULL, NULL, why);
		return;
	}
	snprintf(rec->to, sizeof(rec->to), "%s", s.to ? s.to : "");
	rec->n_stripes_in = (unsigned)s.n_stripes;
	rec->n_stripes_out = (unsigned)json_array_size(json_object_get(s.next, "stripes"));
	begin_to_move(a, rec, s.max_rate);
	work_tell(a, &p->engine,
		  json_pack("{s:s, s:O, s:I, s:s*, s:s*}", "op", "start", "next", s.next,
			    "max_rate", (json_int_t)s.max_rate, "from_address", s.from_address,
			    "from_hello", s.hello),
		  NULL, 0);
}

void receiver_epoch_on_start(struct agent *a, struct participant *p, const json_t *message)
{
	struct receiver *rec = receiver_of(p);

	if (p->state == PARTICIPANT_READY)
		return; /* it crossed what we said of an engine that ended */
	if (rec->transport && rec->transport->is_nccl)
		start_nccl(a, rec, message);
	else
		start_chain(a, rec, message);
}

void receiver_epoch_on_stop(struct agent *a, struct participant *p, const json_t *message)
{
	struct receiver *rec = receiver_of(p);

	(void)message;
	/* It may have been under way while we told that the epoch is done or broken. */
	if (!participant_is_under_way(p))
		return;
	if (p->state == PARTICIPANT_MOVING)
		byte_count_add_broken(&p->byte_count);
	engine_over(a, rec, p->done);
	participant_tell(a, p, "stopped",
			 json_pack("{s:I, s:o}", "epoch", (json_int_t)p->epoch, "missing",
				   ranges_to_json(missing(rec))));
}
