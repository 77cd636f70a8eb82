/*
 * A member trusts its coordinator only for the nodes to connect to. Until there is a decision that it can check, the sink
 * only lends memory: after any failure, ending its process frees all of it and leaves the old version as it was. From
 * the decision on, the commit log has the version, and the coordinator is not needed any more.
 *
 * A message at the wrong moment ends the connection, as only a broken or hostile coordinator sends it. A message of
 * another sync or of an earlier epoch is dropped, as it may have been in transit for long.
 */
#include "server/sync/participant/participant.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/base/utf8.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/state/agent_hooks.h"
#include "server/sync/state/retry.h"
#include "server/sync/state/time_limit.h"
#include "server/sync/state/trace_span.h"

/* Before weightd admits a version, its blobs may take max-bytes / BLOBS_PART. */
#define BLOBS_PART 8
#define ABORT_WHY_MAX (8 * WHY_SIZE) /* all that a coordinator says of why a sync came to nothing */
#define PROGRESS_NS (SECOND / 4)
#define RECORD_NS (2 * SECOND) /* between attempts to write the commit log of what is decided */
#define RECORD_PATIENCE_NS (600 * SECOND)

static const char *const PHASES[] = {
	[PARTICIPANT_QUEUED] = "prepare",    [PARTICIPANT_WANT] = "prepare",
	[PARTICIPANT_CREATE] = "prepare",    [PARTICIPANT_READY] = "ready",
	[PARTICIPANT_OPENING] = "open",      [PARTICIPANT_OPEN] = "open",
	[PARTICIPANT_MOVING] = "bytes",      [PARTICIPANT_VERIFYING] = "verify",
	[PARTICIPANT_VERIFIED] = "verified", [PARTICIPANT_RECORDING] = "commit",
	[PARTICIPANT_PUBLISHING] = "commit",
};

const char *participant_phase(const struct participant *p)
{
	if (p->state == PARTICIPANT_ENDED)
		return p->state_name;
	return p->state == PARTICIPANT_READY && p->is_moved ? "moved" : PHASES[p->state];
}

const char *participant_ended_in(const struct participant *p)
{
	return PHASES[p->ended_in];
}

uint64_t participant_blobs_max(const struct agent *a)
{
	return a->config->max_bytes ? a->config->max_bytes / BLOBS_PART : UINT64_MAX / 4;
}

struct participant *participant_find_of_buffer(struct agent *a, const char *buffer)
{
	struct participant *p;

	list_for_each(p, &a->participants, link)
		if (p->state != PARTICIPANT_ENDED && strcmp(p->replica->buffer, buffer) == 0)
			return p;
	return NULL;
}

bool participant_has_turn(const struct agent *a, const struct participant *p, unsigned max)
{
	unsigned n = 0, n_of_same = 0;
	const struct participant *x;

	list_for_each(x, &a->participants, link) {
		if (!participant_has_begun(x) || x->ops != p->ops ||
		    participant_is_repair(x) != participant_is_repair(p))
			continue;
		n++;
		n_of_same += x->coordinator == p->coordinator;
	}
	return n < max && n_of_same < max - n;
}

int participant_read_sync(struct agent *a, unsigned peer, const json_t *message, const char **ret)
{
	uint8_t id[(SYNC_ID_SIZE - 1) / 2];
	const struct participant *p;
	const char *sync;

	if (field_bytes(message, "sync", id, sizeof(id)) < 0 ||
	    field_string(message, "sync", SYNC_ID_SIZE - 1, &sync) < 0)
		return -EBADMSG;
	list_for_each(p, &a->participants, link)
		if (p->state != PARTICIPANT_ENDED && strcmp(p->sync, sync) == 0)
			return -EBADMSG;
	/* This node may contribute to a sync that it coordinates. */
	if (peer != AGENT_SELF && a->hooks->coordinates(a, sync))
		return -EBADMSG;
	*ret = sync;
	return 0;
}

int participant_tell(struct agent *a, const struct participant *p, const char *type, json_t *fields)
{
	if (!fields)
		fields = json_object();
	json_object_set_new(fields, "type", json_string(type));
	json_object_set_new(fields, "sync", json_string(p->sync));
	return agent_send(a, p->coordinator, fields);
}

