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

/* What is missing of what the epoch carries. */
static struct ranges *missing(struct receiver *p)
{
	return p->by_patch ? &p->patch_missing : &p->missing;
}

/* All of it came: with that nothing is missing, until verify says so. */
static void apply_patch(struct agent *a, struct receiver *p)
{
	work_tell(a, &p->participant.sink, json_pack("{s:s}", "op", "patch"), &p->patch_fd, 1);
	p->patch_fd = fd_close(p->patch_fd);
	ranges_deinit(&p->missing);
	ranges_init(&p->missing);
}

/* What came is there, and the engine is gone. */
static void engine_over(struct agent *a, struct receiver *p, uint64_t done)
{
	uint64_t before = ranges_total(missing(p));
	struct ranges came;

	work_end(a, &p->participant.engine);
	ranges_init(&came);
	/* Without memory, what came is asked for again. */
	if (done <= p->participant.expected && ranges_prefix(&p->ranges, done, &came) == 0)
		(void)ranges_remove_all(missing(p), &came);
	ranges_deinit(&came);
	if (p->by_patch && before && !p->patch_missing.n)
		apply_patch(a, p);
	if (ranges_total(missing(p)) < before)
		p->participant.idle_ns = agent_now(a) + retry_patience(a);
	participant_set_state(a, &p->participant, PARTICIPANT_READY, 0);
}

/* `stripe` may be NULL. */
static void tell_broken(struct agent *a, struct receiver *p, uint64_t done, const char *from,
			const char *to, const char *why, json_t *stripe)
{
	if (p->participant.state == PARTICIPANT_MOVING)
		byte_count_add_broken(&p->participant.byte_count);
	engine_over(a, p, done);
	participant_tell(a, &p->participant, "broken",
			 json_pack("{s:I, s:s, s:s?, s:s?, s:o, s:O*}", "epoch",
				   (json_int_t)p->participant.epoch, "why", why, "from", from, "to",
				   to, "missing", ranges_to_json(missing(p)), "stripe", stripe));
}

static void receiver_epoch_break(struct agent *a, struct receiver *p, uint64_t done,
				 const char *from, const char *to, const char *why)
{
	tell_broken(a, p, done, from, to, why, NULL);
}

