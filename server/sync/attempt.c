/*
 * An engine that breaks says which other node it holds to be the cause, or that it is itself. Of those who only see
 * that a neighbour is silent, some see the wrong one: so all are heard before engines are stopped, unless somebody was
 * lost or owned up, and whoever is named by most is blamed. Blame costs nothing but the epoch, until one has broken too
 * many: then it is lost to the sync, and the policy says what that means.
 *
 * What nodes disagree about, another epoch would find again. This node's engine met all others, so its word counts:
 * whoever differs from it is lost at once.
 */
#include "server/sync/attempt.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "server/sync/base/fields.h"
#include "server/sync/history.h"
#include "server/sync/plan.h"

#define HELLO_DIGITS_MAX 1024 /* of one engine for one other */

static bool is_lost(const struct part *p)
{
	return p->state == MEMBER_FAILED || p->state == MEMBER_ABSENT;
}

/* --- Opening ------------------------------------------------------------------------------------ */

static json_t *take_ranks(struct joint *j)
{
	json_t *nodes = json_array();

	j->n_ranks = 0;
	for (unsigned i = 0; i < j->n_parts; i++) {
		struct part *p = &j->parts[i];

		p->is_in_epoch = p->state == MEMBER_READY;
		p->is_moved = p->has_told = false;
		p->n_accused = 0;
		p->done = p->rate = p->expected = p->moved_ns = 0;
		json_decref(p->hellos);
		p->hellos = NULL;
		if (!p->is_in_epoch)
			continue;
		p->rank = j->n_ranks++;
		json_array_append_new(nodes, json_pack("{s:s, s:s}", "node", p->name, "address",
						       p->address));
	}
	return nodes;
}

void attempt_begin(struct agent *a, struct joint *j)
{
	cleanup(json_freep) json_t *nodes = NULL;
	uint8_t token[32];
	char hex[65];

	if (j->epoch >= ATTEMPTS_MAX) {
		joint_fail(a, j, "%u epochs broke, the last by this: %s", ATTEMPTS_MAX,
			   j->broke_why);
		return;
	}
	nodes = take_ranks(j);
	a->edge->random(a->world, token, sizeof(token));
	field_hex(token, sizeof(token), hex);
	j->epoch++;
	a->metrics.n_epochs++;
	j->phase = PHASE_OPEN;
	/* A node has its prepare-timeout for the engine; what it says of that has to arrive, too. */
	j->deadline_ns = agent_now(a) + a->config->prepare_ns + a->config->stall_ns;
	for (unsigned i = 0; i < j->n_parts; i++) {
		struct part *p = &j->parts[i];

		if (!p->is_in_epoch)
			continue;
		part_set_state(a, j, p, MEMBER_OPENING);
		part_tell(a, j, p, "open",
			  json_pack("{s:I, s:s, s:O}", "epoch", (json_int_t)j->epoch, "token", hex,
				    "nodes", nodes));
	}
}

/* One for each rank, null where it is its own. */
static bool are_hellos(const struct joint *j, const struct part *p, const json_t *hellos)
{
	if (json_array_size(hellos) != j->n_ranks)
		return false;
	for (unsigned i = 0; i < j->n_ranks; i++) {
		const json_t *hello = json_array_get(hellos, i);

		if (i == p->rank ? !json_is_null(hello)
				 : !json_is_string(hello) ||
					   json_string_length(hello) > HELLO_DIGITS_MAX)
			return false;
	}
	return true;
}

void attempt_on_opened(struct agent *a, struct joint *j, struct part *p, const json_t *message)
{
	json_t *hellos;

	if (j->phase == PHASE_STOP)
		return; /* it crossed our stop */
	if (p->state != MEMBER_OPENING || field_array(message, "hellos", j->n_ranks, &hellos) < 0 ||
	    !are_hellos(j, p, hellos) ||
	    field_number(message, "expected", INT64_MAX, &p->expected) < 0 ||
	    (p->is_us && owned_read(message, j->n_ranks, &j->owned) < 0)) {
		part_is_wrong(a, j, p, "opened");
		return;
	}
	p->hellos = json_incref(hellos);
	part_set_state(a, j, p, MEMBER_OPEN);
}

