/*
 * Plans, made in a temporary directory from small files. Every file holds its own letter, so that it
 * shows which file a piece was taken from.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/num.h"
#include "libclient/image/unit.h"
#include "libclient/load/plan.h"

#define U8(name, from, to, size)                                                                   \
	"'" name "':{'dtype':'U8','shape':[" #size "],'data_offsets':[" #from "," #to "]}"

static char dir[64];

static int setup(void **state)
{
	(void)state;
	(void)strcpy(dir, "/tmp/weightd-plan-XXXXXX");
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

/* Writes text with its ' turned into ". */
static void write_text(FILE *f, const char *text)
{
	for (; *text; text++)
		assert_int_not_equal(fputc(*text == '\'' ? '"' : *text, f), EOF);
}

static void write_index(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	write_text(f, text);
	assert_int_equal(fclose(f), 0);
}

/* A safetensors file with `letter` `size` times as its data. */
static void write_file(const char *path, const char *header, size_t size, char letter)
{
	FILE *f = fopen(path, "w");
	uint64_t n = strlen(header);

	assert_non_null(f);
	assert_int_equal(fwrite(&n, 1, 8, f), 8);
	write_text(f, header);
	for (size_t i = 0; i < size; i++)
		assert_int_not_equal(fputc(letter, f), EOF);
	assert_int_equal(fclose(f), 0);
}

static unsigned count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	(void)closedir(d);
	return n;
}

#define PATHS(...)                                                                                 \
	((const char *const[]){__VA_ARGS__}), ARRAY_LEN(((const char *const[]){__VA_ARGS__}))

/* The last note of the plan. */
static char noted[SENTENCE_MAX];

static void note(void *userdata, const char *text)
{
	(void)userdata;
	(void)snprintf(noted, sizeof(noted), "%s", text);
}

static void plan_ok(struct plan *plan, const char *const *paths, size_t n)
{
	struct progress progress = {.note = note};
	struct sentence s;

	noted[0] = '\0';

	if (plan_make(paths, n, &progress, plan, &s) < 0)
		fail_msg("refused: %s", s.text);
}

/* Refuses with this code and every one of the phrases, and leaves no descriptor open. */
static void refuse(int code, const char *phrase, const char *phrase2, const char *const *paths,
		   size_t n)
{
	unsigned fds = count_fds();
	struct progress progress = {0};
	struct plan plan = {0};
	struct sentence s = {0};
	int r = plan_make(paths, n, &progress, &plan, &s);

	if (r == 0)
		plan_deinit(&plan);
	if (r != code || !strstr(s.text, phrase) || (phrase2 && !strstr(s.text, phrase2)))
		fail_msg("wanted %d, '%s' and '%s', got %d and '%s'", code, phrase, phrase2, r,
			 s.text);
	assert_int_equal(count_fds(), fds);
}

/* The names of all tensors, each with the letter of the file it comes from: "a1 b1 c2". */
static void check_tensors(const struct plan *plan, const char *want)
{
	char is[256] = "", *p = is;
	struct weightd_tensor t = {.size = sizeof(t)};

	for (uint32_t i = 0; weightd_layout_tensor(plan->layout, i, &t) == 0; i++) {
		const struct plan_piece *piece = &plan->pieces[plan_find_piece(plan, t.offset)];
		char letter;

		assert_true(t.offset >= piece->dest);
		assert_true(t.offset + t.n_bytes <= piece->dest + piece->size);
		assert_int_equal(pread(plan->files[piece->file].file.fd, &letter, 1,
				       (off_t)(piece->offset + t.offset - piece->dest)),
				 1);
		p += snprintf(p, (size_t)(is + sizeof(is) - p), "%s%s%c", p == is ? "" : " ",
			      t.name, letter);
	}
	assert_string_equal(is, want);
}

static void check(const char *want, const char *const *paths, size_t n)
{
	struct plan plan;

	plan_ok(&plan, paths, n);
	check_tensors(&plan, want);
	plan_deinit(&plan);
}

/* --- Files -------------------------------------------------------------------------------------- */

static void tensors_keep_the_order_of_the_file(void **state)
{
	(void)state;
	write_file("m.safetensors",
		   "{" U8("z", 0, 3, 3) "," U8("b", 4, 6, 2) "," U8("a", 3, 4, 1) "}", 6, '1');
	check("z1 a1 b1", PATHS("m.safetensors"));
}

static void a_file_needs_no_suffix(void **state)
{
	(void)state;
	write_file("blob", "{" U8("a", 0, 1, 1) "}", 1, '1');
	check("a1", PATHS("blob"));
}

