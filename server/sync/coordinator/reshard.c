/*
 * Members are asked twice. First each source says what it gives, and sends its layout; a planner makes of those, and of
 * the split, what has to move and what each target will have. Then each gets the plan, and a target its layout and makes
 * room. From there on it is a collective, of all of them or of none.
 *
 * No root can be signed before: what is verified is that each link has given the very bytes that came, by digests of
 * the memory at both ends, and that a target publishes what it said to have found.
 */
#include "server/sync/coordinator/reshard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/coordinator/collective_epoch.h"
#include "server/sync/state/group.h"
#include "server/sync/state/time_limit.h"

#define PLAN_TIME (120 * SECOND) /* enough for the largest; most take no noticeable time */

/* The shard of a source, or of a target. */
struct shard {
	struct member *member;
	char buffer[BUFFER_MAX + 1]; /* only of a source */
	uint64_t version; /* the version in the weightd there; 0: the newest */
	uint64_t n_bytes; /* 0: unknown yet */
	uint64_t layout_bytes;
	uint8_t layout[32];
	int layout_fd; /* -1: it has not come yet */
};

/* The bytes of a link, as its ends have digested them in their memory. */
struct digests {
	bool is_told[MOVES_SIDES];
	uint8_t root[MOVES_SIDES][32];
};

struct reshard {
	struct shard sources[COLLECTIVE_OP_NODES_MAX]; /* indexed by rank */
	unsigned n_sources;
	struct shard results[COLLECTIVE_OP_NODES_MAX]; /* indexed by rank */
	unsigned n_results;
	json_t *split;

	struct work planner;
	unsigned n_planned; /* results that it told of */
	int plan_fd; /* -1: there is none yet */
	uint8_t plan[32];
	uint64_t plan_bytes;
	struct digests *digests; /* indexed by the plan's links */
};

static struct reshard *reshard_of(const struct sync *s)
{
	return collective_of(s)->reshard;
}

static struct shard *find_shard(struct shard *shards, unsigned n, const struct member *m)
{
	for (unsigned i = 0; i < n; i++)
		if (shards[i].member == m)
			return &shards[i];
	return NULL;
}

static struct shard *source_of(const struct sync *s, const struct member *m)
{
	return find_shard(reshard_of(s)->sources, reshard_of(s)->n_sources, m);
}

static struct shard *result_of(const struct sync *s, const struct member *m)
{
	return find_shard(reshard_of(s)->results, reshard_of(s)->n_results, m);
}

static unsigned place_of(const struct sync *s, const struct member *m)
{
	return (unsigned)(m - s->members);
}

/* --- Requests ----------------------------------------------------------------------------------- */

static json_t *reshard_ask_fields(const struct agent *a, const struct sync *s)
{
	const struct reshard *r = reshard_of(s);
	json_t *fields = collective_invitation(a, s), *sources = json_array(),
	       *targets = json_array();

	for (unsigned i = 0; i < r->n_sources; i++) {
		const struct shard *x = &r->sources[i];

		json_array_append_new(sources, json_pack("{s:s, s:s, s:I}", "node", x->member->name,
							 "buffer", x->buffer, "version",
							 (json_int_t)x->version));
	}
	for (unsigned i = 0; i < r->n_results; i++)
		json_array_append_new(targets, json_string(r->results[i].member->name));
	json_object_set_new(fields, "sources", sources);
	json_object_set_new(fields, "targets", targets);
	return fields;
}

/* --- The plan ----------------------------------------------------------------------------------- */

static json_t *reshard_places(const struct sync *s, const struct shard *shards, unsigned n)
{
	json_t *places = json_array();

	for (unsigned i = 0; i < n; i++)
		json_array_append_new(places, json_integer(place_of(s, shards[i].member)));
	return places;
}

static bool are_layouts_few(struct agent *a, struct sync *s)
{
	const struct reshard *r = reshard_of(s);
	uint64_t n = 0;

	for (unsigned i = 0; i < r->n_sources; i++)
		n += r->sources[i].layout_bytes;
	if (n <= RESHARD_LAYOUTS_MAX)
		return true;
	sync_fail(a, s,
		  "the layouts of the sources have %ju MiB together, and %ju can be planned with",
		  (uintmax_t)(n >> 20), (uintmax_t)(RESHARD_LAYOUTS_MAX >> 20));
	return false;
}

