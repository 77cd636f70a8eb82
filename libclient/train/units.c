#include "libclient/train/units.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "libclient/train/exchange.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/trainer.h"

static uint64_t element_size(const struct weightd_train *t)
{
	return plan_element_size(t->plan, WEIGHTD_KIND_PARAM);
}

/* Bytes of a unit's window. */
static uint64_t window_size(const struct weightd_train *t, uint32_t unit)
{
	const struct plan_interval *i = &t->plan->units[unit].interval;

	return ((i->end - i->begin) * element_size(t) + PLAN_PAGE - 1) / PLAN_PAGE * PLAN_PAGE;
}

/* --- Life ---------------------------------------------------------------------------------------------- */

int units_init(struct weightd_train *t)
{
	const struct weightd_plan *p = t->plan;
	struct units *u = &t->units;
	void *windows;

	if (!plan_shards_params(p))
		return 0;
	u->offsets = calloc(p->n_units, sizeof(*u->offsets));
	u->is_open = calloc(p->n_units, sizeof(*u->is_open));
	u->rooms = calloc(p->n_rooms, sizeof(*u->rooms));
	if (!u->offsets || !u->is_open || !u->rooms)
		return train_out_of_memory();
	for (uint32_t i = 0; i < p->n_units; i++) {
		u->offsets[i] = u->windows_size;
		u->windows_size += window_size(t, i);
	}
	windows = mmap(NULL, u->windows_size, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (windows == MAP_FAILED)
		return train_fail(-ENOMEM, "no addresses for %" PRIu64 " bytes of parameters",
				  u->windows_size);
	u->windows = windows;
	return 0;
}

static void forget_caught_up(struct weightd_train *t)
{
	struct units *u = &t->units;

	if (u->caught_up)
		(void)munmap(u->caught_up, t->plan->n_elements * element_size(t));
	u->caught_up = NULL;
}

void units_deinit(struct weightd_train *t)
{
	struct units *u = &t->units;

	if (u->windows) {
		forget_caught_up(t);
		(void)munmap(u->windows, u->windows_size);
	}
	free(u->offsets);
	free(u->is_open);
	free(u->rooms);
}

/* --- The step ------------------------------------------------------------------------------------------ */

static bool is_current(const struct weightd_train *t)
{
	return t->units.step == t->step + 1;
}

/* The first use of units in a step. What the process before completed in it is past. */
static void begin_step(struct weightd_train *t)
{
	struct units *u = &t->units;
	uint64_t line = trainer_word(&trainer_words(t)->line);

	if (is_current(t))
		return;
	memset(u->rooms, 0, t->plan->n_rooms * sizeof(*u->rooms));
	u->step = t->step + 1;
	u->n_asked = 0;
	u->past = control_exchange_step(line) == u->step ? line : 0;
	forget_caught_up(t);
}

uint64_t units_gathered(const struct weightd_train *t, uint64_t line)
{
	const struct arena *a = &t->arena;
	uint64_t last = control_exchange(control_exchange_step(line), 0), begin = line;

	for (uint32_t i = 0; i < a->plan->n_units; i++) {
		uint64_t fetched = arena_bucket(a, a->rank, i)->fetched;

		if (fetched > last && fetched < begin)
			last = fetched;
	}
	return last;
}

/*
 * The process before gathered in this step, and ended before passes began. Ranks of the node that wait for its part of a unit
 * find that they wait in vain.
 */
static void skip_gathered(struct weightd_train *t, uint64_t begin)
{
	struct control_word *line = &trainer_words(t)->line;

	if (trainer_word(line) > control_exchange(t->units.step, 0) && trainer_word(line) < begin)
		wait_publish(line, begin);
}

static int check_closed(const struct weightd_train *t)
{
	for (uint32_t i = 0; t->units.windows && i < t->plan->n_units; i++)
		if (t->units.is_open[i])
			return train_fail(-EINVAL,
					  "unit %u, that of '%s', is open; call "
					  "weightd_train_unit_close() before",
					  i, plan_unit_name(t->plan, i));
	return 0;
}

int units_begin_passes(struct weightd_train *t)
{
	struct units *u = &t->units;
	uint64_t begin = control_exchange(t->step + 1, CONTROL_PASSES);
	int r;

	begin_step(t);
	if (u->n_asked >= CONTROL_PASSES)
		return 0;
	r = check_closed(t); /* other ranks may use all rooms again */
	if (r < 0)
		return r;
	if (u->n_asked)
		r = queue_wait_for(t, &trainer_words(t)->line,
				   control_exchange(u->step, u->n_asked));
	else
		skip_gathered(t, begin);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < t->plan->n_rooms; i++) {
		u->rooms[i] = (struct unit_room){.position = begin};
		wait_publish_max(arena_room(&t->arena, t->arena.rank, i), begin);
	}
	u->n_asked = CONTROL_PASSES;
	return 0;
}

