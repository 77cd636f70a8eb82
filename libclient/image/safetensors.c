/*
 * Offsets and shapes of an untrusted file are unsigned, added and multiplied with checks, and all of them are
 * validated before any is used.
 */
#include "libclient/image/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "ipc/dtype.h"
#include "libclient/image/array.h"
#include "libclient/image/magic.h"
#include "libclient/image/members.h"
#include "libclient/image/metadata.h"
#include "libclient/image/names.h"
#include "libclient/image/plain.h"

/* The value of a member. */
struct entry {
	bool is_plain;
	struct plain_entry plain;
	struct span value; /* if it is not */
};

struct parser {
	struct members members;
	struct safetensors st; /* the table so far */
	struct names names;
	size_t text_used;
	size_t tensors_max, dims_max; /* allocated */
	json_t *metadata; /* NULL: there is none */
	bool had_metadata;
	struct sentence *s;
};

static const char *tensor_quote(struct quote *q, const struct safetensors_tensor *t)
{
	return quote_bytes(q, t->name, t->name_size);
}

#define QUOTE(t) tensor_quote(&(struct quote){0}, t)

/* --- Text ------------------------------------------------------------------------------------- */

static int out_of_memory(struct sentence *s)
{
	return sentence_set(s, -ENOMEM, "there is not enough memory for the header");
}

static int refuse_json(struct parser *p, int r)
{
	int rule = r == -EILSEQ   ? SAFETENSORS_UTF8
		   : r == -EEXIST ? SAFETENSORS_DUPLICATE
		   : r == -ERANGE ? SAFETENSORS_OVERFLOW
				  : SAFETENSORS_JSON;

	if (r == -ENOMEM)
		return out_of_memory(p->s);
	return sentence_set(p->s, rule, "its header is broken at byte %" PRIu64 ": %s",
			    p->members.at, p->members.why);
}

/* --- One tensor ------------------------------------------------------------------------------- */

static bool get_u64(const json_t *value, uint64_t *ret)
{
	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return false;
	*ret = (uint64_t)json_integer_value(value);
	return true;
}

static int parse_dtype(struct parser *p, const json_t *value, struct safetensors_tensor *t)
{
	const char *name = json_string_value(value);
	size_t n = json_string_length(value);
	int dtype;

	if (!name)
		return sentence_set(p->s, SAFETENSORS_ENTRY, "tensor %s has no dtype", QUOTE(t));
	dtype = strlen(name) == n ? dtype_parse(name) : -EINVAL;
	if (dtype < 0 || dtype_is_block((unsigned)dtype))
		return sentence_set(p->s, SAFETENSORS_DTYPE,
				    "tensor %s has dtype %s, which this release does not support",
				    QUOTE(t), quote_bytes(&(struct quote){0}, name, n));
	t->dtype = (enum weightd_dtype)dtype;
	return 0;
}

static int parse_shape(struct parser *p, const json_t *value, struct safetensors_tensor *t)
{
	size_t n = json_array_size(value);

	if (!json_is_array(value))
		return sentence_set(p->s, SAFETENSORS_ENTRY, "tensor %s has no shape", QUOTE(t));
	if (n > WEIGHTD_DIMS_MAX)
		return sentence_set(p->s, SAFETENSORS_LIMIT,
				    "tensor %s has %zu dimensions, %d is the most", QUOTE(t), n,
				    WEIGHTD_DIMS_MAX);
	t->first_dim = p->st.n_dims;
	t->n_dims = (uint32_t)n;
	for (size_t i = 0; i < n; i++) {
		if (!array_reserve(p->st.dims, p->st.n_dims, p->dims_max))
			return out_of_memory(p->s);
		if (!get_u64(json_array_get(value, i), &p->st.dims[p->st.n_dims]))
			return sentence_set(p->s, SAFETENSORS_ENTRY,
					    "the shape of tensor %s is not made of unsigned integers",
					    QUOTE(t));
		p->st.n_dims++;
	}
	return 0;
}

static int parse_offsets(struct parser *p, const json_t *value, struct safetensors_tensor *t)
{
	if (!json_is_array(value) || json_array_size(value) != 2 ||
	    !get_u64(json_array_get(value, 0), &t->begin) ||
	    !get_u64(json_array_get(value, 1), &t->end))
		return sentence_set(p->s, SAFETENSORS_ENTRY,
				    "the data_offsets of tensor %s are not two unsigned integers",
				    QUOTE(t));
	return 0;
}