void participant_set_state(struct agent *a, struct participant *p, enum participant_state state,
			   uint64_t wait_ns)
{
	p->state = state;
	p->deadline_ns = wait_ns ? agent_now(a) + wait_ns : 0;
	a->hooks->on_participant(a, p);
}

/* No other node could send the version of a push: that may take until the deadline of the whole. */
static bool waits_for_repairer(const struct participant *p)
{
	return participant_is_repair(p) &&
	       (p->state == PARTICIPANT_READY || p->state == PARTICIPANT_OPEN ||
		p->state == PARTICIPANT_VERIFIED);
}

bool participant_is_under_way(const struct participant *p)
{
	return (p->state == PARTICIPANT_OPENING || p->state == PARTICIPANT_OPEN ||
		p->state == PARTICIPANT_MOVING) &&
	       !p->is_broken;
}

/* More came, so soon behind what was told that it was kept back. */
static bool has_more_to_tell(const struct participant *p)
{
	return p->state == PARTICIPANT_MOVING && !p->is_broken && p->done != p->reported;
}

static uint64_t next_deadline(const struct participant *p)
{
	uint64_t next = waits_for_repairer(p) ? p->idle_ns : p->deadline_ns;

	if (p->state == PARTICIPANT_ENDED)
		return 0;
	if (p->state == PARTICIPANT_PUBLISHING)
		return p->deadline_ns; /* committed: nothing as a whole can take that back */
	return next && next < p->whole_ns ? next : p->whole_ns;
}

uint64_t participant_deadline(const struct participant *p)
{
	uint64_t next = next_deadline(p), tell = p->reported_ns + PROGRESS_NS;

	return has_more_to_tell(p) && tell < next ? tell : next;
}

/* --- The end ------------------------------------------------------------------------------------ */

/* "while bytes moved (a -> b, 312 of 1024 MiB)" */
static void participant_describe(const struct agent *a, const struct participant *p, char *ret,
				 size_t size)
{
	static const char *const WORDS[] = {
		[PARTICIPANT_QUEUED] = "while it waited for its turn",
		[PARTICIPANT_CREATE] = "while it made room",
		[PARTICIPANT_OPENING] = "while links were opened",
		[PARTICIPANT_OPEN] = "while links were opened",
		[PARTICIPANT_MOVING] = "while bytes moved",
		[PARTICIPANT_VERIFYING] = "while it verified",
		[PARTICIPANT_VERIFIED] = "after it had verified",
		[PARTICIPANT_RECORDING] = "while it waited for room on its disk",
		[PARTICIPANT_PUBLISHING] = "while it published",
	};
	const char *words = p->state == PARTICIPANT_WANT    ? p->ops->want
			    : p->state == PARTICIPANT_READY ? p->ops->ready
							    : WORDS[p->state];

	if (p->state < PARTICIPANT_OPENING || p->state > PARTICIPANT_MOVING || !p->from[0])
		snprintf(ret, size, "%s", words);
	else
		snprintf(ret, size, "%s (%s -> %s, %ju of %ju MiB)", words, p->from, a->config->name,
			 (uintmax_t)(p->done >> 20), (uintmax_t)(p->expected >> 20));
}

static void describe_kept(const struct agent *a, const struct participant *p, char *ret, size_t size)
{
	struct version_id held = replica_held(p->replica);

	if (p->state == PARTICIPANT_PUBLISHING && p->is_own)
		snprintf(ret, size, "ask for it again");
	else if (p->state == PARTICIPANT_PUBLISHING)
		snprintf(ret, size, "%s will fetch it again", a->config->name);
	else if (held.number)
		snprintf(ret, size, "%s still serves %s %ju.%ju", a->config->name,
			 p->replica->buffer, (uintmax_t)held.term, (uintmax_t)held.number);
	else
		snprintf(ret, size, "%s serves what it had", a->config->name);
}

