/*
 * Everything that happens comes in here and goes to the noun that it is about:
 *
 *	replicas	versions that are committed, here and elsewhere; the commit log
 *	syncs		that this node coordinates: broadcasts, which carry a version that it has, and
 *			collectives, in which several nodes make a version together
 *	participants	this node as a member of syncs of any coordinator: receivers of broadcasts,
 *			contributors to collectives
 *	repair		how this node gets versions that it lacks
 *	pull		a repair that a user waits for
 *
 * They change states and never wait. agent_settle() frees syncs that ended and begins what became possible, at the
 * end of each event, so that no caller loses the object it works on. It also sets the one timer to the first deadline
 * of all. The roles call back through the table of agent_hooks.h.
 */
#include "server/sync/agent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/sync/admission.h"
#include "server/sync/base/engine_order.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/coordinator/broadcast.h"
#include "server/sync/coordinator/collective.h"
#include "server/sync/coordinator/nccl_epoch.h"
#include "server/sync/coordinator/reshard.h"
#include "server/sync/history.h"
#include "server/sync/participant/contributor.h"
#include "server/sync/participant/receiver.h"
#include "server/sync/participant/shard.h"
#include "server/sync/phase_time.h"
#include "server/sync/pull.h"
#include "server/sync/repair.h"
#include "server/sync/state/agent_hooks.h"
#include "server/sync/state/group.h"
#include "server/sync/state/loan.h"
#include "server/sync/state/loopback.h"
#include "server/sync/state/trace_span.h"
#include "server/sync/watch.h"

#define SAVE_AGAIN_NS                                                                              \
	(60 * SECOND) /* after the commit log could not be written, which was logged */
#define PUSHES_MAX 32 /* at a time: each has two processes */

/* --- Hooks -------------------------------------------------------------------------------------- */

static bool agent_coordinates(struct agent *a, const char *sync)
{
	return sync_find(a, sync) != NULL;
}

static bool agent_has_sync_of(const struct agent *a, const struct replica *rep)
{
	const struct participant *p;
	const struct sync *s;

	list_for_each(s, &a->syncs, link)
		if (s->replica == rep)
			return true;
	list_for_each(p, &a->participants, link)
		if (p->replica == rep)
			return true;
	return false;
}

static bool agent_find_layout(const struct agent *a, const char *sync, int *ret_fd)
{
	struct participant *p;

	list_for_each(p, &a->participants, link)
		if (p->coordinator == AGENT_SELF && strcmp(p->sync, sync) == 0) {
			*ret_fd = contributor_of(p)->layout_fd;
			return true;
		}
	return false;
}

/* A repair that has it now leaves nothing behind. */
static void agent_on_loan_unwanted(struct agent *a, const struct replica *rep)
{
	struct broadcast *b = broadcast_find_of_buffer(a, rep->buffer);

	if (b && sync_is_repair(&b->sync))
		b->is_unwanted = true;
}

static void agent_on_participant_end(struct agent *a, const struct participant *p)
{
	history_participant_end(a, p);
	pull_on_participant_end(p);
}

static const char *agent_refuse_receiver(struct agent *a, unsigned peer, const struct document *d,
					 bool is_dry, struct replica **ret_replica,
					 char why[WHY_SIZE])
{
	const char *code = admission_refusal(a, peer, d, is_dry, ret_replica, why);
	struct replica *rep = code && d->decision ? replica_find(a, d->buffer) : NULL;

	if (rep)
		pull_on_refused(a, rep, peer, why);
	return code;
}

static const struct agent_hooks HOOKS = {
	.on_member = history_member_event,
	.on_participant = history_participant_event,
	.on_sync_end = history_sync_end,
	.on_participant_end = agent_on_participant_end,
	.on_traced = history_traced,
	.refuse_receiver = agent_refuse_receiver,
	.refuse_contributor = admission_refusal_of_contributor,
	.coordinates = agent_coordinates,
	.is_in_sync = agent_has_sync_of,
	.find_layout = agent_find_layout,
	.on_loan_unwanted = agent_on_loan_unwanted,
};