static int keep_entry(struct parser *p, const struct plain_entry *e, struct safetensors_tensor *t)
{
	t->dtype = e->dtype;
	t->begin = e->begin;
	t->end = e->end;
	t->first_dim = p->st.n_dims;
	t->n_dims = e->n_dims;
	for (uint32_t i = 0; i < e->n_dims; i++) {
		if (!array_reserve(p->st.dims, p->st.n_dims, p->dims_max))
			return out_of_memory(p->s);
		p->st.dims[p->st.n_dims++] = e->shape[i];
	}
	return 0;
}

/* Other fields of an entry are ignored, as the reference does. */
static int parse_tensor(struct parser *p, const struct entry *e, struct safetensors_tensor *t)
{
	cleanup(json_decrefp) json_t *entry = NULL;
	int r;

	if (e->is_plain)
		return keep_entry(p, &e->plain, t);
	r = members_parse(&p->members, e->value, &entry);
	if (r < 0)
		return refuse_json(p, r);
	if (!json_is_object(entry))
		return sentence_set(
			p->s, SAFETENSORS_ENTRY,
			"tensor %s is not described by an object of dtype, shape and data_offsets",
			QUOTE(t));
	r = parse_dtype(p, json_object_get(entry, "dtype"), t);
	if (r)
		return r;
	r = parse_shape(p, json_object_get(entry, "shape"), t);
	if (r)
		return r;
	return parse_offsets(p, json_object_get(entry, "data_offsets"), t);
}

/* --- The header -------------------------------------------------------------------------------- */

static int check_name(struct parser *p, const char *name, size_t n)
{
	struct quote q;

	if (n == 0)
		return sentence_set(p->s, SAFETENSORS_NAME, "a tensor has an empty name");
	if (n > WEIGHTD_TENSOR_NAME_MAX)
		return sentence_set(p->s, SAFETENSORS_NAME,
				    "the name of tensor %s is %zu bytes long, %d is the most",
				    quote_bytes(&q, name, n), n, WEIGHTD_TENSOR_NAME_MAX);
	if (memchr(name, '\0', n))
		return sentence_set(p->s, SAFETENSORS_NAME, "the name of tensor %s holds NUL",
				    quote_bytes(&q, name, n));
	return 0;
}

static int add_tensor(struct parser *p, const char *name, size_t n, const struct entry *e)
{
	struct safetensors_tensor *t;
	int r;

	r = check_name(p, name, n);
	if (r)
		return r;
	if (p->st.n_tensors == WEIGHTD_TENSORS_MAX)
		return sentence_set(p->s, SAFETENSORS_LIMIT, "it has more than %d tensors",
				    WEIGHTD_TENSORS_MAX);
	if (!array_reserve(p->st.tensors, p->st.n_tensors, p->tensors_max))
		return out_of_memory(p->s);
	t = &p->st.tensors[p->st.n_tensors];
	*t = (struct safetensors_tensor){
		.name = memcpy(p->st.text + p->text_used, name, n),
		.name_size = (uint32_t)n,
		.role = WEIGHTD_PARAM,
	};
	p->text_used += n;
	p->st.text[p->text_used++] = '\0';
	r = names_add(&p->names, t->name, n, (uint32_t)p->st.n_tensors);
	if (r == -EEXIST)
		return sentence_set(p->s, SAFETENSORS_DUPLICATE, "tensor %s is in its header twice",
				    QUOTE(t));
	if (r < 0)
		return out_of_memory(p->s);
	r = parse_tensor(p, e, t);
	if (r)
		return r;
	p->st.n_tensors++;
	return 0;
}

/* Checks the form that the reference implementation requires. The texts themselves cannot make a file wrong. */
static int parse_metadata(struct parser *p, struct span value)
{
	cleanup(json_decrefp) json_t *metadata = NULL;
	const char *key;
	json_t *text;
	int r;

	r = members_parse(&p->members, value, &metadata);
	if (r < 0)
		return refuse_json(p, r);
	if (json_is_null(metadata))
		return 0;
	if (!json_is_object(metadata))
		return sentence_set(p->s, SAFETENSORS_METADATA, "its __metadata__ is not an object");
	json_object_foreach(metadata, key, text) if (!json_is_string(text)) return sentence_set(
		p->s, SAFETENSORS_METADATA,
		"its __metadata__ holds something other than text under %s",
		quote_bytes(&(struct quote){0}, key, strlen(key)));
	p->metadata = take_ptr(metadata);
	return 0;
}

static bool is_metadata(const char *key, size_t n)
{
	static const char metadata[] = "__metadata__";

	return n == sizeof(metadata) - 1 && !memcmp(key, metadata, n);
}

static int add_named(struct parser *p, const char *key, size_t n, const struct entry *e)
{
	if (!is_metadata(key, n))
		return add_tensor(p, key, n, e);
	if (p->had_metadata)
		return sentence_set(p->s, SAFETENSORS_DUPLICATE,
				    "__metadata__ is in its header twice");
	p->had_metadata = true;
	return parse_metadata(p, e->value);
}

