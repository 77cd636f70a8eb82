/*
 * Users and groups, from the databases of the machine. A name that cannot be found is no failure: the number
 * identifies the user, too.
 */
#include "libclient/weightctl/output/user.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/permission.h"

#include "libclient/weightctl/output/cli_error.h"

#define ID_MAX (UINT32_MAX - 1) /* the last number is the kernel's word for none */

static_assert(sizeof(uid_t) == sizeof(uint32_t) && sizeof(gid_t) == sizeof(uint32_t), "ids");

/* Tables repeat a few users, and each look-up may go over a network. */
struct known {
	char name[PERMISSION_NAME_MAX]; /* "": none yet */
	uint32_t id;
	bool is_named;
};

static struct known known_user, known_group;

const char *user_name(uint32_t uid)
{
	if (!*known_user.name || known_user.id != uid)
		known_user.is_named = permission_user_name(uid, known_user.name);
	known_user.id = uid;
	return known_user.name;
}

const char *user_group_name(uint32_t gid)
{
	if (!*known_group.name || known_group.id != gid)
		known_group.is_named = permission_group_name(gid, known_group.name);
	known_group.id = gid;
	return known_group.name;
}

/*
 * The name for the number that ends at `at`, behind one of the words that stand before those. NULL: there is
 * no such number, or no name for it.
 */
static const char *name_at(const char *start, const char *at)
{
	static const struct {
		const char *word;
		struct known *known;
		const char *(*name)(uint32_t id);
	} kinds[] = {
		{"uid ", &known_user, user_name},
		{"gid ", &known_group, user_group_name},
		{"group ", &known_group, user_group_name},
	};
	const char *digits = at;
	const char *name;
	uint32_t id;

	while (digits > start && isdigit((unsigned char)digits[-1]))
		digits--;
	if (digits == at || at - digits > 10)
		return NULL;
	id = (uint32_t)strtoul(digits, NULL, 10);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		size_t n = strlen(kinds[i].word);

		if ((size_t)(digits - start) < n || memcmp(digits - n, kinds[i].word, n) != 0)
			continue;
		name = kinds[i].name(id);
		return kinds[i].known->is_named ? name : NULL;
	}
	return NULL;
}

char *user_annotate(const char *sentence)
{
	bool is_quoted = false;
	size_t size;
	char *text;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		cli_out_of_memory();
	for (const char *c = sentence; *c; c++) {
		const char *name = NULL;

		/* Not the apostrophe inside of a word. */
		if (*c == '\'')
			is_quoted = !is_quoted && (c == sentence || !isalpha((unsigned char)c[-1]));
		(void)fputc(*c, f);
		if (!is_quoted && isdigit((unsigned char)*c) && !isdigit((unsigned char)c[1]))
			name = name_at(sentence, c + 1);
		if (name)
			(void)fprintf(f, " (%s)", name);
	}
	if (fclose(f) < 0)
		cli_out_of_memory();
	return text;
}

static int parse_id(const char *arg, uint32_t *ret)
{
	unsigned long n;
	char *end;

	if (!isdigit((unsigned char)*arg)) /* strtoul() takes signs and spaces */
		return -ENOENT;
	errno = 0;
	n = strtoul(arg, &end, 10);
	if (errno || *end || n > ID_MAX)
		return -ENOENT;
	*ret = (uint32_t)n;
	return 0;
}

int user_parse(const char *arg, uint32_t *ret_uid)
{
	const struct passwd *pw = getpwnam(arg);

	if (!pw)
		return parse_id(arg, ret_uid);
	*ret_uid = pw->pw_uid;
	return 0;
}

int user_parse_group(const char *arg, uint32_t *ret_gid)
{
	const struct group *gr = getgrnam(arg);

	if (!gr)
		return parse_id(arg, ret_gid);
	*ret_gid = gr->gr_gid;
	return 0;
}

int user_login_group(uint32_t uid, uint32_t *ret_gid)
{
	const struct passwd *pw = getpwuid(uid);

	if (!pw)
		return -ENOENT;
	*ret_gid = pw->pw_gid;
	return 0;
}
