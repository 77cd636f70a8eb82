/* Audit lines: the sentence and the fields, and that a client cannot add a field or a line. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/state/audit.h"

static struct channel_peer peer = {.pid = 12, .uid = 1000};

static char *fields_of(const struct audit *a)
{
	static char buf[AUDIT_FIELDS_SIZE + 1];
	size_t n = audit_fields(a, buf);

	assert_true(n > 0 && n < AUDIT_FIELDS_SIZE);
	assert_int_equal(strlen(buf), n);
	assert_int_equal(buf[n - 1], '\n');
	return buf;
}

static void the_fields_are_those_of_the_journal(void **state)
{
	(void)state;
	assert_string_equal(fields_of(&(struct audit){.action = AUDIT_PUBLISH,
						      .peer = &peer,
						      .buffer = "m/8b:x",
						      .device = "host",
						      .version = 18446744073709551615u}),
			    "MESSAGE='m/8b:x@18446744073709551615' on host published by pid 12 uid "
			    "1000\n"
			    "MESSAGE_ID=83c5180f60bf470196c16b8e1e27d7a9\n"
			    "PRIORITY=6\n"
			    "SYSLOG_IDENTIFIER=weightd\n"
			    "WEIGHTD_ACTION=publish\n"
			    "WEIGHTD_BUFFER=m/8b:x\n"
			    "WEIGHTD_DEVICE=host\n"
			    "WEIGHTD_VERSION=18446744073709551615\n"
			    "WEIGHTD_UID=1000\n"
			    "WEIGHTD_PID=12\n"
			    "WEIGHTD_RESULT=0\n");
}

static void what_is_absent_has_no_field(void **state)
{
	(void)state;
	assert_string_equal(
		fields_of(&(struct audit){.action = AUDIT_REFUSE, .peer = &peer, .result = -EDQUOT}),
		"MESSAGE=refused to pid 12 uid 1000: Disk quota exceeded\n"
		"MESSAGE_ID=fcc5bd680b4c4425bc65bf4d07a179b7\n"
		"PRIORITY=4\n"
		"SYSLOG_IDENTIFIER=weightd\n"
		"WEIGHTD_ACTION=refuse\n"
		"WEIGHTD_UID=1000\n"
		"WEIGHTD_PID=12\n"
		"WEIGHTD_RESULT=EDQUOT\n");
}

static void the_sentence_says_who_did_what_to_which_version(void **state)
{
	char buf[AUDIT_MESSAGE_SIZE];

	(void)state;
	assert_string_equal(audit_message(&(struct audit){.action = AUDIT_DROP,
							  .peer = &peer,
							  .buffer = "m",
							  .device = "host"},
					  buf),
			    "'m' on host removed by pid 12 uid 1000");
	assert_string_equal(audit_message(&(struct audit){.action = AUDIT_REFUSE,
							  .peer = &peer,
							  .buffer = "m",
							  .device = "host",
							  .detail = "write",
							  .result = -EACCES},
					  buf),
			    "'m' on host refused to pid 12 uid 1000: write: Permission denied");
	assert_string_equal(audit_message(&(struct audit){.action = AUDIT_EVICT_READER,
							  .peer = &peer,
							  .buffer = "m",
							  .device = "host",
							  .version = 3},
					  buf),
			    "'m@3' on host taken away from pid 12 uid 1000");
	assert_string_equal(audit_message(&(struct audit){.action = AUDIT_QUARANTINE,
							  .detail = "two slots have one id"},
					  buf),
			    "set aside and not served: two slots have one id");
}

/* Every line is FIELD=value of a field that the plain one has too, in the same order. */
static void must_have_the_fields_of(char *text, const char *plain)
{
	while (*text && *plain) {
		size_t name = strcspn(text, "=\n");

		assert_int_equal(text[name], '=');
		if (strncmp(text, plain, name + 1))
			fail_msg("a field was added: %s", text);
		text = strchr(text, '\n') + 1;
		plain = strchr(plain, '\n') + 1;
	}
	assert_int_equal(*text, '\0');
	assert_int_equal(*plain, '\0');
}

static void nothing_adds_a_field_or_a_line(void **state)
{
	static const char evil[] = "m\nWEIGHTD_UID=0\n\nMESSAGE=\r\x1b[2J\x7f\t";
	const struct audit good = {.action = AUDIT_CHMOD,
				   .peer = &peer,
				   .buffer = "m",
				   .device = "host",
				   .version = 1,
				   .detail = "x"};
	struct audit bad = good;
	char *plain = strdup(fields_of(&good)), message[AUDIT_MESSAGE_SIZE];

	(void)state;
	bad.buffer = bad.device = bad.detail = evil;
	must_have_the_fields_of(fields_of(&bad), plain);
	assert_non_null(
		strstr(fields_of(&bad), "\nWEIGHTD_BUFFER=m?WEIGHTD_UID=0??MESSAGE=??[2J??\n"));
	for (const char *p = audit_message(&bad, message); *p; p++)
		assert_true((unsigned char)*p >= 0x20 && *p != 0x7f);
	free(plain);
}

static void what_is_too_long_is_cut_and_nothing_else_lost(void **state)
{
	const struct audit good = {
		.action = AUDIT_DROP, .peer = &peer, .buffer = "m", .device = "host", .version = 1};
	struct audit bad = good;
	char *plain = strdup(fields_of(&good)), *text;
	char *huge = malloc(100001);

	(void)state;
	assert_true(plain && huge);
	memset(huge, 'x', 100000);
	huge[100000] = '\0';
	bad.buffer = bad.device = bad.detail = huge;
	bad.version = UINT64_MAX;
	text = fields_of(&bad);
	must_have_the_fields_of(text, plain);
	assert_non_null(strstr(text, "\nWEIGHTD_UID=1000\nWEIGHTD_PID=12\nWEIGHTD_RESULT=0\n"));
	free(huge);
	free(plain);
}

static bool is_message_id(const char *id)
{
	return strlen(id) == 32 && strspn(id, "0123456789abcdef") == 32;
}

static void every_action_has_a_name_and_an_id_in_the_man_page(void **state)
{
	static char page[65536];
	FILE *f = fopen("packaging/man/weightd.8.scd", "r");
	char wanted[128], *entry, *end;

	(void)state;
	assert_non_null(f);
	page[fread(page, 1, sizeof(page) - 1, f)] = '\0';
	(void)fclose(f);
	for (int i = 0; i < AUDIT_ACTIONS; i++) {
		const struct audit_kind *kind = &audit_kinds[i];

		assert_true(is_message_id(kind->message_id));
		for (int j = 0; j < i; j++)
			assert_string_not_equal(kind->message_id, audit_kinds[j].message_id);
		(void)snprintf(wanted, sizeof(wanted), "\n*%s*\n", kind->name);
		entry = strstr(page, wanted);
		if (!entry)
			fail_msg("weightd(8) has no action '%s'", kind->name);
		end = strstr(entry, "\n\n");
		(void)snprintf(wanted, sizeof(wanted), "MESSAGE_ID=%s\n", kind->message_id);
		entry = strstr(entry, wanted);
		if (!entry || entry > end)
			fail_msg("weightd(8) has another id for '%s'", kind->name);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_fields_are_those_of_the_journal),
		cmocka_unit_test(what_is_absent_has_no_field),
		cmocka_unit_test(the_sentence_says_who_did_what_to_which_version),
		cmocka_unit_test(nothing_adds_a_field_or_a_line),
		cmocka_unit_test(what_is_too_long_is_cut_and_nothing_else_lost),
		cmocka_unit_test(every_action_has_a_name_and_an_id_in_the_man_page),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
