/*
 * The configuration: each key takes its bounds and nothing beyond, and every error is logged with
 * its line.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "ipc/base/num.h"
#include "server/base/headroom.h"
#include "server/base/ini.h"
#include "server/state/config.h"

#define SAID_MAX 8192
#define SKIP 77

static char said[SAID_MAX]; /* log of the last parse */

/* Parses with stderr in a file of its own, which ends in `said`. */
static int parse_bytes(const char *text, size_t size, struct config *ret)
{
	int fd = memfd_create("stderr", MFD_CLOEXEC), saved = dup(STDERR_FILENO), r;
	ssize_t n;

	assert_true(fd >= 0 && saved >= 0 && dup2(fd, STDERR_FILENO) == STDERR_FILENO);
	r = config_parse("w.conf", text, size, ret);
	(void)dup2(saved, STDERR_FILENO);
	(void)close(saved);
	n = pread(fd, said, sizeof(said) - 1, 0);
	assert_true(n >= 0);
	said[n] = '\0';
	(void)close(fd);
	return r;
}

static int parse(const char *text, struct config *ret)
{
	return parse_bytes(text, strlen(text), ret);
}

static struct config must_parse(const char *text)
{
	struct config c;

	if (parse(text, &c) != 0)
		fail_msg("refused: %s\n%s", text, said);
	assert_string_equal(said, "");
	return c;
}

/* It is refused, with exactly these errors. */
static void must_fail(const char *text, const char *errors)
{
	struct config c;

	if (parse(text, &c) == 0) {
		config_deinit(&c);
		fail_msg("taken: %s", text);
	}
	if (strcmp(said, errors))
		fail_msg("of '%s'\nwanted: %sgot: %s", text, errors, said);
}

static void the_defaults_are_those_of_the_table(void **state)
{
	struct config c = must_parse(""), d;

	(void)state;
	config_init(&d);
	assert_memory_equal(&c, &d, sizeof(c));
	assert_string_equal(c.socket, "");
	assert_int_equal(c.socket_mode, 0660);
	assert_true(c.reserve == HEADROOM_RESERVE_DEFAULT);
	assert_int_equal(c.log_level, LOG_LEVEL_INFO);
	assert_true(c.admin_gid == (gid_t)-1);
	assert_int_equal(c.store_max, 6000);
	assert_int_equal(c.resume_timeout_s, 30);
	assert_int_equal(c.mode, 0640);
	assert_int_equal(c.keep, 2);
	assert_int_equal(c.limits[QUOTA_CLOSING], 64);
	assert_int_equal(c.limits[QUOTA_REQUESTS], 64);
	for (int k = 0; k < QUOTA_KINDS; k++)
		assert_int_equal(c.limits[k], quota_default_limits[k]);
}

static void every_key_is_taken(void **state)
{
	struct config c = must_parse(
		"[server]\n"
		"socket = /run/w.sock\n"
		"socket-mode=0600\n"
		"reserve = 2G ; a comment\n"
		"log-level\t=\tdebug\r\n"
		"  admin-group = 1234\n"
		"\n# comment\n; comment\n"
		"[store]\nmax = 12\nresume-timeout = 0\n"
		"[limits] # of each\n"
		"connections = 1\nleases = 2\nbuffers = 3\nversions = 4\n"
		"bytes = 5K\ndescriptors = unlimited\nrequests = 7\nheld = 6M\nover = kill\n"
		"[defaults]\nmode = 0600\nkeep = 32");

	(void)state;
	assert_string_equal(c.socket, "/run/w.sock");
	assert_int_equal(c.socket_mode, 0600);
	assert_int_equal(c.reserve, 2 * GIB);
	assert_int_equal(c.log_level, LOG_LEVEL_DEBUG);
	assert_int_equal(c.admin_gid, 1234);
	assert_int_equal(c.store_max, 12);
	assert_int_equal(c.resume_timeout_s, 0);
	assert_int_equal(c.limits[QUOTA_SESSIONS], 1);
	assert_int_equal(c.limits[QUOTA_LEASES], 2);
	assert_int_equal(c.limits[QUOTA_BUFFERS], 3);
	assert_int_equal(c.limits[QUOTA_VERSIONS], 4);
	assert_int_equal(c.limits[QUOTA_BYTES], 5 * KIB);
	assert_true(c.limits[QUOTA_DESCRIPTORS] == UINT64_MAX);
	assert_int_equal(c.limits[QUOTA_REQUESTS], 7);
	assert_int_equal(c.limits[QUOTA_HELD], 6 * MIB);
	assert_int_equal(c.over, CONFIG_OVER_KILL);
	assert_int_equal(c.mode, 0600);
	assert_int_equal(c.keep, 32);
	assert_int_equal(c.n_overrides, 0);
}

