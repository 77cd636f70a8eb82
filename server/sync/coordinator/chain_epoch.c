/*
 * Engines count bytes of the epoch's ranges as a stream, so one number says what a member has. What it says at
 * last, in done, broken or stopped, replaces what we thought that it lacks; lying hurts the liar alone, as its
 * own digest decides.
 */
#include "server/sync/coordinator/chain_epoch.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "server/sync/base/json_fields.h"
#include "server/sync/coordinator/chain.h"
#include "server/sync/coordinator/link_rate.h"
#include "server/sync/coordinator/nccl_epoch.h"
#include "server/sync/coordinator/patch_policy.h"
#include "server/sync/coordinator/stripe_pairing.h"
#include "server/sync/coordinator/traffic_plan.h"
#include "server/sync/state/agent_hooks.h"
#include "server/sync/state/trace_span.h"
#include "server/sync/state/transport.h"

#define LOOK_NS (SECOND / 2) /* period of the look for slow members, while bytes move */
#define LAG_MIN ((uint64_t)8 << 20) /* bytes that a member may have and not have told of */

/* --- Our own engine ----------------------------------------------------------------------------- */

static void engine_failed(struct agent *a, struct broadcast *b, const char *why)
{
	if (!b->sync.broke_why[0])
		snprintf(b->sync.broke_why, sizeof(b->sync.broke_why), "%s", why);
	chain_epoch_stop(a, b);
	sync_step(a, &b->sync);
}

static void chain_epoch_on_engine_message(struct agent *a, struct work *w, const json_t *message,
					  int *fds, unsigned n_fds)
{
	struct broadcast *b = container_of(w, struct broadcast, engine);
	const char *op, *hello, *why = "its engine did not say why it failed";
	uint64_t done;

	(void)fds, (void)n_fds;
	if (b->sync.phase != PHASE_OPEN && b->sync.phase != PHASE_BYTES)
		return;
	if (field_string(message, "op", 32, &op) < 0)
		op = "";
	if (strcmp(op, "opened") == 0 && b->sync.phase == PHASE_OPEN &&
	    field_string_or_null(message, "hello", TRANSPORT_HELLO_MAX, &hello) == 0) {
		snprintf(b->engine_hello, sizeof(b->engine_hello), "%s", hello ? hello : "");
		b->engine_is_open = true;
	} else if (strcmp(op, "progress") == 0 && b->sync.phase == PHASE_BYTES) {
		if (field_number(message, "sent", INT64_MAX, &done) == 0 && done > b->engine_done) {
			b->engine_done = done;
			b->moved_ns = agent_now(a);
		}
	} else if (strcmp(op, "done") == 0 && b->sync.phase == PHASE_BYTES) {
		b->engine_is_done = true;
		metrics_on_sent(a, b->first->name,
				b->transport->planned(&b->ranges,
						      stripe_pairing_count(a, b, NULL, b->first)),
				json_object_get(message, "out"));
		trace_span_end(a, &b->engine, AGENT_SELF, NULL, message);
		work_end(a, &b->engine);
	} else {
		(void)field_string(message, "why", WHY_SIZE - 1, &why);
		stripe_pairing_note_broken(b, NULL, b->first, message);
		engine_failed(a, b, why);
		return;
	}
	sync_step(a, &b->sync);
}

static void chain_epoch_on_engine_end(struct agent *a, struct work *w, const char *how)
{
	struct broadcast *b = container_of(w, struct broadcast, engine);
	char why[WHY_SIZE];

	if (b->sync.phase != PHASE_OPEN && b->sync.phase != PHASE_BYTES)
		return;
	snprintf(why, sizeof(why), "the engine of %s ended (%s)", a->config->name, how);
	engine_failed(a, b, why);
}

/* --- The chain ---------------------------------------------------------------------------------- */

/* Adds the ranges that members in the chain lack. */
static int add_ranges(struct broadcast *b)
{
	ranges_deinit(&b->ranges);
	ranges_init(&b->ranges);
	for (struct member *m = b->first; m; m = m->next)
		if (ranges_add_all(&b->ranges, broadcast_missing(b, m)) < 0)
			return -1;
	/* Gaps between the last ranges travel with them. */
	if (b->ranges.n > TRANSPORT_RANGES_MAX) {
		const struct range *from = &b->ranges.at[TRANSPORT_RANGES_MAX - 1];
		const struct range *last = &b->ranges.at[b->ranges.n - 1];

		if (ranges_add(&b->ranges, from->offset, last->offset + last->size - from->offset) <
		    0)
			return -1;
	}
	return 0;
}

