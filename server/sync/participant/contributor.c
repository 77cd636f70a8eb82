/*
 * A contributor trusts its coordinator only for the nodes to connect to. It chose the version that it gives itself, and
 * its own sink computes the digest of the result. It records and publishes only a version that its coordinator, a
 * publisher of the group, signed and decided on, and only if its sink found the same.
 *
 * Engines keep their sockets from done or broken to the next word of the coordinator, so that none of the others takes
 * us for the cause of what it sees.
 */
#include "server/sync/participant/contributor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "ipc/layout.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/state/agent_hooks.h"
#include "server/sync/state/group.h"
#include "server/sync/state/loan.h"
#include "server/sync/state/time_limit.h"
#include "server/sync/state/trace_span.h"

#define CONTRIBUTORS_MAX 16 /* at a time: each has three processes and memory */

/* Reports the node to blame; NULL: our own engine. */
static void contributor_broken(struct agent *a, struct contributor *c, const char *code,
			       const char *who, const char *why)
{
	c->participant.is_broken = true;
	participant_set_state(a, &c->participant, c->participant.state, 0);
	participant_tell(a, &c->participant, "broken",
			 json_pack("{s:I, s:s, s:s, s:s?}", "epoch", (json_int_t)c->participant.epoch,
				   "code", code, "why", why, "who", who));
}

static void contributor_on_opened(struct agent *a, struct participant *p, const json_t *message)
{
	struct contributor *c = contributor_of(p);
	const struct collective_op *op = c->invitation.op;
	unsigned n = (unsigned)json_array_size(c->nodes);
	json_t *hellos;

	if (p->state != PARTICIPANT_OPENING || field_array(message, "hellos", n, &hellos) < 0 ||
	    op->read(message, n, &c->flows) < 0) {
		contributor_broken(a, c, "failed", NULL,
				   "the engine answered something else than was asked");
		return;
	}
	p->changed = op->changed(&c->flows);
	p->expected = op->expected(&c->flows, c->rank);
	participant_set_state(a, p, PARTICIPANT_OPEN, 0);
	participant_tell(a, p, "opened",
			 json_pack("{s:I, s:O, s:I, s:O*, s:O*, s:O*, s:O*}", "epoch",
				   (json_int_t)p->epoch, "hellos", hellos, "expected",
				   (json_int_t)p->expected, "shares",
				   json_object_get(message, "shares"), "n_others",
				   json_object_get(message, "n_others"), "reduced",
				   json_object_get(message, "reduced"), "nccl",
				   json_object_get(message, "nccl")));
}

/* Counts the bytes of each of our links, beside the planned ones. */
static void contributor_count(struct agent *a, struct contributor *c, const json_t *message)
{
	const json_t *links = json_object_get(message, "links");
	const struct collective_op *op = c->invitation.op;
	json_t *node;
	size_t i;

	json_array_foreach(c->nodes, i, node)
	{
		const char *name = json_string_value(json_object_get(node, "node"));
		const json_t *link = json_object_get(links, name);

		if (!link)
			continue; /* it is ours, or we have nothing to do with it */
		metrics_on_received(a, name, op->planned(&c->flows, (unsigned)i, c->rank),
				    json_object_get(link, "in"));
		metrics_on_sent(a, name, op->planned(&c->flows, c->rank, (unsigned)i),
				json_object_get(link, "out"));
	}
	byte_count_add(&c->participant.byte_count, collective_op_planned(op, &c->flows, c->rank),
		       json_object_get(message, "in"));
}

static void contributor_on_done(struct agent *a, struct participant *p, const json_t *message)
{
	struct contributor *c = contributor_of(p);

	if (p->state != PARTICIPANT_MOVING) {
		contributor_broken(a, c, "failed", NULL, "the engine ended before it was started");
		return;
	}
	contributor_count(a, c, message);
	trace_span_end(a, &p->engine, p->coordinator, p->from, message);
	p->done = p->expected;
	p->is_moved = true;
	participant_set_state(a, p, PARTICIPANT_READY, 0);
	participant_tell(a, p, "done",
			 json_pack("{s:I, s:O?, s:O?, s:O*, s:O*}", "epoch", (json_int_t)p->epoch,
				   "in", json_object_get(message, "in"), "out",
				   json_object_get(message, "out"), "gave",
				   json_object_get(message, "gave"), "took",
				   json_object_get(message, "took")));
}

