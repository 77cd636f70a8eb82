/*
 * A document that was signed but not committed is worthless: numbers of failed syncs are reused, so
 * its id may belong to other bytes by now. Hence the second signature, over the decision; a repair
 * without it is refused, from any node. No document begins as a decision does.
 */
#include "server/sync/state/document.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/layout.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/base/merkle.h"

#define PROTOCOL 1
#define N_BYTES_MAX ((uint64_t)1 << 50)
#define DECISION "commit "

uint64_t document_leaves_bytes(const struct document *d)
{
	return merkle_n_leaves(d->n_bytes) * MERKLE_HASH_SIZE;
}

struct document *document_free(struct document *d)
{
	if (!d)
		return NULL;
	free(d->text);
	free(d->signature);
	free(d->certificate);
	free(d->decision);
	free(d);
	return NULL;
}

uint64_t document_blobs_bytes(const struct document *d)
{
	return d->layout_bytes + document_leaves_bytes(d) + d->companions_bytes;
}

struct document *document_copy(const struct document *d)
{
	cleanup(document_freep) struct document *copy = malloc(sizeof(*copy));

	if (!copy)
		return NULL;
	*copy = *d;
	copy->text = strdup(d->text);
	copy->signature = strdup(d->signature);
	copy->certificate = strdup(d->certificate);
	copy->decision = d->decision ? strdup(d->decision) : NULL;
	if (!copy->text || !copy->signature || !copy->certificate ||
	    (d->decision && !copy->decision))
		return NULL;
	return take_ptr(copy);
}

/* --- Signing ----------------------------------------------------------------------------------- */

static int add_companions(const struct document *d, json_t *o)
{
	char hex[65];

	return json_object_update_new(
		o, json_pack("{s:s*, s:I, s:I}", "companions",
			     d->companions_bytes ? field_hex(d->companions, 32, hex) : NULL,
			     "companions_bytes", (json_int_t)d->companions_bytes, "header_bytes",
			     (json_int_t)d->header_bytes));
}

static char *write_text(const struct document *d)
{
	char root[65], layout[65], leaves[65];
	cleanup(json_freep) json_t *o = json_pack(
		"{s:i, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:s, s:I, s:s, s:b}", "protocol",
		PROTOCOL, "group", d->group, "buffer", d->buffer, "publisher", d->publisher, "term",
		(json_int_t)d->version_id.term, "number", (json_int_t)d->version_id.number,
		"time_ns", (json_int_t)d->time_ns, "n_bytes", (json_int_t)d->n_bytes, "root",
		field_hex(d->root, 32, root), "layout", field_hex(d->layout, 32, layout),
		"layout_bytes", (json_int_t)d->layout_bytes, "leaves",
		field_hex(d->leaves, 32, leaves), "exclusive", d->exclusive);

	if (!o || (d->has_companions && add_companions(d, o) < 0))
		return NULL;
	return json_dumps(o, JSON_COMPACT);
}

static int document_sign_text(struct agent *a, const char *text, char **ret, char why[WHY_SIZE])
{
	char signature[SIGNATURE_SIZE_MAX + 1];
	int r = a->env->sign(a->userdata, text, signature, sizeof(signature));

	if (r < 0) {
		snprintf(why, WHY_SIZE, "this node's key does not sign: %s", strerror(-r));
		return r;
	}
	*ret = strdup(signature);
	return *ret ? 0 : -ENOMEM;
}

int document_sign(struct agent *a, struct document *d, char why[WHY_SIZE])
{
	snprintf(why, WHY_SIZE, "out of memory");
	d->text = write_text(d);
	d->certificate = strdup(a->env->certificate(a->userdata));
	if (!d->text || !d->certificate)
		return -ENOMEM;
	return document_sign_text(a, d->text, &d->signature, why);
}

static char *decision_text(const struct document *d)
{
	char *text = NULL;

	return asprintf(&text, DECISION "%s", d->text) < 0 ? NULL : text;
}

int document_decide(struct agent *a, struct document *d, char why[WHY_SIZE])
{
	cleanup(freep) char *text = decision_text(d);

	snprintf(why, WHY_SIZE, "out of memory");
	return text ? document_sign_text(a, text, &d->decision, why) : -ENOMEM;
}

/* --- Reading ------------------------------------------------------------------------------------ */

static int copy_name(const json_t *o, const char *key, size_t max, char *ret)
{
	const char *s;

	if (field_string(o, key, max, &s) < 0)
		return -EBADMSG;
	memcpy(ret, s, strlen(s) + 1);
	return 0;
}

int document_read_companions(const json_t *o, struct document *d)
{
	d->has_companions = json_object_get(o, "companions_bytes");
	if (!d->has_companions)
		return 0;
	if (field_number(o, "companions_bytes", DOCUMENT_COMPANIONS_MAX, &d->companions_bytes) < 0 ||
	    field_number(o, "header_bytes", d->companions_bytes, &d->header_bytes) < 0)
		return -EBADMSG;
	return d->companions_bytes ? field_bytes(o, "companions", d->companions, 32) : 0;
}

