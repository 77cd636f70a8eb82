/*
 * Short parts that lie near each other in the file are read together with the bytes between them, long ones alone, and
 * straight into the buffer if nothing is cast.
 */
#include "libclient/select/cut.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/dtype.h"
#include "libclient/select/cast.h"

#define WINDOW_SIZE (64u << 10)
#define LONG_SIZE 4096 /* bytes from which a part is read alone */

/* Bytes of an element in the file and in the buffer; 1 where none is looked at. */
struct element {
	uint32_t from, to;
};

/* The window is the bytes of the file that were read last. */
struct cut_reader {
	const struct cut *cut;
	const struct file *file;
	uint64_t offset,
		end; /* in the file: of the tensor, and behind the last byte of this reader */
	struct element element;
	uint8_t *window;
	uint64_t window_offset, window_size, window_max;
	struct sentence *s;
};

struct cut cut_of_cast(unsigned from, unsigned to, uint64_t n_bytes)
{
	return (struct cut){
		.from = from,
		.to = to,
		.stride = n_bytes,
		.row = n_bytes,
		.n_parts = 1,
		.parts = {{0, n_bytes}},
	};
}

bool cut_is_range(const struct cut *c, uint64_t n_bytes)
{
	return c->from == c->to && c->stride == n_bytes && c->n_parts == 1;
}

bool cut_is_same(const struct cut *a, const struct cut *b)
{
	return a->from == b->from && a->to == b->to && a->stride == b->stride && a->row == b->row &&
	       a->n_parts == b->n_parts &&
	       !memcmp(a->parts, b->parts, a->n_parts * sizeof(*a->parts));
}

static struct element element_of(const struct cut *c)
{
	if (c->from == c->to)
		return (struct element){1, 1};
	return (struct element){dtype_bits(c->from) / 8, dtype_bits(c->to) / 8};
}

uint64_t cut_size(const struct cut *c, uint64_t n_bytes)
{
	const struct element e = element_of(c);

	return n_bytes / e.from * e.to;
}

uint64_t cut_source_size(const struct cut *c, uint64_t n_bytes)
{
	const struct element e = element_of(c);

	return n_bytes / e.to * e.from;
}

/* The offset in the file of byte `at` of all parts of all rows, and how many behind it are contiguous there. */
static uint64_t find_bytes(const struct cut_reader *r, uint64_t at, uint64_t *ret_n)
{
	const struct cut_part *part = r->cut->parts;
	const uint64_t row = at / r->cut->row;
	uint64_t within = at % r->cut->row;

	while (within >= part->size)
		within -= part++->size;
	*ret_n = part->size - within;
	return r->offset + row * r->cut->stride + part->offset + within;
}

/* `n` bytes at `offset`, at most WINDOW_SIZE. */
static int fetch(struct cut_reader *r, uint64_t offset, uint64_t n, const uint8_t **ret)
{
	uint64_t size = n;
	int e;

	if (offset < r->window_offset || offset + n > r->window_offset + r->window_size) {
		if (n < LONG_SIZE)
			size = r->end - offset < r->window_max ? r->end - offset : r->window_max;
		r->window_size = 0;
		e = file_read(r->file, r->window, size, offset, r->s);
		if (e < 0)
			return e;
		r->window_offset = offset;
		r->window_size = size;
	}
	*ret = r->window + (offset - r->window_offset);
	return 0;
}

/* Elements `first` to `first + n` of the result, without a copy between if they are bytes as they are, and long. */
static int read_elements(struct cut_reader *r, uint64_t first, uint64_t n, uint8_t *to)
{
	const struct element e = r->element;
	const uint8_t *from = NULL;
	int error = 0;

	for (uint64_t at = first * e.from, left = n * e.from, size; error == 0 && left > 0;
	     at += size, left -= size, to += size / e.from * e.to) {
		uint64_t offset = find_bytes(r, at, &size);

		if (size > left)
			size = left;
		if (r->cut->from == r->cut->to && size >= LONG_SIZE) {
			error = file_read(r->file, to, size, offset, r->s);
			continue;
		}
		if (size > WINDOW_SIZE)
			size = WINDOW_SIZE;
		error = fetch(r, offset, size, &from);
		if (error == 0 && r->cut->from == r->cut->to)
			memcpy(to, from, size);
		else if (error == 0)
			cast_elements(to, r->cut->to, from, r->cut->from, size / e.from);
	}
	return error;
}

/* A part of one element: bytes `skip` to `skip + n` of it. */
static int read_fraction(struct cut_reader *r, uint64_t index, uint64_t skip, uint64_t n,
			 uint8_t *to)
{
	uint8_t element[8];
	int e = read_elements(r, index, 1, element);

	if (e == 0)
		memcpy(to, element + skip, n);
	return e;
}

/* Leaves may begin and end within elements, where the tensors of a buffer are not aligned. */
static int read_bytes(struct cut_reader *r, uint64_t at, uint64_t n, uint8_t *to)
{
	const uint64_t size = r->element.to, skip = at % size;
	uint64_t head = skip ? size - skip : 0, whole;
	int e = 0;

	if (head > n)
		head = n;
	if (head > 0)
		e = read_fraction(r, at / size, skip, head, to);
	at += head;
	n -= head;
	whole = n / size * size;
	if (e == 0)
		e = read_elements(r, at / size, whole / size, to + head);
	if (e == 0 && n > whole)
		e = read_fraction(r, (at + whole) / size, 0, n - whole, to + head + whole);
	return e;
}

int cut_read(const struct cut *c, const struct file *f, uint64_t offset, uint64_t at, uint64_t n,
	     void *to, struct sentence *s)
{
	struct cut_reader r = {
		.cut = c, .file = f, .offset = offset, .element = element_of(c), .s = s};
	cleanup(freep) uint8_t *window = NULL;
	uint64_t last, begin, ignored;

	if (n == 0)
		return 0;
	last = ((at + n - 1) / r.element.to + 1) * r.element.from - 1;
	begin = find_bytes(&r, at / r.element.to * r.element.from, &ignored);
	r.end = find_bytes(&r, last, &ignored) + 1;
	r.window_max = r.end - begin < WINDOW_SIZE ? r.end - begin : WINDOW_SIZE;
	r.window = window = malloc(r.window_max);
	if (!window)
		return sentence_set(s, -ENOMEM, "there is not enough memory to read a tensor with");
	return read_bytes(&r, at, n, to);
}

/* --- Scattering --------------------------------------------------------------------------------- */

/* Writes bytes of a part, the first of which is byte `at` of all parts of all rows. */
static void scatter_bytes(const struct cut *c, const char *bytes, uint64_t at, uint64_t n, char *to)
{
	const struct element e = element_of(c);

	if (c->from == c->to)
		memcpy(to + at, bytes, n);
	else
		cast_elements(to + at / e.from * e.to, c->to, bytes, c->from, n / e.from);
}

void cut_scatter(const struct cut *c, const void *bytes, uint64_t at, uint64_t n, void *to)
{
	const uint64_t end = at + n;

	for (uint64_t row = at / c->stride; row * c->stride < end; row++) {
		uint64_t result = row * c->row;

		for (unsigned p = 0; p < c->n_parts; result += c->parts[p++].size) {
			const uint64_t begin = row * c->stride + c->parts[p].offset;
			const uint64_t first = begin > at ? begin : at;
			uint64_t last = begin + c->parts[p].size;

			if (last > end)
				last = end;
			if (first < last)
				scatter_bytes(c, (const char *)bytes + (first - at),
					      result + (first - begin), last - first, to);
		}
	}
}