static int write_split(const struct reshard *r, int *ret_fd)
{
	char *text = json_dumps(r->split, JSON_COMPACT);
	int e = text ? fd_sealed_copy("weightd-sync-split", text, strlen(text), ret_fd) : -ENOMEM;

	free(text);
	return e;
}

static void reshard_on_planner_message(struct agent *a, struct work *w, const json_t *message,
				       int *fds, unsigned n_fds);
static void reshard_on_planner_end(struct agent *a, struct work *w, const char *how);

static void reshard_start_planner(struct agent *a, struct sync *s)
{
	struct reshard *r = reshard_of(s);
	cleanup(fd_closep) int split_fd = -1;
	char why[WHY_SIZE];
	int e;

	if (!are_layouts_few(a, s))
		return;
	e = write_split(r, &split_fd);
	if (e < 0) {
		sync_fail(a, s, "the split cannot be written down: %s", strerror(-e));
		return;
	}
	r->planner = (struct work){.on_message = reshard_on_planner_message,
				   .on_end = reshard_on_planner_end};
	if (work_start(a, &r->planner, JOB_PLANNER, NULL, why) < 0) {
		sync_fail(a, s, "%s", why);
		return;
	}
	sync_set_phase(a, s, PHASE_COMPOSE, PLAN_TIME);
	s->whole_ns = s->deadline_ns + SECOND; /* it has one of its own */
	for (unsigned i = 0; i < r->n_sources; i++)
		work_tell(a, &r->planner, json_pack("{s:s}", "op", "layout"),
			  &r->sources[i].layout_fd, 1);
	work_tell(a, &r->planner,
		  json_pack("{s:s, s:o, s:o, s:I}", "op", "plan", "sources",
			    reshard_places(s, r->sources, r->n_sources), "targets",
			    reshard_places(s, r->results, r->n_results), "n_nodes",
			    (json_int_t)s->n_members),
		  &split_fd, 1);
}

static void reshard_move(struct agent *a, struct sync *s)
{
	if (reshard_of(s)->plan_fd < 0)
		reshard_start_planner(a, s);
	else
		collective_move(a, s);
}

/* The layout of a result. */
static int take_result(struct reshard *r, const json_t *message, int *fds, unsigned n_fds)
{
	struct shard *x = &r->results[r->n_planned];
	uint64_t rank;

	if (n_fds != 1 || r->n_planned == r->n_results ||
	    field_number(message, "rank", r->n_results - 1, &rank) < 0 || rank != r->n_planned ||
	    field_number(message, "n_bytes", MOVES_BYTES_MAX, &x->n_bytes) < 0 ||
	    field_number(message, "size", SHARD_LAYOUT_MAX, &x->layout_bytes) < 0 ||
	    field_bytes(message, "hash", x->layout, 32) < 0)
		return -EBADMSG;
	x->layout_fd = take_fd(fds[0]);
	r->n_planned++;
	return 0;
}

static int take_plan(struct collective *c, const json_t *message, int *fds, unsigned n_fds)
{
	struct reshard *r = c->reshard;
	char why[MOVES_WHY_SIZE];
	uint64_t held;
	void *text;
	int e;

	if (n_fds != 1 || r->n_planned != r->n_results ||
	    field_number(message, "size", MOVES_SIZE_MAX, &r->plan_bytes) < 0 || !r->plan_bytes ||
	    field_bytes(message, "hash", r->plan, 32) < 0)
		return -EBADMSG;
	/* Reading beyond its end would kill this process. */
	if (!fd_is_sealed(fds[0]) || fd_size(fds[0], &held) < 0 || held != r->plan_bytes)
		return -EBADMSG;
	text = mmap(NULL, r->plan_bytes, PROT_READ, MAP_SHARED, fds[0], 0);
	if (text == MAP_FAILED)
		return -errno;
	e = moves_decode_links(text, r->plan_bytes, &c->flows.plan, why);
	(void)munmap(text, r->plan_bytes);
	if (e == 0 && c->flows.plan.n_nodes != c->sync.n_members)
		e = -EBADMSG;
	if (e < 0)
		return e;
	r->digests = calloc(c->flows.plan.n_links + 1, sizeof(*r->digests));
	if (!r->digests)
		return -ENOMEM;
	c->flows.n = c->sync.n_members;
	r->plan_fd = take_fd(fds[0]);
	return 0;
}

