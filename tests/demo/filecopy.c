/*
 * A private copy of a safetensors file
 *
 * u64 size of the header, the header (JSON: name -> dtype, shape, data_offsets), the bytes.
 */
#include "tests/demo/filecopy.h"

#include <endian.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* --- JSON, as much as a header needs -------------------------------------------------------------- */

/* The reader's place in the NUL-terminated header, and whether all was valid so far. */
struct cursor {
	char *at;
	bool ok;
};

static bool next_is(struct cursor *c, char wanted)
{
	c->at += strspn(c->at, " \t\r\n");
	if (*c->at != wanted)
		return false;
	c->at++;
	return true;
}

static void expect(struct cursor *c, char wanted)
{
	c->ok = c->ok && next_is(c, wanted);
}

/* A string without escapes, NUL-terminated in place; "" on failure. */
static const char *take_string(struct cursor *c)
{
	char *start, *end;

	expect(c, '"');
	start = c->at;
	end = start + strcspn(start, "\"\\");
	c->ok = c->ok && *end == '"';
	if (!c->ok)
		return "";
	*end = '\0';
	c->at = end + 1;
	return start;
}

static uint64_t take_number(struct cursor *c)
{
	char *end;
	uint64_t v;

	c->at += strspn(c->at, " \t\r\n");
	errno = 0;
	v = strtoull(c->at, &end, 10);
	c->ok = c->ok && end > c->at && *c->at != '-' && !errno;
	c->at = end;
	return v;
}

static uint32_t take_numbers(struct cursor *c, uint64_t *ret, uint32_t max)
{
	uint32_t n = 0;

	expect(c, '[');
	if (c->ok && next_is(c, ']'))
		return 0;
	do {
		c->ok = c->ok && n < max;
		if (c->ok)
			ret[n++] = take_number(c);
	} while (c->ok && next_is(c, ','));
	expect(c, ']');
	return n;
}

/* The strings of __metadata__; here escapes are fine. */
static void skip_metadata(struct cursor *c)
{
	expect(c, '{');
	while (c->ok && *c->at != '}') {
		if (*c->at == '"')
			for (c->at++; *c->at && *c->at != '"'; c->at++)
				c->at += *c->at == '\\' && c->at[1];
		c->ok = *c->at != '\0';
		c->at += c->ok;
	}
	expect(c, '}');
}

static void take_tensor(struct cursor *c, const struct filecopy *f, struct weightd_tensor *ret)
{
	uint64_t *shape = f->shapes[f->n_tensors], range[2] = {0, 0};
	int dtype = -EINVAL;

	expect(c, '{');
	do {
		const char *key = take_string(c);

		expect(c, ':');
		if (!strcmp(key, "dtype"))
			dtype = weightd_dtype_parse(take_string(c));
		else if (!strcmp(key, "shape"))
			ret->n_dims = take_numbers(c, shape, WEIGHTD_DIMS_MAX);
		else if (!strcmp(key, "data_offsets"))
			c->ok = c->ok && take_numbers(c, range, 2) == 2;
		else
			c->ok = false;
	} while (c->ok && next_is(c, ','));
	expect(c, '}');
	c->ok = c->ok && dtype > 0 && range[0] <= range[1] && range[1] <= f->n_bytes;
	if (!c->ok)
		return;
	ret->size = sizeof(*ret);
	ret->shape = shape;
	ret->dtype = (enum weightd_dtype)dtype;
	ret->data = f->data + range[0];
	ret->n_bytes = range[1] - range[0];
}

static int parse_header(struct filecopy *f)
{
	struct cursor c = {f->header, true};

	expect(&c, '{');
	do {
		struct weightd_tensor *t = &f->tensors[f->n_tensors];
		const char *name = take_string(&c);

		expect(&c, ':');
		if (!strcmp(name, "__metadata__")) {
			skip_metadata(&c);
			continue;
		}
		take_tensor(&c, f, t);
		t->name = name;
		t->index = (uint32_t)f->n_tensors++;
	} while (c.ok && next_is(&c, ','));
	expect(&c, '}');
	return c.ok ? 0 : -EBADMSG;
}

/* --- The file ---------------------------------------------------------------------------------- */

static int take(FILE *file, void *ret, size_t size)
{
	return fread(ret, 1, size, file) == size ? 0 : -EBADMSG;
}

static size_t count(const char *text, char wanted)
{
	size_t n = 0;

	for (; *text; text++)
		n += *text == wanted;
	return n;
}

static int read_file(struct filecopy *f, FILE *file)
{
	uint64_t size;
	struct stat st;
	size_t n_max;
	int r;

	if (fstat(fileno(file), &st) < 0)
		return -errno;
	r = take(file, &size, sizeof(size));
	if (r < 0)
		return r;
	size = le64toh(size);
	if (size > (uint64_t)st.st_size - sizeof(size))
		return -EBADMSG;
	f->header = calloc(1, size + 1);
	if (!f->header)
		return -ENOMEM;
	r = take(file, f->header, size);
	if (r < 0)
		return r;

	n_max = count(f->header, '{') + 1; /* each tensor has one */
	f->n_bytes = (uint64_t)st.st_size - sizeof(size) - size;
	f->data = malloc(f->n_bytes + 1);
	f->tensors = calloc(n_max, sizeof(*f->tensors));
	f->shapes = calloc(n_max, sizeof(*f->shapes));
	if (!f->data || !f->tensors || !f->shapes)
		return -ENOMEM;
	r = parse_header(f);
	return r < 0 ? r : take(file, f->data, f->n_bytes);
}

int filecopy_new(const char *path, struct filecopy **ret)
{
	FILE *file = fopen(path, "re");
	struct filecopy *f;
	int r;

	if (!file)
		return -errno;
	f = calloc(1, sizeof(*f));
	r = f ? read_file(f, file) : -ENOMEM;
	(void)fclose(file); /* nothing was written */
	if (r < 0) {
		filecopy_free(f);
		return r;
	}
	*ret = f;
	return 0;
}

void filecopy_free(struct filecopy *f)
{
	if (!f)
		return;
	free(f->tensors);
	free(f->shapes);
	free(f->header);
	free(f->data);
	free(f);
}

const struct weightd_tensor *filecopy_find(const struct filecopy *f, const char *name)
{
	for (size_t i = 0; i < f->n_tensors; i++)
		if (!strcmp(f->tensors[i].name, name))
			return &f->tensors[i];
	return NULL;
}