/* --- Life --------------------------------------------------------------------------------------- */

int agent_new(const struct env *env, void *userdata, const struct agent_config *config,
	      struct agent **ret)
{
	cleanup(agent_freep) struct agent *a = calloc(1, sizeof(*a));

	if (!a)
		return -ENOMEM;
	a->hooks = &HOOKS;
	a->env = env;
	a->userdata = userdata;
	a->config = config;
	list_init(&a->replicas);
	list_init(&a->syncs);
	list_init(&a->participants);
	list_init(&a->trace_spans);
	list_init(&a->loopback);
	list_init(&a->catch_ups);
	list_init(&a->idle_loans);
	a->history = json_array();
	a->peers = calloc(config->n_peers + 1, sizeof(*a->peers));
	a->knows = calloc((size_t)config->n_groups * (config->n_peers + 1) + 1, sizeof(*a->knows));
	if (!a->history || !a->peers || !a->knows || metrics_init(a) < 0)
		return -ENOMEM;
	for (unsigned i = 0; i < config->n_groups; i++)
		if (group_fill_row(&config->groups[i], config,
				   &a->knows[(size_t)i * (config->n_peers + 1)]) < 0)
			return -ENOMEM;
	for (unsigned i = 0; i < config->n_peers; i++)
		a->peers[i].since_ns = agent_now(a);
	*ret = take_ptr(a);
	return 0;
}

struct agent *agent_free(struct agent *a)
{
	struct sync *s, *next_s;
	struct participant *p, *next_p;
	struct loopback *w, *next_w;
	struct replica *rep, *next_rep;

	if (!a)
		return NULL;
	watch_end(a);
	list_for_each_safe(s, next_s, &a->syncs, link)
		s->ops->free(a, s);
	list_for_each_safe(p, next_p, &a->participants, link)
		p->ops->free(a, p);
	list_for_each_safe(w, next_w, &a->loopback, link)
		loopback_free(w);
	list_for_each_safe(rep, next_rep, &a->replicas, link)
		replica_free(a, rep);
	repair_forget(a, NO_PEER);
	for (unsigned i = 0; a->peers && i < a->config->n_peers; i++)
		free(a->peers[i].claims);
	metrics_deinit(a);
	json_decref(a->history);
	free(a->knows);
	free(a->peers);
	free(a);
	return NULL;
}

static void agent_reap(struct agent *a)
{
	struct sync *s, *next_s;
	struct participant *p, *next_p;

	list_for_each_safe(s, next_s, &a->syncs, link)
		if (s->phase == PHASE_ENDED)
			s->ops->free(a, s);
	list_for_each_safe(p, next_p, &a->participants, link)
		if (p->state == PARTICIPANT_ENDED)
			p->ops->free(a, p);
}

static void timer_set_earlier(uint64_t *timer, uint64_t deadline)
{
	if (deadline && (!*timer || deadline < *timer))
		*timer = deadline;
}

static void hear_self(struct agent *a);

static void agent_settle(struct agent *a)
{
	struct sync *s;
	struct participant *p;
	uint64_t timer;

	hear_self(a);
	pull_step(a);
	timer = repair_step(a, agent_now(a));
	phase_time_step(a);
	agent_reap(a);
	timer_set_earlier(&timer, watch_step(a, agent_now(a)));
	timer_set_earlier(&timer, loan_step(a, agent_now(a)));
	timer_set_earlier(&timer, replicas_step(a, agent_now(a)));
	repair_serve_next(a);
	repair_share_rate(a);
	receiver_begin_next(a);
	contributor_begin_next(a);
	hear_self(a);
	list_for_each(s, &a->syncs, link) {
		if (!s->is_left && sync_is_left_to_late(s))
			history_sync_left(a, s);
		timer_set_earlier(&timer, sync_deadline(s));
	}
	list_for_each(p, &a->participants, link)
		timer_set_earlier(&timer, participant_deadline(p));
	timer_set_earlier(&timer, a->save_ns);
	if (a->look_again)
		timer = agent_now(a);
	if (timer != a->timer_ns)
		a->env->set_timer(a->userdata, timer);
	a->timer_ns = timer;
}

