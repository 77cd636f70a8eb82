/*
 * The source job of a broadcast lends a version of the local weightd until the sync is over, and reads it once.
 * Of a push, what it reads is what this node signs; of a repair, it has to be what its publisher signed.
 *
 * The job of a push outlives it, as the replica's loan: the local weightd has the memory then until the next push was
 * compared with it, even if newer versions are published meanwhile. That is given back as soon as anybody wants it
 * there, and whenever what is committed is something else: a patch that begins with it would help nobody.
 *
 * A repair takes that over, and gives it back. If it had to read the version itself, the replica has the loan for some
 * seconds more: of many that lack it, each asks when another one was served, and it is read once.
 */
#include "server/sync/coordinator/broadcast_source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/coordinator/nccl_epoch.h"
#include "server/sync/coordinator/patch_policy.h"
#include "server/sync/coordinator/repair_refusal.h"
#include "server/sync/state/loan.h"
#include "server/sync/state/time_limit.h"
#include "server/sync/state/transport.h"

static bool is_in_host_memory(const struct broadcast *b)
{
	return strcmp(b->sync.group->device, GROUP_DEVICE_DEFAULT) == 0;
}

/* Once, with what the broadcast has of it. */
static void broadcast_source_fill_loan(struct agent *a, struct broadcast *b, struct loan *l)
{
	l->broadcast = NULL;
	l->kept_ns = agent_now(a);
	l->version = b->sync.version;
	l->n_bytes = b->sync.document->n_bytes;
	memcpy(l->root, b->sync.document->root, sizeof(l->root));
	l->layout_fd = take_fd(b->layout_fd);
	l->data_fd = take_fd(b->data_fd);
	l->data_offset = b->data_offset;
	l->leaves_fd = take_fd(b->leaves_fd);
	l->companions_fd = take_fd(b->companions_fd);
}

void broadcast_source_keep(struct agent *a, struct broadcast *b)
{
	struct loan *l = take_ptr(b->loan);

	/*
	 * Memory lent from a GPU is a copy, and no lease. weightd does not seal memory that it means to use again, and
	 * would need other memory for the next version.
	 */
	if (!a->config->patches || !l->work.job || b->is_unwanted || !is_in_host_memory(b) ||
	    !fd_is_sealed(b->data_fd)) {
		(void)loan_free(a, l);
		return;
	}
	broadcast_source_fill_loan(a, b, l);
	loan_keep(a, l);
}

/* Its bytes were right, as far as the receiver says, and its version is still the committed one. */
static bool is_to_be_lent_again(const struct broadcast *b, const struct loan *l)
{
	const struct replica *rep = b->sync.replica;

	return sync_is_repair(&b->sync) && l->work.job && b->leaves_fd >= 0 && !b->is_unwanted &&
	       !b->sync.members[0].n_corrupt && !rep->kept &&
	       (l->is_of_push || rep->state == REPLICA_SERVING) &&
	       memcmp(b->sync.document->root, rep->document->root, sizeof(rep->document->root)) == 0;
}

void broadcast_source_end(struct agent *a, struct broadcast *b)
{
	struct loan *l = take_ptr(b->loan);

	if (!l)
		return;
	if (!is_to_be_lent_again(b, l)) {
		(void)loan_free(a, l);
		return;
	}
	broadcast_source_fill_loan(a, b, l);
	loan_keep_for_repairs(a, l);
}

void broadcast_source_failed(struct agent *a, struct broadcast *b, const char *why)
{
	if (sync_is_repair(&b->sync) && b->sync.phase <= PHASE_DIGEST) {
		replica_set_lost(a, b->sync.replica);
		repair_refusal_send(a, b->sync.members[0].peer, b->sync.replica->buffer, "lost",
				    why);
		b->sync.members[0].state = MEMBER_ABSENT;
	}
	sync_fail(a, &b->sync, "%s", why);
}

/* The version is here, and no room for what it would be sent from: another node may have some. */
static void fail_for_room(struct agent *a, struct broadcast *b, const char *why)
{
	if (sync_is_repair(&b->sync) && b->sync.phase <= PHASE_DIGEST) {
		repair_refusal_send(a, b->sync.members[0].peer, b->sync.replica->buffer, "memory",
				    why);
		b->sync.members[0].state = MEMBER_ABSENT;
	}
	sync_fail(a, &b->sync, "%s", why);
}

