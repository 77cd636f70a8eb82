#include "server/state/config.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/list.h"
#include "ipc/base/num.h"
#include "server/base/nss.h"
#include "server/base/settings.h"
#include "server/base/subordinate.h"
#include "server/state/buffer_names.h"

#define OVERRIDES_MAX 1024

#define KEY(s, n, t, member, ...)                                                                  \
	{                                                                                          \
		.section = s, .name = n, .type = t, .offset = offsetof(struct config, member),     \
		__VA_ARGS__                                                                        \
	}
#define LIMIT(n, t, kind, ...)                                                                     \
	KEY("limits", n, t, limits[kind], .max = UINT64_MAX, .word = "unlimited", .reloads = true, \
	    __VA_ARGS__)
#define SHARED(n, kind, ...)                                                                       \
	LIMIT(n, &setting_count, kind, .other_word = "auto", .fallback = "auto", __VA_ARGS__)

static int setting_parse_over(const struct setting *setting, const char *text, void *ret)
{
	(void)setting;
	if (strcmp(text, "keep") != 0 && strcmp(text, "kill") != 0)
		return -EINVAL;
	*(enum config_over *)ret = !strcmp(text, "kill") ? CONFIG_OVER_KILL : CONFIG_OVER_KEEP;
	return 0;
}

static void setting_describe_over(const struct setting *setting, char *buf, size_t size)
{
	(void)setting;
	(void)snprintf(buf, size, "keep or kill");
}

static const struct setting_type setting_over = {
	.size = sizeof(enum config_over),
	.parse = setting_parse_over,
	.describe = setting_describe_over,
};

static int setting_parse_users(const struct setting *setting, const char *text, void *ret)
{
	cleanup(freep) char *words = strdup(text);
	char *rest = words, *word;
	struct config_users users = {.n = 0};

	(void)setting;
	if (!words)
		return -EINVAL;
	while ((word = strsep(&rest, " \t"))) {
		if (!*word)
			continue;
		if (users.n == CONFIG_USERS_MAX || nss_find_user(word, &users.uids[users.n]) < 0)
			return -EINVAL;
		users.n++;
	}
	*(struct config_users *)ret = users;
	return 0;
}

static void setting_describe_users(const struct setting *setting, char *buf, size_t size)
{
	(void)setting;
	(void)snprintf(buf, size,
		       "at most %d users that exist, names or numbers, with blanks between them",
		       CONFIG_USERS_MAX);
}

static const struct setting_type setting_users = {
	.size = sizeof(struct config_users),
	.parse = setting_parse_users,
	.describe = setting_describe_users,
};

