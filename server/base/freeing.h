/*
 * Freeing
 *
 * Memory that a worker is freeing, and what waits until it is free. Users free side by side, in any
 * order: what needs the memory of freed things waits for these, and for none that are freed later.
 * All on the loop's thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/list.h"
#include "ipc/wire.h"

#define FREEING_BY_ALL ((uid_t)-1) /* no user's uid */

/* Memory being freed; part of what it belongs to. */
struct freeing {
	struct list link; /* freeings::begun, in order */
	struct freeings *freeings; /* NULL: it has not begun, or is over */
	uid_t uid;
	char device[WIRE_DEVICE_SIZE]; /* a copy: the buffer may end before its memory is free */
	uint64_t serial;
};

struct freeing_wait {
	struct list link; /* freeings::waits, or freeings::ready */
	uid_t uid;
	const char *device; /* outlives it */
	uint64_t serial; /* of the last freeing before it */
	uint64_t n_left;
	void (*over)(struct freeing_wait *wait); /* NULL: it does not wait */
};

struct freeings {
	struct list begun;
	struct list waits;
	struct list ready; /* nothing is left that these wait for */
	uint64_t n_begun;
};

void freeings_init(struct freeings *f);

void freeing_begin(struct freeings *f, struct freeing *freeing, uid_t uid, const char *device);
/* The memory is free. freeings_wake() is called when its charges are refunded, too. */
void freeing_end(struct freeing *freeing);
/* Ends waits that are over. */
void freeings_wake(struct freeings *f);

/*
 * Waits until what is being freed now on a device, by a user or FREEING_BY_ALL, is free. False:
 * there is nothing, and over() is not called.
 */
bool freeing_await(struct freeings *f, struct freeing_wait *wait, uid_t uid, const char *device,
		   void (*over)(struct freeing_wait *wait));
/* True: it waited, and does no more. */
bool freeing_wait_stop(struct freeing_wait *wait);
