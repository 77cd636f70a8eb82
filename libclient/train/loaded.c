#include "libclient/train/loaded.h"

#include <errno.h>
#include <inttypes.h>

#include "libclient/train/plan/sentence.h"
#include "libclient/train/saved.h"
#include "libclient/train/trainer.h"

uint64_t loaded_open(struct weightd_train *t)
{
	struct control_rank *words = trainer_words(t);
	uint64_t step = trainer_word(&words->grad);

	/* Rank 0 was killed while it set the words. */
	if (trainer_word(&arena_head(&t->arena)->filled) < trainer_word(&words->loaded))
		step = 0;
	else if (step == 0 && t->plan->n_nodes == 1)
		wait_publish(&words->loaded, 0);
	return step;
}

void loaded_keep(struct weightd_train *t)
{
	struct control_rank *words = trainer_words(t);

	words->n_skipped[0] = words->n_skipped[1] = t->loaded.n_skipped;
	words->scales[0] = words->scales[1] = t->loaded.scale;
	wait_publish(&words->loaded, control_loaded(t->loaded.step));
}

int loaded_find(struct weightd_train *t)
{
	struct control_rank *words = trainer_words(t);
	uint64_t word = trainer_word(&words->loaded);

	if (!word || t->loaded.is_there || t->step)
		return 0;
	t->loaded = (struct trainer_loaded){.is_there = true,
					    .step = control_loaded_step(word),
					    .n_skipped = words->n_skipped[0],
					    .scale = words->scales[0]};
	saved_read_buffers(t, t->loaded.step);
	return 1;
}

static int wait_for_all(struct weightd_train *t)
{
	uint64_t ours = control_loaded(t->loaded.step);

	for (uint32_t rank = 0; rank < t->plan->n_ranks; rank++) {
		struct control_word *word = &arena_rank(&t->arena, rank)->loaded;
		struct wait_reason reason = {.rank = rank,
					     .what = "load its part of the checkpoint",
					     .for_successor = true};
		int r = wait_for(&t->place, word, 1, &reason);

		if (r < 0)
			return r;
		if (trainer_word(word) != ours)
			return train_fail(-EPROTOTYPE,
					  "rank %u loaded the checkpoint of step %" PRIu64
					  ", and rank 0 that of step %" PRIu64
					  "; name the same one on all ranks",
					  rank, control_loaded_step(trainer_word(word)),
					  t->loaded.step);
	}
	return 0;
}

/* Those of this rank are the last: until then its successor begins anew. */
static void set_words(struct weightd_train *t)
{
	uint64_t step = t->loaded.step;

	for (uint32_t rank = t->plan->n_ranks; rank-- > 0;) {
		struct control_rank *words = arena_rank(&t->arena, rank);

		words->n_skipped[0] = words->n_skipped[1] = t->loaded.n_skipped;
		words->scales[0] = words->scales[1] = t->loaded.scale;
		wait_publish_max(&words->line,
				 control_exchange(step, control_values(0, CONTROL_SEND)));
		wait_publish(&words->norm_step, step);
		wait_publish(&words->param, step);
		wait_publish(&words->grad, step);
	}
	atomic_store_explicit(&arena_head(&t->arena)->step, step, memory_order_relaxed);
}

int loaded_settle(struct weightd_train *t)
{
	struct control_word *filled = &arena_head(&t->arena)->filled;
	struct wait_reason reason = {.what = "load the checkpoint", .for_successor = true};
	struct control_word *loaded = &trainer_words(t)->loaded;
	uint64_t word = control_loaded(t->loaded.step);
	int r;

	wait_publish(loaded, word);
	t->place.is_starting = true; /* a load takes longer than a step */
	r = t->arena.rank == 0 ? wait_for_all(t) : wait_for(&t->place, filled, word, &reason);
	t->place.is_starting = !t->is_begun;
	if (r < 0) {
		/* Several nodes: the others do not send it again. */
		if (t->plan->n_nodes == 1 || r == -EPROTOTYPE)
			wait_publish(loaded, 0);
		return r;
	}
	if (t->arena.rank == 0) {
		set_words(t);
		wait_publish_max(filled, word);
	}
	return 0;
}

int loaded_adopt(struct weightd_train *t, uint64_t step)
{
	int r;

	if (!step || t->step)
		return 0;
	r = saved_restore(t, step);
	if (r < 0)
		return r;
	t->step = step;
	status_set_step(&t->status, step);
	return 0;
}