int agent_load(struct agent *a, const json_t *commit_log, char why[WHY_SIZE])
{
	int r = commit_log ? replicas_load(a, commit_log, why) : 0;

	if (r < 0)
		return r;
	a->look_again = true;
	agent_settle(a);
	return 0;
}

int agent_flush(struct agent *a)
{
	return a->save_ns ? replicas_save(a) : 0;
}

/* --- Operators ---------------------------------------------------------------------------------- */

static unsigned n_pushes(const struct agent *a)
{
	const struct sync *s;
	unsigned n = 0;

	list_for_each(s, &a->syncs, link)
		n += s->phase != PHASE_ENDED && !sync_is_repair(s);
	return n;
}

/*
 * A repair makes room for the request of an operator. So does a sync that only waits for slow members. Nothing else
 * does. A dry run ends nothing.
 */
static int agent_make_room(struct agent *a, const struct replica *rep, const char *what,
			   bool is_dry, char why[WHY_SIZE])
{
	struct sync *s = sync_find_of_buffer(a, rep->buffer);
	struct participant *p = participant_find_of_buffer(a, rep->buffer);
	bool s_stays = s && !sync_is_repair(s) && !sync_is_only_slow(s),
	     d_stays = p && (!participant_is_repair(p) || p->state == PARTICIPANT_PUBLISHING);

	if (s_stays || d_stays) {
		snprintf(why, WHY_SIZE, "sync %s of %s is under way", s_stays ? s->id : p->sync,
			 rep->buffer);
		return -EBUSY;
	}
	if (is_dry && (s || p)) {
		snprintf(why, WHY_SIZE, "sync %s of %s is under way, and a dry run does not end it",
			 s ? s->id : p->sync, rep->buffer);
		return -EBUSY;
	}
	if (n_pushes(a) >= PUSHES_MAX) {
		snprintf(why, WHY_SIZE, "%u pushes are under way", PUSHES_MAX);
		return -EBUSY;
	}
	if (s)
		sync_fail(a, s, "%s of %s began", what, rep->buffer);
	if (p)
		participant_drop(a, p, "%s of %s began", what, rep->buffer);
	return 0;
}

/* The fields that requests of operators have in common. */
struct wish {
	const struct group *group;
	struct replica *replica;
	enum policy policy;
	uint64_t max_rate;
	bool is_dry;
};

static void wish_grant(struct sync *s, const struct wish *w, char ret_sync[SYNC_ID_SIZE])
{
	s->policy = w->policy;
	s->max_rate = w->max_rate;
	s->is_dry = w->is_dry;
	memcpy(ret_sync, s->id, SYNC_ID_SIZE);
}

