/*
 * A member believes its coordinator nothing but where the bytes come from. What the version is, the publisher
 * signed; that it is newer, the record says; that the bytes are right, the sink's own digest; that it may be
 * read, the publisher's decision. Until that decision the sink only lends memory: whatever goes wrong, ending
 * its process gives all back and leaves the old version as it was.
 *
 * A message of the wrong moment ends the connection, as only a broken or hostile coordinator sends it; one of
 * another sync or of an epoch gone by is dropped, as it may have been under way for long.
 */
#include "server/sync/party.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "server/sync/admission.h"
#include "server/sync/base/fields.h"
#include "server/sync/group.h"
#include "server/sync/history.h"
#include "server/sync/leg.h"
#include "server/sync/repair.h"
#include "server/sync/transaction.h"

#define ABORT_WHY_MAX (8 * WHY_SIZE) /* all that a coordinator says of why a sync came to nothing */

/*
 * At a time: each has two processes and memory, and their blobs, two each, have to fit into the outbox of one
 * coordinator. A push does not wait for repairs.
 */
#define PUSHES_MAX 16
#define REPAIRS_MAX 8

static const char *const PHASES[] = {
	[PARTY_QUEUED] = "prepare",    [PARTY_WANT] = "prepare",     [PARTY_CREATE] = "prepare",
	[PARTY_READY] = "ready",       [PARTY_OPENING] = "open",     [PARTY_OPEN] = "open",
	[PARTY_MOVING] = "bytes",      [PARTY_VERIFYING] = "verify", [PARTY_VERIFIED] = "verified",
	[PARTY_PUBLISHING] = "commit",
};

const char *party_phase(const struct party *p)
{
	return p->state == PARTY_ENDED ? p->state_name : PHASES[p->state];
}

const char *party_ended_in(const struct party *p)
{
	return PHASES[p->ended_in];
}

struct party *party_find_of_buffer(struct agent *a, const char *buffer)
{
	struct party *p;

	list_for_each(p, &a->parties, link)
		if (p->state != PARTY_ENDED && strcmp(p->head->buffer, buffer) == 0)
			return p;
	return NULL;
}

int party_tell(struct agent *a, const struct party *p, const char *type, json_t *fields)
{
	if (!fields)
		fields = json_object();
	json_object_set_new(fields, "type", json_string(type));
	json_object_set_new(fields, "sync", json_string(p->sync));
	return agent_send(a, p->coordinator, fields);
}

void party_set_state(struct agent *a, struct party *p, enum party_state state, uint64_t wait_ns)
{
	p->state = state;
	p->deadline_ns = wait_ns ? agent_now(a) + wait_ns : 0;
	history_party_event(a, p);
}

/* "while bytes moved (a -> b, 312 of 1024 MiB)" */
static void describe(const struct agent *a, const struct party *p, char *ret, size_t size)
{
	static const char *const WORDS[] = {
		[PARTY_QUEUED] = "while it waited for its turn",
		[PARTY_WANT] = "while it waited for the layout",
		[PARTY_CREATE] = "while it made room",
		[PARTY_READY] = "while it waited for its bytes",
		[PARTY_OPENING] = "while links were opened",
		[PARTY_OPEN] = "while links were opened",
		[PARTY_MOVING] = "while bytes moved",
		[PARTY_VERIFYING] = "while it verified",
		[PARTY_VERIFIED] = "after it had verified",
		[PARTY_PUBLISHING] = "while it published",
	};

	if (p->state < PARTY_OPENING || p->state > PARTY_MOVING)
		snprintf(ret, size, "%s", WORDS[p->state]);
	else
		snprintf(ret, size, "%s (%s -> %s, %ju of %ju MiB)", WORDS[p->state], p->from,
			 a->config->name, (uintmax_t)(p->done >> 20),
			 (uintmax_t)(p->expected >> 20));
}

