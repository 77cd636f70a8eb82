/*
 * The source job of a transaction lends a version of the local weightd until the sync is over, and reads it once.
 * Of a push, what it reads is what this node signs; of a repair, it has to be what its publisher signed.
 *
 * The job of a push outlives it, as the head's loan: the local weightd has the memory then until the next push was
 * compared with it, even if newer versions are published meanwhile. That is given back as soon as anybody wants it
 * there, and whenever what is committed is something else: a patch that begins with it would help nobody.
 */
#include "server/sync/lender.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "server/sync/base/fields.h"
#include "server/sync/delta.h"
#include "server/sync/repair.h"

#define KEPT_MAX 32 /* loans of heads: each has a process, and a connection to weightd */

struct loan {
	struct work work; /* source */
	struct transaction *t; /* NULL: it is over */
	struct head *head;
	uint64_t version;
	uint64_t kept_ns; /* since when its head keeps it */
	uint64_t n_bytes;
	uint8_t root[32];
	int data_fd;
	int leaves_fd;
};

static struct loan *loan_free(struct agent *a, struct loan *l)
{
	if (!l)
		return NULL;
	work_end(a, &l->work);
	(void)fd_close(l->data_fd);
	(void)fd_close(l->leaves_fd);
	free(l);
	return NULL;
}

void lender_end(struct agent *a, struct transaction *t)
{
	t->loan = loan_free(a, t->loan);
}

void lender_forget(struct agent *a, struct head *h)
{
	h->kept = loan_free(a, h->kept);
}

void lender_keep_to(struct agent *a, struct head *h, const uint8_t root[32])
{
	if (h->kept && memcmp(h->kept->root, root, sizeof(h->kept->root)) != 0)
		lender_forget(a, h);
}

void lender_forget_version(struct agent *a, struct head *h, uint64_t version)
{
	if (h->kept && h->kept->version == version)
		lender_forget(a, h);
}

/* The buffer that was pushed longest ago goes without, where there are too many. */
static void make_room(struct agent *a)
{
	struct head *h, *oldest = NULL;
	unsigned n = 0;

	list_for_each(h, &a->heads, link) {
		if (!h->kept)
			continue;
		n++;
		if (!oldest || h->kept->kept_ns < oldest->kept->kept_ns)
			oldest = h;
	}
	if (n >= KEPT_MAX)
		lender_forget(a, oldest);
}

static bool is_in_host_memory(const struct transaction *t)
{
	return strcmp(t->group->device, GROUP_DEVICE_DEFAULT) == 0;
}

void lender_keep(struct agent *a, struct transaction *t)
{
	struct loan *l = take_ptr(t->loan);

	/*
	 * What is lent of a GPU is a copy, and no lease. Memory that weightd means to use again is not sealed, and it
	 * would have to take other memory for the next version.
	 */
	if (!a->config->patches || !l->work.job || t->is_unwanted || !is_in_host_memory(t) ||
	    !fd_is_sealed(t->data_fd)) {
		(void)loan_free(a, l);
		return;
	}
	l->t = NULL;
	l->kept_ns = agent_now(a);
	l->version = t->version;
	l->n_bytes = t->document->n_bytes;
	memcpy(l->root, t->document->root, sizeof(l->root));
	l->data_fd = take_fd(t->data_fd);
	l->leaves_fd = take_fd(t->leaves_fd);
	lender_forget(a, t->head);
	make_room(a);
	t->head->kept = l;
}

void lender_failed(struct agent *a, struct transaction *t, const char *why)
{
	if (t->is_repair && t->phase <= PHASE_DIGEST) {
		head_set_lost(a, t->head);
		repair_refuse(a, t->members[0].peer, t->head->buffer, "lost", why);
		t->members[0].state = MEMBER_ABSENT;
	}
	transaction_fail(a, t, "%s", why);
}

/* The version is here, and no room for what it would be sent from: another node may have some. */
static void fail_for_room(struct agent *a, struct transaction *t, const char *why)
{
	if (t->is_repair)
		repair_refuse(a, t->members[0].peer, t->head->buffer, "memory", why);
	transaction_fail(a, t, "%s", why);
}