/* Ends nothing: a refused request must not cost others anything. */
static int read_wish(struct agent *a, const json_t *request, const char *what, struct wish *ret,
		     char why[WHY_SIZE])
{
	const char *buffer, *group_name, *policy_text;
	const struct group *g;

	if (field_string(request, "buffer", BUFFER_MAX, &buffer) < 0 ||
	    field_string_or_null(request, "group", GROUP_MAX, &group_name) < 0 ||
	    field_string_or_null(request, "policy", 16, &policy_text) < 0 ||
	    field_number_or(request, "max_rate", INT64_MAX, 0, &ret->max_rate) < 0) {
		snprintf(why, WHY_SIZE, "%s has buffer, group, policy and max_rate", what);
		return -EBADMSG;
	}
	if (ret->max_rate && ret->max_rate < ENGINE_ORDER_RATE_MIN) {
		snprintf(why, WHY_SIZE,
			 "%ju bytes a second are too few for %s: %ju are the least, or none is given",
			 (uintmax_t)ret->max_rate, what, (uintmax_t)ENGINE_ORDER_RATE_MIN);
		return -EBADMSG;
	}
	g = ret->group = group_of_buffer(a->config, buffer, group_name, why);
	if (!g)
		return -ENOENT;
	ret->policy = g->policy;
	if (policy_text && policy_parse(policy_text, &ret->policy) < 0) {
		snprintf(why, WHY_SIZE, "'%s' is no policy; there are all, quorum and each",
			 policy_text);
		return -EBADMSG;
	}
	if (!group_has_publisher(g, a->config->name)) {
		snprintf(why, WHY_SIZE, "%s is no publisher of the group '%s'; ask on %s",
			 a->config->name, g->name, g->publishers[0]);
		return -EPERM;
	}
	ret->replica = replica_get(a, buffer, g->name);
	if (!ret->replica) {
		snprintf(why, WHY_SIZE, "there are too many buffers");
		return -ENOMEM;
	}
	return a->env->may_save(a->userdata, why) < 0 ? -ENOSPC : 0;
}

static int agent_begin_push(struct agent *a, const json_t *request, bool is_dry,
			    char ret_sync[SYNC_ID_SIZE], char why[WHY_SIZE])
{
	struct wish w = {.is_dry = is_dry};
	struct sync *s;
	uint64_t version;
	int r;

	if (field_number_or(request, "version", INT64_MAX, 0, &version) < 0) {
		snprintf(why, WHY_SIZE, "the version of a push is a number");
		return -EBADMSG;
	}
	r = read_wish(a, request, "a push", &w, why);
	if (r == 0)
		r = agent_make_room(a, w.replica, "a push", is_dry, why);
	if (r == 0)
		r = broadcast_new(a, w.replica, w.group, NO_PEER, version, &s, why);
	if (r == 0)
		wish_grant(s, &w, ret_sync);
	agent_settle(a);
	return r;
}

int agent_push(struct agent *a, const json_t *request, char ret_sync[SYNC_ID_SIZE],
	       char why[WHY_SIZE])
{
	return agent_begin_push(a, request, false, ret_sync, why);
}

int agent_plan(struct agent *a, const json_t *request, char ret_sync[SYNC_ID_SIZE],
	       char why[WHY_SIZE])
{
	return agent_begin_push(a, request, true, ret_sync, why);
}

/* Checks that it is possible at all, and at that rate by so many nodes. -errno with a sentence. */
static int check_collective(const struct agent *a, const struct collective_op *op,
			    const struct wish *w, uint64_t n, char why[WHY_SIZE])
{
	if (a->config->tls && op->transport->is_nccl) {
		snprintf(why, WHY_SIZE,
			 "%s goes over %s, which carries weights in the clear, and %s has "
			 "security = tls under [data] in sync.conf",
			 op->an, op->over, a->config->name);
		return -EPERM;
	}
	if (w->max_rate && w->max_rate < n * ENGINE_ORDER_RATE_MIN) {
		snprintf(why, WHY_SIZE,
			 "%ju bytes a second are too few for %s of %ju nodes: %ju are the least",
			 (uintmax_t)w->max_rate, op->an, (uintmax_t)n,
			 (uintmax_t)(n * ENGINE_ORDER_RATE_MIN));
		return -EBADMSG;
	}
	return 0;
}

static int read_dry(const json_t *request, bool *ret, char why[WHY_SIZE])
{
	if (field_bool_or(request, "dry", false, ret) == 0)
		return 0;
	snprintf(why, WHY_SIZE, "'dry' is true or false");
	return -EBADMSG;
}