static void contributor_on_broken(struct agent *a, struct participant *p, const json_t *message)
{
	struct contributor *c = contributor_of(p);
	const char *why = "its engine failed", *who = NULL, *code = "failed";

	(void)field_string(message, "why", WHY_SIZE - 1, &why);
	(void)field_string(message, "code", 32, &code);
	(void)field_string_or_null(message, "who", NODE_MAX, &who);
	contributor_broken(a, c, code, who, why);
}

static const char *name_at(const json_t *nodes, size_t i)
{
	return json_string_value(json_object_get(json_array_get(nodes, i), "node"));
}

/* -EBADMSG; otherwise each has another name, and `*ret_rank` is ours among `nodes`. */
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
		for (size_t before = 0; before < i; before++)
			if (strcmp(name_at(nodes, before), name) == 0)
				return -EBADMSG;
		if (strcmp(name, a->config->name) != 0)
			continue;
		*ret_rank = (unsigned)i;
		is_in = true;
	}
	return is_in ? 0 : -EBADMSG;
}

/*
 * Returns a node that is no member of our group: our engine must not link with it. NULL: all are.
 */
static const char *find_stranger(const struct agent *a, const struct contributor *c)
{
	const struct group *group = group_find(a->config, c->invitation.group);

	for (size_t i = 0; i < json_array_size(c->nodes); i++)
		if (!group || !group_has_member(group, name_at(c->nodes, i)))
			return name_at(c->nodes, i);
	return NULL;
}

/* NCCL moves the bytes between the memories of GPUs. */
static bool is_direct(const struct contributor *c)
{
	return c->invitation.op->transport->is_nccl;
}

/* Reads the place of memory that NCCL uses, from the answer of a source or sink. */
static int read_memory(const struct contributor *c, const json_t *message, struct gpu_memory *ret)
{
	if (!is_direct(c))
		return 0;
	return gpu_memory_read(message, ret) < 0 || !ret->gpu[0] ? -EBADMSG : 0;
}

/* Both memories are on one GPU; a node that gives nothing has only the result's. */
static void tell_memory(const struct contributor *c, json_t *order)
{
	const struct gpu_memory *given = &c->data_memory, *made = &c->result_memory;

	gpu_memory_tell(made, order);
	json_object_set_new(order, "result_map_size", json_integer((json_int_t)made->map_size));
	gpu_memory_tell(given, order);
	json_object_set_new(order, "map_size", json_integer((json_int_t)given->map_size));
}

static void contributor_open_engine(struct agent *a, struct contributor *c, const char *token)
{
	const struct collective_op *op = c->invitation.op;
	int fds[] = {c->data_fd, c->participant.memory_fd, c->tensors_fd};
	unsigned n_fds = 3;
	char why[WHY_SIZE];
	json_t *order;

	if (participant_start_engine(a, &c->participant, op->transport->job, why) < 0) {
		participant_give_up(a, &c->participant, "engine", why);
		return;
	}
	order = json_pack(
		"{s:s, s:s, s:s, s:n, s:s, s:I, s:s, s:s, s:O, s:I, s:I, s:I, s:I, s:I, s:s}", "op",
		"open", "operation", op->exchange, "node", a->config->name, "from", "sync",
		c->participant.sync, "epoch", (json_int_t)c->participant.epoch, "address",
		a->config->data_addresses[0], "token", token, "nodes", c->nodes, "n_bytes",
		(json_int_t)c->participant.n_bytes, "data_offset", (json_int_t)c->data_offset,
		"result_offset", (json_int_t)c->participant.data_offset, "chunk",
		(json_int_t)(is_direct(c) ? COLLECTIVE_OP_CHUNK_NCCL : COLLECTIVE_OP_CHUNK),
		"stall_ms", (json_int_t)(a->config->stall_ns / 1000000), "security",
		a->config->tls ? "tls" : "none");
	if (is_direct(c))
		tell_memory(c, order);
	if (c->participant.is_own)
		n_fds = shard_open(c, order, fds);
	work_tell(a, &c->participant.engine, order, fds, n_fds);
}

/* In a reshard it was ready before, but for the plan. */
static bool is_prepared(const struct contributor *c)
{
	return !c->participant.is_own || c->invitation.shard.plan_fd >= 0;
}

/* Bytes that come and go while the engine runs. */
static uint64_t most(const struct contributor *c)
{
	return c->participant.is_own ? collective_op_most(&c->flows.plan)
				     : 2 * c->participant.n_bytes;
}