static void broadcast_source_on_attached(struct agent *a, struct broadcast *b,
					 const json_t *message, int *fds, unsigned n_fds)
{
	struct document *d = b->sync.document;

	if (b->sync.phase != PHASE_ATTACH || document_read_companions(message, d) < 0 ||
	    n_fds != 2u + (d->companions_bytes > 0) ||
	    gpu_memory_read(message, &b->nccl.memory) < 0 ||
	    b->nccl.is_wanted != (b->nccl.memory.gpu[0] != '\0') ||
	    field_number(message, "version", INT64_MAX, &b->sync.version) < 0 ||
	    field_number(message, "n_bytes", INT64_MAX, &d->n_bytes) < 0 ||
	    field_number_or(message, "data_offset", DATA_OFFSET_MAX, 0, &b->data_offset) < 0 ||
	    field_number(message, "layout_bytes", INT64_MAX, &d->layout_bytes) < 0 ||
	    field_bytes(message, "layout", d->layout, 32) < 0) {
		broadcast_source_failed(a, b,
					"the source job answered something else than was asked");
		return;
	}
	if (!d->n_bytes) {
		sync_fail(a, &b->sync,
			  "version %ju of it has no bytes, and so there is nothing to push",
			  (uintmax_t)b->sync.version);
		return;
	}
	if (a->config->max_bytes && d->n_bytes > a->config->max_bytes) {
		sync_fail(a, &b->sync, "it has %ju bytes, and max-bytes of %s is %ju",
			  (uintmax_t)d->n_bytes, a->config->name, (uintmax_t)a->config->max_bytes);
		return;
	}
	b->layout_fd = take_fd(fds[0]);
	b->data_fd = take_fd(fds[1]);
	if (d->companions_bytes)
		b->companions_fd = take_fd(fds[2]);
	sync_set_phase(a, &b->sync, PHASE_DIGEST, time_limit_for(a, d->n_bytes));
}

static bool is_as_recorded(const struct document *d, const struct document *recorded)
{
	return d->n_bytes == recorded->n_bytes && memcmp(d->root, recorded->root, 32) == 0 &&
	       d->layout_bytes == recorded->layout_bytes &&
	       memcmp(d->layout, recorded->layout, 32) == 0 &&
	       memcmp(d->leaves, recorded->leaves, 32) == 0;
}

static bool has_companions_of(const struct document *d, const struct document *recorded)
{
	return d->companions_bytes == recorded->companions_bytes &&
	       d->header_bytes == recorded->header_bytes &&
	       memcmp(d->companions, recorded->companions, 32) == 0;
}

/* Takes the document. NULL: there was no memory for it. */
static void begin_with(struct agent *a, struct broadcast *b, struct document *recorded)
{
	if (!recorded) {
		sync_fail(a, &b->sync, "%s ran out of memory", a->config->name);
		return;
	}
	document_free(b->sync.document);
	b->sync.document = recorded;
	if (memcmp(b->sync.replica->patch_chain.result, recorded->root, 32) == 0)
		(void)patch_chain_copy(&b->sync.replica->patch_chain,
				       &b->patch_policy.patch_chain); /* else leaves travel */
	sync_prepare(a, &b->sync);
}

static void take_recorded(struct agent *a, struct broadcast *b)
{
	struct document *recorded = b->sync.replica->document
					    ? document_copy(b->sync.replica->document)
					    : NULL;

	if (!recorded || !is_as_recorded(b->sync.document, recorded)) {
		document_free(recorded);
		broadcast_source_failed(a, b,
					"the local weightd has other bytes than the record says");
		return;
	}
	/* An earlier weightd-sync may have had the version without them. */
	if (!has_companions_of(b->sync.document, recorded))
		b->companions_fd = fd_close(b->companions_fd);
	begin_with(a, b, recorded);
}

