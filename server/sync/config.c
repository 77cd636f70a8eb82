#include "server/sync/config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/device.h"
#include "server/base/ini.h"
#include "server/sync/suggestion.h"
#include "server/sync/unix_group.h"

#define FILE_SIZE_MAX (1 * MIB)
#define ERRORS_MAX 20
#define SECOND_NS 1000000000u
#define KEYS_MAX 32

enum section {
	SECTION_NONE, /* of the file's beginning */
	SECTION_REFUSED, /* one error for all of it */
	SECTION_NODE,
	SECTION_TLS,
	SECTION_DATA,
	SECTION_PEER,
	SECTION_GROUP,
	SECTION_LIMITS,
	SECTION_ACCESS,
};

static const char *const section_names[] = {
	[SECTION_NODE] = "node",     [SECTION_TLS] = "tls",     [SECTION_DATA] = "data",
	[SECTION_PEER] = "peer",     [SECTION_GROUP] = "group", [SECTION_LIMITS] = "limits",
	[SECTION_ACCESS] = "access",
};

struct parser {
	const char *path;
	unsigned line;
	unsigned n_errors;
	enum section section;
	struct config config;
	unsigned seen[KEYS_MAX]; /* line of the key in this section of a peer or a group, or in the file */
	unsigned *peer_lines;
	unsigned *group_lines;
};

struct key {
	enum section section;
	bool repeats;
	const char *name;
	void (*set)(struct parser *p, const struct key *key, const char *value);
	size_t offset; /* in struct config, of keys whose `set` says where it belongs */
	uint64_t min, max; /* milliseconds of times */
};