static uint64_t payload_size(const struct broadcast *b)
{
	return b->by_patch ? b->patch_policy.size : b->sync.document->n_bytes;
}

static const int *data_of(const struct broadcast *b)
{
	if (b->by_patch)
		return &b->patch_policy.fd;
	return nccl_epoch_is_staged(b) ? &b->nccl.staged_fd : &b->data_fd;
}

int chain_epoch_open_ours(struct agent *a, struct broadcast *b)
{
	const struct carriage c = {
		.transport = b->transport,
		.sync = b->sync.id,
		.epoch = b->sync.epoch,
		.n_bytes = payload_size(b),
		.data_offset = data_of(b) == &b->data_fd ? b->data_offset : 0,
		.ranges = &b->ranges,
		.memory = &b->nccl.memory,
		.chunk = nccl_epoch_chunk(a, b),
	};
	char why[WHY_SIZE];

	b->engine = (struct work){.on_message = chain_epoch_on_engine_message,
				  .on_end = chain_epoch_on_engine_end};
	if (work_start(a, &b->engine, b->transport->job, b->sync.replica->buffer, why) < 0) {
		sync_fail(a, &b->sync, "the engine of %s could not be started: %s", a->config->name,
			  why);
		return -1;
	}
	trace_span_begin(a, &b->engine, b->sync.id, b->sync.document->version_id);
	work_tell(a, &b->engine, transport_open(a, &c), data_of(b), 1);
	return 0;
}

static void open_all(struct agent *a, struct broadcast *b)
{
	cleanup(json_freep) json_t *ranges = ranges_to_json(&b->ranges);
	const char *from = a->config->name;

	/* The first that fails stops the epoch. */
	for (struct member *m = b->first; m && b->sync.phase == PHASE_OPEN; m = m->next) {
		uint8_t token[32];

		a->env->random(a->userdata, token, sizeof(token));
		field_hex(token, sizeof(token), m->token);
		m->done = m->rate = m->measured = m->moved_ns = 0;
		member_set_state(a, &b->sync, m, MEMBER_OPENING);
		member_tell(a, &b->sync, m, "open",
			    json_pack("{s:I, s:s, s:s, s:O, s:s, s:o*, s:o*}", "epoch",
				      (json_int_t)b->sync.epoch, "token", m->token, "from", from,
				      "ranges", ranges, "engine", b->transport->name, "patch",
				      b->by_patch ? json_integer((json_int_t)b->patch_policy.size)
						  : NULL,
				      "chunk",
				      b->transport->is_nccl
					      ? json_integer((json_int_t)nccl_epoch_chunk(a, b))
					      : NULL));
		from = m->name;
	}
}

static bool is_anybody_behind(const struct broadcast *b)
{
	for (unsigned i = 0; i < b->sync.n_members; i++)
		if (chain_is_behind(b, &b->sync.members[i]))
			return true;
	return false;
}

/*
 * Fails the worst of those that are behind: the others get on without them. The policy says what
 * their loss means.
 */
static void lose_worst(struct agent *a, struct broadcast *b)
{
	unsigned worst = 0;

	for (unsigned i = 0; i < b->sync.n_members; i++)
		if (chain_is_behind(b, &b->sync.members[i]) &&
		    chain_n_faults(&b->sync.members[i]) > worst)
			worst = chain_n_faults(&b->sync.members[i]);
	for (unsigned i = 0; i < b->sync.n_members && b->sync.phase != PHASE_ENDED; i++)
		if (chain_is_behind(b, &b->sync.members[i]) &&
		    chain_n_faults(&b->sync.members[i]) == worst)
			member_fail(
				a, &b->sync, &b->sync.members[i],
				"did not get its bytes in %ju epochs, of which the last broke: %s,",
				(uintmax_t)b->sync.epoch,
				b->sync.broke_why[0] ? b->sync.broke_why : "they were corrupt");
}

static void note_broken(struct broadcast *bc, const struct member *from, const struct member *to)
{
	struct broken *b = bc->broken;

	while (b < bc->broken + bc->n_broken && (b->ends[0] != from || b->ends[1] != to))
		b++;
	if (b == bc->broken + EPOCHS_MAX)
		return;
	bc->n_broken += b == bc->broken + bc->n_broken;
	*b = (struct broken){{from, to}, b->n_times + 1};
}

