/*
 * Parses any bytes as a version's document: an accepted one has bounded sizes, and is forwarded
 * unchanged.
 */
#include <string.h>

#include "ipc/layout.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/state/document.h"
#include "tests/fuzz/fuzz.h"

static void check_bounds(const struct document *d)
{
	MUST(strlen(d->text) <= DOCUMENT_SIZE_MAX && strlen(d->signature) <= SIGNATURE_SIZE_MAX);
	MUST(strlen(d->certificate) <= CERTIFICATE_SIZE_MAX);
	MUST(!d->decision || strlen(d->decision) <= SIGNATURE_SIZE_MAX);
	MUST(d->group[0] && d->buffer[0] && d->publisher[0] && d->version_id.term &&
	     d->version_id.number);
	MUST(d->n_bytes && d->layout_bytes && d->layout_bytes <= LAYOUT_SIZE_MAX);
	MUST(d->companions_bytes <= DOCUMENT_COMPANIONS_MAX &&
	     d->header_bytes <= d->companions_bytes);
	MUST(d->has_companions || !d->companions_bytes);
	MUST(document_leaves_bytes(d) / 32 <= d->n_bytes); /* no overflow */
}

static bool is_same(const struct document *x, const struct document *y)
{
	return !strcmp(x->text, y->text) && !strcmp(x->signature, y->signature) &&
	       !strcmp(x->certificate, y->certificate) && !x->decision == !y->decision &&
	       (!x->decision || !strcmp(x->decision, y->decision)) &&
	       !memcmp(&x->version_id, &y->version_id, sizeof(x->version_id)) &&
	       x->n_bytes == y->n_bytes && !memcmp(x->root, y->root, sizeof(x->root)) &&
	       x->companions_bytes == y->companions_bytes && x->header_bytes == y->header_bytes &&
	       !memcmp(x->companions, y->companions, sizeof(x->companions));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup(json_freep) json_t *o = json_loadb((const char *)data, size, 0, NULL);
	cleanup(document_freep) struct document *d = NULL;
	cleanup(document_freep) struct document *again = NULL;
	cleanup(json_freep) json_t *written = NULL;

	if (!o || document_parse(o, &d) < 0) {
		MUST(!d);
		return 0;
	}
	check_bounds(d);
	written = document_to_json(d);
	MUST(written && document_parse(written, &again) == 0 && is_same(d, again));
	return 0;
}
