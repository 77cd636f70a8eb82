#include "server/config.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/ini.h"

#define FILE_SIZE_MAX (256 * KIB)
#define ERRORS_MAX 20
#define OVERRIDES_MAX 1024
#define NAMES_MAX 256 /* of all keys of a section, for a sentence */
#define LOOKUP_MAX (16 * MIB) /* for the record of a user or a group */

#define KEY(s, n, t, member, ...)                                                                  \
	{                                                                                          \
		.section = s, .name = n, .type = t, .offset = offsetof(struct config, member),     \
		__VA_ARGS__                                                                        \
	}
#define LIMIT(n, t, kind, ...)                                                                     \
	KEY("limits", n, t, limits[kind], .max = UINT64_MAX, .word = "unlimited", .reloads = true, \
	    __VA_ARGS__)

const struct config_key config_keys[] = {
	KEY("server", "socket", CONFIG_TEXT, socket, .max = sizeof(((struct config *)0)->socket),
	    .fallback = "", .help = "where to listen"),
	KEY("server", "socket-mode", CONFIG_MODE, socket_mode, .max = 0777, .fallback = "0660",
	    .help = "permission bits of the socket"),
	KEY("server", "reserve", CONFIG_SIZE, reserve, .max = INT64_MAX, .word = "auto",
	    .fallback = "auto", .help = "memory to leave to everybody else"),
	KEY("server", "log-level", CONFIG_LEVEL, log_level, .fallback = "info", .reloads = true,
	    .help = "how much is logged"),
	KEY("server", "admin-group", CONFIG_GROUP, admin_gid, .fallback = "", .reloads = true,
	    .help = "whose members may do what root may"),
	KEY("store", "max", CONFIG_COUNT, store_max, .max = 1000000, .fallback = "6000",
	    .help = "descriptors that the service manager's store holds"),
	KEY("store", "resume-timeout", CONFIG_COUNT, resume_timeout_s, .max = 86400,
	    .fallback = "30", .help = "seconds for clients to come back after a restart"),
	LIMIT("connections", CONFIG_COUNT, QUOTA_SESSIONS, .fallback = "4096",
	      .help = "connections of one user"),
	LIMIT("leases", CONFIG_COUNT, QUOTA_LEASES, .fallback = "65536",
	      .help = "versions one user has attached, each attach counted"),
	LIMIT("buffers", CONFIG_COUNT, QUOTA_BUFFERS, .fallback = "2048",
	      .help = "buffers one user owns"),
	LIMIT("versions", CONFIG_COUNT, QUOTA_VERSIONS, .fallback = "4096",
	      .help = "versions one user has published or is writing"),
	LIMIT("bytes", CONFIG_SIZE, QUOTA_BYTES, .fallback = "unlimited",
	      .help = "memory of those versions"),
	LIMIT("descriptors", CONFIG_COUNT, QUOTA_DESCRIPTORS, .fallback = "6000",
	      .help = "descriptors the store keeps for one user"),
	KEY("cuda", "enabled", CONFIG_BOOL, cuda_enabled, .fallback = "yes",
	    .help = "whether buffers may be on GPUs"),
	KEY("cuda", "allocator", CONFIG_TEXT, cuda_allocator,
	    .max = sizeof(((struct config *)0)->cuda_allocator), .fallback = "",
	    .help = "the program that allocates GPU memory"),
	KEY("cuda", "reserve", CONFIG_SIZE, cuda_reserve, .max = INT64_MAX, .fallback = "256M",
	    .help = "memory of each GPU to leave to everybody else"),
	KEY("cuda", "timeout", CONFIG_COUNT, cuda_timeout_s, .min = 1, .max = 3600,
	    .fallback = "30", .help = "seconds after which a GPU that does not answer hangs"),
	KEY("cuda", "idle-timeout", CONFIG_COUNT, cuda_idle_timeout_s, .max = 86400,
	    .fallback = "10", .help = "seconds until an allocator that nobody needs is ended"),
	KEY("defaults", "mode", CONFIG_MODE, mode, .max = 0666, .fallback = "0640", .reloads = true,
	    .help = "permission bits of a buffer whose writer names none"),
	KEY("defaults", "keep", CONFIG_COUNT, keep, .min = 1, .max = 32, .fallback = "2",
	    .reloads = true, .help = "versions a buffer keeps whose writer names no number"),
};
const unsigned config_n_keys = ARRAY_LEN(config_keys);