/* Once all have told what they know of the epoch that broke; which link of a ring it was, they do not. */
static void settle_blame(struct agent *a, struct broadcast *b)
{
	struct culprit c = b->culprit;

	b->culprit = (struct culprit){0};
	if (c.by && !c.is_link) {
		c.by->n_blamed++;
		c.by->n_faults++;
		if (b->by_patch && c.by->n_faults > 1)
			patch_policy_leave(c.by);
		if (c.by->n_faults == FAULTS_MAX)
			member_fail(a, &b->sync, c.by, "broke %u epochs by itself; the last: %s,",
				    FAULTS_MAX, b->sync.broke_why);
	} else if (c.by && !b->transport->is_nccl) {
		c.ends[1]->n_blamed++;
		if (c.ends[0])
			c.ends[0]->n_blamed += c.ends[0]->n_accused++;
		note_broken(b, c.ends[0], c.ends[1]);
	}
}

/* Adds up the bytes that any member lacks once all have prepared. */
static int count_changed(struct broadcast *b)
{
	struct ranges all;
	int r = 0;

	ranges_init(&all);
	for (unsigned i = 0; i < b->sync.n_members && r == 0; i++)
		if (b->sync.members[i].state == MEMBER_READY)
			r = ranges_add_all(&all, &b->sync.members[i].missing);
	if (r == 0)
		b->sync.changed = ranges_total(&all);
	ranges_deinit(&all);
	return r;
}

/* Chooses members and bytes of the next epoch. */
static int chain_epoch_choose(struct agent *a, struct broadcast *b)
{
	chain_order(a, b, link_rate_median(a, b));
	if ((b->sync.changed == UINT64_MAX && count_changed(b) < 0) || add_ranges(b) < 0) {
		sync_fail(a, &b->sync, "%s ran out of memory", a->config->name);
		return -1;
	}
	b->sync.epoch++;
	b->expected = ranges_total(&b->ranges);
	return 0;
}

int chain_epoch_begin(struct agent *a, struct broadcast *b)
{
	struct traffic_plan plan = {0};

	settle_blame(a, b);
	stripe_pairing_settle(a, b);
	if (b->sync.epoch - b->n_left >= EPOCHS_MAX &&
	    b->sync.phase != PHASE_BYTES) /* the epoch went well: waiting members have their turn */
		lose_worst(a, b);
	if (b->sync.phase == PHASE_ENDED)
		return -1;
	b->transport = nccl_epoch_choose(a, b);
	b->by_patch = patch_policy_is_wanted(b);
	if (!is_anybody_behind(b)) {
		b->sync.changed = b->sync.changed == UINT64_MAX ? 0 : b->sync.changed;
		return 0;
	}
	if (chain_epoch_choose(a, b) < 0)
		return -1;
	a->metrics.n_epochs++;
	b->engine_is_open = b->engine_is_done = b->is_left = false;
	b->engine_done = 0;
	b->sync.broke_why[0] = b->broke_link[0] = '\0';
	traffic_plan_add(a, b, &plan);
	traffic_plan_tell(a, b, &plan);
	b->sync.phase = PHASE_OPEN;
	b->sync.deadline_ns = agent_now(a) + nccl_epoch_time_to_open(a, b);
	if (nccl_epoch_is_staged(b))
		nccl_epoch_stage(a, b);
	else if (chain_epoch_open_ours(a, b) < 0)
		return -1;
	open_all(a, b);
	return 1;
}

static void has_all(const struct broadcast *b, struct member *m)
{
	ranges_deinit(broadcast_missing(b, m));
	ranges_init(broadcast_missing(b, m));
	patch_policy_settle(b, m);
}

int chain_epoch_plan(struct agent *a, struct broadcast *b)
{
	struct traffic_plan plan = {0};

	b->transport = nccl_epoch_choose(a, b);
	b->by_patch = patch_policy_is_wanted(b);
	do {
		if (chain_epoch_choose(a, b) < 0) {
			traffic_plan_deinit(&plan);
			return -1;
		}
		traffic_plan_add(a, b, &plan);
		for (struct member *m = b->first; m; m = m->next)
			has_all(b, m);
		b->by_patch = patch_policy_is_wanted(b);
	} while (is_anybody_behind(b));
	traffic_plan_tell(a, b, &plan);
	return 0;
}

