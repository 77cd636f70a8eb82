/*
 * Saves, as the caller's thread begins them and waits for them
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libclient/train/plan/given.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/save/saving.h"

static bool is_done(struct saving *s)
{
	return trainer_word(&s->done) == s->number;
}

static bool saving_is_running(struct weightd_train *t)
{
	struct saving *s = t->saving.state;

	return s->is_running && !is_done(s);
}

static void join(struct saving *s)
{
	if (s->is_running)
		(void)pthread_join(s->thread, NULL);
	s->is_running = false;
}

/* A rank of another node that was killed before its part of the save is noticed by this rank's connection to it. */
static void watch_nodes(void *train)
{
	struct weightd_train *t = train;

	link_watch(&t->exchange.link);
}

static int saving_wait(struct weightd_train *t)
{
	struct saving *s = t->saving.state;
	int r = s->is_running ? wait_for_thread(&t->place, &s->done, s->number,
						"save its part of a checkpoint", watch_nodes, t)
			      : 0;

	if (r < 0)
		return r;
	join(s);
	if (s->is_reported)
		return 0;
	s->is_reported = true;
	return s->result < 0 ? train_fail(s->result, "%s", s->sentence) : 0;
}

static void saving_end(struct weightd_train *t)
{
	struct saving *s = t->saving.state;

	s->place.is_cancelled = true;
	join(s);
	snapshot_free(&s->snapshot);
	weightd_close(s->w);
	free(s);
	t->saving.state = NULL;
}

static int saving_new(struct weightd_train *t)
{
	struct saving *s = aligned_alloc(alignof(struct saving),
					 (sizeof(*s) + alignof(struct saving) - 1) /
						 alignof(struct saving) * alignof(struct saving));

	if (!s)
		return train_out_of_memory();
	memset(s, 0, sizeof(*s));
	s->train = t;
	s->is_reported = true;
	if (weightd_new(&s->w) < 0) {
		free(s);
		return train_out_of_memory();
	}
	t->saving = (struct trainer_saving){
		.state = s, .is_running = saving_is_running, .wait = saving_wait, .end = saving_end};
	return 0;
}

static int check_save(struct weightd_train *t)
{
	int r = trainer_check(t);

	if (r < 0)
		return r;
	if (!t->is_begun)
		return train_fail(-EINVAL, "call weightd_train_begin() before a save");
	if (t->plan->staleness)
		return train_fail(-EINVAL,
				  "with staleness, ranks are in different steps, and a checkpoint "
				  "would be none of them; save in a plan without it");
	if (trainer_word(&trainer_words(t)->grad) != t->step)
		return train_fail(-EINVAL,
				  "step %" PRIu64
				  " has begun and is not complete; repeat it (weightd_train_update(), "
				  "step()) before a save",
				  t->step + 1);
	if (t->write.is_open)
		return train_fail(-EINVAL, "call weightd_train_write_end() before a save");
	if (t->plan->sync_every && t->step % t->plan->sync_every)
		return train_fail(-EINVAL,
				  "the nodes have different parameters after step %" PRIu64
				  ": they average them every %u steps; save after such a step",
				  t->step, t->plan->sync_every);
	return t->saving.state ? 0 : saving_new(t);
}

/* Another process's folder may be another one. */
static int take_path(struct saving *s, const char *path)
{
	char here[FOLDER_PATH_MAX] = "";

	if (*path == '\0')
		return train_fail(-EINVAL, "no folder to save to was named");
	if (*path != '/' && !getcwd(here, sizeof(here)))
		return train_fail(-errno, "the current directory cannot be found: %s",
				  strerror(errno));
	if ((size_t)snprintf(s->path, sizeof(s->path), "%s%s%s", here, *here ? "/" : "", path) >=
	    sizeof(s->path))
		return train_fail(-ENAMETOOLONG, "the path of the folder is too long");
	return 0;
}

/* The thread gets the processes that this one has met. Its waits end soon, for checks that they do not make. */
static void take_place(struct saving *s)
{
	struct weightd_train *t = s->train;

	wait_place_init(&s->place, t->arena.job, t->arena.rank, t->plan->n_ranks, NULL);
	for (uint32_t rank = 0; rank < t->plan->n_ranks; rank++)
		s->place.pids[rank] = t->place.pids[rank];
	s->place.deadline_ms = WAIT_TICK_MS;
	s->place.on_death = WEIGHTD_DEATH_FAIL;
	s->place.spins = s->place.asks_server =
		false; /* training has the CPU; the caller's thread asks */
}

static int start(struct saving *s)
{
	sigset_t all, before;
	int r;

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&s->thread, NULL, saving_main, s);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r)
		return train_fail(-r, "cannot start the thread that writes the checkpoint: %s",
				  strerror(r));
	s->is_running = true;
	return 0;
}

/* Larger than those of this rank before, also in a process before this one. */
static uint64_t next_number(const struct saving *s)
{
	uint64_t first = s->train->step << CONTROL_SAVE_SHIFT | 1;
	uint64_t last = trainer_word(&trainer_words(s->train)->save.begun);

	return last >= first ? last + 1 : first;
}

/* From here on the other ranks wait for this one's part. */
static int begin(struct saving *s, uint64_t number)
{
	struct control_save *words = &trainer_words(s->train)->save;
	int r;

	take_place(s);
	s->number = number;
	s->n_asked = units_asked(s->train);
	s->n_given = s->train->handover.step == s->train->step + 1 ? s->train->handover.n_complete
								   : 0;
	s->has_tried = false;
	s->n_lost = atomic_load_explicit(&s->train->exchange.link.n_lost, memory_order_relaxed);
	wait_publish(&words->begun, number);
	r = snapshot_take(s->train, &s->snapshot);
	if (r == 0)
		r = start(s);
	if (r == 0) {
		s->is_reported = false;
		return 0;
	}
	snapshot_free(&s->snapshot);
	saving_publish(words, number, r);
	if (s->train->arena.rank == 0)
		saving_publish(&arena_head(&s->train->arena)->save, number, r);
	wait_publish(&s->done, number);
	return r;
}

int weightd_train_save(struct weightd_train *t, const char *path,
		       const struct weightd_checkpoint_options *options)
{
	struct weightd_checkpoint_options o = {.size = sizeof(o)};
	struct saving *s;
	int r = options ? given_copy(options, GIVEN_CHECKPOINT_OPTIONS_MIN, &o, sizeof(o),
				     "struct weightd_checkpoint_options")
			: 0;

	if (r == 0)
		r = check_save(t);
	if (r < 0)
		return r;
	s = t->saving.state;
	if (saving_is_running(t))
		return train_fail(-EBUSY,
				  "the save of step %" PRIu64
				  " has not ended; wait for it with weightd_train_save_wait()",
				  s->number >> CONTROL_SAVE_SHIFT);
	join(s);
	r = take_path(s, path);
	if (r < 0)
		return r;
	s->keep = o.keep;
	return begin(s, next_number(s));
}

int weightd_train_save_wait(struct weightd_train *t)
{
	int r = trainer_check(t);

	return r < 0 || !t->saving.state ? r : saving_wait(t);
}