/* Deadlines are of the largest; what comes about is all of it. */
static void take_sizes(struct collective *c)
{
	const struct moves *plan = &c->flows.plan;

	c->sync.changed = c->op->changed(&c->flows);
	for (unsigned i = 0; i < plan->n_nodes; i++) {
		const uint64_t *size = plan->nodes[i].size;
		uint64_t most = size[MOVES_FROM] > size[MOVES_TO] ? size[MOVES_FROM]
								  : size[MOVES_TO];

		c->size += size[MOVES_TO];
		if (most > c->sync.document->n_bytes)
			c->sync.document->n_bytes = most;
	}
}

static void tell_plan(struct agent *a, struct sync *s, struct member *m)
{
	const struct reshard *r = reshard_of(s);
	const struct shard *x = result_of(s, m);
	unsigned peer = m->is_us ? AGENT_SELF : m->peer;
	char plan[65], layout[65];
	json_t *fields = json_pack("{s:s, s:I}", "plan", field_hex(r->plan, 32, plan), "plan_bytes",
				   (json_int_t)r->plan_bytes);
	int e;

	if (x)
		json_object_update_new(
			fields, json_pack("{s:I, s:s, s:I}", "n_bytes", (json_int_t)x->n_bytes,
					  "layout", field_hex(x->layout, 32, layout),
					  "layout_bytes", (json_int_t)x->layout_bytes));
	member_set_state(a, s, m, MEMBER_ASKED);
	e = member_tell(a, s, m, "plan", fields);
	if (e == 0)
		e = agent_send_blob(a, peer, r->plan, r->plan_fd, r->plan_bytes);
	if (e == 0 && x)
		e = agent_send_blob(a, peer, x->layout, x->layout_fd, x->layout_bytes);
	if (e < 0)
		member_fail(a, s, m, "could not be sent the plan: %s,", strerror(-e));
}

/* To all of them, one after the other. */
static uint64_t bytes_to_send(const struct sync *s)
{
	const struct reshard *r = reshard_of(s);
	uint64_t n = r->plan_bytes * s->n_members;

	for (unsigned i = 0; i < r->n_results; i++)
		n += r->results[i].layout_bytes;
	return n;
}

static void on_planned(struct agent *a, struct sync *s)
{
	work_end(a, &reshard_of(s)->planner);
	take_sizes(collective_of(s));
	sync_set_phase(a, s, PHASE_PREPARE,
		       sync_time_to_prepare(a, s) + time_limit_to_send(bytes_to_send(s)));
	s->whole_ns = s->deadline_ns + s->ops->time_to_move(a, s);
	for (unsigned i = 0; i < s->n_members && s->phase == PHASE_PREPARE; i++)
		tell_plan(a, s, &s->members[i]);
}

static struct sync *sync_of_planner(struct agent *a, const struct work *w)
{
	struct sync *s;

	list_for_each(s, &a->syncs, link)
		if (s->kind == KIND_RESHARD && &reshard_of(s)->planner == w)
			return s;
	return NULL;
}

static void reshard_on_planner_message(struct agent *a, struct work *w, const json_t *message,
				       int *fds, unsigned n_fds)
{
	struct sync *s = sync_of_planner(a, w);
	const char *op = "", *why = "the planner did not say why it failed";
	int e = -EBADMSG;

	if (!s || s->phase != PHASE_COMPOSE)
		return;
	(void)field_string(message, "op", 32, &op);
	if (strcmp(op, "failed") == 0) {
		(void)field_string(message, "why", WHY_SIZE - 1, &why);
		sync_fail(a, s, "%s", why);
		return;
	}
	if (strcmp(op, "target") == 0)
		e = take_result(reshard_of(s), message, fds, n_fds);
	else if (strcmp(op, "planned") == 0)
		e = take_plan(collective_of(s), message, fds, n_fds);
	if (e < 0)
		sync_fail(a, s, "the planner's answer cannot be used: %s", strerror(-e));
	else if (reshard_of(s)->plan_fd >= 0)
		on_planned(a, s);
}