/* --- values --- */

static int parse_number(const char *s, int base, uint64_t *ret)
{
	unsigned long long v;
	char *end;

	if (!isdigit((unsigned char)*s))
		return -EINVAL; /* strtoull() takes signs and blanks */
	errno = 0;
	v = strtoull(s, &end, base);
	if (*end || errno)
		return -EINVAL;
	*ret = v;
	return 0;
}

/* 0, or an errno: ENOENT for nobody, ERANGE when the record (all members of a group) has no room. */
static int look_up_group(const char *name, char *room, size_t size, uint32_t *ret)
{
	struct group record, *found;
	int r = getgrnam_r(name, &record, room, size, &found);

	if (r == 0 && found)
		*ret = found->gr_gid;
	return r ? r : found ? 0 : ENOENT;
}

static int look_up_user(const char *name, char *room, size_t size, uint32_t *ret)
{
	struct passwd record, *found;
	int r = getpwnam_r(name, &record, room, size, &found);

	if (r == 0 && found)
		*ret = found->pw_uid;
	return r ? r : found ? 0 : ENOENT;
}

/* A number, or a name to be looked up. */
static int parse_id(const char *s, int (*look_up)(const char *, char *, size_t, uint32_t *),
		    uint32_t *ret)
{
	uint64_t number;
	int r = ERANGE;

	if (parse_number(s, 10, &number) == 0) {
		if (number >= UINT32_MAX)
			return -EINVAL;
		*ret = (uint32_t)number;
		return 0;
	}
	for (size_t size = 4 * KIB; r == ERANGE && size <= LOOKUP_MAX; size *= 4) {
		cleanup(freep) char *room = malloc(size);

		r = room ? look_up(s, room, size, ret) : ENOMEM;
	}
	return r ? -EINVAL : 0;
}

static int parse_group(const char *s, gid_t *ret)
{
	if (*s)
		return parse_id(s, look_up_group, ret);
	*ret = (gid_t)-1;
	return 0;
}

static int parse_bounded(const struct config_key *key, const char *value, uint64_t *ret)
{
	uint64_t v;
	int r;

	if (key->word && !strcmp(value, key->word)) {
		*ret = UINT64_MAX;
		return 0;
	}
	if (key->type == CONFIG_SIZE)
		r = num_parse_size(value, &v);
	else
		r = parse_number(value, key->type == CONFIG_MODE ? 8 : 10, &v);
	if (r < 0 || v < key->min || v > key->max)
		return -EINVAL;
	*ret = v;
	return 0;
}

static int parse_text(const struct config_key *key, const char *value, char *ret)
{
	size_t length = strlen(value);

	if (length >= key->max)
		return -EINVAL;
	memcpy(ret, value, length + 1);
	return 0;
}

static int parse_bool(const char *s, bool *ret)
{
	if (strcmp(s, "yes") != 0 && strcmp(s, "no") != 0)
		return -EINVAL;
	*ret = !strcmp(s, "yes");
	return 0;
}

/* `to` is where the key's value belongs. */
static int parse_value(const struct config_key *key, const char *value, void *to)
{
	switch (key->type) {
	case CONFIG_TEXT:
		return parse_text(key, value, to);
	case CONFIG_MODE:
	case CONFIG_SIZE:
	case CONFIG_COUNT:
		return parse_bounded(key, value, to);
	case CONFIG_LEVEL:
		return log_parse_level(value, to);
	case CONFIG_GROUP:
		return parse_group(value, to);
	case CONFIG_BOOL:
		return parse_bool(value, to);
	}
	return -EINVAL;
}

