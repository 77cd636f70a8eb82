/*
 * Tests the identity of a rank: its token in a file, and the instruction set that the environment names
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libclient/train/engine/identity.h"
#include "libclient/train/engine/isa.h"
#include "libclient/train/kernels/kernel.h"

#define TOKEN "run:0"

static char folder[64], file[80];

static int setup(void **state)
{
	(void)state;
	strcpy(folder, "/tmp/weightd-identity-XXXXXX");
	assert_non_null(mkdtemp(folder));
	(void)snprintf(file, sizeof(file), "%s/token", folder);
	assert_int_equal(setenv("WEIGHTD_JOB_FILE", file, 1), 0);
	assert_int_equal(unsetenv("WEIGHTD_JOB"), 0);
	assert_int_equal(unsetenv("WEIGHTD_TRAIN_ISA"), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	(void)unlink(file);
	assert_int_equal(rmdir(folder), 0);
	return 0;
}

static void write_token(const char *text, mode_t mode)
{
	FILE *f = fopen(file, "we");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(chmod(file, mode), 0);
}

static int resolve(char token[WEIGHTD_TOKEN_MAX])
{
	struct weightd_train_options options = {.size = sizeof(options), .rank = 3};
	uint32_t rank;
	int r = identity_resolve(&options, token, &rank);

	if (r == 0)
		assert_int_equal(rank, 3);
	return r;
}

static void assert_refused(int error, const char *word)
{
	char token[WEIGHTD_TOKEN_MAX];

	assert_int_equal(resolve(token), error);
	if (!strstr(weightd_train_error(), word) || !strstr(weightd_train_error(), file))
		fail_msg("'%s' and '%s' are not in '%s'", word, file, weightd_train_error());
}

static void a_token_is_read_from_a_private_file(void **state)
{
	char token[WEIGHTD_TOKEN_MAX];

	(void)state;
	write_token(TOKEN "\n", 0600);
	assert_int_equal(resolve(token), 0);
	assert_string_equal(token, TOKEN);
	write_token(TOKEN, 0400);
	assert_int_equal(resolve(token), 0);
	assert_string_equal(token, TOKEN);
}

static void a_token_that_others_can_access_is_refused(void **state)
{
	static const mode_t modes[] = {0640, 0604, 0620, 0601};

	(void)state;
	for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++) {
		char text[32];

		write_token(TOKEN "\n", modes[i]);
		(void)snprintf(text, sizeof(text), "has mode %04o: others", modes[i]);
		assert_refused(-EACCES, text);
		assert_refused(-EACCES, "chmod 600");
	}
}

static void a_token_of_another_user_is_refused(void **state)
{
	(void)state;
	if (geteuid() != 0)
		skip(); /* only root can make such a file */
	write_token(TOKEN "\n", 0600);
	assert_int_equal(chown(file, 12345, 12345), 0);
	assert_refused(-EACCES, "belongs to another user, uid 12345; use a file of your own");
}

static void a_token_must_be_in_a_regular_file(void **state)
{
	char real[96];

	(void)state;
	assert_refused(-ENOENT, "No such file");
	(void)snprintf(real, sizeof(real), "%s.real", file);
	write_token(TOKEN "\n", 0600);
	assert_int_equal(rename(file, real), 0);
	assert_int_equal(symlink(real, file), 0);
	assert_refused(-ELOOP, "it is a symbolic link; name the file itself");
	assert_int_equal(unlink(real), 0);
	assert_int_equal(unlink(file), 0);
	assert_int_equal(mkfifo(file, 0600), 0); /* no writer: nothing waits for one */
	assert_refused(-EINVAL, "is no regular file");
	assert_int_equal(unlink(file), 0);
	assert_int_equal(mkdir(file, 0700), 0);
	assert_refused(-EINVAL, "is no regular file");
	assert_int_equal(rmdir(file), 0);
}

