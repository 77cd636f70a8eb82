/*
 * The source job of a transaction lends a version of the local weightd until the sync is over, and reads it once.
 * Of a push, what it reads is what this node signs; of a repair, it has to be what its publisher signed.
 */
#include "server/sync/lender.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "server/sync/base/fields.h"
#include "server/sync/repair.h"

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

static void on_root(struct agent *a, struct transaction *t, const json_t *message, int *fds,
		    unsigned n_fds)
{
	struct document *d = t->document;

	if (t->phase != PHASE_DIGEST || n_fds != 1 || field_bytes(message, "root", d->root, 32) < 0 ||
	    field_bytes(message, "leaves", d->leaves, 32) < 0) {
		lender_failed(a, t, "the source job answered something else than was asked");
		return;
	}
	t->leaves_fd = take_fd(fds[0]);
	if (t->is_repair)
		take_recorded(a, t);
	else
		write_document(a, t);
}

static void on_source_message(struct agent *a, struct work *w, const json_t *message, int *fds,
			      unsigned n_fds)
{
	struct transaction *t = container_of(w, struct transaction, source);
	const char *op, *code = "", *why = "the source job did not say why it failed";

	if (t->phase == PHASE_ENDED)
		return;
	if (field_string(message, "op", 32, &op) < 0)
		op = "";
	if (strcmp(op, "attached") == 0) {
		on_attached(a, t, message, fds, n_fds);
	} else if (strcmp(op, "root") == 0) {
		on_root(a, t, message, fds, n_fds);
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
	struct transaction *t = container_of(w, struct transaction, source);
	char why[WHY_SIZE];

	if (t->phase == PHASE_ENDED)
		return;
	snprintf(why, sizeof(why), "the source process on %s ended (%s)", a->config->name, how);
	lender_failed(a, t, why);
}

int lender_start(struct agent *a, struct transaction *t, uint64_t version, char why[WHY_SIZE])
{
	int r;

	t->source = (struct work){.on_message = on_source_message, .on_end = on_source_end};
	r = work_start(a, &t->source, JOB_SOURCE, why);
	if (r < 0)
		return r;
	transaction_set_phase(a, t, PHASE_ATTACH, agent_time_for(a, 0));
	t->whole_ns = t->deadline_ns;
	work_tell(a, &t->source,
		  json_pack("{s:s, s:s?, s:s, s:s, s:I}", "op", "attach", "socket",
			    a->config->weightd_socket, "buffer", t->head->buffer, "device",
			    t->group->device, "version", (json_int_t)version),
		  NULL, 0);
	return 0;
}