static void describe_kept(const struct agent *a, const struct party *p, char *ret, size_t size)
{
	struct pair held = head_held(p->head);

	if (p->state == PARTY_PUBLISHING)
		snprintf(ret, size, "%s will fetch it again", a->config->name);
	else if (held.number)
		snprintf(ret, size, "%s still serves %s@%ju", a->config->name, p->head->buffer,
			 (uintmax_t)held.number);
	else
		snprintf(ret, size, "%s serves what it had", a->config->name);
}

/* The coordinator, who knows more, says all of it by itself. */
static char *explain(const struct agent *a, const struct party *p, const char *why)
{
	char where[WHY_SIZE / 2] = "", kept[WHY_SIZE / 2 + BUFFER_MAX], *sentence;

	if (strncmp(why, "sync ", 5) == 0)
		return strdup(why);
	if (!strstr(why, " while "))
		describe(a, p, where, sizeof(where));
	describe_kept(a, p, kept, sizeof(kept));
	return asprintf(&sentence, "sync %s: %s@%ju was not %s on %s: %s%s%s; %s", p->sync,
			p->head->buffer, (uintmax_t)p->document->pair.number,
			p->state == PARTY_PUBLISHING ? "published" : "committed", a->config->name,
			why, where[0] ? ", " : "", where, kept) < 0
		       ? NULL
		       : sentence;
}

static void end(struct agent *a, struct party *p, const char *state_name, const char *why)
{
	if (why && !p->why)
		p->why = explain(a, p, why);
	work_end(a, &p->engine);
	work_end(a, &p->sink);
	p->ended_in = p->state;
	p->state = PARTY_ENDED;
	p->state_name = state_name;
	history_party_end(a, p);
	if (strcmp(state_name, "failed") == 0 && p->is_repair && p->ended_in != PARTY_QUEUED)
		repair_in_vain(a, p->head, p->coordinator);
	if (strcmp(state_name, "failed") == 0)
		repair_retry_later(a, p->head);
	a->look_again = true;
}

void party_drop(struct agent *a, struct party *p, const char *format, ...)
{
	char why[WHY_SIZE];
	va_list args;

	if (p->state == PARTY_PUBLISHING || p->state == PARTY_ENDED)
		return;
	va_start(args, format);
	vsnprintf(why, sizeof(why), format, args);
	va_end(args);
	end(a, p, "failed", why);
}

void party_give_way(struct agent *a, struct party *p, unsigned peer)
{
	party_tell(a, p, "aborted", NULL);
	party_drop(a, p, "%s began another sync", agent_peer_name(a, peer));
}

/* Drops it and tells the coordinator: before READY by a refusal, and later by `failed`. */
static void give_up(struct agent *a, struct party *p, const char *code, const char *why)
{
	bool before = p->state <= PARTY_CREATE;

	party_tell(a, p, before ? "refuse" : "failed",
		   json_pack("{s:s, s:s}", "code", code, "why", why));
	party_drop(a, p, "%s", why);
}

void party_out_of_order(struct agent *a, struct party *p, const char *type)
{
	agent_hang_up(a, p->coordinator, "%s of sync %s came out of order", type, p->sync);
	party_drop(a, p, "%s sent %s out of order", agent_peer_name(a, p->coordinator), type);
}

void party_free(struct agent *a, struct party *p)
{
	work_end(a, &p->engine);
	work_end(a, &p->sink);
	for (unsigned i = 0; i < N_BLOBS; i++)
		if (p->blob_fds[i] >= 0)
			close(p->blob_fds[i]);
	if (p->memory_fd >= 0)
		close(p->memory_fd);
	if (p->patch_fd >= 0)
		close(p->patch_fd);
	ranges_deinit(&p->missing);
	ranges_deinit(&p->patch_missing);
	ranges_deinit(&p->ranges);
	document_free(p->document);
	list_remove(&p->link);
	free(p->why);
	free(p);
}

