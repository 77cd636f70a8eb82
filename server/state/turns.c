#include "server/state/turns.h"

#include <assert.h>

#include "ipc/base/num.h"
#include "server/state/cost.h"
#include "server/state/server.h"
#include "server/state/session.h"

/* The most that a user can owe. */
#define DEBT_NS (50 * TURN_NS)

static void turns_on_round(struct chore *chore);
static void turns_on_rested(struct timer *timer);

void turns_init(struct turns *t, struct loop *l, void (*serve)(struct session *))
{
	t->loop = l;
	t->share_ms = TURN_SHARE_MS;
	t->serve = serve;
	chore_init(&t->chore, turns_on_round);
	list_init(&t->fresh);
	list_init(&t->others);
	list_init(&t->resting);
	timer_init(&t->rest, turns_on_rested);
}

static bool turn_is_over(const struct turn *turn)
{
	return list_empty(&turn->ending) && list_empty(&turn->ready) && list_empty(&turn->again);
}

/* The session to be served next in this round, or NULL. */
static struct session *turn_first(const struct turn *turn)
{
	struct session *s = list_first(&turn->ending, struct session, ready_link);

	return s ? s : list_first(&turn->ready, struct session, ready_link);
}

void turns_deinit(struct turns *t)
{
	struct turn *turn;

	/* A user that has been served may still stand here. */
	while ((turn = list_first(&t->others, struct turn, link)) ||
	       (turn = list_first(&t->fresh, struct turn, link)) ||
	       (turn = list_first(&t->resting, struct turn, link))) {
		assert(turn_is_over(turn));
		list_remove(&turn->link);
	}
	chore_stop(&t->chore);
	timer_stop(&t->rest);
}

void turn_init(struct turn *turn)
{
	*turn = (struct turn){0};
	list_init(&turn->link);
	list_init(&turn->ending);
	list_init(&turn->ready);
	list_init(&turn->again);
	list_init(&turn->parked);
}

void turns_join(struct session *s)
{
	if (s->cost->turn.n_sessions++ == 0)
		s->server->turns.n_users++;
}

void turns_leave(struct session *s)
{
	if (--s->cost->turn.n_sessions == 0)
		s->server->turns.n_users--;
}

/* --- Rest --------------------------------------------------------------------------------------- */

static void turn_grow(const struct turns *t, struct turn *turn, uint64_t now)
{
	uint64_t away_ns = now - turn->grown_ns;
	uint64_t full_ns = (uint64_t)(TURN_BURST_NS - turn->burst_ns) * 1000;

	turn->grown_ns = now;
	if (away_ns > full_ns / t->share_ms)
		turn->burst_ns = TURN_BURST_NS;
	else
		turn->burst_ns += (int64_t)(away_ns * t->share_ms / 1000);
	/* However long it worked alone, or a request lasted: the rest is short. */
	if (turn->burst_ns < -DEBT_NS)
		turn->burst_ns = -DEBT_NS;
}

static void turns_plan_rest(struct turns *t)
{
	struct turn *turn = list_first(&t->resting, struct turn, link);

	if (turn)
		timer_start(t->loop, &t->rest, turn->rests_until_ns);
	else
		timer_stop(&t->rest);
}

/* Has a user with something to do rest. False: it need not. */
static bool turn_rest(struct turns *t, struct turn *turn, uint64_t now)
{
	if (turn->burst_ns > 0 || t->n_users < 2 || container_of(turn, struct cost, turn)->uid == 0)
		return false;
	turn->rests_until_ns = now + TURN_REST_NS;
	list_remove(&turn->link);
	list_append(&t->resting, &turn->link);
	turns_plan_rest(t);
	return true;
}

static void turns_on_rested(struct timer *timer)
{
	struct turns *t = container_of(timer, struct turns, rest);
	uint64_t now = num_now_ns();
	struct turn *turn;

	while ((turn = list_first(&t->resting, struct turn, link)) && turn->rests_until_ns <= now) {
		list_remove(&turn->link);
		list_append(&t->others, &turn->link);
		turn_grow(t, turn, now);
		(void)turn_rest(t, turn,
				now); /* one request may have lasted for longer than a rest */
	}
	turns_plan_rest(t);
	if (!list_empty(&t->others))
		chore_start(t->loop, &t->chore);
}

/* --- Work --------------------------------------------------------------------------------------- */

/* A debt is paid by time, too, while the user has nothing to do. */
static void turn_pay(struct turn *turn, uint64_t now)
{
	uint64_t away_ns = now - turn->paid_ns;

	turn->left_ns = away_ns > (uint64_t)-turn->left_ns ? 0 : turn->left_ns + (int64_t)away_ns;
	turn->paid_ns = now;
}

void turns_add(struct session *s)
{
	struct turns *t = &s->server->turns;
	struct turn *turn = &s->cost->turn;

	if (!list_empty(&s->ready_link))
		return;
	/* A session that ends goes first: it makes room for new ones, which would have to be refused otherwise. */
	if (s->hung_up || s->doomed)
		list_append(&turn->ending, &s->ready_link);
	else
		list_append(t->serving ? &turn->again : &turn->ready, &s->ready_link);
	if (list_empty(&turn->link)) {
		uint64_t now = num_now_ns();

		turn_pay(turn, now);
		turn_grow(t, turn, now);
		if (!turn_rest(t, turn, now))
			list_append(&t->fresh, &turn->link);
	}
	chore_start(t->loop, &t->chore);
}

