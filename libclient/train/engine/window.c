#include "libclient/train/engine/window.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/mapping.h"
#include "ipc/base/num.h"
#include "libclient/train/engine/identity.h"
#include "libclient/train/engine/isa.h"
#include "libclient/train/plan/given.h"
#include "libclient/train/plan/sentence.h"

#define PAGE 4096

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18 /* Linux 4.14 */
#endif
#define IMAGE_MAGIC "weightd window"
#define IMAGE_ABI 1

/* The description of the job. */
struct window_image {
	char magic[16];
	uint32_t abi;
	uint32_t n_ranks;
	uint64_t size;
};

CLEANUP_POINTER(struct weightd_window, weightd_window_free);

struct window_head *window_head(const struct weightd_window *win)
{
	return (struct window_head *)(void *)win->control;
}

static struct window_rank *window_rank(const struct weightd_window *win, uint32_t rank)
{
	return (struct window_rank *)(void *)(win->control + PAGE) + rank;
}

uint8_t *window_range(const struct weightd_window *win, uint32_t rank)
{
	return win->ranges + rank * win->stride;
}

static uint64_t stages_offset(uint32_t n_ranks)
{
	return PAGE + (n_ranks * sizeof(struct window_rank) + PAGE - 1) / PAGE * PAGE;
}

uint8_t *window_stage(const struct weightd_window *win, uint32_t rank, uint64_t epoch)
{
	return win->control + stages_offset(win->n_ranks) +
	       ((uint64_t)rank * 2 + epoch % 2) * WINDOW_STAGE;
}

/* --- Barriers ----------------------------------------------------------------------------------- */

struct barrier {
	struct wait_reason reason;
	const struct weightd_window *win;
};

static bool has_entered(const struct weightd_window *win, uint32_t rank)
{
	return atomic_load(&window_rank(win, rank)->entered.value) >= win->epoch;
}

/* The first rank that has not entered, or n_ranks. */
static uint32_t find_missing(const struct weightd_window *win)
{
	for (uint32_t i = 0; i < win->n_ranks; i++)
		if (!has_entered(win, i))
			return i;
	return win->n_ranks;
}

/*
 * A missing rank without a process, else the first missing one. Those that have entered may end. The last one may have been
 * killed before it let the others pass.
 */
static uint32_t barrier_find_rank(const struct wait_reason *reason)
{
	const struct weightd_window *win = ((const struct barrier *)(const void *)reason)->win;
	uint32_t missing = find_missing(win);

	for (uint32_t i = missing; i < win->n_ranks; i++)
		if (!has_entered(win, i) && weightd_job_holder(win->job, i) == 0)
			return i;
	if (missing < win->n_ranks)
		return missing;
	wait_publish_max(&window_head(win)->passed, win->epoch);
	return reason->rank;
}

/* The last rank to enter sees all others: each stores its word before it loads the others, in one order for all. */
static int barrier_sleep(struct weightd_window *win, struct barrier *barrier)
{
	struct control_word *passed = &window_head(win)->passed;

	barrier->reason.rank = find_missing(win);
	if (barrier->reason.rank == win->n_ranks) {
		wait_publish_max(passed, win->epoch);
		return 0;
	}
	return wait_for_found(&win->place, passed, win->epoch, &barrier->reason, barrier_find_rank);
}

static int barrier_spin(struct weightd_window *win, struct barrier *barrier)
{
	int r = 0;

	for (uint32_t i = 1; r == 0 && i < win->n_ranks; i++) {
		struct control_word *entered;

		barrier->reason.rank = (win->rank + i) % win->n_ranks;
		entered = &window_rank(win, barrier->reason.rank)->entered;
		r = wait_for_found(&win->place, entered, win->epoch, &barrier->reason,
				   barrier_find_rank);
	}
	return r;
}

static int window_enter(struct weightd_window *win, const char *what)
{
	struct barrier barrier = {.reason.what = what, .win = win};

	win->epoch++;
	wait_publish(&window_rank(win, win->rank)->entered, win->epoch);
	if (win->rank == 0)
		atomic_store_explicit(&window_head(win)->step, win->epoch, memory_order_relaxed);
	win->failure = win->place.spins ? barrier_spin(win, &barrier) : barrier_sleep(win, &barrier);
	return win->failure;
}