static json_t *next_of(const struct agent *a, const struct broadcast *b, const struct member *from,
		       const struct member *m)
{
	return m ? json_pack("{s:s, s:s, s:I, s:s, s:s*, s:o*}", "node", m->name, "address",
			     m->address, "port", (json_int_t)m->port, "token", m->token, "hello",
			     m->hello[0] ? m->hello : NULL, "stripes",
			     stripe_pairing_tell(a, b, from, m))
		 : json_null();
}

void chain_epoch_start(struct agent *a, struct broadcast *b)
{
	const char *from = a->config->name, *hello = b->engine_hello;
	const char *address = a->config->data_addresses[0];
	const struct member *before = NULL;

	b->sync.phase = PHASE_BYTES;
	b->epoch_ns = b->moved_ns = agent_now(a);
	b->sync.deadline_ns = b->moved_ns + nccl_epoch_patience(a, b);
	for (struct member *m = b->first; m; m = m->next) {
		m->moved_ns = b->epoch_ns;
		member_set_state(a, &b->sync, m, MEMBER_MOVING);
	}
	if (b->transport->is_nccl) {
		nccl_epoch_start(a, b);
		return;
	}
	for (struct member *m = b->first; m; m = m->next) {
		member_tell(a, &b->sync, m, "start",
			    json_pack("{s:I, s:o, s:s, s:I, s:s*, s:I, s:s*}", "epoch",
				      (json_int_t)b->sync.epoch, "next", next_of(a, b, m, m->next),
				      "from", from, "from_stripes",
				      (json_int_t)stripe_pairing_count(a, b, before, m),
				      "from_address", b->transport->has_hello ? address : NULL,
				      "max_rate", (json_int_t)b->sync.max_rate, "from_hello",
				      hello[0] ? hello : NULL));
		from = m->name;
		address = m->address;
		hello = m->hello;
		before = m;
	}
	work_tell(a, &b->engine,
		  json_pack("{s:s, s:o, s:I}", "op", "start", "next", next_of(a, b, NULL, b->first),
			    "max_rate", (json_int_t)(b->share ? b->share : b->sync.max_rate)),
		  NULL, 0);
}

static void stop_all(struct agent *a, struct broadcast *b)
{
	struct sync *s = &b->sync;

	if (s->phase == PHASE_BYTES)
		byte_count_add_broken(&s->byte_count);
	sync_set_phase(a, s, PHASE_STOP, a->config->stall_ns);
	work_end(a, &b->engine);
	for (unsigned i = 0; i < s->n_members; i++) {
		struct member *m = &s->members[i];

		if (m->state != MEMBER_OPENING && m->state != MEMBER_OPEN &&
		    m->state != MEMBER_MOVING)
			continue;
		member_set_state(a, s, m, MEMBER_STOPPING);
		member_tell(a, s, m, "stop", json_pack("{s:I}", "epoch", (json_int_t)s->epoch));
	}
}

void chain_epoch_stop(struct agent *a, struct broadcast *b)
{
	struct sync *s = &b->sync;

	if (s->phase != PHASE_OPEN && s->phase != PHASE_BYTES)
		return;
	a->metrics.n_broken++;
	b->nccl.n_broken += b->transport->is_nccl;
	stop_all(a, b);
	agent_log_of(a, sync_about(s, "broken", NULL), "warning", "sync %s: epoch %ju broke%s%s",
		     s->id, (uintmax_t)s->epoch, s->broke_why[0] ? ": " : "", s->broke_why);
}

void chain_epoch_leave_slow(struct agent *a, struct broadcast *b)
{
	struct sync *s = &b->sync;
	struct member *m;

	if (s->policy == POLICY_ALL || agent_now(a) - b->looked_ns < LOOK_NS)
		return;
	b->looked_ns = agent_now(a);
	m = link_rate_laggard(a, b);
	if (!m)
		return;
	link_rate_note(a, b, m);
	m->is_late = b->is_left = true;
	b->n_left++;
	agent_log(a, "info", "sync %s: the others do not wait for %s, which has %ju of %ju MiB",
		  s->id, m->name, (uintmax_t)(m->done >> 20), (uintmax_t)(b->expected >> 20));
	stop_all(a, b);
}

/* --- Messages of members ------------------------------------------------------------------------ */