static void pieces_say_where_bytes_come_from_and_go(void **state)
{
	static const char header[] = "{" U8("a", 0, 3, 3) "," U8("b", 3, 5, 2) "}";
	struct plan plan;

	(void)state;
	write_file("m.safetensors", header, 5, '1');
	plan_ok(&plan, PATHS("m.safetensors"));
	assert_int_equal(plan.n_bytes, 5);
	assert_int_equal(plan.n_pieces, 2);
	assert_int_equal(plan.pieces[0].dest, 0);
	assert_int_equal(plan.pieces[0].offset, 8 + sizeof(header) - 1);
	assert_int_equal(plan.pieces[0].size, 3);
	assert_int_equal(plan.pieces[1].dest, 256);
	assert_int_equal(plan.pieces[1].offset, 8 + sizeof(header) - 1 + 3);
	assert_int_equal(plan.pieces[1].size, 2);
	assert_int_equal(plan_find_piece(&plan, 0), 0);
	assert_int_equal(plan_find_piece(&plan, 2), 0);
	assert_int_equal(plan_find_piece(&plan, 3), 1);
	assert_int_equal(plan_find_piece(&plan, 257), 1);
	assert_int_equal(plan_find_piece(&plan, 258), 2);
	plan_deinit(&plan);
}

static void what_is_side_by_side_in_both_is_one_piece(void **state)
{
	struct plan plan;

	(void)state;
	write_file("m.safetensors",
		   "{" U8("a", 0, 512, 512) "," U8("b", 512, 768, 256) "," U8("c", 768, 769, 1) "}",
		   769, '1');
	plan_ok(&plan, PATHS("m.safetensors"));
	assert_int_equal(plan.n_pieces, 1);
	assert_int_equal(plan.pieces[0].size, 769);
	check_tensors(&plan, "a1 b1 c1");
	plan_deinit(&plan);
}

static void empty_tensors_have_no_bytes_to_copy(void **state)
{
	struct plan plan;

	(void)state;
	write_file("m.safetensors",
		   "{" U8("a", 0, 0, 0) "," U8("b", 0, 1, 1) "," U8("c", 1, 1, 0) "}", 1, '1');
	plan_ok(&plan, PATHS("m.safetensors"));
	assert_int_equal(weightd_layout_n_tensors(plan.layout), 3);
	assert_int_equal(plan.n_pieces, 1);
	plan_deinit(&plan);
}

static void several_files_keep_the_order_they_are_named_in(void **state)
{
	(void)state;
	write_file("m1.safetensors", "{" U8("a", 0, 1, 1) "}", 1, '1');
	write_file("m2.safetensors", "{" U8("b", 0, 1, 1) "}", 1, '2');
	check("b2 a1", PATHS("m2.safetensors", "m1.safetensors"));
}

static void one_name_in_two_files_is_refused_naming_both(void **state)
{
	(void)state;
	write_file("m1.safetensors", "{" U8("a", 0, 1, 1) "}", 1, '1');
	write_file("m2.safetensors", "{" U8("b", 0, 1, 1) "}", 1, '2');
	write_file("m3.safetensors", "{" U8("c", 0, 1, 1) "," U8("b", 1, 2, 1) "}", 2, '3');
	refuse(-EBADMSG, "tensor 'b' is in both 'm2.safetensors' and 'm3.safetensors'", NULL,
	       PATHS("m1.safetensors", "m2.safetensors", "m3.safetensors"));
	refuse(-EBADMSG, "tensor 'a' is in both 'm1.safetensors' and 'm1.safetensors'", NULL,
	       PATHS("m1.safetensors", "m1.safetensors"));
}

static void a_file_without_tensors_is_refused(void **state)
{
	(void)state;
	write_file("m.safetensors", "{}", 0, '1');
	refuse(-EBADMSG, "'m.safetensors' has no tensors", NULL, PATHS("m.safetensors"));
	refuse(-EINVAL, "no file", NULL, NULL, 0);
}

static void what_is_no_file_is_refused_without_waiting(void **state)
{
	(void)state;
	assert_int_equal(mkfifo("fifo.safetensors", 0600), 0);
	refuse(-ENOENT, "'missing.safetensors'", "No such file", PATHS("missing.safetensors"));
	refuse(-EBADMSG, "'fifo.safetensors' is neither", NULL, PATHS("fifo.safetensors"));
	refuse(-EBADMSG, "'/dev/null' is neither", NULL, PATHS("/dev/null"));
}

static void a_broken_file_is_named(void **state)
{
	(void)state;
	write_file("m.safetensors", "{" U8("a", 0, 2, 2) "}", 1, '1');
	refuse(-EBADMSG, "'m.safetensors'", "cut off", PATHS("m.safetensors"));
}

