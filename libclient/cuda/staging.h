/*
 * Pinned staging
 *
 * Host memory from which loads and copies of this process fill GPUs, in lanes. All that fill at once share
 * STAGING_LANES_MAX of them, and wait in turn for the first one. Lanes that were returned stay pinned for the next load,
 * as long as the process has memory of a GPU mapped: then its context may end, and with it all that is pinned.
 */
#pragma once

#include <stdint.h>

#include "libclient/cuda/place.h"

#define STAGING_LANE_SIZE (UINT64_C(4) << 20)
#define STAGING_LANES_MAX 32u /* 128 MiB */

/* Called while a caller waits for others to return lanes, about every 50 ms. < 0, with a sentence, ends the wait. */
typedef int (*staging_tick)(void *userdata, struct sentence *s);

struct staging_lane;

/* Lanes of one load. */
struct staging {
	unsigned n;
	struct staging_lane *lanes[STAGING_LANES_MAX];
};

/* Called for memory of a GPU that was mapped, and that is about to be unmapped. The last one frees what is pinned. */
void staging_enter(void);
void staging_leave(const struct place *p);

/*
 * Takes up to `n` lanes, at least one, and leaves to others at least half of those that were there. What is pinned anew is on
 * the NUMA node of the GPU; all GPUs can copy from all lanes. The caller has memory of the place mapped, and returns the
 * lanes once no copy reads them.
 */
int staging_borrow(struct staging *t, const struct place *p, unsigned n, staging_tick tick,
		   void *userdata, struct sentence *s);
void staging_return(struct staging *t);

/* STAGING_LANE_SIZE bytes. */
char *staging_data(const struct staging *t, unsigned i);