int window_check(const struct weightd_window *win)
{
	if (!*win->is_owner)
		return train_fail(-ECHILD, "this window belongs to the parent process");
	if (win->failure)
		return train_fail(
			win->failure,
			"an earlier collective on the window of job '%s' failed, which broke it; create "
			"another job",
			weightd_job_name(win->job));
	return 0;
}

int weightd_window_barrier(struct weightd_window *win)
{
	int r = window_check(win);

	return r < 0 ? r : window_enter(win, "enter the barrier of a collective");
}

/* --- Opening ------------------------------------------------------------------------------------ */

static int join_differs(struct weightd *w, const char *token, uint64_t size)
{
	cleanup(freep) void *theirs = NULL;
	struct window_image *image;
	uint64_t theirs_size;

	if (weightd_job_description(w, token, &theirs, &theirs_size) < 0 ||
	    theirs_size != sizeof(*image) || memcmp(theirs, IMAGE_MAGIC, sizeof(IMAGE_MAGIC)) != 0)
		return train_fail(-EPROTOTYPE,
				  "the job of this token has no window, it is one of trainers; "
				  "create another job for the window");
	image = theirs;
	if (image->abi != IMAGE_ABI || image->size == size)
		return train_fail(
			-EPROTOTYPE,
			"the window of this job is of another release of weightd-train; start all ranks "
			"with one release");
	return train_fail(-EPROTOTYPE,
			  "this rank asks for a window of %" PRIu64
			  " bytes for each rank, the first one asked for "
			  "%" PRIu64 "; ask for the same size in all",
			  size, image->size);
}

static int window_join(struct weightd_window *win, struct weightd *w, const char *token)
{
	struct window_image image = {
		.magic = IMAGE_MAGIC, .abi = IMAGE_ABI, .n_ranks = win->n_ranks, .size = win->size};
	struct weightd_part parts[] = {
		{.size = sizeof(parts[0]), .kind = "CONTROL", .n_bytes = win->control_size},
		{.size = sizeof(parts[0]), .kind = "WINDOW"},
	};
	struct weightd_join_options options = {
		.size = sizeof(options),
		.rank = win->rank,
		.n_parts = ARRAY_LEN(parts),
		.parts = parts,
		.description = &image,
		.description_size = sizeof(image),
	};
	int r;

	if (__builtin_mul_overflow(win->stride, win->n_ranks, &parts[1].n_bytes))
		return train_fail(-EOVERFLOW, "a window of %u x %" PRIu64 " bytes is too large",
				  win->n_ranks, win->size);
	r = weightd_job_join(w, token, &options, &win->job);
	if (r == -EPROTOTYPE)
		return join_differs(w, token, win->size);
	return r < 0 ? train_fail(r, "%s", weightd_error(w)) : 0;
}

static int window_map(struct weightd_window *win, uint32_t part, uint64_t size, uint8_t **ret)
{
	void *mapped;
	int r = mapping_new(weightd_job_fd(win->job, part), size, PROT_READ | PROT_WRITE, NULL,
			    &mapped);

	if (r == 0) {
		*ret = mapped;
		if (madvise(mapped, size, MADV_DONTFORK) < 0)
			r = -errno;
	}
	return r < 0 ? train_fail(r, "cannot map %" PRIu64 " bytes of a window: %s", size,
				  strerror(-r))
		     : 0;
}

/* A page that is zero in a forked child. */
static int window_mark_owner(struct weightd_window *win)
{
	void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return train_fail(-errno, "no memory for a window");
	win->is_owner = page;
	if (madvise(page, PAGE, MADV_WIPEONFORK) < 0)
		return train_fail(-errno,
				  "this kernel cannot tell forked children apart (MADV_WIPEONFORK); "
				  "use Linux 4.14 or later");
	*win->is_owner = true;
	return 0;
}