static void on_attached(struct agent *a, struct transaction *t, const json_t *message, int *fds,
			unsigned n_fds)
{
	struct document *d = t->document;
	const char *memory;

	if (t->phase != PHASE_ATTACH || n_fds != 2 ||
	    field_string(message, "memory", MEMORY_NAME_MAX, &memory) < 0 ||
	    strcmp(memory, "host") != 0 ||
	    field_number(message, "version", INT64_MAX, &t->version) < 0 ||
	    field_number(message, "n_bytes", INT64_MAX, &d->n_bytes) < 0 ||
	    field_number(message, "layout_bytes", INT64_MAX, &d->layout_bytes) < 0 ||
	    field_bytes(message, "layout", d->layout, 32) < 0) {
		lender_failed(a, t, "the source job answered something else than was asked");
		return;
	}
	if (!d->n_bytes) {
		transaction_fail(a, t,
				 "version %ju of it has no bytes, and so there is nothing to push",
				 (uintmax_t)t->version);
		return;
	}
	if (a->config->max_bytes && d->n_bytes > a->config->max_bytes) {
		transaction_fail(a, t, "it has %ju bytes, and max-bytes of %s is %ju",
				 (uintmax_t)d->n_bytes, a->config->name,
				 (uintmax_t)a->config->max_bytes);
		return;
	}
	t->layout_fd = take_fd(fds[0]);
	t->data_fd = take_fd(fds[1]);
	transaction_set_phase(a, t, PHASE_DIGEST, agent_time_for(a, d->n_bytes));
	t->whole_ns = t->deadline_ns;
}

static bool is_as_recorded(const struct document *d, const struct document *recorded)
{
	return d->n_bytes == recorded->n_bytes && memcmp(d->root, recorded->root, 32) == 0 &&
	       d->layout_bytes == recorded->layout_bytes &&
	       memcmp(d->layout, recorded->layout, 32) == 0 &&
	       memcmp(d->leaves, recorded->leaves, 32) == 0;
}

static void take_recorded(struct agent *a, struct transaction *t)
{
	struct document *recorded = t->head->document ? document_copy(t->head->document) : NULL;

	if (!recorded || !is_as_recorded(t->document, recorded)) {
		document_free(recorded);
		lender_failed(a, t, "the local weightd has other bytes than the record says");
		return;
	}
	document_free(t->document);
	t->document = recorded;
	if (memcmp(t->head->patches.result, recorded->root, 32) == 0)
		(void)patches_copy(&t->head->patches, &t->delta.patches); /* else leaves travel */
	transaction_prepare(a, t);
}

static void write_document(struct agent *a, struct transaction *t)
{
	struct document *d = t->document;
	char why[WHY_SIZE];

	snprintf(d->buffer, sizeof(d->buffer), "%s", t->head->buffer);
	snprintf(d->publisher, sizeof(d->publisher), "%s", a->config->name);
	d->time_ns = a->edge->time_ns(a->world);
	if (head_next(a, t->head, t->group, &d->pair) < 0) {
		transaction_fail(a, t, "there are no numbers left after those of %s",
				 t->head->buffer);
	} else if (document_sign(a, d, why) < 0) {
		transaction_fail(a, t, "%s", why);
	} else {
		transaction_prepare(a, t);
	}
}

/* From what this node pushed last. Without one all is as before, and leaves travel. */
static void take_patch(struct transaction *t, const json_t *patch, int *fd)
{
	const struct loan *kept = t->head->kept;
	struct kept_patch k = {0};

	if (!kept || field_number(patch, "size", t->document->n_bytes, &k.size) < 0 || !k.size ||
	    field_number(patch, "changed", INT64_MAX, &k.changed) < 0 ||
	    patches_copy(&t->head->patches, &t->delta.patches) < 0)
		return;
	k.fd = take_fd(*fd);
	memcpy(k.base, kept->root, sizeof(k.base));
	patches_add(&t->delta.patches, &k, t->document->root, t->document->n_bytes);
}

