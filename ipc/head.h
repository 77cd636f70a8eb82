/*
 * The head page
 *
 * One page per buffer, written by the server alone and mapped read-only by readers. One 64-bit word holds the current
 * version and its state, so a reader needs one load. The attributes of a version are an immutable record beside it.
 * The futex is a hint: every process that maps the page can requeue its waiters, so waiters recheck at least every
 * HEAD_RECHECK_MS.
 */
#pragma once

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "ipc/hash.h"

#define HEAD_SIZE 4096
#define HEAD_MAGIC 0x0000444145484457ull /* "WDHEAD" */
#define HEAD_ABI 1
#define HEAD_RECORDS 32 /* the newest versions; a power of two */
#define HEAD_RECHECK_MS 100

enum head_state {
	HEAD_EMPTY, /* nothing published yet */
	HEAD_READY,
	HEAD_UPDATING, /* an exclusive buffer is being written in place */
	HEAD_TORN, /* ... and the writer died */
	HEAD_GONE, /* the buffer was removed */
};

struct head_record {
	uint64_t version;
	uint64_t slot;
	uint64_t data_size;
	uint64_t published_ns; /* CLOCK_REALTIME */
	uint8_t layout_hash[HASH_SIZE];
	uint8_t digest[HASH_SIZE];
};

struct head {
	uint64_t magic;
	uint32_t abi;
	_Atomic uint32_t futex; /* changes at every flip */
	uint64_t buffer; /* id */
	_Atomic uint64_t current; /* version << 8 | state */
	uint8_t pad[96];
	struct head_record records[HEAD_RECORDS]; /* version v at v % HEAD_RECORDS */
};
static_assert(sizeof(struct head_record) == 64, "head_record is ABI");
static_assert(sizeof(struct head) <= HEAD_SIZE, "a head is one page");

static inline uint64_t head_version(uint64_t current)
{
	return current >> 8;
}

static inline enum head_state head_state(uint64_t current)
{
	return (enum head_state)(current & 0xff);
}

/* Fills a fresh, zeroed page. */
void head_init(struct head *h, uint64_t buffer);

/* True for a page that head_init() made, of a buffer of this id. */
bool head_ok(const struct head *h, uint64_t buffer);

/*
 * Makes version and state current: the record first, then the word. True: the word changed, and waiters must be
 * woken.
 */
bool head_publish(struct head *h, const struct head_record *record, enum head_state state);

/* Likewise the word alone, where there is no record. */
bool head_set(struct head *h, uint64_t version, enum head_state state);

/* Wakes the waiters: some microseconds for each. From any thread. */
void head_wake(struct head *h);

static inline uint64_t head_current(const struct head *h)
{
	return atomic_load_explicit(&((struct head *)h)->current, memory_order_acquire);
}

/*
 * Waits until the word differs from `seen` or timeout_ms have passed (< 0: for ever), and returns what
 * it is then.
 */
uint64_t head_wait(const struct head *h, uint64_t seen, int timeout_ms);