/* Waits for all ranks, and decides with them if they spin: all do, or none does. */
static int window_meet(struct weightd_window *win)
{
	int r;

	if (atomic_exchange(&window_rank(win, win->rank)->was_opened, 1))
		return train_fail(
			-EOWNERDEAD,
			"rank %u of job '%s' had its window open before, and a window is not resumed; create "
			"another job",
			win->rank, weightd_job_name(win->job));
	win->place.spins = false;
	r = window_enter(win, "open the window");
	if (r < 0)
		return r;
	wait_place_meet(&win->place);
	atomic_store(&window_rank(win, win->rank)->spins, win->place.spins);
	win->place.spins = false;
	r = window_enter(win, "open the window");
	if (r < 0)
		return r;
	win->place.spins = true;
	for (uint32_t i = 0; i < win->n_ranks; i++)
		if (!atomic_load(&window_rank(win, i)->spins))
			win->place.spins = false;
	return 0;
}

static int window_init(struct weightd_window *win, struct weightd *w, const char *token,
		       const struct weightd_train_options *options)
{
	uint64_t granule = win->size < 2 * MIB ? PAGE : 2 * MIB;
	/* The successor of a dead rank could not take part: a death is an error in any case. */
	struct weightd_train_options fail = {.size = sizeof(fail),
					     .deadline_ms = options ? options->deadline_ms : 0,
					     .on_death = WEIGHTD_DEATH_FAIL};
	int r;

	win->control_size = stages_offset(win->n_ranks) + (uint64_t)win->n_ranks * 2 * WINDOW_STAGE;
	if (!num_align_up(win->size, granule, &win->stride))
		return train_fail(-EOVERFLOW, "a window of %" PRIu64 " bytes is too large",
				  win->size);
	r = window_mark_owner(win);
	if (r == 0)
		r = window_join(win, w, token);
	if (r == 0)
		r = window_map(win, 0, win->control_size, &win->control);
	if (r == 0)
		r = window_map(win, 1, win->stride * win->n_ranks, &win->ranges);
	if (r < 0)
		return r;
	win->kernels = kernels_get();
	wait_place_init(&win->place, win->job, win->rank, win->n_ranks, &fail);
	win->place.watches_all = false; /* a barrier does, but for those that have entered it */
	return window_meet(win);
}

int weightd_window_open(struct weightd *w, const struct weightd_train_options *options,
			uint64_t size, struct weightd_window **ret)
{
	cleanup(weightd_window_freep) struct weightd_window *win = NULL;
	char token[WEIGHTD_TOKEN_MAX];
	uint32_t rank, n_ranks = 0;
	int r;

	if (options && (r = given_check(options, sizeof(*options), "weightd_train_options")) < 0)
		return r;
	if (size == 0 || size % WINDOW_LINE != 0)
		return train_fail(-EINVAL,
				  "the size of a window is %" PRIu64
				  " bytes; it must be a multiple of %d",
				  size, WINDOW_LINE);
	r = isa_check();
	if (r == 0)
		r = identity_resolve(options, token, &rank);
	if (r == 0)
		r = identity_count_ranks(w, token, &n_ranks); /* decides the sizes of parts */
	if (r < 0)
		return r;
	if (rank >= n_ranks)
		return train_fail(-EINVAL, "there is no rank %u: the job has %u ranks", rank,
				  n_ranks);
	win = calloc(1, sizeof(*win));
	if (!win)
		return train_fail(-ENOMEM, "no memory for a window");
	win->rank = rank;
	win->n_ranks = n_ranks;
	win->size = size;
	r = window_init(win, w, token, options);
	if (r == 0)
		*ret = take_ptr(win);
	return r;
}

void weightd_window_free(struct weightd_window *win)
{
	if (!win || (win->is_owner && !*win->is_owner))
		return; /* in a child: the job is the parent's */
	if (win->job)
		(void)weightd_job_leave(win->job); /* it may have been removed */
	mapping_free(win->ranges, win->stride * win->n_ranks);
	mapping_free(win->control, win->control_size);
	weightd_job_free(win->job);
	mapping_free(win->is_owner, PAGE);
	free(win);
}

void *weightd_window_data(const struct weightd_window *win, uint32_t rank)
{
	return rank < win->n_ranks ? window_range(win, rank) : NULL;
}

uint32_t weightd_window_rank(const struct weightd_window *win)
{
	return win->rank;
}

uint32_t weightd_window_n_ranks(const struct weightd_window *win)
{
	return win->n_ranks;
}
