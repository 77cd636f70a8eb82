/*
 * Finishing for the dead: the lock of the rank decides which process acts for it
 */
#include "libclient/train/finish.h"

#include <errno.h>

#include "libclient/train/plan/sentence.h"

static int finish_held(struct step *s, uint32_t rank, finish_fn *finish)
{
	struct arena theirs;
	int r = arena_borrow(&s->t->arena, rank, &theirs);

	if (r < 0)
		return r;
	finish(s, &theirs);
	arena_borrow_end(&theirs);
	return 0;
}

int finish_wait(struct step *s, struct control_word *word, uint64_t value,
		const struct wait_reason *reason, finish_fn *finish)
{
	struct weightd_job *job = s->t->arena.job;

	for (;;) {
		int r = wait_for(&s->t->place, word, value, reason);

		if (r != WAIT_DEAD)
			return r;
		r = weightd_job_hold(job, reason->rank);
		if (r == -EBUSY)
			continue; /* its successor, or another rank that finishes */
		if (r < 0)
			return train_fail(r,
					  "rank %u died, and its part of step %llu cannot be "
					  "finished: its lock fails",
					  reason->rank, (unsigned long long)reason->step);
		/* Another rank may have finished before the lock was taken. */
		if (trainer_word(word) < value)
			r = finish_held(s, reason->rank, finish);
		weightd_job_release(job, reason->rank);
		if (r < 0)
			return r;
	}
}