static void one_user_has_limits_of_its_own_wherever_they_stand(void **state)
{
	struct config c = must_parse("[limits:4001]\nbytes = 1M\n[limits:root]\nleases = 0\n"
				     "[limits]\nbytes = 1G\n[limits:4001]\nbuffers = 7\n");

	(void)state;
	assert_int_equal(c.n_overrides, 2);
	assert_int_equal(c.overrides[0].uid, 4001);
	assert_int_equal(c.overrides[0].kinds, 1u << QUOTA_BYTES | 1u << QUOTA_BUFFERS);
	assert_int_equal(c.overrides[0].limits[QUOTA_BYTES], MIB);
	assert_int_equal(c.overrides[0].limits[QUOTA_BUFFERS], 7);
	assert_int_equal(c.overrides[1].uid, 0);
	assert_int_equal(c.overrides[1].kinds, 1u << QUOTA_LEASES);
	assert_int_equal(c.overrides[1].limits[QUOTA_LEASES], 0);
	assert_int_equal(c.limits[QUOTA_BYTES], GIB);
	config_deinit(&c);
}

static void a_group_is_a_name_or_a_number_or_nobody(void **state)
{
	struct config c = must_parse("[server]\nadmin-group = root\n");

	(void)state;
	assert_int_equal(c.admin_gid, 0);
	c = must_parse("[server]\nadmin-group =\n");
	assert_true(c.admin_gid == (gid_t)-1);
}

#define SECTIONS                                                                                   \
	"there are [server], [store], [limits], [limits:USER], [names], [cuda] and [defaults]"
#define NO_LINE "this is no [section], no 'key = value' and no '# comment'\n"
#define LIMIT_KEYS                                                                                 \
	"connections, leases, buffers, versions, bytes, descriptors, requests, held, loop, over, trusted, subuid"

#define NO_PATTERN                                                                                  \
	"matches no name of a buffer: a pattern is a name (letters, digits and . _ / : -), or the " \
	"start of names and one '*' at its end: llama/*\n"
#define GIVE_USERS                                                                                 \
	"; give users, @groups (names or numbers), or * for all users, with blanks between them\n"

