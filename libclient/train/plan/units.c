/*
 * Units: parameters that are gathered at once. Their rooms in GATHERED follow from their levels: units of a level are opened
 * one after the other, so that two rooms are enough for the one in use and the next one.
 */
#include <errno.h>
#include <stdlib.h>

#include "ipc/base/quote.h"
#include "libclient/train/plan/build.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/plan/strategy.h"

static int check_tensor(const struct weightd_train_tensor *before,
			const struct weightd_train_tensor *t)
{
	uint32_t next = before ? before->unit + 1 : 0;
	bool continues = before && t->unit == before->unit;
	struct quote q;

	if (!continues && next >= PLAN_BUCKETS_MAX)
		return train_fail(
			-EINVAL,
			"%s begins unit %u, and a plan has %d units at most: give larger ones",
			quote_name(&q, t->name), next, PLAN_BUCKETS_MAX);
	if (!continues && t->unit != next)
		return train_fail(-EINVAL,
				  "%s is in unit %u, where unit %u is next; units count from 0 on, and "
				  "the tensors of one follow each other",
				  quote_name(&q, t->name), t->unit, next);
	if (t->level >= WEIGHTD_LEVELS_MAX)
		return train_fail(-EINVAL, "%s has level %u; units are nested in %d others at most",
				  quote_name(&q, t->name), t->level, WEIGHTD_LEVELS_MAX - 1);
	if (continues && t->level != before->level)
		return train_fail(-EINVAL,
				  "%s has level %u, and its unit %u has level %u; those of a unit "
				  "have one level",
				  quote_name(&q, t->name), t->level, t->unit, before->level);
	return 0;
}

/* Each unit has the elements up to the next one, padding included. */
static int find_units(struct weightd_plan *p, uint32_t n_of_level[WEIGHTD_LEVELS_MAX])
{
	const struct weightd_train_tensor *before = NULL;

	for (uint32_t i = 0; i < p->n_tensors; i++) {
		const struct weightd_train_tensor *t = &p->tensors[i];
		int r;

		if (!plan_is_trained(t) || !t->n_bytes)
			continue;
		r = check_tensor(before, t);
		if (r < 0)
			return r;
		if (!before || t->unit != before->unit) {
			uint64_t begin = plan_elements(p, t).begin;

			if (before)
				p->units[before->unit].interval.end = begin;
			p->units[t->unit] = (struct plan_unit){
				{begin, p->n_elements}, t->level, n_of_level[t->level]++, 0};
			p->n_units++;
		}
		before = t;
	}
	return 0;
}

static uint32_t count_rooms(const struct weightd_plan *p, uint32_t n_units)
{
	if (p->keeps_units)
		return n_units;
	return n_units > 1 && !p->without_prefetch ? 2 : n_units ? 1 : 0;
}

/* Bytes of a unit, in whole pages. */
static uint64_t size_unit(const struct weightd_plan *p, const struct plan_unit *u)
{
	uint64_t n = u->interval.end - u->interval.begin;

	n *= plan_element_size(p, WEIGHTD_KIND_PARAM);
	return (n + PLAN_PAGE - 1) / PLAN_PAGE * PLAN_PAGE;
}

/* Each is as large as the largest unit that is to be in it. */
static int make_rooms(struct weightd_plan *p, const uint32_t n_of_level[WEIGHTD_LEVELS_MAX])
{
	uint32_t first[WEIGHTD_LEVELS_MAX], n[WEIGHTD_LEVELS_MAX];
	uint64_t offset = 0;

	for (uint32_t level = 0; level < WEIGHTD_LEVELS_MAX; level++) {
		first[level] = p->n_rooms;
		n[level] = count_rooms(p, n_of_level[level]);
		p->n_rooms += n[level];
	}
	p->rooms = calloc(p->n_rooms, sizeof(*p->rooms));
	if (!p->rooms)
		return train_out_of_memory();
	for (uint32_t i = 0; i < p->n_units; i++) {
		struct plan_unit *u = &p->units[i];
		uint64_t size = size_unit(p, u);
		struct plan_room *room;

		u->room = first[u->level] + u->number % n[u->level];
		room = &p->rooms[u->room];
		room->level = u->level;
		room->last = i;
		room->size = size > room->size ? size : room->size;
	}
	for (uint32_t i = 0; i < p->n_rooms; i++) {
		p->rooms[i].offset = offset;
		offset += p->rooms[i].size;
	}
	return 0;
}

int build_units(struct weightd_plan *p)
{
	uint32_t n_of_level[WEIGHTD_LEVELS_MAX] = {0};
	int r;

	if (!p->row->has_units)
		return 0;
	p->units = calloc(p->n_tensors, sizeof(*p->units));
	if (!p->units)
		return train_out_of_memory();
	r = find_units(p, n_of_level);
	if (r >= 0 && plan_shards_params(p))
		r = make_rooms(p, n_of_level);
	return r;
}

const char *plan_unit_name(const struct weightd_plan *p, uint32_t unit)
{
	for (uint32_t i = 0; i < p->n_tensors; i++)
		if (plan_is_trained(&p->tensors[i]) && p->tensors[i].n_bytes &&
		    p->tensors[i].unit == unit)
			return p->tensors[i].name;
	return "";
}

bool plan_is_fetched_again(const struct weightd_plan *p, uint32_t unit)
{
	return p->rooms[p->units[unit].room].last != unit;
}