/* --- Directories -------------------------------------------------------------------------------- */

/* A file of one tensor "a" with the byte `letter`. */
static void write_one(const char *path, char letter)
{
	write_file(path, "{" U8("a", 0, 1, 1) "}", 1, letter);
}

/* A file of one tensor that is called like its byte. */
static void write_part(const char *path, char letter)
{
	char header[128];

	(void)snprintf(header, sizeof(header),
		       "{'%c':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", letter);
	write_file(path, header, 1, letter);
}

/* Loads the directory, and notes this; "": nothing. */
static void check_noting(const char *want, const char *text)
{
	check(want, PATHS("."));
	assert_string_equal(noted, text);
}

static void the_only_file_of_a_directory_is_taken(void **state)
{
	(void)state;
	write_one("m.safetensors", '1');
	write_one(".hidden.safetensors", '2');
	write_one("n.safetensors.tmp", '3');
	check_noting("a1", "");
	check("a1", PATHS("./"));
	check("a1", PATHS(dir));
	write_one("n.safetensors", '4');
	refuse(-EBADMSG,
	       "'.' has several sets of weights, 'm.safetensors', 'n.safetensors': name one", NULL,
	       PATHS("."));
}

static void a_file_of_a_well_known_name_is_taken_before_others(void **state)
{
	(void)state;
	write_one("adapter_model.safetensors", '1');
	write_one("consolidated.safetensors", '2');
	write_one("model.fp16.safetensors", '3');
	write_one("model.safetensors", '4');
	write_one("optimizer.safetensors", '5');
	check_noting("a4", "'.': took 'model.safetensors' and left out 'adapter_model.safetensors', "
			   "'consolidated.safetensors', 'model.fp16.safetensors', "
			   "'optimizer.safetensors'");
	assert_int_equal(rename("model.safetensors", "diffusion_pytorch_model.safetensors"), 0);
	check("a4", PATHS("."));
	assert_non_null(strstr(noted, "took 'diffusion_pytorch_model.safetensors' and"));
	write_one("model.safetensors", '6');
	refuse(-EBADMSG, "several models, ", "'diffusion_pytorch_model.safetensors'", PATHS("."));
}

static void parts_of_one_whole_are_taken_together(void **state)
{
	(void)state;
	write_part("m-00002-of-00003.safetensors", '2');
	write_part("m-00001-of-00003.safetensors", '1');
	refuse(-EBADMSG, "'.' has 2 of the 3 files that 'm-00001-of-00003.safetensors' is one of",
	       NULL, PATHS("."));
	write_part("m-00003-of-00003.safetensors", '3');
	check_noting("11 22 33", "");
	write_one("adapter_model.safetensors", '4');
	check_noting("11 22 33", "'.': took 'm-00001-of-00003.safetensors' (and 2 more) and left out "
				 "'adapter_model.safetensors'");
	write_part("m-00001-of-00002.safetensors", '1'); /* saved twice */
	refuse(-EBADMSG, "several sets of weights",
	       "'m-00001-of-00002.safetensors', 'm-00001-of-00003.safetensors' (and 2 more)",
	       PATHS("."));
}

static void parts_are_counted_from_0_as_well_and_in_the_order_of_numbers(void **state)
{
	char path[64];

	(void)state;
	for (char i = 0; i <= 10; i++) {
		(void)snprintf(path, sizeof(path), "m-%d-of-11.safetensors", i);
		write_part(path, (char)('a' + i));
	}
	check_noting("aa bb cc dd ee ff gg hh ii jj kk", "");
	write_part("m-00003-of-11.safetensors", 'x');
	refuse(-EBADMSG,
	       "part 3 of 11 twice, 'm-00003-of-11.safetensors' and 'm-3-of-11.safetensors'", NULL,
	       PATHS("."));
}

static void parts_that_are_more_than_their_names_say_are_no_set(void **state)
{
	(void)state;
	write_part("m-1-of-2.safetensors", '1');
	write_part("m-2-of-2.safetensors", '2');
	check_noting("11 22", "");
	write_part("m-02-of-2.safetensors", '3');
	refuse(-EBADMSG, "part 2 of 2 twice, 'm-02-of-2.safetensors' and 'm-2-of-2.safetensors'",
	       NULL, PATHS("."));
	assert_int_equal(rename("m-02-of-2.safetensors", "m-3-of-2.safetensors"), 0);
	refuse(-EBADMSG,
	       "'.' has 'm-3-of-2.safetensors', but parts of 2 are numbered from 1 to 2 where "
	       "'m-1-of-2.safetensors' is one: name the files of one set",
	       NULL, PATHS("."));
	assert_int_equal(unlink("m-2-of-2.safetensors"), 0); /* as many as there should be */
	refuse(-EBADMSG, "has 'm-3-of-2.safetensors', but", NULL, PATHS("."));
	assert_int_equal(rename("m-3-of-2.safetensors", "m-0-of-2.safetensors"), 0);
	check_noting("33 11", "");
	write_part("m-2-of-2.safetensors", '2');
	refuse(-EBADMSG, "has 'm-2-of-2.safetensors', but parts of 2 are numbered from 0 to 1",
	       NULL, PATHS("."));
}

