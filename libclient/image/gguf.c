/*
 * Counts and lengths of an untrusted file: each is bounded by the bytes that are there before anything is allocated
 * or skipped, and memory grows with what was parsed, never with what a count promises.
 */
#include "libclient/image/gguf.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "ipc/dtype.h"

#define VERSION_MIN 2
#define VERSION_MAX 3
#define KEY_MAX 65535 /* as in the specification */
#define ARCHITECTURE_MAX 256 /* "llama"; anything longer is none */
#define KEY_SIZE_MIN (8 + 1 + 4 + 1) /* length, one byte, type, value */
#define INFO_SIZE_MIN (8 + 1 + 4 + 4 + 8) /* length, one byte, dimensions, type, offset */

enum value_type {
	VALUE_U8,
	VALUE_I8,
	VALUE_U16,
	VALUE_I16,
	VALUE_U32,
	VALUE_I32,
	VALUE_F32,
	VALUE_BOOL,
	VALUE_STRING,
	VALUE_ARRAY,
	VALUE_U64,
	VALUE_I64,
	VALUE_F64,
};

/* Bytes of a value; 0: of another size each. */
static const uint8_t value_sizes[] = {
	[VALUE_U8] = 1,  [VALUE_I8] = 1,  [VALUE_U16] = 2,  [VALUE_I16] = 2,    [VALUE_U32] = 4,
	[VALUE_I32] = 4, [VALUE_F32] = 4, [VALUE_BOOL] = 1, [VALUE_STRING] = 0, [VALUE_ARRAY] = 0,
	[VALUE_U64] = 8, [VALUE_I64] = 8, [VALUE_F64] = 8,
};

/* By ggml's number of the type. The numbers between them are of types that ggml has removed. */
static const uint8_t dtypes[] = {
	[0] = DTYPE_F32,      [1] = DTYPE_F16,     [2] = DTYPE_Q4_0,     [3] = DTYPE_Q4_1,
	[6] = DTYPE_Q5_0,     [7] = DTYPE_Q5_1,    [8] = DTYPE_Q8_0,     [9] = DTYPE_Q8_1,
	[10] = DTYPE_Q2_K,    [11] = DTYPE_Q3_K,   [12] = DTYPE_Q4_K,    [13] = DTYPE_Q5_K,
	[14] = DTYPE_Q6_K,    [15] = DTYPE_Q8_K,   [16] = DTYPE_IQ2_XXS, [17] = DTYPE_IQ2_XS,
	[18] = DTYPE_IQ3_XXS, [19] = DTYPE_IQ1_S,  [20] = DTYPE_IQ4_NL,  [21] = DTYPE_IQ3_S,
	[22] = DTYPE_IQ2_S,   [23] = DTYPE_IQ4_XS, [24] = DTYPE_I8,      [25] = DTYPE_I16,
	[26] = DTYPE_I32,     [27] = DTYPE_I64,    [28] = DTYPE_F64,     [29] = DTYPE_IQ1_M,
	[30] = DTYPE_BF16,    [34] = DTYPE_TQ1_0,  [35] = DTYPE_TQ2_0,   [39] = DTYPE_MXFP4,
	[40] = DTYPE_NVFP4,   [41] = DTYPE_Q1_0,
};

struct span {
	const char *p;
	uint64_t n;
};

struct parser {
	const uint8_t *start;
	uint64_t size, file_size;
	uint64_t at;
	struct gguf g;
	size_t tensors_room;
	uint64_t end; /* of the last tensor, in the data */
	struct span *keys;
	size_t n_keys, keys_room;
	struct sentence *s;
};

#define QUOTE(span) quote_bytes(&(struct quote){0}, (span).p, (span).n)

static int out_of_memory(struct parser *p)
{
	return sentence_set(p->s, -ENOMEM, "there is not enough memory for the header");
}

/* --- Bytes ------------------------------------------------------------------------------------- */