/* A sentence of the coordinator, which has more information, is complete and stays as it is. */
static char *participant_explain(const struct agent *a, const struct participant *p, const char *why)
{
	char where[WHY_SIZE / 2] = "", kept[WHY_SIZE / 2 + BUFFER_MAX], version[48] = "", *sentence;

	if (strncmp(why, "sync ", 5) == 0)
		return strdup(why);
	if (!strstr(why, " while ") && !strstr(why, " after "))
		participant_describe(a, p, where, sizeof(where));
	describe_kept(a, p, kept, sizeof(kept));
	if (p->version_id.number)
		snprintf(version, sizeof(version), " %ju.%ju", (uintmax_t)p->version_id.term,
			 (uintmax_t)p->version_id.number);
	return asprintf(&sentence, "sync %s: %s%s was not %s on %s: %s%s%s; %s", p->sync,
			p->replica->buffer, version,
			p->state == PARTICIPANT_PUBLISHING ? "published" : "committed",
			a->config->name, why, where[0] ? ", " : "", where, kept) < 0
		       ? NULL
		       : sentence;
}

void participant_end(struct agent *a, struct participant *p, const char *state_name, const char *why)
{
	if (why && !p->why)
		p->why = participant_explain(a, p, why);
	if (p->state == PARTICIPANT_MOVING)
		byte_count_add_broken(&p->byte_count); /* cut short */
	work_end(a, &p->engine);
	work_end(a, &p->sink);
	p->ended_in = p->state;
	p->state = PARTICIPANT_ENDED;
	p->state_name = state_name;
	a->hooks->on_participant_end(a, p);
	a->look_again = true;
}

void participant_drop(struct agent *a, struct participant *p, const char *format, ...)
{
	char why[WHY_SIZE];
	va_list args;

	if (p->state == PARTICIPANT_PUBLISHING || p->state == PARTICIPANT_ENDED)
		return;
	va_start(args, format);
	utf8_vformat(why, sizeof(why), format, args);
	va_end(args);
	p->ops->end(a, p, "failed", why);
}

void participant_give_way(struct agent *a, struct participant *p, unsigned peer)
{
	participant_tell(a, p, "aborted", NULL);
	participant_drop(a, p, "%s began another sync", agent_peer_name(a, peer));
}

void participant_give_up(struct agent *a, struct participant *p, const char *code, const char *why)
{
	participant_tell(a, p, p->state < PARTICIPANT_READY ? "refuse" : "failed",
			 json_pack("{s:s, s:s}", "code", code, "why", why));
	participant_drop(a, p, "%s", why);
}

void participant_out_of_order(struct agent *a, struct participant *p, const char *type)
{
	char why[WHY_SIZE];

	agent_hang_up(a, p->coordinator, "%s of sync %s came out of order, or of another form",
		      type, p->sync);
	snprintf(why, sizeof(why), "%s sent %s out of order", agent_peer_name(a, p->coordinator),
		 type);
	participant_give_up(a, p, "order", why);
}

void participant_refuse(struct agent *a, unsigned peer, const char *sync, const char *code,
			const struct replica *rep, const char *why)
{
	json_t *message = json_pack("{s:s, s:s, s:s, s:s}", "type", "refuse", "sync", sync, "code",
				    code, "why", why);

	if (rep && rep->document && peer != AGENT_SELF)
		json_object_set_new(message, "heads", json_pack("[o]", replica_to_json(rep)));
	agent_send(a, peer, message);
}

void participant_init(struct agent *a, struct participant *p, unsigned coordinator,
		      const char *sync, struct replica *rep)
{
	snprintf(p->sync, sizeof(p->sync), "%s", sync);
	p->coordinator = coordinator;
	p->replica = rep;
	p->memory_fd = -1;
	p->changed = UINT64_MAX;
	p->open_ns = a->config->prepare_ns;
	p->stall_ns = 2 * a->config->stall_ns; /* it knows better what is wrong, and has to say it */
	p->started_ns = a->env->time_ns(a->userdata);
	p->whole_ns = agent_now(a) + 2 * time_limit_to_move(a, p->n_bytes, 0);
	list_append(&a->participants, &p->link);
}

void participant_deinit(struct agent *a, struct participant *p)
{
	work_end(a, &p->engine);
	work_end(a, &p->sink);
	(void)fd_close(p->memory_fd);
	document_free(p->decided);
	list_remove(&p->link);
	free(p->why);
}

/* --- The sink ----------------------------------------------------------------------------------- */