uint64_t units_count(struct weightd_train *t)
{
	begin_step(t);
	return ++t->units.n_asked;
}

uint64_t units_asked(const struct weightd_train *t)
{
	return is_current(t) ? t->units.n_asked : 0;
}

bool units_were_opened(const struct weightd_train *t)
{
	return units_asked(t) != 0;
}

int units_lose(struct weightd_train *t, int r)
{
	t->units.is_lost = true;
	return r;
}

static int check_lost(const struct weightd_train *t)
{
	if (!t->units.is_lost)
		return 0;
	return train_fail(
		-ENOTRECOVERABLE,
		"rank %u failed while it gathered parameters, and its order among the ranks is "
		"lost; open the job again, which continues in step %" PRIu64
		", or start the program again",
		t->arena.rank, t->step + 1);
}

int units_check(const struct weightd_train *t)
{
	int r = check_lost(t);

	return r < 0 ? r : check_closed(t);
}

/* --- Asking -------------------------------------------------------------------------------------------- */

static bool is_past(const struct weightd_train *t, uint64_t position)
{
	return position <= t->units.past;
}

/* The unit takes the place of the one that was in its room, with which this rank is done. */
static int ask(struct weightd_train *t, uint32_t unit)
{
	struct unit_room *room = &t->units.rooms[t->plan->units[unit].room];
	struct queue_request request = {
		.bucket = plan_unit_of_bucket(t->plan, unit),
		.is_fetch = true,
		.replaced = room->position,
	};
	int r = queue_reserve(t);

	if (r < 0)
		return r;
	request.position = control_exchange(t->units.step, units_count(t));
	if (room->position)
		wait_publish_max(arena_room(&t->arena, t->arena.rank, t->plan->units[unit].room),
				 room->position);
	*room = (struct unit_room){unit + 1, request.position};
	if (!is_past(t, request.position))
		queue_ask(t, &request);
	return 0;
}

static bool is_in_room(const struct weightd_train *t, uint32_t unit)
{
	return t->units.rooms[t->plan->units[unit].room].unit == unit + 1;
}

/* The unit that is likely to be opened next: the neighbour in its level. n_units: there is none. */
static uint32_t find_next(const struct weightd_plan *p, uint32_t unit, bool is_backward)
{
	uint32_t level = p->units[unit].level;

	for (uint32_t i = unit; is_backward && i-- > 0;)
		if (p->units[i].level == level)
			return i;
	for (uint32_t i = unit + 1; !is_backward && i < p->n_units; i++)
		if (p->units[i].level == level)
			return i;
	return p->n_units;
}

/* Its room has nothing that is in use: no other unit of the level is open. */
static int ask_next(struct weightd_train *t, uint32_t unit, bool is_backward)
{
	uint32_t next = find_next(t->plan, unit, is_backward);

	if (t->plan->without_prefetch || next == t->plan->n_units || is_in_room(t, next) ||
	    t->plan->units[next].room == t->plan->units[unit].room)
		return 0;
	return ask(t, next);
}

/* --- Windows ------------------------------------------------------------------------------------------- */

static uint8_t *window(const struct weightd_train *t, uint32_t unit)
{
	return t->units.windows + t->units.offsets[unit];
}