/* A push has nobody else who could bring it: that may take as long as it may as a whole. */
static bool waits_for_repairer(const struct party *p)
{
	return p->is_repair &&
	       (p->state == PARTY_READY || p->state == PARTY_OPEN || p->state == PARTY_VERIFIED);
}

uint64_t party_deadline(const struct party *p)
{
	uint64_t next = waits_for_repairer(p) ? p->idle_ns : p->deadline_ns;

	if (p->state == PARTY_ENDED)
		return 0;
	if (p->state == PARTY_PUBLISHING)
		return p->deadline_ns; /* committed: nothing as a whole can take that back */
	return next && next < p->whole_ns ? next : p->whole_ns;
}

/* --- The sink ----------------------------------------------------------------------------------- */

static void on_created(struct agent *a, struct party *p, const json_t *message, int *fds,
		       unsigned n_fds)
{
	char base[65] = "";
	const char *why = NULL, *memory;

	if (p->state != PARTY_CREATE || n_fds != 1 ||
	    field_string(message, "memory", MEMORY_NAME_MAX, &memory) < 0 ||
	    strcmp(memory, "host") != 0 ||
	    ranges_from_json(json_object_get(message, "missing"), p->document->n_bytes,
			     &p->missing) < 0) {
		give_up(a, p, "failed", "the sink answered something else than was asked");
		return;
	}
	if (field_string(message, "why", WHY_SIZE, &why) == 0)
		agent_log(a, "debug", "sync %s: all of %s travels: %s", p->sync, p->head->buffer,
			  why);
	p->memory_fd = take_fd(fds[0]);
	p->changed = ranges_total(&p->missing);
	p->idle_ns = agent_now(a) + repair_patience(a);
	party_set_state(a, p, PARTY_READY, 0);
	if (json_is_true(json_object_get(message, "has_base")))
		field_hex(p->base, sizeof(p->base), base);
	party_tell(a, p, "ready",
		   json_pack("{s:I, s:o, s:o*, s:s*}", "n_missing", (json_int_t)p->changed,
			     "missing", ranges_to_json(&p->missing), "n_addresses",
			     a->config->n_data_addresses > 1
				     ? json_integer(a->config->n_data_addresses)
				     : NULL,
			     "base", base[0] ? base : NULL));
}

static void on_verified(struct agent *a, struct party *p, const json_t *message)
{
	uint8_t root[32];
	char hex[65];

	if (p->state != PARTY_VERIFYING || field_bytes(message, "root", root, 32) < 0 ||
	    memcmp(root, p->document->root, 32) != 0) {
		give_up(a, p, "root", "the sink verified another version");
		return;
	}
	ranges_deinit(&p->missing);
	ranges_init(&p->missing);
	/* No engine writes it any more, and of a staging it is the last that keeps the memory. */
	p->memory_fd = fd_close(p->memory_fd);
	p->idle_ns = agent_now(a) + repair_patience(a);
	party_set_state(a, p, PARTY_VERIFIED, 0);
	party_tell(a, p, "verified", json_pack("{s:s}", "root", field_hex(root, 32, hex)));
}

static void on_corrupt(struct agent *a, struct party *p, const json_t *message)
{
	struct ranges corrupt;

	ranges_init(&corrupt);
	if (p->state != PARTY_VERIFYING ||
	    ranges_from_json(json_object_get(message, "ranges"), p->document->n_bytes, &corrupt) < 0 ||
	    corrupt.n == 0) {
		ranges_deinit(&corrupt);
		give_up(a, p, "failed", "the sink answered something else than was asked");
		return;
	}
	ranges_deinit(&p->missing);
	p->missing = corrupt;
	a->metrics.corrupt_bytes += ranges_total(&corrupt);
	/* Of a push, its coordinator counts. */
	if (++p->n_corrupt >= CORRUPT_MAX && p->is_repair) {
		give_up(a, p, "root", "other bytes came than were signed, again and again");
		return;
	}
	p->idle_ns = agent_now(a) + repair_patience(a);
	party_set_state(a, p, PARTY_READY, 0);
	party_tell(a, p, "corrupt", json_pack("{s:o}", "ranges", ranges_to_json(&p->missing)));
}