static void on_published(struct agent *a, struct participant *p, const json_t *message)
{
	if (p->state != PARTICIPANT_PUBLISHING) {
		participant_give_up(a, p, "failed", "the sink published what it was not asked to");
		return;
	}
	if (field_number(message, "version", INT64_MAX, &p->version) < 0)
		p->version = 0; /* that it was published is known all the same */
	participant_tell(a, p, "committed", json_pack("{s:I}", "version", (json_int_t)p->version));
	p->ops->end(a, p, "committed", NULL);
	if (p->is_own)
		return;
	p->ops->on_published(a, p);
	replica_set_serving(a, p->replica, p->version);
	if (p->coordinator == AGENT_SELF && a->hooks->coordinates(a, p->sync))
		return; /* its end tells all */
	if (p->coordinator == AGENT_SELF || participant_is_repair(p))
		replica_tell_all(a, p->replica);
	else
		replica_tell_few(a, p->replica, p->coordinator);
}

/* Once it publishes, the commit stands, by the commit log; the bytes will be fetched again. */
void participant_sink_failed(struct agent *a, struct participant *p, const char *code,
			     const char *why)
{
	if (p->state == PARTICIPANT_PUBLISHING) {
		participant_tell(a, p, "failed", json_pack("{s:s, s:s}", "code", code, "why", why));
		p->ops->end(a, p, "failed", why);
		if (!p->is_own)
			replica_set_lost(a, p->replica);
	} else {
		participant_give_up(a, p, code, why);
	}
}

static void participant_on_sink_message(struct agent *a, struct work *w, const json_t *message,
					int *fds, unsigned n_fds)
{
	struct participant *p = container_of(w, struct participant, sink);
	const char *op, *code = "failed", *why = "the sink did not say why it failed";

	if (p->state == PARTICIPANT_ENDED)
		return;
	if (field_string(message, "op", 32, &op) < 0)
		op = "";
	if (strcmp(op, "published") == 0) {
		on_published(a, p, message);
	} else if (!p->ops->on_sink(a, p, op, message, fds, n_fds)) {
		(void)field_string(message, "code", 32, &code);
		(void)field_string(message, "why", WHY_SIZE, &why);
		participant_sink_failed(a, p, code, why);
	}
}

static void participant_on_sink_end(struct agent *a, struct work *w, const char *how)
{
	struct participant *p = container_of(w, struct participant, sink);
	char why[WHY_SIZE];

	if (p->state == PARTICIPANT_ENDED)
		return;
	snprintf(why, sizeof(why), "the sink process of %s ended (%s)", a->config->name, how);
	participant_sink_failed(a, p, "failed", why);
}

void participant_create(struct agent *a, struct participant *p, json_t *message, const int *fds,
			unsigned n_fds)
{
	char why[WHY_SIZE];

	p->sink = (struct work){.on_message = participant_on_sink_message,
				.on_end = participant_on_sink_end};
	if (work_start(a, &p->sink, JOB_SINK, p->replica->buffer, why) < 0) {
		json_decref(message);
		participant_give_up(a, p, "failed", why);
		return;
	}
	participant_set_state(a, p, PARTICIPANT_CREATE, time_limit_for(a, p->n_bytes));
	work_tell(a, &p->sink, message, fds, n_fds);
}

static void participant_start_publish(struct agent *a, struct participant *p)
{
	/* Its old version, which others may have been told of, is not its newest any more. */
	participant_set_state(a, p, PARTICIPANT_PUBLISHING, time_limit_for(a, p->n_bytes));
	work_tell(a, &p->sink, json_pack("{s:s}", "op", "publish"), NULL, 0);
}

/* The coordinator does not wait for it, and nobody has to bring it again. */
static void record_later(struct agent *a, struct participant *p, const struct document *document,
			 const char *why)
{
	p->decided = document_copy(document);
	if (!p->decided) {
		participant_give_up(a, p, "record", why);
		return;
	}
	participant_tell(a, p, "failed", json_pack("{s:s, s:s}", "code", "record", "why", why));
	agent_log(a, "warning",
		  "sync %s: %s; %s %ju.%ju is here and verified, and served as soon as there is room",
		  p->sync, why, p->replica->buffer, (uintmax_t)p->version_id.term,
		  (uintmax_t)p->version_id.number);
	p->whole_ns = agent_now(a) + RECORD_PATIENCE_NS;
	participant_set_state(a, p, PARTICIPANT_RECORDING, RECORD_NS);
}