static const struct {
	const char *text;
	const char *errors;
} wrong[] = {
	{"[sever]\nsocket = /s\nkeep = 1\n",
	 "weightd: w.conf:1: there is no section [sever]; " SECTIONS ". Is [server] meant?\n"},
	{"[Server]\n",
	 "weightd: w.conf:1: there is no section [Server]; " SECTIONS ". Is [server] meant?\n"},
	{"[limtis root]\n", "weightd: w.conf:1: there is no section [limtis root]; " SECTIONS
			    ". Is [limits] meant?\n"},
	{"[peer]\n", "weightd: w.conf:1: there is no section [peer]; " SECTIONS "\n"},
	{"[sync]\n", "weightd: w.conf:1: there is no section [sync]; " SECTIONS "\n"},
	{"\n[]\n", "weightd: w.conf:2: there is no section []; " SECTIONS "\n"},
	{"[limits\nbytes = 1\n", "weightd: w.conf:1: " NO_LINE},
	{"[store]\n[limits\nmax = 1\n", "weightd: w.conf:2: " NO_LINE},
	{"[limits] bytes = 1\n", "weightd: w.conf:1: " NO_LINE},
	{"[limits]\nbytes\n", "weightd: w.conf:2: " NO_LINE},
	{"keep = 2\n", "weightd: w.conf:1: 'keep' comes before the first [section]\n"},
	{"[limits]\nbyte = 1\n\nkeep = 1\n",
	 "weightd: w.conf:2: [limits] has no key 'byte'; it has " LIMIT_KEYS ". Is 'bytes' meant?\n"
	 "weightd: w.conf:4: [limits] has no key 'keep'; it has " LIMIT_KEYS "\n"},
	{"[limits:0]\nkeep = 1\n",
	 "weightd: w.conf:2: [limits] has no key 'keep'; it has " LIMIT_KEYS "\n"},
	{"[store]\n= 3\n", "weightd: w.conf:2: [store] has no key ''; it has max, resume-timeout\n"},
	{"[store]\n*=\n", "weightd: w.conf:2: [store] has no key '*'; it has max, resume-timeout\n"},
	{"[defaults]\nkeep = 1\n[store]\n[defaults]\nkeep = 2\n",
	 "weightd: w.conf:5: 'keep' was given in line 2; give it once\n"},
	{"[limits:0]\nover = kill\n",
	 "weightd: w.conf:2: 'over' is for all users: write it in [limits]\n"},
	{"[limits:0]\nbytes = 1\n[limits:root]\nbytes = 2\n",
	 "weightd: w.conf:4: 'bytes' was given in line 2; give it once\n"},
	{"[limits:no-such-user]\nbytes = 1\n",
	 "weightd: w.conf:1: there is no user 'no-such-user'; give the name of one, or a number\n"},
	{"[limits:4294967295]\n",
	 "weightd: w.conf:1: there is no user '4294967295'; give the name of one, or a number\n"},
	{"[limits:]\n",
	 "weightd: w.conf:1: there is no user ''; give the name of one, or a number\n"},
	{"[defaults]\nkeep = 1\n keep = 2\n",
	 "weightd: w.conf:3: 'keep' was given in line 2; give it once\n"},
	{"[defaults]\nkeep = 1\n  2\n", "weightd: w.conf:3: " NO_LINE},
	{"[name]\n",
	 "weightd: w.conf:1: there is no section [name]; " SECTIONS ". Is [names] meant?\n"},
	{"[names:root]\na = root\n",
	 "weightd: w.conf:1: there is no section [names:root]; " SECTIONS ". Is [names] meant?\n"},
	{"[names]\na b = root\n", "weightd: w.conf:2: 'a b' " NO_PATTERN},
	{"[names]\n\n/a = root\n", "weightd: w.conf:3: '/a' " NO_PATTERN},
	{"[names]\n*a = root\n", "weightd: w.conf:2: '*a' " NO_PATTERN},
	{"[names]\na*b* = root\n", "weightd: w.conf:2: 'a*b*' " NO_PATTERN},
	{"[names]\na:b@3 = root\n", "weightd: w.conf:2: 'a:b@3' " NO_PATTERN},
	{"[names]\n= root\n", "weightd: w.conf:2: '' " NO_PATTERN},
	{"[names]\na = no-such-user\nb = root @no-such-group\nc = root,nobody\n",
	 "weightd: w.conf:2: there is no user 'no-such-user'" GIVE_USERS
	 "weightd: w.conf:3: there is no group 'no-such-group'; give the name of one behind the '@', "
	 "or a number\n"
	 "weightd: w.conf:4: there is no user 'root,nobody'" GIVE_USERS},
	{"[names]\na = @\n", "weightd: w.conf:2: there is no group ''; give the name of one behind "
			     "the '@', or a number\n"},
	{"[names]\na = 4294967295\n", "weightd: w.conf:2: there is no user '4294967295'" GIVE_USERS},
	{"[names]\na* =\n",
	 "weightd: w.conf:2: 'a*' has no users; give users, @groups (names or numbers), * for all "
	 "users, or root for administrators alone\n"},
	{"[names]\na* = 1\na = 2\n[limits]\n[names]\na* = 3\n",
	 "weightd: w.conf:6: 'a*' was given in line 2; give it once\n"},
	{"[defaults]\nkeep = \033[2J\n", "weightd: w.conf:2: a control character is in the way\n"},
};

static void an_error_is_told_with_its_line(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		must_fail(wrong[i].text, wrong[i].errors);
}

