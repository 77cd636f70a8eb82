/*
 * The ledger
 *
 * What writers and readers of a soak know together, in a file that all of them map: it outlives each of them,
 * and so the truth does when one is killed. Every version that was tried has a tag of its own, from which all
 * its words follow. Which tag a version has is decided once, by the first who sees it or by the writer who was
 * told its number; whoever sees another one later has found a fault.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#define LEDGER_VERSIONS (1 << 20)
#define LEDGER_BUFFERS 4
#define LEDGER_WORDS 8192 /* in each version */

struct ledger_buffer {
	char name[32];
	_Atomic uint64_t acknowledged; /* the newest version that a writer was told of */
	_Atomic uint64_t tags[LEDGER_VERSIONS]; /* by version; 0: nobody has seen it */
};

struct ledger {
	_Atomic uint64_t next_tag;
	_Atomic uint64_t n_checks; /* of all words of a version */
	_Atomic uint64_t n_published;
	_Atomic uint64_t n_moves; /* of readers to another version */
	_Atomic uint64_t n_retries; /* reads in place that were not believed */
	_Atomic uint64_t n_torn; /* tears, mixes of versions */
	_Atomic uint64_t n_lost; /* versions that were acknowledged and not served */
	_Atomic uint64_t n_other; /* versions that came back with other bytes */
	_Atomic uint64_t n_errors; /* that should not be */
	_Atomic uint64_t has_story;
	char story[512]; /* of the first fault */
	struct ledger_buffer buffers[LEDGER_BUFFERS];
};

/* Ends the program with a message on failure. */
struct ledger *ledger_open(const char *path);
/* The buffer of that name, which has a place in the ledger from then on. */
struct ledger_buffer *ledger_buffer(struct ledger *l, const char *name);

void ledger_fill(uint64_t *words, uint64_t tag);
/* The tag of these words; 0 when they are not all of one. */
uint64_t ledger_tag(const uint64_t *words);

/* Says that a version has that tag. */
void ledger_agree(struct ledger *l, struct ledger_buffer *b, uint64_t version, uint64_t tag);
/* A writer was told that this version is published. */
void ledger_acknowledge(struct ledger *l, struct ledger_buffer *b, uint64_t version, uint64_t tag);

/* Counts a fault and tells the story of the first. */
__attribute__((format(printf, 3, 4))) void ledger_fault(struct ledger *l, _Atomic uint64_t *counter,
							const char *fmt, ...);