/* The next `n` bytes of the header. */
static int take(struct parser *p, uint64_t n, const uint8_t **ret)
{
	if (n > p->file_size - p->at)
		return sentence_set(p->s, GGUF_CUT_OFF,
				    "it is cut off: its header goes past the end of the file "
				    "(%" PRIu64 " bytes)",
				    p->file_size);
	if (n > GGUF_HEADER_MAX - p->at)
		return sentence_set(p->s, GGUF_LIMIT, "its header has more than %u bytes",
				    GGUF_HEADER_MAX);
	if (n > p->size - p->at)
		return GGUF_MORE;
	*ret = p->start + p->at;
	p->at += n;
	return 0;
}

/* Little endian, of at most 8 bytes. */
static int take_number(struct parser *p, unsigned n, uint64_t *ret)
{
	const uint8_t *bytes;
	uint64_t value = 0;
	int r = take(p, n, &bytes);

	if (r)
		return r;
	for (unsigned i = 0; i < n; i++)
		value |= (uint64_t)bytes[i] << (8 * i);
	*ret = value;
	return 0;
}

static int take_string(struct parser *p, struct span *ret)
{
	const uint8_t *bytes;
	uint64_t n;
	int r = take_number(p, 8, &n);

	if (r == 0)
		r = take(p, n, &bytes);
	if (r == 0)
		*ret = (struct span){(const char *)bytes, n};
	return r;
}

/* A number of things that take `size_min` bytes each. */
static int take_count(struct parser *p, unsigned size_min, const char *of, uint64_t *ret)
{
	uint64_t n;
	int r = take_number(p, 8, &n);

	if (r)
		return r;
	if (n > (p->file_size - p->at) / size_min)
		return sentence_set(p->s, GGUF_CUT_OFF,
				    "its header promises %" PRIu64
				    " %s, for which a file of %" PRIu64 " bytes is too short",
				    n, of, p->file_size);
	*ret = n;
	return 0;
}

/* --- Names that may stand once ------------------------------------------------------------------ */

static int compare_spans(const void *va, const void *vb)
{
	const struct span *a = va, *b = vb;

	if (a->n != b->n)
		return a->n < b->n ? -1 : 1;
	return memcmp(a->p, b->p, a->n);
}

/* Sorts them. NULL: no two are equal. */
static const struct span *find_twice(struct span *spans, size_t n)
{
	if (n < 2)
		return NULL;
	qsort(spans, n, sizeof(*spans), compare_spans);
	for (size_t i = 1; i < n; i++)
		if (compare_spans(&spans[i - 1], &spans[i]) == 0)
			return &spans[i];
	return NULL;
}

static bool grow(void *array, size_t item_size, size_t n, size_t *room)
{
	size_t larger = *room ? 2 * *room : 64;
	void **p = array, *grown;

	if (n < *room)
		return true;
	grown = reallocarray(*p, larger, item_size);
	if (!grown)
		return false;
	*p = grown;
	*room = larger;
	return true;
}

/* --- Metadata ----------------------------------------------------------------------------------- */

static int refuse_value(struct parser *p, const struct span *key, uint64_t type)
{
	return sentence_set(p->s, GGUF_VALUE,
			    "its metadata %s has a value of type %" PRIu64
			    ", which this release does not support",
			    QUOTE(*key), type);
}

static int skip_array(struct parser *p, const struct span *key)
{
	const uint8_t *bytes;
	struct span item;
	uint64_t type, n, size;
	int r = take_number(p, 4, &type);

	if (r == 0)
		r = take_number(p, 8, &n);
	if (r)
		return r;
	if (type >= ARRAY_LEN(value_sizes) || type == VALUE_ARRAY)
		return refuse_value(p, key, type);
	if (type != VALUE_STRING) {
		if (__builtin_mul_overflow(n, value_sizes[type], &size))
			size = UINT64_MAX;
		return take(p, size, &bytes);
	}
	for (uint64_t i = 0; r == 0 && i < n; i++)
		r = take_string(p, &item);
	return r;
}

