/*
 * Any thread takes and stops slots, without a lock; the sender frees those that were passed to it.
 */
#include "bpf/nccl/slot.h"

#include <stddef.h>

#include "bpf/nccl/handle.h"

#define N_SLOTS 32768u
#define TRIES 64

#define STATE(word) ((enum slot_state)((word)&3))
#define CHILD ((uint64_t)4)
#define CHILDREN(word) ((uint32_t)((word) >> 2 & 0x3fffff))
#define CHILDREN_MAX 0x3fffffu
#define TURN(word) ((uint32_t)((word) >> 24))
#define WORD(turn, state) ((uint64_t)((turn)&HANDLE_TURNS) << 24 | (state))

_Static_assert(N_SLOTS <= HANDLE_PLACES, "a handle has no room for it");

static struct slot slots[N_SLOTS];
static _Atomic uint32_t cursor;
static _Atomic uint32_t number;
static _Atomic uint64_t n_lost;

void slot_forget_all(void)
{
	atomic_store(&number, handle_draw());
}

uint64_t slot_lost(void)
{
	return atomic_load_explicit(&n_lost, memory_order_relaxed);
}

struct slot *slot_take(void **ret_handle)
{
	for (int i = 0; i < TRIES; i++) {
		uint32_t place = atomic_fetch_add_explicit(&cursor, 1, memory_order_relaxed) %
				 N_SLOTS;
		struct slot *s = &slots[place];
		uint64_t word = atomic_load_explicit(&s->word, memory_order_relaxed);

		/* A freed slot may have children that are not released yet. */
		if (STATE(word) != SLOT_FREE || CHILDREN(word) > 0 ||
		    !atomic_compare_exchange_strong_explicit(&s->word, &word,
							     WORD(TURN(word) + 1, SLOT_LIVE),
							     memory_order_acquire,
							     memory_order_relaxed))
			continue;
		atomic_store_explicit(&s->chained, NULL, memory_order_relaxed);
		atomic_store_explicit(&s->ended_ns, 0, memory_order_relaxed);
		atomic_store_explicit(&s->sent, 0, memory_order_relaxed);
		atomic_store_explicit(&s->received, 0, memory_order_relaxed);
		atomic_store_explicit(&s->n_ops, 0, memory_order_relaxed);
		*ret_handle = handle_of(atomic_load_explicit(&number, memory_order_relaxed),
					TURN(word) + 1, place);
		return s;
	}
	atomic_fetch_add_explicit(&n_lost, 1, memory_order_relaxed);
	return NULL;
}

static struct slot *slot_find_at(const void *handle, uint64_t *ret_word)
{
	uint32_t turn, place;

	if (!handle ||
	    !handle_read(handle, atomic_load_explicit(&number, memory_order_relaxed), &turn, &place) ||
	    place >= N_SLOTS)
		return NULL;
	*ret_word = atomic_load_explicit(&slots[place].word, memory_order_acquire);
	return TURN(*ret_word) == turn ? &slots[place] : NULL;
}

struct slot *slot_find(const void *handle)
{
	uint64_t word;

	return slot_find_at(handle, &word);
}

struct slot *slot_stop(const void *handle, enum slot_state state)
{
	uint64_t word;
	struct slot *s = slot_find_at(handle, &word);
	uint32_t turn = s ? TURN(word) : 0;

	/* Children may start and end meanwhile. */
	while (s && TURN(word) == turn && STATE(word) == SLOT_LIVE)
		if (atomic_compare_exchange_weak_explicit(&s->word, &word,
							  (word & ~(uint64_t)3) | state,
							  memory_order_acq_rel, memory_order_acquire))
			return s;
	return NULL;
}

struct slot *slot_take_held(struct slot *s)
{
	return atomic_exchange_explicit(&s->held, NULL, memory_order_acq_rel);
}

void slot_free(struct slot *s)
{
	atomic_fetch_and_explicit(&s->word, ~(uint64_t)3, memory_order_release); /* SLOT_FREE */
}

void slot_free_of(uint32_t comm)
{
	for (struct slot *s = slots; s < slots + N_SLOTS; s++) {
		uint64_t word = atomic_load_explicit(&s->word, memory_order_acquire);
		struct slot *held;

		while (STATE(word) == SLOT_LIVE && slot_get(s->comm) == comm) {
			if (!atomic_compare_exchange_weak_explicit(
				    &s->word, &word, (word & ~(uint64_t)3) | SLOT_STOPPED,
				    memory_order_acq_rel, memory_order_acquire))
				continue;
			held = slot_take_held(s);
			if (held)
				slot_release(held);
			slot_free(s);
			break;
		}
	}
}

struct slot *slot_hold(const void *handle)
{
	uint64_t word;
	struct slot *s = slot_find_at(handle, &word);
	uint32_t turn = s ? TURN(word) : 0;

	while (s && TURN(word) == turn && STATE(word) != SLOT_FREE && CHILDREN(word) < CHILDREN_MAX)
		if (atomic_compare_exchange_weak_explicit(&s->word, &word, word + CHILD,
							  memory_order_acq_rel, memory_order_acquire))
			return s;
	return NULL;
}

void slot_release(struct slot *s)
{
	atomic_fetch_sub_explicit(&s->word, CHILD, memory_order_release);
}

bool slot_is_held(const struct slot *s)
{
	return CHILDREN(atomic_load_explicit(&s->word, memory_order_acquire)) > 0;
}