const struct setting config_keys[] = {
	KEY("server", "socket", &setting_text, socket, .max = sizeof(((struct config *)0)->socket),
	    .fallback = "", .help = "path of the socket"),
	KEY("server", "socket-mode", &setting_mode, socket_mode, .max = 0777, .fallback = "0660",
	    .help = "permission bits of the socket"),
	KEY("server", "reserve", &setting_bytes, reserve, .max = INT64_MAX, .word = "auto",
	    .fallback = "auto", .help = "memory to leave to other programs"),
	KEY("server", "log-level", &setting_level, log_level, .fallback = "info", .reloads = true,
	    .help = "level of the log"),
	KEY("server", "admin-group", &setting_group, admin_gid, .fallback = "", .reloads = true,
	    .help = "group whose members have the rights of root"),
	KEY("store", "max", &setting_count, store_max, .max = 1000000, .fallback = "6000",
	    .help = "descriptors that the service manager's store holds"),
	KEY("store", "resume-timeout", &setting_count, resume_timeout_s, .max = 86400,
	    .fallback = "30", .help = "seconds for clients to return after a restart"),
	SHARED("connections", QUOTA_SESSIONS, .help = "connections of one user"),
	SHARED("leases", QUOTA_LEASES, .help = "versions one user has attached, each attach counted"),
	SHARED("buffers", QUOTA_BUFFERS, .help = "buffers one user owns"),
	SHARED("versions", QUOTA_VERSIONS, .help = "versions one user has published or is writing"),
	LIMIT("bytes", &setting_bytes, QUOTA_BYTES, .fallback = "unlimited",
	      .help = "memory of those versions"),
	SHARED("descriptors", QUOTA_DESCRIPTORS, .help = "descriptors the store keeps for one user"),
	LIMIT("requests", &setting_count, QUOTA_REQUESTS, .min = 1, .fallback = "64",
	      .help = "requests of one user that weightd works on at a time"),
	LIMIT("held", &setting_bytes, QUOTA_HELD, .other_word = "auto", .fallback = "auto",
	      .help = "memory that exists only because one user reads it"),
	KEY("limits", "loop", &setting_count, loop_ms, .min = 1, .max = 1000, .fallback = "125",
	    .reloads = true, .help = "milliseconds of each second that weightd works for one user"),
	KEY("limits", "over", &setting_over, over, .fallback = "keep", .reloads = true,
	    .help = "fate of readers of a user above held"),
	KEY("limits", "trusted", &setting_users, trusted, .fallback = "", .reloads = true,
	    .help = "owners of buffers whose readers may be killed"),
	KEY("limits", "subuid", &setting_text, subuid, .max = sizeof(((struct config *)0)->subuid),
	    .fallback = "/etc/subuid", .reloads = true,
	    .help = "file of the ranges of subordinate users"),
	KEY("cuda", "enabled", &setting_switch, cuda_enabled, .fallback = "yes",
	    .help = "allow buffers on GPUs"),
	KEY("cuda", "allocator", &setting_text, cuda_allocator,
	    .max = sizeof(((struct config *)0)->cuda_allocator), .fallback = "",
	    .help = "the program that allocates GPU memory"),
	KEY("cuda", "reserve", &setting_bytes, cuda_reserve, .max = INT64_MAX, .fallback = "256M",
	    .help = "memory of each GPU to leave to other programs"),
	KEY("cuda", "timeout", &setting_count, cuda_timeout_s, .min = 1, .max = 3600,
	    .fallback = "30", .help = "seconds after which a GPU that does not answer hangs"),
	KEY("cuda", "idle-timeout", &setting_count, cuda_idle_timeout_s, .max = 86400,
	    .fallback = "10", .help = "seconds until an idle allocator is ended"),
	KEY("defaults", "mode", &setting_mode, mode, .max = 0666, .fallback = "0640",
	    .reloads = true, .help = "permission bits of a buffer by default"),
	KEY("defaults", "keep", &setting_count, keep, .min = 1, .max = 32, .fallback = "2",
	    .reloads = true, .help = "versions that a buffer keeps by default"),
};
const unsigned config_n_keys = ARRAY_LEN(config_keys);

void config_init(struct config *c)
{
	*c = (struct config){0};
	memcpy(c->limits, quota_default_limits, sizeof(c->limits)); /* some have no key */
	for (size_t i = 0; i < ARRAY_LEN(config_keys); i++) {
		const struct setting *key = &config_keys[i];
		int r = setting_parse(key, key->fallback, (char *)c + key->offset);

		assert(r == 0);
	}
}

void config_deinit(struct config *c)
{
	free(take_ptr(c->overrides));
	c->n_overrides = 0;
	c->names = buffer_names_free(c->names);
	free(take_ptr(c->subordinates.ranges));
}

int config_set(struct config *c, const char *name, const char *value)
{
	for (size_t i = 0; i < ARRAY_LEN(config_keys); i++) {
		const struct setting *key = &config_keys[i];

		if (!strcmp(key->section, "server") && !strcmp(key->name, name))
			return setting_parse(key, value, (char *)c + key->offset);
	}
	return -EINVAL;
}

void config_give(struct config *c, const struct config_source *source)
{
	for (unsigned i = 0; i < CONFIG_GIVEN_MAX && source->given[i].key; i++)
		(void)config_set(c, source->given[i].key, source->given[i].value);
}

/* --- the file --- */

struct parser {
	struct settings settings;
	struct config config;
	int user; /* index of its override, -1 outside of [limits:USER] */
	unsigned (*lines)[ARRAY_LEN(config_keys)]; /* lines of the keys of each override */
};

static struct parser *parser_of(struct settings *s)
{
	return container_of(s, struct parser, settings);
}