/* A key, a value beyond its bounds, and the text behind "does not take". */
static const struct {
	const char *section, *key, *value, *takes;
} bad_values[] = {
	{"server", "socket-mode", "01000", "octal digits up to 0777"},
	{"server", "socket-mode", "0999", "octal digits up to 0777"},
	{"server", "socket-mode", "", "octal digits up to 0777"},
	{"server", "reserve", "much", "bytes, a number with K, M, G or T, or auto"},
	{"server", "reserve", "unlimited", "bytes, a number with K, M, G or T, or auto"},
	{"server", "log-level", "loud", "error, warning, info or debug"},
	{"server", "admin-group", "no-such-group", "the name of a group there is, or a number"},
	{"server", "admin-group", "4294967295", "the name of a group there is, or a number"},
	{"store", "max", "1000001", "0 to 1000000"},
	{"store", "resume-timeout", "30s", "0 to 86400"},
	{"store", "resume-timeout", "-1", "0 to 86400"},
	{"limits", "connections", "4k", "a number, auto or unlimited"},
	{"limits", "leases", "+1", "a number, auto or unlimited"},
	{"limits", "descriptors", "half", "a number, auto or unlimited"},
	{"limits", "leases", "18446744073709551616", "a number, auto or unlimited"},
	{"limits", "bytes", "-1", "bytes, a number with K, M, G or T, or unlimited"},
	{"limits", "bytes", "1e9", "bytes, a number with K, M, G or T, or unlimited"},
	{"limits", "bytes", "", "bytes, a number with K, M, G or T, or unlimited"},
	{"limits", "held", "half", "bytes, a number with K, M, G or T, auto, or unlimited"},
	{"limits:4001", "held", "-1", "bytes, a number with K, M, G or T, auto, or unlimited"},
	{"limits", "over", "yes", "keep or kill"},
	{"limits:4001", "bytes", "auto", "bytes, a number with K, M, G or T, or unlimited"},
	{"defaults", "mode", "0667", "octal digits up to 0666"},
	{"defaults", "keep", "0", "1 to 32"},
	{"defaults", "keep", "33", "1 to 32"},
};

static void a_bad_value_is_told_with_what_is_allowed(void **state)
{
	char text[256], ending[256];
	struct config c;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(bad_values); i++) {
		(void)snprintf(text, sizeof(text), "\n[%s]\n%s = %s\n", bad_values[i].section,
			       bad_values[i].key, bad_values[i].value);
		(void)snprintf(ending, sizeof(ending), ") does not take '%s'; it takes %s\n",
			       bad_values[i].value, bad_values[i].takes);
		assert_int_equal(parse(text, &c), -EINVAL);
		if (strncmp(said, "weightd: w.conf:3: '", 20) || !strstr(said, ending))
			fail_msg("of '%s'\nwanted: ...%sgot: %s", text, ending, said);
	}
}

static void the_bounds_themselves_are_taken(void **state)
{
	struct config c = must_parse(
		"[store]\nmax = 1000000\nresume-timeout = 86400\n"
		"[server]\nsocket-mode = 0777\nsocket =\n"
		"[limits]\nbytes = 0\nleases = 0\nversions = unlimited\nbuffers = auto\n"
		"[defaults]\nmode = 0666\nkeep = 1\n");

	(void)state;
	assert_int_equal(c.store_max, 1000000);
	assert_int_equal(c.limits[QUOTA_BYTES], 0);
	assert_true(c.limits[QUOTA_VERSIONS] == UINT64_MAX);
	assert_true(c.limits[QUOTA_BUFFERS] == QUOTA_AUTO);
	assert_int_equal(c.keep, 1);
}

static void a_path_is_as_long_as_a_socket_takes(void **state)
{
	char text[256];
	struct config c;

	(void)state;
	(void)snprintf(text, sizeof(text), "[server]\nsocket = /%0106d\n", 0);
	c = must_parse(text);
	assert_int_equal(strlen(c.socket), 107);
	(void)snprintf(text, sizeof(text), "[server]\nsocket = /%0107d\n", 0);
	assert_int_equal(parse(text, &c), -EINVAL);
	assert_non_null(strstr(said, "it takes at most 107 bytes"));
}

/* Nothing of a long line is cut off, or taken for a line of its own. */
static void a_line_is_taken_whole_or_refused(void **state)
{
	static const char too_long[] =
		"weightd: w.conf:2: too long: a line has at most 196 bytes, the name of a "
		"section 48\n";
	char text[1024];
	struct config c;

	(void)state;
	(void)snprintf(text, sizeof(text), "[defaults]\nkeep = %*d\n", INI_LINE_MAX - 7, 5);
	c = must_parse(text);
	assert_int_equal(c.keep, 5);
	(void)snprintf(text, sizeof(text), "[defaults]\nkeep = %*d\n", INI_LINE_MAX - 6, 5);
	must_fail(text, too_long);
	(void)snprintf(text, sizeof(text), "[defaults]\n# %*s\nkeep = 7\n", 900, "keep = 3");
	c = must_parse(text);
	assert_int_equal(c.keep, 7);
	(void)snprintf(text, sizeof(text), "[defaults]\n[limits:%042d]\nbytes = 0\n", 1);
	must_fail(text, too_long);
	(void)snprintf(text, sizeof(text), "[limits:%041d]\nbytes = 3\n", 1);
	c = must_parse(text);
	assert_int_equal(c.overrides[0].uid, 1);
	config_deinit(&c);
}

