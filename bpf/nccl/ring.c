/*
 * A ring in which each place has a turn (Vyukov's bounded queue): a writer takes the place that is free at its
 * position, and the reader the one that is written at its position. All zero is an empty ring.
 */
#include "bpf/nccl/ring.h"

#include <stdatomic.h>

#include "bpf/nccl/sender.h"

#define N_PLACES 32768u
#define WAKE_EVERY 4096u /* records: the reader looks ten times a second otherwise */

static struct place {
	_Atomic uint64_t
		turn; /* less its index: at position p, p where it is free, p + 1 where it is written */
	struct record record;
} places[N_PLACES];

static _Alignas(64) _Atomic uint64_t written;
static _Alignas(64) uint64_t n_read; /* the reader's */
static _Atomic uint64_t n_lost;

static uint64_t turn_at(const struct place *p, uint64_t position)
{
	return atomic_load_explicit(&p->turn, memory_order_acquire) + position % N_PLACES;
}

bool ring_write(const struct record *r)
{
	uint64_t at = atomic_load_explicit(&written, memory_order_relaxed);
	struct place *p;

	for (;;) {
		p = &places[at % N_PLACES];
		int64_t ahead = (int64_t)(turn_at(p, at) - at);

		if (ahead < 0) {
			atomic_fetch_add_explicit(&n_lost, 1, memory_order_relaxed);
			return false;
		}
		if (ahead > 0)
			at = atomic_load_explicit(&written, memory_order_relaxed);
		else if (atomic_compare_exchange_weak_explicit(
				 &written, &at, at + 1, memory_order_relaxed, memory_order_relaxed))
			break;
	}
	p->record = *r;
	atomic_store_explicit(&p->turn, at + 1 - at % N_PLACES, memory_order_release);
	if (at % WAKE_EVERY == 0)
		sender_wake();
	else
		sender_wake_if_idle();
	return true;
}

bool ring_read(struct record *ret)
{
	struct place *p = &places[n_read % N_PLACES];

	if (turn_at(p, n_read) != n_read + 1)
		return false;
	*ret = p->record;
	atomic_store_explicit(&p->turn, n_read + N_PLACES - n_read % N_PLACES, memory_order_release);
	n_read++;
	return true;
}

uint64_t ring_lost(void)
{
	return atomic_load_explicit(&n_lost, memory_order_relaxed);
}
