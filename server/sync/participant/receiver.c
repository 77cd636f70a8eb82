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
 * At a time: each has two processes and memory, and their blobs, two each, have to fit into the outbox of one
 * coordinator. A push does not wait for repairs.
 */
#define PUSHES_MAX 16
#define REPAIRS_MAX 8

static void receiver_end(struct agent *a, struct participant *d, const char *state_name,
			 const char *why)
{
	participant_end(a, d, state_name, why);
	if (strcmp(state_name, "failed") == 0 && participant_is_repair(d) &&
	    d->ended_in != PARTICIPANT_QUEUED)
		retry_in_vain(a, d->replica, d->coordinator);
	if (strcmp(state_name, "failed") == 0)
		retry_later(a, d->replica);
}

static void receiver_free(struct agent *a, struct participant *d)
{
	struct receiver *p = receiver_of(d);

	participant_deinit(a, d);
	for (unsigned i = 0; i < N_BLOBS; i++)
		(void)fd_close(p->blob_fds[i]);
	(void)fd_close(p->patch_fd);
	(void)fd_close(p->staged_fd);
	ranges_deinit(&p->missing);
	ranges_deinit(&p->patch_missing);
	ranges_deinit(&p->ranges);
	document_free(p->document);
	free(p);
}

/* --- The sink ----------------------------------------------------------------------------------- */

static void on_created(struct agent *a, struct receiver *p, const json_t *message, int *fds,
		       unsigned n_fds)
{
	struct participant *d = &p->participant;
	char base[65] = "";
	const char *why = NULL;

	if (d->state != PARTICIPANT_CREATE || n_fds != 1 ||
	    gpu_memory_read(message, &p->memory) < 0 ||
	    (p->nccl != 0) != (p->memory.gpu[0] != '\0') ||
	    ranges_from_json(json_object_get(message, "missing"), d->n_bytes, &p->missing) < 0) {
		participant_give_up(a, d, "failed",
				    "the sink answered something else than was asked");
		return;
	}
	if (field_string(message, "why", WHY_SIZE, &why) == 0)
		agent_log(a, "debug", "sync %s: all of %s travels: %s", d->sync, d->replica->buffer,
			  why);
	d->memory_fd = take_fd(fds[0]);
	d->changed = ranges_total(&p->missing);
	d->idle_ns = agent_now(a) + retry_patience(a);
	participant_set_state(a, d, PARTICIPANT_READY, 0);
	if (json_is_true(json_object_get(message, "has_base")))
		field_hex(p->base, sizeof(p->base), base);
	participant_tell(a, d, "ready",
			 json_pack("{s:I, s:o, s:o*, s:s*}", "n_missing", (json_int_t)d->changed,
				   "missing", ranges_to_json(&p->missing), "n_addresses",
				   a->config->n_data_addresses > 1
					   ? json_integer(a->config->n_data_addresses)
					   : NULL,
				   "base", base[0] ? base : NULL));
}

static void on_verified(struct agent *a, struct receiver *p, const json_t *message)
{
	struct participant *d = &p->participant;
	uint8_t root[32];
	char hex[65];

	if (d->state != PARTICIPANT_VERIFYING || field_bytes(message, "root", root, 32) < 0 ||
	    memcmp(root, p->document->root, 32) != 0) {
		participant_give_up(a, d, "root", "the sink verified another version");
		return;
	}
	ranges_deinit(&p->missing);
	ranges_init(&p->missing);
	/* No engine writes it any more, and of a staging it is the last that keeps the memory. */
	d->memory_fd = fd_close(d->memory_fd);
	p->staged_fd = fd_close(p->staged_fd);
	d->idle_ns = agent_now(a) + retry_patience(a);
	participant_set_state(a, d, PARTICIPANT_VERIFIED, 0);
	participant_tell(a, d, "verified", json_pack("{s:s}", "root", field_hex(root, 32, hex)));
}

