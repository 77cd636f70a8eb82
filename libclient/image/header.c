/*
 * The text grows in one buffer, behind room for the prefix. Texts in __metadata__ that are JSON themselves are escaped
 * twice as they are written, which needs no second buffer.
 */
#include "libclient/image/header.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "ipc/dtype.h"
#include "libclient/image/unit.h"

#define ROOM_MIN 4096

enum stage {
	STAGE_METADATA, /* attributes */
	STAGE_TIED,
	STAGE_BUFFERS,
	STAGE_UNITS,
	STAGE_TENSORS,
};

/* --- Text ------------------------------------------------------------------------------------- */

static bool header_reserve(struct image_header *h, uint64_t n)
{
	uint64_t room = h->room ? h->room : ROOM_MIN;
	char *grown;

	if (h->r < 0)
		return false;
	if (h->size + n > IMAGE_HEADER_PREFIX_SIZE + (uint64_t)IMAGE_HEADER_TEXT_MAX) {
		h->r = -E2BIG;
		return false;
	}
	while (room < h->size + n)
		room *= 2;
	if (room == h->room)
		return true;
	grown = realloc(h->text, room);
	if (!grown) {
		h->r = -ENOMEM;
		return false;
	}
	h->text = grown;
	h->room = room;
	return true;
}

static void put(struct image_header *h, const char *text, size_t n)
{
	if (!header_reserve(h, n))
		return;
	memcpy(h->text + h->size, text, n);
	h->size += n;
}

static void put_text(struct image_header *h, const char *text)
{
	put(h, text, strlen(text));
}

static void put_u64(struct image_header *h, uint64_t n)
{
	char text[24];

	put(h, text, (size_t)snprintf(text, sizeof(text), "%" PRIu64, n));
}

/* A backslash or a quote inside a string that lies inside `depth` - 1 strings. */
static void put_escaped(struct image_header *h, char c, unsigned depth)
{
	if (depth > 0) {
		put_escaped(h, '\\', depth - 1);
		put_escaped(h, c, depth - 1);
	} else {
		put(h, &c, 1);
	}
}

static bool is_plain(char c)
{
	return (unsigned char)c >= 0x20 && c != '"' && c != '\\';
}

/* A string of JSON, itself inside `depth` strings. */
static void put_string(struct image_header *h, const char *s, size_t n, unsigned depth)
{
	put_escaped(h, '"', depth);
	for (size_t i = 0; i < n;) {
		size_t start = i;
		char code[8];

		while (i < n && is_plain(s[i]))
			i++;
		put(h, s + start, i - start);
		if (i == n)
			break;
		if (s[i] == '"' || s[i] == '\\') {
			put_escaped(h, s[i], depth + 1);
		} else {
			put_escaped(h, '\\', depth);
			(void)snprintf(code, sizeof(code), "u%04x", (unsigned char)s[i]);
			put_text(h, code);
		}
		i++;
	}
	put_escaped(h, '"', depth);
}

/* --- Pieces ----------------------------------------------------------------------------------- */

/* Ends the texts of ties or buffers, if one of them was begun. */
static void header_close(struct image_header *h)
{
	put_text(h, h->closing);
	h->closing = "";
}

/* Begins a text of __metadata__, or continues it. */
static void header_enter(struct image_header *h, enum stage stage, const char *opening,
			 const char *closing)
{
	assert(h->stage <= (int)stage);
	if (h->stage == (int)stage) {
		put_text(h, ",");
		return;
	}
	header_close(h);
	put_text(h, h->has_metadata ? "," : "");
	put_text(h, opening);
	h->has_metadata = true;
	h->closing = closing;
	h->stage = (int)stage;
}

static bool is_reserved(const char *key)
{
	return !strcmp(key, IMAGE_METADATA_TIED) || !strcmp(key, IMAGE_METADATA_BUFFERS) ||
	       !strcmp(key, IMAGE_METADATA_UNITS);
}

void image_header_begin(struct image_header *h, const struct image_metadata *m)
{
	static const struct image_attribute format[] = {{"format", "pt"}};
	static const struct image_metadata only_format = {format, ARRAY_LEN(format)};

	*h = (struct image_header){.closing = "", .stage = STAGE_METADATA};
	put(h, (const char[IMAGE_HEADER_PREFIX_SIZE]){0}, IMAGE_HEADER_PREFIX_SIZE);
	put_text(h, "{\"" IMAGE_METADATA_NAME "\":{");
	if (!m)
		m = &only_format;
	for (size_t i = 0; i < m->n; i++) {
		if (is_reserved(m->list[i].key))
			continue;
		put_text(h, h->has_metadata ? "," : "");
		put_string(h, m->list[i].key, strlen(m->list[i].key), 0);
		put_text(h, ":");
		put_string(h, m->list[i].value, strlen(m->list[i].value), 0);
		h->has_metadata = true;
	}
}

