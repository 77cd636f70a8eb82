/*
 * Events that have started
 *
 * NCCL names an event as the parent of others after it has stopped it: a collective is stopped when it was handed to
 * the GPU, and its network operations may start then. A slot keeps its content until it is taken again, which is as
 * late as possible, as slots are taken in turn.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SLOT_TEXT_SIZE 16 /* bytes of a word that NCCL has for a function or type */

enum slot_state {
	SLOT_FREE,
	SLOT_LIVE,
	SLOT_STOPPED, /* sender's, until it is free */
};

struct slot {
	_Atomic uint64_t word; /* turn, children that are live, state */
	_Atomic(void *) chained; /* its handle in the next plug-in */
	_Atomic(void *) parent; /* as NCCL named it */
	_Atomic(struct slot *) held; /* the event that it is a child of until it stops; NULL: it is free */
	/* A thread with a stale handle may read these while another event begins here, too. */
	_Atomic uint32_t type;
	_Atomic uint32_t comm;
	_Atomic int32_t peer;
	_Atomic bool is_send;
	_Atomic uint64_t began_ns, ended_ns; /* that of the last child */
	_Atomic uint64_t sent, received; /* sums of its children; in a step, the one that it is */
	_Atomic uint32_t n_ops;
	/* Written by the thread that starts it, read by the sender. */
	uint64_t stopped_ns;
	uint64_t seq;
	uint64_t count;
	int32_t root; /* or the peer */
	uint8_t n_channels;
	bool has_seq;
	char func[SLOT_TEXT_SIZE];
	char datatype[SLOT_TEXT_SIZE];
	char algo[SLOT_TEXT_SIZE];
	char proto[SLOT_TEXT_SIZE];
};

/* Access to members that other threads may read, too. It orders no other access. */
#define slot_get(member) atomic_load_explicit(&(member), memory_order_relaxed)
#define slot_set(member, value) atomic_store_explicit(&(member), value, memory_order_relaxed)

/* All handles that were given are stale from then on. */
void slot_forget_all(void);

/* NULL: too many are live, which is counted. Nothing of it is set but that it is live. */
struct slot *slot_take(void **ret_handle);
uint64_t slot_lost(void);

/* Live or not; NULL where its handle is not good, or it was taken again. */
struct slot *slot_find(const void *handle);
/* The same of a live one, which is in that state then; for one caller only. */
struct slot *slot_stop(const void *handle, enum slot_state state);
void slot_free(struct slot *s);
/* Returns the slot that it held, which the caller releases, or NULL: before it is freed. */
struct slot *slot_take_held(struct slot *s);
/* Frees all slots of a freed communicator that were never stopped. */
void slot_free_of(uint32_t comm);

/* A child of it starts, and stops. NULL where the slot is free. */
struct slot *slot_hold(const void *handle);
void slot_release(struct slot *s);
bool slot_is_held(const struct slot *s);