static void write_document(struct agent *a, struct broadcast *b)
{
	struct document *d = b->sync.document;
	char why[WHY_SIZE];

	snprintf(d->buffer, sizeof(d->buffer), "%s", b->sync.replica->buffer);
	snprintf(d->publisher, sizeof(d->publisher), "%s", a->config->name);
	d->time_ns = a->env->time_ns(a->userdata);
	if (replica_next(a, b->sync.replica, b->sync.group, &d->version_id) < 0) {
		sync_fail(a, &b->sync, "there are no numbers left after those of %s",
			  b->sync.replica->buffer);
	} else if (document_sign(a, d, why) < 0) {
		sync_fail(a, &b->sync, "%s", why);
	} else {
		sync_prepare(a, &b->sync);
	}
}

/* From what this node pushed last. Without one all is as before, and leaves travel. */
static void take_patch(struct broadcast *b, const json_t *patch, int *fd)
{
	const struct loan *kept = b->sync.replica->kept;
	struct kept_patch k = {0};

	if (!kept || !kept->is_of_push ||
	    field_number(patch, "size", b->sync.document->n_bytes, &k.size) < 0 || !k.size ||
	    field_number(patch, "changed", INT64_MAX, &k.changed) < 0 ||
	    patch_chain_copy(&b->sync.replica->patch_chain, &b->patch_policy.patch_chain) < 0)
		return;
	k.fd = take_fd(*fd);
	memcpy(k.base, kept->root, sizeof(k.base));
	patch_chain_add(&b->patch_policy.patch_chain, &k, b->sync.document->root,
			b->sync.document->n_bytes);
}

static void on_root(struct agent *a, struct broadcast *b, const json_t *message, int *fds,
		    unsigned n_fds)
{
	struct document *d = b->sync.document;

	if (b->sync.phase != PHASE_DIGEST || !n_fds || n_fds > 2 ||
	    field_bytes(message, "root", d->root, 32) < 0 ||
	    field_bytes(message, "leaves", d->leaves, 32) < 0) {
		broadcast_source_failed(a, b,
					"the source job answered something else than was asked");
		return;
	}
	b->leaves_fd = take_fd(fds[0]);
	if (n_fds == 2)
		take_patch(b, json_object_get(message, "patch"), &fds[1]);
	if (!sync_is_repair(&b->sync) && !b->sync.is_dry)
		loan_forget(a, b->sync.replica);
	if (sync_is_repair(&b->sync))
		take_recorded(a, b);
	else
		write_document(a, b);
}

static void broadcast_source_on_source_message(struct agent *a, struct work *w,
					       const json_t *message, int *fds, unsigned n_fds)
{
	struct loan *l = container_of(w, struct loan, work);
	const char *op, *code = "", *why = "the source job did not say why it failed";
	struct broadcast *b = l->broadcast;

	if (!b || b->sync.phase == PHASE_ENDED)
		return;
	if (field_string(message, "op", 32, &op) < 0)
		op = "";
	if (strcmp(op, "attached") == 0) {
		broadcast_source_on_attached(a, b, message, fds, n_fds);
	} else if (strcmp(op, "root") == 0) {
		on_root(a, b, message, fds, n_fds);
	} else if (strcmp(op, "staged") == 0) {
		nccl_epoch_on_staged(a, b, fds, n_fds);
	} else if (strcmp(op, "composed") == 0) {
		patch_policy_on_composed(a, b, message, fds, n_fds);
	} else {
		(void)field_string(message, "code", 32, &code);
		(void)field_string(message, "why", WHY_SIZE - 1, &why);
		if (sync_is_repair(&b->sync) && strcmp(code, "superseded") == 0)
			replica_set_superseded(a, b->sync.replica);
		if (strcmp(code, "memory") == 0)
			fail_for_room(a, b, why);
		else
			broadcast_source_failed(a, b, why);
	}
}

static void broadcast_source_on_source_end(struct agent *a, struct work *w, const char *how)
{
	struct loan *l = container_of(w, struct loan, work);
	struct broadcast *b = l->broadcast;
	char why[WHY_SIZE];

	if (!b) {
		loan_forget(a, l->replica);
		return;
	}
	if (b->sync.phase == PHASE_ENDED)
		return;
	snprintf(why, sizeof(why), "the source process on %s ended (%s)", a->config->name, how);
	broadcast_source_failed(a, b, why);
}

