/* A line is a comment, a setting or a rule: words, the second of which tells a setting by its "=". */
#include "ipc/reshard/slicing_read.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "ipc/base/quote.h"

#define WORDS_MAX (2 + SLICING_PARTS_MAX)
#define SPACES " \t\r"
#define QUOTE(text) quote_name(&(struct quote){0}, text)

struct parser {
	struct slicing *slicing;
	size_t rules_max;
	char *why;
};

static const struct {
	const char *name;
	enum slicing_unit unit;
} units[] = {
	{"even", SLICING_EVEN},
	{"ragged", SLICING_RAGGED},
	{"heads", SLICING_HEADS},
	{"kv_heads", SLICING_KV_HEADS},
};

__attribute__((format(printf, 2, 3))) static int wrong(struct parser *p, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(p->why, SLICING_WHY_SIZE, fmt, args);
	va_end(args);
	return -EBADMSG;
}

/* --- Settings ----------------------------------------------------------------------------------- */

static int read_heads(struct parser *p, const char *key, const char *value, uint32_t *ret)
{
	uint64_t n;

	if (*ret)
		return wrong(p, "'%s' is set twice", key);
	if (num_parse(value, 10, &n) < 0 || n == 0 || n > SLICING_HEADS_MAX)
		return wrong(p, "'%s' must be a number of heads, not %s", key, QUOTE(value));
	*ret = (uint32_t)n;
	return 0;
}

static int read_setting(struct parser *p, const char *key, const char *value)
{
	struct slicing *s = p->slicing;

	if (!strcmp(key, "heads"))
		return read_heads(p, key, value, &s->heads);
	if (!strcmp(key, "kv_heads"))
		return read_heads(p, key, value, &s->kv_heads);
	if (strcmp(key, "use") != 0)
		return wrong(p, "no setting %s: heads, kv_heads and use are those", QUOTE(key));
	if (s->ready)
		return wrong(p, "'use' is set twice");
	s->ready = slicing_ready_find(value);
	return s->ready ? 0 : wrong(p, "no rules are ready for %s", QUOTE(value));
}

/* --- Rules -------------------------------------------------------------------------------------- */

static int read_part(struct parser *p, const char *word, enum slicing_unit *ret)
{
	for (size_t i = 0; i < ARRAY_LEN(units); i++)
		if (!strcmp(word, units[i].name)) {
			*ret = units[i].unit;
			return 0;
		}
	return wrong(p, "%s is none of even, ragged, heads and kv_heads", QUOTE(word));
}

/* The size of a part of elements is not known beside one of heads; ragged ones would not be torch.chunk()'s. */
static int check_parts(struct parser *p, const enum slicing_unit *parts, unsigned n)
{
	unsigned n_even = 0;

	for (unsigned i = 0; i < n; i++) {
		if (parts[i] == SLICING_RAGGED && n > 1)
			return wrong(p, "'ragged' must be the only part");
		n_even += parts[i] == SLICING_EVEN;
	}
	return n_even == 0 || n_even == n
		       ? 0
		       : wrong(p, "'even' stands beside heads, so that its size is unknown");
}

static int read_rule(struct parser *p, char *const *words, unsigned n, struct slicing_rule *ret)
{
	struct slicing_rule rule = {.tensors = words[0], .dim = SLICING_WHOLE};
	uint64_t dim;
	int r = 0;

	*ret = rule;
	if (n == 2 && !strcmp(words[1], "whole"))
		return 0;
	if (n < 2 || num_parse(words[1], 10, &dim) < 0 || dim > SLICING_DIM_MAX)
		return wrong(p,
			     "behind the pattern %s must be 'whole', or a dimension of 0 to %d and "
			     "its parts",
			     QUOTE(words[0]), SLICING_DIM_MAX);
	rule.dim = (int)dim;
	for (unsigned i = 2; r == 0 && i < n; i++)
		r = read_part(p, words[i], &rule.parts[i - 2]);
	if (n == 2)
		rule.parts[0] = SLICING_EVEN;
	if (r == 0)
		r = check_parts(p, rule.parts, n - 2);
	if (r == 0)
		*ret = rule;
	return r;
}

static int add_rule(struct parser *p, char *const *words, unsigned n)
{
	struct slicing *s = p->slicing;
	int r;

	if (s->n_rules == SLICING_RULES_MAX)
		return wrong(p, "there are more than %d rules", SLICING_RULES_MAX);
	if (s->n_rules == p->rules_max) {
		size_t more = p->rules_max ? 2 * p->rules_max : 16;
		void *rules = reallocarray(s->rules, more, sizeof(*s->rules));

		if (!rules)
			return -ENOMEM;
		s->rules = rules;
		p->rules_max = more;
	}
	r = read_rule(p, words, n, &s->rules[s->n_rules]);
	if (r == 0)
		s->n_rules++;
	return r;
}

/* --- Texts -------------------------------------------------------------------------------------- */

static int read_line(struct parser *p, char *line)
{
	char *words[WORDS_MAX], *rest;
	unsigned n = 0;

	line += strspn(line, SPACES);
	if (*line == '#')
		return 0;
	for (char *word = strtok_r(line, SPACES, &rest); word; word = strtok_r(NULL, SPACES, &rest)) {
		if (n == WORDS_MAX)
			return wrong(p, "a dimension has %d parts at most", SLICING_PARTS_MAX);
		words[n++] = word;
	}
	if (n == 3 && !strcmp(words[1], "="))
		return read_setting(p, words[0], words[2]);
	return n == 0 ? 0 : add_rule(p, words, n);
}

static int read_lines(struct parser *p, char *text, unsigned *ret_line)
{
	int r = 0;

	for (char *next = text, *line; r == 0 && (line = strsep(&next, "\n"));) {
		++*ret_line;
		r = read_line(p, line);
	}
	return r;
}

int slicing_read(const char *text, size_t size, struct slicing *ret, unsigned *ret_line,
		 char why[SLICING_WHY_SIZE])
{
	cleanup(slicing_deinit) struct slicing s = {0};
	struct parser p = {.slicing = &s, .why = why};
	int r;

	*ret_line = 0;
	(void)snprintf(why, SLICING_WHY_SIZE, "no memory");
	if (size > SLICING_TEXT_MAX)
		return wrong(&p, "the text has more than 1 MiB");
	if (memchr(text, '\0', size))
		return wrong(&p, "the text has a byte 0");
	s.text = strndup(text, size);
	if (!s.text)
		return -ENOMEM;
	r = read_lines(&p, s.text, ret_line);
	if (r < 0)
		return r;
	*ret_line = 0;
	if (s.n_rules == 0 && !s.ready)
		return wrong(&p, "the text has no rule");
	*ret = s;
	s = (struct slicing){0};
	return 0;
}