static void a_pattern_is_as_long_as_a_name(void **state)
{
	char text[256];
	struct config c;

	(void)state;
	for (int length = 127; length <= 128; length++) {
		(void)snprintf(text, sizeof(text), "[names]\n%0*d* = root\n", length - 1, 0);
		assert_int_equal(parse(text, &c), length == 127 ? 0 : -EINVAL);
		if (length == 127)
			config_deinit(&c);
	}
	assert_non_null(strstr(said, "is too long: names of buffers have at most 127 bytes"));
}

static void there_are_as_many_patterns_as_allowed(void **state)
{
	const size_t size = 65536;
	char *text = calloc(1, size);
	struct config c;
	size_t n;

	(void)state;
	assert_non_null(text);
	n = (size_t)snprintf(text, size, "[names]\n");
	for (int i = 0; i < 1024; i++)
		n += (size_t)snprintf(text + n, size - n, "m%d = %d\n", i, i);
	c = must_parse(text);
	config_deinit(&c);
	(void)snprintf(text + n, size - n, "more = root\n");
	must_fail(text, "weightd: w.conf:1026: more than 1024 patterns of names\n");
	free(text);
}

static void all_errors_are_told_up_to_twenty(void **state)
{
	char text[1024] = "[store]\n";
	struct config c;
	unsigned n = 0;

	(void)state;
	for (int i = 0; i < 25; i++)
		strcat(text, "what = 1\n");
	assert_int_equal(parse(text, &c), -EINVAL);
	for (const char *p = said; (p = strchr(p, '\n')); p++)
		n++;
	assert_int_equal(n, 21);
	assert_non_null(strstr(said, "w.conf:2: "));
	assert_non_null(strstr(said, "w.conf:21: "));
	assert_null(strstr(said, "w.conf:22: "));
	assert_non_null(strstr(said, "w.conf: 5 more errors are not shown\n"));
}

static void what_is_no_text_is_refused(void **state)
{
	static const char text[] = "[defaults]\nkeep = 3\n\0keep = nonsense\n";
	struct config c;

	(void)state;
	assert_int_equal(parse_bytes(text, sizeof(text) - 1, &c), -EINVAL);
	assert_string_equal(said, "weightd: w.conf: a zero byte is in the way; this is no text\n");
}

static void a_reload_changes_what_can_change(void **state)
{
	struct config c = must_parse(""), next;

	(void)state;
	next = must_parse("[server]\nlog-level = debug\nadmin-group = 77\n[limits]\nbytes = 1G\n"
			  "[defaults]\nkeep = 5\nmode = 0600\n");
	config_reload(&c, &next);
	assert_int_equal(c.log_level, LOG_LEVEL_DEBUG);
	assert_int_equal(c.admin_gid, 77);
	assert_int_equal(c.limits[QUOTA_BYTES], GIB);
	assert_int_equal(c.keep, 5);
	assert_int_equal(c.mode, 0600);
	next = must_parse("[server]\nsocket = /elsewhere\nsocket-mode = 0600\nreserve = 1G\n"
			  "[store]\nmax = 1\nresume-timeout = 1\n");
	log_init((enum log_level)0); /* logged for each */
	config_reload(&c, &next);
	log_init(LOG_LEVEL_INFO);
	assert_string_equal(c.socket, "");
	assert_int_equal(c.socket_mode, 0660);
	assert_true(c.reserve == HEADROOM_RESERVE_DEFAULT);
	assert_int_equal(c.store_max, 6000);
	assert_int_equal(c.resume_timeout_s, 30);
	assert_int_equal(c.keep, 2); /* the file has no 5 any more */
}

/* --- Its documentation --- */

static char *read_file(const char *path)
{
	FILE *f = fopen(path, "r");
	char *text = calloc(1, 65536);

	if (!f || !text)
		fail_msg("cannot read %s", path);
	assert_true(fread(text, 1, 65535, f) > 0);
	(void)fclose(f);
	return text;
}

