/*
 * The ledger
 *
 * Shared by writers and readers of a soak, in a file that all of them map: it outlives each of
 * them, so that the truth survives a kill. Every version that was tried has a tag of its own, from
 * which all its words follow. The tag of a version is decided once, by the first reader that sees
 * it or by the writer that received its number; a process that sees another one later has found a
 * fault.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#define LEDGER_VERSIONS (1 << 20)
#define LEDGER_BUFFERS 4
#define LEDGER_WORDS 8192 /* in each version */

struct ledger_buffer {
	char name[32];
	_Atomic uint64_t acknowledged; /* the newest version with an answered publish */
	_Atomic uint64_t tags[LEDGER_VERSIONS]; /* indexed by version; 0: not seen yet */
};

struct ledger {
	_Atomic uint64_t next_tag;
	_Atomic uint64_t n_checks; /* checks of all words of a version */
	_Atomic uint64_t n_published;
	_Atomic uint64_t n_moves; /* changes of readers to another version */
	_Atomic uint64_t n_retries; /* reads in place that were not believed */
	_Atomic uint64_t n_torn; /* tears, mixes of versions */
	_Atomic uint64_t n_lost; /* versions that were acknowledged and not served */
	_Atomic uint64_t n_other; /* versions that came back with other bytes */
	_Atomic uint64_t n_errors; /* that should not be */
	_Atomic uint64_t has_story;
	char story[512]; /* describes the first fault */
	struct ledger_buffer buffers[LEDGER_BUFFERS];
};

/* Ends the program with a message on failure. */
struct ledger *ledger_open(const char *path);
/* The buffer of that name, which has a place in the ledger from then on. */
struct ledger_buffer *ledger_buffer(struct ledger *l, const char *name);

void ledger_fill(uint64_t *words, uint64_t tag);
/* The tag of these words; 0 when they are not all of one. */
uint64_t ledger_tag(const uint64_t *words);

/* Records that a version has that tag. */
void ledger_agree(struct ledger *l, struct ledger_buffer *b, uint64_t version, uint64_t tag);
/* Records that the publish of this version was answered. */
void ledger_acknowledge(struct ledger *l, struct ledger_buffer *b, uint64_t version, uint64_t tag);

/* Counts a fault, and describes the first. */
__attribute__((format(printf, 3, 4))) void ledger_fault(struct ledger *l, _Atomic uint64_t *counter,
							const char *fmt, ...);
