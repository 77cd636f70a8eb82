/* Ranges of parts are found one after the other; those that touch become one. */
#include "ipc/reshard/slicing.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/pattern.h"
#include "ipc/reshard/split.h"

__attribute__((format(printf, 2, 3))) static int refuse(char why[SLICING_WHY_SIZE], const char *fmt,
							...)
{
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(why, SLICING_WHY_SIZE, fmt, args);
	va_end(args);
	return -EINVAL;
}

void slicing_deinit(struct slicing *s)
{
	free(s->text);
	free(s->rules);
	*s = (struct slicing){0};
}

const struct slicing_rule *slicing_find(const struct slicing *s, const char *name)
{
	for (size_t i = 0; i < s->n_rules; i++)
		if (pattern_matches(s->rules[i].tensors, name))
			return &s->rules[i];
	for (size_t i = 0; s->ready && s->ready->lists[i]; i++)
		for (const struct slicing_rule *rule = s->ready->lists[i]; rule->tensors; rule++)
			if (pattern_matches(rule->tensors, name))
				return rule;
	return NULL;
}

/* --- Shares ------------------------------------------------------------------------------------- */

/* Heads of a unit; 0: it has none, or they are unknown. */
static uint32_t unit_heads(const struct slicing *s, enum slicing_unit unit)
{
	return unit == SLICING_HEADS ? s->heads : unit == SLICING_KV_HEADS ? s->kv_heads : 0;
}

/* The relative size of a part; 0: it is unknown. */
static uint64_t unit_weight(const struct slicing *s, enum slicing_unit unit)
{
	return unit == SLICING_EVEN || unit == SLICING_RAGGED ? 1 : unit_heads(s, unit);
}

static const char *unit_name(enum slicing_unit unit)
{
	return unit == SLICING_KV_HEADS ? "kv_heads" : "heads";
}

/* Cuts `n` elements, a multiple of `heads`, between heads. */
static int share_heads(uint32_t heads, enum slicing_unit unit, uint64_t n, unsigned rank,
		       unsigned world, struct slicing_range *ret, char why[SLICING_WHY_SIZE])
{
	const uint64_t head = n / heads;

	if (heads % world == 0) {
		*ret = (struct slicing_range){heads / world * rank * head, heads / world * head};
		return 0;
	}
	if (unit != SLICING_KV_HEADS || world % heads != 0)
		return refuse(why, "%u ranks cannot share its %u %s evenly", world, heads,
			      unit_name(unit));
	*ret = (struct slicing_range){rank / (world / heads) * head, head};
	return 0;
}

static int share_part(const struct slicing *s, enum slicing_unit unit, uint64_t n, unsigned rank,
		      unsigned world, struct slicing_range *ret, char why[SLICING_WHY_SIZE])
{
	if (unit == SLICING_RAGGED) {
		split_shard(n, world, rank, &ret->first, &ret->size);
		return 0;
	}
	if (unit != SLICING_EVEN)
		return share_heads(unit_heads(s, unit), unit, n, rank, world, ret, why);
	if (n % world)
		return refuse(why, "%u ranks cannot share %llu elements evenly", world,
			      (unsigned long long)n);
	*ret = (struct slicing_range){n / world * rank, n / world};
	return 0;
}

static void add_range(struct slicing_range *ranges, unsigned *n, struct slicing_range range)
{
	struct slicing_range *last = *n ? &ranges[*n - 1] : NULL;

	if (range.size == 0)
		return;
	if (last && last->first + last->size == range.first)
		last->size += range.size;
	else
		ranges[(*n)++] = range;
}

/* The sum of the relative sizes of all parts. */
static int sum_weights(const struct slicing *s, const struct slicing_rule *rule, uint64_t n,
		       uint64_t *ret, char why[SLICING_WHY_SIZE])
{
	uint64_t sum = 0;

	for (const enum slicing_unit *part = rule->parts; *part; part++) {
		uint64_t weight = unit_weight(s, *part);

		if (weight == 0)
			return refuse(why, "the number of its %s is unknown", unit_name(*part));
		sum += weight;
	}
	assert(sum > 0);
	if (n % sum)
		return refuse(why, "%llu elements are not %llu parts of one size",
			      (unsigned long long)n, (unsigned long long)sum);
	*ret = sum;
	return 0;
}

int slicing_cut(const struct slicing *s, const struct slicing_rule *rule, uint64_t n, unsigned rank,
		unsigned world, struct slicing_range ret[SLICING_PARTS_MAX], unsigned *ret_n,
		char why[SLICING_WHY_SIZE])
{
	struct slicing_range range;
	uint64_t sum = 0, first = 0;
	int r = sum_weights(s, rule, n, &sum, why);

	*ret_n = 0;
	for (const enum slicing_unit *part = rule->parts; r == 0 && *part; part++) {
		uint64_t size = n / sum * unit_weight(s, *part);

		r = share_part(s, *part, size, rank, world, &range, why);
		if (r < 0)
			break;
		range.first += first;
		add_range(ret, ret_n, range);
		first += size;
	}
	return r;
}