static void on_corrupt(struct agent *a, struct receiver *p, const json_t *message)
{
	struct participant *d = &p->participant;
	struct ranges corrupt;

	ranges_init(&corrupt);
	if (d->state != PARTICIPANT_VERIFYING ||
	    ranges_from_json(json_object_get(message, "ranges"), d->n_bytes, &corrupt) < 0 ||
	    corrupt.n == 0) {
		ranges_deinit(&corrupt);
		participant_give_up(a, d, "failed",
				    "the sink answered something else than was asked");
		return;
	}
	ranges_deinit(&p->missing);
	p->missing = corrupt;
	a->metrics.corrupt_bytes += ranges_total(&corrupt);
	/* Of a push, its coordinator counts. */
	if (++p->n_corrupt >= CORRUPT_MAX && participant_is_repair(d)) {
		participant_give_up(a, d, "root",
				    "other bytes came than were signed, again and again");
		return;
	}
	d->idle_ns = agent_now(a) + retry_patience(a);
	participant_set_state(a, d, PARTICIPANT_READY, 0);
	participant_tell(a, d, "corrupt", json_pack("{s:o}", "ranges", ranges_to_json(&p->missing)));
}

static void on_patched(struct agent *a, const struct receiver *p, const json_t *message)
{
	const char *why;

	if (field_string(message, "why", WHY_SIZE, &why) == 0)
		agent_log(a, "warning", "sync %s: the patch of %s is of no use: %s",
			  p->participant.sync, p->participant.replica->buffer, why);
}

static bool receiver_on_sink(struct agent *a, struct participant *d, const char *op,
			     const json_t *message, int *fds, unsigned n_fds)
{
	struct receiver *p = receiver_of(d);

	if (strcmp(op, "created") == 0)
		on_created(a, p, message, fds, n_fds);
	else if (strcmp(op, "verified") == 0)
		on_verified(a, p, message);
	else if (strcmp(op, "corrupt") == 0)
		on_corrupt(a, p, message);
	else if (strcmp(op, "patched") == 0)
		on_patched(a, p, message);
	else if (strcmp(op, "staged") == 0)
		receiver_epoch_on_staged(a, p, fds, n_fds);
	else
		return false;
	return true;
}

static void receiver_on_published(struct agent *a, struct participant *d)
{
	struct receiver *p = receiver_of(d);

	retry_kept_word(a, d->replica, d->coordinator);
	if (d->version)
		replica_set_base(d->replica, d->version, d->n_bytes, p->document->root,
				 p->blob_fds[BLOB_LEAVES]);
}

static void create(struct agent *a, struct receiver *p)
{
	const struct document *d = p->document;
	const struct base *base = &p->participant.replica->base;
	const struct group *group = group_find(a->config, d->group);
	const char *device = group_device(a->config, d->group);
	const bool has_base = base->version &&
			      strcmp(device,
				     group_device(a->config, p->participant.replica->group)) == 0;
	int fds[] = {p->blob_fds[BLOB_LAYOUT], p->blob_fds[BLOB_LEAVES], base->leaves_fd};
	char root[65], layout[65];
	json_t *message;

	if (strcmp(device, GROUP_DEVICE_DEFAULT) != 0)
		loan_forget_idle(a, NULL); /* there has to be room for a copy */
	message = json_pack("{s:s, s:s?, s:s, s:s, s:I, s:s, s:s}", "op", "create", "socket",
			    a->config->weightd_socket, "buffer", d->buffer, "device", device,
			    "n_bytes", (json_int_t)d->n_bytes, "root", field_hex(d->root, 32, root),
			    "layout", field_hex(d->layout, 32, layout));
	if (group)
		ownership_add(&group->ownership, message);
	if (p->nccl) {
		json_object_set_new(message, "engine", json_string(transport_nccl.name));
		json_object_set_new(message, "nccl", json_integer((json_int_t)p->nccl));
	}
	memcpy(p->base, base->root, sizeof(p->base));
	if (has_base)
		json_object_set_new(message, "base",
				    json_pack("{s:I, s:I}", "version", (json_int_t)base->version,
					      "n_bytes", (json_int_t)base->n_bytes));
	participant_create(a, &p->participant, message, fds, has_base ? 3 : 2);
}

