/*
 * Supplies
 *
 * How much of a load's memory is there, for the threads that fill it while the server provides the rest.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct supply {
	uint64_t offset; /* bytes of the slot in front of the data */
	_Atomic uint64_t provided; /* bytes at the start of the slot */
	pthread_mutex_t lock; /* protects is_stopped, and growth against threads that begin to wait */
	pthread_cond_t grown;
	bool is_stopped;
};

void supply_init(struct supply *s, uint64_t offset, uint64_t provided);
void supply_deinit(struct supply *s);

void supply_grow(struct supply *s, uint64_t provided);
/* Nothing comes any more. */
void supply_stop(struct supply *s);

static inline bool supply_has(const struct supply *s, uint64_t end)
{
	return atomic_load(&s->provided) >= s->offset + end;
}

/* Waits until the data have memory up to `end`. -ECANCELED: it was stopped before. */
int supply_await(struct supply *s, uint64_t end);
