/* Reserved names: which pattern decides about a name, and for whom. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ipc/base/num.h"
#include "ipc/channel.h"
#include "server/base/ini.h"
#include "server/state/access.h"
#include "server/state/buffer_names.h"
#include "server/state/config.h"

#define SKIP 77

static struct config must_parse(const char *text)
{
	struct config c;

	if (config_parse("w.conf", text, strlen(text), &c) != 0)
		fail_msg("refused: %s", text);
	return c;
}

static const char *pattern_of(const struct config *c, const char *name)
{
	const struct name_rule *rule = buffer_names_find(c->names, name);

	return rule ? name_rule_pattern(rule) : "";
}

static bool allows(const struct config *c, const char *name, uid_t uid, gid_t gid, gid_t group)
{
	gid_t groups[] = {7, group};
	struct channel_peer peer = {.uid = uid, .gid = gid, .groups = groups, .n_groups = 2};
	const struct name_rule *rule = buffer_names_find(c->names, name);

	return !rule || name_rule_allows(rule, &peer);
}

static void the_most_specific_pattern_decides(void **state)
{
	static const struct {
		const char *name, *pattern;
	} rows[] = {
		{"llama/7b", "llama/7b"},
		{"llama/7b-chat", "llama/*"},
		{"llama/", "llama/*"},
		{"llama", "l*"},
		{"llama/70", "llama/70*"},
		{"llama/70b", "llama/70*"},
		{"l", "l*"},
		{"Llama/7b", ""},
		{"a:b", "a:b"},
		{"a:bc", "a:*"},
		{"a", ""},
	};
	struct config c = must_parse("[names]\nl* = 1\nllama/* = 2\na:b = 3\nllama/70*=4\n"
				     "llama/7b\t=\t5\na:* = 6\n");

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (strcmp(pattern_of(&c, rows[i].name), rows[i].pattern) != 0)
			fail_msg("%s: '%s' instead of '%s'", rows[i].name,
				 pattern_of(&c, rows[i].name), rows[i].pattern);
	config_deinit(&c);
}

static void a_whole_name_wins_over_a_prefix_as_long(void **state)
{
	struct config c = must_parse("[names]\nab* = 1\nab = 2\n");

	(void)state;
	assert_string_equal(pattern_of(&c, "ab"), "ab");
	assert_string_equal(pattern_of(&c, "abc"), "ab*");
	config_deinit(&c);
}

static void a_star_alone_is_for_all_other_names(void **state)
{
	struct config c = must_parse("[names]\n* = 5\nscratch/* = *\n");

	(void)state;
	assert_false(allows(&c, "anything", 6, 6, 6));
	assert_true(allows(&c, "anything", 5, 6, 6));
	assert_true(allows(&c, "scratch/x", 6, 6, 6));
	config_deinit(&c);
}

static void users_and_groups_may_and_others_not(void **state)
{
	struct config c = must_parse("[names]\nllama/* = 11 12 @21\t@22 ; a comment\n");

	(void)state;
	assert_string_equal(name_rule_list(buffer_names_find(c.names, "llama/x")), "11 12 @21\t@22");
	for (uid_t uid = 10; uid <= 23; uid++)
		assert_int_equal(allows(&c, "llama/x", uid, 9, 9), uid == 11 || uid == 12);
	for (gid_t gid = 10; gid <= 23; gid++) {
		assert_int_equal(allows(&c, "llama/x", 5, gid, 9), gid == 21 || gid == 22);
		assert_int_equal(allows(&c, "llama/x", 5, 9, gid), gid == 21 || gid == 22);
	}
	assert_true(allows(&c, "other", 5, 9, 9));
	config_deinit(&c);
}

static void administrators_may(void **state)
{
	struct config c = must_parse("[names]\n* = 11\n");

	(void)state;
	assert_true(allows(&c, "m", 0, 0, 0));
	assert_false(allows(&c, "m", 5, 77, 77));
	access_set_admins(77);
	assert_true(allows(&c, "m", 5, 77, 9));
	assert_true(allows(&c, "m", 5, 9, 77));
	access_set_admins((gid_t)-1);
	config_deinit(&c);
}

/* 65534 is every user and every group that this user namespace cannot name. */
static void the_overflow_group_has_no_members(void **state)
{
	struct config c = must_parse("[names]\nm = @65534\n");

	(void)state;
	assert_false(allows(&c, "m", 5, 65534, 65534));
	config_deinit(&c);
}

static void without_rules_every_name_is_free(void **state)
{
	struct config c = must_parse("[names]\n");

	(void)state;
	assert_null(c.names);
	assert_null(buffer_names_find(c.names, "m"));
	config_deinit(&c);
}

static void a_name_has_its_form(void **state)
{
	static const char *const good[] = {"a", "Z9", "0", "a.b_c/d:e-f", "7//"};
	static const char *const bad[] = {"", ".a", "/a", "a b", "a*", "-a", "a@1", "\xc3\xa4"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(good); i++)
		assert_true(buffer_name_ok(good[i]));
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_false(buffer_name_ok(bad[i]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_most_specific_pattern_decides),
		cmocka_unit_test(a_whole_name_wins_over_a_prefix_as_long),
		cmocka_unit_test(a_star_alone_is_for_all_other_names),
		cmocka_unit_test(users_and_groups_may_and_others_not),
		cmocka_unit_test(administrators_may),
		cmocka_unit_test(the_overflow_group_has_no_members),
		cmocka_unit_test(without_rules_every_name_is_free),
		cmocka_unit_test(a_name_has_its_form),
	};
	struct ini_line line;

	if (ini_line_read("", &line) == -ENOSYS) {
		puts("weightd was built without inih (libinih-dev)");
		return SKIP;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