static void on_published(struct agent *a, struct party *p, const json_t *message)
{
	uint64_t version;

	if (p->state != PARTY_PUBLISHING ||
	    field_number(message, "version", INT64_MAX, &version) < 0)
		version = 0; /* that it was published is known all the same */
	if (p->state != PARTY_PUBLISHING) {
		give_up(a, p, "failed", "the sink published what it was not asked to");
		return;
	}
	p->version = version;
	party_tell(a, p, "committed", json_pack("{s:I}", "version", (json_int_t)version));
	end(a, p, "committed", NULL);
	repair_kept_word(a, p->head, p->coordinator);
	if (version)
		head_set_base(p->head, version, p->document->n_bytes, p->document->root,
			      p->blob_fds[BLOB_LEAVES]);
	head_set_serving(a, p->head, version);
}

/* The commit stands, by the record; the bytes will be fetched again. */
static void on_sink_failed(struct agent *a, struct party *p, const char *code, const char *why)
{
	if (p->state == PARTY_PUBLISHING) {
		party_tell(a, p, "failed", json_pack("{s:s, s:s}", "code", code, "why", why));
		end(a, p, "failed", why);
		head_set_lost(a, p->head);
	} else {
		give_up(a, p, code, why);
	}
}

static void on_sink_message(struct agent *a, struct work *w, const json_t *message, int *fds,
			    unsigned n_fds)
{
	struct party *p = container_of(w, struct party, sink);
	const char *op, *code = "failed", *why = "it did not say why";

	if (p->state == PARTY_ENDED)
		return;
	if (field_string(message, "op", 32, &op) < 0)
		op = "";
	if (strcmp(op, "created") == 0) {
		on_created(a, p, message, fds, n_fds);
	} else if (strcmp(op, "verified") == 0) {
		on_verified(a, p, message);
	} else if (strcmp(op, "corrupt") == 0) {
		on_corrupt(a, p, message);
	} else if (strcmp(op, "published") == 0) {
		on_published(a, p, message);
	} else if (strcmp(op, "patched") == 0) {
		if (field_string(message, "why", WHY_SIZE, &why) == 0)
			agent_log(a, "warning", "sync %s: the patch of %s is of no use: %s",
				  p->sync, p->head->buffer, why);
	} else {
		(void)field_string(message, "code", 32, &code);
		(void)field_string(message, "why", WHY_SIZE, &why);
		on_sink_failed(a, p, code, why);
	}
}

static void on_sink_end(struct agent *a, struct work *w, const char *how)
{
	struct party *p = container_of(w, struct party, sink);
	char why[WHY_SIZE];

	if (p->state == PARTY_ENDED)
		return;
	snprintf(why, sizeof(why), "the sink process ended (%s)", how);
	on_sink_failed(a, p, "failed", why);
}

static void create(struct agent *a, struct party *p)
{
	const struct document *d = p->document;
	const struct base *base = &p->head->base;
	const struct group *group = group_find(a->config, d->group);
	const char *device = group_device(a->config, d->group);
	int fds[] = {p->blob_fds[BLOB_LAYOUT], p->blob_fds[BLOB_LEAVES], base->leaves_fd};
	char why[WHY_SIZE], root[65], layout[65];
	json_t *message;

	if (work_start(a, &p->sink, JOB_SINK, why) < 0) {
		give_up(a, p, "failed", why);
		return;
	}
	message = json_pack("{s:s, s:s?, s:s, s:s, s:I, s:s, s:s}", "op", "create", "socket",
			    a->config->weightd_socket, "buffer", d->buffer, "device", device,
			    "n_bytes", (json_int_t)d->n_bytes, "root", field_hex(d->root, 32, root),
			    "layout", field_hex(d->layout, 32, layout));
	if (group)
		rights_add(&group->rights, message);
	memcpy(p->base, base->root, sizeof(p->base));
	if (base->version)
		json_object_set_new(message, "base",
				    json_pack("{s:I, s:I}", "version", (json_int_t)base->version,
					      "n_bytes", (json_int_t)base->n_bytes));
	work_tell(a, &p->sink, message, fds, base->version ? 3 : 2);
	party_set_state(a, p, PARTY_CREATE, agent_time_for(a, d->n_bytes));
}