static void reshard_on_planner_end(struct agent *a, struct work *w, const char *how)
{
	struct sync *s = sync_of_planner(a, w);

	if (s && s->phase == PHASE_COMPOSE)
		sync_fail(a, s, "the planner of %s ended (%s)", a->config->name, how);
}

/* --- Messages of nodes -------------------------------------------------------------------------- */

/* Takes the size of a source shard; its layout comes as a blob. */
static int take_given(struct shard *x, const json_t *message)
{
	return field_number(message, "n_bytes", MOVES_BYTES_MAX, &x->n_bytes) < 0 ||
			       field_number(message, "layout_bytes", SHARD_LAYOUT_MAX,
					    &x->layout_bytes) < 0 ||
			       !x->n_bytes || !x->layout_bytes ||
			       field_bytes(message, "layout", x->layout, 32) < 0
		       ? -EBADMSG
		       : 0;
}

static void reshard_on_ready(struct agent *a, struct sync *s, struct member *m,
			     const json_t *message)
{
	struct shard *x = reshard_of(s)->plan_fd < 0 ? source_of(s, m) : NULL;

	if (!collective_take_address(a, s, m, message))
		return;
	if (x && (x->n_bytes || take_given(x, message) < 0))
		member_is_wrong(a, s, m, "ready");
	else if (!x)
		member_set_state(a, s, m, MEMBER_READY);
}

/* The one of this peer that is to come. NULL: none is. */
static struct shard *awaited(const struct agent *a, unsigned peer, const uint8_t hash[32],
			     struct sync **ret)
{
	struct sync *s;

	list_for_each(s, &a->syncs, link) {
		if (s->kind != KIND_RESHARD || s->phase != PHASE_PREPARE)
			continue;
		for (unsigned i = 0; i < reshard_of(s)->n_sources; i++) {
			struct shard *x = &reshard_of(s)->sources[i];
			const struct member *m = x->member;

			if (m->state == MEMBER_ASKED && x->n_bytes && x->layout_fd < 0 &&
			    (m->is_us ? AGENT_SELF : m->peer) == peer &&
			    memcmp(x->layout, hash, 32) == 0) {
				*ret = s;
				return x;
			}
		}
	}
	return NULL;
}

uint64_t reshard_blob_limit(const struct agent *a, unsigned peer, const uint8_t hash[32])
{
	struct sync *s;
	const struct shard *x = awaited(a, peer, hash, &s);

	return x ? x->layout_bytes : 0;
}

void reshard_on_blob(struct agent *a, unsigned peer, const uint8_t hash[32], int fd, uint64_t size)
{
	struct sync *s;
	struct shard *x = awaited(a, peer, hash, &s);

	if (!x || size != x->layout_bytes)
		return;
	x->layout_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (x->layout_fd < 0)
		sync_fail(a, s, "the layout of %s cannot be kept: %s", x->member->name,
			  strerror(errno));
	else
		member_set_state(a, s, x->member, MEMBER_READY);
	sync_step(a, s);
}

/*
 * Reads the bytes that a node sent to each other one, or received from it: all that the plan says,
 * and nothing else.
 */
