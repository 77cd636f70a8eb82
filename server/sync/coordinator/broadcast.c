/*
 * A version goes to members as the leaves that they lack, or as a patch, in epochs along a chain
 * (chain_epoch.h). Each member digests the result in its own memory: other bytes than were signed
 * are sent again, and whoever finds those too often is lost.
 */
#include "server/sync/coordinator/broadcast.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/coordinator/broadcast_source.h"
#include "server/sync/coordinator/chain.h"
#include "server/sync/coordinator/chain_epoch.h"
#include "server/sync/coordinator/link_rate.h"
#include "server/sync/coordinator/nccl_epoch.h"
#include "server/sync/coordinator/patch_policy.h"
#include "server/sync/coordinator/repair_refusal.h"
#include "server/sync/state/time_limit.h"
#include "server/sync/state/transport.h"

static bool broadcast_is_moved(const struct member *m)
{
	return m->missing.n == 0;
}

/* Estimated by the slowest rate that was ever measured. */
static uint64_t broadcast_time_to_move(const struct agent *a, const struct sync *s)
{
	uint64_t rate = s->max_rate;

	for (unsigned i = 0; i < s->n_members; i++) {
		const struct member *m = &s->members[i];
		uint64_t measured = m->peer == NO_PEER ? 0 : a->peers[m->peer].rate;

		if (measured && (!rate || measured < rate))
			rate = measured;
	}
	return time_limit_to_move(a, s->document->n_bytes, rate);
}

/* --- Progress for people ------------------------------------------------------------------------ */

static const char *from_name(const struct agent *a, const struct broadcast *b,
			     const struct member *m)
{
	const struct member *from = chain_before(b, m);

	return from ? from->name : a->config->name;
}

static const char *broadcast_from(const struct agent *a, const struct sync *s,
				  const struct member *m)
{
	const struct broadcast *b = broadcast_of(s);

	return chain_before(b, m) || m == b->first ? from_name(a, b, m) : NULL;
}

static bool broadcast_is_slow(const struct agent *a, const struct sync *s, const struct member *m)
{
	return link_rate_is_slow(a, broadcast_of(s), m);
}

static void broadcast_progress(const struct sync *s, const struct member *m, struct progress *ret)
{
	const struct broadcast *b = broadcast_of(s);

	*ret = (struct progress){.expected = b->expected,
				 .size = s->document->n_bytes,
				 .n_differ = UINT64_MAX};
	if (b->patch_policy.fd >= 0 && (!m || m->by_patch)) {
		ret->patch = b->patch_policy.size;
		ret->n_differ = b->patch_policy.changed;
	}
	if (m && broadcast_is_moved(m))
		ret->done = ret->expected = m->done; /* in its last epoch, whatever others still get */
	else if (m)
		ret->done = m->done;
	else
		ret->done = b->engine_is_done ? b->expected : b->engine_done;
}

static void broadcast_describe_bytes(const struct agent *a, const struct sync *s,
				     const struct member *m, char *ret, size_t size)
{
	const struct broadcast *b = broadcast_of(s);

	snprintf(ret, size, " (%s -> %s, %ju of %ju MiB)", from_name(a, b, m), m->name,
		 (uintmax_t)(m->done >> 20), (uintmax_t)(b->expected >> 20));
}

static bool broadcast_describe_phase(const struct agent *a, const struct sync *s, char *ret,
				     size_t size)
{
	const struct member *m = s->phase == PHASE_BYTES ? link_rate_held_up(broadcast_of(s)) : NULL;

	if (m)
		member_describe(a, s, m, ret, size);
	else if (s->phase <= PHASE_DIGEST)
		snprintf(ret, size, "while %s %s it", a->config->name,
			 s->phase == PHASE_ATTACH ? "attached" : "digested");
	else if (s->phase == PHASE_COMPOSE)
		snprintf(ret, size, "while a patch was composed");
	else
		return false;
	return true;
}

/* The publisher serves what its weightd has, the version pushed perhaps: no push changes that. */
static void broadcast_describe_kept(const struct sync *s, char *ret, size_t size)
{
	const struct broadcast *b = broadcast_of(s);

	if (sync_is_repair(s))
		snprintf(ret, size, "%s serves what it had, and will ask again", s->members[0].name);
	else if (b->before.number)
		snprintf(ret, size,
			 "every other node still serves %s %ju.%ju, the publisher what it has",
			 s->replica->buffer, (uintmax_t)b->before.term, (uintmax_t)b->before.number);
	else
		snprintf(ret, size, "no node but the publisher serves any version of it");
}

