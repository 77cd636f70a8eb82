/* Sentences: nothing that passes through a quote can disturb a terminal or hide a part of a name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "ipc/base/num.h"
#include "libclient/connection/sentence.h"

#define QUOTED(literal) quote_bytes(&(struct quote){0}, literal, sizeof(literal) - 1)

static void a_sentence_comes_with_its_code(void **state)
{
	struct sentence s;

	(void)state;
	assert_int_equal(sentence_set(&s, -EBUSY, "%s needs %d", "it", 7), -EBUSY);
	assert_string_equal(s.text, "it needs 7");
}

static void a_sentence_can_be_part_of_the_next(void **state)
{
	struct sentence s;

	(void)state;
	(void)sentence_set(&s, 0, "inner");
	(void)sentence_set(&s, 0, "outer: %s", s.text);
	assert_string_equal(s.text, "outer: inner");
}

static void a_long_sentence_ends_between_characters(void **state)
{
	char text[2 * SENTENCE_MAX + 1];
	struct sentence s;

	(void)state;
	for (size_t shift = 0; shift < 4; shift++) {
		size_t n;

		memset(text, 'x', sizeof(text));
		for (size_t i = shift; i + 3 < sizeof(text); i += 3)
			memcpy(text + i, "\xe2\x82\xac", 3); /* a euro sign */
		text[sizeof(text) - 1] = '\0';
		(void)sentence_set(&s, 0, "%s", text);
		n = strlen(s.text);
		assert_in_range(n, SENTENCE_MAX - 4, SENTENCE_MAX - 1);
		assert_int_equal((n - shift) % 3, 0);
	}
	memset(text, 'x', sizeof(text) - 1);
	(void)sentence_set(&s, 0, "%s", text);
	assert_int_equal(strlen(s.text), SENTENCE_MAX - 1);
}

static void a_quote_leaves_readable_text_alone(void **state)
{
	(void)state;
	assert_string_equal(QUOTED("model.layers.0/weight \"x\""), "'model.layers.0/weight \"x\"'");
	assert_string_equal(QUOTED(""), "''");
	assert_string_equal(QUOTED("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x99\x82"),
			    "'\xc3\xa4 \xe2\x82\xac \xf0\x9f\x99\x82'");
}

static void a_quote_escapes_what_steers_a_terminal(void **state)
{
	(void)state;
	assert_string_equal(QUOTED("a\x1b[2Jb"), "'a\\x1b[2Jb'");
	assert_string_equal(QUOTED("\r\n\t\b\x7f"), "'\\x0d\\x0a\\x09\\x08\\x7f'");
	assert_string_equal(QUOTED("a\0b"), "'a\\x00b'");
	assert_string_equal(QUOTED("\xc2\x9b"
				   "2J"),
			    "'\\xc2\\x9b2J'"); /* CSI as one character of C1 */
}

static void a_quote_escapes_what_changes_how_text_looks(void **state)
{
	(void)state;
	assert_string_equal(QUOTED("\xe2\x80\xae"), "'\\xe2\\x80\\xae'"); /* right-to-left override */
	assert_string_equal(QUOTED("\xe2\x80\x8b"), "'\\xe2\\x80\\x8b'"); /* zero width space */
	assert_string_equal(QUOTED("\xe2\x80\xa8"), "'\\xe2\\x80\\xa8'"); /* line separator */
	assert_string_equal(QUOTED("\xef\xbb\xbf"), "'\\xef\\xbb\\xbf'"); /* byte order mark */
}

static void a_quote_cannot_be_closed_from_inside(void **state)
{
	(void)state;
	assert_string_equal(QUOTED("a' is fine"), "'a\\x27 is fine'");
	assert_string_equal(QUOTED("a\\x27"), "'a\\x5cx27'");
}

static void a_quote_escapes_broken_utf8(void **state)
{
	static const struct {
		const char *name, *quoted;
	} cases[] = {
		{"\xff", "'\\xff'"},
		{"\x80", "'\\x80'"},
		{"a\xc3", "'a\\xc3'"},
		{"\xc3(", "'\\xc3('"},
		{"\xc0\xaf", "'\\xc0\\xaf'"}, /* overlong */
		{"\xe0\x80\xaf", "'\\xe0\\x80\\xaf'"}, /* overlong */
		{"\xed\xa0\x80", "'\\xed\\xa0\\x80'"}, /* a surrogate */
		{"\xf4\x90\x80\x80", "'\\xf4\\x90\\x80\\x80'"}, /* above U+10FFFF */
		{"\xf8\x88\x80\x80\x80", "'\\xf8\\x88\\x80\\x80\\x80'"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		assert_string_equal(quote_bytes(&(struct quote){0}, cases[i].name,
						strlen(cases[i].name)),
				    cases[i].quoted);
}

static void a_long_name_is_cut_outside_its_quotes(void **state)
{
	struct quote q;
	char name[4096];
	size_t n;

	(void)state;
	memset(name, 'x', sizeof(name));
	assert_string_equal(quote_bytes(&q, name, sizeof(name)) + strlen(q.text) - 5, "x'...");
	for (n = 0; n < sizeof(name); n++) {
		(void)quote_bytes(&q, name, n);
		assert_in_range(strlen(q.text), 2, QUOTE_MAX - 1);
		assert_true(n + 2 == strlen(q.text) || strstr(q.text, "'..."));
	}
}

static void a_long_name_is_cut_between_characters(void **state)
{
	struct quote q;
	char name[4096];
	size_t n;

	(void)state;
	for (n = 0; n + 3 <= sizeof(name); n += 3)
		memcpy(name + n, "\xe2\x82\xac", 3);
	(void)quote_bytes(&q, name, n);
	assert_int_equal((strlen(q.text) - strlen("''...")) % 3, 0);
	memset(name, '\x1b', sizeof(name));
	(void)quote_bytes(&q, name, sizeof(name));
	assert_int_equal((strlen(q.text) - strlen("''...")) % 4, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sentence_comes_with_its_code),
		cmocka_unit_test(a_sentence_can_be_part_of_the_next),
		cmocka_unit_test(a_long_sentence_ends_between_characters),
		cmocka_unit_test(a_quote_leaves_readable_text_alone),
		cmocka_unit_test(a_quote_escapes_what_steers_a_terminal),
		cmocka_unit_test(a_quote_escapes_what_changes_how_text_looks),
		cmocka_unit_test(a_quote_cannot_be_closed_from_inside),
		cmocka_unit_test(a_quote_escapes_broken_utf8),
		cmocka_unit_test(a_long_name_is_cut_outside_its_quotes),
		cmocka_unit_test(a_long_name_is_cut_between_characters),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