/* What the key takes, for a person. */
static void describe(const struct config_key *key, char *buf, size_t size)
{
	const char * or = key->word ? " or " : "", *word = key->word ? key->word : "";

	switch (key->type) {
	case CONFIG_TEXT:
		(void)snprintf(buf, size, "at most %" PRIu64 " bytes", key->max - 1);
		break;
	case CONFIG_MODE:
		(void)snprintf(buf, size, "octal digits up to %04" PRIo64, key->max);
		break;
	case CONFIG_SIZE:
		(void)snprintf(buf, size, "bytes, a number with K, M, G or T%s%s", or, word);
		break;
	case CONFIG_COUNT:
		if (key->max == UINT64_MAX)
			(void)snprintf(buf, size, "a number%s%s", or, word);
		else
			(void)snprintf(buf, size, "%" PRIu64 " to %" PRIu64 "%s%s", key->min,
				       key->max, or, word);
		break;
	case CONFIG_LEVEL:
		(void)snprintf(buf, size, "error, warning, info or debug");
		break;
	case CONFIG_GROUP:
		(void)snprintf(buf, size, "the name of a group there is, or a number");
		break;
	case CONFIG_BOOL:
		(void)snprintf(buf, size, "yes or no");
		break;
	}
}

static const struct config_key *find_key(const char *section, const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(config_keys); i++)
		if (!strcmp(config_keys[i].section, section) && !strcmp(config_keys[i].name, name))
			return &config_keys[i];
	return NULL;
}

void config_init(struct config *c)
{
	*c = (struct config){0};
	memcpy(c->limits, quota_default_limits, sizeof(c->limits)); /* some have no key */
	for (size_t i = 0; i < ARRAY_LEN(config_keys); i++) {
		const struct config_key *key = &config_keys[i];
		int r = parse_value(key, key->fallback, (char *)c + key->offset);

		assert(r == 0);
	}
}

void config_deinit(struct config *c)
{
	free(take_ptr(c->overrides));
	c->n_overrides = 0;
}

int config_set(struct config *c, const char *name, const char *value)
{
	const struct config_key *key = find_key("server", name);

	return key ? parse_value(key, value, (char *)c + key->offset) : -EINVAL;
}

void config_give(struct config *c, const struct config_source *source)
{
	for (unsigned i = 0; i < CONFIG_GIVEN_MAX && source->given[i].key; i++)
		(void)config_set(c, source->given[i].key, source->given[i].value);
}

/* --- the file --- */

struct parser {
	const char *path;
	unsigned line;
	unsigned n_errors;
	struct config config;
	const char *section; /* one of the table's; NULL: none yet, or one that was refused */
	bool in_section;
	int user; /* index of its override, -1 outside of [limits:USER] */
	unsigned seen[ARRAY_LEN(config_keys)]; /* line of the key */
};

__attribute__((format(printf, 2, 3))) static void report(struct parser *p, const char *fmt, ...)
{
	char text[512];
	va_list args;

	if (++p->n_errors > ERRORS_MAX)
		return;
	va_start(args, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	log_error("%s:%u: %s", p->path, p->line, text);
}

/* The override of the user, made when there is none. -1: the error was reported. */
static int find_override(struct parser *p, const char *user)
{
	struct config *c = &p->config;
	struct quota_override *more;
	uid_t uid;

	if (parse_id(user, look_up_user, &uid) < 0) {
		report(p, "there is no user '%s'; give the name of one, or a number", user);
		return -1;
	}
	for (unsigned i = 0; i < c->n_overrides; i++)
		if (c->overrides[i].uid == uid)
			return (int)i;
	if (c->n_overrides == OVERRIDES_MAX) {
		report(p, "more than %d users have limits of their own", OVERRIDES_MAX);
		return -1;
	}
	more = reallocarray(c->overrides, c->n_overrides + 1, sizeof(*more));
	if (!more) {
		report(p, "out of memory");
		return -1;
	}
	more[c->n_overrides] = (struct quota_override){.uid = uid};
	c->overrides = more;
	return (int)c->n_overrides++;
}

/* What follows belongs to a section that was refused: one error for all of it. */
static void leave_section(struct parser *p)
{
	p->in_section = true;
	p->section = NULL;
	p->user = -1;
}

static void on_section(struct parser *p, const char *name)
{
	static const char of_user[] = "limits:";

	leave_section(p);
	if (!strncmp(name, of_user, strlen(of_user))) {
		p->user = find_override(p, name + strlen(of_user));
		p->section = p->user < 0 ? NULL : "limits";
		return;
	}
	for (size_t i = 0; i < ARRAY_LEN(config_keys) && !p->section; i++)
		if (!strcmp(config_keys[i].section, name))
			p->section = config_keys[i].section;
	if (!p->section)
		report(p,
		       "there is no section [%s]; there are [server], [store], [limits], "
		       "[limits:USER], [cuda] and [defaults]",
		       name);
}

static void report_unknown_key(struct parser *p, const char *name)
{
	char names[NAMES_MAX] = "";
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_LEN(config_keys); i++)
		if (!strcmp(config_keys[i].section, p->section) && n < sizeof(names))
			n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", n ? ", " : "",
					      config_keys[i].name);
	report(p, "[%s] has no key '%s'; it has %s", p->section, name, names);
}