static int skip_value(struct parser *p, const struct span *key, uint64_t type)
{
	const uint8_t *bytes;
	struct span text;

	if (type >= ARRAY_LEN(value_sizes))
		return refuse_value(p, key, type);
	if (type == VALUE_ARRAY)
		return skip_array(p, key);
	return type == VALUE_STRING ? take_string(p, &text) : take(p, value_sizes[type], &bytes);
}

static int parse_alignment(struct parser *p, uint64_t type)
{
	uint64_t alignment = 0;
	int r = type == VALUE_U32 ? take_number(p, 4, &alignment) : 0;

	if (r)
		return r;
	if (!num_is_power_of_two(alignment) || alignment > LAYOUT_ALIGNMENT_MAX)
		return sentence_set(p->s, GGUF_ALIGNMENT,
				    "its general.alignment is not a power of two up to %u, of type "
				    "uint32",
				    LAYOUT_ALIGNMENT_MAX);
	p->g.alignment = (uint32_t)alignment;
	return 0;
}

static int parse_split(struct parser *p)
{
	uint64_t n;
	int r = take_number(p, 2, &n);

	if (r == 0 && n > 1)
		return sentence_set(p->s, GGUF_SPLIT,
				    "it is one of %" PRIu64
				    " parts of a model: merge them into one file first "
				    "(llama-gguf-split --merge)",
				    n);
	return r;
}

static int parse_architecture(struct parser *p)
{
	struct span text;
	int r = take_string(p, &text);

	if (r == 0 && text.n <= ARCHITECTURE_MAX) {
		p->g.architecture = text.p;
		p->g.architecture_size = (uint32_t)text.n;
	}
	return r;
}

static bool is_key(const struct span *key, const char *name)
{
	return key->n == strlen(name) && !memcmp(key->p, name, key->n);
}

static int parse_key(struct parser *p)
{
	struct span key;
	uint64_t type;
	int r = take_string(p, &key);

	if (r)
		return r;
	if (key.n == 0 || key.n > KEY_MAX)
		return sentence_set(p->s, GGUF_KEY,
				    "a key of its metadata has %" PRIu64 " bytes, 1 to %d are right",
				    key.n, KEY_MAX);
	r = take_number(p, 4, &type);
	if (r)
		return r;
	if (!grow(&p->keys, sizeof(*p->keys), p->n_keys, &p->keys_room))
		return out_of_memory(p);
	p->keys[p->n_keys++] = key;
	if (is_key(&key, "general.alignment"))
		return parse_alignment(p, type);
	if (is_key(&key, "split.count") && type == VALUE_U16)
		return parse_split(p);
	if (is_key(&key, "general.architecture") && type == VALUE_STRING)
		return parse_architecture(p);
	return skip_value(p, &key, type);
}

static int parse_metadata(struct parser *p, uint64_t n)
{
	const struct span *twice;
	int r = 0;

	for (uint64_t i = 0; r == 0 && i < n; i++)
		r = parse_key(p);
	if (r)
		return r;
	twice = find_twice(p->keys, p->n_keys);
	if (twice)
		return sentence_set(p->s, GGUF_KEY, "its metadata has the key %s twice",
				    QUOTE(*twice));
	return 0;
}

/* --- Tensors ------------------------------------------------------------------------------------ */

static int parse_name(struct parser *p, struct gguf_tensor *t)
{
	struct span name;
	int r = take_string(p, &name);

	if (r)
		return r;
	if (name.n > WEIGHTD_TENSOR_NAME_MAX || !layout_name_ok(name.p, name.n))
		return sentence_set(p->s, GGUF_NAME,
				    "a tensor has the name %s, which is not 1 to %d bytes of UTF-8 "
				    "without NUL",
				    QUOTE(name), WEIGHTD_TENSOR_NAME_MAX);
	t->name = name.p;
	t->name_size = (uint32_t)name.n;
	return 0;
}