/* Where its engine listens, if at several addresses. -EBADMSG. */
static int describe_ports(const struct agent *a, const struct receiver *p, const json_t *opened,
			  json_t **ret)
{
	unsigned n = a->config->n_data_addresses;
	json_t *ports;
	const json_t *port;
	size_t i;

	*ret = NULL;
	if (n == 1 || !p->transport->has_stripes)
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

void receiver_epoch_on_opened(struct agent *a, struct participant *d, const json_t *message)
{
	struct receiver *p = receiver_of(d);
	const char *hello;
	json_t *stripes;
	uint64_t port;

	if (d->state != PARTICIPANT_OPENING ||
	    field_number_or(message, "port", 65535, 0, &port) < 0 ||
	    (!port && !p->transport->is_nccl) ||
	    field_string_or_null(message, "hello", TRANSPORT_HELLO_MAX, &hello) < 0 ||
	    describe_ports(a, p, message, &stripes) < 0) {
		receiver_epoch_break(a, p, 0, NULL, NULL,
				     "the engine answered something else than was asked");
		return;
	}
	participant_set_state(a, d, PARTICIPANT_OPEN, 0);
	participant_tell(a, d, "opened",
			 json_pack("{s:I, s:s, s:I, s:o*, s:o, s:s*}", "epoch",
				   (json_int_t)d->epoch, "address", a->config->data_addresses[0],
				   "port", (json_int_t)port, "stripes", stripes, "missing",
				   ranges_to_json(missing(p)), "hello", hello));
}

void receiver_epoch_on_done(struct agent *a, struct participant *d, const json_t *message)
{
	struct receiver *p = receiver_of(d);
	json_t *in = json_object_get(message, "in"), *out = json_object_get(message, "out");
	uint64_t planned;

	if (d->state != PARTICIPANT_MOVING) {
		receiver_epoch_break(a, p, 0, NULL, NULL, "the engine ended before it was started");
		return;
	}
	d->done = d->expected;
	planned = p->transport->planned(&p->ranges, p->n_stripes_in);
	byte_count_add(&d->byte_count, planned, in);
	metrics_on_received(a, d->from, planned, in);
	if (p->to[0])
		metrics_on_sent(a, p->to, p->transport->planned(&p->ranges, p->n_stripes_out), out);
	trace_span_end(a, &d->engine, d->coordinator, d->from, message);
	engine_over(a, p, d->expected);
	participant_tell(a, d, "done",
			 json_pack("{s:I, s:O?, s:O?}", "epoch", (json_int_t)d->epoch, "in", in,
				   "out", out));
}

void receiver_epoch_on_broken(struct agent *a, struct participant *d, const json_t *message)
{
	struct receiver *p = receiver_of(d);
	const char *why = "its engine failed", *from = NULL, *to = NULL;
	uint64_t done;

	(void)field_string(message, "why", WHY_SIZE - 1, &why);
	(void)field_string_or_null(message, "from", NODE_MAX, &from);
	(void)field_string_or_null(message, "to", NODE_MAX, &to);
	if (field_number(message, "done", d->expected, &done) < 0 || done < d->done)
		done = d->done;
	tell_broken(a, p, done, from, to, why, json_object_get(message, "stripe"));
}

void receiver_epoch_on_engine_end(struct agent *a, struct participant *d, const char *why)
{
	receiver_epoch_break(a, receiver_of(d), d->done, NULL, NULL, why);
}

void receiver_epoch_on_stalled(struct agent *a, struct participant *d, const char *why)
{
	struct receiver *p = receiver_of(d);
	bool opens = d->state ==
		     PARTICIPANT_OPENING; /* there is no link yet that could be at fault */

	receiver_epoch_break(a, p, d->done, opens ? NULL : d->from,
			     !opens && p->to[0] ? p->to : NULL, why);
}

struct opening {
	uint64_t epoch, patch, chunk; /* `patch`: its size; 0: it is of the version */
	uint8_t token[32];
	const char *from, *engine;
	struct ranges ranges;
};

static int read_open(const struct receiver *p, const json_t *message, struct opening *ret)
{
	const uint64_t n_bytes = p->document->n_bytes;

	if (field_number(message, "epoch", EPOCH_MAX, &ret->epoch) < 0 ||
	    ret->epoch <= p->participant.epoch || field_bytes(message, "token", ret->token, 32) < 0 ||
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
static int receiver_epoch_make_room(struct receiver *p, uint64_t size)
{
	cleanup(fd_closep) int fd = -1;
	int r;

	if (p->participant.patch_size)
		return p->participant.patch_size == size && p->patch_fd >= 0 ? 0 : -EBADMSG;
	r = ranges_add(&p->patch_missing, 0, size);
	if (r == 0)
		r = fd_memfd("weightd-sync-patch", size, &fd);
	if (r == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		r = -errno;
	if (r < 0)
		return r; /* all of it stays missing */
	p->patch_fd = take_fd(fd);
	p->participant.patch_size = size;
	return 0;
}

/* Leaves of a GPU's memory that a chain brings are staged before. */
static bool is_staged(const struct receiver *p)
{
	return p->memory.gpu[0] && !p->transport->is_nccl && !p->by_patch;
}

static const int *memory_of(const struct receiver *p)
{
	if (p->by_patch)
		return &p->patch_fd;
	return is_staged(p) ? &p->staged_fd : &p->participant.memory_fd;
}

static void receiver_epoch_open_engine(struct agent *a, struct receiver *p)
{
	struct participant *d = &p->participant;
	const struct carriage c = {
		.transport = p->transport,
		.sync = d->sync,
		.epoch = d->epoch,
		.n_bytes = p->by_patch ? d->patch_size : d->n_bytes,
		.ranges = &p->ranges,
		.from = d->from,
		.token = p->token,
		.memory = &p->memory,
		.chunk = p->chunk,
	};
	char why[WHY_SIZE];

	d->open_ns = transport_time_to_open(a, p->transport);
	d->stall_ns = transport_patience(a, p->transport);
	if (participant_start_engine(a, d, p->transport->job, why) < 0)
		receiver_epoch_break(a, p, 0, NULL, NULL, why);
	else
		work_tell(a, &d->engine, transport_open(a, &c), memory_of(p), 1);
}

/* What it has on the GPU, it has there, too: whatever comes is looked for there alone. */
static void stage(struct agent *a, struct receiver *p)
{
	struct participant *d = &p->participant;

	p->n_staging++;
	d->open_ns = time_limit_for(a, d->expected);
	participant_set_state(a, d, PARTICIPANT_OPENING, d->open_ns);
	work_tell(a, &d->sink,
		  json_pack("{s:s, s:o}", "op", "stage", "ranges", ranges_to_json(&p->ranges)),
		  NULL, 0);
}

void receiver_epoch_on_staged(struct agent *a, struct receiver *p, int *fds, unsigned n_fds)
{
	if (!p->n_staging || n_fds != 1) {
		participant_give_up(a, &p->participant, "failed",
				    "the sink answered something else than was asked");
		return;
	}
	(void)fd_close(p->staged_fd);
	p->staged_fd = take_fd(fds[0]);
	/* An epoch that was stopped meanwhile may have asked before this one. */
	if (--p->n_staging == 0 && p->participant.state == PARTICIPANT_OPENING && is_staged(p))
		receiver_epoch_open_engine(a, p);
}

static void take_open(struct receiver *p, struct opening *o)
{
	participant_take_epoch(&p->participant, o->epoch);
	ranges_deinit(&p->ranges);
	p->ranges = o->ranges;
	p->participant.expected = ranges_total(&p->ranges);
	snprintf(p->participant.from, sizeof(p->participant.from), "%s", o->from);
	field_hex(o->token, sizeof(o->token), p->token);
	p->to[0] = '\0';
	p->chunk = o->chunk;
	p->by_patch = o->patch;
}

void receiver_epoch_on_open(struct agent *a, struct participant *d, const json_t *message)
{
	struct receiver *p = receiver_of(d);
	const struct transport *transport;
	struct opening o = {0};
	char why[WHY_SIZE] = "";
	int r;

	if (d->state != PARTICIPANT_READY || read_open(p, message, &o) < 0) {
		ranges_deinit(&o.ranges);
		participant_out_of_order(a, d, "open");
		return;
	}
	take_open(p, &o);
	transport = transport_find(o.engine);
	r = o.patch ? receiver_epoch_make_room(p, o.patch) : 0;
	if (r < 0)
		snprintf(why, sizeof(why), "%s has no memory for a patch: %s", a->config->name,
			 strerror(-r));
	else if (!transport)
		snprintf(why, sizeof(why), "%s knows no engine '%s'", a->config->name, o.engine);
	else if (transport->is_nccl && (!p->memory.gpu[0] || o.patch))
		snprintf(why, sizeof(why), "%s was not asked to have memory of a GPU for NCCL",
			 a->config->name);
	if (why[0]) {
		receiver_epoch_break(a, p, 0, NULL, NULL, why);
		return;
	}
	p->transport = transport;
	if (is_staged(p))
		stage(a, p);
	else
		receiver_epoch_open_engine(a, p);
}

/* Where the bytes go on to: null, or all of it. */
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

/* They have the bytes: who has others dial one of them for a push wants to know what is there. */
static bool has_it_already(const struct agent *a, const struct participant *d, const char *node)
{
	return strcmp(node, a->config->name) == 0 ||
	       strcmp(node, agent_peer_name(a, d->coordinator)) == 0;
}

/* Nobody else is dialled for a coordinator, whatever it says of where that is. */
static bool is_of_group(const struct agent *a, const struct participant *d, const char *node)
{
	const struct group *g = group_find(a->config, d->group);

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

static void begin_to_move(struct agent *a, struct receiver *p, uint64_t max_rate)
{
	struct participant *d = &p->participant;
	uint64_t whole_ns = 0;

	if (max_rate)
		whole_ns = p->begun_ns + 2 * time_limit_to_move(a, p->document->n_bytes, max_rate);
	d->whole_ns = whole_ns > d->whole_ns ? whole_ns : d->whole_ns;
	d->reported_ns = agent_now(a);
	participant_set_state(a, d, PARTICIPANT_MOVING, d->stall_ns);
}

/* What else is wrong with its place, the engine says. */
static void start_nccl(struct agent *a, struct receiver *p, const json_t *message)
{
	struct participant *d = &p->participant;
	uint64_t rank, n_ranks, max_rate;
	json_t *addresses;
	const char *hello;

	if (d->state != PARTICIPANT_OPEN || field_number(message, "rank", MEMBERS_MAX, &rank) < 0 ||
	    field_number(message, "n_ranks", MEMBERS_MAX + 1, &n_ranks) < 0 ||
	    field_string(message, "hello", TRANSPORT_HELLO_MAX, &hello) < 0 ||
	    field_array(message, "addresses", MEMBERS_MAX + 1, &addresses) < 0 ||
	    json_array_size(addresses) != n_ranks ||
	    field_number_or(message, "max_rate", INT64_MAX, 0, &max_rate) < 0) {
		participant_out_of_order(a, d, "start");
		return;
	}
	p->n_stripes_in = 1;
	begin_to_move(a, p, max_rate);
	work_tell(a, &d->engine,
		  json_pack("{s:s, s:I, s:I, s:s, s:I, s:O}", "op", "start", "rank",
			    (json_int_t)rank, "n_ranks", (json_int_t)n_ranks, "hello", hello,
			    "max_rate", (json_int_t)max_rate, "addresses", addresses),
		  NULL, 0);
}

/* What a member of a chain is told to begin with. */
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

static void start_chain(struct agent *a, struct receiver *p, const json_t *message)
{
	struct participant *d = &p->participant;
	struct chain_start s = {0};
	char why[WHY_SIZE];

	if (d->state != PARTICIPANT_OPEN || read_start(a, message, &s) < 0 ||
	    (s.to && has_it_already(a, d, s.to))) {
		participant_out_of_order(a, d, "start");
		return;
	}
	if (s.to && !is_of_group(a, d, s.to)) {
		snprintf(why, sizeof(why), "%s has no node '%s' in the group '%s'", a->config->name,
			 s.to, d->group);
		receiver_epoch_break(a, p, 0, a->config->name, s.to, why);
		return;
	}
	/* It owns up to that before others hear that its engine ended, and comes behind them. */
	if (s.to && !may_dial_next(a, s.next, s.to, why)) {
		receiver_epoch_break(a, p, 0, NULL, NULL, why);
		return;
	}
	snprintf(p->to, sizeof(p->to), "%s", s.to ? s.to : "");
	p->n_stripes_in = (unsigned)s.n_stripes;
	p->n_stripes_out = (unsigned)json_array_size(json_object_get(s.next, "stripes"));
	begin_to_move(a, p, s.max_rate);
	work_tell(a, &d->engine,
		  json_pack("{s:s, s:O, s:I, s:s*, s:s*}", "op", "start", "next", s.next,
			    "max_rate", (json_int_t)s.max_rate, "from_address", s.from_address,
			    "from_hello", s.hello),
		  NULL, 0);
}

void receiver_epoch_on_start(struct agent *a, struct participant *d, const json_t *message)
{
	struct receiver *p = receiver_of(d);

	if (d->state == PARTICIPANT_READY)
		return; /* it crossed what we said of an engine that ended */
	if (p->transport && p->transport->is_nccl)
		start_nccl(a, p, message);
	else
		start_chain(a, p, message);
}

void receiver_epoch_on_stop(struct agent *a, struct participant *d, const json_t *message)
{
	struct receiver *p = receiver_of(d);

	(void)message;
	/* It may have been under way while we told that the epoch is done or broken. */
	if (!participant_is_under_way(d))
		return;
	if (d->state == PARTICIPANT_MOVING)
		byte_count_add_broken(&d->byte_count);
	engine_over(a, p, d->done);
	participant_tell(a, d, "stopped",
			 json_pack("{s:I, s:o}", "epoch", (json_int_t)d->epoch, "missing",
				   ranges_to_json(missing(p))));
}