void image_header_tie(struct image_header *h, const char *alias, size_t alias_size,
		      const char *name, size_t name_size)
{
	header_enter(h, STAGE_TIED, "\"" IMAGE_METADATA_TIED "\":\"{", "}\"");
	put_string(h, alias, alias_size, 1);
	put_text(h, ":");
	put_string(h, name, name_size, 1);
}

void image_header_buffer(struct image_header *h, const char *name, size_t name_size)
{
	header_enter(h, STAGE_BUFFERS, "\"" IMAGE_METADATA_BUFFERS "\":\"[", "]\"");
	put_string(h, name, name_size, 1);
}

void image_header_units(struct image_header *h, const char *unit, uint32_t n)
{
	header_enter(h, STAGE_UNITS, "\"" IMAGE_METADATA_UNITS "\":\"[", "]\"");
	put_text(h, "[");
	put_string(h, unit, strlen(unit), 1);
	put_text(h, ",");
	put_u64(h, n);
	put_text(h, "]");
}

static void header_refuse(struct image_header *h, int r)
{
	if (h->r == 0)
		h->r = r;
}

static bool is_metadata_name(const char *name, size_t size)
{
	return size == strlen(IMAGE_METADATA_NAME) && !memcmp(name, IMAGE_METADATA_NAME, size);
}

/* Readers of JSON disagree about integers past 2^63 - 1, and the loader refuses them. */
static void put_shape(struct image_header *h, uint32_t n_dims, const uint64_t *shape)
{
	for (uint32_t i = 0; i < n_dims; i++) {
		if (shape[i] > INT64_MAX)
			header_refuse(h, -EOPNOTSUPP);
		put_text(h, i ? "," : "");
		put_u64(h, shape[i]);
	}
}

void image_header_tensor(struct image_header *h, const char *name, size_t name_size, unsigned dtype,
			 uint32_t n_dims, const uint64_t *shape, uint64_t n_bytes)
{
	uint64_t begin = h->data_size;

	if (is_metadata_name(name, name_size) || dtype < DTYPE_BOOL || dtype > DTYPE_U64 ||
	    __builtin_add_overflow(begin, n_bytes, &h->data_size)) {
		header_refuse(h, -EOPNOTSUPP);
		return;
	}
	header_close(h);
	put_text(h, h->stage == STAGE_TENSORS ? "," : "},");
	h->stage = STAGE_TENSORS;
	put_string(h, name, name_size, 0);
	put_text(h, ":{\"dtype\":\"");
	put_text(h, dtype_name(dtype));
	put_text(h, "\",\"shape\":[");
	put_shape(h, n_dims, shape);
	put_text(h, "],\"data_offsets\":[");
	put_u64(h, begin);
	put_text(h, ",");
	put_u64(h, h->data_size);
	put_text(h, "]}");
}

/* The size of a header that has `used` bytes without the blanks at its end. */
static uint64_t padded_size(uint64_t used, uint64_t wanted)
{
	uint64_t rest = wanted % IMAGE_HEADER_ALIGNMENT, size = used + IMAGE_HEADER_ROOM;

	if (wanted >= used && wanted <= IMAGE_HEADER_PREFIX_SIZE + (uint64_t)IMAGE_HEADER_TEXT_MAX)
		return wanted;
	return size + (rest - size) % IMAGE_HEADER_ALIGNMENT;
}

static void header_pad(struct image_header *h, uint64_t wanted)
{
	uint64_t size = padded_size(h->size, wanted), n;

	if (!header_reserve(h, size - h->size))
		return;
	memset(h->text + h->size, ' ', size - h->size);
	h->size = size;
	n = size - IMAGE_HEADER_PREFIX_SIZE;
	for (unsigned i = 0; i < IMAGE_HEADER_PREFIX_SIZE; i++)
		h->text[i] = (char)(n >> (8 * i));
}

int image_header_end(struct image_header *h, uint64_t data_offset_wanted, void **ret,
		     uint64_t *ret_size)
{
	int r;

	header_close(h);
	put_text(h, h->stage == STAGE_TENSORS ? "}" : "}}");
	header_pad(h, data_offset_wanted);
	r = h->r;
	if (r == 0) {
		*ret_size = h->size;
		*ret = take_ptr(h->text);
	}
	free(h->text);
	*h = (struct image_header){.closing = ""};
	return r;
}

