/*
 * The thread of a save. Its waits have no deadline: a disk takes its time. They end with the death of a rank, and with a
 * step that a rank took without the save.
 */
#include "libclient/train/save/saving.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/quote.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/save/collect.h"
#include "libclient/train/save/description.h"

static struct control_save *head_of(const struct saving *s)
{
	return &arena_head(&s->train->arena)->save;
}

static struct control_save *words_of(const struct saving *s, uint32_t rank)
{
	return &arena_rank(&s->train->arena, rank)->save;
}

void saving_publish(struct control_save *save, uint64_t number, int r)
{
	save->result = r;
	(void)snprintf(save->sentence, sizeof(save->sentence), "%s",
		       r < 0 ? weightd_train_error() : "");
	wait_publish(&save->ended, number);
}

/* It asks for more of the next step than this rank did before the save: there it waits for this rank. */
static bool has_asked_more(const struct saving *s, uint32_t rank)
{
	const struct arena *a = &s->train->arena;
	uint64_t step = s->snapshot.step + 1;

	/* Once its passes have begun, it waits for those of the others before its first exchange. */
	if (plan_shards_params(a->plan) &&
	    (trainer_word(&arena_rank(a, rank)->line) > control_exchange(step, s->n_asked) ||
	     (s->n_asked < CONTROL_PASSES &&
	      trainer_word(arena_room(a, rank, 0)) >= control_exchange(step, CONTROL_PASSES))))
		return true;
	return plan_pools_grads(a->plan) && s->n_given < a->plan->n_buckets &&
	       trainer_word(&arena_bucket(a, rank, s->n_given)->grad) >= step;
}

/*
 * A rank in a later step does not take part any more, nor one in a later save: it ends each that it begins before the next.
 * Its number may be that of a later one at any time, so that `begun` is read before `ended`.
 */
static bool has_passed(const struct saving *s, uint32_t rank)
{
	struct control_save *save = words_of(s, rank);
	uint64_t begun = trainer_word(&save->begun);

	if (begun == s->number)
		return false;
	if (begun > s->number)
		return trainer_word(rank ? &save->ended : &head_of(s)->ended) < s->number;
	return trainer_word(&arena_rank(&s->train->arena, rank)->grad) > s->snapshot.step ||
	       has_asked_more(s, rank);
}

static int check_passed(const struct saving *s, uint32_t rank)
{
	if (!has_passed(s, rank))
		return 0;
	return train_fail(-EINVAL,
			  "rank %u took step %" PRIu64 " without saving step %" PRIu64
			  ": all ranks save after the same step (weightd_train_save(), save()), and "
			  "wait for the save before",
			  rank, s->snapshot.step + 1, s->snapshot.step);
}

/* Waits for a word of `rank`. */
static int wait_until(struct saving *s, uint32_t rank, struct control_word *word, const char *what)
{
	struct wait_reason reason = {.rank = rank, .step = s->snapshot.step, .what = what};

	for (;;) {
		int r = wait_for(&s->place, word, s->number, &reason);

		if (r == -ETIMEDOUT)
			r = check_passed(s, rank);
		if (r < 0)
			return r;
		if (trainer_word(word) >= s->number)
			return 0;
	}
}

static int is_cancelled(void *saving, const char *phase, uint64_t done, uint64_t total)
{
	const struct saving *s = saving;

	(void)phase;
	(void)done;
	(void)total;
	return s->place.is_cancelled;
}

static int write_files(struct saving *s, uint64_t tag)
{
	char folder[FOLDER_PATH_MAX];
	const struct files_to to = {
		.w = s->w,
		.folder = folder,
		.progress = is_cancelled,
		.userdata = s,
	};
	int r = collect_receive(s);

	if (r == 0)
		r = folder_hidden_path(s->path, s->snapshot.step, tag, folder);
	return r < 0 ? r : files_write(&to, s->train, &s->snapshot);
}

/* --- Rank 0 ---------------------------------------------------------------------------------------- */

/* All of them, also after a failure: a rank must not write into a folder that is being removed. */
static int wait_for_all(struct saving *s)
{
	int first = 0;

	for (uint32_t rank = 1; rank < s->train->plan->n_ranks; rank++) {
		struct control_save *save = words_of(s, rank);
		char before[CONTROL_SENTENCE];
		int r;

		(void)snprintf(before, sizeof(before), "%s", weightd_train_error());
		r = wait_until(s, rank, &save->ended, "write its part of the checkpoint");
		if (r == 0 && save->result < 0)
			r = train_fail(save->result, "%s", save->sentence);
		if (first < 0)
			(void)train_fail(first, "%s", before);
		else
			first = r;
	}
	return first;
}

