/*
 * Every operation makes a new array from front to back. ranges_append() keeps the invariants of a
 * set. The old array is freed when nothing can fail any more.
 */
#include "server/sync/base/ranges.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint64_t end_of(const struct range *r)
{
	return r->offset + r->size;
}

static int ranges_allocate(size_t n_max, struct ranges *ret)
{
	*ret = (struct ranges){.at = calloc(n_max ? n_max : 1, sizeof(*ret->at))};
	return ret->at ? 0 : -ENOMEM;
}

static void ranges_replace(struct ranges *r, struct ranges by)
{
	free(r->at);
	*r = by;
}

/* Begins after all that is in `r`, or touches or overlaps the last range. */
static void ranges_append(struct ranges *r, uint64_t offset, uint64_t end)
{
	struct range *last = r->n ? &r->at[r->n - 1] : NULL;

	if (offset >= end)
		return;
	if (!last || offset > end_of(last))
		r->at[r->n++] = (struct range){.offset = offset, .size = end - offset};
	else if (end > end_of(last))
		last->size = end - last->offset;
}

static int compare_numbers(const void *x, const void *y)
{
	const uint64_t *a = x, *b = y;

	return *a < *b ? -1 : *a > *b;
}

/* The `n` smallest gaps are those below `*ret_limit`, and `*ret_n_equal` of those equal to it. */
static int find_gaps(const struct ranges *r, size_t n, uint64_t *ret_limit, size_t *ret_n_equal)
{
	uint64_t *gaps = reallocarray(NULL, r->n - 1, sizeof(*gaps));

	if (!gaps)
		return -ENOMEM;
	for (size_t i = 0; i + 1 < r->n; i++)
		gaps[i] = r->at[i + 1].offset - end_of(&r->at[i]);
	qsort(gaps, r->n - 1, sizeof(*gaps), compare_numbers);
	*ret_limit = gaps[n - 1];
	for (*ret_n_equal = 0; *ret_n_equal < n && gaps[n - 1 - *ret_n_equal] == *ret_limit;)
		++*ret_n_equal;
	free(gaps);
	return 0;
}

/* Closes the smallest gaps: so the fewest bytes are added that were not requested. */
static int ranges_widen(struct ranges *r)
{
	size_t last = 0, n_equal;
	uint64_t limit;

	if (r->n <= RANGES_MAX)
		return 0;
	if (find_gaps(r, r->n - RANGES_MAX, &limit, &n_equal) < 0)
		return -ENOMEM;
	for (size_t i = 1; i < r->n; i++) {
		uint64_t gap = r->at[i].offset - end_of(&r->at[last]);

		if (gap < limit || (gap == limit && n_equal && n_equal--))
			r->at[last].size = end_of(&r->at[i]) - r->at[last].offset;
		else
			r->at[++last] = r->at[i];
	}
	r->n = last + 1;
	return 0;
}

void ranges_init(struct ranges *r)
{
	*r = (struct ranges){0};
}

void ranges_deinit(struct ranges *r)
{
	free(r->at);
	ranges_init(r);
}

int ranges_add_all(struct ranges *r, const struct ranges *others)
{
	struct ranges sum;
	size_t i = 0, j = 0;
	int error = ranges_allocate(r->n + others->n, &sum);

	if (error < 0)
		return error;
	while (i < r->n || j < others->n) {
		bool ours = j == others->n || (i < r->n && r->at[i].offset <= others->at[j].offset);
		const struct range *next = ours ? &r->at[i++] : &others->at[j++];

		ranges_append(&sum, next->offset, end_of(next));
	}
	error = ranges_widen(&sum);
	if (error < 0)
		ranges_deinit(&sum);
	else
		ranges_replace(r, sum);
	return error;
}