static void contributor_on_open(struct agent *a, struct participant *p, const json_t *message)
{
	struct contributor *c = contributor_of(p);
	uint8_t token[32];
	const char *stranger;
	uint64_t epoch;
	json_t *nodes;
	char hex[65], why[WHY_SIZE];

	if (p->state != PARTICIPANT_READY || p->is_moved || !is_prepared(c) ||
	    field_number(message, "epoch", EPOCH_MAX, &epoch) < 0 || epoch <= p->epoch ||
	    field_bytes(message, "token", token, sizeof(token)) < 0 ||
	    field_array(message, "nodes", COLLECTIVE_OP_NODES_MAX, &nodes) < 0 ||
	    check_nodes(a, nodes, &c->rank) < 0) {
		participant_out_of_order(a, p, "open");
		return;
	}
	json_decref(c->nodes);
	c->nodes = json_incref(nodes);
	stranger = find_stranger(a, c);
	if (stranger) {
		snprintf(why, sizeof(why), "%s has no member '%s' in the group '%s'",
			 a->config->name, stranger, c->invitation.group);
		participant_give_up(a, p, "group", why);
		return;
	}
	participant_take_epoch(p, epoch);
	contributor_open_engine(a, c, field_hex(token, sizeof(token), hex));
}

static void contributor_on_start(struct agent *a, struct participant *p, const json_t *message)
{
	struct contributor *c = contributor_of(p);
	uint64_t max_rate, whole_ns;
	json_t *hellos;

	if (p->is_broken)
		return; /* it crossed what we said of that */
	if (p->state != PARTICIPANT_OPEN ||
	    field_array(message, "hellos", json_array_size(c->nodes), &hellos) < 0 ||
	    field_number_or(message, "max_rate", INT64_MAX, 0, &max_rate) < 0) {
		participant_out_of_order(a, p, "start");
		return;
	}
	p->reported_ns = agent_now(a);
	whole_ns = p->reported_ns + 2 * time_limit_to_move(a, most(c), max_rate);
	p->whole_ns = max_rate && whole_ns > p->whole_ns ? whole_ns : p->whole_ns;
	participant_set_state(a, p, PARTICIPANT_MOVING, p->stall_ns);
	work_tell(a, &p->engine,
		  json_pack("{s:s, s:O, s:I}", "op", "start", "hellos", hellos, "max_rate",
			    (json_int_t)max_rate),
		  NULL, 0);
}

/* It may have been under way while we told that the epoch is done or broken. */
static void contributor_on_stop(struct agent *a, struct participant *p, const json_t *message)
{
	(void)message;
	if (!participant_is_under_way(p) && !p->is_broken && p->state != PARTICIPANT_READY)
		return;
	if (p->state == PARTICIPANT_MOVING)
		byte_count_add_broken(&p->byte_count);
	work_end(a, &p->engine);
	p->is_moved = p->is_broken = false;
	participant_set_state(a, p, PARTICIPANT_READY, 0);
	participant_tell(a, p, "stopped", json_pack("{s:I}", "epoch", (json_int_t)p->epoch));
}

/* --- Our result --------------------------------------------------------------------------------- */

static void tell_ready(struct agent *a, struct contributor *c)
{
	char hex[65];

	participant_tell(a, &c->participant, "ready",
			 json_pack("{s:I, s:I, s:I, s:s, s:s}", "version", (json_int_t)c->lent,
				   "n_bytes", (json_int_t)c->participant.n_bytes, "layout_bytes",
				   (json_int_t)c->layout_bytes, "layout",
				   field_hex(c->layout, 32, hex), "address",
				   a->config->data_addresses[0]));
}

static void on_made(struct agent *a, struct contributor *c, const json_t *message, int *fds,
		    unsigned n_fds)
{
	struct participant *p = &c->participant;

	if (p->state != PARTICIPANT_CREATE || n_fds != 1 ||
	    read_memory(c, message, &c->result_memory) < 0 ||
	    field_number_or(message, "data_offset", DATA_OFFSET_MAX, 0, &p->data_offset) < 0) {
		participant_give_up(a, &c->participant, "failed",
				    "the sink answered something else than was asked");
		return;
	}
	c->participant.memory_fd = take_fd(fds[0]);
	participant_set_state(a, &c->participant, PARTICIPANT_READY, 0);
	tell_ready(a, c);
}