/* Nodes without a shard would take a version of the group for it, and fetch it. */
static int check_shards(const struct wish *w, char why[WHY_SIZE])
{
	if (w->policy != POLICY_ALL) {
		snprintf(why, WHY_SIZE,
			 "a reshard is of all of its nodes or of none: it knows no policy '%s'",
			 policy_name(w->policy));
		return -EBADMSG;
	}
	if (!replica_is_version(w->replica))
		return 0;
	snprintf(why, WHY_SIZE,
		 "'%s' is a version of the group '%s', the same on all nodes; give the shards "
		 "another name",
		 w->replica->buffer, w->group->name);
	return -EEXIST;
}

/* The nodes that engines run on. */
static uint64_t n_nodes(const struct collective_op *op, const struct wish *w, const json_t *request)
{
	if (op->is_version)
		return w->group->n_members;
	return json_array_size(json_object_get(request, "sources")) +
	       json_array_size(json_object_get(request, "targets"));
}

static int begin_collective(struct agent *a, const struct collective_op *op, const struct wish *w,
			    const json_t *request, struct sync **ret, char why[WHY_SIZE])
{
	return op->is_version ? collective_new(a, op, w->replica, w->group, ret, why)
			      : reshard_new(a, op, w->replica, w->group, request, ret, why);
}

static int make_together(struct agent *a, const char *name, const json_t *request,
			 char ret_sync[SYNC_ID_SIZE], char why[WHY_SIZE])
{
	const struct collective_op *op = collective_op_find(name, transport_gloo.name);
	struct sync *s;
	struct wish w;
	int r = read_dry(request, &w.is_dry, why);

	if (r == 0)
		r = read_wish(a, request, op->an, &w, why);
	if (r == 0 && nccl_epoch_is_wanted(a, w.group))
		op = collective_op_find(name, transport_nccl.name);
	if (r == 0 && !op->is_version && !json_is_string(json_object_get(request, "policy")))
		w.policy = POLICY_ALL; /* whatever the group's is */
	if (r == 0 && !op->is_version)
		r = check_shards(&w, why);
	if (r == 0)
		r = check_collective(a, op, &w, n_nodes(op, &w, request), why);
	if (r == 0)
		r = agent_make_room(a, w.replica, op->an, w.is_dry, why);
	if (r == 0)
		r = begin_collective(a, op, &w, request, &s, why);
	if (r == 0)
		wish_grant(s, &w, ret_sync);
	agent_settle(a);
	return r;
}

int agent_average(struct agent *a, const json_t *request, char ret_sync[SYNC_ID_SIZE],
		  char why[WHY_SIZE])
{
	return make_together(a, "average", request, ret_sync, why);
}

int agent_reshard(struct agent *a, const json_t *request, char ret_sync[SYNC_ID_SIZE],
		  char why[WHY_SIZE])
{
	return make_together(a, "reshard", request, ret_sync, why);
}

int agent_pull(struct agent *a, const json_t *request, char ret_sync[SYNC_ID_SIZE],
	       char why[WHY_SIZE])
{
	int r = pull_begin(a, request, ret_sync, why);

	/* It begins with the timer: the caller needs its id first. */
	if (r == 0) {
		a->timer_ns = agent_now(a);
		a->env->set_timer(a->userdata, a->timer_ns);
	}
	return r;
}

int agent_cancel(struct agent *a, const char *sync, char why[WHY_SIZE])
{
	struct sync *s = sync_find(a, sync);
	int r = s ? 0 : pull_cancel(a, sync, why);

	if (!s && r != -ENOENT) {
		agent_settle(a);
		return r;
	}
	if (!s) {
		snprintf(why, WHY_SIZE,
			 "%s coordinates no sync %s; it is cancelled where it was asked for",
			 a->config->name, sync);
		return -ENOENT;
	}
	if (s->decided) {
		snprintf(why, WHY_SIZE, "sync %s is decided: its version is being committed", sync);
		return -EALREADY;
	}
	sync_fail(a, s, "it was cancelled");
	agent_settle(a);
	return 0;
}

bool agent_is_idle(const struct agent *a)
{
	return list_empty(&a->syncs) && list_empty(&a->participants);
}