__attribute__((format(printf, 3, 4))) static void report_at(struct parser *p, unsigned line,
							    const char *fmt, ...)
{
	char text[700];
	va_list args;

	if (++p->n_errors > ERRORS_MAX)
		return;
	va_start(args, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (line > 0)
		log_error("%s:%u: %s", p->path, line, text);
	else
		log_error("%s: %s", p->path, text);
}

#define report(p, ...) report_at(p, (p)->line, __VA_ARGS__)

/* --- What the configuration holds ----------------------------------------------------------------- */

/* One more element of `size` bytes at the end of the array that `*array` points to, zero. NULL: it was reported. */
static void *grow(struct parser *p, void *array, unsigned *n, size_t size)
{
	char *at, *more;

	memcpy(&at, array, sizeof(at)); /* of whatever type the pointer is */
	more = reallocarray(at, *n + 1, size);
	if (!more) {
		report(p, "out of memory");
		return NULL;
	}
	memcpy(array, &more, sizeof(more));
	memset(more + *n * size, 0, size);
	return more + (*n)++ * size;
}

/* A copy that lives as long as the configuration. */
static const char *keep(struct parser *p, const char *text)
{
	char **slot = grow(p, &p->config.strings, &p->config.n_strings, sizeof(*slot));

	if (!slot)
		return NULL;
	*slot = strdup(text);
	if (!*slot)
		report(p, "out of memory");
	return *slot;
}

void config_deinit(struct config *c)
{
	for (unsigned i = 0; i < c->n_groups; i++) {
		free((void *)c->groups[i].members);
		free((void *)c->groups[i].publishers);
	}
	for (unsigned i = 0; i < c->n_strings; i++)
		free(c->strings[i]);
	free(c->strings);
	free(c->groups);
	free(c->peers);
	free(c->trusted);
	*c = (struct config){0};
}

static bool is_name(const char *name)
{
	size_t n = strlen(name);

	return n > 0 && n <= CONFIG_NAME_MAX &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") == n;
}

static const char name_rule[] = "a name has 1 to 42 of a-z, 0-9, '.' and '-'";

static const struct config_peer *find_peer(const struct config *c, const char *name)
{
	for (unsigned i = 0; i < c->n_peers; i++)
		if (!strcmp(c->peers[i].name, name))
			return &c->peers[i];
	return NULL;
}

/* --- Values --------------------------------------------------------------------------------------- */

static const char **text_of(struct parser *p, const struct key *key)
{
	return (const char **)((char *)&p->config + key->offset);
}

static void set_name(struct parser *p, const struct key *key, const char *value)
{
	if (is_name(value))
		*text_of(p, key) = keep(p, value);
	else
		report(p, "'%s' is no name of a node: %s", value, name_rule);
}

static void set_listen(struct parser *p, const struct key *key, const char *value)
{
	char host[ADDRESS_HOST_MAX + 1];
	uint16_t port;

	if (address_split(value, host, &port) < 0 ||
	    !address_from_digits(host, port, &p->config.listen_at))
		report(p,
		       "'listen' does not take '%s'; it takes an address of this node in digits and a "
		       "port: 10.0.0.1:7400, [fd00::1]:7400, 0.0.0.0:7400",
		       value);
	else
		*text_of(p, key) = keep(p, value);
}

static void add_data_address(struct parser *p, const struct key *key, const char *value)
{
	struct config *c = &p->config;
	struct address at;

	for (unsigned i = 0; i < c->n_data_addresses; i++)
		if (!strcmp(c->data_addresses[i], value)) {
			report(p, "'%s' has %s twice; name each address once", key->name, value);
			return;
		}
	if (!address_from_digits(value, 1, &at))
		report(p, "'%s' does not take '%s'; it takes an address in digits, without a port",
		       key->name, value);
	else if (c->n_data_addresses == STRIPES_MAX)
		report(p, "'%s' has more than %d addresses", key->name, STRIPES_MAX);
	else
		c->data_addresses[c->n_data_addresses++] = keep(p, value);
}

/* One for each interface, between blanks or commas. */
static void set_data_addresses(struct parser *p, const struct key *key, const char *value)
{
	cleanup(freep) char *copy = strdup(value);
	char *rest = copy, *one;
	unsigned n_errors = p->n_errors;

	if (!copy)
		report(p, "out of memory");
	while (p->n_errors == n_errors && (one = strsep(&rest, " \t,")))
		if (*one)
			add_data_address(p, key, one);
	if (p->n_errors == n_errors && !p->config.n_data_addresses)
		report(p, "'%s' is empty; it takes an address in digits, without a port", key->name);
}

static void set_path(struct parser *p, const struct key *key, const char *value)
{
	if (value[0] == '/')
		*text_of(p, key) = keep(p, value);
	else
		report(p, "'%s' does not take '%s'; it takes a path that begins with /", key->name,
		       value);
}

static void set_level(struct parser *p, const struct key *key, const char *value)
{
	if (log_parse_level(value, &p->config.log_level) < 0)
		report(p, "'%s' does not take '%s'; it takes error, warning, info or debug",
		       key->name, value);
}

static void set_patches(struct parser *p, const struct key *key, const char *value)
{
	if (strcmp(value, "yes") != 0 && strcmp(value, "no") != 0)
		report(p, "'%s' does not take '%s'; it takes yes or no", key->name, value);
	p->config.patches = strcmp(value, "no") != 0;
}

static void set_engine(struct parser *p, const struct key *key, const char *value)
{
	if (strcmp(value, "tcp") != 0 && strcmp(value, "gloo") != 0)
		report(p, "'%s' does not take '%s'; it takes tcp or gloo", key->name, value);
	p->config.data_gloo = !strcmp(value, "gloo");
}

static void set_security(struct parser *p, const struct key *key, const char *value)
{
	if (strcmp(value, "tls") != 0 && strcmp(value, "none") != 0)
		report(p, "'%s' does not take '%s'; it takes tls, or none inside trusted networks",
		       key->name, value);
	p->config.data_tls = strcmp(value, "none") != 0;
}

static void set_trusted(struct parser *p, const struct key *key, const char *value)
{
	struct network network, *slot;

	if (network_parse(value, &network) < 0) {
		report(p,
		       "'%s' does not take '%s'; it takes a network and its length, with no bit set "
		       "behind it: 10.0.0.0/8, fd00::/8; give the key again for more of them",
		       key->name, value);
		return;
	}
	slot = grow(p, &p->config.trusted, &p->config.n_trusted, sizeof(*slot));
	if (slot)
		*slot = network;
}

static void set_address(struct parser *p, const struct key *key, const char *value)
{
	struct config_peer *peer = &p->config.peers[p->config.n_peers - 1];

	if (address_split(value, peer->host, &peer->port) < 0)
		report(p,
		       "'%s' does not take '%s'; it takes where the agent of '%s' listens: "
		       "10.0.0.2:7400, [fd00::2]:7400, or the name of a host and a port",
		       key->name, value, peer->name);
	else
		peer->address = keep(p, value);
}

static void report_no_unix_group(struct parser *p, const struct key *key, const char *value)
{
	report(p, "there is no group '%s'; give the name of one, or a number, or leave '%s' out",
	       value, key->name);
}

static struct group *last_group(struct parser *p)
{
	return &p->config.groups[p->config.n_groups - 1];
}

/* Adds names, which stand between blanks or commas, to a list. */
static void add_names(struct parser *p, const struct key *key, const char *value,
		      const char *const **list, unsigned *n)
{
	cleanup(freep) char *copy = strdup(value);
	char *rest = copy, *name;

	if (!copy)
		report(p, "out of memory");
	while ((name = strsep(&rest, " \t,"))) {
		const char **slot;
		bool twice = false;

		if (!*name)
			continue;
		for (unsigned i = 0; i < *n; i++)
			twice |= !strcmp((*list)[i], name);
		if (!is_name(name)) {
			report(p, "'%s' is no name of a node: %s", name, name_rule);
		} else if (twice) {
			report(p, "'%s' is among the %s already; name it once", name, key->name);
		} else if (*n == MEMBERS_MAX) {
			report(p, "more than %d %s", MEMBERS_MAX, key->name);
			return;
		} else {
			slot = grow(p, list, n, sizeof(*slot));
			if (slot && !(*slot = keep(p, name)))
				(*n)--;
		}
	}
}

static void set_members(struct parser *p, const struct key *key, const char *value)
{
	struct group *g = last_group(p);

	add_names(p, key, value, &g->members, &g->n_members);
}

static void set_publishers(struct parser *p, const struct key *key, const char *value)
{
	struct group *g = last_group(p);

	add_names(p, key, value, &g->publishers, &g->n_publishers);
}

static void set_buffers(struct parser *p, const struct key *key, const char *value)
{
	if (!*value)
		report(p, "'%s' is empty; it takes a pattern, such as llama-*", key->name);
	else
		last_group(p)->buffers = keep(p, value);
}

static void set_policy(struct parser *p, const struct key *key, const char *value)
{
	static const char *const policies[] = {
		[POLICY_ALL] = "all",
		[POLICY_QUORUM] = "quorum",
		[POLICY_EACH] = "each",
	};

	for (unsigned i = 0; i < ARRAY_LEN(policies); i++)
		if (!strcmp(policies[i], value)) {
			last_group(p)->policy = (enum policy)i;
			return;
		}
	report(p, "'%s' does not take '%s'; it takes all, quorum or each", key->name, value);
}

static void set_mode(struct parser *p, const struct key *key, const char *value)
{
	if (rights_parse_mode(value, &last_group(p)->rights.mode) < 0)
		report(p,
		       "'%s' does not take '%s'; it takes octal digits of r and w, with both for the owner, "
		       "which is the agent: 0600, 0640, 0644",
		       key->name, value);
}

static void set_unix_group(struct parser *p, const struct key *key, const char *value)
{
	struct rights *rights = &last_group(p)->rights;

	if (unix_group_find(value, &rights->gid) < 0)
		report_no_unix_group(p, key, value);
	else
		rights->unix_group = keep(p, value);
}

/* Whether there is such a GPU, weightd says. */
static void set_device(struct parser *p, const struct key *key, const char *value)
{
	struct device device;

	if (device_parse(value, &device) < 0)
		report(p,
		       "'%s' does not take '%s'; it takes host, cuda, cuda:0 with the number of a GPU, "
		       "cuda:GPU-<uuid> or cuda:MIG-<uuid>; weightctl devices lists them",
		       key->name, value);
	else
		last_group(p)->device = keep(p, value);
}

static void set_bytes(struct parser *p, const struct key *key, const char *value)
{
	uint64_t n;

	if (!strcmp(value, "unlimited"))
		p->config.max_bytes = 0;
	else if (num_parse_size(value, &n) == 0 && n > 0 && n <= INT64_MAX)
		p->config.max_bytes = n;
	else
		report(p,
		       "'%s' does not take '%s'; it takes bytes, a number with K, M, G or T, or "
		       "unlimited",
		       key->name, value);
}

/* Seconds, with digits behind a point or without. */
static void set_time(struct parser *p, const struct key *key, const char *value)
{
	uint64_t ms = 0;
	unsigned scale = 1000;
	const char *c = value;
	bool digits = false;

	for (; isdigit((unsigned char)*c) && ms < key->max * 10; c++, digits = true)
		ms = ms * 10 + (uint64_t)(*c - '0') * 1000;
	if (*c == '.')
		for (c++; isdigit((unsigned char)*c) && scale > 1; c++) {
			scale /= 10;
			ms += (uint64_t)(*c - '0') * scale;
		}
	if (!digits || *c || ms < key->min || ms > key->max)
		report(p, "'%s' does not take '%s'; it takes seconds, %g to %g", key->name, value,
		       (double)key->min / 1000, (double)key->max / 1000);
	else
		*(uint64_t *)((char *)&p->config + key->offset) = ms * 1000000;
}

static void set_operators(struct parser *p, const struct key *key, const char *value)
{
	if (unix_group_find(value, &p->config.operators_gid) < 0)
		report_no_unix_group(p, key, value);
	else
		*text_of(p, key) = keep(p, value);
}

#define FIELD(member) .offset = offsetof(struct config, member)
#define KEY(in, n, fn, ...)                                                                        \
	{                                                                                          \
		.section = in, .name = n, .set = fn, ##__VA_ARGS__                                 \
	}

static const struct key keys[] = {
	KEY(SECTION_NODE, "name", set_name, FIELD(name)),
	KEY(SECTION_NODE, "listen", set_listen, FIELD(listen)),
	KEY(SECTION_NODE, "data-address", set_data_addresses),
	KEY(SECTION_NODE, "state", set_path, FIELD(state)),
	KEY(SECTION_NODE, "socket", set_path, FIELD(socket)),
	KEY(SECTION_NODE, "weightd", set_path, FIELD(weightd)),
	KEY(SECTION_NODE, "log-level", set_level),
	KEY(SECTION_TLS, "ca", set_path, FIELD(ca)),
	KEY(SECTION_TLS, "certificate", set_path, FIELD(certificate)),
	KEY(SECTION_TLS, "key", set_path, FIELD(key)),
	KEY(SECTION_DATA, "security", set_security),
	KEY(SECTION_DATA, "engine", set_engine),
	KEY(SECTION_DATA, "patches", set_patches),
	KEY(SECTION_DATA, "trusted", set_trusted, .repeats = true),
	KEY(SECTION_PEER, "address", set_address),
	KEY(SECTION_GROUP, "members", set_members, .repeats = true),
	KEY(SECTION_GROUP, "publishers", set_publishers, .repeats = true),
	KEY(SECTION_GROUP, "buffers", set_buffers),
	KEY(SECTION_GROUP, "policy", set_policy),
	KEY(SECTION_GROUP, "device", set_device),
	KEY(SECTION_GROUP, "mode", set_mode),
	KEY(SECTION_GROUP, "group", set_unix_group),
	KEY(SECTION_LIMITS, "max-bytes", set_bytes),
	KEY(SECTION_LIMITS, "prepare-timeout", set_time, FIELD(prepare_ns), .min = 100,
	    .max = 3600000),
	KEY(SECTION_LIMITS, "stall-timeout", set_time, FIELD(stall_ns), .min = 100, .max = 3600000),
	KEY(SECTION_LIMITS, "heartbeat", set_time, FIELD(heartbeat_ns), .min = 100, .max = 60000),
	KEY(SECTION_ACCESS, "operators", set_operators, FIELD(operators)),
};
_Static_assert(ARRAY_LEN(keys) <= KEYS_MAX, "parser::seen has an element for each");

/* --- Lines ---------------------------------------------------------------------------------------- */

static const struct key *find_key(enum section section, const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		if (keys[i].section == section && !strcmp(keys[i].name, name))
			return &keys[i];
	return NULL;
}

static void report_unknown(struct parser *p, const char *name)
{
	const char *names[KEYS_MAX], *nearest;
	char all[256] = "";
	unsigned n_names = 0;
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		if (keys[i].section == p->section && n < sizeof(all)) {
			names[n_names++] = keys[i].name;
			n += (size_t)snprintf(all + n, sizeof(all) - n, "%s%s", n ? ", " : "",
					      keys[i].name);
		}
	nearest = suggestion_find(name, names, n_names);
	report(p, "[%s] has no key '%s'; it has %s%s%s%s", section_names[p->section], name, all,
	       nearest ? ". Is '" : "", nearest ? nearest : "", nearest ? "' meant?" : "");
}

static void on_entry(struct parser *p, const char *name, const char *value)
{
	const struct key *key = find_key(p->section, name);
	unsigned *seen;

	if (p->section == SECTION_REFUSED)
		return;
	if (p->section == SECTION_NONE) {
		report(p, "'%s' comes before the first [section]", name);
		return;
	}
	if (!key) {
		report_unknown(p, name);
		return;
	}
	seen = &p->seen[key - keys];
	if (*seen && !key->repeats) {
		report(p, "'%s' was given in line %u; give it once", name, *seen);
		return;
	}
	*seen = p->line;
	key->set(p, key, value);
}

/* What a section of this kind says is of its own. */
static void forget_keys(struct parser *p, enum section section)
{
	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		if (keys[i].section == section)
			p->seen[i] = 0;
}

static void begin_peer(struct parser *p, const char *name)
{
	const struct config_peer *other = find_peer(&p->config, name);
	struct config_peer *peer;
	unsigned n = p->config.n_peers, *line;

	if (other) {
		report(p, "[peer %s] began in line %u; a peer has one section", name,
		       p->peer_lines[other - p->config.peers]);
		return;
	}
	line = grow(p, &p->peer_lines, &n, sizeof(*line));
	peer = line ? grow(p, &p->config.peers, &p->config.n_peers, sizeof(*peer)) : NULL;
	if (!peer)
		return;
	*line = p->line;
	peer->name = keep(p, name);
	if (!peer->name)
		p->config.n_peers--;
	else
		p->section = SECTION_PEER;
}

static void begin_group(struct parser *p, const char *name)
{
	unsigned n = p->config.n_groups, *line;
	struct group *group;

	for (unsigned i = 0; i < n; i++)
		if (!strcmp(p->config.groups[i].name, name)) {
			report(p, "[group %s] began in line %u; a group has one section", name,
			       p->group_lines[i]);
			return;
		}
	line = grow(p, &p->group_lines, &n, sizeof(*line));
	group = line ? grow(p, &p->config.groups, &p->config.n_groups, sizeof(*group)) : NULL;
	if (!group)
		return;
	*line = p->line;
	group->name = keep(p, name);
	group->buffers = "*";
	group->device = GROUP_DEVICE_DEFAULT;
	if (!group->name)
		p->config.n_groups--;
	else
		p->section = SECTION_GROUP;
}

/* [peer NAME] or [group NAME]; `name` is what stands behind the kind. */
static void on_named_section(struct parser *p, enum section section, const char *name)
{
	name += strspn(name, " \t");
	forget_keys(p, section);
	if (!is_name(name))
		report(p, "[%s %s]: '%s' is no name of a %s: %s", section_names[section], name,
		       name, section_names[section], name_rule);
	else if (section == SECTION_PEER)
		begin_peer(p, name);
	else
		begin_group(p, name);
}

static void on_section(struct parser *p, const char *name)
{
	size_t word = strcspn(name, " \t");
	const char *nearest;

	p->section = SECTION_REFUSED;
	for (enum section s = SECTION_NODE; s <= SECTION_ACCESS; s++) {
		bool named = s == SECTION_PEER || s == SECTION_GROUP;

		if (strlen(section_names[s]) != word || strncmp(section_names[s], name, word) != 0)
			continue;
		if (named)
			on_named_section(p, s, name + word);
		else if (!name[word])
			p->section = s;
		if (named || !name[word])
			return;
	}
	nearest = suggestion_find(name, section_names + SECTION_NODE,
				  SECTION_ACCESS - SECTION_NODE + 1);
	report(p,
	       "there is no section [%s]; there are [node], [tls], [data], [peer NAME], [group NAME], "
	       "[limits] and [access]%s%s%s",
	       name, nearest ? ". Is [" : "", nearest ? nearest : "", nearest ? "] meant?" : "");
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
		p->section = SECTION_REFUSED;
	if (r == -E2BIG)
		report(p,
		       "too long: a line has at most %d bytes, the name of a section %d; 'members', "
		       "'publishers' and 'trusted' may be given several times",
		       INI_LINE_MAX, INI_SECTION_MAX);
	else if (r < 0)
		report(p, "this is no [section], no 'key = value' and no '# comment'");
	else if (line.kind == INI_SECTION)
		on_section(p, line.name);
	else if (line.kind == INI_ENTRY)
		on_entry(p, line.name, line.value);
	return 0;
}

/* --- What has to fit together --------------------------------------------------------------------- */

static void check_given(struct parser *p)
{
	static const struct {
		const char *section, *key, *example;
		size_t offset;
	} needed[] = {
		{"node", "name", "name = a", offsetof(struct config, name)},
		{"node", "listen", "listen = 10.0.0.1:7400", offsetof(struct config, listen)},
		{"tls", "ca", "ca = /etc/weightd/pki/ca.crt", offsetof(struct config, ca)},
		{"tls", "certificate", "certificate = /etc/weightd/pki/node.crt",
		 offsetof(struct config, certificate)},
		{"tls", "key", "key = /etc/weightd/pki/node.key", offsetof(struct config, key)},
	};

	for (size_t i = 0; i < ARRAY_LEN(needed); i++) {
		const struct key *key = NULL;

		for (size_t j = 0; j < ARRAY_LEN(keys); j++)
			if (!strcmp(section_names[keys[j].section], needed[i].section) &&
			    !strcmp(keys[j].name, needed[i].key))
				key = &keys[j];
		if (!p->seen[key - keys])
			report_at(p, 0, "[%s] has no '%s'; write, say: %s", needed[i].section,
				  needed[i].key, needed[i].example);
	}
}

static bool is_node(const struct config *c, const char *name)
{
	return (c->name && !strcmp(c->name, name)) || find_peer(c, name);
}

static void check_names(struct parser *p, unsigned line, const struct group *g,
			const char *const *names, unsigned n, const char *what)
{
	for (unsigned i = 0; i < n; i++)
		if (!is_node(&p->config, names[i]))
			report_at(p, line,
				  "[group %s] has '%s' among its %s, which is neither this node nor a "
				  "[peer %s]; add that section, or take the name out",
				  g->name, names[i], what, names[i]);
	if (n == 0)
		report_at(p, line, "[group %s] has no %s; write, say: %s = a", g->name, what, what);
}

static void check_group(struct parser *p, unsigned i)
{
	const struct group *g = &p->config.groups[i];
	unsigned line = p->group_lines[i];

	check_names(p, line, g, g->members, g->n_members, "members");
	check_names(p, line, g, g->publishers, g->n_publishers, "publishers");
	for (unsigned j = 0; j < g->n_publishers; j++) {
		bool member = false;

		for (unsigned k = 0; k < g->n_members; k++)
			member |= !strcmp(g->members[k], g->publishers[j]);
		if (!member && is_node(&p->config, g->publishers[j]))
			report_at(p, line,
				  "[group %s] has '%s' among its publishers and not among its members; "
				  "add it to the members",
				  g->name, g->publishers[j]);
	}
}

static void check_peer(struct parser *p, unsigned i)
{
	const struct config_peer *peer = &p->config.peers[i];
	char why[WHY_SIZE];
	struct address at;

	if (p->config.name && !strcmp(peer->name, p->config.name))
		report_at(p, p->peer_lines[i],
			  "[peer %s] is this node, says [node] name; leave the section out",
			  peer->name);
	if (!peer->address)
		report_at(p, p->peer_lines[i],
			  "[peer %s] has no 'address'; write, say: address = 10.0.0.2:7400",
			  peer->name);
	else if (address_from_digits(peer->host, peer->port, &at) &&
		 !config_trusts(&p->config, (struct sockaddr *)&at.at, peer->name, why))
		report_at(p, p->peer_lines[i], "%s", why);
}

static void check_data_address(struct parser *p, const char *address)
{
	char why[WHY_SIZE];
	struct address at;

	if (!strcmp(address, "0.0.0.0") || !strcmp(address, "::"))
		report_at(p, 0,
			  "[node] data-address has to be an address that other nodes can dial, not '%s'; "
			  "write, say: data-address = 10.0.0.1",
			  address);
	else if (address_from_digits(address, 1, &at) &&
		 !config_trusts(&p->config, (struct sockaddr *)&at.at, "[node] data-address", why))
		report_at(p, 0, "%s", why);
}

/* Where engines listen, unless it is said: where the agent does. */
static void choose_data_addresses(struct parser *p)
{
	struct config *c = &p->config;
	char host[ADDRESS_TEXT_SIZE];

	if (!c->listen)
		return;
	(void)address_format_host((struct sockaddr *)&c->listen_at.at, host);
	if (!c->n_data_addresses)
		c->data_addresses[c->n_data_addresses++] = keep(p, host);
	for (unsigned i = 0; i < c->n_data_addresses; i++)
		if (c->data_addresses[i])
			check_data_address(p, c->data_addresses[i]);
}

static void check(struct parser *p)
{
	check_given(p);
	if (p->config.data_gloo && p->config.data_tls)
		report_at(p, 0,
			  "[data] engine = gloo sends weights in the clear; write security = none "
			  "beside it, inside of trusted networks, or engine = tcp");
	choose_data_addresses(p);
	for (unsigned i = 0; i < p->config.n_peers; i++)
		check_peer(p, i);
	for (unsigned i = 0; i < p->config.n_groups; i++)
		check_group(p, i);
}

bool config_trusts(const struct config *c, const struct sockaddr *at, const char *whose,
		   char why[WHY_SIZE])
{
	char text[ADDRESS_TEXT_SIZE];

	if (c->data_tls || network_has(c->trusted, c->n_trusted, at))
		return true;
	(void)snprintf(why, WHY_SIZE,
		       "[data] security = none sends weights in the clear, and %s of %s is in no "
		       "'trusted' network; use security = tls, or add the network to 'trusted' if "
		       "nobody else is on it",
		       address_format_host(at, text), whose);
	return false;
}

/* --- The file ------------------------------------------------------------------------------------- */

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
	return 0;
}

