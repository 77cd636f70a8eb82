/*
 * Sets of files beside the weights: what they refuse, how they travel, and bundles of a hostile writer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "libclient/image/files.h"

static struct weightd_files *files_new(void)
{
	struct weightd_files *f;

	assert_int_equal(weightd_files_new(&f), 0);
	return f;
}

static void add(struct weightd_files *f, const char *path, const char *text)
{
	assert_int_equal(weightd_files_add(f, path, text, strlen(text)), 0);
}

static void assert_file(const struct weightd_files *f, const char *path, const char *text)
{
	struct weightd_file file = {.size = sizeof(file)};

	assert_int_equal(weightd_files_find(f, path, &file), 0);
	assert_string_equal(file.path, path);
	assert_int_equal(file.n_bytes, strlen(text));
	assert_memory_equal(file.data, text, file.n_bytes);
}

/* A bundle whose JSON is `json`, with its ' as ", before `n` bytes of data. */
static int parse_text(const char *json, size_t n, struct weightd_files **ret, struct sentence *s)
{
	size_t size = strlen(json);
	cleanup(freep) char *image = calloc(1, 8 + size + n);
	cleanup(fd_closep) int fd = -1;

	assert_non_null(image);
	memcpy(image, &(uint64_t){size}, 8);
	for (size_t i = 0; i < size; i++)
		image[8 + i] = (char)(json[i] == '\'' ? '"' : json[i]);
	assert_int_equal(fd_sealed_copy("files", image, 8 + size + n, &fd), 0);
	return files_map(fd, ret, s);
}

static void assert_refused(const char *json, size_t n, const char *part)
{
	struct weightd_files *f = NULL;
	struct sentence s = {0};

	assert_int_equal(parse_text(json, n, &f, &s), -EBADMSG);
	assert_null(f);
	if (!strstr(s.text, part))
		fail_msg("'%s' is not in '%s'", part, s.text);
}

static void a_set_travels_and_comes_back_equal(void **state)
{
	cleanup(weightd_files_freep) struct weightd_files *f = files_new(), *g = NULL;
	const void *image, *again;
	uint64_t size, size_again;

	(void)state;
	add(f, "tokenizer/vocab.txt", "a\nb\n");
	add(f, "config.json", "{}");
	add(f, "empty.txt", "");
	assert_int_equal(weightd_files_set_attribute(f, "dtype", "F32"), 0);
	assert_int_equal(weightd_files_set_attribute(f, "architecture", "Llama \"x\"\n\xc3\xa9"), 0);
	image = weightd_files_image(f, &size);
	assert_non_null(image);
	assert_int_equal(weightd_files_parse(image, size, &g), 0);
	assert_int_equal(weightd_files_count(g), 3);
	assert_file(g, "config.json", "{}");
	assert_file(g, "empty.txt", "");
	assert_file(g, "tokenizer/vocab.txt", "a\nb\n");
	assert_int_equal(weightd_files_n_attributes(g), 2);
	assert_string_equal(weightd_files_value(g, "architecture"), "Llama \"x\"\n\xc3\xa9");
	again = weightd_files_image(g, &size_again);
	assert_int_equal(size_again, size);
	assert_memory_equal(again, image, size);
}

static void a_changed_set_is_written_anew(void **state)
{
	cleanup(weightd_files_freep) struct weightd_files *f = files_new(), *g = NULL, *h = NULL;
	const void *image;
	uint64_t size;

	(void)state;
	add(f, "a.json", "1");
	image = weightd_files_image(f, &size);
	assert_int_equal(weightd_files_parse(image, size, &g), 0);
	add(g, "b.json", "2");
	assert_int_equal(weightd_files_set_attribute(g, "x", "y"), 0);
	assert_int_equal(weightd_files_set_attribute(g, "x", NULL), 0);
	image = weightd_files_image(g, &size);
	assert_int_equal(weightd_files_parse(image, size, &h), 0);
	assert_file(h, "a.json", "1");
	assert_file(h, "b.json", "2");
	assert_null(weightd_files_value(h, "x"));
}

static void an_empty_set_is_a_bundle(void **state)
{
	cleanup(weightd_files_freep) struct weightd_files *f = files_new(), *g = NULL;
	const void *image;
	uint64_t size;

	(void)state;
	image = weightd_files_image(f, &size);
	assert_int_equal(weightd_files_parse(image, size, &g), 0);
	assert_int_equal(weightd_files_count(g), 0);
	assert_int_equal(weightd_files_n_attributes(g), 0);
}