/* The text between `head` and the next line that starts with `next`. */
static char *cut(const char *text, const char *head, const char *next)
{
	const char *from = strstr(text, head), *to;

	if (!from)
		fail_msg("there is no '%s'", head);
	from += strlen(head);
	to = strstr(from, next);
	return to ? strndup(from, (size_t)(to - from)) : strdup(from);
}

/* As man(1) fills it: lines break anywhere. */
static void fill(char *text)
{
	char *to = text;

	for (const char *from = text; *from; from++) {
		char c = *from == '\n' || *from == '\t' ? ' ' : *from;

		if (c != ' ' || to == text || to[-1] != ' ')
			*to++ = c;
	}
	*to = '\0';
}

static void upper(char *s)
{
	for (; *s; s++)
		if (*s >= 'a' && *s <= 'z')
			*s = (char)(*s - 32);
}

static void the_man_page_has_every_key_and_its_default(void **state)
{
	char *page = read_file("packaging/man/weightd.conf.5.scd");

	(void)state;
	for (unsigned i = 0; i < config_n_keys; i++) {
		const struct setting *key = &config_keys[i];
		char head[64], wanted[64], *section, *entry;

		(void)snprintf(head, sizeof(head), "\n# [%s]\n", key->section);
		upper(head);
		section = cut(page, head, "\n# ");
		(void)snprintf(head, sizeof(head), "\n*%s* = ", key->name);
		entry = cut(section, head, "\n*");
		fill(entry);
		(void)snprintf(wanted, sizeof(wanted), " Default: %s.",
			       key->fallback[0] ? key->fallback : "empty");
		if (!strstr(entry, wanted))
			fail_msg("[%s] %s lacks its default %s", key->section, key->name, wanted);
		free(entry);
		free(section);
	}
	free(page);
}

static void the_man_page_and_the_example_show_reserved_names(void **state)
{
	char *page = read_file("packaging/man/weightd.conf.5.scd");
	char *example = read_file("packaging/weightd.conf");
	char *section = cut(page, "\n# [NAMES]\n", "\n# ");

	(void)state;
	assert_non_null(strstr(section, "\n*PATTERN* = "));
	assert_non_null(strstr(example, "\n[names]\n# llama/* = @"));
	free(section);
	free(example);
	free(page);
}

/* "#key = value" of the example, with the '#' taken away. Returns how many. */
static unsigned uncomment(char *text)
{
	unsigned n = 0;

	for (char *p = text; (p = strstr(p, "\n#")); p++) {
		if (p[2] == ' ' || p[2] == '\n')
			continue;
		p[1] = ' ';
		n++;
	}
	return n;
}

static void the_example_shows_every_key_at_its_default(void **state)
{
	char *example = read_file("packaging/weightd.conf");
	struct config defaults, c;

	(void)state;
	config_init(&defaults);
	c = must_parse(example);
	assert_memory_equal(&c, &defaults, sizeof(c));
	assert_int_equal(uncomment(example), config_n_keys);
	c = must_parse(example); /* no unknown one, none twice: so it is each of them */
	assert_memory_equal(&c, &defaults, sizeof(c));
	free(example);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_defaults_are_those_of_the_table),
		cmocka_unit_test(every_key_is_taken),
		cmocka_unit_test(one_user_has_limits_of_its_own_wherever_they_stand),
		cmocka_unit_test(a_group_is_a_name_or_a_number_or_nobody),
		cmocka_unit_test(an_error_is_told_with_its_line),
		cmocka_unit_test(a_bad_value_is_told_with_what_is_allowed),
		cmocka_unit_test(the_bounds_themselves_are_taken),
		cmocka_unit_test(a_path_is_as_long_as_a_socket_takes),
		cmocka_unit_test(a_line_is_taken_whole_or_refused),
		cmocka_unit_test(a_pattern_is_as_long_as_a_name),
		cmocka_unit_test(there_are_as_many_patterns_as_allowed),
		cmocka_unit_test(all_errors_are_told_up_to_twenty),
		cmocka_unit_test(what_is_no_text_is_refused),
		cmocka_unit_test(a_reload_changes_what_can_change),
		cmocka_unit_test(the_man_page_has_every_key_and_its_default),
		cmocka_unit_test(the_man_page_and_the_example_show_reserved_names),
		cmocka_unit_test(the_example_shows_every_key_at_its_default),
	};
	struct ini_line line;

	if (ini_line_read("", &line) == -ENOSYS) {
		puts("weightd was built without inih (libinih-dev)");
		return SKIP;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
