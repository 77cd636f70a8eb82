/*
 * Documents
 *
 * A publisher's signed statement about a version: its bytes, and its place in the order of
 * versions. With the decision to commit, signed as well, it is all that a node needs to accept the
 * version from any other node.
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
#define DOCUMENT_COMPANIONS_MAX (DATA_OFFSET_MAX + FILES_MAX)
#define CORRUPT_MAX 3 /* times that a member may receive corrupted bytes */

struct document {
	char *text; /* exactly the signed text */
	char *signature;
	char *certificate;
	/* The publisher's signature that this version was committed; NULL: unknown. */
	char *decision;

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
	/*
	 * One blob: the header of a version that is a file, then its files. Earlier publishers have
	 * none, and do not say so.
	 */
	bool has_companions;
	uint8_t companions[32];
	uint64_t companions_bytes; /* 0: no blob */
	uint64_t header_bytes; /* of these */
	bool exclusive;
};

/* Reads the companions of a version from a message; an absent field says nothing. -EBADMSG. */
int document_read_companions(const json_t *o, struct document *d);

/* Signs `d` with this node's key, and sets the texts. -errno with a sentence. */
int document_sign(struct agent *a, struct document *d, char why[WHY_SIZE]);
/* Signs the decision. */
int document_decide(struct agent *a, struct document *d, char why[WHY_SIZE]);

/*
 * Parses {document, signature, certificate, decision|null}, with bounds. Does not verify
 * signatures. -EBADMSG, -ENOMEM.
 */
int document_parse(const json_t *o, struct document **ret);
/* The same object. NULL: no memory. */
json_t *document_to_json(const struct document *d);

/*
 * Verifies the signature of the publisher, and that of the decision if there is one, with a
 * certificate that is valid now, or, in document_check_then(), at the document's own time, which an
 * owner of the key can choose. -EKEYREJECTED with a sentence.
 */
int document_check(struct agent *a, const struct document *d, char why[WHY_SIZE]);
int document_check_then(struct agent *a, const struct document *d, char why[WHY_SIZE]);
/* Verifies the publisher's decision about it, and keeps it. -EKEYREJECTED, -EBADMSG or -ENOMEM. */
int document_take_decision(struct agent *a, struct document *d, const json_t *message,
			   char why[WHY_SIZE]);

uint64_t document_leaves_bytes(const struct document *d);
/* The size of the layout, the leaves and the companions. */
uint64_t document_blobs_bytes(const struct document *d);

struct document *document_copy(const struct document *d);
struct document *document_free(struct document *d);
CLEANUP_POINTER(struct document, document_free);