static const char *quote_tensor(struct quote *q, const struct gguf_tensor *t)
{
	return quote_bytes(q, t->name, t->name_size);
}

#define QUOTE_TENSOR(t) quote_tensor(&(struct quote){0}, t)

/* The file has the innermost dimension first. */
static int parse_shape(struct parser *p, struct gguf_tensor *t)
{
	uint64_t n;
	int r = take_number(p, 4, &n);

	if (r)
		return r;
	if (n > GGUF_DIMS_MAX)
		return sentence_set(p->s, GGUF_SHAPE,
				    "tensor %s has %" PRIu64 " dimensions, %d is the most",
				    QUOTE_TENSOR(t), n, GGUF_DIMS_MAX);
	t->n_dims = (uint32_t)n;
	for (uint32_t i = t->n_dims; r == 0 && i-- > 0;)
		r = take_number(p, 8, &t->shape[i]);
	return r;
}

static int parse_type(struct parser *p, struct gguf_tensor *t)
{
	uint64_t type;
	int r = take_number(p, 4, &type);

	if (r)
		return r;
	if (type >= ARRAY_LEN(dtypes) || !dtypes[type])
		return sentence_set(p->s, GGUF_TYPE,
				    "tensor %s has ggml type %" PRIu64
				    ", which this release does not support",
				    QUOTE_TENSOR(t), type);
	t->dtype = (enum weightd_dtype)dtypes[type];
	r = dtype_tensor_size(dtypes[type], t->n_dims, t->shape, &t->n_bytes);
	if (r == -EOVERFLOW)
		return sentence_set(p->s, GGUF_SHAPE, "the shape of tensor %s overflows 64 bits",
				    QUOTE_TENSOR(t));
	if (r < 0)
		return sentence_set(p->s, GGUF_SHAPE,
				    "the rows of tensor %s (%s) are not made of whole blocks",
				    QUOTE_TENSOR(t), dtype_name(dtypes[type]));
	return 0;
}

static int parse_offset(struct parser *p, struct gguf_tensor *t)
{
	uint64_t place = 0;
	int r = take_number(p, 8, &t->offset);

	if (r)
		return r;
	if (!num_align_up(p->end, p->g.alignment, &place) || t->offset != place)
		return sentence_set(p->s, GGUF_OFFSET,
				    "tensor %s begins at byte %" PRIu64
				    " of the data, and not at %" PRIu64
				    ", where the tensor before it ends",
				    QUOTE_TENSOR(t), t->offset, place);
	if (__builtin_add_overflow(place, t->n_bytes, &p->end) || p->end > p->file_size)
		return sentence_set(p->s, GGUF_SIZE,
				    "it is cut off: tensor %s needs %" PRIu64
				    " bytes of data, the file has %" PRIu64,
				    QUOTE_TENSOR(t), t->n_bytes, p->file_size);
	return 0;
}

static int parse_tensor(struct parser *p)
{
	struct gguf_tensor *t;
	int r;

	if (p->g.n_tensors == WEIGHTD_TENSORS_MAX)
		return sentence_set(p->s, GGUF_LIMIT, "it has more than %d tensors",
				    WEIGHTD_TENSORS_MAX);
	if (!grow(&p->g.tensors, sizeof(*p->g.tensors), p->g.n_tensors, &p->tensors_room))
		return out_of_memory(p);
	t = &p->g.tensors[p->g.n_tensors];
	*t = (struct gguf_tensor){0};
	r = parse_name(p, t);
	if (r == 0)
		r = parse_shape(p, t);
	if (r == 0)
		r = parse_type(p, t);
	if (r == 0)
		r = parse_offset(p, t);
	if (r == 0)
		p->g.n_tensors++;
	return r;
}

