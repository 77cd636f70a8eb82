/*
 * Finishing for the dead
 *
 * A rank that died after it handed over its gradients has left nothing to do that another rank cannot: the one that waits
 * for it takes its lock, works in its memory, and publishes its word. A successor that starts meanwhile waits for the lock.
 */
#pragma once

#include "libclient/train/step.h"

/* Does what the word stands for, for the rank of the arena `theirs`, and publishes it. */
typedef void finish_fn(struct step *s, const struct arena *theirs);

/*
 * Waits until the word of a rank is at least `value`. With WEIGHTD_DEATH_FINISH the rank's work is done here if it died.
 * `finish` may not wait. Errors of wait_for(), and those of mapping its memory.
 */
int finish_wait(struct step *s, struct control_word *word, uint64_t value,
		const struct wait_reason *reason, finish_fn *finish);