const char *agent_sync_group(const struct agent *a, const char *sync)
{
	struct sync *s;
	struct participant *p;

	list_for_each(s, &a->syncs, link)
		if (strcmp(s->id, sync) == 0)
			return s->group->name;
	list_for_each(p, &a->participants, link)
		if (strcmp(p->sync, sync) == 0)
			return p->group;
	return NULL;
}

static json_t *own_replicas(const struct agent *a)
{
	static const char *const STATES[] = {
		[REPLICA_BEHIND] = "behind",
		[REPLICA_UNVERIFIED] = "unverified",
		[REPLICA_SERVING] = "serving",
		[REPLICA_SUPERSEDED] = "superseded",
	};
	json_t *rows = json_array();
	struct replica *rep;

	list_for_each(rep, &a->replicas, link) {
		char root[65] = "";

		if (!rep->document)
			continue;
		json_array_append_new(
			rows, json_pack("{s:s, s:s, s:I, s:I, s:s, s:I, s:s}", "buffer",
					rep->buffer, "group", rep->group, "term",
					(json_int_t)rep->document->version_id.term, "number",
					(json_int_t)rep->document->version_id.number, "root",
					field_hex(rep->document->root, 32, root), "version",
					(json_int_t)rep->version, "state", STATES[rep->state]));
	}
	return rows;
}

json_t *agent_replicas(const struct agent *a, unsigned peer_or_self)
{
	json_t *rows;

	if (peer_or_self == AGENT_SELF)
		return own_replicas(a);
	rows = json_array();
	for (unsigned i = 0; i < a->peers[peer_or_self].n_claims; i++) {
		const struct claim *c = &a->peers[peer_or_self].claims[i];
		char root[65];

		if (!c->version_id.number)
			continue;
		json_array_append_new(rows, json_pack("{s:s, s:s, s:I, s:I, s:s}", "buffer",
						      c->replica->buffer, "group", c->group->name,
						      "term", (json_int_t)c->version_id.term,
						      "number", (json_int_t)c->version_id.number,
						      "root", field_hex(c->root, 32, root)));
	}
	return rows;
}

/* --- Events ------------------------------------------------------------------------------------- */

void agent_on_peer_up(struct agent *a, unsigned peer)
{
	struct sync *s;

	a->peers[peer].up = true;
	a->peers[peer].since_ns = agent_now(a);
	replicas_tell(a, peer);
	list_for_each(s, &a->syncs, link)
		sync_on_peer_up(a, s, peer);
	agent_settle(a);
}

void agent_on_peer_down(struct agent *a, unsigned peer, const char *why)
{
	struct sync *s;
	struct participant *p;

	if (!a->peers[peer].up)
		return;
	a->peers[peer].up = false;
	a->peers[peer].since_ns = agent_now(a);
	replicas_forget_claims(a, peer);
	list_for_each(s, &a->syncs, link)
		sync_on_peer_down(a, s, peer, why);
	list_for_each(p, &a->participants, link)
		if (p->coordinator == peer)
			participant_on_peer_down(a, p, why);
	repair_on_peer_down(a, peer);
	agent_settle(a);
}

static void on_sync_message(struct agent *a, unsigned peer, const char *type, const json_t *message)
{
	const char *sync;

	if (field_string(message, "sync", SYNC_ID_SIZE - 1, &sync) < 0)
		agent_hang_up(a, peer, "'%.32s' without a sync", type);
	else if (!participant_on_message(a, peer, sync, type, message) &&
		 !sync_on_message(a, peer, sync, type, message))
		agent_log(a, "debug", "%s: '%.32s' of sync %s, which is over",
			  agent_peer_name(a, peer), type, sync);
}