static int take_missing(struct broadcast *b, struct member *m, const json_t *message)
{
	struct ranges missing;

	ranges_init(&missing);
	if (ranges_from_json(json_object_get(message, "missing"), payload_size(b), &missing) < 0) {
		ranges_deinit(&missing);
		return -1;
	}
	ranges_deinit(broadcast_missing(b, m));
	*broadcast_missing(b, m) = missing;
	patch_policy_settle(b, m);
	return 0;
}

/*
 * Engines read addresses in digits only. Any other would fail the engine that dials it, instead of the member that sent
 * it.
 */
static bool is_in_digits(const char *address)
{
	struct in6_addr ignored;

	return inet_pton(AF_INET, address, &ignored) == 1 ||
	       inet_pton(AF_INET6, address, &ignored) == 1;
}

static int read_ways(const struct broadcast *b, struct member *m, const json_t *message)
{
	if (m->n_ways < 2 || !b->transport->has_stripes)
		return 0;
	if (stripe_pairing_read(m, message) < 0)
		return -1;
	for (unsigned i = 0; i < m->n_ways; i++)
		if (!is_in_digits(m->ways[i].address))
			return -1;
	return 0;
}

static bool may_dial_all(const struct agent *a, const struct broadcast *b, const struct member *m,
			 char why[WHY_SIZE])
{
	for (unsigned i = 0; m->n_ways > 1 && b->transport->has_stripes && i < m->n_ways; i++)
		if (!a->env->may_dial(a->userdata, m->ways[i].address, m->name, why))
			return false;
	return true;
}

void chain_epoch_on_opened(struct agent *a, struct sync *s, struct member *m, const json_t *message)
{
	struct broadcast *b = broadcast_of(s);
	const char *address, *hello;
	char why[WHY_SIZE];

	if (m->state == MEMBER_STOPPING)
		return; /* it crossed our stop */
	if (m->state != MEMBER_OPENING ||
	    field_string(message, "address", sizeof(m->address) - 1, &address) < 0 ||
	    !is_in_digits(address) || field_number_or(message, "port", 65535, 0, &m->port) < 0 ||
	    (!m->port && !b->transport->is_nccl) ||
	    field_string_or_null(message, "hello", TRANSPORT_HELLO_MAX, &hello) < 0 ||
	    (b->transport->has_hello && !hello) || read_ways(b, m, message) < 0 ||
	    take_missing(b, m, message) < 0) {
		member_is_wrong(a, s, m, "opened");
		return;
	}
	/* Otherwise whoever is before it in the chain would fail for it. */
	if (!a->env->may_dial(a->userdata, address, m->name, why) || !may_dial_all(a, b, m, why)) {
		member_fail(a, s, m, "listens where nobody may dial it (%s)", why);
		return;
	}
	snprintf(m->address, sizeof(m->address), "%s", address);
	snprintf(m->hello, sizeof(m->hello), "%s", hello ? hello : "");
	member_set_state(a, s, m, MEMBER_OPEN);
}

void chain_epoch_on_progress(struct agent *a, struct sync *s, struct member *m,
			     const json_t *message)
{
	struct broadcast *b = broadcast_of(s);
	uint64_t done, rate;

	if (m->state == MEMBER_STOPPING)
		return;
	if (m->state != MEMBER_MOVING || field_number(message, "done", b->expected, &done) < 0 ||
	    field_number(message, "rate", INT64_MAX, &rate) < 0) {
		member_is_wrong(a, s, m, "progress");
		return;
	}
	if (done > m->done)
		m->moved_ns = b->moved_ns = agent_now(a);
	s->deadline_ns = b->moved_ns + nccl_epoch_patience(a, b);
	m->done = done;
	m->rate = rate;
	if (done == b->expected)
		link_rate_measure(a, b, m);
	a->hooks->on_member(a, s, m);
}

void chain_epoch_on_done(struct agent *a, struct sync *s, struct member *m, const json_t *message)
{
	struct broadcast *b = broadcast_of(s);
	if (m->state != MEMBER_MOVING && m->state != MEMBER_STOPPING) {
		member_is_wrong(a, s, m, "done");
		return;
	}
	if (ranges_remove_all(broadcast_missing(b, m), &b->ranges) < 0) {
		member_fail(a, s, m, "is lost, as %s ran out of memory,", a->config->name);
		return;
	}
	patch_policy_settle(b, m);
	m->done = b->expected;
	b->moved_ns = agent_now(a);
	s->deadline_ns = b->moved_ns + nccl_epoch_patience(a, b);
	byte_count_add(&s->byte_count,
		       b->transport->planned(&b->ranges,
					     stripe_pairing_count(a, b, chain_before(b, m), m)),
		       json_object_get(message, "in"));
	link_rate_measure(a, b, m);
	member_set_state(a, s, m, MEMBER_READY);
}