static void files_are_in_the_order_of_their_paths(void **state)
{
	static const char *const paths[] = {"b", "a-b", "a/b", "B", "a/a"};
	static const char *const sorted[] = {"B", "a-b", "a/a", "a/b", "b"};
	cleanup(weightd_files_freep) struct weightd_files *f = files_new();
	struct weightd_file file = {.size = sizeof(file)};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(paths); i++)
		add(f, paths[i], paths[i]);
	for (size_t i = 0; i < ARRAY_LEN(sorted); i++) {
		assert_int_equal(weightd_files_file(f, i, &file), 0);
		assert_string_equal(file.path, sorted[i]);
		assert_file(f, sorted[i], sorted[i]);
	}
	assert_int_equal(weightd_files_file(f, ARRAY_LEN(sorted), &file), -ENOENT);
	assert_int_equal(weightd_files_find(f, "a", &file), -ENOENT);
}

static void paths_that_leave_the_directory_are_refused(void **state)
{
	static const char *const paths[] = {
		"",   "/etc/passwd", "../x", "a/../b", "a/..", "./a",  "a//",          "a//b",
		"a/", "..",          ".",    "a\nb",   "\xff", "\x7f", "__metadata__",
	};
	cleanup(weightd_files_freep) struct weightd_files *f = files_new();

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		if (weightd_files_add(f, paths[i], "x", 1) != -EINVAL)
			fail_msg("'%s' was not refused", paths[i]);
		assert_non_null(strstr(weightd_files_error(f), "cannot be the path"));
	}
	assert_int_equal(weightd_files_set_attribute(f, "weights", "../x"), -EINVAL);
	add(f, "..a", "");
	add(f, ".gitattributes", "");
	assert_int_equal(weightd_files_count(f), 2);
}

static void a_path_is_no_folder_of_another(void **state)
{
	cleanup(weightd_files_freep) struct weightd_files *f = files_new();

	(void)state;
	add(f, "a/b", "");
	add(f, "a-", "");
	assert_int_equal(weightd_files_add(f, "a/b", "", 0), -EEXIST);
	assert_non_null(strstr(weightd_files_error(f), "'a/b' is there twice"));
	assert_int_equal(weightd_files_add(f, "a", "", 0), -EEXIST);
	assert_int_equal(weightd_files_add(f, "a/b/c/d", "", 0), -EEXIST);
	assert_non_null(strstr(weightd_files_error(f), "'a/b/c/d' and 'a/b' cannot both be files"));
	add(f, "a/bc", "");
}

static void no_file_has_the_path_of_the_weights(void **state)
{
	cleanup(weightd_files_freep) struct weightd_files *f = files_new();

	(void)state;
	add(f, "model.safetensors", "");
	assert_null(weightd_files_image(f, NULL));
	assert_non_null(strstr(weightd_files_error(f), "set the attribute 'weights'"));
	assert_int_equal(weightd_files_set_attribute(f, "weights", "model.safetensors/x"), 0);
	assert_null(weightd_files_image(f, NULL));
	assert_int_equal(weightd_files_set_attribute(f, "weights", "unet/x.safetensors"), 0);
	assert_non_null(weightd_files_image(f, NULL));
}

static void sets_have_limits(void **state)
{
	cleanup(weightd_files_freep) struct weightd_files *f = files_new(), *g = files_new();
	cleanup(freep) char *most = calloc(1, WEIGHTD_FILES_MAX);
	char text[32], longest[WEIGHTD_ATTRIBUTE_VALUE_MAX + 2];

	(void)state;
	assert_non_null(most);
	assert_int_equal(weightd_files_add(f, "most", most, WEIGHTD_FILES_MAX), 0);
	assert_int_equal(weightd_files_add(f, "more", "x", 1), -EFBIG);
	assert_non_null(strstr(weightd_files_error(f), "'more' of 1 bytes"));
	assert_int_equal(weightd_files_add(f, "huge", "x", UINT64_MAX), -EFBIG);
	assert_non_null(weightd_files_image(f, NULL));
	for (int i = 0; i < WEIGHTD_FILES_COUNT_MAX; i++) {
		(void)snprintf(text, sizeof(text), "%d", i);
		add(g, text, "");
	}
	assert_int_equal(weightd_files_add(g, "one-more", "", 0), -EFBIG);
	for (int i = 0; i < WEIGHTD_ATTRIBUTES_MAX; i++) {
		(void)snprintf(text, sizeof(text), "%d", i);
		assert_int_equal(weightd_files_set_attribute(g, text, text), 0);
	}
	assert_int_equal(weightd_files_set_attribute(g, "one-more", ""), -EFBIG);
	assert_int_equal(weightd_files_set_attribute(g, "7", ""), 0);
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	assert_int_equal(weightd_files_set_attribute(g, "7", longest), -EINVAL);
	assert_int_equal(weightd_files_set_attribute(g, "a=b", "x"), -EINVAL);
	assert_int_equal(weightd_files_set_attribute(g, "", "x"), -EINVAL);
	assert_int_equal(weightd_files_set_attribute(g, "a", "\xff"), -EINVAL);
}