static void set_key(struct parser *p, const struct config_key *key, const char *value)
{
	char *base = (char *)&p->config;
	size_t offset = key->offset;
	char takes[128];

	if (p->user >= 0) {
		struct quota_override *o = &p->config.overrides[p->user];

		offset -= offsetof(struct config, limits);
		base = (char *)o->limits;
		o->kinds |= 1u << offset / sizeof(o->limits[0]);
	}
	if (parse_value(key, value, base + offset) == 0)
		return;
	describe(key, takes, sizeof(takes));
	report(p, "'%s' (%s) does not take '%s'; it takes %s", key->name, key->help, value, takes);
}

/* Twice in one section, however often its line comes. Of users, the first is not remembered. */
static bool is_duplicate(struct parser *p, const struct config_key *key)
{
	size_t kind = (key->offset - offsetof(struct config, limits)) / sizeof(uint64_t);
	unsigned *seen = &p->seen[key - config_keys];

	if (p->user >= 0) {
		const struct quota_override *o = &p->config.overrides[p->user];

		if (o->kinds >> kind & 1)
			report(p, "'%s' of uid %u was given before; give it once", key->name,
			       o->uid);
		return o->kinds >> kind & 1;
	}
	if (*seen) {
		report(p, "'%s' was given in line %u; give it once", key->name, *seen);
		return true;
	}
	*seen = p->line;
	return false;
}

static void on_entry(struct parser *p, const char *name, const char *value)
{
	const struct config_key *key = p->section ? find_key(p->section, name) : NULL;

	if (!p->in_section)
		report(p, "'%s' comes before the first [section]", name);
	else if (!p->section)
		return;
	else if (!key)
		report_unknown_key(p, name);
	else if (!is_duplicate(p, key))
		set_key(p, key, value);
}

static bool is_printable(const char *s)
{
	for (; *s; s++)
		if (iscntrl((unsigned char)*s) && *s != '\t')
			return false;
	return true;
}

static int on_line(struct parser *p, const char *text)
{
	struct ini_line line;
	int r;

	if (!is_printable(text)) {
		report(p, "a control character is in the way");
		return 0;
	}
	r = ini_line_read(text, &line);
	if (r == -ENOSYS)
		return r;
	if (r < 0 && text[strspn(text, " \t")] == '[')
		leave_section(p);
	if (r == -E2BIG)
		report(p, "too long: a line has at most %d bytes, the name of a section %d",
		       INI_LINE_MAX, INI_SECTION_MAX);
	else if (r < 0)
		report(p, "this is no [section], no 'key = value' and no '# comment'");
	else if (line.kind == INI_SECTION)
		on_section(p, line.name);
	else if (line.kind == INI_ENTRY)
		on_entry(p, line.name, line.value);
	return 0;
}

