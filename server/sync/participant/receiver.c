/*
 * A receiver believes its coordinator nothing but where the bytes come from. What the version is, the publisher
 * signed; that it is newer, the commit log says; that the bytes are right, the sink's own digest; that it may be
 * read, the publisher's decision.
 */
#include "server/sync/participant/receiver.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/participant/receiver_epoch.h"
#include "server/sync/state/agent_hooks.h"
#include "server/sync/state/group.h"
#include "server/sync/state/loan.h"
#include "server/sync/state/retry.h"
#include "server/sync/state/time_limit.h"
#include "server/sync/state/transport.h"

/*
 * At a time: each has two processes and memory, and their blobs, three each, have to fit into the outbox of one
 * coordinator. A push does not wait for repairs.
 */
#define PUSHES_MAX 16
#define REPAIRS_MAX 8

static void receiver_end(struct agent *a, struct participant *p, const char *state_name,
			 const char *why)
{
	participant_end(a, p, state_name, why);
	if (strcmp(state_name, "failed") == 0 && participant_is_repair(p) &&
	    p->ended_in != PARTICIPANT_QUEUED)
		retry_in_vain(a, p->replica, p->coordinator);
	if (strcmp(state_name, "failed") == 0)
		retry_later(a, p->replica);
}

static void receiver_free(struct agent *a, struct participant *p)
{
	struct receiver *rec = receiver_of(p);

	participant_deinit(a, p);
	for (unsigned i = 0; i < N_BLOBS; i++)
		(void)fd_close(rec->blob_fds[i]);
	(void)fd_close(rec->patch_fd);
	(void)fd_close(rec->staged_fd);
	ranges_deinit(&rec->missing);
	ranges_deinit(&rec->patch_missing);
	ranges_deinit(&rec->ranges);
	document_free(rec->document);
	free(rec);
}

/* --- The sink ----------------------------------------------------------------------------------- */

static void on_created(struct agent *a, struct receiver *rec, const json_t *message, int *fds,
		       unsigned n_fds)
{
	struct participant *p = &rec->participant;
	char base[65] = "";
	const char *why = NULL;

	if (p->state != PARTICIPANT_CREATE || n_fds != 1 ||
	    gpu_memory_read(message, &rec->memory) < 0 ||
	    field_number_or(message, "data_offset", DATA_OFFSET_MAX, 0, &p->data_offset) < 0 ||
	    (rec->nccl != 0) != (rec->memory.gpu[0] != '\0') ||
	    ranges_from_json(json_object_get(message, "missing"), p->n_bytes, &rec->missing) < 0) {
		participant_give_up(a, p, "failed",
				    "the sink answered something else than was asked");
		return;
	}
	if (field_string(message, "why", WHY_SIZE, &why) == 0)
		agent_log(a, "debug", "sync %s: all of %s travels: %s", p->sync, p->replica->buffer,
			  why);
	p->memory_fd = take_fd(fds[0]);
	p->changed = ranges_total(&rec->missing);
	p->idle_ns = agent_now(a) + retry_patience(a);
	participant_set_state(a, p, PARTICIPANT_READY, 0);
	if (json_is_true(json_object_get(message, "has_base")))
		field_hex(rec->base, sizeof(rec->base), base);
	participant_tell(a, p, "ready",
			 json_pack("{s:I, s:o, s:o*, s:s*}", "n_missing", (json_int_t)p->changed,
				   "missing", ranges_to_json(&rec->missing), "n_addresses",
				   a->config->n_data_addresses > 1
					   ? json_integer(a->config->n_data_addresses)
					   : NULL,
				   "base", base[0] ? base : NULL));
}

