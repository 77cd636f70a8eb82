#include "libclient/image/plain.h"

#include <string.h>

#include "ipc/base/num.h"
#include "ipc/dtype.h"
#include "libclient/image/eight.h"

#define DIGITS_MAX 18 /* of a number that is below 2^63, whatever they are */

struct cursor {
	const char *p, *end;
};

/* True for an ASCII character that stands for itself in a string. */
static bool is_plain(char c)
{
	return (unsigned char)c >= ' ' && (unsigned char)c < 0x80 && c != '"' && c != '\\';
}

static void skip_space(struct cursor *c)
{
	while (c->p < c->end && (*c->p == ' ' || *c->p == '\n' || *c->p == '\r' || *c->p == '\t'))
		c->p++;
}

/* Steps over white space and one character. */
static bool take(struct cursor *c, char wanted)
{
	if (c->p < c->end && *c->p != wanted)
		skip_space(c);
	if (c->p == c->end || *c->p != wanted)
		return false;
	c->p++;
	return true;
}

static bool take_string(struct cursor *c, struct span *ret)
{
	const char *start;

	if (!take(c, '"'))
		return false;
	start = c->p;
	while (c->end - c->p >= 8 && eight_are_plain(c->p))
		c->p += 8;
	while (c->p < c->end && is_plain(*c->p))
		c->p++;
	if (c->p == c->end || *c->p != '"')
		return false;
	*ret = (struct span){start, (uint64_t)(c->p++ - start)};
	return true;
}

/* Digits alone: in front of anything else that JSON has in a number, the list neither ends nor goes on. */
static bool take_number(struct cursor *c, uint64_t *ret)
{
	const char *start;
	uint64_t n = 0;

	skip_space(c);
	start = c->p;
	while (c->p < c->end && *c->p >= '0' && *c->p <= '9' && c->p - start < DIGITS_MAX)
		n = 10 * n + (uint64_t)(*c->p++ - '0');
	if (c->p == start || (*start == '0' && c->p - start > 1))
		return false;
	*ret = n;
	return true;
}

/* A list of `max` numbers at most. */
static bool take_numbers(struct cursor *c, uint64_t *numbers, uint32_t max, uint32_t *ret_n)
{
	uint32_t n = 0;

	if (!take(c, '['))
		return false;
	if (!take(c, ']')) {
		do
			if (n == max || !take_number(c, &numbers[n++]))
				return false;
		while (take(c, ','));
		if (!take(c, ']'))
			return false;
	}
	*ret_n = n;
	return true;
}

/* --- The fields of an entry --------------------------------------------------------------------- */

static bool take_dtype(struct cursor *c, struct plain_entry *e)
{
	char name[16];
	struct span text;
	int dtype;

	if (!take_string(c, &text) || text.n >= sizeof(name))
		return false;
	memcpy(name, text.p, text.n);
	name[text.n] = '\0';
	dtype = dtype_parse(name);
	e->dtype = (enum weightd_dtype)dtype;
	return dtype >= 0 && !dtype_is_block((unsigned)dtype);
}

static bool take_shape(struct cursor *c, struct plain_entry *e)
{
	return take_numbers(c, e->shape, WEIGHTD_DIMS_MAX, &e->n_dims);
}

static bool take_offsets(struct cursor *c, struct plain_entry *e)
{
	uint64_t offsets[2];
	uint32_t n;

	if (!take_numbers(c, offsets, 2, &n) || n != 2)
		return false;
	e->begin = offsets[0];
	e->end = offsets[1];
	return true;
}

static const struct field {
	struct span key;
	bool (*take)(struct cursor *c, struct plain_entry *e);
} fields[] = {
	{{"\"dtype\"", 7}, take_dtype},
	{{"\"shape\"", 7}, take_shape},
	{{"\"data_offsets\"", 14}, take_offsets},
};

/* A field that `taken` has no bit of. */
static bool take_field(struct cursor *c, struct plain_entry *e, unsigned *taken)
{
	skip_space(c);
	for (unsigned i = 0; i < ARRAY_LEN(fields); i++) {
		const struct span *key = &fields[i].key;

		if ((uint64_t)(c->end - c->p) < key->n || memcmp(c->p, key->p, key->n) != 0)
			continue;
		if (*taken & 1u << i)
			return false;
		*taken |= 1u << i;
		c->p += key->n;
		return take(c, ':') && fields[i].take(c, e);
	}
	return false;
}

/* --- Values of a walk --------------------------------------------------------------------------- */

bool plain_string(struct span text, struct span *ret)
{
	struct cursor c = {text.p, text.p + text.n};

	return text.n > 0 && *text.p == '"' && take_string(&c, ret) && c.p == c.end;
}

bool plain_entry(struct members *m, struct plain_entry *ret)
{
	struct cursor c = {m->text + m->at, m->text + m->size};
	unsigned taken = 0;

	if (!take(&c, '{'))
		return false;
	for (unsigned i = 0; i < ARRAY_LEN(fields); i++)
		if ((i > 0 && !take(&c, ',')) || !take_field(&c, ret, &taken))
			return false;
	if (!take(&c, '}'))
		return false;
	m->at = (uint64_t)(c.p - m->text);
	return true;
}
