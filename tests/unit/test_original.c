/* The form of a plan in which a version is the file: its layout and its header, made from small files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/num.h"
#include "libclient/load/plan.h"

static char dir[64];

static int setup(void **state)
{
	(void)state;
	(void)strcpy(dir, "/tmp/weightd-original-XXXXXX");
	return mkdtemp(dir) && chdir(dir) == 0 ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static int teardown(void **state)
{
	(void)state;
	return chdir("/") == 0 ? nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS) : -1;
}

static void write_file(const char *path, const void *start, size_t n, size_t n_zeros)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_int_equal(fwrite(start, 1, n, f), n);
	for (size_t i = 0; i < n_zeros; i++)
		assert_int_not_equal(fputc(0, f), EOF);
	assert_int_equal(fclose(f), 0);
}

/* A safetensors file; returns the size of its header. Writes ' as ". */
static size_t write_safetensors(const char *path, const char *text, size_t data_size)
{
	char start[1024];
	uint64_t n = strlen(text);

	assert_true(n + 8 <= sizeof(start));
	memcpy(start, &n, 8); /* little endian, as everything that runs weightd */
	for (size_t i = 0; i < n; i++)
		start[8 + i] = text[i] == '\'' ? '"' : text[i];
	write_file(path, start, n + 8, data_size);
	return n + 8;
}

static void plan_ok(struct plan *plan, const char *const *paths, size_t n)
{
	struct progress progress = {0};
	struct sentence s;

	if (plan_make(paths, n, &progress, plan, &s) < 0)
		fail_msg("refused: %s", s.text);
}

#define PATHS(...)                                                                                 \
	((const char *const[]){__VA_ARGS__}), ARRAY_LEN(((const char *const[]){__VA_ARGS__}))

#define U8(name, from, to, size)                                                                   \
	"'" name "':{'dtype':'U8','shape':[" #size "],'data_offsets':[" #from "," #to "]}"

/* "a@0 b@3": names and offsets of the layout. */
static void check_places(const struct weightd_layout *l, const char *want)
{
	char is[256] = "", *p = is;
	struct weightd_tensor t = {.size = sizeof(t)};

	for (uint32_t i = 0; weightd_layout_tensor(l, i, &t) == 0; i++)
		p += snprintf(p, (size_t)(is + sizeof(is) - p), "%s%s@%u", p == is ? "" : " ",
			      t.name, (unsigned)t.offset);
	assert_string_equal(is, want);
}

static void check_header(const struct plan *plan, size_t size)
{
	char *there = malloc(size);

	assert_non_null(there);
	assert_int_equal(plan->original.header_size, size);
	assert_int_equal(pread(plan->files[0].file.fd, there, size, 0), size);
	assert_memory_equal(plan->original.header, there, size);
	free(there);
}

static void one_file_has_its_own_layout_and_header(void **state)
{
	static const char text[] =
		"{'__metadata__':{'format':'pt'}," U8("b", 3, 8, 5) "," U8("a", 0, 3, 3) "} ";
	struct plan plan;
	size_t size;

	(void)state;
	size = write_safetensors("m.safetensors", text, 8);
	plan_ok(&plan, PATHS("m.safetensors"));
	check_places(plan.layout, "a@0 b@256");
	check_places(plan.original.layout, "a@0 b@3");
	assert_int_equal(weightd_layout_n_bytes(plan.original.layout), 8);
	check_header(&plan, size);
	plan_deinit(&plan);
}

static void several_files_have_none(void **state)
{
	struct plan plan;

	(void)state;
	(void)write_safetensors("m", "{" U8("a", 0, 3, 3) "}", 3);
	(void)write_safetensors("n", "{" U8("b", 0, 3, 3) "}", 3);
	plan_ok(&plan, PATHS("m", "n"));
	assert_null(plan.original.layout);
	plan_deinit(&plan);
}

static void a_file_that_an_index_takes_apart_has_none(void **state)
{
	static const char whole[] = "{\"weight_map\":{\"a\":\"m\",\"b\":\"m\"}}",
			  part[] = "{\"weight_map\":{\"b\":\"m\"}}";
	struct plan plan;

	(void)state;
	(void)write_safetensors("m", "{" U8("a", 0, 3, 3) "," U8("b", 3, 8, 5) "}", 8);
	write_file("x.safetensors.index.json", whole, sizeof(whole) - 1, 0);
	plan_ok(&plan, PATHS("x.safetensors.index.json"));
	check_places(plan.original.layout, "a@0 b@3");
	plan_deinit(&plan);
	write_file("x.safetensors.index.json", part, sizeof(part) - 1, 0);
	plan_ok(&plan, PATHS("x.safetensors.index.json"));
	check_places(plan.layout, "b@0");
	assert_null(plan.original.layout);
	plan_deinit(&plan);
}

/* Two tensors, Q4_0 [2, 32] and F32 [1], at the alignment of 32 that nothing changes. */
static size_t write_gguf(const char *path, size_t data_size)
{
	static const uint8_t start[] = "GGUF\3\0\0\0"
				       "\2\0\0\0\0\0\0\0"
				       "\0\0\0\0\0\0\0\0"
				       "\1\0\0\0\0\0\0\0a"
				       "\2\0\0\0"
				       "\x20\0\0\0\0\0\0\0"
				       "\2\0\0\0\0\0\0\0"
				       "\2\0\0\0"
				       "\0\0\0\0\0\0\0\0"
				       "\1\0\0\0\0\0\0\0b"
				       "\1\0\0\0"
				       "\1\0\0\0\0\0\0\0"
				       "\0\0\0\0"
				       "\x40\0\0\0\0\0\0\0";
	size_t n = sizeof(start) - 1, padding = -n % 32;

	write_file(path, start, n, padding + data_size);
	return n + padding;
}

static void a_gguf_file_keeps_its_places(void **state)
{
	static const size_t sizes[] = {68, 96};
	struct plan plan;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		size_t size = write_gguf("m.gguf", sizes[i]);

		plan_ok(&plan, PATHS("m.gguf"));
		check_places(plan.layout, "a@0 b@256");
		check_places(plan.original.layout, "a@0 b@64");
		assert_int_equal(weightd_layout_n_bytes(plan.original.layout), sizes[i]);
		assert_int_equal(plan.n_bytes, 36 + 4);
		check_header(&plan, size);
		plan_deinit(&plan);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(one_file_has_its_own_layout_and_header),
		TEST(several_files_have_none),
		TEST(a_file_that_an_index_takes_apart_has_none),
		TEST(a_gguf_file_keeps_its_places),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