static int take_digests(const struct sync *s, const struct member *m, enum moves_side side,
			const json_t *message)
{
	const struct moves *plan = &collective_of(s)->flows.plan;
	struct reshard *r = reshard_of(s);
	size_t n = 0, i;
	json_t *rows, *row;

	if (field_array(message, side == MOVES_FROM ? "gave" : "took", s->n_members, &rows) < 0)
		return -EBADMSG;
	json_array_foreach(rows, i, row)
	{
		const char *name;
		const struct member *other = NULL;
		const struct moves_link *l = NULL;
		uint64_t n_bytes;

		if (field_string(row, "node", NODE_MAX, &name) == 0)
			other = sync_find_member((struct sync *)s, name);
		if (other)
			l = side == MOVES_FROM
				    ? moves_link(plan, place_of(s, m), place_of(s, other))
				    : moves_link(plan, place_of(s, other), place_of(s, m));
		if (!l || field_number(row, "bytes", MOVES_BYTES_MAX, &n_bytes) < 0 ||
		    n_bytes != l->n_bytes ||
		    field_bytes(row, "root", r->digests[l - plan->links].root[side], 32) < 0)
			return -EBADMSG;
		r->digests[l - plan->links].is_told[side] = true;
	}
	for (i = 0; i < plan->n_links; i++)
		n += (side == MOVES_FROM ? plan->links[i].from : plan->links[i].to) ==
		     place_of(s, m);
	return n == json_array_size(rows) ? 0 : -EBADMSG;
}

static void reshard_on_done(struct agent *a, struct sync *s, struct member *m, const json_t *message)
{
	if (m->state == MEMBER_MOVING && (take_digests(s, m, MOVES_FROM, message) < 0 ||
					  take_digests(s, m, MOVES_TO, message) < 0))
		member_is_wrong(a, s, m, "done");
	else
		collective_epoch_on_done(a, s, m, message);
}

/* Compares received bytes with sent ones, link by link; a node that has other ones is lost. */
static void reshard_compare(struct agent *a, struct sync *s)
{
	const struct moves *plan = &collective_of(s)->flows.plan;

	for (size_t i = 0; i < plan->n_links && s->phase == PHASE_BYTES; i++) {
		const struct moves_link *l = &plan->links[i];
		const struct digests *d = &reshard_of(s)->digests[i];

		if (!d->is_told[MOVES_FROM] || !d->is_told[MOVES_TO] ||
		    memcmp(d->root[MOVES_FROM], d->root[MOVES_TO], 32) != 0)
			member_fail(a, s, &s->members[l->to],
				    "has other bytes from %s than that one says to have given,",
				    s->members[l->from].name);
	}
}

static void reshard_step(struct agent *a, struct sync *s)
{
	if (s->phase == PHASE_BYTES && !sync_count(s, MEMBER_MOVING))
		reshard_compare(a, s);
	if (s->phase != PHASE_ENDED)
		collective_step(a, s);
}

/* A node that only sent has nothing to verify. */
static void reshard_on_verified(struct agent *a, struct sync *s, struct member *m,
				const json_t *message)
{
	if (m->state != MEMBER_VERIFYING ||
	    (result_of(s, m) && field_bytes(message, "root", m->root, 32) < 0))
		member_is_wrong(a, s, m, "verified");
	else
		member_set_state(a, s, m, MEMBER_VERIFIED);
}

/* --- The end ------------------------------------------------------------------------------------ */

/* Nothing is the group's by it: there is no record of it that others could be told of. */
static bool reshard_decide(struct agent *a, struct sync *s)
{
	(void)a;
	s->decided = true;
	return true;
}

static json_t *reshard_commit_fields(const struct sync *s, const struct member *m)
{
	char root[65];

	return result_of(s, m) ? json_pack("{s:s}", "root", field_hex(m->root, 32, root))
			       : json_object();
}

/* A target that missed it has nobody to fetch it from. */
static void reshard_end(struct agent *a, struct sync *s, bool committed)
{
	char *why;

	for (unsigned i = 0; i < s->n_members && committed; i++) {
		const struct member *m = &s->members[i];

		if (m->state == MEMBER_COMMITTED || !result_of(s, m))
			continue;
		committed = false;
		if (asprintf(&why,
			     "sync %s: %s was not committed everywhere: %s; the other nodes serve "
			     "theirs, so ask for it again",
			     s->id, s->replica->buffer, m->why ? m->why : m->name) < 0)
			break;
		free(s->why);
		s->why = why;
	}
	work_end(a, &reshard_of(s)->planner);
	sync_end(a, s, committed);
}

