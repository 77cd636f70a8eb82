/*
 * The journal
 *
 * Makes the update of a rank happen exactly once, block by block: new values go into the rank's log, a word marks them,
 * they are copied home, the word moves on. Killed before the mark, the block is computed again from its old values;
 * after it, it is copied again. Both are idempotent. Redo, not undo: measured faster, and the log stays in the L2 cache.
 */
#pragma once

#include "libclient/train/engine/arena.h"
#include "libclient/train/kernels/kernel.h"

struct journal_step; /* scalars of the step for each group, and the source of gradients; see optimizer.h */

/* Places that the rank of this arena updates, which the update of `step` has yet to compute. */
struct plan_interval journal_rest(const struct arena *a, uint32_t rank, uint64_t step);

/*
 * Updates what `rank` (of `a`, which is its arena or a borrowed one) has left to do in `step`, from its journal word on,
 * and leaves the word behind the last block. Idempotent; in a plan without a journal once it has returned.
 */
void journal_update(const struct arena *a, uint32_t rank, uint64_t step,
		    const struct journal_step *s);