static void contributor_on_verified(struct agent *a, struct contributor *c, const json_t *message,
				    int *fds, unsigned n_fds)
{
	char root[65], leaves[65];

	if (c->participant.state != PARTICIPANT_VERIFYING || n_fds != 1 ||
	    field_bytes(message, "root", c->root, 32) < 0 ||
	    field_bytes(message, "leaves", c->leaves, 32) < 0) {
		participant_give_up(a, &c->participant, "failed",
				    "the sink answered something else than was asked");
		return;
	}
	c->leaves_fd = take_fd(fds[0]);
	/* With staging, this is the last reference to the memory. */
	c->participant.memory_fd = fd_close(c->participant.memory_fd);
	participant_set_state(a, &c->participant, PARTICIPANT_VERIFIED, 0);
	participant_tell(a, &c->participant, "verified",
			 json_pack("{s:s, s:s}", "root", field_hex(c->root, 32, root), "leaves",
				   field_hex(c->leaves, 32, leaves)));
}

static bool contributor_gives(const struct contributor *c)
{
	return !c->participant.is_own || c->invitation.shard.gives;
}

/* A source of a shard has nothing to verify or to publish. */
static bool makes(const struct contributor *c)
{
	return !c->participant.is_own || c->invitation.shard.gets;
}

/* The device of all that it gives and gets. */
static const char *device_of(const struct agent *a, const struct contributor *c)
{
	return group_device(a->config, c->invitation.group);
}

/* Copies in host memory are made of it. */
static bool is_staged(const struct agent *a, const struct contributor *c)
{
	return strcmp(device_of(a, c), GROUP_DEVICE_DEFAULT) != 0 && !is_direct(c);
}

/* Sources and sinks have their own way with memory that NCCL uses. */
static const char *direct_engine(const struct contributor *c)
{
	return is_direct(c) ? c->invitation.op->transport->name : NULL;
}

static void contributor_make(struct agent *a, struct contributor *c)
{
	const struct shard *x = &c->invitation.shard;
	const struct group *group = group_find(a->config, c->invitation.group);
	json_t *message;
	char hex[65];

	message = json_pack("{s:s, s:s?, s:s, s:s, s:I, s:s, s:s*}", "op", "make", "socket",
			    a->config->weightd_socket, "buffer", c->participant.replica->buffer,
			    "device", device_of(a, c), "n_bytes",
			    (json_int_t)c->participant.n_bytes, "layout",
			    field_hex(c->participant.is_own ? x->layout : c->layout, 32, hex),
			    "engine", direct_engine(c));
	if (group)
		ownership_add(&group->ownership, message);
	participant_create(a, &c->participant, message,
			   c->participant.is_own ? &x->layout_fd : &c->layout_fd, 1);
}

/* Copies from GPU memory to where engines read. The result will be staged beside it. */
static void contributor_copy(struct agent *a, struct contributor *c)
{
	struct participant *p = &c->participant;

	participant_set_state(a, p, PARTICIPANT_WANT,
			      time_limit_for(a, p->is_own ? c->invitation.shard.given_bytes
							  : p->n_bytes));
	work_tell(a, &c->source,
		  json_pack("{s:s, s:I}", "op", "copy", "beside", (json_int_t)p->n_bytes), NULL, 0);
}

void contributor_prepare(struct agent *a, struct contributor *c)
{
	if (is_staged(a, c))
		loan_forget_idle(a, NULL); /* there has to be room for copies */
	if (contributor_gives(c) && c->data_fd < 0) {
		contributor_copy(a, c);
	} else if (makes(c)) {
		contributor_make(a, c);
	} else {
		participant_set_state(a, &c->participant, PARTICIPANT_READY, 0);
		tell_ready(a, c);
	}
}

static void on_copied(struct agent *a, struct contributor *c, int *fds, unsigned n_fds)
{
	if (c->participant.state != PARTICIPANT_WANT || !is_staged(a, c) || c->data_fd >= 0 ||
	    n_fds != 1) {
		participant_give_up(a, &c->participant, "failed",
				    "the source answered something else than was asked");
		return;
	}
	c->data_fd = take_fd(fds[0]);
	contributor_prepare(a, c);
}

/* --- Our source --------------------------------------------------------------------------------- */

static const char *source_of(const struct contributor *c)
{
	return c->participant.is_own ? c->invitation.shard.source : c->participant.replica->buffer;
}