/* What all others' engines say to this one's. */
static json_t *hellos_for(const struct joint *j, const struct part *p)
{
	json_t *hellos = json_array();

	for (unsigned i = 0; i < j->n_parts; i++)
		if (j->parts[i].is_in_epoch)
			json_array_append(hellos, json_array_get(j->parts[i].hellos, p->rank));
	return hellos;
}

void attempt_start(struct agent *a, struct joint *j)
{
	plan_tell_joint(a, j);
	if (j->is_dry) {
		joint_end_planned(a, j);
		return;
	}
	j->phase = PHASE_BYTES;
	j->moved_ns = agent_now(a);
	j->deadline_ns = j->moved_ns + 3 * a->config->stall_ns;
	for (unsigned i = 0; i < j->n_parts; i++) {
		struct part *p = &j->parts[i];

		if (!p->is_in_epoch)
			continue;
		part_set_state(a, j, p, MEMBER_MOVING);
		part_tell(a, j, p, "start",
			  json_pack("{s:I, s:o, s:I}", "epoch", (json_int_t)j->epoch, "hellos",
				    hellos_for(j, p), "max_rate", (json_int_t)j->max_rate));
	}
}

void attempt_on_progress(struct agent *a, struct joint *j, struct part *p, const json_t *message)
{
	uint64_t done, rate;

	if (p->state == MEMBER_STOPPING || j->phase == PHASE_STOP)
		return;
	if (p->state != MEMBER_MOVING || field_number(message, "done", p->expected, &done) < 0 ||
	    field_number(message, "rate", INT64_MAX, &rate) < 0) {
		part_is_wrong(a, j, p, "progress");
		return;
	}
	if (done > p->done)
		p->moved_ns = j->moved_ns = agent_now(a);
	j->deadline_ns = j->moved_ns + 3 * a->config->stall_ns;
	p->done = done;
	p->rate = rate;
	history_part_event(a, j, p);
}

void attempt_on_done(struct agent *a, struct joint *j, struct part *p, const json_t *message)
{
	if (p->state == MEMBER_STOPPING)
		return; /* others have not got it all, and it will make it again */
	if (p->state != MEMBER_MOVING) {
		part_is_wrong(a, j, p, "done");
		return;
	}
	p->done = p->expected;
	p->is_moved = p->has_told = true;
	tally_add(&j->tally, operation_planned(j->operation, &j->owned, p->rank),
		  json_object_get(message, "in"));
	j->moved_ns = agent_now(a);
	if (j->phase == PHASE_BYTES)
		j->deadline_ns = j->moved_ns + 3 * a->config->stall_ns;
	part_set_state(a, j, p, MEMBER_READY);
}

/* --- Breaking ----------------------------------------------------------------------------------- */

static bool is_own_fault(const struct joint *j, const struct part *p)
{
	return p->n_accused >= j->n_parts;
}

/* Somebody was lost or owned up, or there is nobody left to hear. */
static bool is_cause_known(const struct joint *j)
{
	bool all = true;

	for (unsigned i = 0; i < j->n_parts; i++) {
		const struct part *p = &j->parts[i];

		if (!p->is_in_epoch)
			continue;
		if (is_lost(p) || is_own_fault(j, p))
			return true;
		all = all && p->has_told;
	}
	return all;
}

static void stop_all(struct agent *a, struct joint *j)
{
	j->stops = true;
	j->deadline_ns = agent_now(a) + a->config->stall_ns;
	for (unsigned i = 0; i < j->n_parts; i++) {
		struct part *p = &j->parts[i];

		if (!p->is_in_epoch || is_lost(p))
			continue;
		p->is_moved = false;
		part_set_state(a, j, p, MEMBER_STOPPING);
		part_tell(a, j, p, "stop", json_pack("{s:I}", "epoch", (json_int_t)j->epoch));
	}
}

void attempt_break(struct agent *a, struct joint *j)
{
	if (j->phase == PHASE_OPEN || j->phase == PHASE_BYTES) {
		j->phase = PHASE_STOP;
		j->stops = false;
		j->deadline_ns = agent_now(a) + a->config->stall_ns;
		a->metrics.n_broken++;
	}
	if (j->phase == PHASE_STOP && !j->stops && is_cause_known(j))
		stop_all(a, j);
}