static void what_looks_like_a_part_and_is_none_is_a_file(void **state)
{
	(void)state;
	write_one("best-of-2.safetensors", '1');
	check_noting("a1", "");
	assert_int_equal(rename("best-of-2.safetensors", "a-1-of-2b.safetensors"), 0);
	check_noting("a1", "");
	assert_int_equal(rename("a-1-of-2b.safetensors", "a-1-of-0.safetensors"), 0);
	check_noting("a1", "");
	assert_int_equal(rename("a-1-of-0.safetensors", "a-1-of-99999999999.safetensors"), 0);
	check_noting("a1", "");
}

static void of_an_index_and_a_file_the_rule_of_their_library_takes_one(void **state)
{
	(void)state;
	write_one("model-00001-of-00001.safetensors", '1');
	write_index("model.safetensors.index.json",
		    "{'weight_map':{'a':'model-00001-of-00001.safetensors'}}");
	check_noting("a1", "");
	write_one("model.safetensors", '2');
	check_noting("a2", "'.': took 'model.safetensors' (as transformers does, the file before the "
			   "index) and left out 'model.safetensors.index.json', "
			   "'model-00001-of-00001.safetensors'");
	assert_int_equal(unlink("model-00001-of-00001.safetensors"), 0); /* a stale index */
	check("a2", PATHS("."));
	assert_int_equal(unlink("model.safetensors.index.json"), 0);
	assert_int_equal(rename("model.safetensors", "diffusion_pytorch_model.safetensors"), 0);
	write_one("shard.safetensors", '3');
	write_index("diffusion_pytorch_model.safetensors.index.json",
		    "{'weight_map':{'a':'shard.safetensors'}}");
	check_noting("a3", "'.': took 'diffusion_pytorch_model.safetensors.index.json' (as diffusers "
			   "does, the index before the file) and left out "
			   "'diffusion_pytorch_model.safetensors'");
}

static void the_configuration_of_a_model_may_name_its_weights(void **state)
{
	(void)state;
	write_one("model.safetensors", '1');
	write_one("other.safetensors", '2');
	write_index("config.json", "{'transformers_weights':'other.safetensors'}");
	check_noting("a2", "'.': took 'other.safetensors' (by its config.json) and left out "
			   "'model.safetensors'");
	write_index("x.safetensors.index.json", "{'weight_map':{'a':'model.safetensors'}}");
	write_index("config.json", "{'transformers_weights':'x.safetensors.index.json'}");
	check("a1", PATHS("."));
	write_index("config.json", "{'transformers_weights':'../other.safetensors'}");
	refuse(-ENOENT, "'../other.safetensors' by its config.json", "name the files to load",
	       PATHS("."));
	write_index("config.json", "{'transformers_weights':null}");
	check("a1", PATHS("."));
	write_index("config.json", "{'broken");
	check("a1", PATHS("."));
}

static void an_index_of_a_variant_is_found_in_either_spelling(void **state)
{
	static const char *const names[] = {"x.safetensors.index.fp16.json",
					    "x.safetensors.fp16.index.json"};

	(void)state;
	write_one("x.fp16-00001-of-00001.safetensors", '1');
	write_one("x-00001-of-00001.fp16.safetensors", '2');
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		write_index(names[i], "{'weight_map':{'a':'x.fp16-00001-of-00001.safetensors'}}");
		check("a1", PATHS(names[i]));
		check_noting("a1", i == 0 ? "'.': took 'x.safetensors.index.fp16.json' and left out "
					    "'x-00001-of-00001.fp16.safetensors'"
					  : "'.': took 'x.safetensors.fp16.index.json' and left out "
					    "'x-00001-of-00001.fp16.safetensors'");
		assert_int_equal(unlink(names[i]), 0);
	}
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		write_index(names[i], "{'weight_map':{'a':'x.fp16-00001-of-00001.safetensors'}}");
	refuse(-EBADMSG, "several sets", names[0], PATHS("."));
	write_index("x.safetensors.index.json",
		    "{'weight_map':{'a':'x-00001-of-00001.fp16.safetensors'}}");
	check("a2", PATHS("."));
}