/* A value that is broken is an error before a key that is. */
static int add_member(struct parser *p, struct span key)
{
	cleanup(json_decrefp) json_t *name = NULL;
	struct span plain;
	bool is_plain = plain_string(key, &plain);
	struct entry e;
	int r = 0;

	if (is_plain)
		names_expect(&p->names, plain.p, plain.n);
	e.is_plain = is_plain && !is_metadata(plain.p, plain.n) &&
		     plain_entry(&p->members, &e.plain);
	if (!e.is_plain)
		r = members_value(&p->members, &e.value);
	if (r == 0 && is_plain)
		return add_named(p, plain.p, plain.n, &e);
	if (r == 0)
		r = members_parse(&p->members, key, &name);
	if (r < 0)
		return refuse_json(p, r);
	return add_named(p, json_string_value(name), json_string_length(name), &e);
}

static int parse_members(struct parser *p)
{
	struct span key;
	int r;

	while ((r = members_key(&p->members, &key)) > 0) {
		r = add_member(p, key);
		if (r)
			return r;
	}
	return r < 0 ? refuse_json(p, r) : 0;
}

/* --- Positions of the bytes -------------------------------------------------------------------- */

/* Names stand in the order of the header, so equal (empty) ranges keep that order. */
static int compare_tensors(const void *va, const void *vb)
{
	const struct safetensors_tensor *a = va, *b = vb;

	if (a->begin != b->begin)
		return a->begin < b->begin ? -1 : 1;
	if (a->end != b->end)
		return a->end < b->end ? -1 : 1;
	return a->name < b->name ? -1 : a->name > b->name;
}

static void sort_tensors(struct safetensors *st)
{
	for (size_t i = 1; i < st->n_tensors; i++)
		if (compare_tensors(&st->tensors[i - 1], &st->tensors[i]) > 0) {
			qsort(st->tensors, st->n_tensors, sizeof(*st->tensors), compare_tensors);
			return;
		}
}

static int check_place(const struct safetensors_tensor *t, uint64_t end, struct sentence *s)
{
	if (t->begin == end && t->end >= t->begin)
		return 0;
	return sentence_set(s, SAFETENSORS_OFFSET,
			    "tensor %s has data_offsets [%" PRIu64 ", %" PRIu64
			    "], but the tensor before it ends at %" PRIu64 ": %s",
			    QUOTE(t), t->begin, t->end, end,
			    t->begin > end   ? "a hole"
			    : t->begin < end ? "they overlap"
					     : "a negative size");
}

static int check_size(const struct safetensors *st, const struct safetensors_tensor *t,
		      struct sentence *s)
{
	uint64_t size;
	int r;

	r = dtype_tensor_size(t->dtype, t->n_dims, safetensors_shape(st, t), &size);
	if (r == -EOVERFLOW)
		return sentence_set(s, SAFETENSORS_OVERFLOW,
				    "the shape of tensor %s overflows 64 bits", QUOTE(t));
	if (r < 0)
		return sentence_set(s, SAFETENSORS_MISALIGNED,
				    "the elements of tensor %s (%s) do not fill whole bytes",
				    QUOTE(t), dtype_name(t->dtype));
	if (size != t->end - t->begin)
		return sentence_set(s, SAFETENSORS_SIZE,
				    "tensor %s has %" PRIu64 " bytes by its data_offsets, %" PRIu64
				    " by its shape",
				    QUOTE(t), (t->end - t->begin), size);
	return 0;
}

static int check_data(const struct safetensors *st, uint64_t data_size, struct sentence *s)
{
	uint64_t end = 0;
	int r;

	for (size_t i = 0; i < st->n_tensors; i++) {
		const struct safetensors_tensor *t = &st->tensors[i];

		r = check_place(t, end, s);
		if (r)
			return r;
		r = check_size(st, t, s);
		if (r)
			return r;
		end = t->end;
	}
	if (end > data_size)
		return sentence_set(s, SAFETENSORS_INCOMPLETE,
				    "it is cut off: its tensors need %" PRIu64 " bytes, %" PRIu64
				    " are there",
				    end, data_size);
	if (end < data_size)
		return sentence_set(s, SAFETENSORS_INCOMPLETE,
				    "%" PRIu64 " bytes at its end belong to no tensor",
				    (data_size - end));
	return 0;
}

/* --- Files -------------------------------------------------------------------------------------- */