void broadcast_source_compose(struct agent *a, struct broadcast *b, const int *fds, unsigned n_fds)
{
	work_tell(a, &b->loan->work, json_pack("{s:s}", "op", "compose"), fds, n_fds);
}

void broadcast_source_stage(struct agent *a, struct broadcast *b, const struct ranges *ranges)
{
	work_tell(a, &b->loan->work,
		  json_pack("{s:s, s:o}", "op", "stage", "ranges", ranges_to_json(ranges)), NULL, 0);
}

/* The loan of the last push, for a push; or NULL. */
static const struct loan *base_for(const struct broadcast *b)
{
	const struct loan *kept = b->sync.replica->kept;

	return kept && kept->is_of_push && !sync_is_repair(&b->sync) && is_in_host_memory(b) ? kept
											     : NULL;
}

static json_t *describe_base(const struct loan *l)
{
	char hex[65];

	return json_pack("{s:I, s:I, s:s}", "n_bytes", (json_int_t)l->n_bytes, "data_offset",
			 (json_int_t)l->data_offset, "root", field_hex(l->root, 32, hex));
}

/* Gives the loan of the replica to a repair, if it fits. */
static bool take_kept(struct agent *a, struct broadcast *b, uint64_t version)
{
	struct replica *rep = b->sync.replica;
	struct loan *l = rep->kept;

	if (!sync_is_repair(&b->sync) || !l || l->version != version ||
	    memcmp(l->root, rep->document->root, sizeof(l->root)) != 0)
		return false;
	list_remove(&l->link);
	l->broadcast = b;
	b->sync.version = l->version;
	b->layout_fd = take_fd(l->layout_fd);
	b->data_fd = take_fd(l->data_fd);
	b->data_offset = l->data_offset;
	b->leaves_fd = take_fd(l->leaves_fd);
	b->companions_fd = take_fd(l->companions_fd);
	b->loan = take_ptr(rep->kept);
	sync_set_phase(a, &b->sync, PHASE_DIGEST, time_limit_for(a, 0));
	b->sync.whole_ns = UINT64_MAX;
	return true;
}

void broadcast_source_go_on(struct agent *a, struct broadcast *b)
{
	if (b->sync.phase == PHASE_DIGEST)
		begin_with(a, b, document_copy(b->sync.replica->document));
}

int broadcast_source_start(struct agent *a, struct broadcast *b, uint64_t version,
			   char why[WHY_SIZE])
{
	const struct loan *base = base_for(b);
	struct loan *l;
	json_t *message;
	int r;

	if (take_kept(a, b, version))
		return 0;
	if (!is_in_host_memory(b))
		loan_forget_idle(a, NULL); /* there has to be room for a copy */
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	*l = (struct loan){.work = {.on_message = broadcast_source_on_source_message,
				    .on_end = broadcast_source_on_source_end},
			   .broadcast = b,
			   .replica = b->sync.replica,
			   .layout_fd = -1,
			   .data_fd = -1,
			   .leaves_fd = -1,
			   .companions_fd = -1};
	list_init(&l->link);
	b->loan = l;
	r = work_start(a, &l->work, JOB_SOURCE, b->sync.replica->buffer, why);
	if (r < 0)
		return r;
	sync_set_phase(a, &b->sync, PHASE_ATTACH, time_limit_for(a, 0));
	b->sync.whole_ns = UINT64_MAX;
	message = json_pack("{s:s, s:s?, s:s, s:s, s:I}", "op", "attach", "socket",
			    a->config->weightd_socket, "buffer", b->sync.replica->buffer, "device",
			    b->sync.group->device, "version", (json_int_t)version);
	if (base)
		json_object_set_new(message, "base", describe_base(base));
	if (b->nccl.is_wanted)
		json_object_set_new(message, "engine", json_string(transport_nccl.name));
	work_tell(a, &l->work, message, base ? (const int[]){base->data_fd, base->leaves_fd} : NULL,
		  base ? 2 : 0);
	return 0;
}
