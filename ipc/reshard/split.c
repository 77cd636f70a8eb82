#include "ipc/reshard/split.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/pattern.h"

__attribute__((format(printf, 2, 3))) static int wrong(char why[SPLIT_WHY_SIZE], const char *fmt,
						       ...)
{
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(why, SPLIT_WHY_SIZE, fmt, args);
	va_end(args);
	return -EBADMSG;
}

/* --- Parsing ------------------------------------------------------------------------------------ */

static bool read_side(const json_t *value, int *ret)
{
	const char *word = json_string_value(value);
	json_int_t n = json_integer_value(value);

	if (word && !strcmp(word, "replicated")) {
		*ret = SPLIT_REPLICATED;
		return true;
	}
	if (!json_is_integer(value) || n < 0 || n > SPLIT_DIM_MAX)
		return false;
	*ret = (int)n;
	return true;
}

static bool read_sides(const json_t *o, struct split_rule *ret)
{
	const json_t *dim = json_object_get(o, "dim"),
		     *replicated = json_object_get(o, "replicated");

	if (json_object_size(o) == 3)
		return read_side(json_object_get(o, "from"), &ret->from) &&
		       read_side(json_object_get(o, "to"), &ret->to);
	if (json_object_size(o) != 2)
		return false;
	ret->from = ret->to = SPLIT_REPLICATED;
	if (replicated)
		return json_is_true(replicated);
	return json_is_integer(dim) && read_side(dim, &ret->from) && read_side(dim, &ret->to);
}

static int read_rule(const json_t *o, size_t i, struct split_rule *ret, char why[SPLIT_WHY_SIZE])
{
	const json_t *tensors = json_object_get(o, "tensors");
	const char *pattern = json_string_value(tensors);
	size_t size = json_string_length(tensors);

	if (!pattern || size == 0 || size > SPLIT_PATTERN_MAX || strlen(pattern) != size)
		return wrong(why,
			     "rule %zu of the split must have `tensors`, a pattern of 1 to %d "
			     "bytes such as \"*.weight\"",
			     i + 1, SPLIT_PATTERN_MAX);
	if (!read_sides(o, ret))
		return wrong(why,
			     "rule %zu of the split, of '%.100s', must have, besides `tensors`, "
			     "either `dim`, a number of 0 to %d, or `replicated`, which is true, "
			     "or `from` and `to`, each such a number or \"replicated\"",
			     i + 1, pattern, SPLIT_DIM_MAX);
	ret->tensors = strdup(pattern);
	return ret->tensors ? 0 : -ENOMEM;
}

static int read_rules(const json_t *rules, struct split *s, char why[SPLIT_WHY_SIZE])
{
	size_t n = json_array_size(rules);

	if (n == 0 || n > SPLIT_RULES_MAX)
		return wrong(why,
			     "a split must be {\"split\": [RULE, ...]} with 1 to %d rules, and "
			     "nothing else",
			     SPLIT_RULES_MAX);
	s->rules = calloc(n, sizeof(*s->rules));
	if (!s->rules)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		int r = read_rule(json_array_get(rules, i), i, &s->rules[i], why);

		if (r < 0)
			return r;
		s->n_rules++;
	}
	return 0;
}

int split_read(const char *text, size_t size, struct split *ret, char why[SPLIT_WHY_SIZE])
{
	struct split s = {0};
	json_error_t error;
	json_t *o;
	int r;

	(void)snprintf(why, SPLIT_WHY_SIZE, "no memory");
	if (size > SPLIT_SIZE_MAX)
		return wrong(why, "the split has more than 1 MiB");
	o = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
	if (!o)
		return wrong(why, "the split is not JSON: line %d: %s", error.line, error.text);
	r = read_rules(json_object_size(o) == 1 ? json_object_get(o, "split") : NULL, &s, why);
	json_decref(o);
	if (r < 0)
		split_deinit(&s);
	else
		*ret = s;
	return r;
}

void split_deinit(struct split *s)
{
	for (size_t i = 0; i < s->n_rules; i++)
		free(s->rules[i].tensors);
	free(s->rules);
	*s = (struct split){0};
}

/* --- Matching ----------------------------------------------------------------------------------- */

const struct split_rule *split_find(const struct split *s, const char *name)
{
	for (size_t i = 0; i < s->n_rules; i++)
		if (pattern_matches(s->rules[i].tensors, name))
			return &s->rules[i];
	return NULL;
}

void split_shard(uint64_t n, unsigned n_ranks, unsigned rank, uint64_t *ret_first,
		 uint64_t *ret_size)
{
	uint64_t step = n / n_ranks + (n % n_ranks != 0), first = step * rank;

	*ret_first = first < n ? first : n;
	*ret_size = n - *ret_first < step ? n - *ret_first : step;
}