static int check_names(struct parser *p)
{
	cleanup(freep) struct span *names = calloc(p->g.n_tensors + 1, sizeof(*names));
	const struct span *twice;

	if (!names)
		return out_of_memory(p);
	for (size_t i = 0; i < p->g.n_tensors; i++)
		names[i] = (struct span){p->g.tensors[i].name, p->g.tensors[i].name_size};
	twice = find_twice(names, p->g.n_tensors);
	if (twice)
		return sentence_set(p->s, GGUF_NAME, "tensor %s is in its header twice",
				    QUOTE(*twice));
	return 0;
}

static int check_data(struct parser *p)
{
	uint64_t aligned;

	p->g.data_size = p->file_size - p->g.data_offset;
	if (p->end > p->g.data_size)
		return sentence_set(p->s, GGUF_SIZE,
				    "it is cut off: its tensors need %" PRIu64 " bytes, %" PRIu64
				    " are there",
				    p->end, p->g.data_size);
	if (p->g.data_size != p->end &&
	    (!num_align_up(p->end, p->g.alignment, &aligned) || p->g.data_size != aligned))
		return sentence_set(p->s, GGUF_SIZE,
				    "%" PRIu64 " bytes at its end belong to no tensor",
				    p->g.data_size - p->end);
	return 0;
}

/* --- The header --------------------------------------------------------------------------------- */

bool gguf_is_magic(const void *start, uint64_t size)
{
	return size >= GGUF_MAGIC_SIZE && !memcmp(start, GGUF_MAGIC, GGUF_MAGIC_SIZE);
}

static int parse_version(struct parser *p)
{
	const uint8_t *magic;
	uint64_t version;
	int r = take(p, GGUF_MAGIC_SIZE, &magic);

	if (r)
		return r;
	if (!gguf_is_magic(magic, GGUF_MAGIC_SIZE))
		return sentence_set(p->s, GGUF_NO_MAGIC, "it does not begin with \"GGUF\"");
	r = take_number(p, 4, &version);
	if (r)
		return r;
	if (version != 0 && version % 0x10000 == 0)
		return sentence_set(p->s, GGUF_VERSION,
				    "it is a big-endian GGUF file: convert it for this machine");
	if (version < VERSION_MIN || version > VERSION_MAX)
		return sentence_set(p->s, GGUF_VERSION,
				    "it is GGUF of version %" PRIu64
				    ", this release supports versions %d and %d",
				    version, VERSION_MIN, VERSION_MAX);
	return 0;
}

static int parse_header(struct parser *p)
{
	const uint8_t *padding;
	uint64_t n_tensors, n_keys;
	int r = parse_version(p);

	if (r == 0)
		r = take_count(p, INFO_SIZE_MIN, "tensors", &n_tensors);
	if (r == 0)
		r = take_count(p, KEY_SIZE_MIN, "keys of metadata", &n_keys);
	if (r == 0)
		r = parse_metadata(p, n_keys);
	for (uint64_t i = 0; r == 0 && i < n_tensors; i++)
		r = parse_tensor(p);
	if (r)
		return r;
	/* No overflow: take() keeps `at` below GGUF_HEADER_MAX. */
	r = take(p, -p->at & (p->g.alignment - 1), &padding);
	if (r)
		return r;
	p->g.data_offset = p->at;
	r = check_names(p);
	return r ? r : check_data(p);
}

int gguf_parse(const void *start, uint64_t size, uint64_t file_size, struct gguf *ret,
	       struct sentence *s)
{
	struct parser p = {
		.start = start,
		.size = size,
		.file_size = file_size,
		.g.alignment = GGUF_ALIGNMENT_DEFAULT,
		.s = s,
	};
	int r;

	assert(size <= file_size);
	r = parse_header(&p);
	free(p.keys);
	if (r) {
		gguf_deinit(&p.g);
		return r;
	}
	*ret = p.g;
	return 0;
}

void gguf_deinit(struct gguf *g)
{
	free(g->tensors);
	*g = (struct gguf){0};
}
