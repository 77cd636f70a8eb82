#include "server/sync/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/list.h"
#include "ipc/base/num.h"
#include "ipc/device.h"
#include "ipc/socket_path.h"
#include "server/base/nss.h"
#include "server/base/settings.h"
#include "server/sync/state/transport.h"

#define SECOND_NS 1000000000u

struct parser {
	struct settings settings; /* its values are in `config` */
	struct config config;
	unsigned seen[SETTINGS_KEYS_MAX]; /* lines of the keys of this peer or group */
	unsigned *peer_lines;
	unsigned *group_lines;
};

static struct parser *parser_of(struct settings *s)
{
	return container_of(s, struct parser, settings);
}

/* --- Elements of the configuration ---------------------------------------------------------------- */

/* One more element of `size` bytes at the end of the array that `*array` points to, zero. NULL: it was reported. */
static void *config_grow(struct settings *s, void *array, unsigned *n, size_t size)
{
	char *at, *more;

	memcpy(&at, array, sizeof(at)); /* the pointer may have any type */
	more = reallocarray(at, *n + 1, size);
	if (!more) {
		settings_report(s, "out of memory");
		return NULL;
	}
	memcpy(array, &more, sizeof(more));
	memset(more + *n * size, 0, size);
	return more + (*n)++ * size;
}