static void an_index_of_a_variant_does_not_stand_for_the_model(void **state)
{
	(void)state;
	write_one("model.fp16-00001-of-00001.safetensors", '1');
	write_index("model.safetensors.index.fp16.json",
		    "{'weight_map':{'a':'model.fp16-00001-of-00001.safetensors'}}");
	write_one("model-00001-of-00001.safetensors", '2'); /* its index is gone */
	refuse(-EBADMSG, "'model.safetensors.index.fp16.json'",
	       "'model-00001-of-00001.safetensors'", PATHS("."));
	write_one("model.safetensors", '3');
	check("a3", PATHS("."));
}

static void names_that_are_no_index_are_files(void **state)
{
	static const char *const names[] = {"x.safetensors.index", "x.safetensors.index.json.bak",
					    "x.safetensors.json", "x.safetensors..index.json",
					    "x.pkl.index.json"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		write_one(names[i], '1');
		check("a1", PATHS(names[i]));
	}
}

static void a_directory_without_files_is_refused(void **state)
{
	(void)state;
	write_file("model.bin", "{" U8("a", 0, 1, 1) "}", 1, '1');
	refuse(-ENOENT, "'.' has no .safetensors file, only 'model.bin'", NULL, PATHS("."));
	assert_int_equal(unlink("model.bin"), 0);
	refuse(-ENOENT, "'.' has no .safetensors file and no index", NULL, PATHS("."));
	assert_int_equal(mkdir("snapshots", 0700), 0);
	assert_int_equal(mkdir("snapshots/123", 0700), 0);
	write_one("snapshots/123/model.safetensors", '1');
	refuse(-ENOENT, "folders have some", "'snapshots/123'", PATHS("."));
	assert_int_equal(mkdir("vae", 0700), 0);
	write_one("vae/x.safetensors", '1');
	refuse(-ENOENT, "folders have some: name one of 'snapshots/123', 'vae'", NULL, PATHS("."));
}

static void the_index_of_a_model_is_preferred(void **state)
{
	(void)state;
	write_file("m1", "{" U8("a", 0, 1, 1) "}", 1, '1');
	write_file("m2", "{" U8("a", 0, 1, 1) "}", 1, '2');
	write_index("another.safetensors.index.json", "{'weight_map':{'a':'m2'}}");
	check("a2", PATHS(".")); /* the only one */
	write_index("third.safetensors.index.json", "{'weight_map':{'a':'m2'}}");
	refuse(-EBADMSG, "'another.safetensors.index.json', 'third.safetensors.index.json'",
	       "name one", PATHS("."));
	write_index("model.safetensors.index.json", "{'weight_map':{'a':'m1'}}");
	check("a1", PATHS("."));
	check("a2", PATHS("third.safetensors.index.json"));
}

/* --- Indexes ------------------------------------------------------------------------------------ */

static void the_index_decides_for_every_tensor(void **state)
{
	(void)state;
	write_file("m1.safetensors", "{" U8("a", 0, 1, 1) "," U8("b", 1, 2, 1) "}", 2, '1');
	write_file("m2.safetensors", "{" U8("b", 0, 1, 1) "," U8("c", 1, 2, 1) "}", 2, '2');
	write_file("old.safetensors", "{" U8("a", 0, 1, 1) "}", 1, '3');
	write_index("model.safetensors.index.json",
		    "{'weight_map':{'b':'m2.safetensors','a':'m1.safetensors'}}");
	check("a1 b2", PATHS("."));
	check("a1 b2", PATHS("model.safetensors.index.json"));
	check("a1 b2", PATHS("./model.safetensors.index.json"));
}

static void what_the_index_leaves_out_is_not_copied(void **state)
{
	static const char header[] =
		"{" U8("a", 0, 256, 256) "," U8("b", 256, 512, 256) "," U8("c", 512, 768, 256) "}";
	struct plan plan;

	(void)state;
	write_file("m1.safetensors", header, 768, '1');
	write_index("model.safetensors.index.json",
		    "{'weight_map':{'a':'m1.safetensors','c':'m1.safetensors'}}");
	plan_ok(&plan, PATHS("."));
	assert_int_equal(plan.n_pieces, 2);
	assert_int_equal(plan.n_bytes, 512);
	assert_int_equal(plan.pieces[1].dest, 256);
	assert_int_equal(plan.pieces[1].offset - plan.pieces[0].offset, 512);
	plan_deinit(&plan);
}