static void receiver_on_verified(struct agent *a, struct receiver *rec, const json_t *message)
{
	struct participant *p = &rec->participant;
	uint8_t root[32];
	char hex[65];

	if (p->state != PARTICIPANT_VERIFYING || field_bytes(message, "root", root, 32) < 0 ||
	    memcmp(root, rec->document->root, 32) != 0) {
		participant_give_up(a, p, "root", "the sink verified another version");
		return;
	}
	ranges_deinit(&rec->missing);
	ranges_init(&rec->missing);
	/* No engine writes it any more, and of a staging it is the last that keeps the memory. */
	p->memory_fd = fd_close(p->memory_fd);
	rec->staged_fd = fd_close(rec->staged_fd);
	p->idle_ns = agent_now(a) + retry_patience(a);
	participant_set_state(a, p, PARTICIPANT_VERIFIED, 0);
	participant_tell(a, p, "verified", json_pack("{s:s}", "root", field_hex(root, 32, hex)));
}

static void on_corrupt(struct agent *a, struct receiver *rec, const json_t *message)
{
	struct participant *p = &rec->participant;
	struct ranges corrupt;

	ranges_init(&corrupt);
	if (p->state != PARTICIPANT_VERIFYING ||
	    ranges_from_json(json_object_get(message, "ranges"), p->n_bytes, &corrupt) < 0 ||
	    corrupt.n == 0) {
		ranges_deinit(&corrupt);
		participant_give_up(a, p, "failed",
				    "the sink answered something else than was asked");
		return;
	}
	ranges_deinit(&rec->missing);
	rec->missing = corrupt;
	a->metrics.corrupt_bytes += ranges_total(&corrupt);
	/* In a push, the coordinator counts. */
	if (++rec->n_corrupt >= CORRUPT_MAX && participant_is_repair(p)) {
		participant_give_up(a, p, "root",
				    "other bytes came than were signed, again and again");
		return;
	}
	p->idle_ns = agent_now(a) + retry_patience(a);
	participant_set_state(a, p, PARTICIPANT_READY, 0);
	participant_tell(a, p, "corrupt",
			 json_pack("{s:o}", "ranges", ranges_to_json(&rec->missing)));
}

static void on_patched(struct agent *a, const struct receiver *rec, const json_t *message)
{
	const char *why;

	if (field_string(message, "why", WHY_SIZE, &why) == 0)
		agent_log(a, "warning", "sync %s: the patch of %s is of no use: %s",
			  rec->participant.sync, rec->participant.replica->buffer, why);
}

static bool receiver_on_sink(struct agent *a, struct participant *p, const char *op,
			     const json_t *message, int *fds, unsigned n_fds)
{
	struct receiver *rec = receiver_of(p);

	if (strcmp(op, "created") == 0)
		on_created(a, rec, message, fds, n_fds);
	else if (strcmp(op, "verified") == 0)
		receiver_on_verified(a, rec, message);
	else if (strcmp(op, "corrupt") == 0)
		on_corrupt(a, rec, message);
	else if (strcmp(op, "patched") == 0)
		on_patched(a, rec, message);
	else if (strcmp(op, "staged") == 0)
		receiver_epoch_on_staged(a, rec, fds, n_fds);
	else
		return false;
	return true;
}

static void receiver_on_published(struct agent *a, struct participant *p)
{
	struct receiver *rec = receiver_of(p);

	retry_kept_word(a, p->replica, p->coordinator);
	if (p->version)
		replica_set_base(p->replica, p->version, p->n_bytes, rec->document->root,
				 rec->blob_fds[BLOB_LEAVES]);
}