static uint64_t reshard_time_to_move(const struct agent *a, const struct sync *s)
{
	return time_limit_to_move(a, collective_op_most(&collective_of(s)->flows.plan), s->max_rate);
}

static bool reshard_describe_phase(const struct agent *a, const struct sync *s, char *ret,
				   size_t size)
{
	(void)a;
	if (s->phase == PHASE_ATTACH)
		snprintf(ret, size, "before it began");
	else if (s->phase == PHASE_COMPOSE)
		snprintf(ret, size, "while it was planned");
	else
		return false;
	return true;
}

static void reshard_describe_kept(const struct sync *s, char *ret, size_t size)
{
	(void)s;
	snprintf(ret, size, "every node still serves what it had");
}

static void reshard_begin(struct agent *a, struct sync *s)
{
	member_set_state(a, s, s->us, MEMBER_ASKED);
	member_tell(a, s, s->us, s->ops->ask, reshard_ask_fields(a, s));
	sync_prepare(a, s);
}

static void reshard_on_timer(struct agent *a, struct sync *s, uint64_t now)
{
	if (s->phase == PHASE_ATTACH)
		reshard_begin(a, s);
	else if (s->phase == PHASE_COMPOSE)
		sync_fail(a, s, "the planner took longer than %ju s",
			  (uintmax_t)(PLAN_TIME / SECOND));
	else
		collective_on_timer(a, s, now);
}

static void reshard_free(struct agent *a, struct sync *s)
{
	struct reshard *r = reshard_of(s);

	work_end(a, &r->planner);
	for (unsigned i = 0; i < r->n_sources; i++)
		(void)fd_close(r->sources[i].layout_fd);
	for (unsigned i = 0; i < r->n_results; i++)
		(void)fd_close(r->results[i].layout_fd);
	(void)fd_close(r->plan_fd);
	json_decref(r->split);
	free(r->digests);
	free(r);
	collective_free(a, s);
}

static const struct sync_ops RESHARD = {
	.ask = "join",
	.ask_fields = reshard_ask_fields,
	.ready = "while the others were waited for",
	.messages = {{"begun", false, collective_on_begun},
		     {"ready", false, reshard_on_ready},
		     {"refuse", false, member_on_refuse},
		     {"opened", true, collective_epoch_on_opened},
		     {"progress", true, collective_epoch_on_progress},
		     {"done", true, reshard_on_done},
		     {"broken", true, collective_epoch_on_broken},
		     {"stopped", true, collective_epoch_on_stopped},
		     {"verified", false, reshard_on_verified},
		     {NULL}},
	.time_to_move = reshard_time_to_move,
	.move = reshard_move,
	.step = reshard_step,
	.on_timer = reshard_on_timer,
	.on_lost = collective_on_lost,
	.decide = reshard_decide,
	.commit_fields = reshard_commit_fields,
	.end = reshard_end,
	.free = reshard_free,
	.is_moved = collective_is_moved,
	.progress = collective_progress,
	.describe_bytes = collective_describe_bytes,
	.describe_phase = reshard_describe_phase,
	.describe_kept = reshard_describe_kept,
};

/* --- Beginning ---------------------------------------------------------------------------------- */

/* A member of the group, which becomes one of the sync if it is none. NULL with a sentence. */
static struct member *take_member(struct agent *a, struct sync *s, const char *name,
				  char why[WHY_SIZE])
{
	const struct group *g = s->group;
	struct member *m = sync_find_member(s, name);

	for (unsigned i = 0; !m && i < g->n_members; i++)
		if (strcmp(g->members[i], name) == 0) {
			collective_add_member(a, s, g->members[i]);
			m = &s->members[s->n_members - 1];
		}
	if (!m)
		snprintf(why, WHY_SIZE, "%s is no member of the group '%s'", name, g->name);
	return m;
}