/* --- Prepare ------------------------------------------------------------------------------------ */

static const uint8_t *blob_hash(const struct document *d, enum party_blob blob)
{
	return blob == BLOB_LAYOUT ? d->layout : d->leaves;
}

static uint64_t blob_size(const struct document *d, enum party_blob blob)
{
	return blob == BLOB_LAYOUT ? d->layout_bytes : document_leaves_bytes(d);
}

static void refuse(struct agent *a, unsigned peer, const char *sync, const char *code,
		   const struct head *h, const char *why)
{
	json_t *message = json_pack("{s:s, s:s, s:s, s:s}", "type", "refuse", "sync", sync, "code",
				    code, "why", why);

	if (h && h->document)
		json_object_set_new(message, "heads", json_pack("[o]", head_to_json(h)));
	agent_send(a, peer, message);
}

static void want(struct agent *a, struct party *p)
{
	json_t *blobs = json_array();
	char hex[65];

	for (unsigned i = 0; i < N_BLOBS; i++)
		json_array_append_new(blobs,
				      json_string(field_hex(blob_hash(p->document, i), 32, hex)));
	party_set_state(a, p, PARTY_WANT, agent_time_for(a, p->document->n_bytes));
	party_tell(a, p, "want", json_pack("{s:o}", "blobs", blobs));
}

void party_begin_next(struct agent *a)
{
	unsigned n[2] = {0};
	uint64_t blobs = 0;
	struct party *p;

	list_for_each(p, &a->parties, link) {
		if (p->state == PARTY_QUEUED || p->state == PARTY_ENDED)
			continue;
		n[p->is_repair]++;
		blobs += admission_blobs_size(p->document);
	}
	list_for_each(p, &a->parties, link) {
		if (p->state != PARTY_QUEUED ||
		    n[p->is_repair] >= (p->is_repair ? REPAIRS_MAX : PUSHES_MAX))
			continue;
		blobs += admission_blobs_size(p->document);
		if (blobs > admission_blobs_max(a))
			return; /* nobody smaller overtakes it */
		n[p->is_repair]++;
		p->begun_ns = agent_now(a);
		p->whole_ns = p->begun_ns + 2 * agent_time_to_move(a, p->document->n_bytes, 0);
		want(a, p);
	}
}

static struct party *party_new(struct agent *a, unsigned peer, const char *sync, struct head *h,
			       struct document *d)
{
	struct party *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	snprintf(p->sync, sizeof(p->sync), "%s", sync);
	p->coordinator = peer;
	p->is_repair = d->decision;
	p->head = h;
	p->document = d;
	for (unsigned i = 0; i < N_BLOBS; i++)
		p->blob_fds[i] = -1;
	p->memory_fd = p->patch_fd = -1;
	p->changed = UINT64_MAX;
	p->sink = (struct work){.on_message = on_sink_message, .on_end = on_sink_end};
	ranges_init(&p->missing);
	ranges_init(&p->patch_missing);
	ranges_init(&p->ranges);
	p->started_ns = a->edge->time_ns(a->world);
	p->begun_ns = agent_now(a);
	p->whole_ns = p->begun_ns + 2 * agent_time_to_move(a, d->n_bytes, 0);
	list_append(&a->parties, &p->link);
	return p;
}