/* --- The decision and the end ------------------------------------------------------------------- */

/* A member may come back with an older version, now or at a later push. */
static void keep_patch_chain(struct broadcast *b)
{
	struct replica *rep = b->sync.replica;

	if (!b->patch_policy.patch_chain.n)
		return;
	patch_chain_deinit(&rep->patch_chain);
	(void)patch_chain_copy(&b->patch_policy.patch_chain,
			       &rep->patch_chain); /* without them leaves travel */
}

/* Durable before anybody is told: the opening of replica.c says why. */
static bool broadcast_decide(struct agent *a, struct sync *s)
{
	struct broadcast *b = broadcast_of(s);
	char why[WHY_SIZE];
	int r;

	if (sync_is_repair(s))
		s->decided = true; /* its publisher decided when it pushed */
	if (s->decided)
		return true;
	if (document_decide(a, s->document, why) < 0) {
		sync_fail(a, s, "%s", why);
		return false;
	}
	r = replica_commit(a, s->replica, s->document, s->version,
			   b->is_gone ? REPLICA_SUPERSEDED : REPLICA_SERVING);
	if (r < 0) {
		sync_fail(a, s, "the record of %s could not be written: %s", a->config->name,
			  strerror(-r));
		return false;
	}
	s->decided = true;
	replica_set_base(s->replica, s->version, s->document->n_bytes, s->document->root,
			 b->leaves_fd);
	keep_patch_chain(b);
	return true;
}

static json_t *broadcast_commit_fields(const struct sync *s, const struct member *m)
{
	(void)m;
	return json_pack("{s:s}", "decision", s->document->decision);
}

static void broadcast_end(struct agent *a, struct sync *s, bool committed)
{
	struct broadcast *b = broadcast_of(s);

	/* The peer that asked for this repair would wait for it, and ask no other one. */
	if (sync_is_repair(s) && s->members[0].state == MEMBER_AWAITED)
		repair_refusal_send(a, s->members[0].peer, s->replica->buffer, "busy",
				    "it ended before it began");
	work_end(a, &b->engine);
	if (committed && !sync_is_repair(s) && b->loan)
		broadcast_source_keep(a, b);
	broadcast_source_end(a, b);
	sync_end(a, s, committed);
}

/* --- Steps -------------------------------------------------------------------------------------- */

/*
 * Those behind it in the chain got their bytes from the first that found other ones, which says nothing of
 * them: next time it stands behind all of them.
 */
static void blame_corrupt(struct agent *a, struct broadcast *b)
{
	struct sync *s = &b->sync;
	bool is_first = true;

	for (struct member *m = b->first; m; m = m->next) {
		m->is_corrupt &= is_first;
		is_first &= !m->is_corrupt;
	}
	for (unsigned i = 0; i < s->n_members && s->phase != PHASE_ENDED; i++) {
		struct member *m = &s->members[i];

		if (!m->is_corrupt)
			continue;
		m->is_corrupt = false;
		if (++m->n_corrupt < CORRUPT_MAX)
			continue;
		m->state = MEMBER_VERIFYING; /* the state in which it showed, for the sentence */
		member_fail(a, s, m, "got other bytes than were signed %u times, the last from %s,",
			    CORRUPT_MAX, from_name(a, b, m));
	}
}

static void move_or_verify(struct agent *a, struct broadcast *b)
{
	blame_corrupt(a, b);
	if (b->sync.phase == PHASE_ENDED)
		return;
	if (!b->sync.is_dry && chain_epoch_begin(a, b) == 0)
		sync_verify(a, &b->sync);
	else if (b->sync.is_dry && chain_epoch_plan(a, b) == 0)
		sync_end_planned(a, &b->sync);
}

static void broadcast_move(struct agent *a, struct sync *s)
{
	struct broadcast *b = broadcast_of(s);

	if (patch_policy_begin(a, b))
		sync_set_phase(a, s, PHASE_COMPOSE, sync_time_to_commit(a, s));
	else
		move_or_verify(a, b);
}

/* A member that has all bytes does not wait for the others. */
static void verify_complete(struct agent *a, struct sync *s)
{
	for (unsigned i = 0; i < s->n_members; i++)
		if (s->members[i].state == MEMBER_READY && broadcast_is_moved(&s->members[i]))
			member_verify(a, s, &s->members[i]);
}

