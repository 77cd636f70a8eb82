/* Indexes: what is read from one and what is refused. Written with ' for " to be readable. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "libclient/load/folder/index.h"

static int parse(const char *text, size_t n, struct index *ix, struct sentence *s)
{
	char *copy = malloc(n ? n : 1); /* ASan sees a read past the end */
	int r;

	assert_non_null(copy);
	for (size_t i = 0; i < n; i++)
		copy[i] = text[i] == '\'' ? '"' : text[i];
	(void)sentence_set(s, 0, "%s", "");
	r = index_parse(copy, n, ix, s);
	free(copy);
	return r;
}

#define PARSE(text, ix) parse_ok(text, sizeof(text) - 1, ix)

static void parse_ok(const char *text, size_t n, struct index *ix)
{
	struct sentence s;

	if (parse(text, n, ix, &s) < 0)
		fail_msg("refused (%s): %s", s.text, text);
}

static void accept(const char *text, size_t n)
{
	struct index ix = {0};

	parse_ok(text, n, &ix);
	index_deinit(&ix);
}

static void refuse(const char *text, size_t n, const char *phrase)
{
	struct index ix = {0};
	struct sentence s;
	int r = parse(text, n, &ix, &s);

	if (r == 0)
		index_deinit(&ix);
	if (r != -EBADMSG || !strstr(s.text, phrase))
		fail_msg("wanted '%s', got %d and '%s': %s", phrase, r, s.text, text);
}

#define ACCEPT(text) accept(text, sizeof(text) - 1)
#define REFUSE(text, phrase) refuse(text, sizeof(text) - 1, phrase)

static const char *file_of(const struct index *ix, const char *tensor)
{
	uint32_t entry;

	if (!names_find(&ix->tensors, tensor, strlen(tensor), &entry))
		return NULL;
	assert_string_equal(ix->entries[entry].tensor, tensor);
	return ix->files[ix->entries[entry].file];
}

static void every_tensor_has_its_file(void **state)
{
	struct index ix;

	(void)state;
	PARSE("{'metadata':{'total_size':12},'weight_map':{'a':'2.safetensors','b':'1.safetensors',"
	      "'c':'2.safetensors'}}",
	      &ix);
	assert_int_equal(ix.n_entries, 3);
	assert_string_equal(file_of(&ix, "a"), "2.safetensors");
	assert_string_equal(file_of(&ix, "b"), "1.safetensors");
	assert_string_equal(file_of(&ix, "c"), "2.safetensors");
	assert_null(file_of(&ix, "d"));
	index_deinit(&ix);
}

static void files_are_sorted_and_stand_once(void **state)
{
	struct index ix;

	(void)state;
	PARSE("{'weight_map':{'a':'3','b':'1','c':'2','d':'1','e':'3','f':'\\u0031'}}", &ix);
	assert_int_equal(ix.n_files, 3);
	assert_string_equal(ix.files[0], "1");
	assert_string_equal(ix.files[1], "2");
	assert_string_equal(ix.files[2], "3");
	assert_string_equal(file_of(&ix, "f"), "1");
	index_deinit(&ix);
}

static void metadata_is_not_relied_on(void **state)
{
	(void)state;
	ACCEPT("{'weight_map':{'a':'f'}}");
	ACCEPT("{'metadata':null,'weight_map':{'a':'f'}}");
	ACCEPT("{'metadata':{'total_size':'12'},'weight_map':{'a':'f'}}");
	ACCEPT("{'metadata':{'total_size':1.5e9},'weight_map':{'a':'f'},'other':[1,{}]}");
	ACCEPT("{'metadata':{'total_size':-1},'weight_map':{'a':'f'}}");
	ACCEPT("{'metadata':{'loss':1.5e-03},'weight_map':{'a':'f'}}");
}

static void an_index_is_one_json_object(void **state)
{
	(void)state;
	ACCEPT(" \n{'weight_map':{'a':'f'}}\n");
	REFUSE("", "not an object");
	REFUSE("[]", "not an object");
	REFUSE("{'weight_map':{'a':'f'}", "missing");
	REFUSE("{'weight_map':{'a':'f'}}x", "after the end");
	REFUSE("{'weight_map':{'a':'f'},}", "key");
	REFUSE("{'weight_map':{'a':'f',}}", "key");
	REFUSE("{'weight_map':{'a' 'f'}}", "':'");
	REFUSE("{'metadata':tru,'weight_map':{'a':'f'}}", "not well formed");
	REFUSE("{'weight_map':{'a':'\xff'}}", "UTF-8");
	REFUSE("{'weight_map':{'\xff':'f'}}", "UTF-8");
}

static void an_index_has_one_weight_map(void **state)
{
	(void)state;
	REFUSE("{}", "no weight_map");
	REFUSE("{'metadata':{}}", "no weight_map");
	REFUSE("{'weight_map':[]}", "no weight_map");
	REFUSE("{'weight_map':null}", "no weight_map");
	REFUSE("{'weight_map':{}}", "empty");
	REFUSE("{'weight_map':{'a':'f'},'weight_map':{'a':'f'}}", "two weight_maps");
	REFUSE("{'weight_map':{'a':'f'},'weight\\u005fmap':{'a':'f'}}", "two weight_maps");
}

static void a_tensor_is_mapped_once_after_unescaping(void **state)
{
	(void)state;
	ACCEPT("{'weight_map':{'a':'f','A':'f'}}");
	REFUSE("{'weight_map':{'a':'f','a':'f'}}", "maps tensor 'a' twice");
	REFUSE("{'weight_map':{'a':'f','\\u0061':'g'}}", "maps tensor 'a' twice");
}