/* The override of the user, made when there is none. -1: the error was reported. */
static int find_override(struct parser *p, const char *user)
{
	struct config *c = &p->config;
	struct quota_override *more;
	void *lines;
	uid_t uid;

	if (nss_find_user(user, &uid) < 0) {
		settings_report(&p->settings,
				"there is no user '%s'; give the name of one, or a number", user);
		return -1;
	}
	for (unsigned i = 0; i < c->n_overrides; i++)
		if (c->overrides[i].uid == uid)
			return (int)i;
	if (c->n_overrides == OVERRIDES_MAX) {
		settings_report(&p->settings, "more than %d users have limits of their own",
				OVERRIDES_MAX);
		return -1;
	}
	more = reallocarray(c->overrides, c->n_overrides + 1, sizeof(*more));
	c->overrides = more ? more : c->overrides;
	lines = reallocarray(p->lines, c->n_overrides + 1, sizeof(*p->lines));
	p->lines = lines ? lines : p->lines;
	if (!more || !lines) {
		settings_report(&p->settings, "out of memory");
		return -1;
	}
	more[c->n_overrides] = (struct quota_override){.uid = uid};
	memset(p->lines[c->n_overrides], 0, sizeof(*p->lines));
	return (int)c->n_overrides++;
}

static bool config_open_section(struct settings *s, const char *name)
{
	static const char of_user[] = "limits:";
	struct parser *p = parser_of(s);

	p->user = -1;
	if (strncmp(name, of_user, strlen(of_user)) != 0)
		return false;
	p->user = find_override(p, name + strlen(of_user));
	if (p->user >= 0) {
		s->section = "limits";
		s->seen = p->lines[p->user];
	}
	return true;
}

static bool is_of_user(const struct setting *key)
{
	size_t start = offsetof(struct config, limits);

	return key->offset >= start && key->offset < start + sizeof(((struct config *)0)->limits);
}

static void *config_place(struct settings *s, const struct setting *key)
{
	struct parser *p = parser_of(s);
	struct quota_override *o;
	size_t kind;

	if (p->user >= 0 && !is_of_user(key))
		settings_report(s, "'%s' is for all users: write it in [limits]", key->name);
	if (p->user < 0 || !is_of_user(key))
		return (char *)&p->config + key->offset;
	o = &p->config.overrides[p->user];
	kind = (key->offset - offsetof(struct config, limits)) / sizeof(o->limits[0]);
	o->kinds |= 1u << kind;
	return &o->limits[kind];
}

static void config_on_name(struct settings *s, const char *name, const char *value)
{
	buffer_names_add(&parser_of(s)->config.names, s, name, value);
}

static const struct settings_form form = {
	.program = "weightd",
	.keys = config_keys,
	.n_keys = ARRAY_LEN(config_keys),
	.sections = "[server], [store], [limits], [limits:USER], [names], [cuda] and [defaults]",
	.splits = "",
	.open = config_open_section,
	.open_section = "names",
	.entry = config_on_name,
	.place = config_place,
};

int config_parse(const char *path, const char *text, size_t size, struct config *ret)
{
	struct parser p = {.settings = {.form = &form, .path = path}, .user = -1};
	int r;

	config_init(&p.config);
	r = settings_parse(&p.settings, text, size);
	free(p.lines);
	if (r < 0)
		config_deinit(&p.config);
	else
		*ret = p.config;
	return r;
}

static int load_file(const char *path, struct config *ret)
{
	cleanup(freep) char *text = NULL;
	uint64_t size;
	int r = settings_read(form.program, path, &text, &size);

	return r < 0 ? r : config_parse(path, text, size, ret);
}

int config_load(const struct config_source *source, struct config *ret)
{
	const char *path = source->path ? source->path : CONFIG_PATH;
	struct config c;
	int r = load_file(path, &c);

	if (r == -ENOENT && !source->path) {
		config_init(&c);
		r = 0;
	}
	if (r == -ENOENT)
		log_error("cannot read %s: %s", path, strerror(-r));
	if (r < 0)
		return r;
	config_give(&c, source);
	r = subordinates_load(c.subuid, &c.subordinates);
	if (r < 0)
		log_warning("%s has no effect, and subordinate users count as others: %s", c.subuid,
			    r == -EPERM ? "users other than root may write it" : strerror(-r));
	*ret = c;
	return 0;
}

/* --- reloading --- */

void config_reload(struct config *c, const struct config *next)
{
	for (size_t i = 0; i < ARRAY_LEN(config_keys); i++) {
		const struct setting *key = &config_keys[i];
		char *is = (char *)c + key->offset;
		const char *would_be = (const char *)next + key->offset;

		if (key->reloads)
			setting_copy(key, is, would_be);
		else if (!setting_equals(key, is, would_be))
			log_warning("[%s] %s has changed; it needs a restart", key->section,
				    key->name);
	}
}