static void record_again(struct agent *a, struct participant *p, uint64_t now)
{
	char why[WHY_SIZE];

	if (a->env->may_save(a->userdata, why) == 0 &&
	    replica_commit(a, p->replica, p->decided, 0, REPLICA_BEHIND) == 0)
		participant_start_publish(a, p);
	else if (now >= p->whole_ns)
		participant_give_up(a, p, "record", "there was no room for the record for too long");
	else
		p->deadline_ns = now + RECORD_NS;
}

void participant_publish(struct agent *a, struct participant *p, const struct document *document)
{
	char why[WHY_SIZE];
	int r = 0;

	/* The fence first: the opening of replica.c says why. Our own decision wrote it already. */
	if (document && p->coordinator != AGENT_SELF)
		r = replica_commit(a, p->replica, document, 0, REPLICA_BEHIND);
	if (r == 0) {
		participant_start_publish(a, p);
		return;
	}
	snprintf(why, sizeof(why), "the record of %s could not be written: %s", a->config->name,
		 strerror(-r));
	record_later(a, p, document, why);
}

/* --- The engine --------------------------------------------------------------------------------- */

/* Digesting shows in no count: its coordinator has to know that it gets on with it. */
static bool is_to_tell(const struct agent *a, const struct participant *p, uint64_t since)
{
	if (p->done == p->reported)
		return !p->from[0] && since >= a->config->stall_ns;
	return since && (since >= PROGRESS_NS || p->done == p->expected);
}

static void tell_progress(struct agent *a, struct participant *p, uint64_t now)
{
	double seconds = (double)(now - p->reported_ns) / 1e9;

	p->rate = (uint64_t)((double)(p->done - p->reported) / seconds);
	p->reported = p->done;
	p->reported_ns = now;
	participant_tell(a, p, "progress",
			 json_pack("{s:I, s:I, s:I}", "epoch", (json_int_t)p->epoch, "done",
				   (json_int_t)p->done, "rate", (json_int_t)p->rate));
	a->hooks->on_participant(a, p);
}

static void on_progress(struct agent *a, struct participant *p, const json_t *message)
{
	uint64_t now = agent_now(a), done;

	if (p->state != PARTICIPANT_MOVING ||
	    field_number(message, "done", p->expected, &done) < 0 || done < p->done)
		return;
	/* An engine may still have to send or digest what it has: its `sent` is progress as well. */
	p->deadline_ns = now + p->stall_ns;
	p->done = done;
	if (is_to_tell(a, p, now - p->reported_ns))
		tell_progress(a, p, now);
}

static void participant_on_engine_message(struct agent *a, struct work *w, const json_t *message,
					  int *fds, unsigned n_fds)
{
	struct participant *p = container_of(w, struct participant, engine);
	const char *op;

	(void)fds, (void)n_fds;
	if (!participant_is_under_way(p))
		return;
	if (field_string(message, "op", 32, &op) < 0)
		op = "";
	if (strcmp(op, "opened") == 0)
		p->ops->on_opened(a, p, message);
	else if (strcmp(op, "progress") == 0)
		on_progress(a, p, message);
	else if (strcmp(op, "done") == 0)
		p->ops->on_done(a, p, message);
	else
		p->ops->on_broken(a, p, message);
}

static void participant_on_engine_end(struct agent *a, struct work *w, const char *how)
{
	struct participant *p = container_of(w, struct participant, engine);
	char why[WHY_SIZE];

	if (!participant_is_under_way(p))
		return;
	snprintf(why, sizeof(why), "the engine of %s ended (%s)", a->config->name, how);
	p->ops->on_engine_end(a, p, why);
}

void participant_take_epoch(struct participant *p, uint64_t epoch)
{
	p->epoch = epoch;
	p->done = p->reported = p->rate = p->expected = 0;
	p->is_broken = false;
}

int participant_start_engine(struct agent *a, struct participant *p, enum job_kind kind,
			     char why[WHY_SIZE])
{
	int r;

	p->engine = (struct work){.on_message = participant_on_engine_message,
				  .on_end = participant_on_engine_end};
	r = work_start(a, &p->engine, kind, p->replica->buffer, why);
	if (r < 0)
		return r;
	trace_span_begin(a, &p->engine, p->sync, p->version_id);
	participant_set_state(a, p, PARTICIPANT_OPENING, p->open_ns);
	return 0;
}

/* --- Messages of the coordinator ---------------------------------------------------------------- */