/* False: nothing can be made of ours, whatever the others have, and the coordinator was told why. */
static bool is_usable(struct agent *a, struct contributor *c, uint64_t n_bytes)
{
	/* The bytes of our own source are here already: no limit. */
	uint64_t max = c->participant.is_own ? 0 : a->config->max_bytes;
	char why[WHY_SIZE] = "";

	if (!n_bytes)
		snprintf(why, sizeof(why), "version %ju of %s has no bytes", (uintmax_t)c->lent,
			 source_of(c));
	else if (max && n_bytes > max)
		snprintf(why, sizeof(why), "it has %ju bytes, and max-bytes of %s is %ju",
			 (uintmax_t)n_bytes, a->config->name, (uintmax_t)max);
	if (why[0])
		participant_give_up(a, &c->participant, "layout", why);
	return !why[0];
}

/* `how` is NULL where that is not known. */
static void give_up_misfit(struct agent *a, struct contributor *c, const char *how)
{
	char why[WHY_SIZE];

	snprintf(why, sizeof(why), "its tensors are not those of %s on %s%s%.300s",
		 c->invitation.buffer, agent_peer_name(a, c->participant.coordinator),
		 how ? ": " : "", how ? how : "");
	participant_give_up(a, &c->participant, "layout", why);
}

/* Our tensors are others than the coordinator's: with its layout, the source finds how. */
static void contributor_compare(struct agent *a, struct contributor *c)
{
	uint64_t size = c->invitation.layout_bytes;

	if (size == 0 || size > LAYOUT_SIZE_MAX || size > participant_blobs_max(a)) {
		give_up_misfit(a, c, NULL);
		return;
	}
	c->compares = true;
	participant_set_state(a, &c->participant, PARTICIPANT_WANT, 0);
	participant_tell(a, &c->participant, "differs", NULL);
}

static void contributor_on_attached(struct agent *a, struct contributor *c, const json_t *message,
				    int *fds, unsigned n_fds)
{
	const bool is_lent = !is_staged(a, c); /* else a copy of it will be */
	uint64_t n_bytes;

	if (c->participant.state != PARTICIPANT_WANT || c->compares ||
	    n_fds != 1u + is_lent + !c->participant.is_own ||
	    read_memory(c, message, &c->data_memory) < 0 ||
	    field_number(message, "version", INT64_MAX, &c->lent) < 0 ||
	    field_number(message, "n_bytes", INT64_MAX / 4, &n_bytes) < 0 ||
	    field_number_or(message, "data_offset", DATA_OFFSET_MAX, 0, &c->data_offset) < 0 ||
	    field_number(message, "layout_bytes", INT64_MAX, &c->layout_bytes) < 0 ||
	    field_bytes(message, "layout", c->layout, 32) < 0) {
		participant_give_up(a, &c->participant, "failed",
				    "the source answered something else than was asked");
		return;
	}
	if (!is_usable(a, c, n_bytes))
		return;
	/* The image of a layout has its size in it. */
	if (c->invitation.has_layout && memcmp(c->layout, c->invitation.layout, 32) != 0) {
		contributor_compare(a, c);
		return;
	}
	c->layout_fd = take_fd(*fds++);
	if (is_lent)
		c->data_fd = take_fd(*fds++);
	if (c->participant.is_own) {
		c->invitation.shard.given_bytes = n_bytes;
		shard_offer(a, c);
		return;
	}
	c->participant.n_bytes = n_bytes;
	c->tensors_fd = take_fd(*fds);
	c->participant.whole_ns = agent_now(a) +
				  2 * time_limit_to_move(a, 2 * c->participant.n_bytes, 0);
	contributor_prepare(a, c);
}

static void contributor_on_source_message(struct agent *a, struct work *w, const json_t *message,
					  int *fds, unsigned n_fds)
{
	struct contributor *c = container_of(w, struct contributor, source);
	const char *op, *code = "failed", *why = "the source did not say why it failed";

	if (c->participant.state == PARTICIPANT_ENDED ||
	    c->participant.state == PARTICIPANT_PUBLISHING)
		return;
	if (field_string(message, "op", 32, &op) < 0)
		op = "";
	if (strcmp(op, "attached") == 0) {
		contributor_on_attached(a, c, message, fds, n_fds);
		return;
	}
	if (strcmp(op, "copied") == 0) {
		on_copied(a, c, fds, n_fds);
		return;
	}
	(void)field_string(message, "code", 32, &code);
	(void)field_string(message, "why", WHY_SIZE - 1, &why);
	if (c->compares)
		give_up_misfit(a, c, why);
	else
		participant_give_up(a, &c->participant, code, why);
}