static void a_file_is_in_the_folder_of_the_index_or_below(void **state)
{
	char text[512];
	int n;

	(void)state;
	ACCEPT("{'weight_map':{'a':'..f'}}");
	ACCEPT("{'weight_map':{'a':'model 1\xc3\xa4.safetensors'}}");
	ACCEPT("{'weight_map':{'a':'d/f'}}");
	ACCEPT("{'weight_map':{'a':'d\\/...\\/f'}}");
	REFUSE("{'weight_map':{'a':''}}", "not a file in the folder");
	REFUSE("{'weight_map':{'a':'.'}}", "not a file in the folder");
	REFUSE("{'weight_map':{'a':'./'}}", "not a file in the folder");
	REFUSE("{'weight_map':{'a':'..'}}", "not a file in the folder");
	REFUSE("{'weight_map':{'a':'d/'}}", "'d/'");
	REFUSE("{'weight_map':{'a':'/etc/passwd'}}", "'/etc/passwd'");
	REFUSE("{'weight_map':{'a':'//etc/passwd'}}", "'//etc/passwd'");
	REFUSE("{'weight_map':{'a':'../f'}}", "'../f'");
	REFUSE("{'weight_map':{'a':'d/../f'}}", "'d/../f'");
	REFUSE("{'weight_map':{'a':'d/..'}}", "'d/..'");
	REFUSE("{'weight_map':{'a':'f\\u0000'}}", "'f\\x00'");
	REFUSE("{'weight_map':{'a':1}}", "maps tensor 'a' to something");
	REFUSE("{'weight_map':{'a':['f']}}", "maps tensor 'a' to something");
	REFUSE("{'weight_map':{'a':null}}", "maps tensor 'a' to something");
	for (int size = 255; size <= 256; size++) {
		n = snprintf(text, sizeof(text), "{'weight_map':{'a':'d/%0*d'}}", size, 0);
		if (size <= 255)
			accept(text, (size_t)n);
		else
			refuse(text, (size_t)n, "not a file in the folder");
	}
}

static void spellings_of_one_path_are_one_file(void **state)
{
	struct index ix;

	(void)state;
	PARSE("{'weight_map':{'a':'d/f','b':'./d/f','c':'d//f','e':'d/./f','g':'f','h':'./f'}}",
	      &ix);
	assert_int_equal(ix.n_files, 2);
	assert_string_equal(ix.files[0], "d/f");
	assert_string_equal(ix.files[1], "f");
	assert_string_equal(file_of(&ix, "e"), "d/f");
	assert_string_equal(file_of(&ix, "h"), "f");
	index_deinit(&ix);
}

static void sentences_escape_what_they_quote(void **state)
{
	(void)state;
	REFUSE("{'weight_map':{'\\u001b[2J':1}}", "'\\x1b[2J'");
	REFUSE("{'weight_map':{'a':'\\u001b/'}}", "'\\x1b/'");
}

static void thousands_of_tensors_keep_their_files(void **state)
{
	const unsigned n = 20000;
	size_t size = 64 + (size_t)n * 32;
	char *text = malloc(size), *p = text;
	struct index ix;

	(void)state;
	assert_non_null(text);
	p = stpcpy(p, "{'weight_map':{");
	for (unsigned i = 0; i < n; i++)
		p += snprintf(p, 32, "%s't%u':'f%u'", i ? "," : "", i, i % 97);
	p = stpcpy(p, "}}");
	parse_ok(text, (size_t)(p - text), &ix);
	assert_int_equal(ix.n_entries, n);
	assert_int_equal(ix.n_files, 97);
	for (unsigned i = 0; i < n; i++) {
		char tensor[16], file[16];

		(void)snprintf(tensor, sizeof(tensor), "t%u", i);
		(void)snprintf(file, sizeof(file), "f%u", i % 97);
		assert_string_equal(file_of(&ix, tensor), file);
	}
	index_deinit(&ix);
	free(text);
}

/* --- Work --------------------------------------------------------------------------------------- */

static size_t n_allocations;

static void *count_allocation(size_t size)
{
	n_allocations++;
	return malloc(size);
}

static size_t allocations_of(size_t n)
{
	char *text = malloc(64 + n * 64), *to = text;
	struct index ix = {0};

	assert_non_null(text);
	to = stpcpy(to, "{'metadata':{'total_size':8},'weight_map':{'a':'a.safetensors'");
	for (size_t i = 1; i < n; i++)
		to += sprintf(to, ", 'layers.%zu': '%zu.safetensors'", i, i % 7);
	to = stpcpy(to, "}}");
	n_allocations = 0;
	parse_ok(text, (size_t)(to - text), &ix);
	assert_int_equal(ix.n_entries, n);
	index_deinit(&ix);
	free(text);
	return n_allocations;
}

static void jansson_sees_no_plain_entry(void **state)
{
	(void)state;
	json_set_alloc_funcs(count_allocation, free);
	assert_int_equal(allocations_of(1000), allocations_of(1));
	json_set_alloc_funcs(malloc, free);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_tensor_has_its_file),
		cmocka_unit_test(files_are_sorted_and_stand_once),
		cmocka_unit_test(metadata_is_not_relied_on),
		cmocka_unit_test(an_index_is_one_json_object),
		cmocka_unit_test(an_index_has_one_weight_map),
		cmocka_unit_test(a_tensor_is_mapped_once_after_unescaping),
		cmocka_unit_test(a_file_is_in_the_folder_of_the_index_or_below),
		cmocka_unit_test(spellings_of_one_path_are_one_file),
		cmocka_unit_test(sentences_escape_what_they_quote),
		cmocka_unit_test(thousands_of_tensors_keep_their_files),
		cmocka_unit_test(jansson_sees_no_plain_entry),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