/* --- What the coordinator says ------------------------------------------------------------------ */

static void receiver_on_verify(struct agent *a, struct participant *d, const json_t *message)
{
	(void)message;
	if (d->state != PARTICIPANT_READY) {
		participant_out_of_order(a, d, "verify");
		return;
	}
	participant_set_state(a, d, PARTICIPANT_VERIFYING, time_limit_to_verify(a, d->n_bytes));
	work_tell(a, &d->sink, json_pack("{s:s}", "op", "verify"), NULL, 0);
}

static void receiver_on_commit(struct agent *a, struct participant *d, const json_t *message)
{
	struct receiver *p = receiver_of(d);
	char why[WHY_SIZE];

	if (d->state != PARTICIPANT_VERIFIED)
		participant_out_of_order(a, d, "commit");
	else if (document_take_decision(a, p->document, message, why) < 0)
		participant_give_up(a, d, "decision", why);
	else
		participant_publish(a, d, p->document);
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
	return blob == BLOB_LAYOUT ? d->layout : d->leaves;
}

static uint64_t blob_size(const struct document *d, enum receiver_blob blob)
{
	return blob == BLOB_LAYOUT ? d->layout_bytes : document_leaves_bytes(d);
}

static void receiver_want(struct agent *a, struct receiver *p)
{
	json_t *blobs = json_array();
	char hex[65];

	for (unsigned i = 0; i < N_BLOBS; i++)
		json_array_append_new(blobs,
				      json_string(field_hex(blob_hash(p->document, i), 32, hex)));
	participant_set_state(a, &p->participant, PARTICIPANT_WANT,
			      time_limit_for(a, p->document->n_bytes));
	participant_tell(a, &p->participant, "want", json_pack("{s:o}", "blobs", blobs));
}

/* Bytes of the blobs of those that are under way. */
static uint64_t count_blobs(struct agent *a, unsigned coordinator_or_none)
{
	uint64_t n = 0;
	struct participant *d;

	list_for_each(d, &a->participants, link)
		if (d->ops == &RECEIVER && participant_has_begun(d) &&
		    (coordinator_or_none == NO_PEER || d->coordinator == coordinator_or_none))
			n += document_blobs_bytes(receiver_of(d)->document);
	return n;
}

/* As for participant_has_turn(): whoever has some leaves room for as many bytes to others. */
static bool has_room(struct agent *a, const struct receiver *p)
{
	uint64_t size = document_blobs_bytes(p->document), all = count_blobs(a, NO_PEER) + size;

	return all + count_blobs(a, p->participant.coordinator) + size <=
	       2 * participant_blobs_max(a);
}

void receiver_begin_next(struct agent *a)
{
	struct participant *d;

	list_for_each(d, &a->participants, link) {
		if (d->ops != &RECEIVER || d->state != PARTICIPANT_QUEUED ||
		    !participant_has_turn(a, d, participant_is_repair(d) ? REPAIRS_MAX : PUSHES_MAX) ||
		    !has_room(a, receiver_of(d)))
			continue;
		receiver_of(d)->begun_ns = agent_now(a);
		d->whole_ns = agent_now(a) + 2 * time_limit_to_move(a, d->n_bytes, 0);
		receiver_want(a, receiver_of(d));
	}
}

/* Keeps the document. */
static struct receiver *receiver_new(struct agent *a, unsigned peer, const char *sync,
				     struct replica *h, struct document *document)
{
	struct receiver *p = calloc(1, sizeof(*p));
	struct participant *d = &p->participant;