static void on_root(struct agent *a, struct transaction *t, const json_t *message, int *fds,
		    unsigned n_fds)
{
	struct document *d = t->document;

	if (t->phase != PHASE_DIGEST || !n_fds || n_fds > 2 ||
	    field_bytes(message, "root", d->root, 32) < 0 ||
	    field_bytes(message, "leaves", d->leaves, 32) < 0) {
		lender_failed(a, t, "the source job answered something else than was asked");
		return;
	}
	t->leaves_fd = take_fd(fds[0]);
	if (n_fds == 2)
		take_patch(t, json_object_get(message, "patch"), &fds[1]);
	if (!t->is_repair && !t->is_dry)
		lender_forget(a, t->head);
	if (t->is_repair)
		take_recorded(a, t);
	else
		write_document(a, t);
}

static void on_source_message(struct agent *a, struct work *w, const json_t *message, int *fds,
			      unsigned n_fds)
{
	struct loan *l = container_of(w, struct loan, work);
	const char *op, *code = "", *why = "the source job did not say why it failed";
	struct transaction *t = l->t;

	if (!t || t->phase == PHASE_ENDED)
		return;
	if (field_string(message, "op", 32, &op) < 0)
		op = "";
	if (strcmp(op, "attached") == 0) {
		on_attached(a, t, message, fds, n_fds);
	} else if (strcmp(op, "root") == 0) {
		on_root(a, t, message, fds, n_fds);
	} else if (strcmp(op, "composed") == 0) {
		delta_on_composed(a, t, message, fds, n_fds);
	} else {
		(void)field_string(message, "code", 32, &code);
		(void)field_string(message, "why", WHY_SIZE - 1, &why);
		if (t->is_repair && strcmp(code, "superseded") == 0)
			head_set_superseded(a, t->head);
		if (strcmp(code, "memory") == 0)
			fail_for_room(a, t, why);
		else
			lender_failed(a, t, why);
	}
}

static void on_source_end(struct agent *a, struct work *w, const char *how)
{
	struct loan *l = container_of(w, struct loan, work);
	struct transaction *t = l->t;
	char why[WHY_SIZE];

	if (!t) {
		lender_forget(a, l->head);
		return;
	}
	if (t->phase == PHASE_ENDED)
		return;
	snprintf(why, sizeof(why), "the source process on %s ended (%s)", a->config->name, how);
	lender_failed(a, t, why);
}

void lender_compose(struct agent *a, struct transaction *t, const int *fds, unsigned n_fds)
{
	work_tell(a, &t->loan->work, json_pack("{s:s}", "op", "compose"), fds, n_fds);
}

static json_t *base_of(const struct loan *l)
{
	char hex[65];

	return json_pack("{s:I, s:s}", "n_bytes", (json_int_t)l->n_bytes, "root",
			 field_hex(l->root, 32, hex));
}

int lender_start(struct agent *a, struct transaction *t, uint64_t version, char why[WHY_SIZE])
{
	const struct loan *kept = t->is_repair || !is_in_host_memory(t) ? NULL : t->head->kept;
	struct loan *l = calloc(1, sizeof(*l));
	json_t *message;
	int r;

	if (!l)
		return -ENOMEM;
	*l = (struct loan){.work = {.on_message = on_source_message, .on_end = on_source_end},
			   .t = t,
			   .head = t->head,
			   .data_fd = -1,
			   .leaves_fd = -1};
	t->loan = l;
	r = work_start(a, &l->work, JOB_SOURCE, why);
	if (r < 0)
		return r;
	transaction_set_phase(a, t, PHASE_ATTACH, agent_time_for(a, 0));
	t->whole_ns = t->deadline_ns;
	message = json_pack("{s:s, s:s?, s:s, s:s, s:I}", "op", "attach", "socket",
			    a->config->weightd_socket, "buffer", t->head->buffer, "device",
			    t->group->device, "version", (json_int_t)version);
	if (kept)
		json_object_set_new(message, "base", base_of(kept));
	work_tell(a, &l->work, message, kept ? (const int[]){kept->data_fd, kept->leaves_fd} : NULL,
		  kept ? 2 : 0);
	return 0;
}
