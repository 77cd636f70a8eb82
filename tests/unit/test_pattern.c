/* Patterns of names: what fnmatch() matches without flags in the C locale, and how far others are off. */
#include <fnmatch.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ipc/base/pattern.h"

static void names_match(void **state)
{
	static const struct {
		const char *pattern, *name;
		bool matches;
	} cases[] = {
		{"*", "", true},
		{"", "", true},
		{"", "a", false},
		{"a", "", false},
		{"model.layers.[0-3].*", "model.layers.3.mlp.up_proj.weight", true},
		{"model.layers.[0-3].*", "model.layers.4.mlp.up_proj.weight", false},
		{"*.layers.[!0-3].*", "model.layers.4.norm", true},
		{"*.bias", "a.bias.bias", true},
		{"*a*b*c", "xaxbxbc", true},
		{"*a*b*c", "xaxcxbx", false},
		{"a[", "a[", true},
		{"a[b", "a[b", true},
		{"[]]", "]", true},
		{"[!]]", "a", true},
		{"[!]]", "]", false},
		{"[a-]", "-", true},
		{"[-a]", "-", true},
		{"\\*", "\\any", true},
		{"?", "\xc3\xa9", false},
		{"??", "\xc3\xa9", true},
		{"[\xc0-\xff]\xa9", "\xc3\xa9", true},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		if (pattern_matches(cases[i].pattern, cases[i].name) != cases[i].matches)
			fail_msg("'%s' and '%s': expected %d", cases[i].pattern, cases[i].name,
				 cases[i].matches);
}

/* All short patterns of these letters. */
static void fnmatch_agrees(void **state)
{
	static const char letters[] = "ab*?[]!-";
	static const char *const names[] = {"", "a", "b", "ab", "ba", "[a", "a]", "-", "!b", "aab"};
	char pattern[6] = {0};

	(void)state;
	for (unsigned i = 0; i < 8 * 8 * 8 * 8 * 8; i++) {
		for (unsigned k = 0, n = i; k < 5; k++, n /= 8)
			pattern[k] = letters[n % 8];
		for (size_t k = 0; k < sizeof(names) / sizeof(*names); k++) {
			bool wanted = fnmatch(pattern, names[k], 0) == 0;

			if (pattern_matches(pattern, names[k]) != wanted)
				fail_msg("'%s' and '%s': fnmatch() has %d", pattern, names[k],
					 wanted);
		}
	}
}

static void distances_count_changes(void **state)
{
	(void)state;
	assert_int_equal(pattern_distance("*.weight", "a.b.weight", 5), 0);
	assert_int_equal(pattern_distance("*.wieght", "a.b.weight", 5), 2);
	assert_int_equal(pattern_distance("model.layer.*.bias", "model.layers.12.q.bias", 5), 1);
	assert_int_equal(pattern_distance("[0-9].bias", "x.bias", 5), 1);
	assert_int_equal(pattern_distance("abc", "", 5), 3);
	assert_int_equal(pattern_distance("", "abcd", 5), 4);
	assert_int_equal(pattern_distance("lm_head.weight", "model.norm.weight", 3), 3);
}

/* Without a bound on the steps this takes longer than the universe has. */
static void many_stars_take_no_time(void **state)
{
	char pattern[201], name[1001];

	(void)state;
	for (size_t i = 0; i + 1 < sizeof(pattern); i++)
		pattern[i] = i % 2 ? 'a' : '*';
	pattern[sizeof(pattern) - 2] = 'b';
	pattern[sizeof(pattern) - 1] = '\0';
	memset(name, 'a', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	assert_false(pattern_matches(pattern, name));
	assert_int_equal(pattern_distance(pattern, name, 5), 5); /* too long a name */
	name[PATTERN_DISTANCE_MAX] = '\0';
	assert_int_equal(pattern_distance(pattern, name, 5), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_match),
		cmocka_unit_test(fnmatch_agrees),
		cmocka_unit_test(distances_count_changes),
		cmocka_unit_test(many_stars_take_no_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