static void hostile_bundles_are_refused_by_the_reader(void **state)
{
	(void)state;
	assert_refused("{'../x':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", 1, "'../x'");
	assert_refused("{'/x':{'dtype':'U8','shape':[0],'data_offsets':[0,0]}}", 0, "'/x'");
	assert_refused("{'a':{'dtype':'U8','shape':[0],'data_offsets':[0,0]},"
		       "'a/b':{'dtype':'U8','shape':[0],'data_offsets':[0,0]}}",
		       0, "a folder of the other");
	assert_refused("{'a':{'dtype':'U8','shape':[0],'data_offsets':[0,0]},"
		       "'a':{'dtype':'U8','shape':[0],'data_offsets':[0,0]}}",
		       0, "twice");
	assert_refused("{'a':{'dtype':'F32','shape':[1],'data_offsets':[0,4]}}", 4, "row of bytes");
	assert_refused("{'a':{'dtype':'U8','shape':[1,1],'data_offsets':[0,1]}}", 1, "row of bytes");
	assert_refused("{'a':{'dtype':'U8','shape':[9],'data_offsets':[0,9]}}", 1, "cut off");
	assert_refused("{'a':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", 2, "belong to no");
	assert_refused("{'model.safetensors':{'dtype':'U8','shape':[0],'data_offsets':[0,0]}}", 0,
		       "not free");
	assert_refused("{'__metadata__':{'weights':'../../x'}}", 0, "'../../x'");
	assert_refused("{'__metadata__':{'a b':'x'}}", 0, "'a b'");
	assert_refused("{'__metadata__':{'a':'x\\u0000y'}}", 0, "NUL");
	assert_refused("{'__metadata__':{'a':1}}", 0, "other than text");
	assert_refused("[]", 0, "not an object");
	assert_refused("", 0, "");
}

static void a_descriptor_without_seals_is_refused(void **state)
{
	struct weightd_files *f = NULL;
	struct sentence s = {0};
	int fds[2];

	(void)state;
	assert_int_equal(pipe(fds), 0);
	assert_int_equal(files_map(fds[0], &f, &s), -EBADMSG);
	assert_non_null(strstr(s.text, "no sealed memfd"));
	(void)close(fds[0]);
	(void)close(fds[1]);
}

static void a_memfd_that_can_change_is_refused(void **state)
{
	cleanup(fd_closep) int fd = -1;
	cleanup(weightd_files_freep) struct weightd_files *f = NULL;
	struct sentence s = {0};

	(void)state;
	assert_int_equal(fd_memfd("files", 10, &fd), 0);
	assert_int_equal(pwrite(fd, "\2\0\0\0\0\0\0\0{}", 10, 0), 10);
	assert_int_equal(files_map(fd, &f, &s), -EBADMSG);
	assert_non_null(strstr(s.text, "sealed"));
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW), 0);
	assert_int_equal(files_map(fd, &f, &s), 0);
}

static void more_than_the_most_is_refused_by_the_reader(void **state)
{
	char json[128];
	struct weightd_files *f = NULL;
	struct sentence s = {0};

	(void)state;
	(void)snprintf(json, sizeof(json), "{'a':{'dtype':'U8','shape':[%d],'data_offsets':[0,%d]}}",
		       WEIGHTD_FILES_MAX + 1, WEIGHTD_FILES_MAX + 1);
	assert_refused(json, WEIGHTD_FILES_MAX + 1, "is the most");
	(void)snprintf(json, sizeof(json), "{'a':{'dtype':'U8','shape':[%d],'data_offsets':[0,%d]}}",
		       WEIGHTD_FILES_MAX, WEIGHTD_FILES_MAX);
	assert_int_equal(parse_text(json, WEIGHTD_FILES_MAX, &f, &s), 0);
	weightd_files_free(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_set_travels_and_comes_back_equal),
		cmocka_unit_test(a_changed_set_is_written_anew),
		cmocka_unit_test(an_empty_set_is_a_bundle),
		cmocka_unit_test(files_are_in_the_order_of_their_paths),
		cmocka_unit_test(paths_that_leave_the_directory_are_refused),
		cmocka_unit_test(a_path_is_no_folder_of_another),
		cmocka_unit_test(no_file_has_the_path_of_the_weights),
		cmocka_unit_test(sets_have_limits),
		cmocka_unit_test(hostile_bundles_are_refused_by_the_reader),
		cmocka_unit_test(a_memfd_that_can_change_is_refused),
		cmocka_unit_test(a_descriptor_without_seals_is_refused),
		cmocka_unit_test(more_than_the_most_is_refused_by_the_reader),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
