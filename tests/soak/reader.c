/*
 * reader LEDGER NAME HABIT: reads a buffer over and over until it is killed, and enters what it finds
 *
 *	attach	attaches anew each time		refresh	goes on beside what it has
 *	swap	goes on at the same address	ticket	never pauses, reads an exclusive buffer by tickets
 *	pause	pauses when asked to		any	as refresh, where rollbacks make versions go back
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weightd.h>

#include "tests/soak/ledger.h"

#define WAIT_MS 1000

struct reader {
	struct ledger *ledger;
	struct ledger_buffer *entry;
	const char *name;
	struct weightd *w;
	struct weightd_buffer *b; /* NULL: not attached */
	bool goes_back;
	uint64_t due; /* at least that version is there */
};

/* Those that pass: nothing is published, or it is torn, or being updated. */
static bool is_passing(int r)
{
	return r == -ENOENT || r == -ENODATA || r == -EAGAIN || r == -EUCLEAN || r == -ETIMEDOUT;
}

static void report(struct reader *r, const char *what, int error)
{
	if (!is_passing(error))
		ledger_fault(r->ledger, &r->ledger->n_errors, "%s: %s: %s (%s)", r->name, what,
			     strerror(-error), weightd_error(r->w));
}

static void let_go(struct reader *r)
{
	weightd_detach(r->b);
	r->b = NULL;
}

static void attach(struct reader *r)
{
	struct weightd_attach_options o = {.size = sizeof(o), .timeout_ms = WAIT_MS};
	int e = weightd_attach(r->w, r->name, &o, &r->b);

	if (e < 0)
		report(r, "attach", e);
}

/* Enters what was read of a version. */
static void enter(struct reader *r, uint64_t version, uint64_t tag)
{
	struct ledger *l = r->ledger;

	atomic_fetch_add(&l->n_checks, 1);
	if (!tag)
		ledger_fault(l, &l->n_torn, "%s@%" PRIu64 " is torn or mixed", r->name, version);
	else
		ledger_agree(l, r->entry, version, tag);
	if (version < r->due && !r->goes_back)
		ledger_fault(l, &l->n_lost,
			     "%s@%" PRIu64 " was published, and %" PRIu64 " is served", r->name,
			     r->due, version);
}

static uint64_t tag_of(const struct reader *r)
{
	return ledger_tag(weightd_buffer_data(r->b, NULL));
}

static void check(struct reader *r)
{
	enter(r, weightd_buffer_version(r->b), tag_of(r));
}

static void read_attached(struct reader *r)
{
	check(r);
	let_go(r);
}

static void read_refreshed(struct reader *r)
{
	struct weightd_buffer *new;
	int e = weightd_buffer_refresh(r->b, &new);

	if (e < 0) {
		report(r, "refresh", e);
		return;
	}
	if (e > 0) {
		let_go(r);
		r->b = new;
		atomic_fetch_add(&r->ledger->n_moves, 1);
	}
	check(r);
}

static void read_swapped(struct reader *r)
{
	int e = weightd_buffer_swap(r->b);

	if (e < 0) {
		report(r, "swap", e);
		return;
	}
	atomic_fetch_add(&r->ledger->n_moves, (uint64_t)e);
	check(r);
}

static void read_by_ticket(struct reader *r)
{
	uint64_t ticket, tag;
	int e = weightd_read_begin(r->b, &ticket);

	if (e < 0) {
		report(r, "begin", e);
		return;
	}
	tag = tag_of(r);
	if (weightd_read_retry(r->b, ticket))
		atomic_fetch_add(&r->ledger->n_retries, 1);
	else
		enter(r, ticket >> 8, tag);
}

/* An evicted reader finds out in the next pause, and then must not have used what it read before. */
static void read_between_pauses(struct reader *r)
{
	int e = weightd_buffer_pause(r->b, WAIT_MS);
	uint64_t tag, version;

	if (e >= 0) {
		version = weightd_buffer_version(r->b);
		tag = tag_of(r);
		e = weightd_buffer_pause(r->b, WAIT_MS);
		if (e >= 0)
			enter(r, version, tag);
	}
	if (e < 0)
		report(r, "pause", e);
	if (e == -EUCLEAN)
		let_go(r);
}

static const struct habit {
	const char *name;
	void (*read)(struct reader *);
	bool goes_back;
} habits[] = {
	{"attach", read_attached, false},      {"refresh", read_refreshed, false},
	{"swap", read_swapped, false},         {"ticket", read_by_ticket, false},
	{"pause", read_between_pauses, false}, {"any", read_refreshed, true},
};

static const struct habit *find_habit(const char *name)
{
	for (size_t i = 0; i < sizeof(habits) / sizeof(habits[0]); i++)
		if (!strcmp(habits[i].name, name))
			return &habits[i];
	(void)fprintf(stderr, "reader: there is no habit '%s'\n", name);
	exit(2);
}

int main(int argc, char **argv)
{
	const struct habit *habit;
	struct reader r = {0};

	if (argc != 4)
		return 2;
	habit = find_habit(argv[3]);
	r.ledger = ledger_open(argv[1]);
	r.entry = ledger_buffer(r.ledger, argv[2]);
	r.name = argv[2];
	r.goes_back = habit->goes_back;
	if (weightd_new(&r.w) < 0)
		return 1;
	while (weightd_connect(r.w, NULL) < 0)
		; /* no server listens during a restart, and a new client does not wait */
	for (;;) {
		r.due = atomic_load(&r.entry->acknowledged);
		if (!r.b)
			attach(&r);
		if (r.b)
			habit->read(&r);
	}
}
