/*
 * The rules of safetensors, each with a header that just keeps it and one that breaks it. Headers are
 * written with ' for " to be readable.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/num.h"
#include "libclient/image/safetensors.h"

#define U8(name, from, to, size)                                                                   \
	"'" name "':{'dtype':'U8','shape':[" #size "],'data_offsets':[" #from "," #to "]}"

/* Copied to the heap exactly, so that ASan sees a read past the end. */
static int parse(const char *header, size_t n, uint64_t data_size, struct safetensors *st,
		 struct sentence *s)
{
	char *copy = malloc(n ? n : 1);
	int r;

	assert_non_null(copy);
	for (size_t i = 0; i < n; i++)
		copy[i] = header[i] == '\'' ? '"' : header[i];
	(void)sentence_set(s, 0, "%s", "");
	r = safetensors_parse(copy, n, data_size, st, s);
	free(copy);
	return r;
}

/*
 * The header with one more field in front of each dtype, which the reference does not read. A plain entry, which is read
 * without jansson, becomes another one, about which nothing else may differ. The caller frees it.
 */
static char *with_a_field(const char *header, size_t n, size_t *ret_n)
{
	static const char dtype[] = "{'dtype'", field[] = "{'?':0,";
	char *copy = malloc(n * sizeof(field) + 1), *to = copy;

	assert_non_null(copy);
	for (size_t i = 0; i < n; i++)
		if (n - i >= sizeof(dtype) - 1 && !memcmp(header + i, dtype, sizeof(dtype) - 1))
			to = stpcpy(to, field);
		else
			*to++ = header[i];
	*ret_n = (size_t)(to - copy);
	return copy;
}

static void accept_as_it_is(const char *header, size_t n, uint64_t data_size)
{
	struct safetensors st = {0};
	struct sentence s;
	int r = parse(header, n, data_size, &st, &s);

	if (r != 0)
		fail_msg("refused (%d: %s): %.200s", r, s.text, header);
	safetensors_deinit(&st);
}

static void accept(const char *header, size_t n, uint64_t data_size)
{
	size_t other_n;
	char *other = with_a_field(header, n, &other_n);

	accept_as_it_is(header, n, data_size);
	accept_as_it_is(other, other_n, data_size);
	free(other);
}

static void refuse_as_it_is(const char *header, size_t n, uint64_t data_size, int rule,
			    const char *phrase)
{
	struct safetensors st = {0};
	struct sentence s;
	int r = parse(header, n, data_size, &st, &s);

	if (r == 0)
		safetensors_deinit(&st);
	if (r != rule || !strstr(s.text, phrase))
		fail_msg("wanted rule %d and '%s', got %d and '%s': %.200s", rule, phrase, r,
			 s.text, header);
}

static void refuse(const char *header, size_t n, uint64_t data_size, int rule, const char *phrase)
{
	size_t other_n;
	char *other = with_a_field(header, n, &other_n);

	refuse_as_it_is(header, n, data_size, rule, phrase);
	refuse_as_it_is(other, other_n, data_size, rule, phrase);
	free(other);
}

