/*
 * Shared parts of the sync verbs: versions, byte counts, names of syncs, messages
 */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "libclient/weightctl/cli.h"

#define SYNC_ID_MAX 17 /* 16 hexadecimal digits and a NUL */

/* How nodes order versions of a buffer: by term, then by number. 0, 0 is none. */
struct sync_version {
	uint64_t term;
	uint64_t number;
};

struct sync_version sync_version_of(const json_t *o);
/* "1.7"; NULL for none. Valid until the next call. */
const char *sync_version_text(struct sync_version v);

/* A push of a similar version sends only some of its bytes. UINT64_MAX: unknown. */
struct sync_share {
	uint64_t size; /* bytes of the version */
	uint64_t changed; /* in leaves that differ */
	uint64_t patch; /* that travelled instead of those */
	uint64_t differ; /* in elements that do */
	uint64_t travelled[2]; /* as COLUMN_PART has it */
	uint64_t differed[2]; /* the same, by elements, if a patch was sent */
};

struct sync_share sync_share_of(const json_t *o);

/*
 * Finds the sync named `arg`, by all of its digits or the first few, among the agent's. 0, or EXIT_FAILED after
 * printing why; an impossible name ends the program.
 */
int sync_find(const struct cli *cli, const char *arg, char ret[SYNC_ID_MAX]);

/* Writes "WHAT: SENTENCE" with both escaped, and a line feed; without WHAT where the sentence begins with it. */
void sync_say(FILE *f, const char *what, const char *sentence);
/* True if the sentence begins with `what`, a node or a sync. */
bool sync_begins_with(const char *sentence, const char *what);