/* Ends a save without a folder. A rank that has begun it has read the result of the one before. */
static int lead_nowhere(struct saving *s, int r)
{
	char sentence[CONTROL_SENTENCE];

	(void)snprintf(sentence, sizeof(sentence), "%s", weightd_train_error());
	for (uint32_t rank = 1; rank < s->train->plan->n_ranks; rank++)
		(void)wait_until(s, rank, &words_of(s, rank)->begun, "begin the save");
	(void)train_fail(r, "%s", sentence);
	saving_publish(head_of(s), s->number, r);
	return r;
}

static int lead(struct saving *s)
{
	cleanup(folder_deinit) struct folder folder = FOLDER_INIT;
	struct control_save *head = head_of(s);
	char sentence[CONTROL_SENTENCE] = "";
	int r = folder_open(&folder, s->path, s->snapshot.step), all;

	if (r < 0)
		return lead_nowhere(s, r);
	head->tag = folder.tag;
	wait_publish(&head->begun, s->number);
	r = write_files(s, folder.tag);
	if (r == 0)
		r = description_write(&folder, s->train->plan, &s->snapshot);
	if (r < 0)
		(void)snprintf(sentence, sizeof(sentence), "%s", weightd_train_error());
	all = wait_for_all(s);
	if (r < 0)
		(void)train_fail(r, "%s", sentence);
	else
		r = all;
	if (r == 0)
		r = folder_commit(&folder, s->keep);
	saving_publish(head, s->number, r);
	return r;
}

/* --- The others ------------------------------------------------------------------------------------ */

/* Rank 0 began no such save, or ended it without a folder. */
static int wait_for_folder(struct saving *s)
{
	struct control_save *head = head_of(s);
	struct wait_reason reason = {.step = s->snapshot.step,
				     .what = "make the folder of the checkpoint"};

	for (;;) {
		int r = wait_for(&s->place, &head->begun, s->number, &reason);

		if (trainer_word(&head->ended) >= s->number)
			return 0;
		if (r == 0 || r == -ETIMEDOUT)
			r = check_passed(s, 0);
		if (r == 0 && trainer_word(&head->begun) == s->number)
			return 0;
		if (r < 0)
			return r;
	}
}

/* The result that rank 0 found, unless it has ended a later save since. */
static int result_of_head(const struct saving *s)
{
	const struct control_save *head = head_of(s);
	char sentence[CONTROL_SENTENCE];
	int r = head->result;

	memcpy(sentence, head->sentence, sizeof(sentence));
	sentence[sizeof(sentence) - 1] = '\0';
	if (trainer_word(&head_of(s)->ended) != s->number)
		return train_fail(-EAGAIN,
				  "the save of step %" PRIu64
				  " ended, and the result of a later one is in its place",
				  s->snapshot.step);
	return r < 0 ? train_fail(r, "%s", sentence) : 0;
}

static int follow(struct saving *s)
{
	struct control_save *head = head_of(s);
	int r = wait_for_folder(s);

	if (r == 0 && trainer_word(&head->ended) < s->number)
		r = write_files(s, head->tag);
	saving_publish(words_of(s, s->train->arena.rank), s->number, r);
	if (r == -ECANCELED)
		return r;
	r = wait_until(s, 0, &head->ended, "complete the checkpoint");
	return r < 0 ? r : result_of_head(s);
}

/* --- Other nodes ----------------------------------------------------------------------------------- */

static int deliver(struct saving *s)
{
	int r = collect_send(s);

	saving_publish(words_of(s, s->train->arena.rank), s->number, r);
	return r;
}

static int take_part(struct saving *s)
{
	int r;

	if (s->train->arena.node)
		return deliver(s);
	r = s->train->arena.rank == 0 ? lead(s) : follow(s);
	collect_end(s, r);
	return r;
}

void *saving_main(void *saving)
{
	struct saving *s = saving;

	s->result = take_part(s);
	(void)snprintf(s->sentence, sizeof(s->sentence), "%s",
		       s->result < 0 ? weightd_train_error() : "");
	snapshot_free(&s->snapshot);
	wait_publish(&s->done, s->number);
	return NULL;
}
