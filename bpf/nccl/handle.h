/*
 * Handles that NCCL gets for a communicator or an event, and passes back
 *
 * A handle is no address, so that a valid one differs from a stale one, one of another process (this one may be its
 * proxy), and garbage: it has a number that this process drew, how often the place was taken, and the place.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define HANDLE_PLACES 65536 /* at most */
#define HANDLE_TURNS 0xffffffu

static inline void *handle_of(uint32_t number, uint32_t turn, uint32_t place)
{
	return (void *)(uintptr_t)((uint64_t)(number & HANDLE_TURNS) << 40 |
				   (uint64_t)(turn & HANDLE_TURNS) << 16 | place);
}

/* False where it is of other numbers. */
static inline bool handle_read(const void *handle, uint32_t number, uint32_t *ret_turn,
			       uint32_t *ret_place)
{
	uint64_t h = (uintptr_t)handle;

	*ret_turn = (uint32_t)(h >> 16) & HANDLE_TURNS;
	*ret_place = (uint32_t)h & (HANDLE_PLACES - 1);
	return h >> 40 == (number & HANDLE_TURNS);
}

/* Never 0. */
uint32_t handle_draw(void);