void party_on_prepare(struct agent *a, unsigned peer, const json_t *message)
{
	cleanup(document_freep) struct document *d = NULL;
	const char *sync, *group, *code;
	char why[WHY_SIZE] = "";
	struct head *h = NULL;
	struct party *p;

	if (field_string(message, "sync", SYNC_ID_SIZE - 1, &sync) < 0 ||
	    field_string(message, "group", GROUP_MAX, &group) < 0 ||
	    document_parse(message, &d) < 0 || strcmp(group, d->group) != 0) {
		agent_hang_up(a, peer, "PREPARE of another form");
		return;
	}
	code = admission_refusal(a, peer, d, &h, why);
	if (code) {
		refuse(a, peer, sync, code, h, why);
		return;
	}
	p = party_new(a, peer, sync, h, d);
	if (!p) {
		refuse(a, peer, sync, "memory", NULL, "out of memory");
		return;
	}
	take_ptr(d);
	head_set_asked(a, h, NO_PEER);
	party_begin_next(a);
	if (p->state == PARTY_QUEUED)
		party_tell(a, p, "queued", NULL);
}

uint64_t party_blob_limit(const struct agent *a, unsigned peer, const uint8_t hash[32])
{
	struct party *p;

	list_for_each(p, &a->parties, link) {
		if (p->coordinator != peer || p->state != PARTY_WANT)
			continue;
		for (unsigned i = 0; i < N_BLOBS; i++)
			if (p->blob_fds[i] < 0 && memcmp(blob_hash(p->document, i), hash, 32) == 0)
				return blob_size(p->document, i);
	}
	return 0;
}

/* Two syncs may want the same layout, and each is sent its own: the first that lacks it takes it. */
static bool take_blob(struct party *p, const uint8_t hash[32], int fd, uint64_t size)
{
	for (unsigned i = 0; i < N_BLOBS; i++)
		if (p->blob_fds[i] < 0 && blob_size(p->document, i) == size &&
		    memcmp(blob_hash(p->document, i), hash, 32) == 0) {
			p->blob_fds[i] = fcntl(fd, F_DUPFD_CLOEXEC, 3);
			return true;
		}
	return false;
}

void party_on_blob(struct agent *a, unsigned peer, const uint8_t hash[32], int fd, uint64_t size)
{
	struct party *p;

	list_for_each(p, &a->parties, link)
		if (p->coordinator == peer && p->state == PARTY_WANT &&
		    take_blob(p, hash, fd, size)) {
			if (p->blob_fds[BLOB_LAYOUT] >= 0 && p->blob_fds[BLOB_LEAVES] >= 0)
				create(a, p);
			return;
		}
}

/* --- The end ------------------------------------------------------------------------------------ */

static void on_verify(struct agent *a, struct party *p, const json_t *message)
{
	(void)message;
	if (p->state != PARTY_READY) {
		party_out_of_order(a, p, "verify");
		return;
	}
	party_set_state(a, p, PARTY_VERIFYING, agent_time_to_verify(a, p->document->n_bytes));
	work_tell(a, &p->sink, json_pack("{s:s}", "op", "verify"), NULL, 0);
}

static void on_commit(struct agent *a, struct party *p, const json_t *message)
{
	char why[WHY_SIZE];
	int r;

	if (p->state != PARTY_VERIFIED) {
		party_out_of_order(a, p, "commit");
		return;
	}
	if (document_take_decision(a, p->document, message, why) < 0) {
		give_up(a, p, "decision", why);
		return;
	}
	/* The fence first: the opening of head.c says why. */
	r = head_commit(a, p->head, p->document, 0, HEAD_BEHIND);
	if (r < 0) {
		snprintf(why, sizeof(why), "the record of %s could not be written: %s",
			 a->config->name, strerror(-r));
		give_up(a, p, "record", why);
		return;
	}
	/* Its old version, which others may have been told of, is not its newest any more. */
	party_set_state(a, p, PARTY_PUBLISHING, agent_time_for(a, p->document->n_bytes));
	work_tell(a, &p->sink, json_pack("{s:s}", "op", "publish"), NULL, 0);
}