static void receiver_create(struct agent *a, struct receiver *rec)
{
	const struct document *d = rec->document;
	const struct base *base = &rec->participant.replica->base;
	const struct group *group = group_find(a->config, d->group);
	const char *device = group_device(a->config, d->group);
	const bool has_base = base->version &&
			      strcmp(device,
				     group_device(a->config, rec->participant.replica->group)) == 0;
	int fds[4] = {rec->blob_fds[BLOB_LAYOUT], rec->blob_fds[BLOB_LEAVES]};
	unsigned n_fds = 2;
	char root[65], layout[65], companions[65];
	json_t *message;

	if (strcmp(device, GROUP_DEVICE_DEFAULT) != 0)
		loan_forget_idle(a, NULL); /* there has to be room for a copy */
	message = json_pack("{s:s, s:s?, s:s, s:s, s:I, s:s, s:s}", "op", "create", "socket",
			    a->config->weightd_socket, "buffer", d->buffer, "device", device,
			    "n_bytes", (json_int_t)d->n_bytes, "root", field_hex(d->root, 32, root),
			    "layout", field_hex(d->layout, 32, layout));
	if (group)
		ownership_add(&group->ownership, message);
	if (rec->nccl) {
		json_object_set_new(message, "engine", json_string(transport_nccl.name));
		json_object_set_new(message, "nccl", json_integer((json_int_t)rec->nccl));
	}
	memcpy(rec->base, base->root, sizeof(rec->base));
	if (has_base)
		json_object_set_new(message, "base",
				    json_pack("{s:I, s:I}", "version", (json_int_t)base->version,
					      "n_bytes", (json_int_t)base->n_bytes));
	if (has_base)
		fds[n_fds++] = base->leaves_fd;
	if (rec->has_companions)
		fds[n_fds++] = rec->blob_fds[BLOB_COMPANIONS];
	/*
	 * Without the field, the new version keeps the files of the one before it. None are better
	 * than those: a coordinator that does not have them may still repair.
	 */
	if (d->has_companions)
		json_object_set_new(
			message, "companions",
			json_pack("{s:I, s:I, s:s}", "bytes",
				  (json_int_t)(rec->has_companions ? d->companions_bytes : 0),
				  "header_bytes",
				  (json_int_t)(rec->has_companions ? d->header_bytes : 0), "hash",
				  field_hex(d->companions, 32, companions)));
	participant_create(a, &rec->participant, message, fds, n_fds);
}

/* --- Messages of the coordinator ---------------------------------------------------------------- */

static void receiver_on_verify(struct agent *a, struct participant *p, const json_t *message)
{
	(void)message;
	if (p->state != PARTICIPANT_READY) {
		participant_out_of_order(a, p, "verify");
		return;
	}
	participant_set_state(a, p, PARTICIPANT_VERIFYING, time_limit_to_verify(a, p->n_bytes));
	work_tell(a, &p->sink, json_pack("{s:s}", "op", "verify"), NULL, 0);
}

static void receiver_on_commit(struct agent *a, struct participant *p, const json_t *message)
{
	struct receiver *rec = receiver_of(p);
	char why[WHY_SIZE];

	if (p->state != PARTICIPANT_VERIFIED)
		participant_out_of_order(a, p, "commit");
	else if (document_take_decision(a, rec->document, message, why) < 0)
		participant_give_up(a, p, "decision", why);
	else
		participant_publish(a, p, rec->document);
}

static const struct participant_ops RECEIVER = {
	.want = "while it waited for the layout",
	.wants_of_coordinator = true,
	.ready = "while it waited for its bytes",
	.messages = {{"open", false, receiver_epoch_on_open},
		     {"start", true, receiver_epoch_on_start},
		     {"stop", true, receiver_epoch_on_stop},
		     {"verify", false, receiver_on_verify},
		     {"commit", false, receiver_on_commit},
		     {NULL}},
	.on_sink = receiver_on_sink,
	.on_opened = receiver_epoch_on_opened,
	.on_done = receiver_epoch_on_done,
	.on_broken = receiver_epoch_on_broken,
	.on_engine_end = receiver_epoch_on_engine_end,
	.on_stalled = receiver_epoch_on_stalled,
	.on_published = receiver_on_published,
	.end = receiver_end,
	.free = receiver_free,
};

/* --- Prepare ------------------------------------------------------------------------------------ */

static const uint8_t *blob_hash(const struct document *d, enum receiver_blob blob)
{
	const uint8_t *const hashes[N_BLOBS] = {d->layout, d->leaves, d->companions};

	return hashes[blob];
}

static uint64_t blob_size(const struct document *d, enum receiver_blob blob)
{
	const uint64_t sizes[N_BLOBS] = {d->layout_bytes, document_leaves_bytes(d),
					 d->companions_bytes};

	return sizes[blob];
}