const void *units_param(const struct weightd_train *t, uint64_t element)
{
	const struct weightd_plan *p = t->plan;
	uint32_t unit = plan_unit_of_bucket(p, plan_bucket_of(p, element));

	return window(t, unit) + (element - p->units[unit].interval.begin) * element_size(t);
}

static int fail_map(const struct weightd_train *t, uint32_t unit)
{
	int r = -errno;

	return train_fail(r, "cannot map unit %u, that of '%s': %s", unit,
			  plan_unit_name(t->plan, unit), strerror(-r));
}

/* All pages at once: each will be read. */
static int show(struct weightd_train *t, uint32_t unit, int fd, uint64_t offset)
{
	void *at = mmap(window(t, unit), window_size(t, unit), PROT_READ,
			MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, (off_t)offset);

	return at == MAP_FAILED ? fail_map(t, unit) : 0;
}

static int hide(struct weightd_train *t, uint32_t unit)
{
	void *at = mmap(window(t, unit), window_size(t, unit), PROT_NONE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);

	return at == MAP_FAILED ? fail_map(t, unit) : 0;
}

/* --- Catching up --------------------------------------------------------------------------------------- */

static int allocate_caught_up(struct weightd_train *t)
{
	uint64_t size = t->plan->n_elements * element_size(t);
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return train_fail(-ENOMEM,
				  "no memory for all %" PRIu64
				  " bytes of the parameters, which a rank that "
				  "was started anew needs in its first step",
				  size);
	t->units.caught_up = memory;
	return 0;
}

static void copy_own(struct weightd_train *t)
{
	const struct weightd_plan *p = t->plan;
	uint64_t size = element_size(t);

	for (uint32_t rank = 0; rank < p->n_ranks; rank++) {
		const struct plan_pieces *pieces = plan_pieces(p, t->arena.node, rank);

		for (uint32_t i = 0; i < pieces->n; i++) {
			const struct plan_piece *piece = &pieces->pieces[i];

			memcpy(t->units.caught_up + piece->interval.begin * size,
			       (const uint8_t *)t->arena.param + piece->at * size,
			       (piece->interval.end - piece->interval.begin) * size);
		}
	}
}

static int catch_up(struct weightd_train *t)
{
	int r;

	if (t->units.caught_up)
		return 0;
	r = allocate_caught_up(t);
	if (!r) {
		copy_own(t);
		r = exchange_catch_up(t);
	}
	if (r < 0)
		forget_caught_up(t);
	return r;
}