static void on_blob(struct agent *a, unsigned peer, const uint8_t hash[32], int fd, uint64_t size)
{
	if (receiver_blob_limit(a, peer, hash))
		receiver_on_blob(a, peer, hash, fd, size);
	else if (contributor_blob_limit(a, peer, hash))
		contributor_on_blob(a, peer, hash, fd, size);
	else if (shard_blob_limit(a, peer, hash))
		shard_on_blob(a, peer, hash, fd, size);
	else
		reshard_on_blob(a, peer, hash, fd, size);
}

/* As it comes, and so in no order but its own: what is said while it is heard comes behind it. */
static void hear_self(struct agent *a)
{
	struct loopback *w;

	while ((w = list_first(&a->loopback, struct loopback, link))) {
		const char *type = json_string_value(json_object_get(w->message, "type"));

		if (!w->message)
			on_blob(a, AGENT_SELF, w->hash, w->fd, w->size);
		else if (strcmp(type, "join") == 0)
			contributor_on_join(a, AGENT_SELF, w->message);
		else
			on_sync_message(a, AGENT_SELF, type, w->message);
		loopback_free(w);
	}
}

void agent_on_message(struct agent *a, unsigned peer, const json_t *message)
{
	static const struct {
		const char *type;
		void (*fn)(struct agent *a, unsigned peer, const json_t *message);
	} MESSAGES[] = {
		{"heads", replica_on_message},        {"prepare", receiver_on_prepare},
		{"join", contributor_on_join},        {"catch-up", repair_on_catch_up},
		{"cannot-repair", repair_on_refused}, {"traced", trace_span_on_message},
	};
	const char *type;
	unsigned i;

	if (!a->peers[peer].up)
		return;
	if (field_string(message, "type", 64, &type) < 0) {
		agent_hang_up(a, peer, "a message without a type");
		return;
	}
	for (i = 0; i < sizeof(MESSAGES) / sizeof(MESSAGES[0]); i++)
		if (strcmp(MESSAGES[i].type, type) == 0)
			break;
	if (i < sizeof(MESSAGES) / sizeof(MESSAGES[0]))
		MESSAGES[i].fn(a, peer, message);
	else
		on_sync_message(a, peer, type, message);
	agent_settle(a);
}

void agent_on_blob(struct agent *a, unsigned peer, const uint8_t hash[32], int fd, uint64_t size)
{
	on_blob(a, peer, hash, fd, size);
	agent_settle(a);
}

uint64_t agent_blob_limit(const struct agent *a, unsigned peer, const uint8_t hash[32])
{
	uint64_t limit = receiver_blob_limit(a, peer, hash);

	if (!limit)
		limit = contributor_blob_limit(a, peer, hash);
	if (!limit)
		limit = shard_blob_limit(a, peer, hash);
	return limit ? limit : reshard_blob_limit(a, peer, hash);
}

void agent_on_timer(struct agent *a)
{
	uint64_t now = agent_now(a);
	struct sync *s;
	struct participant *p;

	a->timer_ns = 0;
	if (a->save_ns && now >= a->save_ns && agent_flush(a) < 0)
		a->save_ns = now + SAVE_AGAIN_NS;
	list_for_each(s, &a->syncs, link)
		sync_on_timer(a, s, now);
	list_for_each(p, &a->participants, link)
		participant_on_timer(a, p, now);
	agent_settle(a);
}

void agent_on_job(struct agent *a, void *owner, const json_t *message, int *fds, unsigned n_fds)
{
	struct work *w = owner;

	if (!trace_span_on_job(a, w, message, fds, n_fds))
		w->on_message(a, w, message, fds, n_fds);
	agent_settle(a);
}

void agent_on_job_end(struct agent *a, void *owner, const char *how)
{
	struct work *w = owner;

	w->job = NULL;
	trace_span_drop(a, w);
	w->on_end(a, w, how);
	agent_settle(a);
}

void agent_on_untraced(struct agent *a, const char *sync)
{
	trace_span_resume(a, sync);
	agent_settle(a);
}

void agent_on_traced(struct agent *a, const json_t *request, const json_t *rows)
{
	trace_span_on_rows(a, request, rows);
	agent_settle(a);
}
