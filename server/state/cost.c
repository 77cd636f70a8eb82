#include "server/state/cost.h"

#include <assert.h>
#include <stdlib.h>

#include "server/base/subordinate.h"
#include "server/state/server.h"

void costs_init(struct costs *c)
{
	*c = (struct costs){.others = {.costs = c, .uid = (uid_t)-1}};
	for (unsigned i = 0; i < COST_BUCKETS; i++)
		list_init(&c->buckets[i]);
	list_init(&c->idle);
	list_init(&c->others.link);
	list_init(&c->others.idle_link);
	turn_init(&c->others.turn);
}

static void cost_free(struct cost *c)
{
	list_remove(&c->idle_link);
	c->costs->n_idle--;
	list_remove(&c->link);
	list_remove(&c->turn.link); /* it may have been served just now */
	free(c);
}

void costs_deinit(struct costs *c)
{
	struct cost *cost;

	while ((cost = list_first(&c->idle, struct cost, idle_link)))
		cost_free(cost);
	for (unsigned i = 0; i < COST_BUCKETS; i++)
		assert(list_empty(&c->buckets[i]));
}

static struct cost *cost_find(struct costs *c, uid_t uid)
{
	struct cost *cost;

	list_for_each(cost, &c->buckets[uid % COST_BUCKETS], link)
		if (cost->uid == uid)
			return cost;
	return NULL;
}

static void cost_set_idle(struct cost *cost)
{
	struct costs *c = cost->costs;

	list_append(&c->idle, &cost->idle_link);
	if (++c->n_idle > COST_IDLE_MAX)
		cost_free(list_first(&c->idle, struct cost, idle_link));
}

static void cost_set_busy(struct cost *cost)
{
	list_remove(&cost->idle_link);
	cost->costs->n_idle--;
}

struct cost *cost_ref(struct server *s, uid_t uid)
{
	uid_t payer = subordinate_payer(uid);
	struct costs *c = &s->costs;
	struct cost *cost = cost_find(c, payer);

	if (!cost) {
		cost = calloc(1, sizeof(*cost));
		if (!cost)
			return &c->others;
		cost->costs = c;
		cost->uid = payer;
		list_init(&cost->idle_link);
		turn_init(&cost->turn);
		list_append(&c->buckets[payer % COST_BUCKETS], &cost->link);
	} else if (!cost->n_refs)
		cost_set_busy(cost);
	cost->n_refs++;
	return cost;
}

struct cost *cost_unref(struct cost *cost)
{
	if (!cost || cost == &cost->costs->others)
		return NULL;
	assert(cost->n_refs > 0);
	if (--cost->n_refs == 0)
		cost_set_idle(cost);
	return NULL;
}

struct cost *cost_of(struct server *s, uid_t uid)
{
	struct cost *cost = cost_ref(s, uid);

	(void)cost_unref(cost); /* the last that was seen stays */
	return cost;
}

void cost_worked(void *server, uid_t uid, uint64_t ns)
{
	cost_of(server, uid)->worker_ns += ns;
}

void cost_looped(void *server, uid_t uid, uint64_t begin, uint64_t end)
{
	turns_charge(cost_of(server, uid), begin, end);
}

void cost_answered(struct cost *c, uint64_t ns)
{
	unsigned span = 0;

	while (span < WIRE_COST_SPANS - 1 && ns > WIRE_COST_SPAN_NS << span)
		span++;
	c->answered[span]++;
}

const struct cost *costs_next(const struct costs *c, uint64_t from)
{
	const struct cost *cost, *best = NULL;

	for (unsigned i = 0; i < COST_BUCKETS; i++)
		list_for_each(cost, &c->buckets[i], link)
			if (cost->uid >= from && (!best || cost->uid < best->uid))
				best = cost;
	return best;
}