/* Returns whether the sender sends nothing because it has nothing more itself. */
static bool is_starved(const struct agent *a, const struct broadcast *b,
		       const struct member *sender, const struct member *receiver)
{
	uint64_t lag;

	if (!sender || sender->done == b->expected ||
	    agent_now(a) - receiver->moved_ns < a->config->stall_ns / 2)
		return false;
	lag = sender->rate / 2 > LAG_MIN ? sender->rate / 2 : LAG_MIN;
	return sender->done <= receiver->done + lag;
}

/*
 * Takes the report of a member about a link of its own, once that was to be made; of any other, or
 * of none, it has only itself to blame: nobody may make us learn of links that were never there.
 */
static struct culprit culprit_of(struct agent *a, struct broadcast *b, struct member *m,
				 const char *from, const char *to)
{
	struct member *sender = sync_find_member(&b->sync, from),
		      *receiver = sync_find_member(&b->sync, to);
	struct culprit c = {.by = m};

	receiver = !to && from ? m : receiver;
	sender = !from && to ? m : sender;
	if (!m->moved_ns || !receiver || (receiver != m && sender != m) ||
	    (!sender && strcmp(from, a->config->name) != 0) || chain_before(b, receiver) != sender)
		return c;
	while (is_starved(a, b, sender, receiver)) {
		receiver = sender;
		sender = chain_before(b, receiver);
	}
	c.is_link = true;
	c.ends[0] = sender;
	c.ends[1] = receiver;
	for (const struct member *at = b->first; at && at != receiver; at = at->next)
		c.place++;
	return c;
}

/*
 * Several members report the same break, in any order. A member that reports its own engine is the cause of the reports
 * of its neighbours, this node among them. A broken link is the cause of the reports of the members behind it.
 */
static void chain_epoch_blame(struct agent *a, struct broadcast *b, struct member *m,
			      const json_t *message)
{
	const char *why = "it did not say why", *from = NULL, *to = NULL;
	struct culprit c;

	(void)field_string(message, "why", WHY_SIZE - 1, &why);
	(void)field_string_or_null(message, "from", NODE_MAX, &from);
	(void)field_string_or_null(message, "to", NODE_MAX, &to);
	c = culprit_of(a, b, m, from, to);
	if (c.is_link && (c.ends[0] == m || c.ends[1] == m))
		stripe_pairing_note_broken(b, c.ends[0], c.ends[1], message);
	if (b->culprit.by ? !b->culprit.is_link || (c.is_link && c.place >= b->culprit.place)
			  : b->sync.broke_why[0] && c.is_link)
		return;
	b->culprit = c;
	b->broke_link[0] = '\0';
	if (c.is_link)
		snprintf(b->broke_link, sizeof(b->broke_link), " (%s -> %s)",
			 c.ends[0] ? c.ends[0]->name : a->config->name, c.ends[1]->name);
	snprintf(b->sync.broke_why, sizeof(b->sync.broke_why), "%s%s: %s", m->name, b->broke_link,
		 why);
}

void chain_epoch_on_broken(struct agent *a, struct sync *s, struct member *m, const json_t *message)
{
	struct broadcast *b = broadcast_of(s);
	if (m->state < MEMBER_OPENING || m->state > MEMBER_STOPPING ||
	    take_missing(b, m, message) < 0) {
		member_is_wrong(a, s, m, "broken");
		return;
	}
	if (!b->is_left)
		chain_epoch_blame(a, b, m, message);
	member_set_state(a, s, m, MEMBER_READY);
	chain_epoch_stop(a, b);
}

void chain_epoch_on_stopped(struct agent *a, struct sync *s, struct member *m, const json_t *message)
{
	struct broadcast *b = broadcast_of(s);
	if (m->state != MEMBER_STOPPING || take_missing(b, m, message) < 0)
		member_is_wrong(a, s, m, "stopped");
	else
		member_set_state(a, s, m, MEMBER_READY);
}