int safetensors_parse_prefix(const uint8_t prefix[SAFETENSORS_PREFIX_SIZE], uint64_t file_size,
			     uint64_t *ret_header_size, struct sentence *s)
{
	uint64_t n = 0;

	if (file_size < SAFETENSORS_PREFIX_SIZE)
		return sentence_set(s, SAFETENSORS_TOO_SMALL,
				    "%" PRIu64 " bytes are too few for a safetensors file",
				    file_size);
	for (unsigned i = 0; i < SAFETENSORS_PREFIX_SIZE; i++)
		n |= (uint64_t)prefix[i] << (8 * i);
	if (n > SAFETENSORS_HEADER_MAX)
		return sentence_set(s, SAFETENSORS_HEADER_TOO_LARGE,
				    "its header would have %" PRIu64
				    " bytes, %u is the most: is it safetensors?",
				    n, SAFETENSORS_HEADER_MAX);
	if (n > file_size - SAFETENSORS_PREFIX_SIZE)
		return sentence_set(s, SAFETENSORS_HEADER_LENGTH,
				    "its header of %" PRIu64
				    " bytes goes past the end of the file (%" PRIu64 " bytes)",
				    n, file_size);
	*ret_header_size = n;
	return 0;
}

/* A text is never longer than in the header, so those of the metadata have room behind the names. */
static int parser_finish(struct parser *p, uint64_t data_size)
{
	char *text = p->st.text + p->text_used;
	int r;

	r = metadata_read_names(p->metadata, &p->names, &p->st, &text);
	if (r < 0)
		return out_of_memory(p->s);
	sort_tensors(&p->st);
	r = metadata_read_units(p->metadata, &p->st, &text);
	if (r < 0)
		return out_of_memory(p->s);
	return check_data(&p->st, data_size, p->s);
}

int safetensors_parse(const char *header, uint64_t size, uint64_t data_size,
		      struct safetensors *ret, struct sentence *s)
{
	struct parser p = {.s = s};
	int r;

	members_init(&p.members, header, size);
	/* Without its quotes a name leaves room for its NUL, and escapes are longer than what they mean. */
	p.st.text = malloc(size + 1);
	r = p.st.text ? parse_members(&p) : out_of_memory(s);
	if (r == 0)
		r = parser_finish(&p, data_size);
	names_deinit(&p.names);
	json_decref(p.metadata);
	if (r) {
		safetensors_deinit(&p.st);
		return r;
	}
	*ret = p.st;
	return 0;
}

static int read_header(const struct file *f, struct safetensors *ret, void **ret_start,
		       struct sentence *s)
{
	uint8_t prefix[SAFETENSORS_PREFIX_SIZE] = {0};
	cleanup(freep) char *start = NULL;
	uint64_t size = 0, data_offset;
	int r;

	if (f->identity.size >= sizeof(prefix)) {
		r = file_read(f, prefix, sizeof(prefix), 0, s);
		if (r < 0)
			return r;
	}
	r = safetensors_parse_prefix(prefix, f->identity.size, &size, s);
	if (r)
		return r;
	data_offset = sizeof(prefix) + size;
	start = malloc(data_offset);
	if (!start)
		return out_of_memory(s);
	memcpy(start, prefix, sizeof(prefix));
	r = file_read(f, start + sizeof(prefix), size, sizeof(prefix), s);
	if (r < 0)
		return r;
	r = safetensors_parse(start + sizeof(prefix), size, f->identity.size - data_offset, ret, s);
	if (r)
		return r;
	ret->data_offset = data_offset;
	if (ret_start)
		*ret_start = take_ptr(start);
	return 0;
}

/*
 * True for a file that can be meant as one: it has a size of a header that is possible, and behind
 * it the first character of a header. The first bytes of another format may be such a size, and
 * those of a broken file another format's.
 */
static bool looks_like_safetensors(const struct file *f)
{
	uint8_t start[SAFETENSORS_PREFIX_SIZE + 1] = {0};
	struct sentence ignored; /* there is another one already */
	uint64_t size;

	if (f->identity.size < sizeof(start) || file_read(f, start, sizeof(start), 0, &ignored) < 0)
		return false;
	return safetensors_parse_prefix(start, UINT64_MAX, &size, &ignored) == 0 &&
	       memchr(" \t\n\r{", start[SAFETENSORS_PREFIX_SIZE], 5);
}

int safetensors_read(const struct file *f, struct safetensors *ret, void **ret_start,
		     struct sentence *s)
{
	int r = read_header(f, ret, ret_start, s);

	if (r > 0 && !looks_like_safetensors(f))
		(void)magic_explain_file(f, s); /* else the sentence about the header stays */
	if (r > 0)
		return sentence_set(s, -EBADMSG, "%s cannot be loaded: %s",
				    file_quote(&(struct quote){0}, f->path), s->text);
	return r;
}

void safetensors_deinit(struct safetensors *st)
{
	free(st->tensors);
	free(st->dims);
	free(st->ties);
	free(st->text);
	*st = (struct safetensors){0};
}
