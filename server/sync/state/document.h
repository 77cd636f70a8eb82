/*
 * Documents
 *
 * What a publisher says of a version, signed: which bytes they are, and where in the order of versions they
 * stand. With the decision to commit, signed as well, it is all that a node needs to take the version from
 * anybody.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/cleanup.h"
#include "server/sync/state/agent_state.h"

#define DOCUMENT_SIZE_MAX 4096
#define SIGNATURE_SIZE_MAX 256
#define CERTIFICATE_SIZE_MAX 16384
#define CORRUPT_MAX 3 /* times that a member may find other bytes than were signed */

struct document {
	char *text; /* exactly what was signed */
	char *signature;
	char *certificate;
	char *decision; /* the publisher's signature that this version was committed; NULL: not known to be */

	char group[GROUP_MAX + 1];
	char buffer[BUFFER_MAX + 1];
	char publisher[NODE_MAX + 1];
	struct version_id version_id;
	uint64_t time_ns;
	uint64_t n_bytes;
	uint8_t root[32];
	uint8_t layout[32];
	uint64_t layout_bytes;
	uint8_t leaves[32];
	bool exclusive;
};

/* Signs what `d` says with this node's key, and fills in the texts. -errno with a sentence. */
int document_sign(struct agent *a, struct document *d, char why[WHY_SIZE]);
/* Signs the decision. */
int document_decide(struct agent *a, struct document *d, char why[WHY_SIZE]);

/*
 * From {document, signature, certificate, decision|null}, with bounds, believing nothing: signatures are not
 * looked at. -EBADMSG, -ENOMEM.
 */
int document_parse(const json_t *o, struct document **ret);
/* The same object. NULL: no memory. */
json_t *document_to_json(const struct document *d);

/*
 * Returns whether its publisher signed it, and the decision if it has one, with a certificate that
 * is good now, or that was good at its own time, which whoever has the key may choose.
 * -EKEYREJECTED with a sentence.
 */
int document_check(struct agent *a, const struct document *d, char why[WHY_SIZE]);
int document_check_then(struct agent *a, const struct document *d, char why[WHY_SIZE]);
/*
 * Returns whether this is the publisher's decision on it; it is kept then. -EKEYREJECTED, -EBADMSG
 * or -ENOMEM.
 */
int document_take_decision(struct agent *a, struct document *d, const json_t *message,
			   char why[WHY_SIZE]);

uint64_t document_leaves_bytes(const struct document *d);
/* Bytes of the layout and the leaves. */
uint64_t document_blobs_bytes(const struct document *d);

struct document *document_copy(const struct document *d);
struct document *document_free(struct document *d);
CLEANUP_POINTER(struct document, document_free);