/* It comes, and is not here yet. */
static bool lacks_blob(const struct receiver *rec, enum receiver_blob blob)
{
	return rec->blob_fds[blob] < 0 && (blob != BLOB_COMPANIONS || rec->has_companions);
}

static bool lacks_blobs(const struct receiver *rec)
{
	for (unsigned i = 0; i < N_BLOBS; i++)
		if (lacks_blob(rec, i))
			return true;
	return false;
}

static void receiver_want(struct agent *a, struct receiver *rec)
{
	json_t *blobs = json_array();
	char hex[65];

	for (unsigned i = 0; i < N_BLOBS; i++)
		if (lacks_blob(rec, i))
			json_array_append_new(
				blobs, json_string(field_hex(blob_hash(rec->document, i), 32, hex)));
	participant_set_state(a, &rec->participant, PARTICIPANT_WANT,
			      time_limit_for(a, rec->document->n_bytes) +
				      time_limit_to_send(rec->document->companions_bytes));
	participant_tell(a, &rec->participant, "want", json_pack("{s:o}", "blobs", blobs));
}

/* Bytes of the blobs of those that are under way. */
static uint64_t count_blobs(struct agent *a, unsigned coordinator_or_none)
{
	uint64_t n = 0;
	struct participant *p;

	list_for_each(p, &a->participants, link)
		if (p->ops == &RECEIVER && participant_has_begun(p) &&
		    (coordinator_or_none == NO_PEER || p->coordinator == coordinator_or_none))
			n += document_blobs_bytes(receiver_of(p)->document);
	return n;
}

/* As for participant_has_turn(): whoever has some leaves room for as many bytes to others. */
static bool has_room(struct agent *a, const struct receiver *rec)
{
	uint64_t size = document_blobs_bytes(rec->document), all = count_blobs(a, NO_PEER) + size;

	return all + count_blobs(a, rec->participant.coordinator) + size <=
	       2 * participant_blobs_max(a);
}

void receiver_begin_next(struct agent *a)
{
	struct participant *p;

	list_for_each(p, &a->participants, link) {
		if (p->ops != &RECEIVER || p->state != PARTICIPANT_QUEUED ||
		    !participant_has_turn(a, p, participant_is_repair(p) ? REPAIRS_MAX : PUSHES_MAX) ||
		    !has_room(a, receiver_of(p)))
			continue;
		receiver_of(p)->begun_ns = agent_now(a);
		p->whole_ns = agent_now(a) + 2 * time_limit_to_move(a, p->n_bytes, 0);
		receiver_want(a, receiver_of(p));
	}
}

/* Keeps the document. */
static struct receiver *receiver_new(struct agent *a, unsigned peer, const char *sync,
				     struct replica *rep, struct document *document)
{
	struct receiver *rec = calloc(1, sizeof(*rec));
	struct participant *p = &rec->participant;

	if (!rec)
		return NULL;
	rec->document = document;
	for (unsigned i = 0; i < N_BLOBS; i++)
		rec->blob_fds[i] = -1;
	rec->patch_fd = rec->staged_fd = -1;
	ranges_init(&rec->missing);
	ranges_init(&rec->patch_missing);
	ranges_init(&rec->ranges);
	p->ops = &RECEIVER;
	p->kind = document->decision ? KIND_REPAIR : KIND_PUSH;
	p->group = document->group;
	p->version_id = document->version_id;
	p->n_bytes = document->n_bytes;
	participant_init(a, p, peer, sync, rep);
	rec->begun_ns = agent_now(a);
	return rec;
}

/* The engine that the publisher begins with, where that is not the matter of engines alone. */
static const char *read_engine(const struct agent *a, const json_t *message, uint64_t *ret_nccl,
			       char why[WHY_SIZE])
{
	const char *engine;

	*ret_nccl = 0;
	if (field_string_or_null(message, "engine", TRANSPORT_NAME_MAX, &engine) < 0)
		engine = "";
	if (!engine)
		return NULL;
	if (strcmp(engine, transport_nccl.name) != 0 ||
	    field_number(message, "nccl", INT32_MAX, ret_nccl) < 0 || !*ret_nccl) {
		snprintf(why, WHY_SIZE, "%s knows no engine '%s' that has to be prepared for",
			 a->config->name, engine);
		return "engine";
	}
	if (!a->config->tls)
		return NULL;
	snprintf(why, WHY_SIZE,
		 "it is to come over NCCL, which carries weights in the clear, and %s has security "
		 "= tls under [data] in sync.conf; set engine = tcp at the publisher",
		 a->config->name);
	return "security";
}