static void a_missing_file_is_named(void **state)
{
	(void)state;
	write_file("m1.safetensors", "{" U8("a", 0, 1, 1) "}", 1, '1');
	write_index("model.safetensors.index.json",
		    "{'weight_map':{'a':'m1.safetensors','b':'m2.safetensors'}}");
	refuse(-ENOENT, "'./model.safetensors.index.json'",
	       "'m2.safetensors', which does not exist", PATHS("."));
	refuse(-ENOENT, "'model.safetensors.index.json'", "'m2.safetensors', which does not exist",
	       PATHS("model.safetensors.index.json"));
}

static void a_tensor_that_its_file_lacks_is_named(void **state)
{
	(void)state;
	write_file("m1.safetensors", "{" U8("a", 0, 1, 1) "}", 1, '1');
	write_file("m2.safetensors", "{" U8("b", 0, 1, 1) "}", 1, '2');
	write_index(
		"model.safetensors.index.json",
		"{'weight_map':{'a':'m1.safetensors','b':'m1.safetensors','x':'m2.safetensors'}}");
	refuse(-EBADMSG, "maps tensor 'b' to 'm1.safetensors', which does not have it", NULL,
	       PATHS("."));
}

static void files_of_an_index_may_stand_in_folders_below_it(void **state)
{
	(void)state;
	assert_int_equal(mkdir("d", 0700), 0);
	assert_int_equal(mkdir("d/shards", 0700), 0);
	write_file("d/shards/m", "{" U8("a", 0, 1, 1) "," U8("b", 1, 2, 1) "}", 2, '1');
	write_file("d/m", "{" U8("c", 0, 1, 1) "}", 1, '2');
	write_index("d/model.safetensors.index.json",
		    "{'weight_map':{'a':'shards/m','b':'./shards//m','c':'./m'}}");
	check("c2 a1 b1", PATHS("d"));
	check("c2 a1 b1", PATHS("d/model.safetensors.index.json"));
	assert_int_equal(rename("d/shards", "blobs"), 0);
	assert_int_equal(symlink("../blobs", "d/shards"), 0);
	check("c2 a1 b1", PATHS("d"));
}

static void files_behind_links_are_files(void **state)
{
	(void)state;
	assert_int_equal(mkdir("blobs", 0700), 0);
	assert_int_equal(mkdir("snapshot", 0700), 0);
	write_file("blobs/1", "{" U8("a", 0, 1, 1) "}", 1, '1');
	assert_int_equal(symlink("../blobs/1", "snapshot/m.safetensors"), 0);
	write_index("blobs/2", "{'weight_map':{'a':'m.safetensors'}}");
	assert_int_equal(symlink("../blobs/2", "snapshot/model.safetensors.index.json"), 0);
	check("a1", PATHS("snapshot"));
	assert_int_equal(unlink("blobs/1"), 0);
	refuse(-ENOENT, "'m.safetensors', which does not exist", NULL, PATHS("snapshot"));
}

static void a_directory_in_place_of_a_file_is_refused(void **state)
{
	(void)state;
	assert_int_equal(mkdir("m.safetensors", 0700), 0);
	refuse(-EBADMSG, "'./m.safetensors' is a directory", NULL, PATHS("."));
	write_index("model.safetensors.index.json", "{'weight_map':{'a':'m.safetensors'}}");
	refuse(-EBADMSG, "'./m.safetensors' is a directory", NULL, PATHS("."));
	assert_int_equal(unlink("model.safetensors.index.json"), 0);
	assert_int_equal(mkdir("model.safetensors.index.json", 0700), 0);
	refuse(-EBADMSG, "is a directory and no index", NULL, PATHS("."));
}

static void two_indexes_must_not_share_a_tensor(void **state)
{
	(void)state;
	assert_int_equal(mkdir("x", 0700), 0);
	assert_int_equal(mkdir("y", 0700), 0);
	write_file("x/m", "{" U8("a", 0, 1, 1) "}", 1, '1');
	write_file("y/m", "{" U8("a", 0, 1, 1) "," U8("b", 1, 2, 1) "}", 2, '2');
	write_index("x/model.safetensors.index.json", "{'weight_map':{'a':'m'}}");
	write_index("y/model.safetensors.index.json", "{'weight_map':{'b':'m'}}");
	check("a1 b2", PATHS("x", "y"));
	write_index("y/model.safetensors.index.json", "{'weight_map':{'b':'m','a':'m'}}");
	refuse(-EBADMSG, "tensor 'a' is in both 'x/m' and 'y/m'", NULL, PATHS("x", "y"));
}

/* --- Changes ------------------------------------------------------------------------------------ */

static void expect_change(const struct plan *plan, const char *phrase)
{
	struct sentence s = {0};
	int r = plan_check_unchanged(plan, &s);

	if (r != -EBADMSG || !strstr(s.text, phrase))
		fail_msg("wanted '%s', got %d and '%s'", phrase, r, s.text);
}