int ranges_add(struct ranges *r, uint64_t offset, uint64_t size)
{
	struct range one = {.offset = offset, .size = size};
	uint64_t end;

	if (__builtin_add_overflow(offset, size, &end))
		return -EOVERFLOW;
	return size ? ranges_add_all(r, &(struct ranges){.at = &one, .n = 1}) : 0;
}

int ranges_remove_all(struct ranges *r, const struct ranges *others)
{
	struct ranges rest;
	size_t j = 0;
	int error = ranges_allocate(r->n + others->n, &rest);

	if (error < 0)
		return error;
	for (size_t i = 0; i < r->n; i++) {
		uint64_t from = r->at[i].offset, end = end_of(&r->at[i]);

		while (j < others->n && end_of(&others->at[j]) <= from)
			j++;
		/*
		 * The last range compared here may reach into the next one: it is compared again.
		 */
		for (size_t k = j; k < others->n && others->at[k].offset < end; k++) {
			ranges_append(&rest, from, others->at[k].offset);
			from = end_of(&others->at[k]);
		}
		ranges_append(&rest, from, end);
	}
	if (rest.n > RANGES_MAX) {
		ranges_deinit(&rest);
		return -E2BIG;
	}
	ranges_replace(r, rest);
	return 0;
}

uint64_t ranges_total(const struct ranges *r)
{
	uint64_t total = 0;

	for (size_t i = 0; i < r->n; i++)
		total += r->at[i].size;
	return total;
}

int ranges_prefix(const struct ranges *r, uint64_t n_bytes, struct ranges *ret)
{
	struct ranges prefix;
	int error = ranges_allocate(r->n, &prefix);

	if (error < 0)
		return error;
	for (size_t i = 0; i < r->n && n_bytes > 0; i++) {
		uint64_t size = r->at[i].size < n_bytes ? r->at[i].size : n_bytes;

		ranges_append(&prefix, r->at[i].offset, r->at[i].offset + size);
		n_bytes -= size;
	}
	ranges_replace(ret, prefix);
	return 0;
}

json_t *ranges_to_json(const struct ranges *r)
{
	json_t *all = json_array();

	for (size_t i = 0; all && i < r->n; i++) {
		json_t *one = json_pack("[II]", (json_int_t)r->at[i].offset,
					(json_int_t)r->at[i].size);

		if (json_array_append_new(all, one) < 0) { /* also if `one` is NULL */
			json_decref(all);
			return NULL;
		}
	}
	return all;
}

static int read_number(const json_t *value, uint64_t max, uint64_t *ret)
{
	json_int_t n = json_integer_value(value);

	if (!json_is_integer(value) || n < 0 || (uint64_t)n > max)
		return -EBADMSG;
	*ret = (uint64_t)n;
	return 0;
}

static int read_range(const json_t *from, uint64_t n_bytes, struct range *ret)
{
	if (!json_is_array(from) || json_array_size(from) != 2)
		return -EBADMSG;
	if (read_number(json_array_get(from, 0), n_bytes, &ret->offset) < 0 ||
	    read_number(json_array_get(from, 1), n_bytes - ret->offset, &ret->size) < 0)
		return -EBADMSG;
	return ret->size ? 0 : -EBADMSG;
}

int ranges_from_json(const json_t *from, uint64_t n_bytes, struct ranges *ret)
{
	size_t n = json_array_size(from);
	struct ranges read;
	uint64_t end = 0;
	int r;

	if (!json_is_array(from) || n > RANGES_MAX)
		return -EBADMSG;
	r = ranges_allocate(n, &read);
	for (size_t i = 0; r == 0 && i < n; i++) {
		struct range one;

		r = read_range(json_array_get(from, i), n_bytes, &one);
		if (r == 0 && one.offset < end)
			r = -EBADMSG;
		if (r == 0) {
			end = end_of(&one);
			ranges_append(&read, one.offset, end);
		}
	}
	if (r < 0) {
		ranges_deinit(&read);
		return r;
	}
	ranges_replace(ret, read);
	return 0;
}