/* A copy that lives as long as the configuration. */
static const char *config_keep(struct settings *s, const char *text)
{
	struct config *c = s->values;
	char **slot = config_grow(s, &c->strings, &c->n_strings, sizeof(*slot));

	if (!slot)
		return NULL;
	*slot = strdup(text);
	if (!*slot)
		settings_report(s, "out of memory");
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

static const struct peer_config *find_peer(const struct config *c, const char *name)
{
	for (unsigned i = 0; i < c->n_peers; i++)
		if (!strcmp(c->peers[i].name, name))
			return &c->peers[i];
	return NULL;
}

/* --- Values --------------------------------------------------------------------------------------- */

static const char **text_of(struct settings *s, const struct setting *key)
{
	struct config *c = s->values;

	return (const char **)((char *)c + key->offset);
}

static void set_name(struct settings *s, const struct setting *key, const char *value)
{
	if (is_name(value))
		*text_of(s, key) = config_keep(s, value);
	else
		settings_report(s, "'%s' is no name of a node: %s", value, name_rule);
}

static void set_listen(struct settings *s, const struct setting *key, const char *value)
{
	struct config *c = s->values;
	char host[ADDRESS_HOST_MAX + 1];
	uint16_t port;

	if (address_split(value, host, &port) < 0 || !address_from_digits(host, port, &c->listen_at))
		settings_report(
			s,
			"'listen' does not take '%s'; it takes an address of this node in digits and a "
			"port: 10.0.0.1:7400, [fd00::1]:7400, 0.0.0.0:7400",
			value);
	else
		*text_of(s, key) = config_keep(s, value);
}

static void add_data_address(struct settings *s, const struct setting *key, const char *value)
{
	struct config *c = s->values;
	struct address at;

	for (unsigned i = 0; i < c->n_data_addresses; i++)
		if (!strcmp(c->data_addresses[i], value)) {
			settings_report(s, "'%s' has %s twice; name each address once", key->name,
					value);
			return;
		}
	if (!address_from_digits(value, 1, &at))
		settings_report(
			s, "'%s' does not take '%s'; it takes an address in digits, without a port",
			key->name, value);
	else if (c->n_data_addresses == STRIPES_MAX)
		settings_report(s, "'%s' has more than %d addresses", key->name, STRIPES_MAX);
	else
		c->data_addresses[c->n_data_addresses++] = config_keep(s, value);
}

/* One for each interface, between blanks or commas. */
static void set_data_addresses(struct settings *s, const struct setting *key, const char *value)
{
	struct config *c = s->values;
	cleanup(freep) char *copy = strdup(value);
	char *rest = copy, *one;
	unsigned n_errors = s->n_errors;

	if (!copy)
		settings_report(s, "out of memory");
	while (s->n_errors == n_errors && (one = strsep(&rest, " \t,")))
		if (*one)
			add_data_address(s, key, one);
	if (s->n_errors == n_errors && !c->n_data_addresses)
		settings_report(s, "'%s' is empty; it takes an address in digits, without a port",
				key->name);
}

static void set_path(struct settings *s, const struct setting *key, const char *value)
{
	if (value[0] == '/')
		*text_of(s, key) = config_keep(s, value);
	else
		settings_report(s, "'%s' does not take '%s'; it takes a path that begins with /",
				key->name, value);
}

static void set_engine(struct settings *s, const struct setting *key, const char *value)
{
	struct config *c = s->values;

	c->transport = transport_find(value);
	if (!c->transport)
		settings_report(s, "'%s' does not take '%s'; it takes tcp, gloo or nccl", key->name,
				value);
}

static void set_security(struct settings *s, const struct setting *key, const char *value)
{
	struct config *c = s->values;

	if (strcmp(value, "tls") != 0 && strcmp(value, "none") != 0)
		settings_report(
			s, "'%s' does not take '%s'; it takes tls, or none inside trusted networks",
			key->name, value);
	c->data_tls = strcmp(value, "none") != 0;
}

static void set_trusted(struct settings *s, const struct setting *key, const char *value)
{
	struct config *c = s->values;
	struct network network, *slot;

	if (network_parse(value, &network) < 0) {
		settings_report(
			s,
			"'%s' does not take '%s'; it takes a network and its length, with no bit set "
			"behind it: 10.0.0.0/8, fd00::/8; give the key again for more of them",
			key->name, value);
		return;
	}
	slot = config_grow(s, &c->trusted, &c->n_trusted, sizeof(*slot));
	if (slot)
		*slot = network;
}

static void set_address(struct settings *s, const struct setting *key, const char *value)
{
	struct config *c = s->values;
	struct peer_config *peer = &c->peers[c->n_peers - 1];

	if (address_split(value, peer->host, &peer->port) < 0)
		settings_report(s,
				"'%s' does not take '%s'; it takes where the agent of '%s' listens: "
				"10.0.0.2:7400, [fd00::2]:7400, or the name of a host and a port",
				key->name, value, peer->name);
	else
		peer->address = config_keep(s, value);
}

static void report_no_unix_group(struct settings *s, const struct setting *key, const char *value)
{
	settings_report(
		s, "there is no group '%s'; give the name of one, or a number, or leave '%s' out",
		value, key->name);
}

static struct group *last_group(struct settings *s)
{
	struct config *c = s->values;

	return &c->groups[c->n_groups - 1];
}

/* Adds names, which stand between blanks or commas, to a list. */
static void add_names(struct settings *s, const struct setting *key, const char *value,
		      const char *const **list, unsigned *n)
{
	cleanup(freep) char *copy = strdup(value);
	char *rest = copy, *name;

	if (!copy)
		settings_report(s, "out of memory");
	while ((name = strsep(&rest, " \t,"))) {
		const char **slot;
		bool twice = false;

		if (!*name)
			continue;
		for (unsigned i = 0; i < *n; i++)
			twice |= !strcmp((*list)[i], name);
		if (!is_name(name)) {
			settings_report(s, "'%s' is no name of a node: %s", name, name_rule);
		} else if (twice) {
			settings_report(s, "'%s' is among the %s already; name it once", name,
					key->name);
		} else if (*n == MEMBERS_MAX) {
			settings_report(s, "more than %d %s", MEMBERS_MAX, key->name);
			return;
		} else {
			slot = config_grow(s, list, n, sizeof(*slot));
			if (slot && !(*slot = config_keep(s, name)))
				(*n)--;
		}
	}
}

static void set_members(struct settings *s, const struct setting *key, const char *value)
{
	struct group *g = last_group(s);

	add_names(s, key, value, &g->members, &g->n_members);
}

static void set_publishers(struct settings *s, const struct setting *key, const char *value)
{
	struct group *g = last_group(s);

	add_names(s, key, value, &g->publishers, &g->n_publishers);
}

static void set_buffers(struct settings *s, const struct setting *key, const char *value)
{
	if (!*value)
		settings_report(s, "'%s' is empty; it takes a pattern, such as llama-*", key->name);
	else
		last_group(s)->buffers = config_keep(s, value);
}

static void set_policy(struct settings *s, const struct setting *key, const char *value)
{
	static const char *const policies[] = {
		[POLICY_ALL] = "all",
		[POLICY_QUORUM] = "quorum",
		[POLICY_EACH] = "each",
	};

	for (unsigned i = 0; i < ARRAY_LEN(policies); i++)
		if (!strcmp(policies[i], value)) {
			last_group(s)->policy = (enum policy)i;
			return;
		}
	settings_report(s, "'%s' does not take '%s'; it takes all, quorum or each", key->name,
			value);
}

static void set_mode(struct settings *s, const struct setting *key, const char *value)
{
	if (ownership_parse_mode(value, &last_group(s)->ownership.mode) < 0)
		settings_report(
			s,
			"'%s' does not take '%s'; it takes octal digits of r and w, with both for the owner, "
			"which is the agent: 0600, 0640, 0644",
			key->name, value);
}

static void set_unix_group(struct settings *s, const struct setting *key, const char *value)
{
	struct ownership *ownership = &last_group(s)->ownership;

	if (nss_find_group(value, &ownership->gid) < 0)
		report_no_unix_group(s, key, value);
	else
		ownership->unix_group = config_keep(s, value);
}

/* weightd finds out whether there is such a GPU. */
static void set_device(struct settings *s, const struct setting *key, const char *value)
{
	struct device device;

	if (device_parse(value, &device) < 0)
		settings_report(
			s,
			"'%s' does not take '%s'; it takes host, cuda, cuda:0 with the number of a GPU, "
			"cuda:GPU-<uuid> or cuda:MIG-<uuid>; weightctl devices lists them",
			key->name, value);
	else
		last_group(s)->device = config_keep(s, value);
}

static void set_operators(struct settings *s, const struct setting *key, const char *value)
{
	struct config *c = s->values;

	if (nss_find_group(value, &c->operators_gid) < 0)
		report_no_unix_group(s, key, value);
	else
		*text_of(s, key) = config_keep(s, value);
}

#define FIELD(member) .offset = offsetof(struct config, member)
#define KEY(in, n, ...)                                                                            \
	{                                                                                          \
		.section = in, .name = n, __VA_ARGS__                                              \
	}
#define TIME(n, member, most)                                                                      \
	KEY("limits", n, .type = &setting_seconds, FIELD(member), .min = 100, .max = most)

static const struct setting keys[] = {
	KEY("node", "name", .set = set_name, FIELD(name), .needed = "a"),
	KEY("node", "listen", .set = set_listen, FIELD(listen), .needed = "10.0.0.1:7400"),
	KEY("node", "data-address", .set = set_data_addresses),
	KEY("node", "state", .set = set_path, FIELD(state)),
	KEY("node", "socket", .set = set_path, FIELD(socket)),
	KEY("node", "weightd", .set = set_path, FIELD(weightd)),
	KEY("node", "trace", .set = set_path, FIELD(trace)),
	KEY("node", "log-level", .type = &setting_level, FIELD(log_level)),
	KEY("tls", "ca", .set = set_path, FIELD(ca), .needed = "/etc/weightd/pki/ca.crt"),
	KEY("tls", "certificate", .set = set_path, FIELD(certificate),
	    .needed = "/etc/weightd/pki/node.crt"),
	KEY("tls", "key", .set = set_path, FIELD(key), .needed = "/etc/weightd/pki/node.key"),
	KEY("tls", "crl", .set = set_path, FIELD(crl)),
	KEY("data", "security", .set = set_security),
	KEY("data", "engine", .set = set_engine),
	KEY("data", "patches", .type = &setting_switch, FIELD(patches)),
	KEY("data", "trusted", .set = set_trusted, .repeats = true),
	KEY("peer", "address", .set = set_address),
	KEY("group", "members", .set = set_members, .repeats = true),
	KEY("group", "publishers", .set = set_publishers, .repeats = true),
	KEY("group", "buffers", .set = set_buffers),
	KEY("group", "policy", .set = set_policy),
	KEY("group", "device", .set = set_device),
	KEY("group", "mode", .set = set_mode),
	KEY("group", "group", .set = set_unix_group),
	KEY("limits", "max-bytes", .type = &setting_bytes, FIELD(max_bytes), .min = 1,
	    .max = INT64_MAX, .word = "unlimited"),
	KEY("limits", "repair-rate", .type = &setting_bytes, FIELD(repair_rate),
	    .min = REPAIR_RATE_MIN, .max = INT64_MAX, .word = "unlimited"),
	TIME("prepare-timeout", prepare_ns, 3600000),
	TIME("stall-timeout", stall_ns, 3600000),
	TIME("heartbeat", heartbeat_ns, 60000),
	KEY("access", "operators", .set = set_operators, FIELD(operators)),
};

/* --- Sections ------------------------------------------------------------------------------------- */

static void begin_peer(struct settings *s, const char *name)
{
	struct parser *p = parser_of(s);
	struct config *c = s->values;
	const struct peer_config *other = find_peer(c, name);
	struct peer_config *peer;
	unsigned n = c->n_peers, *line;

	if (other) {
		settings_report(s, "[peer %s] began in line %u; a peer has one section", name,
				p->peer_lines[other - c->peers]);
		return;
	}
	line = config_grow(s, &p->peer_lines, &n, sizeof(*line));
	peer = line ? config_grow(s, &c->peers, &c->n_peers, sizeof(*peer)) : NULL;
	if (!peer)
		return;
	*line = s->line;
	peer->name = config_keep(s, name);
	if (!peer->name)
		c->n_peers--;
	else
		s->section = "peer";
}

static void begin_group(struct settings *s, const char *name)
{
	struct parser *p = parser_of(s);
	struct config *c = s->values;
	unsigned n = c->n_groups, *line;
	struct group *group;

	for (unsigned i = 0; i < n; i++)
		if (!strcmp(c->groups[i].name, name)) {
			settings_report(s, "[group %s] began in line %u; a group has one section",
					name, p->group_lines[i]);
			return;
		}
	line = config_grow(s, &p->group_lines, &n, sizeof(*line));
	group = line ? config_grow(s, &c->groups, &c->n_groups, sizeof(*group)) : NULL;
	if (!group)
		return;
	*line = s->line;
	group->name = config_keep(s, name);
	group->buffers = "*";
	group->device = GROUP_DEVICE_DEFAULT;
	if (!group->name)
		c->n_groups--;
	else
		s->section = "group";
}

static bool open_section(struct settings *s, const char *name)
{
	static const struct {
		const char *kind;
		void (*begin)(struct settings *s, const char *name);
	} named[] = {{"peer", begin_peer}, {"group", begin_group}};
	size_t word = strcspn(name, " \t");

	for (size_t i = 0; i < ARRAY_LEN(named); i++) {
		const char *kind = named[i].kind;

		if (strlen(kind) != word || strncmp(name, kind, word) != 0)
			continue;
		name += word + strspn(name + word, " \t");
		s->seen = memset(parser_of(s)->seen, 0, sizeof(parser_of(s)->seen));
		if (is_name(name))
			named[i].begin(s, name);
		else
			settings_report(s, "[%s %s]: '%s' is no name of a %s: %s", kind, name, name,
					kind, name_rule);
		return true;
	}
	return false;
}

/* --- Settings that must agree --------------------------------------------------------------------- */

static bool is_node(const struct config *c, const char *name)
{
	return (c->name && !strcmp(c->name, name)) || find_peer(c, name);
}

static void check_names(struct settings *s, unsigned line, const struct group *g,
			const char *const *names, unsigned n, const char *what)
{
	struct config *c = s->values;

	for (unsigned i = 0; i < n; i++)
		if (!is_node(c, names[i]))
			settings_report_at(
				s, line,
				"[group %s] has '%s' among its %s, which is neither this node nor a "
				"[peer %s]; add that section, or take the name out",
				g->name, names[i], what, names[i]);
	if (n == 0)
		settings_report_at(s, line, "[group %s] has no %s; write, say: %s = a", g->name,
				   what, what);
}

static void check_group(struct settings *s, unsigned i)
{
	struct parser *p = parser_of(s);
	struct config *c = s->values;
	const struct group *g = &c->groups[i];
	unsigned line = p->group_lines[i];

	check_names(s, line, g, g->members, g->n_members, "members");
	check_names(s, line, g, g->publishers, g->n_publishers, "publishers");
	for (unsigned j = 0; j < g->n_publishers; j++) {
		bool member = false;

		for (unsigned k = 0; k < g->n_members; k++)
			member |= !strcmp(g->members[k], g->publishers[j]);
		if (!member && is_node(c, g->publishers[j]))
			settings_report_at(
				s, line,
				"[group %s] has '%s' among its publishers and not among its members; "
				"add it to the members",
				g->name, g->publishers[j]);
	}
}

static void check_peer(struct settings *s, unsigned i)
{
	struct parser *p = parser_of(s);
	struct config *c = s->values;
	const struct peer_config *peer = &c->peers[i];
	char why[WHY_SIZE];
	struct address at;

	if (c->name && !strcmp(peer->name, c->name))
		settings_report_at(s, p->peer_lines[i],
				   "[peer %s] is this node, says [node] name; leave the section out",
				   peer->name);
	if (!peer->address)
		settings_report_at(s, p->peer_lines[i],
				   "[peer %s] has no 'address'; write, say: address = 10.0.0.2:7400",
				   peer->name);
	else if (address_from_digits(peer->host, peer->port, &at) &&
		 !config_trusts(c, (struct sockaddr *)&at.at, peer->name, why))
		settings_report_at(s, p->peer_lines[i], "%s", why);
}

static void check_data_address(struct settings *s, const char *address)
{
	struct config *c = s->values;
	char why[WHY_SIZE];
	struct address at;

	if (!strcmp(address, "0.0.0.0") || !strcmp(address, "::"))
		settings_report_at(
			s, 0,
			"[node] data-address has to be an address that other nodes can dial, not '%s'; "
			"write, say: data-address = 10.0.0.1",
			address);
	else if (address_from_digits(address, 1, &at) &&
		 !config_trusts(c, (struct sockaddr *)&at.at, "[node] data-address", why))
		settings_report_at(s, 0, "%s", why);
}

/* Engines listen where the agent does, by default. */
static void choose_data_addresses(struct settings *s)
{
	struct config *c = s->values;
	char host[ADDRESS_TEXT_SIZE];

	if (!c->listen)
		return;
	(void)address_format_host((struct sockaddr *)&c->listen_at.at, host);
	if (!c->n_data_addresses)
		c->data_addresses[c->n_data_addresses++] = config_keep(s, host);
	for (unsigned i = 0; i < c->n_data_addresses; i++)
		if (c->data_addresses[i])
			check_data_address(s, c->data_addresses[i]);
}

static void check_all(struct settings *s)
{
	struct config *c = s->values;

	if (c->transport && !c->transport->has_tls && c->data_tls)
		settings_report_at(
			s, 0,
			"[data] engine = %s sends weights in the clear; write security = none "
			"beside it, inside of trusted networks, or engine = tcp",
			c->transport->name);
	choose_data_addresses(s);
	for (unsigned i = 0; i < c->n_peers; i++)
		check_peer(s, i);
	for (unsigned i = 0; i < c->n_groups; i++)
		check_group(s, i);
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

static const char *environment_or(const char *variable, const char *otherwise)
{
	const char *value = getenv(variable);

	return value && value[0] ? value : otherwise;
}

/* The defaults. */
static void fill_in(struct settings *s)
{
	struct config *c = s->values;
	const char *weightd = socket_path_given(NULL);

	if (!c->state)
		c->state = config_keep(s,
				       environment_or("STATE_DIRECTORY", "/var/lib/weightd-sync"));
	if (!c->socket)
		c->socket = config_keep(s, environment_or("WEIGHTD_SYNC_SOCKET",
							  "/run/weightd-sync/sync.sock"));
	if (!c->weightd && weightd) /* the processes that we start do not see it */
		c->weightd = config_keep(s, weightd);
	if (!c->trace)
		c->trace = config_keep(s, environment_or("WEIGHTD_TRACE_SOCKET",
							 "/run/weightd-trace/trace.sock"));
	if (c->max_bytes == UINT64_MAX)
		c->max_bytes = 0;
	c->path = config_keep(s, s->path);
}

/* No version that is larger is ever admitted, and what comes before it asks weightd is in proportion to it. */
static uint64_t memory_of_all(void)
{
	return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void config_check(struct settings *s)
{
	check_all(s);
	fill_in(s);
}

static const struct settings_form form = {
	.program = "weightd-sync",
	.keys = keys,
	.n_keys = ARRAY_LEN(keys),
	.sections = "[node], [tls], [data], [peer NAME], [group NAME], [limits] and [access]",
	.splits = "; 'members', 'publishers' and 'trusted' may be given several times",
	.open = open_section,
	.check = config_check,
};

int config_parse(const char *path, const char *text, size_t size, struct config *ret)
{
	struct parser p = {
		.settings = {.form = &form, .path = path, .values = &p.config},
		.config =
			{
				.log_level = LOG_LEVEL_INFO,
				.data_tls = true,
				.transport = &transport_tcp,
				.patches = true,
				.max_bytes = memory_of_all(),
				.prepare_ns = 10ull * SECOND_NS,
				.stall_ns = 5ull * SECOND_NS,
				.heartbeat_ns = SECOND_NS,
				.operators_gid = (gid_t)-1,
			},
	};
	int r = settings_parse(&p.settings, text, size);

	free(p.peer_lines);
	free(p.group_lines);
	if (r < 0)
		config_deinit(&p.config);
	else
		*ret = p.config;
	return r;
}

int config_load(const char *path, const char *socket, struct config *ret)
{
	cleanup(freep) char *text = NULL;
	struct config c;
	struct settings s = {.path = path, .values = &c};
	uint64_t size;
	int r = settings_read(form.program, path, &text, &size);

	if (r == -ENOENT)
		log_error("cannot read %s: %s", path, strerror(-r));
	if (r == 0)
		r = config_parse(path, text, size, &c);
	if (r < 0)
		return r;
	if (socket && !(c.socket = config_keep(&s, socket))) {
		config_deinit(&c);
		return -ENOMEM;
	}
	*ret = c;
	return 0;
}