static void contributor_on_source_end(struct agent *a, struct work *w, const char *how)
{
	struct contributor *c = container_of(w, struct contributor, source);
	char why[WHY_SIZE];

	if (c->participant.state == PARTICIPANT_ENDED ||
	    c->participant.state == PARTICIPANT_PUBLISHING)
		return;
	snprintf(why, sizeof(why), "the source process of %s ended (%s)", a->config->name, how);
	participant_give_up(a, &c->participant, "failed", why);
}

/* --- The end ------------------------------------------------------------------------------------- */

static void contributor_end(struct agent *a, struct participant *p, const char *state_name,
			    const char *why)
{
	participant_end(a, p, state_name, why);
	work_end(a, &contributor_of(p)->source);
}

/* --- Messages of the coordinator ---------------------------------------------------------------- */

static void contributor_on_verify(struct agent *a, struct participant *p, const json_t *message)
{
	struct contributor *c = contributor_of(p);

	(void)message;
	if (p->state != PARTICIPANT_READY || !p->is_moved) {
		participant_out_of_order(a, p, "verify");
		return;
	}
	work_end(a, &p->engine);
	work_end(a, &c->source); /* the result contains the bytes that it gave */
	c->data_fd = fd_close(c->data_fd);
	if (!makes(c)) {
		participant_set_state(a, p, PARTICIPANT_VERIFIED, 0);
		participant_tell(a, p, "verified", NULL);
		return;
	}
	participant_set_state(a, p, PARTICIPANT_VERIFYING, time_limit_to_verify(a, p->n_bytes));
	work_tell(a, &p->sink, json_pack("{s:s}", "op", "verify"), NULL, 0);
}

/*
 * Checks that the document is of the version that was asked for and found here, and newer than the
 * committed one. -EBADMSG or -EKEYREJECTED.
 */
static int check_document(struct agent *a, const struct contributor *c, const struct document *d,
			  char why[WHY_SIZE])
{
	const struct invitation *i = &c->invitation;

	snprintf(why, WHY_SIZE, "its coordinator signed another version than was verified here");
	if (!d->decision ||
	    strcmp(d->publisher, agent_peer_name(a, c->participant.coordinator)) != 0 ||
	    strcmp(d->group, i->group) != 0 || strcmp(d->buffer, i->buffer) != 0 ||
	    version_id_compare(d->version_id, i->version_id) != 0 ||
	    d->n_bytes != c->participant.n_bytes || d->layout_bytes != c->layout_bytes ||
	    memcmp(d->layout, c->layout, 32) != 0 || memcmp(d->root, c->root, 32) != 0 ||
	    memcmp(d->leaves, c->leaves, 32) != 0)
		return -EBADMSG;
	return document_check(a, d, why);
}

/*
 * No other node has to believe a version of our own: it is not signed, and is published only if it
 * is what was found here.
 */
static void commit_own(struct agent *a, struct participant *p, const json_t *message)
{
	struct contributor *c = contributor_of(p);
	uint8_t root[32];

	if (!makes(c)) {
		participant_tell(a, p, "committed", json_pack("{s:I}", "version", (json_int_t)0));
		contributor_end(a, p, "committed", NULL);
	} else if (field_bytes(message, "root", root, 32) < 0 || memcmp(root, c->root, 32) != 0) {
		participant_give_up(
			a, p, "decision",
			"its coordinator decided on something else than was verified here");
	} else {
		participant_publish(a, p, NULL);
	}
}

static void contributor_on_commit(struct agent *a, struct participant *p, const json_t *message)
{
	struct contributor *c = contributor_of(p);
	cleanup(document_freep) struct document *document = NULL;
	char why[WHY_SIZE];

	if (p->state == PARTICIPANT_VERIFIED && p->is_own) {
		commit_own(a, p, message);
		return;
	}
	if (p->state != PARTICIPANT_VERIFIED || document_parse(message, &document) < 0) {
		participant_out_of_order(a, p, "commit");
		return;
	}
	if (check_document(a, c, document, why) < 0) {
		participant_give_up(a, p, "decision", why);
		return;
	}
	participant_publish(a, p, document);
}

static bool contributor_on_sink(struct agent *a, struct participant *p, const char *op,
				const json_t *message, int *fds, unsigned n_fds)
{
	if (strcmp(op, "created") == 0)
		on_made(a, contributor_of(p), message, fds, n_fds);
	else if (strcmp(op, "verified") == 0)
		contributor_on_verified(a, contributor_of(p), message, fds, n_fds);
	else
		return false;
	return true;
}