static const char *environment_or(const char *variable, const char *otherwise)
{
	const char *value = getenv(variable);

	return value && value[0] ? value : otherwise;
}

/* What the file may leave out. */
static void fill_in(struct parser *p)
{
	struct config *c = &p->config;
	const char *weightd = environment_or("WEIGHTD_SOCKET", NULL);

	if (!c->state)
		c->state = keep(p, environment_or("STATE_DIRECTORY", "/var/lib/weightd-sync"));
	if (!c->socket)
		c->socket = keep(p, environment_or("WEIGHTD_SYNC_SOCKET",
						   "/run/weightd-sync/sync.sock"));
	if (!c->weightd && weightd) /* the processes that we start do not see it */
		c->weightd = keep(p, weightd);
	c->path = keep(p, p->path);
}

/* No version that is larger is ever admitted, and what comes before it asks weightd is in proportion to it. */
static uint64_t memory_of_all(void)
{
	return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

int config_parse(const char *path, const char *text, size_t size, struct config *ret)
{
	struct parser p = {
		.path = path,
		.config =
			{
				.log_level = LOG_LEVEL_INFO,
				.data_tls = true,
				.patches = true,
				.max_bytes = memory_of_all(),
				.prepare_ns = 10ull * SECOND_NS,
				.stall_ns = 5ull * SECOND_NS,
				.heartbeat_ns = SECOND_NS,
				.operators_gid = (gid_t)-1,
			},
	};
	cleanup(freep) char *copy = strndup(text, size);
	int r = -EINVAL;

	if (!copy)
		return -ENOMEM;
	if (strlen(copy) < size)
		report_at(&p, 0, "a zero byte is in the way; this is no text");
	else
		r = parse_lines(&p, copy);
	if (r == -ENOSYS)
		log_error("%s cannot be read: this weightd-sync was built without inih (libinih-dev)",
			  path);
	if (r == 0) {
		check(&p);
		fill_in(&p);
	}
	if (p.n_errors > ERRORS_MAX)
		log_error("%s: %u more errors are not shown", path, p.n_errors - ERRORS_MAX);
	free(p.peer_lines);
	free(p.group_lines);
	if (r < 0 || p.n_errors > 0) {
		config_deinit(&p.config);
		return r < 0 ? r : -EINVAL;
	}
	*ret = p.config;
	return 0;
}

/* Whoever may write it decides whom this node believes. */
static const char *distrust(int fd, struct stat *ret)
{
	if (fstat(fd, ret) < 0)
		return strerror(errno);
	if (!S_ISREG(ret->st_mode))
		return "it is no file";
	if (ret->st_uid != 0 && ret->st_uid != geteuid())
		return "it belongs neither to root nor to the user of weightd-sync (chown root)";
	if (ret->st_mode & (S_IWGRP | S_IWOTH))
		return "others than its owner may write it (chmod go-w)";
	if ((uint64_t)ret->st_size > FILE_SIZE_MAX)
		return "it is longer than 1 MiB";
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

int config_load(const char *path, const char *socket, struct config *ret)
{
	cleanup(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	cleanup(freep) char *text = NULL;
	const char *why = fd < 0 ? strerror(errno) : NULL;
	struct stat st;
	size_t size;
	int r;

	if (!why)
		why = distrust(fd, &st);
	if (why) {
		log_error("%s is not read: %s", path, why);
		return -EINVAL;
	}
	size = (size_t)st.st_size;
	text = malloc(size + 1);
	r = text ? read_all(fd, text, size, &size) : -ENOMEM;
	if (r < 0)
		log_error("cannot read %s: %s", path, strerror(-r));
	else
		r = config_parse(path, text, size, ret);
	if (r == 0 && socket) {
		struct parser p = {.path = path, .config = *ret};

		p.config.socket = keep(&p, socket);
		*ret = p.config;
		r = ret->socket ? 0 : -ENOMEM;
	}
	return r;
}