static void broadcast_step(struct agent *a, struct sync *s)
{
	struct broadcast *b = broadcast_of(s);

	if (s->phase >= PHASE_OPEN && s->phase <= PHASE_STOP)
		verify_complete(a, s);
	switch (s->phase) {
	case PHASE_COMPOSE:
		if (!b->patch_policy.is_composing)
			move_or_verify(a, b);
		break;
	case PHASE_OPEN:
		if (b->engine_is_open && !sync_count(s, MEMBER_OPENING))
			chain_epoch_start(a, b);
		break;
	case PHASE_BYTES:
		if (b->engine_is_done && !sync_count(s, MEMBER_MOVING))
			move_or_verify(a, b);
		else
			chain_epoch_leave_slow(a, b);
		break;
	case PHASE_STOP:
		if (!sync_count(s, MEMBER_STOPPING))
			move_or_verify(a, b);
		break;
	case PHASE_VERIFY:
		if (sync_count(s, MEMBER_VERIFYING))
			break;
		if (sync_count(s, MEMBER_READY))
			move_or_verify(a, b);
		else
			sync_commit(a, s);
		break;
	default:
		break;
	}
}

static void broadcast_on_lost(struct agent *a, struct sync *s, struct member *m,
			      enum member_state was)
{
	(void)m;
	if (was >= MEMBER_OPENING && was <= MEMBER_STOPPING)
		chain_epoch_stop(a, broadcast_of(s));
}

/*
 * Members without all bytes are lost and the others go on, unless the policy makes all wait for
 * each other.
 */
static bool broadcast_on_late(struct agent *a, struct sync *s)
{
	struct broadcast *b = broadcast_of(s);
	const struct member *slow = s->phase == PHASE_BYTES ? link_rate_held_up(b) : NULL;

	if (slow)
		link_rate_note(a, b, slow);
	if (s->policy == POLICY_ALL || s->phase < PHASE_OPEN)
		return false;
	s->whole_ns = UINT64_MAX; /* the rest moves no bytes */
	for (unsigned i = 0; i < s->n_members && s->phase != PHASE_ENDED; i++) {
		struct member *m = &s->members[i];

		if (m->state < MEMBER_READY || m->state > MEMBER_STOPPING ||
		    broadcast_is_moved(m) || (m->state == MEMBER_MOVING && m->done == b->expected))
			continue;
		member_fail(a, s, m, "took longer than all of it may");
	}
	return true;
}

static void broadcast_on_timer(struct agent *a, struct sync *s, uint64_t now)
{
	struct broadcast *b = broadcast_of(s);
	const struct agent_config *c = a->config;
	const struct member *m;

	(void)now;
	switch (s->phase) {
	case PHASE_ATTACH:
	case PHASE_DIGEST:
		broadcast_source_failed(a, b, "the local weightd did not answer in time");
		break;
	case PHASE_COMPOSE:
		patch_policy_give_up(b);
		break;
	case PHASE_OPEN:
		sync_lose_all_in(a, s, MEMBER_OPENING, nccl_epoch_time_to_open(a, b));
		if (s->phase == PHASE_OPEN && !b->engine_is_open) {
			snprintf(s->broke_why, sizeof(s->broke_why),
				 "the engine of %s did not open", c->name);
			chain_epoch_stop(a, b);
		}
		break;
	case PHASE_BYTES:
		m = link_rate_held_up(b);
		snprintf(s->broke_why, sizeof(s->broke_why), "no byte moved for %ju s%s%s%s%s%s",
			 (uintmax_t)(nccl_epoch_patience(a, b) / SECOND), m ? " (" : "",
			 m ? from_name(a, b, m) : "", m ? " -> " : "", m ? m->name : "",
			 m ? ")" : "");
		chain_epoch_stop(a, b);
		break;
	case PHASE_STOP:
		sync_lose_all_in(a, s, MEMBER_STOPPING, c->stall_ns);
		break;
	default:
		break;
	}
}

/* --- Messages of members ------------------------------------------------------------------------ */

static json_t *broadcast_ask_fields(const struct agent *a, const struct sync *s)
{
	const struct broadcast *b = broadcast_of(s);
	json_t *fields = document_to_json(s->document);

	(void)a;
	json_object_set_new(fields, "group", json_string(s->group->name));
	if (s->is_dry)
		json_object_set_new(fields, "dry", json_true());
	if (b->companions_fd >= 0)
		json_object_set_new(fields, "companions", json_true());
	if (b->nccl.is_wanted) {
		json_object_set_new(fields, "engine", json_string(transport_nccl.name));
		json_object_set_new(fields, "nccl", json_integer((json_int_t)b->nccl.memory.nccl));
	}
	return fields;
}