static void files_that_did_not_change_are_fine(void **state)
{
	struct sentence s = {0};
	struct plan plan;

	(void)state;
	write_file("m.safetensors", "{" U8("a", 0, 1, 1) "}", 1, '1');
	write_index("model.safetensors.index.json", "{'weight_map':{'a':'m.safetensors'}}");
	plan_ok(&plan, PATHS("."));
	assert_int_equal(plan_check_unchanged(&plan, &s), 0);
	plan_deinit(&plan);
}

static void every_kind_of_change_is_noticed(void **state)
{
	static const char header[] = "{" U8("a", 0, 8, 8) "}";
	static const char path[] = "m.safetensors";
	struct plan plan;
	int fd;

	(void)state;
	for (int kind = 0; kind < 5; kind++) {
		write_file(path, header, 8, '1');
		write_index("model.safetensors.index.json", "{'weight_map':{'a':'m.safetensors'}}");
		plan_ok(&plan, PATHS("."));
		switch (kind) {
		case 0:
			assert_int_equal(truncate(path, 20), 0);
			expect_change(&plan, "'./m.safetensors' was truncated");
			break;
		case 1: /* in place, of the same size */
			fd = open(path, O_WRONLY);
			assert_int_equal(pwrite(fd, "2", 1, 60), 1);
			/* The clock of an old kernel may not have ticked since the file was made. */
			assert_int_equal(futimens(fd, (struct timespec[2]){{1, 0}, {1, 0}}), 0);
			(void)close(fd);
			expect_change(&plan, "'./m.safetensors' was changed");
			break;
		case 2:
			write_file("new", header, 8, '2');
			assert_int_equal(rename("new", path), 0);
			expect_change(&plan, "'./m.safetensors' was replaced");
			break;
		case 3:
			assert_int_equal(unlink(path), 0);
			expect_change(&plan, "'./m.safetensors' was removed");
			break;
		case 4:
			write_index("new", "{'weight_map':{'b':'m.safetensors'}}");
			assert_int_equal(rename("new", "model.safetensors.index.json"), 0);
			expect_change(&plan, "'./model.safetensors.index.json' was replaced");
			break;
		}
		plan_deinit(&plan);
	}
}

/* --- Units, progress ---------------------------------------------------------------------------- */

static void the_unit_is_the_block_of_the_name(void **state)
{
	static const struct {
		const char *name, *unit;
	} cases[] = {
		{"encoder.layer.3.attention.self.query.weight", "encoder.layer.3"},
		{"model.layers.10.mlp.experts.7.up_proj.weight", "model.layers.10"},
		{"h.0", "h.0"},
		{"0.weight", "0"},
		{"7", "7"},
		{"embeddings.word_embeddings.weight", "embeddings.word_embeddings"},
		{"conv1.2x.weight", "conv1.2x"},
		{"weight", ""},
		{".weight", ""},
		{"a..1.b", "a..1"},
		{"a.", "a"},
		{"...", ".."},
	};
	char unit[UNIT_MAX];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		assert_string_equal(unit_of(cases[i].name, unit), cases[i].unit);
}

static void tensors_carry_their_unit_dtype_and_shape(void **state)
{
	struct weightd_tensor t = {.size = sizeof(t)};
	struct plan plan;

	(void)state;
	write_file("m.safetensors",
		   "{'h.1.w':{'dtype':'BF16','shape':[2,3],'data_offsets':[0,12]}}", 12, '1');
	plan_ok(&plan, PATHS("m.safetensors"));
	assert_int_equal(weightd_layout_tensor(plan.layout, 0, &t), 0);
	assert_string_equal(t.name, "h.1.w");
	assert_string_equal(t.unit, "h.1");
	assert_int_equal(t.dtype, WEIGHTD_BF16);
	assert_int_equal(t.role, WEIGHTD_PARAM);
	assert_int_equal(t.n_dims, 2);
	assert_int_equal(t.shape[0], 2);
	assert_int_equal(t.shape[1], 3);
	plan_deinit(&plan);
}

static int cancel(void *userdata, const char *phase, uint64_t done, uint64_t total)
{
	(void)done;
	(void)total;
	*(const char **)userdata = phase;
	return 1;
}