void receiver_on_prepare(struct agent *a, unsigned peer, const json_t *message)
{
	cleanup(document_freep) struct document *d = NULL;
	const char *sync, *group, *code;
	bool has_companions;
	uint64_t nccl;
	char why[WHY_SIZE] = "";
	struct replica *rep = NULL;
	struct receiver *rec;
	bool is_dry;

	if (participant_read_sync(a, peer, message, &sync) < 0 ||
	    field_string(message, "group", GROUP_MAX, &group) < 0 ||
	    field_bool_or(message, "dry", false, &is_dry) < 0 ||
	    field_bool_or(message, "companions", false, &has_companions) < 0 ||
	    document_parse(message, &d) < 0 || strcmp(group, d->group) != 0) {
		agent_hang_up(a, peer,
			      "PREPARE of another form, or of a sync that there is already");
		return;
	}
	code = a->hooks->refuse_receiver(a, peer, d, is_dry, &rep, why);
	if (!code)
		code = read_engine(a, message, &nccl, why);
	if (code) {
		participant_refuse(a, peer, sync, code, rep, why);
		return;
	}
	rec = receiver_new(a, peer, sync, rep, d);
	if (!rec) {
		participant_refuse(a, peer, sync, "memory", NULL, "out of memory");
		return;
	}
	take_ptr(d);
	rec->nccl = nccl;
	rec->has_companions = has_companions && rec->document->companions_bytes;
	replica_set_asked(a, rep, NO_PEER);
	receiver_begin_next(a);
	if (rec->participant.state == PARTICIPANT_QUEUED)
		participant_tell(a, &rec->participant, "queued", NULL);
}

static bool waits_for_blobs(const struct participant *p, unsigned peer)
{
	return p->ops == &RECEIVER && p->coordinator == peer && p->state == PARTICIPANT_WANT;
}

uint64_t receiver_blob_limit(const struct agent *a, unsigned peer, const uint8_t hash[32])
{
	struct participant *p;

	list_for_each(p, &a->participants, link) {
		const struct receiver *rec = receiver_of(p);

		for (unsigned i = 0; waits_for_blobs(p, peer) && i < N_BLOBS; i++)
			if (lacks_blob(rec, i) && memcmp(blob_hash(rec->document, i), hash, 32) == 0)
				return blob_size(rec->document, i);
	}
	return 0;
}

/*
 * Two syncs may want the same layout, and each is sent its own: the first that lacks it takes it. 1: it has; 0: it is
 * none that it lacks; -errno.
 */
static int take_blob(struct receiver *rec, const uint8_t hash[32], int fd, uint64_t size)
{
	for (unsigned i = 0; i < N_BLOBS; i++)
		if (lacks_blob(rec, i) && blob_size(rec->document, i) == size &&
		    memcmp(blob_hash(rec->document, i), hash, 32) == 0) {
			rec->blob_fds[i] = fcntl(fd, F_DUPFD_CLOEXEC, 3);
			return rec->blob_fds[i] < 0 ? -errno : 1;
		}
	return 0;
}

void receiver_on_blob(struct agent *a, unsigned peer, const uint8_t hash[32], int fd, uint64_t size)
{
	struct participant *p;

	list_for_each(p, &a->participants, link) {
		struct receiver *rec = receiver_of(p);
		int r = waits_for_blobs(p, peer) ? take_blob(rec, hash, fd, size) : 0;

		if (r == 0)
			continue;
		if (r < 0)
			participant_give_up(a, p, "memory",
					    "there are no descriptors for its layout");
		else if (!lacks_blobs(rec))
			receiver_create(a, rec);
		return;
	}
}