#define ACCEPT(header, data_size) accept(header, sizeof(header) - 1, data_size)
#define REFUSE(header, data_size, rule, phrase)                                                    \
	refuse(header, sizeof(header) - 1, data_size, SAFETENSORS_##rule, phrase)

/* --- The eight bytes in front ------------------------------------------------------------------- */

static int parse_prefix(uint64_t n, uint64_t file_size)
{
	uint8_t prefix[SAFETENSORS_PREFIX_SIZE];
	uint64_t header_size = 0;
	struct sentence s;
	int r;

	for (unsigned i = 0; i < sizeof(prefix); i++)
		prefix[i] = (uint8_t)(n >> (8 * i));
	r = safetensors_parse_prefix(prefix, file_size, &header_size, &s);
	assert_true(r != 0 || header_size == n);
	return r;
}

static void a_file_has_at_least_eight_bytes(void **state)
{
	(void)state;
	assert_int_equal(parse_prefix(0, 0), SAFETENSORS_TOO_SMALL);
	assert_int_equal(parse_prefix(0, 7), SAFETENSORS_TOO_SMALL);
	assert_int_equal(parse_prefix(0, 8), 0);
}

static void a_header_has_at_most_100_million_bytes(void **state)
{
	(void)state;
	assert_int_equal(parse_prefix(100000000, UINT64_MAX), 0);
	assert_int_equal(parse_prefix(100000001, UINT64_MAX), SAFETENSORS_HEADER_TOO_LARGE);
	assert_int_equal(parse_prefix(UINT64_MAX, UINT64_MAX), SAFETENSORS_HEADER_TOO_LARGE);
}

static void a_header_ends_inside_the_file(void **state)
{
	(void)state;
	assert_int_equal(parse_prefix(92, 100), 0);
	assert_int_equal(parse_prefix(93, 100), SAFETENSORS_HEADER_LENGTH);
}

/* --- JSON --------------------------------------------------------------------------------------- */

static void a_header_is_one_json_object(void **state)
{
	(void)state;
	ACCEPT("{}", 0);
	REFUSE("", 0, JSON, "not an object");
	REFUSE("   ", 0, JSON, "not an object");
	REFUSE("[]", 0, JSON, "not an object");
	REFUSE("null", 0, JSON, "not an object");
	REFUSE("{", 0, JSON, "missing");
	REFUSE("{}}", 0, JSON, "after the end");
	REFUSE("{}{}", 0, JSON, "after the end");
	REFUSE("{" U8("a", 0, 1, 1) ",}", 1, JSON, "key");
	REFUSE("{" U8("a", 0, 1, 1) " " U8("b", 1, 2, 1) "}", 2, JSON, "','");
	REFUSE("{'a'}", 0, JSON, "':'");
	REFUSE("{'a':}", 0, JSON, "missing");
	REFUSE("{a:1}", 0, JSON, "key");
	REFUSE("{'a", 0, JSON, "does not end");
	REFUSE("{'a\\", 0, JSON, "does not end");
	REFUSE("{'a':{", 0, JSON, "does not end");
	REFUSE("{'a':{]}", 0, JSON, "not well formed");
	REFUSE("{'a':{'dtype':'U8','shape':[01],'data_offsets':[0,1]}}", 1, JSON, "not well formed");
	REFUSE("{'a':{'dtype':'U8','shape':[NaN],'data_offsets':[0,1]}}", 1, JSON,
	       "not well formed");
	REFUSE("{'\x1f':1}", 0, JSON, "not well formed");
	REFUSE("{'\\ud800':1}", 0, JSON, "not well formed");
	REFUSE("{}\0", 0, JSON, "after the end");
	REFUSE("{'a':1\0}", 0, JSON, "NUL");
	REFUSE("{'a':{'dtype':'U8','shape':[1\0],'data_offsets':[0,1]}}", 1, JSON, "NUL");
}

static void white_space_may_stand_around_the_header(void **state)
{
	(void)state;
	ACCEPT("{}          ", 0);
	ACCEPT(" \t\r\n{ \n} \t\r\n", 0);
	ACCEPT("\n{ 'a' : { 'dtype' : 'U8' , 'shape' : [ 1 ] , 'data_offsets' : [ 0 , 1 ] } }", 1);
	REFUSE("{}\f", 0, JSON, "after the end");
	REFUSE("\xc2\xa0{}", 0, JSON, "not an object");
	REFUSE("\xef\xbb\xbf{}", 0, JSON, "not an object"); /* a byte order mark */
}

static void a_header_is_utf8(void **state)
{
	(void)state;
	ACCEPT("{" U8("\xe2\x82\xac", 0, 1, 1) "}", 1);
	REFUSE("{" U8("\xff", 0, 1, 1) "}", 1, UTF8, "UTF-8");
	REFUSE("{" U8("\xc0\xaf", 0, 1, 1) "}", 1, UTF8, "UTF-8");
	REFUSE("{" U8("\xed\xa0\x80", 0, 1, 1) "}", 1, UTF8, "UTF-8");
	REFUSE("{'__metadata__':{'a':'\x80'}}", 0, UTF8, "UTF-8");
}

/* Nested `depth` deep altogether, in a field of a tensor that nobody knows. */
static char *nested(unsigned depth)
{
	static const char start[] = "{'a':{'dtype':'U8','shape':[0],'data_offsets':[0,0],'x':";
	char *header = calloc(1, sizeof(start) + 2 * (size_t)depth + 3);
	char *p;

	assert_non_null(header);
	p = stpcpy(header, start);
	depth -= 2; /* the header itself and the tensor */
	memset(p, '[', depth);
	memset(p + depth, ']', depth);
	(void)strcpy(p + 2 * (size_t)depth, "}}");
	return header;
}

static void nesting_has_the_limit_of_the_reference(void **state)
{
	char *deepest = nested(127), *too_deep = nested(128), *far_too_deep = nested(1000000);

	(void)state;
	accept(deepest, strlen(deepest), 0);
	refuse(too_deep, strlen(too_deep), 0, SAFETENSORS_JSON, "too deep");
	refuse(far_too_deep, strlen(far_too_deep), 0, SAFETENSORS_JSON, "too deep");
	free(deepest);
	free(too_deep);
	free(far_too_deep);
}

/* --- Members ------------------------------------------------------------------------------------ */

static void names_stand_once_after_unescaping(void **state)
{
	(void)state;
	ACCEPT("{" U8("a", 0, 1, 1) "," U8("A", 1, 2, 1) "}", 2);
	REFUSE("{" U8("a", 0, 1, 1) "," U8("a", 0, 1, 1) "}", 1, DUPLICATE,
	       "'a' is in its header twice");
	REFUSE("{" U8("a", 0, 1, 1) "," U8("\\u0061", 1, 2, 1) "}", 2, DUPLICATE,
	       "'a' is in its header twice");
	REFUSE("{" U8("/", 0, 1, 1) "," U8("\\/", 1, 2, 1) "}", 2, DUPLICATE,
	       "'/' is in its header twice");
	REFUSE("{'a':{'dtype':'U8','dtype':'U8','shape':[1],'data_offsets':[0,1]}}", 1, DUPLICATE,
	       "a key is used twice");
	REFUSE("{'__metadata__':{},'\\u005f_metadata__':{}}", 0, DUPLICATE, "__metadata__");
	REFUSE("{'__metadata__':{'a':'1','a':'1'}}", 0, DUPLICATE, "a key is used twice");
}

static void names_have_1_to_1024_bytes_without_nul(void **state)
{
	char header[2048];
	int n;

	(void)state;
	REFUSE("{" U8("", 0, 1, 1) "}", 1, NAME, "empty");
	REFUSE("{" U8("a\\u0000b", 0, 1, 1) "}", 1, NAME, "'a\\x00b' holds NUL");
	for (int size = 1023; size <= 1025; size++) {
		n = snprintf(header, sizeof(header),
			     "{'%0*d':{'dtype':'U8','shape':[0],'data_offsets':[0,0]}}", size, 0);
		if (size <= WEIGHTD_TENSOR_NAME_MAX)
			accept(header, (size_t)n, 0);
		else
			refuse(header, (size_t)n, 0, SAFETENSORS_NAME, "1025 bytes long");
	}
}

static void names_are_kept_as_they_are(void **state)
{
	static const char header[] = "{" U8("../\\u001b[2J\\n\xc3\xa4\\ud83d\\ude42", 0, 1, 1) "}";
	struct safetensors st;
	struct sentence s;

	(void)state;
	assert_int_equal(parse(header, sizeof(header) - 1, 1, &st, &s), 0);
	assert_string_equal(st.tensors[0].name, "../\x1b[2J\n\xc3\xa4\xf0\x9f\x99\x82");
	assert_int_equal(st.tensors[0].name_size, strlen(st.tensors[0].name));
	safetensors_deinit(&st);
}

static void names_in_sentences_are_escaped(void **state)
{
	(void)state;
	REFUSE("{" U8("\\u001b[2J", 0, 2, 1) "}", 2, SIZE, "tensor '\\x1b[2J' has");
}

static void metadata_is_text_or_null(void **state)
{
	(void)state;
	ACCEPT("{'__metadata__':{'format':'pt','':''}}", 0);
	ACCEPT("{'__metadata__':{}}", 0);
	ACCEPT("{'__metadata__':null}", 0);
	ACCEPT("{'__metadata__':{'nul':'a\\u0000b'}}", 0);
	REFUSE("{'__metadata__':{'n':1}}", 0, METADATA, "'n'");
	REFUSE("{'__metadata__':{'n':null}}", 0, METADATA, "'n'");
	REFUSE("{'__metadata__':{'n':{}}}", 0, METADATA, "'n'");
	REFUSE("{'__metadata__':[]}", 0, METADATA, "not an object");
	REFUSE("{'__metadata__':''}", 0, METADATA, "not an object");
	/* A name like any other: */
	ACCEPT("{" U8("__metadata", 0, 1, 1) "," U8("__metadata__x", 1, 2, 1) "}", 2);
}

static void a_tensor_has_dtype_shape_and_offsets(void **state)
{
	(void)state;
	REFUSE("{'a':{'shape':[1],'data_offsets':[0,1]}}", 1, ENTRY, "'a' has no dtype");
	REFUSE("{'a':{'dtype':'U8','data_offsets':[0,1]}}", 1, ENTRY, "'a' has no shape");
	REFUSE("{'a':{'dtype':'U8','shape':[1]}}", 1, ENTRY, "data_offsets of tensor 'a'");
	REFUSE("{'a':{'dtype':1,'shape':[1],'data_offsets':[0,1]}}", 1, ENTRY, "dtype");
	REFUSE("{'a':{'dtype':'U8','shape':1,'data_offsets':[0,1]}}", 1, ENTRY, "shape");
	REFUSE("{'a':{'dtype':'U8','shape':['1'],'data_offsets':[0,1]}}", 1, ENTRY, "shape");
	REFUSE("{'a':{'dtype':'U8','shape':[1],'data_offsets':[0]}}", 1, ENTRY, "data_offsets");
	REFUSE("{'a':{'dtype':'U8','shape':[1],'data_offsets':[0,1,2]}}", 1, ENTRY, "data_offsets");
	REFUSE("{'a':{'dtype':'U8','shape':[1],'data_offsets':{}}}", 1, ENTRY, "data_offsets");
	REFUSE("{'a':null}", 1, ENTRY, "'a' is not described");
	REFUSE("{'a':['U8',[1],[0,1]]}", 1, ENTRY, "'a' is not described");
	ACCEPT("{'a':{'dtype':'U8','shape':[1],'data_offsets':[0,1],'x':[-1,2.5,{'y':null}]}}", 1);
}

static void numbers_are_unsigned_integers(void **state)
{
	(void)state;
	REFUSE("{'a':{'dtype':'U8','shape':[-1],'data_offsets':[0,1]}}", 1, ENTRY, "unsigned");
	REFUSE("{'a':{'dtype':'U8','shape':[1.0],'data_offsets':[0,1]}}", 1, ENTRY, "unsigned");
	REFUSE("{'a':{'dtype':'U8','shape':[1e0],'data_offsets':[0,1]}}", 1, ENTRY, "unsigned");
	REFUSE("{'a':{'dtype':'U8','shape':[true],'data_offsets':[0,1]}}", 1, ENTRY, "unsigned");
	REFUSE("{'a':{'dtype':'U8','shape':[1],'data_offsets':[0,1.0]}}", 1, ENTRY, "unsigned");
	REFUSE("{'a':{'dtype':'U8','shape':[1],'data_offsets':[-0,1]}}", 1, JSON, "negative zero");
	REFUSE("{'a':-0}", 1, JSON, "negative zero");
	REFUSE("{'a':[1e-03,-0]}", 1, JSON, "negative zero");
	ACCEPT("{'a':{'dtype':'U8','shape':[1],'data_offsets':[0,1],'x':[1.5e-03,2E-0,-0.5]}}", 1);
	REFUSE("{'a':{'dtype':'U8','shape':[1],'data_offsets':[0,18446744073709551617]}}", 1,
	       OVERFLOW, "too large");
	REFUSE("{'a':{'dtype':'U8','shape':[1],'data_offsets':[0,1],'x':1e999}}", 1, OVERFLOW,
	       "too large");
}

static void entries_are_alike_in_any_spelling(void **state)
{
	static const char *const same[] = {
		"{'a':{'dtype':'F16','shape':[1,2,3],'data_offsets':[0,12]}}",
		"{'a':{'shape':[1,2,3],'data_offsets':[0,12],'dtype':'F16'}}",
		"{'a':{'data_offsets':[0,12],'shape':[1,2,3],'dtype':'F16'}}",
		" {\n'a'\t:\r{ 'dtype' : 'F16' , 'shape' : [ 1 , 2,3 ] ,\n'data_offsets':[0, 12 ]\t} }",
		"{'a':{'dtype':'F16','shape':[\n1,\n2,\t3\r],'data_offsets':[\r\n0,\t12]}}",
		"{'\\u0061':{'dtype':'F16','shape':[1,2,3],'data_offsets':[0,12]}}",
		"{'a':{'d\\u0074ype':'F16','shape':[1,2,3],'data_offsets':[0,12]}}",
		"{'a':{'dtype':'\\u0046\\u00316','shape':[1,2,3],'data_offsets':[0,12]}}",
		"{'a':{'dtype':'F16','shape':[1,2,3],'data_offsets':[0,12],'x':'}'}}",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(same); i++) {
		struct safetensors st;
		struct sentence s;

		if (parse(same[i], strlen(same[i]), 12, &st, &s))
			fail_msg("refused (%s): %s", s.text, same[i]);
		assert_int_equal(st.n_tensors, 1);
		assert_string_equal(st.tensors[0].name, "a");
		assert_int_equal(st.tensors[0].dtype, WEIGHTD_F16);
		assert_int_equal(st.tensors[0].n_dims, 3);
		for (uint64_t k = 0; k < 3; k++)
			assert_int_equal(safetensors_shape(&st, st.tensors)[k], k + 1);
		assert_int_equal(st.tensors[0].end, 12);
		safetensors_deinit(&st);
	}
}

static void what_is_nearly_plain_is_refused(void **state)
{
	(void)state;
	REFUSE("{'a':{'dtype':'U8','shape':[1,],'data_offsets':[0,1]}}", 1, JSON, "well formed");
	REFUSE("{'a':{'dtype':'U8','shape':[,1],'data_offsets':[0,1]}}", 1, JSON, "well formed");
	REFUSE("{'a':{'dtype':'U8','shape':[1 1],'data_offsets':[0,1]}}", 1, JSON, "well formed");
	REFUSE("{'a':{'dtype':'U8','shape':[00],'data_offsets':[0,0]}}", 0, JSON, "well formed");
	REFUSE("{'a':{'dtype':'U8','shape':[1],'data_offsets':[0,1],}}", 1, JSON, "well formed");
	REFUSE("{'a':{'dtype':'U8','shape':[1] 'data_offsets':[0,1]}}", 1, JSON, "well formed");
	REFUSE("{'a':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}", 1, JSON, "missing");
	REFUSE("{'a':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}x}", 1, JSON, "missing");
	REFUSE("{'a':{'dtype':'U\x01','shape':[1],'data_offsets':[0,1]}}", 1, JSON, "well formed");
	REFUSE("{'a':{'dtype':'U8','shape':[1],'data_offsets':[0,1],'shape':[1]}}", 1, DUPLICATE,
	       "a key is used twice");
	REFUSE("{'a':{'dtype':'U8','shape':[1],'shape':[1]}}", 1, DUPLICATE, "a key is used twice");
	REFUSE("{'a':{'dtype':'U8','shape':[1000000000000000000],'data_offsets':[0,1]}}", 1, SIZE,
	       "1000000000000000000 by its shape");
	REFUSE("{'a':{'dtype':'Q4_0','shape':[32],'data_offsets':[0,18]}}", 18, DTYPE, "'Q4_0'");
	REFUSE("{'__metadata__':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", 1, METADATA,
	       "something other than text");
}

/* Each string as long as possible stands at each place in a word, and so does what ends it. */
static void a_name_is_plain_to_its_end(void **state)
{
	static const char entry[] = ":{'dtype':'U8','shape':[0],'data_offsets':[0,0]}}";
	char header[128];

	(void)state;
	for (int n = 1; n < 20; n++)
		for (int at = 0; at < n; at++) {
			(void)snprintf(header, sizeof(header), "{'%.*s'%s", n,
				       "mmmmmmmmmmmmmmmmmmmm", entry);
			accept(header, strlen(header), 0);
			header[2 + at] = '\x1f';
			refuse(header, strlen(header), 0, SAFETENSORS_JSON, "not well formed");
			header[2 + at] = '\x80';
			refuse(header, strlen(header), 0, SAFETENSORS_UTF8, "not UTF-8");
			header[2 + at] = '\x7f';
			accept(header, strlen(header), 0);
			header[2 + at] = '\''; /* the name ends here */
			refuse(header, strlen(header), 0, SAFETENSORS_JSON, "':' is missing");
			header[2 + at] = '\\'; /* no escape of JSON */
			refuse(header, strlen(header), 0, SAFETENSORS_JSON, "");
		}
}

/* --- Work --------------------------------------------------------------------------------------- */

static size_t n_allocations;

static void *count_allocation(size_t size)
{
	n_allocations++;
	return malloc(size);
}

/* The allocations of jansson for a header of `n` tensors, and for the metadata before them. */
static size_t allocations_of(size_t n)
{
	char *header = malloc(64 + n * 96), *to = header;
	struct safetensors st;
	struct sentence s;

	assert_non_null(header);
	to = stpcpy(to, "{'__metadata__':{'format':'pt'}");
	for (size_t i = 0; i < n; i++)
		to += sprintf(to,
			      ", 'model.layers.%zu.weight': {'dtype': 'F32', 'shape': [1, 2], "
			      "'data_offsets': [%zu, %zu]}",
			      i, 8 * i, 8 * i + 8);
	to = stpcpy(to, "}");
	n_allocations = 0;
	if (parse(header, (size_t)(to - header), 8 * n, &st, &s))
		fail_msg("refused: %s", s.text);
	assert_int_equal(st.n_tensors, n);
	safetensors_deinit(&st);
	free(header);
	return n_allocations;
}

static void jansson_sees_no_tensor_of_a_plain_header(void **state)
{
	(void)state;
	json_set_alloc_funcs(count_allocation, free);
	assert_int_equal(allocations_of(1000), allocations_of(1));
	json_set_alloc_funcs(malloc, free);
}

/* --- Sizes -------------------------------------------------------------------------------------- */

static void every_dtype_has_its_width(void **state)
{
	static const struct {
		const char *name;
		unsigned bits;
	} dtypes[] = {
		{"BOOL", 8},    {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6},
		{"U8", 8},      {"I8", 8},          {"F8_E5M2", 8},     {"F8_E4M3", 8},
		{"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
		{"U16", 16},    {"F16", 16},        {"BF16", 16},       {"I32", 32},
		{"U32", 32},    {"F32", 32},        {"C64", 64},        {"F64", 64},
		{"I64", 64},    {"U64", 64},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(dtypes); i++)
		for (unsigned extra = 0; extra < 2; extra++) {
			unsigned size = dtypes[i].bits + extra; /* bytes of eight elements */
			char header[128];
			int n = snprintf(header, sizeof(header),
					 "{'a':{'dtype':'%s','shape':[8],'data_offsets':[0,%u]}}",
					 dtypes[i].name, size);

			if (extra)
				refuse(header, (size_t)n, size, SAFETENSORS_SIZE, "by its shape");
			else
				accept(header, (size_t)n, size);
		}
}

static void an_unknown_dtype_is_named(void **state)
{
	(void)state;
	REFUSE("{'a':{'dtype':'C128','shape':[1],'data_offsets':[0,16]}}", 16, DTYPE,
	       "tensor 'a' has dtype 'C128'");
	REFUSE("{'a':{'dtype':'f32','shape':[1],'data_offsets':[0,4]}}", 4, DTYPE, "'f32'");
	REFUSE("{'a':{'dtype':'F32\\u0000','shape':[1],'data_offsets':[0,4]}}", 4, DTYPE,
	       "'F32\\x00'");
	REFUSE("{'a':{'dtype':'','shape':[1],'data_offsets':[0,4]}}", 4, DTYPE, "''");
}

static void elements_fill_whole_bytes(void **state)
{
	(void)state;
	ACCEPT("{'a':{'dtype':'F4','shape':[3,2],'data_offsets':[0,3]}}", 3);
	REFUSE("{'a':{'dtype':'F4','shape':[3],'data_offsets':[0,2]}}", 2, MISALIGNED,
	       "whole bytes");
	ACCEPT("{'a':{'dtype':'F6_E2M3','shape':[4],'data_offsets':[0,3]}}", 3);
	REFUSE("{'a':{'dtype':'F6_E3M2','shape':[5],'data_offsets':[0,4]}}", 4, MISALIGNED,
	       "whole bytes");
}

static void scalars_and_empty_tensors_are_fine(void **state)
{
	(void)state;
	ACCEPT("{'a':{'dtype':'F32','shape':[],'data_offsets':[0,4]}}", 4);
	ACCEPT("{'a':{'dtype':'F32','shape':[0],'data_offsets':[0,0]}}", 0);
	ACCEPT("{'a':{'dtype':'F32','shape':[3,0,5],'data_offsets':[0,0]}}", 0);
	REFUSE("{'a':{'dtype':'F4','shape':[],'data_offsets':[0,1]}}", 1, MISALIGNED, "whole bytes");
}

static void products_are_checked_from_left_to_right(void **state)
{
	(void)state;
	ACCEPT("{'a':{'dtype':'U8','shape':[0,4611686018427387904,4],'data_offsets':[0,0]}}", 0);
	REFUSE("{'a':{'dtype':'U8','shape':[4611686018427387904,4,0],'data_offsets':[0,0]}}", 0,
	       OVERFLOW, "overflows");
	REFUSE("{'a':{'dtype':'U8','shape':[9223372036854775808,4,0],'data_offsets':[0,0]}}", 0,
	       OVERFLOW, "too large");
	/* The elements fit into 64 bits, their bits do not. */
	REFUSE("{'a':{'dtype':'U8','shape':[2305843009213693952],'data_offsets':[0,0]}}", 0,
	       OVERFLOW, "overflows");
}

static void a_shape_has_at_most_32_dimensions(void **state)
{
	(void)state;
#define ONES "1,1,1,1,1,1,1,1"
	ACCEPT("{'a':{'dtype':'U8','shape':[" ONES "," ONES "," ONES "," ONES
	       "],'data_offsets':[0,1]}}",
	       1);
	REFUSE("{'a':{'dtype':'U8','shape':[" ONES "," ONES "," ONES "," ONES
	       ",1],'data_offsets':[0,1]}}",
	       1, LIMIT, "33 dimensions");
#undef ONES
}

static void a_shape_says_how_many_bytes_there_are(void **state)
{
	(void)state;
	ACCEPT("{'a':{'dtype':'F32','shape':[2,3],'data_offsets':[0,24]}}", 24);
	REFUSE("{'a':{'dtype':'F32','shape':[2,3],'data_offsets':[0,23]}}", 23, SIZE, "23 bytes");
	REFUSE("{'a':{'dtype':'F32','shape':[2,3],'data_offsets':[0,25]}}", 25, SIZE,
	       "24 by its shape");
}

/* --- Places ------------------------------------------------------------------------------------- */

static void tensors_follow_each_other_without_holes(void **state)
{
	(void)state;
	ACCEPT("{" U8("a", 0, 2, 2) "," U8("b", 2, 3, 1) "}", 3);
	REFUSE("{" U8("a", 0, 2, 2) "," U8("b", 3, 4, 1) "}", 4, OFFSET,
	       "'b' has data_offsets [3, 4]");
	REFUSE("{" U8("a", 1, 2, 1) "}", 2, OFFSET, "a hole");
	REFUSE("{" U8("a", 0, 2, 2) "," U8("b", 1, 2, 1) "}", 2, OFFSET, "overlap");
	REFUSE("{" U8("a", 0, 2, 2) "," U8("b", 0, 2, 2) "}", 2, OFFSET, "overlap");
	REFUSE("{" U8("a", 0, 1, 1) "," U8("b", 1, 0, 0) "}", 1, OFFSET, "negative size");
}

static void tensors_stand_in_any_order_in_the_header(void **state)
{
	static const char header[] = "{" U8("c", 3, 5, 2) "," U8("e2", 3, 3, 0) "," U8(
		"a", 0, 3, 3) "," U8("e1", 3, 3, 0) "}";
	static const char *const order[] = {"a", "e2", "e1", "c"};
	struct safetensors st;
	struct sentence s;

	(void)state;
	assert_int_equal(parse(header, sizeof(header) - 1, 5, &st, &s), 0);
	assert_int_equal(st.n_tensors, ARRAY_LEN(order));
	for (size_t i = 0; i < ARRAY_LEN(order); i++)
		assert_string_equal(st.tensors[i].name, order[i]);
	assert_int_equal(st.tensors[3].begin, 3);
	assert_int_equal(st.tensors[3].end, 5);
	assert_int_equal(safetensors_shape(&st, &st.tensors[3])[0], 2);
	safetensors_deinit(&st);
}

static void the_last_tensor_ends_with_the_file(void **state)
{
	(void)state;
	ACCEPT("{" U8("a", 0, 4, 4) "}", 4);
	REFUSE("{" U8("a", 0, 4, 4) "}", 3, INCOMPLETE, "cut off");
	REFUSE("{" U8("a", 0, 4, 4) "}", 5, INCOMPLETE, "1 bytes at its end belong to no tensor");
	REFUSE("{}", 1, INCOMPLETE, "belong to no tensor");
	REFUSE("{" U8("a", 0, 4611686018427387904, 4611686018427387904) "}", 4, OVERFLOW,
	       "overflows");
	REFUSE("{" U8("a", 0, 1152921504606846976, 1152921504606846976) "}", 4, INCOMPLETE,
	       "cut off");
}

/* --- Files -------------------------------------------------------------------------------------- */

static int read_bytes(const void *bytes, size_t n, struct sentence *s)
{
	char path[] = "/tmp/weightd-test-XXXXXX";
	int fd = mkstemp(path);
	struct safetensors st = {0};
	struct file f = FILE_INIT;
	int r;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, n), n);
	(void)close(fd);
	r = file_open(path, &f, s);
	assert_int_equal(r, 0);
	r = safetensors_read(&f, &st, NULL, s);
	if (r < 0)
		assert_non_null(strstr(s->text, path));
	else
		assert_int_equal(st.data_offset, 16);
	safetensors_deinit(&st);
	file_deinit(&f);
	(void)unlink(path);
	return r;
}