static void a_plan_can_be_cancelled(void **state)
{
	const char *phase = "";
	struct progress progress = {.fn = cancel, .userdata = &phase};
	unsigned fds = count_fds();
	struct sentence s = {0};
	struct plan plan;

	(void)state;
	write_file("m.safetensors", "{" U8("a", 0, 1, 1) "}", 1, '1');
	assert_int_equal(plan_make(PATHS("m.safetensors"), &progress, &plan, &s), -ECANCELED);
	assert_string_equal(phase, "plan");
	assert_string_equal(s.text, "the load was cancelled at 0 % of phase 'plan'; "
				    "nothing was published; load again to begin anew");
	assert_int_equal(count_fds(), fds);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

/* --- Plans for callers -------------------------------------------------------------------------- */

static void a_caller_gets_files_and_ranges_one_by_one(void **state)
{
	struct weightd_plan_file file = {.size = sizeof(file)};
	struct {
		struct weightd_plan_range range;
		uint64_t behind;
	} newer = {.range.size = sizeof(newer), .behind = 7};
	struct weightd_load_plan *p = NULL;
	struct weightd *w;

	(void)state;
	write_file("one.safetensors", "{" U8("a", 0, 3, 3) "," U8("b", 3, 5, 2) "}", 5, '1');
	assert_int_equal(weightd_new(&w), 0);
	assert_int_equal(weightd_load_plan_new(w, PATHS("none"), NULL, &p), -ENOENT);
	assert_null(p);
	assert_int_equal(weightd_load_plan_new(w, PATHS("one.safetensors"), NULL, &p), 0);
	weightd_close(w);
	assert_int_equal(weightd_load_plan_form(p), WEIGHTD_PLAN_FILE);
	assert_int_equal(weightd_layout_n_tensors(weightd_load_plan_layout(p)), 2);
	assert_int_equal(weightd_load_plan_file(p, 0, &file), 0);
	assert_string_equal(file.path, "one.safetensors");
	assert_int_equal(file.n_bytes, 5);
	assert_int_equal(file.n_ranges, 1);
	assert_int_equal(weightd_load_plan_file(p, 1, &file), -ENOENT);
	file.size = sizeof(file) - 1;
	assert_int_equal(weightd_load_plan_file(p, 0, &file), -EINVAL);
	assert_int_equal(weightd_load_plan_range(p, 0, &newer.range), 0);
	assert_int_equal(newer.range.size, sizeof(newer.range));
	assert_int_equal(newer.range.n_bytes, 5);
	assert_int_equal(newer.behind, 7);
	assert_int_equal(weightd_load_plan_range(p, 1, &newer.range), -ENOENT);
	weightd_load_plan_free(p);
	weightd_load_plan_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(tensors_keep_the_order_of_the_file),
		TEST(a_file_needs_no_suffix),
		TEST(pieces_say_where_bytes_come_from_and_go),
		TEST(what_is_side_by_side_in_both_is_one_piece),
		TEST(empty_tensors_have_no_bytes_to_copy),
		TEST(several_files_keep_the_order_they_are_named_in),
		TEST(one_name_in_two_files_is_refused_naming_both),
		TEST(a_file_without_tensors_is_refused),
		TEST(what_is_no_file_is_refused_without_waiting),
		TEST(a_broken_file_is_named),
		TEST(the_only_file_of_a_directory_is_taken),
		TEST(a_file_of_a_well_known_name_is_taken_before_others),
		TEST(parts_of_one_whole_are_taken_together),
		TEST(parts_are_counted_from_0_as_well_and_in_the_order_of_numbers),
		TEST(parts_that_are_more_than_their_names_say_are_no_set),
		TEST(what_looks_like_a_part_and_is_none_is_a_file),
		TEST(of_an_index_and_a_file_the_rule_of_their_library_takes_one),
		TEST(the_configuration_of_a_model_may_name_its_weights),
		TEST(an_index_of_a_variant_is_found_in_either_spelling),
		TEST(an_index_of_a_variant_does_not_stand_for_the_model),
		TEST(names_that_are_no_index_are_files),
		TEST(a_directory_without_files_is_refused),
		TEST(the_index_of_a_model_is_preferred),
		TEST(the_index_decides_for_every_tensor),
		TEST(what_the_index_leaves_out_is_not_copied),
		TEST(a_missing_file_is_named),
		TEST(a_tensor_that_its_file_lacks_is_named),
		TEST(files_of_an_index_may_stand_in_folders_below_it),
		TEST(files_behind_links_are_files),
		TEST(a_directory_in_place_of_a_file_is_refused),
		TEST(two_indexes_must_not_share_a_tensor),
		TEST(files_that_did_not_change_are_fine),
		TEST(every_kind_of_change_is_noticed),
		TEST(the_unit_is_the_block_of_the_name),
		TEST(tensors_carry_their_unit_dtype_and_shape),
		TEST(a_plan_can_be_cancelled),
		TEST(a_caller_gets_files_and_ranges_one_by_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