static bool is_plan_of_pull(const struct participant *p)
{
	return replica_is_pulled_from(p->replica, p->coordinator) && p->replica->pull.is_dry;
}

static void participant_on_abort(struct agent *a, struct participant *p, const json_t *message)
{
	bool is_planned;
	const char *why;

	if (p->state == PARTICIPANT_RECORDING || p->state == PARTICIPANT_PUBLISHING)
		return; /* it was decided */
	if (field_string(message, "why", ABORT_WHY_MAX, &why) < 0)
		why = "its coordinator gave no reason";
	participant_tell(a, p, "aborted", NULL);
	/* Nobody plans a repair, which would be asked again at once, unless a user does. */
	if ((!participant_is_repair(p) || is_plan_of_pull(p)) &&
	    field_bool_or(message, "planned", false, &is_planned) == 0 && is_planned)
		p->ops->end(a, p, "planned", NULL);
	else
		participant_drop(a, p, "%s", why);
}

static const struct participant_message ABORT = {"abort", false, participant_on_abort};

static const struct participant_message *find_message(const struct participant *p, const char *type)
{
	if (strcmp(type, ABORT.type) == 0)
		return &ABORT;
	for (const struct participant_message *x = p->ops->messages; x->type; x++)
		if (strcmp(x->type, type) == 0)
			return x;
	return NULL;
}

static struct participant *participant_find(struct agent *a, unsigned coordinator, const char *sync)
{
	struct participant *p;

	list_for_each(p, &a->participants, link)
		if (p->state != PARTICIPANT_ENDED && p->coordinator == coordinator &&
		    strcmp(p->sync, sync) == 0)
			return p;
	return NULL;
}

bool participant_on_message(struct agent *a, unsigned peer, const char *sync, const char *type,
			    const json_t *message)
{
	struct participant *p = participant_find(a, peer, sync);
	const struct participant_message *x = p ? find_message(p, type) : NULL;
	uint64_t epoch;

	if (!x)
		return false;
	if (x->of_epoch && field_number(message, "epoch", EPOCH_MAX, &epoch) < 0)
		participant_out_of_order(a, p, type);
	else if (!x->of_epoch || epoch == p->epoch)
		x->fn(a, p, message);
	return true;
}

void participant_on_peer_down(struct agent *a, struct participant *p, const char *why)
{
	if (p->state == PARTICIPANT_RECORDING)
		return;
	participant_drop(a, p, "its coordinator %s went away: %s",
			 agent_peer_name(a, p->coordinator), why);
}

void participant_on_timer(struct agent *a, struct participant *p, uint64_t now)
{
	char why[WHY_SIZE];

	if (p->state == PARTICIPANT_ENDED || now < participant_deadline(p))
		return;
	if (now < next_deadline(p)) {
		tell_progress(a, p, now);
	} else if (p->state == PARTICIPANT_RECORDING) {
		record_again(a, p, now);
	} else if (now >= p->whole_ns && p->state != PARTICIPANT_PUBLISHING) {
		participant_give_up(a, p, "deadline", "it took too long as a whole");
	} else if (waits_for_repairer(p)) {
		snprintf(why, sizeof(why), "%s brought nothing more for %ju s",
			 agent_peer_name(a, p->coordinator),
			 (uintmax_t)(retry_patience(a) / SECOND));
		participant_give_up(a, p, "deadline", why);
	} else if (participant_is_under_way(p)) {
		if (p->state == PARTICIPANT_OPENING)
			snprintf(why, sizeof(why), "the engine of %s did not open for %ju s",
				 a->config->name, (uintmax_t)(p->open_ns / SECOND));
		else
			snprintf(why, sizeof(why), "the engine of %s moved nothing for %ju s",
				 a->config->name, (uintmax_t)(p->stall_ns / SECOND));
		p->ops->on_stalled(a, p, why);
	} else if (p->state == PARTICIPANT_WANT && p->ops->wants_of_coordinator) {
		snprintf(why, sizeof(why), "%s did not send it in time",
			 agent_peer_name(a, p->coordinator));
		participant_give_up(a, p, "deadline", why);
	} else {
		snprintf(why, sizeof(why), "the local weightd of %s did not answer in time (%s)",
			 a->config->name, participant_phase(p));
		participant_sink_failed(a, p, "deadline", why);
	}
}