static void a_refused_file_is_named(void **state)
{
	struct sentence s;

	(void)state;
	assert_int_equal(read_bytes("\x08\0\0\0\0\0\0\0{}      ", 16, &s), 0);
	assert_int_equal(read_bytes("\x08\0\0\0\0\0\0\0{}      x", 17, &s), -EBADMSG);
	assert_int_equal(read_bytes("\x08\0\0\0\0\0\0\0{}", 10, &s), -EBADMSG);
	assert_int_equal(read_bytes("\x08", 1, &s), -EBADMSG);
	assert_int_equal(read_bytes("", 0, &s), -EBADMSG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_has_at_least_eight_bytes),
		cmocka_unit_test(a_header_has_at_most_100_million_bytes),
		cmocka_unit_test(a_header_ends_inside_the_file),
		cmocka_unit_test(a_header_is_one_json_object),
		cmocka_unit_test(white_space_may_stand_around_the_header),
		cmocka_unit_test(a_header_is_utf8),
		cmocka_unit_test(nesting_has_the_limit_of_the_reference),
		cmocka_unit_test(names_stand_once_after_unescaping),
		cmocka_unit_test(names_have_1_to_1024_bytes_without_nul),
		cmocka_unit_test(names_are_kept_as_they_are),
		cmocka_unit_test(names_in_sentences_are_escaped),
		cmocka_unit_test(metadata_is_text_or_null),
		cmocka_unit_test(a_tensor_has_dtype_shape_and_offsets),
		cmocka_unit_test(numbers_are_unsigned_integers),
		cmocka_unit_test(entries_are_alike_in_any_spelling),
		cmocka_unit_test(what_is_nearly_plain_is_refused),
		cmocka_unit_test(a_name_is_plain_to_its_end),
		cmocka_unit_test(jansson_sees_no_tensor_of_a_plain_header),
		cmocka_unit_test(every_dtype_has_its_width),
		cmocka_unit_test(an_unknown_dtype_is_named),
		cmocka_unit_test(elements_fill_whole_bytes),
		cmocka_unit_test(scalars_and_empty_tensors_are_fine),
		cmocka_unit_test(products_are_checked_from_left_to_right),
		cmocka_unit_test(a_shape_has_at_most_32_dimensions),
		cmocka_unit_test(a_shape_says_how_many_bytes_there_are),
		cmocka_unit_test(tensors_follow_each_other_without_holes),
		cmocka_unit_test(tensors_stand_in_any_order_in_the_header),
		cmocka_unit_test(the_last_tensor_ends_with_the_file),
		cmocka_unit_test(a_refused_file_is_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