	if (!p)
		return NULL;
	p->document = document;
	for (unsigned i = 0; i < N_BLOBS; i++)
		p->blob_fds[i] = -1;
	p->patch_fd = p->staged_fd = -1;
	ranges_init(&p->missing);
	ranges_init(&p->patch_missing);
	ranges_init(&p->ranges);
	d->ops = &RECEIVER;
	d->kind = document->decision ? KIND_REPAIR : KIND_PUSH;
	d->group = document->group;
	d->version_id = document->version_id;
	d->n_bytes = document->n_bytes;
	participant_init(a, d, peer, sync, h);
	p->begun_ns = agent_now(a);
	return p;
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
	uint64_t nccl;
	char why[WHY_SIZE] = "";
	struct replica *h = NULL;
	struct receiver *p;
	bool is_dry;

	if (participant_read_sync(a, peer, message, &sync) < 0 ||
	    field_string(message, "group", GROUP_MAX, &group) < 0 ||
	    field_bool_or(message, "dry", false, &is_dry) < 0 || document_parse(message, &d) < 0 ||
	    strcmp(group, d->group) != 0) {
		agent_hang_up(a, peer,
			      "PREPARE of another form, or of a sync that there is already");
		return;
	}
	code = a->hooks->refuse_receiver(a, peer, d, is_dry, &h, why);
	if (!code)
		code = read_engine(a, message, &nccl, why);
	if (code) {
		participant_refuse(a, peer, sync, code, h, why);
		return;
	}
	p = receiver_new(a, peer, sync, h, d);
	if (!p) {
		participant_refuse(a, peer, sync, "memory", NULL, "out of memory");
		return;
	}
	take_ptr(d);
	p->nccl = nccl;
	replica_set_asked(a, h, NO_PEER);
	receiver_begin_next(a);
	if (p->participant.state == PARTICIPANT_QUEUED)
		participant_tell(a, &p->participant, "queued", NULL);
}

static bool waits_for_blobs(const struct participant *d, unsigned peer)
{
	return d->ops == &RECEIVER && d->coordinator == peer && d->state == PARTICIPANT_WANT;
}

uint64_t receiver_blob_limit(const struct agent *a, unsigned peer, const uint8_t hash[32])
{
	struct participant *d;

	list_for_each(d, &a->participants, link) {
		const struct receiver *p = receiver_of(d);

		for (unsigned i = 0; waits_for_blobs(d, peer) && i < N_BLOBS; i++)
			if (p->blob_fds[i] < 0 && memcmp(blob_hash(p->document, i), hash, 32) == 0)
				return blob_size(p->document, i);
	}
	return 0;
}

/*
 * Two syncs may want the same layout, and each is sent its own: the first that lacks it takes it. 1: it has; 0: it is
 * none that it lacks; -errno.
 */
static int take_blob(struct receiver *p, const uint8_t hash[32], int fd, uint64_t size)
{
	for (unsigned i = 0; i < N_BLOBS; i++)
		if (p->blob_fds[i] < 0 && blob_size(p->document, i) == size &&
		    memcmp(blob_hash(p->document, i), hash, 32) == 0) {
			p->blob_fds[i] = fcntl(fd, F_DUPFD_CLOEXEC, 3);
			return p->blob_fds[i] < 0 ? -errno : 1;
		}
	return 0;
}

void receiver_on_blob(struct agent *a, unsigned peer, const uint8_t hash[32], int fd, uint64_t size)
{
	struct participant *d;

	list_for_each(d, &a->participants, link) {
		struct receiver *p = receiver_of(d);
		int r = waits_for_blobs(d, peer) ? take_blob(p, hash, fd, size) : 0;

		if (r == 0)
			continue;
		if (r < 0)
			participant_give_up(a, d, "memory",
					    "there are no descriptors for its layout");
		else if (p->blob_fds[BLOB_LAYOUT] >= 0 && p->blob_fds[BLOB_LEAVES] >= 0)
			create(a, p);
		return;
	}
}