static int parse_lines(struct parser *p, char *text)
{
	char *line;
	int r;

	while ((line = strsep(&text, "\n"))) {
		size_t length = strlen(line);

		p->line++;
		if (length > 0 && line[length - 1] == '\r')
			line[length - 1] = '\0';
		r = on_line(p, line);
		if (r < 0)
			return r;
	}
	if (p->n_errors > ERRORS_MAX)
		log_error("%s: %u more errors are not shown", p->path, p->n_errors - ERRORS_MAX);
	return p->n_errors > 0 ? -EINVAL : 0;
}

int config_parse(const char *path, const char *text, size_t size, struct config *ret)
{
	struct parser p = {.path = path, .user = -1};
	cleanup(freep) char *copy = strndup(text, size);
	int r;

	if (!copy)
		return -ENOMEM;
	if (strlen(copy) < size) {
		log_error("%s: a zero byte is in the way; this is no text", path);
		return -EINVAL;
	}
	config_init(&p.config);
	r = size > 0 ? parse_lines(&p, copy) : 0;
	if (r == -ENOSYS)
		log_error("%s cannot be read: this weightd was built without inih (libinih-dev)",
			  path);
	if (r < 0)
		config_deinit(&p.config);
	else
		*ret = p.config;
	return r;
}

/* Whoever may write it decides who is an administrator. */
static const char *distrust(int fd, struct stat *ret)
{
	if (fstat(fd, ret) < 0)
		return strerror(errno);
	if (!S_ISREG(ret->st_mode))
		return "it is no file";
	if (ret->st_uid != 0 && ret->st_uid != geteuid())
		return "it belongs neither to root nor to the user of weightd (chown root)";
	if (ret->st_mode & (S_IWGRP | S_IWOTH))
		return "others than its owner may write it (chmod go-w)";
	if ((uint64_t)ret->st_size > FILE_SIZE_MAX)
		return "it is longer than 256 KiB";
	return NULL;
}

static int read_all(int fd, char *buf, size_t size, size_t *ret)
{
	size_t got = 0;

	while (got < size) {
		ssize_t n = read(fd, buf + got, size - got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		got += (size_t)n;
	}
	*ret = got;
	return 0;
}

static int load_file(const char *path, struct config *ret)
{
	cleanup(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	cleanup(freep) char *text = NULL;
	const char *why;
	struct stat st;
	size_t size;
	int r;

	if (fd < 0)
		return -errno;
	why = distrust(fd, &st);
	if (why) {
		log_error("%s is not read: %s", path, why);
		return -EINVAL;
	}
	size = (size_t)st.st_size;
	text = malloc(size + 1);
	r = text ? read_all(fd, text, size, &size) : -ENOMEM;
	return r < 0 ? r : config_parse(path, text, size, ret);
}

int config_load(const struct config_source *source, struct config *ret)
{
	const char *path = source->path ? source->path : CONFIG_PATH;
	struct config c;
	int r = load_file(path, &c);

	if (r == -ENOENT && !source->path) {
		config_init(&c);
	} else if (r < 0) {
		if (r != -EINVAL && r != -ENOSYS)
			log_error("cannot read %s: %s", path, strerror(-r));
		return r;
	}
	config_give(&c, source);
	*ret = c;
	return 0;
}

/* --- reloading --- */

static size_t value_size(const struct config_key *key)
{
	switch (key->type) {
	case CONFIG_TEXT:
		return (size_t)key->max;
	case CONFIG_LEVEL:
		return sizeof(enum log_level);
	case CONFIG_GROUP:
		return sizeof(gid_t);
	case CONFIG_BOOL:
		return sizeof(bool);
	default:
		return sizeof(uint64_t);
	}
}

void config_reload(struct config *c, const struct config *next)
{
	for (size_t i = 0; i < ARRAY_LEN(config_keys); i++) {
		const struct config_key *key = &config_keys[i];
		char *is = (char *)c + key->offset;
		const char *would_be = (const char *)next + key->offset;
		size_t size = value_size(key);

		if (key->reloads)
			memcpy(is, would_be, size);
		else if (key->type == CONFIG_TEXT ? strcmp(is, would_be)
						  : memcmp(is, would_be, size))
			log_warning("[%s] %s has changed; it needs a restart", key->section,
				    key->name);
	}
}