static void contributor_on_engine_end(struct agent *a, struct participant *p, const char *why)
{
	contributor_broken(a, contributor_of(p), "failed", NULL, why);
}

static void contributor_on_published(struct agent *a, struct participant *p)
{
	const struct contributor *c = contributor_of(p);

	(void)a;
	if (p->version)
		replica_set_base(p->replica, p->version, p->n_bytes, c->root, c->leaves_fd);
}

static void contributor_free(struct agent *a, struct participant *p)
{
	struct contributor *c = contributor_of(p);

	participant_deinit(a, p);
	work_end(a, &c->source);
	(void)fd_close(c->layout_fd);
	(void)fd_close(c->data_fd);
	(void)fd_close(c->tensors_fd);
	(void)fd_close(c->leaves_fd);
	shard_deinit(&c->invitation.shard);
	moves_deinit(&c->flows.plan);
	json_decref(c->nodes);
	free(c);
}

static const struct participant_ops CONTRIBUTOR = {
	.want = "while it attached its version",
	.ready = "while it waited for the others",
	.messages = {{"open", false, contributor_on_open},
		     {"start", true, contributor_on_start},
		     {"stop", true, contributor_on_stop},
		     {"verify", false, contributor_on_verify},
		     {"commit", false, contributor_on_commit},
		     {"plan", false, shard_on_plan},
		     {NULL}},
	.on_sink = contributor_on_sink,
	.on_opened = contributor_on_opened,
	.on_done = contributor_on_done,
	.on_broken = contributor_on_broken,
	.on_engine_end = contributor_on_engine_end,
	.on_stalled = contributor_on_engine_end,
	.on_published = contributor_on_published,
	.end = contributor_end,
	.free = contributor_free,
};

/* --- The coordinator's layout ------------------------------------------------------------------- */

static struct contributor *find_who_compares(const struct agent *a, unsigned peer,
					     const uint8_t hash[32])
{
	struct participant *p;

	list_for_each(p, &a->participants, link)
		if (p->ops == &CONTRIBUTOR && p->state == PARTICIPANT_WANT &&
		    p->coordinator == peer && contributor_of(p)->compares &&
		    memcmp(contributor_of(p)->invitation.layout, hash, 32) == 0)
			return contributor_of(p);
	return NULL;
}

uint64_t contributor_blob_limit(const struct agent *a, unsigned peer, const uint8_t hash[32])
{
	const struct contributor *c = find_who_compares(a, peer, hash);

	return c ? c->invitation.layout_bytes : 0;
}

void contributor_on_blob(struct agent *a, unsigned peer, const uint8_t hash[32], int fd,
			 uint64_t size)
{
	struct contributor *c = find_who_compares(a, peer, hash);

	if (!c || c->invitation.layout_bytes != size)
		return;
	participant_set_state(a, &c->participant, PARTICIPANT_WANT, time_limit_for(a, 0));
	work_tell(a, &c->source,
		  json_pack("{s:s, s:s, s:s}", "op", "compare", "node", a->config->name, "other",
			    agent_peer_name(a, peer)),
		  &fd, 1);
}

/* --- Joining ------------------------------------------------------------------------------------ */

static void contributor_attach(struct agent *a, struct contributor *c)
{
	char why[WHY_SIZE];

	c->source = (struct work){.on_message = contributor_on_source_message,
				  .on_end = contributor_on_source_end};
	if (work_start(a, &c->source, JOB_SOURCE, c->participant.replica->buffer, why) < 0) {
		participant_give_up(a, &c->participant, "failed", why);
		return;
	}
	participant_set_state(a, &c->participant, PARTICIPANT_WANT, time_limit_for(a, 0));
	work_tell(a, &c->source,
		  json_pack("{s:s, s:s?, s:s, s:s, s:I, s:s*}", "op", c->invitation.op->lend,
			    "socket", a->config->weightd_socket, "buffer", source_of(c), "device",
			    device_of(a, c), "version", (json_int_t)c->invitation.shard.version,
			    "engine", direct_engine(c)),
		  NULL, 0);
}

static void contributor_begin(struct agent *a, struct contributor *c)
{
	c->participant.whole_ns = agent_now(a) +
				  2 * time_limit_to_move(a, 2 * c->invitation.n_bytes, 0);
	if (c->had_to_wait)
		participant_tell(a, &c->participant, "begun", NULL);
	if (c->participant.is_own && !c->invitation.shard.gives)
		shard_offer(a, c);
	else
		contributor_attach(a, c);
}