static void a_file_without_a_token_is_refused(void **state)
{
	char large[WEIGHTD_TOKEN_MAX + 2];

	(void)state;
	write_token("\n", 0600);
	assert_refused(-EINVAL, "has no token of a job");
	memset(large, 'a', sizeof(large) - 1);
	large[sizeof(large) - 1] = '\0';
	write_token(large, 0600);
	assert_refused(-EINVAL, "has no token of a job");
}

static void an_instruction_set_of_another_machine_is_refused(void **state)
{
	struct weightd_train_options options = {.size = sizeof(options), .token = TOKEN};
	struct weightd_window *win;

	(void)state;
	assert_int_equal(setenv("WEIGHTD_TRAIN_ISA", "x86-64-v9\n", 1), 0);
	assert_int_equal(isa_check(), -EINVAL);
	assert_int_equal(weightd_window_open(NULL, &options, 64, &win), -EINVAL);
	assert_non_null(strstr(weightd_train_error(), "$WEIGHTD_TRAIN_ISA is 'x86-64-v9"));
	assert_non_null(strstr(weightd_train_error(), "; this machine has "));
	assert_null(strchr(weightd_train_error(), '\n'));
	for (size_t i = 0; kernels_at(i); i++)
		assert_non_null(strstr(weightd_train_error(), kernels_at(i)->isa));
}

static void each_instruction_set_of_this_machine_is_accepted(void **state)
{
	size_t n = 0;

	(void)state;
	assert_int_equal(isa_check(), 0);
	assert_int_equal(setenv("WEIGHTD_TRAIN_ISA", "", 1), 0);
	assert_int_equal(isa_check(), 0);
	for (; kernels_at(n); n++) {
		assert_int_equal(setenv("WEIGHTD_TRAIN_ISA", kernels_at(n)->isa, 1), 0);
		assert_int_equal(isa_check(), 0);
	}
	assert_true(n >= 1);
	assert_string_equal(kernels_at(n - 1)->isa, "portable");
}

/* --- Nodes -------------------------------------------------------------------------------------------- */

static void expect_node(uint32_t node)
{
	uint32_t found = UINT32_MAX;

	assert_int_equal(identity_node(NULL, 4, &found), 0);
	assert_int_equal(found, node);
}

static void the_node_is_that_of_the_launcher(void **state)
{
	struct weightd_nodes given = {.size = sizeof(given), .node = 2};
	uint32_t node;

	(void)state;
	assert_int_equal(identity_node(NULL, 4, &node), -EINVAL);
	assert_non_null(strstr(weightd_train_error(), "$GROUP_RANK is not set"));
	setenv("SLURM_NODEID", "3", 1);
	expect_node(3);
	setenv("OMPI_COMM_WORLD_RANK", "5", 1);
	setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "4", 1);
	expect_node(1);
	setenv("GROUP_RANK", "0", 1);
	expect_node(0);
	assert_int_equal(identity_node(&given, 4, &node), 0);
	assert_int_equal(node, 2);
	setenv("GROUP_RANK", "4", 1);
	assert_int_equal(identity_node(NULL, 4, &node), -EINVAL);
	assert_non_null(strstr(weightd_train_error(), "there is no node 4"));
	setenv("GROUP_RANK", "first", 1);
	assert_int_equal(identity_node(NULL, 4, &node), -EINVAL);
	assert_non_null(strstr(weightd_train_error(), "$GROUP_RANK is 'first'"));
	unsetenv("GROUP_RANK");
	unsetenv("SLURM_NODEID");
	unsetenv("OMPI_COMM_WORLD_RANK");
	unsetenv("OMPI_COMM_WORLD_LOCAL_SIZE");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(a_token_is_read_from_a_private_file),
		TEST(a_token_that_others_can_access_is_refused),
		TEST(a_token_of_another_user_is_refused),
		TEST(a_token_must_be_in_a_regular_file),
		TEST(a_file_without_a_token_is_refused),
		TEST(the_node_is_that_of_the_launcher),
		TEST(an_instruction_set_of_another_machine_is_refused),
		TEST(each_instruction_set_of_this_machine_is_accepted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