static void on_abort(struct agent *a, struct party *p, const json_t *message)
{
	bool is_planned;
	const char *why;

	if (p->state == PARTY_PUBLISHING)
		return; /* it was decided */
	if (field_string(message, "why", ABORT_WHY_MAX, &why) < 0)
		why = "its coordinator gave no reason";
	party_tell(a, p, "aborted", NULL);
	/* Nobody plans a repair: it would be asked again at once. */
	if (!p->is_repair && field_bool_or(message, "planned", false, &is_planned) == 0 && is_planned)
		end(a, p, "planned", NULL);
	else
		party_drop(a, p, "%s", why);
}

static const struct {
	const char *type;
	bool of_epoch; /* dropped where its epoch is another one */
	void (*fn)(struct agent *a, struct party *p, const json_t *message);
} MESSAGES[] = {
	{"open", false, leg_on_open}, {"start", true, leg_on_start}, {"stop", true, leg_on_stop},
	{"verify", false, on_verify}, {"commit", false, on_commit},  {"abort", false, on_abort},
};

bool party_on_message(struct agent *a, unsigned peer, const char *sync, const char *type,
		      const json_t *message)
{
	struct party *p, *found = NULL;
	uint64_t epoch;

	list_for_each(p, &a->parties, link)
		if (p->state != PARTY_ENDED && p->coordinator == peer && strcmp(p->sync, sync) == 0)
			found = p;
	if (!found)
		return false;
	for (unsigned i = 0; i < sizeof(MESSAGES) / sizeof(MESSAGES[0]); i++) {
		if (strcmp(MESSAGES[i].type, type) != 0)
			continue;
		if (MESSAGES[i].of_epoch &&
		    field_number(message, "epoch", PARTY_EPOCH_MAX, &epoch) < 0)
			party_out_of_order(a, found, type);
		else if (!MESSAGES[i].of_epoch || epoch == found->epoch)
			MESSAGES[i].fn(a, found, message);
		return true;
	}
	return false;
}

void party_on_peer_down(struct agent *a, struct party *p, const char *why)
{
	party_drop(a, p, "its coordinator %s went away: %s", agent_peer_name(a, p->coordinator),
		   why);
}

void party_on_timer(struct agent *a, struct party *p, uint64_t now)
{
	char why[WHY_SIZE];

	if (p->state == PARTY_ENDED || now < party_deadline(p))
		return;
	if (now >= p->whole_ns && p->state != PARTY_PUBLISHING) {
		give_up(a, p, "deadline", "it took too long as a whole");
	} else if (waits_for_repairer(p)) {
		snprintf(why, sizeof(why), "%s brought nothing more for %ju s",
			 agent_peer_name(a, p->coordinator),
			 (uintmax_t)(repair_patience(a) / SECOND));
		give_up(a, p, "deadline", why);
	} else if (p->state == PARTY_OPENING) {
		snprintf(why, sizeof(why), "the engine of %s did not open for %ju s",
			 a->config->name, (uintmax_t)(a->config->prepare_ns / SECOND));
		/* There is no link yet that could be at fault. */
		leg_break(a, p, p->done, NULL, NULL, why);
	} else if (leg_is_under_way(p)) {
		snprintf(why, sizeof(why), "the engine of %s moved nothing for %ju s",
			 a->config->name, (uintmax_t)(2 * a->config->stall_ns / SECOND));
		leg_break(a, p, p->done, p->from, p->to[0] ? p->to : NULL, why);
	} else {
		snprintf(why, sizeof(why), "the local weightd of %s did not answer in time (%s)",
			 a->config->name, party_phase(p));
		on_sink_failed(a, p, "deadline", why);
	}
}