/* From private memory: its room has another unit by now, or will have one. */
static int show_past(struct weightd_train *t, uint32_t unit)
{
	const struct plan_interval *i = &t->plan->units[unit].interval;
	uint64_t size = element_size(t);
	uint8_t *to = window(t, unit);

	if (mmap(to, window_size(t, unit), PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		return fail_map(t, unit);
	memcpy(to, t->units.caught_up + i->begin * size, (i->end - i->begin) * size);
	return mprotect(to, window_size(t, unit), PROT_READ) < 0 ? fail_map(t, unit) : 0;
}

/* --- Opening ------------------------------------------------------------------------------------------- */

/* "line" of a rank that was started anew is behind what this rank gathers before the passes. */
static int fail_skipped(struct weightd_train *t, uint32_t rank)
{
	return units_lose(t,
			  train_fail(-ENOTRECOVERABLE,
				     "rank %u was started again and is in the passes of step %" PRIu64
				     ", while rank %u " UNITS_SKIPPED,
				     rank, t->units.step, t->arena.rank));
}

static int fail_order(struct weightd_train *t, uint32_t unit, uint32_t rank)
{
	return units_lose(
		t, train_fail(-ENOTRECOVERABLE,
			      "rank %u opened another unit in step %" PRIu64
			      " where rank %u opened unit %u, that of '%s': all ranks open the "
			      "same units in the same order, in evaluations, too, and with as "
			      "many micro-batches; start all ranks again",
			      rank, t->units.step, t->arena.rank, unit,
			      plan_unit_name(t->plan, unit)));
}

/* All ranks of the node have their part of the unit in its room. */
static int wait_for_parts(struct weightd_train *t, uint32_t unit, uint64_t position)
{
	uint32_t bucket = plan_unit_of_bucket(t->plan, unit);
	struct wait_reason reason = {.step = t->units.step,
				     .topic = CONTROL_UNITS,
				     .what = "fetch its part of a unit",
				     .cause = UNITS_CAUSE,
				     .for_successor = true};
	int r = queue_wait_for(t, &trainer_words(t)->line, position);

	for (uint32_t rank = 0; !r && rank < t->plan->n_ranks; rank++) {
		reason.rank = rank;
		r = wait_for(&t->place, &arena_rank(&t->arena, rank)->line, position, &reason);
		if (r || arena_bucket(&t->arena, rank, bucket)->fetched == position)
			continue;
		r = control_exchange_index(position) < CONTROL_PASSES &&
				    trainer_word(&arena_rank(&t->arena, rank)->line) >=
					    control_exchange(t->units.step, CONTROL_PASSES)
			    ? fail_skipped(t, rank)
			    : fail_order(t, unit, rank);
	}
	return r;
}

static int check_open(const struct weightd_train *t, uint32_t unit)
{
	const struct weightd_plan *p = t->plan;
	int r = check_lost(t);

	for (uint32_t i = 0; !r && i < p->n_units; i++)
		if (t->units.is_open[i] && p->units[i].level == p->units[unit].level)
			r = train_fail(
				-EINVAL,
				"unit %u, that of '%s', cannot be opened while unit %u of its level "
				"is open, that of '%s'; close that before",
				unit, plan_unit_name(p, unit), i, plan_unit_name(p, i));
	return r;
}

static int open_unit(struct weightd_train *t, uint32_t unit, enum weightd_pass pass)
{
	const struct plan_unit *u = &t->plan->units[unit];
	uint64_t position;
	int r = 0;

	begin_step(t);
	if (pass != WEIGHTD_PASS_EVALUATION)
		r = units_begin_passes(t);
	if (!r && !is_in_room(t, unit))
		r = ask(t, unit);
	position = t->units.rooms[u->room].position;
	/* While the thread was asked for nothing: it would have the link. */
	if (!r && is_past(t, position))
		r = catch_up(t);
	if (!r)
		r = ask_next(t, unit, pass == WEIGHTD_PASS_BACKWARD);
	if (r < 0)
		return r;
	if (is_past(t, position))
		return show_past(t, unit);
	r = wait_for_parts(t, unit, position);
	if (r < 0)
		return r;
	return show(t, unit, arena_fd(&t->arena, WEIGHTD_KIND_GATHERED),
		    t->plan->rooms[u->room].offset);
}

static int check_unit(const struct weightd_train *t, uint32_t unit)
{
	int r = trainer_check(t);

	if (r < 0)
		return r;
	if (!t->is_begun)
		return train_fail(-EINVAL, "call weightd_train_begin() before units are opened");
	if (t->plan->n_units && unit >= t->plan->n_units)
		return train_fail(-EINVAL, "the plan has %u units, and no unit %u",
				  t->plan->n_units, unit);
	return 0;
}

int weightd_train_unit_open(struct weightd_train *t, uint32_t unit, enum weightd_pass pass)
{
	int r = check_unit(t, unit);

	if (r < 0 || !t->units.windows)
		return r;
	r = check_open(t, unit);
	if (r < 0)
		return r;
	r = open_unit(t, unit, pass);
	t->units.is_open[unit] = !r;
	return r;
}

int weightd_train_unit_close(struct weightd_train *t, uint32_t unit)
{
	int r = check_unit(t, unit);

	if (r < 0 || !t->units.windows)
		return r;
	if (!t->units.is_open[unit])
		return train_fail(-EINVAL, "unit %u, that of '%s', is not open", unit,
				  plan_unit_name(t->plan, unit));
	r = hide(t, unit);
	t->units.is_open[unit] = r < 0; /* its window still shows it: the call can be repeated */
	return r;
}