static void send_blobs(struct agent *a, struct broadcast *b, struct member *m, const json_t *wanted)
{
	const struct document *d = b->sync.document;
	const json_t *row;
	int r = 0;
	size_t i;

	json_array_foreach(wanted, i, row)
	{
		const char *hex = json_string_value(row);
		char layout[65], leaves[65], companions[65];

		if (hex && strcmp(hex, field_hex(d->layout, 32, layout)) == 0)
			r = a->env->send_blob(a->userdata, m->peer, d->layout, b->layout_fd,
					      d->layout_bytes);
		else if (hex && strcmp(hex, field_hex(d->leaves, 32, leaves)) == 0)
			r = a->env->send_blob(a->userdata, m->peer, d->leaves, b->leaves_fd,
					      document_leaves_bytes(d));
		else if (hex && b->companions_fd >= 0 &&
			 strcmp(hex, field_hex(d->companions, 32, companions)) == 0)
			r = a->env->send_blob(a->userdata, m->peer, d->companions, b->companions_fd,
					      d->companions_bytes);
		if (r < 0) {
			member_fail(a, &b->sync, m, "could not be sent the layout: %s,",
				    strerror(-r));
			return;
		}
	}
}

static void broadcast_on_want(struct agent *a, struct sync *s, struct member *m,
			      const json_t *message)
{
	json_t *blobs;

	if (m->state != MEMBER_ASKED || field_array(message, "blobs", 3, &blobs) < 0) {
		member_is_wrong(a, s, m, "want");
		return;
	}
	member_begins(a, s, m);
	send_blobs(a, broadcast_of(s), m, blobs);
}

static void broadcast_on_ready(struct agent *a, struct sync *s, struct member *m,
			       const json_t *message)
{
	uint64_t n_ways;
	uint8_t root[32];

	if (m->state != MEMBER_ASKED || m->is_queued ||
	    field_number_or(message, "n_addresses", STRIPES_MAX, 1, &n_ways) < 0 || !n_ways ||
	    ranges_from_json(json_object_get(message, "missing"), s->document->n_bytes,
			     &m->missing) < 0) {
		member_is_wrong(a, s, m, "ready");
		return;
	}
	m->n_ways = (unsigned)n_ways;
	if (field_bytes(message, "base", root, sizeof(root)) == 0)
		m->base = patch_chain_find(&broadcast_of(s)->patch_policy.patch_chain, root);
	member_set_state(a, s, m, MEMBER_READY);
}

static void broadcast_on_refuse(struct agent *a, struct sync *s, struct member *m,
				const json_t *message)
{
	const char *code = "";

	(void)field_string(message, "code", 32, &code);
	if (m->state != MEMBER_ASKED || strcmp(code, "there") != 0) {
		member_on_refuse(a, s, m, message);
		return;
	}
	if (json_object_get(message, "heads"))
		replica_on_message(a, m->peer, message);
	member_set_state(a, s, m, MEMBER_COMMITTED);
}

static void broadcast_on_verified(struct agent *a, struct sync *s, struct member *m,
				  const json_t *message)
{
	uint8_t root[32];

	if (m->state != MEMBER_VERIFYING || field_bytes(message, "root", root, 32) < 0 ||
	    memcmp(root, s->document->root, 32) != 0) {
		member_is_wrong(a, s, m, "verified");
		return;
	}
	member_set_state(a, s, m, MEMBER_VERIFIED);
	sync_vote(a, s);
}

static void broadcast_on_corrupt(struct agent *a, struct sync *s, struct member *m,
				 const json_t *message)
{
	struct ranges ranges;

	ranges_init(&ranges);
	if (m->state != MEMBER_VERIFYING ||
	    ranges_from_json(json_object_get(message, "ranges"), s->document->n_bytes, &ranges) < 0 ||
	    !ranges.n) {
		ranges_deinit(&ranges);
		member_is_wrong(a, s, m, "corrupt");
		return;
	}
	ranges_deinit(&m->missing);
	m->missing = ranges;
	m->is_corrupt = true;
	agent_log_of(a, sync_about(s, "corrupt", m->name), "warning",
		     "sync %s: %ju bytes at %s are not those that were signed", s->id,
		     (uintmax_t)ranges_total(&ranges), m->name);
	member_set_state(a, s, m, MEMBER_READY);
}

/* --- Life --------------------------------------------------------------------------------------- */