static struct part *find_by_name(struct joint *j, const char *name)
{
	for (unsigned i = 0; name && i < j->n_parts; i++)
		if (strcmp(j->parts[i].name, name) == 0)
			return &j->parts[i];
	return NULL;
}

/* Of two others this node's engine will say which of them it is. */
static void settle_difference(struct agent *a, struct joint *j, struct part *p, struct part *who,
			      const char *why)
{
	if (p->is_us)
		part_fail(a, j, who, "does not fit to %s: %s,", p->name, why);
	else if (who->is_us)
		part_fail(a, j, p, "does not fit to %s: %s,", who->name, why);
}

void attempt_on_broken(struct agent *a, struct joint *j, struct part *p, const json_t *message)
{
	const char *why = "it did not say why", *name = NULL, *code = "failed";
	struct part *who;

	if (p->state < MEMBER_OPENING || p->state > MEMBER_STOPPING) {
		part_is_wrong(a, j, p, "broken");
		return;
	}
	(void)field_string(message, "why", WHY_SIZE - 1, &why);
	(void)field_string(message, "code", 32, &code);
	(void)field_string_or_null(message, "who", NODE_MAX, &name);
	who = find_by_name(j, name);
	who = who && who->is_in_epoch && who != p ? who : NULL;
	p->has_told = true;
	if (who && strcmp(code, "differs") == 0) {
		settle_difference(a, j, p, who, why);
		return;
	}
	if (who)
		who->n_accused++;
	else
		p->n_accused = j->n_parts;
	if (j->phase != PHASE_STOP || !who)
		snprintf(j->broke_why, sizeof(j->broke_why), "%s: %s", p->name, why);
	attempt_break(a, j);
}

void attempt_on_stopped(struct agent *a, struct joint *j, struct part *p, const json_t *message)
{
	(void)message;
	if (p->state != MEMBER_STOPPING) {
		part_is_wrong(a, j, p, "stopped");
		return;
	}
	part_set_state(a, j, p, MEMBER_READY);
}

bool attempt_is_told(const struct joint *j)
{
	return j->stops && joint_count(j, MEMBER_STOPPING) == 0;
}

/* NULL: nobody was named, or somebody was lost, who is enough of a cause. */
static struct part *most_accused(struct joint *j)
{
	struct part *found = NULL;

	for (unsigned i = 0; i < j->n_parts; i++) {
		struct part *p = &j->parts[i];

		if (!p->is_in_epoch || !p->n_accused)
			continue;
		/* Two that accuse each other, of which one is us: we are needed. */
		if (!found || p->n_accused > found->n_accused ||
		    (p->n_accused == found->n_accused && found->is_us))
			found = p;
	}
	for (unsigned i = 0; i < j->n_parts; i++)
		if (j->parts[i].is_in_epoch && is_lost(&j->parts[i]))
			return NULL;
	return found;
}

void attempt_settle(struct agent *a, struct joint *j)
{
	struct part *p = most_accused(j);

	for (unsigned i = 0; i < j->n_parts; i++)
		j->parts[i].is_in_epoch = false;
	if (p && ++p->n_faults == FAULTS_MAX)
		part_fail(a, j, p, "broke %u epochs; the last: %s,", FAULTS_MAX, j->broke_why);
	if (j->phase != PHASE_STOP)
		return;
	agent_log_of(a, joint_about(j, "broken"), "warning", "sync %s: epoch %ju broke: %s",
		     j->sync, (uintmax_t)j->epoch, j->broke_why);
	attempt_begin(a, j);
}

void attempt_on_timer(struct agent *a, struct joint *j, uint64_t now)
{
	if (j->phase == PHASE_BYTES) {
		snprintf(j->broke_why, sizeof(j->broke_why), "no byte moved for %ju s",
			 (uintmax_t)((now - j->moved_ns) / SECOND));
		attempt_break(a, j);
	}
	if (j->phase == PHASE_STOP && !j->stops)
		stop_all(a, j);
}