static int read_text(struct document *d)
{
	cleanup(json_freep) json_t *o = json_loads(d->text, JSON_REJECT_DUPLICATES, NULL);
	uint64_t protocol;

	if (!json_is_object(o) || field_number(o, "protocol", PROTOCOL, &protocol) < 0 ||
	    protocol != PROTOCOL || copy_name(o, "group", GROUP_MAX, d->group) < 0 ||
	    copy_name(o, "buffer", BUFFER_MAX, d->buffer) < 0 ||
	    copy_name(o, "publisher", NODE_MAX, d->publisher) < 0 ||
	    field_number(o, "term", VERSION_ID_MAX, &d->version_id.term) < 0 ||
	    field_number(o, "number", VERSION_ID_MAX, &d->version_id.number) < 0 ||
	    field_number(o, "time_ns", INT64_MAX, &d->time_ns) < 0 ||
	    field_number(o, "n_bytes", N_BYTES_MAX, &d->n_bytes) < 0 ||
	    field_number(o, "layout_bytes", LAYOUT_SIZE_MAX, &d->layout_bytes) < 0 ||
	    field_bytes(o, "root", d->root, 32) < 0 || field_bytes(o, "layout", d->layout, 32) < 0 ||
	    field_bytes(o, "leaves", d->leaves, 32) < 0 || document_read_companions(o, d) < 0 ||
	    field_bool_or(o, "exclusive", false, &d->exclusive) < 0)
		return -EBADMSG;
	return d->n_bytes && d->layout_bytes && d->version_id.term && d->version_id.number
		       ? 0
		       : -EBADMSG;
}

/* A string that may have many lines. */
static int copy_lines(const json_t *o, const char *key, size_t max, char **ret)
{
	const json_t *value = json_object_get(o, key);
	const char *s = json_string_value(value);
	size_t n = json_string_length(value);

	if (!s || n == 0 || n > max || strlen(s) != n)
		return -EBADMSG;
	*ret = strdup(s);
	return *ret ? 0 : -ENOMEM;
}

int document_parse(const json_t *o, struct document **ret)
{
	cleanup(document_freep) struct document *d = calloc(1, sizeof(*d));
	const json_t *decision = json_object_get(o, "decision");
	int r;

	if (!d)
		return -ENOMEM;
	r = copy_lines(o, "document", DOCUMENT_SIZE_MAX, &d->text);
	if (r == 0)
		r = copy_lines(o, "signature", SIGNATURE_SIZE_MAX, &d->signature);
	if (r == 0)
		r = copy_lines(o, "certificate", CERTIFICATE_SIZE_MAX, &d->certificate);
	if (r == 0 && decision && !json_is_null(decision))
		r = copy_lines(o, "decision", SIGNATURE_SIZE_MAX, &d->decision);
	if (r == 0)
		r = read_text(d);
	if (r < 0)
		return r;
	*ret = take_ptr(d);
	return 0;
}

json_t *document_to_json(const struct document *d)
{
	return json_pack("{s:s, s:s, s:s, s:s?}", "document", d->text, "signature", d->signature,
			 "certificate", d->certificate, "decision", d->decision);
}

static int check_decision(struct agent *a, const struct document *d, const char *decision,
			  uint64_t time_ns, char why[WHY_SIZE])
{
	cleanup(freep) char *text = decision_text(d);

	snprintf(why, WHY_SIZE, "out of memory");
	return text ? a->env->check(a->userdata, text, decision, d->certificate, d->publisher,
				    time_ns, why)
		    : -ENOMEM;
}

static int check_at(struct agent *a, const struct document *d, uint64_t time_ns, char why[WHY_SIZE])
{
	int r = a->env->check(a->userdata, d->text, d->signature, d->certificate, d->publisher,
			      time_ns, why);

	return r == 0 && d->decision ? check_decision(a, d, d->decision, time_ns, why) : r;
}

int document_check(struct agent *a, const struct document *d, char why[WHY_SIZE])
{
	return check_at(a, d, TIME_NOW, why);
}

int document_check_then(struct agent *a, const struct document *d, char why[WHY_SIZE])
{
	return check_at(a, d, d->time_ns, why);
}

int document_take_decision(struct agent *a, struct document *d, const json_t *message,
			   char why[WHY_SIZE])
{
	cleanup(freep) char *decision = NULL;
	int r = copy_lines(message, "decision", SIGNATURE_SIZE_MAX, &decision);

	if (r < 0) {
		snprintf(why, WHY_SIZE, "COMMIT came without the publisher's decision");
		return r;
	}
	if (d->decision && strcmp(d->decision, decision) == 0)
		return 0; /* it was checked with the document */
	r = check_decision(a, d, decision, TIME_NOW, why);
	if (r < 0)
		return r;
	free(d->decision);
	d->decision = take_ptr(decision);
	return 0;
}