static void broadcast_free(struct agent *a, struct sync *s)
{
	struct broadcast *b = broadcast_of(s);

	work_end(a, &b->engine);
	broadcast_source_end(a, b);
	patch_policy_deinit(&b->patch_policy);
	for (unsigned i = 0; i < s->n_members; i++) {
		ranges_deinit(&s->members[i].missing);
		ranges_deinit(&s->members[i].patch_missing);
	}
	(void)fd_close(b->layout_fd);
	(void)fd_close(b->companions_fd);
	(void)fd_close(b->data_fd);
	(void)fd_close(b->nccl.staged_fd);
	(void)fd_close(b->leaves_fd);
	ranges_deinit(&b->ranges);
	sync_deinit(s);
	free(b);
}

static const struct sync_ops BROADCAST = {
	.ask = "prepare",
	.ask_fields = broadcast_ask_fields,
	.ready = "while bytes moved",
	.messages = {{"want", false, broadcast_on_want},
		     {"ready", false, broadcast_on_ready},
		     {"refuse", false, broadcast_on_refuse},
		     {"opened", true, chain_epoch_on_opened},
		     {"progress", true, chain_epoch_on_progress},
		     {"done", true, chain_epoch_on_done},
		     {"broken", true, chain_epoch_on_broken},
		     {"stopped", true, chain_epoch_on_stopped},
		     {"verified", false, broadcast_on_verified},
		     {"corrupt", false, broadcast_on_corrupt},
		     {NULL}},
	.time_to_move = broadcast_time_to_move,
	.move = broadcast_move,
	.step = broadcast_step,
	.on_timer = broadcast_on_timer,
	.on_late = broadcast_on_late,
	.on_lost = broadcast_on_lost,
	.decide = broadcast_decide,
	.commit_fields = broadcast_commit_fields,
	.end = broadcast_end,
	.free = broadcast_free,
	.is_moved = broadcast_is_moved,
	.progress = broadcast_progress,
	.from = broadcast_from,
	.is_slow = broadcast_is_slow,
	.describe_bytes = broadcast_describe_bytes,
	.describe_phase = broadcast_describe_phase,
	.describe_kept = broadcast_describe_kept,
};

static void add_member(struct sync *s, unsigned peer, const char *name)
{
	struct member *m = &s->members[s->n_members++];

	m->peer = peer;
	m->name = name;
	m->base = PATCH_CHAIN_MAX;
	ranges_init(&m->missing);
	ranges_init(&m->patch_missing);
}

static void add_members(struct agent *a, struct sync *s)
{
	for (unsigned i = 0; i < s->group->n_members; i++) {
		const char *name = s->group->members[i];

		if (strcmp(name, a->config->name) == 0)
			s->counts_us = true;
		else
			add_member(s, agent_peer_number(a, name), name);
	}
	s->n_least = s->n_members ? 1 : 0;
}

int broadcast_new(struct agent *a, struct replica *rep, const struct group *g, unsigned repair_of,
		  uint64_t version, struct sync **ret, char why[WHY_SIZE])
{
	enum sync_kind kind = repair_of == NO_PEER ? KIND_PUSH : KIND_REPAIR;
	struct broadcast *b = calloc(1, sizeof(*b));
	int r;

	snprintf(why, WHY_SIZE, "out of memory");
	if (!b)
		return -ENOMEM;
	b->patch_policy.fd = b->layout_fd = b->data_fd = b->leaves_fd = b->companions_fd =
		b->nccl.staged_fd = -1;
	b->nccl.is_wanted = kind == KIND_PUSH && nccl_epoch_is_wanted(a, g);
	b->before = replica_committed(rep);
	ranges_init(&b->ranges);
	r = sync_init(a, &b->sync, &BROADCAST, kind, rep, g, g->n_members);
	b->transport = nccl_epoch_choose(a, b);
	if (r == 0 && kind == KIND_REPAIR)
		add_member(&b->sync, repair_of, agent_peer_name(a, repair_of));
	else if (r == 0)
		add_members(a, &b->sync);
	if (r == 0)
		r = broadcast_source_start(a, b, version, why);
	if (r < 0) {
		broadcast_free(a, &b->sync);
		return r;
	}
	list_append(&a->syncs, &b->sync.link);
	*ret = &b->sync;
	return 0;
}

struct broadcast *broadcast_find_of_buffer(struct agent *a, const char *buffer)
{
	struct sync *s = sync_find_of_buffer(a, buffer);

	return s && s->ops == &BROADCAST ? broadcast_of(s) : NULL;
}