/* --- Layouts ---------------------------------------------------------------------------------- */

/* True if the tensors cover the data with nothing between them, in the order of the layout. */
static bool is_dense(const struct layout *l)
{
	uint64_t end = 0;

	for (uint32_t i = 0; i < l->header->n_tensors; i++) {
		const struct layout_tensor *t = &l->tensors[i];

		if (t->tied_to != LAYOUT_NONE)
			continue;
		if (t->offset != end)
			return false;
		end += t->n_bytes; /* the layout was checked: no sum overflows */
	}
	return l->header->alignment == 1 && l->header->data_size == end;
}

static void add_ties(struct image_header *h, const struct image_part *part)
{
	const struct layout *l = part->layout;

	for (uint32_t i = 0; part->has_ties && i < l->header->n_tensors; i++) {
		const struct layout_tensor *t = &l->tensors[i], *to;

		if (t->tied_to == LAYOUT_NONE)
			continue;
		to = &l->tensors[layout_untied(l, i)];
		image_header_tie(h, layout_tensor_name(l, t), t->name_size,
				 layout_tensor_name(l, to), to->name_size);
	}
}

/* A tied name has the role of the tensor with the bytes. */
static void add_buffers(struct image_header *h, const struct image_part *part)
{
	const struct layout *l = part->layout;

	for (uint32_t i = 0; i < part->n_tensors; i++) {
		const struct layout_tensor *t = &l->tensors[part->tensors[i]];

		if (t->role == LAYOUT_BUFFER)
			image_header_buffer(h, layout_tensor_name(l, t), t->name_size);
	}
}

struct run {
	const char *unit;
	uint32_t n;
};

static void run_extend(struct run *run, struct image_header *h, const char *unit)
{
	if (run->n > 0 && strcmp(run->unit, unit) != 0) {
		image_header_units(h, run->unit, run->n);
		run->n = 0;
	}
	run->unit = unit;
	run->n++;
}

static bool has_own_units(const struct layout *l)
{
	char unit[UNIT_MAX];

	for (uint32_t i = 0; i < l->header->n_tensors; i++) {
		const struct layout_tensor *t = &l->tensors[i];

		if (strcmp(layout_tensor_unit(l, t), unit_of(layout_tensor_name(l, t), unit)) != 0)
			return true;
	}
	return false;
}

static void add_units(struct image_header *h, const struct image_part *part)
{
	const struct layout *l = part->layout;
	struct run run = {0};

	if (!has_own_units(l))
		return;
	for (uint32_t i = 0; i < part->n_tensors; i++)
		run_extend(&run, h, layout_tensor_unit(l, &l->tensors[part->tensors[i]]));
	for (uint32_t i = 0; part->has_ties && i < l->header->n_tensors; i++)
		if (l->tensors[i].tied_to != LAYOUT_NONE)
			run_extend(&run, h, layout_tensor_unit(l, &l->tensors[i]));
	if (run.n > 0)
		image_header_units(h, run.unit, run.n);
}

static void add_tensors(struct image_header *h, const struct image_part *part)
{
	const struct layout *l = part->layout;

	for (uint32_t i = 0; i < part->n_tensors; i++) {
		const struct layout_tensor *t = &l->tensors[part->tensors[i]];

		image_header_tensor(h, layout_tensor_name(l, t), t->name_size, t->dtype, t->n_dims,
				    layout_tensor_shape(l, t), t->n_bytes);
	}
}

int image_header_build_part(const struct image_part *part, const struct image_metadata *m,
			    uint64_t data_offset_wanted, void **ret, uint64_t *ret_size)
{
	struct image_header h;

	image_header_begin(&h, m);
	add_ties(&h, part);
	add_buffers(&h, part);
	add_units(&h, part);
	add_tensors(&h, part);
	return image_header_end(&h, data_offset_wanted, ret, ret_size);
}

int image_header_build(const struct layout *l, const struct image_metadata *m,
		       uint64_t data_offset_wanted, void **ret, uint64_t *ret_size)
{
	cleanup(freep) uint32_t *tensors = NULL;
	struct image_part part = {.layout = l, .has_ties = true};

	if (!is_dense(l))
		return -EOPNOTSUPP;
	tensors = calloc(l->header->n_tensors, sizeof(*tensors));
	if (!tensors)
		return -ENOMEM;
	for (uint32_t i = 0; i < l->header->n_tensors; i++)
		if (l->tensors[i].tied_to == LAYOUT_NONE)
			tensors[part.n_tensors++] = i;
	part.tensors = tensors;
	return image_header_build_part(&part, m, data_offset_wanted, ret, ret_size);
}