static void turn_spend(struct cost *cost, uint64_t ns)
{
	cost->loop_ns += ns;
	if (ns > cost->longest_ns)
		cost->longest_ns = ns;
	cost->turn.left_ns -= (int64_t)ns;
	cost->turn.burst_ns -= (int64_t)ns;
}

void turns_charge(struct cost *cost, uint64_t begin, uint64_t end)
{
	if (list_empty(&cost->turn.link))
		turn_pay(&cost->turn, end);
	turn_spend(cost, end - begin);
}

void turns_remove(struct session *s)
{
	list_remove(&s->ready_link);
}

void turns_park(struct session *s)
{
	list_append(&s->cost->turn.parked, &s->ready_link);
}

void turns_unpark_one(struct turn *turn)
{
	struct session *s = list_first(&turn->parked, struct session, ready_link);

	if (!s)
		return;
	list_remove(&s->ready_link);
	turns_add(s);
}

void turns_unpark_all(struct turn *turn)
{
	while (!list_empty(&turn->parked))
		turns_unpark_one(turn);
}

/* --- Rounds ------------------------------------------------------------------------------------- */

/* Serves one session. Returns the time afterwards. */
static uint64_t turn_serve(struct turns *t, struct cost *cost, struct session *s, uint64_t now)
{
	uint64_t end;

	list_remove(&s->ready_link);
	t->serve(s);
	end = num_now_ns();
	turn_spend(cost, end - now);
	return end;
}

/* Sessions that were queued while the last round served come behind those that were sent something since. */
static void turn_renew(struct turns *t, struct turn *turn)
{
	struct list *link;

	if (turn->round == t->n_rounds)
		return;
	turn->round = t->n_rounds;
	while (!list_empty(&turn->again)) {
		link = turn->again.next;
		list_remove(link);
		list_append(&turn->ready, link);
	}
}

/* A user's turn, or part of a debt. Returns the time afterwards. */
static uint64_t turn_run(struct turns *t, struct cost *cost, uint64_t now)
{
	struct turn *turn = &cost->turn;
	struct session *s;

	turn->left_ns += TURN_NS;
	while (turn->left_ns > 0 && (s = turn_first(turn)))
		now = turn_serve(t, cost, s, now);
	if (turn->left_ns > 0)
		turn->left_ns = 0;
	if (turn->left_ns < -DEBT_NS)
		turn->left_ns = -DEBT_NS;
	turn->paid_ns = now;
	turn_grow(t, turn, now);
	return now;
}

/*
 * Serves the user in front, which stands behind the others afterwards, unless there is nothing to do for
 * it. Returns the user if it waits for the next round.
 */
static const struct turn *turns_serve_next(struct turns *t, uint64_t *now)
{
	bool fresh = !list_empty(&t->fresh);
	struct turn *turn = list_first(fresh ? &t->fresh : &t->others, struct turn, link);
	bool work;

	turn_renew(t, turn);
	work = turn_first(turn) != NULL;
	list_remove(&turn->link);
	list_append(&t->others, &turn->link);
	/* Costs that lose their last reference stay for longer than a turn. */
	if (work)
		*now = turn_run(t, container_of(turn, struct cost, turn), *now);
	/* A fresh user that is done stands there once: else it would always be fresh. */
	if (turn_is_over(turn) && (!fresh || t->others.next == t->others.prev))
		list_remove(&turn->link);
	else if (work)
		(void)turn_rest(t, turn, *now);
	return work || list_empty(&turn->link) ? NULL : turn;
}

static bool turns_wait(const struct turns *t)
{
	return !list_empty(&t->fresh) || !list_empty(&t->others);
}

/* One session waits, and has been served in this round: there is no order for the loop to find out. */
static bool is_one_session(const struct turns *t)
{
	const struct turn *turn = list_first(&t->others, struct turn, link);

	return list_empty(&t->fresh) && turn && t->others.next == t->others.prev &&
	       list_empty(&turn->ending) && list_empty(&turn->ready) && !list_empty(&turn->again) &&
	       turn->again.next == turn->again.prev;
}

/* Serves what was there before, for as long as a turn at most. Returns the time afterwards. */
static uint64_t turns_serve_round(struct turns *t, uint64_t begin, uint64_t now)
{
	const struct turn *first = NULL; /* of those that wait, since a user was served */

	t->n_rounds++;
	while (turns_wait(t) && now - begin < (uint64_t)TURN_NS) {
		const struct turn *waits = turns_serve_next(t, &now);

		if (waits && waits == first)
			break;
		if (!waits || !first)
			first = waits;
	}
	return now;
}

/* Lasts as long as a turn, so that the loop sees soon which other users have sent something. */
static void turns_on_round(struct chore *chore)
{
	struct turns *t = container_of(chore, struct turns, chore);
	uint64_t begin = num_now_ns(), now = begin;

	t->serving = true;
	do
		now = turns_serve_round(t, begin, now);
	while (is_one_session(t) && now - begin < (uint64_t)TURN_NS);
	t->serving = false;
	if (turns_wait(t))
		chore_start(t->loop, &t->chore);
	else
		chore_stop(&t->chore); /* sessions that were queued meanwhile were served, too */
}