void contributor_begin_next(struct agent *a)
{
	struct participant *p;

	list_for_each(p, &a->participants, link)
		if (p->ops == &CONTRIBUTOR && p->state == PARTICIPANT_QUEUED &&
		    participant_has_turn(a, p, CONTRIBUTORS_MAX))
			contributor_begin(a, contributor_of(p));
}

static int read_invitation(struct agent *a, unsigned peer, const json_t *message,
			   struct invitation *ret)
{
	const char *sync, *operation, *engine, *group, *buffer;

	*ret = (struct invitation){0};
	if (participant_read_sync(a, peer, message, &sync) < 0 ||
	    field_string(message, "operation", 32, &operation) < 0 ||
	    field_string_or_null(message, "engine", TRANSPORT_NAME_MAX, &engine) < 0 ||
	    field_string(message, "group", GROUP_MAX, &group) < 0 ||
	    field_string(message, "buffer", BUFFER_MAX, &buffer) < 0 ||
	    field_number(message, "term", INT64_MAX, &ret->version_id.term) < 0 ||
	    field_number(message, "number", INT64_MAX, &ret->version_id.number) < 0 ||
	    field_number(message, "time_ns", INT64_MAX, &ret->time_ns) < 0 ||
	    field_bool_or(message, "dry", false, &ret->is_dry) < 0 ||
	    field_number_or(message, "n_bytes", INT64_MAX / 4, 0, &ret->n_bytes) < 0 ||
	    field_number_or(message, "layout_bytes", INT64_MAX, 0, &ret->layout_bytes) < 0)
		return -EBADMSG;
	ret->has_layout = json_object_get(message, "layout");
	if (ret->has_layout && field_bytes(message, "layout", ret->layout, 32) < 0)
		return -EBADMSG;
	ret->op = collective_op_find(operation, engine ? engine : transport_gloo.name);
	ret->shard = (struct shard){.plan_fd = -1, .layout_fd = -1};
	if (ret->op && !ret->op->is_version && shard_read(a, message, &ret->shard) < 0)
		return -EBADMSG;
	snprintf(ret->sync, sizeof(ret->sync), "%s", sync);
	snprintf(ret->group, sizeof(ret->group), "%s", group);
	snprintf(ret->buffer, sizeof(ret->buffer), "%s", buffer);
	return 0;
}

static struct contributor *contributor_new(struct agent *a, unsigned peer,
					   const struct invitation *i, struct replica *rep)
{
	struct contributor *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->invitation = *i;
	c->layout_fd = c->data_fd = c->tensors_fd = c->leaves_fd = -1;
	c->participant.ops = &CONTRIBUTOR;
	c->participant.kind = i->op->kind;
	c->participant.is_own = !i->op->is_version;
	c->participant.group = c->invitation.group;
	c->participant.version_id = i->version_id;
	participant_init(a, &c->participant, peer, i->sync, rep);
	c->participant.open_ns = transport_time_to_open(a, i->op->transport);
	c->participant.stall_ns = transport_patience(a, i->op->transport);
	c->participant.whole_ns = agent_now(a) + 2 * time_limit_to_move(a, 2 * i->n_bytes, 0);
	return c;
}

/* Whatever we have is what the others are asked for, and of a reshard everybody has another one. */
static bool has_layout(const struct invitation *i)
{
	return i->has_layout || (i->op && !i->op->is_version);
}

void contributor_on_join(struct agent *a, unsigned peer, const json_t *message)
{
	struct invitation i;
	char why[WHY_SIZE] = "";
	struct replica *rep = NULL;
	const char *code;
	struct contributor *c;

	if (read_invitation(a, peer, message, &i) < 0 || (!has_layout(&i) && peer != AGENT_SELF)) {
		agent_hang_up(a, peer, "JOIN of another form, or of a sync that there is already");
		return;
	}
	code = a->hooks->refuse_contributor(a, peer, &i, &rep, why);
	c = code ? NULL : contributor_new(a, peer, &i, rep);
	if (!c) {
		participant_refuse(a, peer, i.sync, code ? code : "memory", rep,
				   code ? why : "out of memory");
		return;
	}
	replica_set_asked(a, rep, NO_PEER);
	contributor_begin_next(a);
	if (c->participant.state == PARTICIPANT_QUEUED) {
		c->had_to_wait = true;
		participant_tell(a, &c->participant, "queued", NULL);
	}
}