static int add_source(struct agent *a, struct sync *s, const json_t *row, char why[WHY_SIZE])
{
	struct reshard *r = reshard_of(s);
	struct shard x = {.layout_fd = -1};
	const char *node, *buffer;

	if (field_string(row, "node", NODE_MAX, &node) < 0 ||
	    field_string(row, "buffer", BUFFER_MAX, &buffer) < 0 ||
	    field_number_or(row, "version", INT64_MAX, 0, &x.version) < 0) {
		snprintf(why, WHY_SIZE, "a source has node, buffer and version");
		return -EBADMSG;
	}
	if (!group_has_buffer(s->group, buffer)) {
		snprintf(why, WHY_SIZE, "the group '%s' has no buffer '%s'", s->group->name, buffer);
		return -EPERM;
	}
	snprintf(x.buffer, sizeof(x.buffer), "%s", buffer);
	x.member = take_member(a, s, node, why);
	if (!x.member)
		return -ENOENT;
	if (find_shard(r->sources, r->n_sources, x.member)) {
		snprintf(why, WHY_SIZE, "%s is there twice; a node has one shard", node);
		return -EBADMSG;
	}
	r->sources[r->n_sources++] = x;
	return 0;
}

static int add_target(struct agent *a, struct sync *s, const json_t *row, char why[WHY_SIZE])
{
	struct reshard *r = reshard_of(s);
	const char *node = json_is_string(row) ? json_string_value(row) : "";
	struct member *m = take_member(a, s, node, why);

	if (!m)
		return -ENOENT;
	if (find_shard(r->results, r->n_results, m)) {
		snprintf(why, WHY_SIZE, "%s is there twice; a node gets one shard", node);
		return -EBADMSG;
	}
	r->results[r->n_results++] = (struct shard){.member = m, .layout_fd = -1};
	return 0;
}

static int add_shards(struct agent *a, struct sync *s, const json_t *sources, const json_t *targets,
		      char why[WHY_SIZE])
{
	json_t *row;
	size_t i;
	int e = 0;

	json_array_foreach(sources, i, row) if (e == 0) e = add_source(a, s, row, why);
	json_array_foreach(targets, i, row) if (e == 0) e = add_target(a, s, row, why);
	if (e < 0)
		return e;
	if (s->n_members > COLLECTIVE_OP_NODES_MAX) {
		snprintf(why, WHY_SIZE, "%u nodes are more than the %d that can take part",
			 s->n_members, COLLECTIVE_OP_NODES_MAX);
		return -EINVAL;
	}
	if (s->us)
		return 0;
	snprintf(why, WHY_SIZE,
		 "%s has none of the shards and gets none; ask for a reshard on a node that takes "
		 "part in it",
		 a->config->name);
	return -EPERM;
}

/* Its version_id stays 0, 0: it has no place in the order of versions. */
int reshard_new(struct agent *a, const struct collective_op *op, struct replica *rep,
		const struct group *g, const json_t *request, struct sync **ret, char why[WHY_SIZE])
{
	json_t *sources, *targets, *split = json_object_get(request, "split");
	struct collective *c;
	struct sync *s;
	int e;

	if (field_array(request, "sources", COLLECTIVE_OP_NODES_MAX, &sources) < 0 ||
	    field_array(request, "targets", COLLECTIVE_OP_NODES_MAX, &targets) < 0 ||
	    !json_array_size(sources) || !json_array_size(targets) || !json_is_object(split)) {
		snprintf(why, WHY_SIZE, "a reshard has 1 to %d sources and targets, and a split",
			 COLLECTIVE_OP_NODES_MAX);
		return -EBADMSG;
	}
	snprintf(why, WHY_SIZE, "out of memory");
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	s = &c->sync;
	c->op = op;
	c->reshard = calloc(1, sizeof(*c->reshard));
	if (!c->reshard) {
		free(c);
		return -ENOMEM;
	}
	c->reshard->plan_fd = -1;
	c->reshard->split = json_incref(split);
	e = sync_init(a, s, &RESHARD, KIND_RESHARD, rep, g,
		      (unsigned)(json_array_size(sources) + json_array_size(targets)));
	if (e == 0)
		e = add_shards(a, s, sources, targets, why);
	if (e < 0) {
		reshard_free(a, s);
		return e;
	}
	s->policy = POLICY_ALL;
	collective_arm(a, s);
	*ret = s;
	return 0;
}
