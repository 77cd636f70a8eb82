/*
 * weightctl sync reshard, gather and scatter: turn a model in shards on some nodes into other shards on others.
 *
 * The agent does it, with the buffers of the nodes. A dry run without new buffers contacts only the local weightd,
 * for layouts: the arithmetic is that of ipc/reshard, which the agent's plan uses too.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/reshard/reshard.h"
#include "libclient/reshard/tensor.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"
#include "libclient/weightctl/verbs/sync_push.h"

#define NODE_NAME_MAX 42 /* as on a certificate */

enum {
	OPTION_SPLIT = OPTION_OWN,
	OPTION_RANKS,
	OPTION_ONTO,
	OPTION_DRY_RUN,
	OPTION_INTO,
	OPTION_GROUP,
	OPTION_MAX_RATE,
	OPTION_NO_WAIT,
	OPTION_QUEUE,
};

/* Every request to an agent must fit into one packet, with all its other fields. */
#define ASKED_SPLIT_MAX ((size_t)40 << 10)

/* Nodes by rank. */
struct ranks {
	unsigned n;
	unsigned nodes[RESHARD_RANKS_MAX]; /* places in plan::nodes */
};

struct plan {
	const char *nodes[2 * RESHARD_RANKS_MAX];
	unsigned n_nodes;
	struct ranks sources;
	struct ranks targets;
	struct split split;
	struct weightd_buffer *buffers[RESHARD_RANKS_MAX]; /* own the borrowed names and shapes */
	size_t n_buffers;
	struct reshard_layout layouts[RESHARD_RANKS_MAX]; /* one for each source */
	uint64_t *shapes; /* shapes of the layouts that were computed */
	struct reshard reshard;
	struct moves moves;
};

static void plan_deinit(struct plan *p)
{
	for (size_t i = 0; i < RESHARD_RANKS_MAX; i++)
		free((void *)p->layouts[i].tensors);
	for (size_t i = 0; i < p->n_buffers; i++)
		weightd_detach(p->buffers[i]);
	free(p->shapes);
	split_deinit(&p->split);
	reshard_deinit(&p->reshard);
	moves_deinit(&p->moves);
}

/* --- Options ------------------------------------------------------------------------------------ */

static bool is_name(const char *s)
{
	size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789.-");

	return n > 0 && n <= NODE_NAME_MAX && !s[n] && s[0] != '.' && s[0] != '-';
}

/* The nodes in a list, by spaces or commas. Ends the program for what is none. */
static void take_nodes(struct plan *p, const struct cli *cli, const char *what, char *arg,
		       struct ranks *ret)
{
	char *rest = NULL;

	*ret = (struct ranks){0};
	for (char *name = strtok_r(arg, " ,", &rest); name; name = strtok_r(NULL, " ,", &rest)) {
		unsigned i = 0;

		if (!is_name(name))
			cli_usage(cli,
				  "%s: '%s' cannot be a node; those are 1 to %d of a-z, 0-9, '.' and "
				  "'-'",
				  what, name, NODE_NAME_MAX);
		if (ret->n == RESHARD_RANKS_MAX)
			cli_usage(cli, "%s takes %d nodes at most", what, RESHARD_RANKS_MAX);
		while (i < p->n_nodes && strcmp(p->nodes[i], name) != 0)
			i++;
		if (i == p->n_nodes)
			p->nodes[p->n_nodes++] = name;
		for (unsigned k = 0; k < ret->n; k++)
			if (ret->nodes[k] == i)
				cli_usage(cli, "%s: '%s' is there twice; a node has one shard",
					  what, name);
		ret->nodes[ret->n++] = i;
	}
	if (ret->n == 0)
		cli_usage(cli, "%s wants the names of nodes, such as \"a b c\"", what);
}

static int read_file(const char *path, char *to, size_t max, size_t *ret_size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), r = fd < 0 ? -errno : 0;
	ssize_t n = 1;

	*ret_size = 0;
	while (r == 0 && n > 0 && *ret_size < max) {
		n = read(fd, to + *ret_size, max - *ret_size);
		if (n < 0)
			r = -errno;
		else
			*ret_size += (size_t)n;
	}
	if (fd >= 0)
		(void)close(fd);
	return r;
}

/* Also as JSON. 0, or EXIT_FAILED after printing why. */
static int take_split(struct plan *p, const char *path, json_t **ret)
{
	cleanup(cli_freep) char *text = malloc(SPLIT_SIZE_MAX + 1);
	char why[SPLIT_WHY_SIZE];
	size_t size;
	int r;

	if (!text)
		cli_out_of_memory();
	r = read_file(path, text, SPLIT_SIZE_MAX + 1, &size);
	if (r < 0)
		return cli_error("cannot read '%s': %s", path, strerror(-r));
	if (split_read(text, size, &p->split, why) < 0)
		return cli_error("%s: %s", path, why);
	*ret = json_loadb(text, size, 0, NULL);
	if (!*ret)
		cli_out_of_memory();
	return 0;
}

/* --- Layouts ------------------------------------------------------------------------------------ */

static struct reshard_layout layout_of(const struct weightd_buffer *b)
{
	uint32_t n = weightd_buffer_n_tensors(b);
	struct reshard_tensor *tensors = calloc((size_t)n + 1, sizeof(*tensors));
	struct reshard_layout l = {.tensors = tensors, .n_tensors = n};
	struct weightd_tensor t = {.size = sizeof(t)};

	if (!tensors)
		cli_out_of_memory();
	(void)weightd_buffer_data(b, &l.n_bytes);
	for (uint32_t i = 0; i < n && weightd_buffer_tensor(b, i, &t) >= 0; i++)
		tensors[i] = reshard_tensor_of(&t);
	return l;
}

/* The layouts of the targets of `r`. Shapes are taken off `*shapes`. */
static void take_targets(const struct reshard *r, struct reshard_layout *ret, uint64_t *shapes)
{
	uint32_t n = r->sources[0].n_tensors;

	for (unsigned target = 0; target < r->n_targets; target++) {
		struct reshard_tensor *tensors = calloc((size_t)n + 1, sizeof(*tensors));

		if (!tensors)
			cli_out_of_memory();
		for (uint32_t i = 0; i < n; i++, shapes += RESHARD_DIMS_MAX) {
			tensors[i] = r->sources[0].tensors[i];
			tensors[i].offset = reshard_offset(r, target, i);
			tensors[i].shape = shapes;
			reshard_shape(r, target, i, shapes);
		}
		ret[target] = (struct reshard_layout){.tensors = tensors,
						      .n_tensors = n,
						      .n_bytes = r->target_bytes[target]};
	}
}

/* Computes the shards of the ranks from whole tensors in the only layout: a scatter onto them. */
static int cut_whole(struct plan *p, char why[RESHARD_WHY_SIZE])
{
	struct reshard_layout whole = p->layouts[0];
	struct split split = {.rules = calloc(p->split.n_rules, sizeof(*split.rules)),
			      .n_rules = p->split.n_rules};
	struct reshard cut;
	int r;

	p->shapes = calloc((size_t)p->sources.n * whole.n_tensors + 1,
			   RESHARD_DIMS_MAX * sizeof(*p->shapes));
	if (!split.rules || !p->shapes)
		cli_out_of_memory();
	for (size_t i = 0; i < split.n_rules; i++)
		split.rules[i] = (struct split_rule){.tensors = p->split.rules[i].tensors,
						     .from = SPLIT_REPLICATED,
						     .to = p->split.rules[i].from};
	r = reshard_init(&cut, &split, &whole, 1, p->sources.n, why);
	free(split.rules);
	if (r < 0)
		return r;
	take_targets(&cut, p->layouts, p->shapes);
	reshard_deinit(&cut);
	free((void *)whole.tensors);
	return 0;
}

/* 0, or EXIT_FAILED after printing why. */
static int take_layouts(struct plan *p, struct cli *cli, const struct target *targets, size_t n)
{
	char why[RESHARD_WHY_SIZE];

	if (server_connect(cli))
		return EXIT_FAILED;
	for (size_t i = 0; i < n; i++) {
		if (server_attach(cli, &targets[i], &p->buffers[i]))
			return EXIT_FAILED;
		p->n_buffers++;
		p->layouts[i] = layout_of(p->buffers[i]);
	}
	if (n == 1 && p->sources.n > 1 && cut_whole(p, why) < 0)
		return cli_error("%s", why);
	return 0;
}

/* --- Results ------------------------------------------------------------------------------------ */

struct link {
	const char *from;
	const char *to;
	uint64_t bytes;
	uint64_t n_moves;
	bool wire;
};

#define LINK(member) offsetof(struct link, member)

static const struct column columns[] = {
	{"FROM", COLUMN_TEXT, LINK(from), .help = "node with the bytes", .shown = true, .cut = true,
	 .width = 0.3},
	{"TO", COLUMN_TEXT, LINK(to), .help = "node that receives them", .shown = true, .cut = true,
	 .width = 0.3},
	{"BYTES", COLUMN_SIZE, LINK(bytes), .help = "number of bytes", .shown = true},
	{"MOVES", COLUMN_U64, LINK(n_moves), .help = "strided copies that they are", .shown = true},
	{"WIRE", COLUMN_BOOL, LINK(wire), .help = "they leave their node", .shown = true},
	{},
};

struct node {
	const char *node;
	uint64_t source, target; /* bytes of its buffers; UINT64_MAX: it has none */
	uint64_t sends, receives, local;
};

#define NODE(member) offsetof(struct node, member)

static const struct column node_columns[] = {
	{"NODE", COLUMN_TEXT, NODE(node), .shown = true, .cut = true, .width = 0.3},
	{"SOURCE", COLUMN_COUNTED, NODE(source), .shown = true},
	{"TARGET", COLUMN_COUNTED, NODE(target), .shown = true},
	{"SENDS", COLUMN_SIZE, NODE(sends), .shown = true},
	{"RECEIVES", COLUMN_SIZE, NODE(receives), .shown = true},
	{"LOCAL", COLUMN_SIZE, NODE(local), .shown = true},
	{},
};

struct sums {
	uint64_t n_tensors;
	uint64_t n_links; /* over a wire */
	uint64_t wire;
	uint64_t local;
	uint64_t n_moves;
};

#define SUMS(member) offsetof(struct sums, member)

static const struct column sums_columns[] = {
	COLUMN("TENSORS", COLUMN_U64, SUMS(n_tensors)),
	COLUMN("TOTAL", COLUMN_SIZE, SUMS(wire)),
	COLUMN("LOCAL", COLUMN_SIZE, SUMS(local)),
	COLUMN("MOVES", COLUMN_U64, SUMS(n_moves)),
	{},
};

static struct sums sums_of(const struct plan *p)
{
	struct sums s = {.n_tensors = p->layouts[0].n_tensors, .n_moves = p->moves.n_moves};

	for (size_t i = 0; i < p->moves.n_links; i++) {
		const struct moves_link *l = &p->moves.links[i];

		s.n_links += l->from != l->to;
		*(l->from == l->to ? &s.local : &s.wire) += l->n_bytes;
	}
	return s;
}

static struct node node_of(const struct plan *p, unsigned node)
{
	struct node n = {.node = p->nodes[node], .source = UINT64_MAX, .target = UINT64_MAX};

	for (unsigned i = 0; i < p->sources.n; i++)
		if (p->sources.nodes[i] == node)
			n.source = p->layouts[i].n_bytes;
	for (unsigned i = 0; i < p->targets.n; i++)
		if (p->targets.nodes[i] == node)
			n.target = p->reshard.target_bytes[i];
	for (size_t i = 0; i < p->moves.n_links; i++) {
		const struct moves_link *l = &p->moves.links[i];

		if (l->from == l->to)
			n.local += l->from == node ? l->n_bytes : 0;
		else if (l->from == node)
			n.sends += l->n_bytes;
		else if (l->to == node)
			n.receives += l->n_bytes;
	}
	return n;
}

static int put_links(const struct plan *p, struct table *table, struct json *json)
{
	table_begin(table, json, "links");
	for (size_t i = 0; i < p->moves.n_links; i++) {
		const struct moves_link *l = &p->moves.links[i];
		const struct link link = {.from = p->nodes[l->from],
					  .to = p->nodes[l->to],
					  .bytes = l->n_bytes,
					  .n_moves = l->n_moves,
					  .wire = l->from != l->to};

		table_row(table, &link);
	}
	return table_end(table);
}

static int put_nodes(const struct plan *p, const struct cli *cli, struct json *json)
{
	struct table_format all_columns = cli->format;
	cleanup(table_deinit) struct table table = {};

	all_columns.columns = NULL; /* -o chooses among those of links */
	table_init(&table, &all_columns, node_columns);
	table_begin(&table, json, "nodes");
	for (unsigned i = 0; i < p->n_nodes; i++) {
		const struct node node = node_of(p, i);

		table_row(&table, &node);
	}
	return table_end(&table);
}

/* "4 shards to 2 of 12 tensors: 1.2 GB over 8 links, 300 MB stay on their nodes; nothing was sent" */
static void print_sums(const struct plan *p)
{
	const struct sums s = sums_of(p);
	char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX];

	(void)printf("\n%u shard%s to %u of %ju tensor%s: %s over %ju link%s, %s stay on their "
		     "nodes; nothing was sent\n",
		     p->sources.n, p->sources.n == 1 ? "" : "s", p->targets.n,
		     (uintmax_t)s.n_tensors, s.n_tensors == 1 ? "" : "s", size_text(a, s.wire),
		     (uintmax_t)s.n_links, s.n_links == 1 ? "" : "s", size_text(b, s.local));
}

static int sync_reshard_print(const struct plan *p, const struct cli *cli, struct table *table)
{
	bool all = cli->format.json || (!cli->format.columns && !cli->format.noheadings);
	struct json json = {.file = stdout};
	int r;

	if (cli->format.json) {
		const struct sums s = sums_of(p);

		json_open(&json, NULL, '{');
		column_json_all(sums_columns, &s, &json);
	}
	r = put_links(p, table, &json);
	if (!r && all) {
		if (!cli->format.json)
			(void)putchar('\n');
		r = put_nodes(p, cli, &json);
	}
	if (cli->format.json)
		json_close(&json, '}');
	else if (!r && all)
		print_sums(p);
	return r;
}

/* --- Requests ----------------------------------------------------------------------------------- */

/* The differences between the verbs. */
struct kind {
	const char *what;
	bool from_one;
	bool onto_one;
};

struct asked {
	const struct kind *kind;
	char *split;
	char *ranks;
	char *onto;
	char *into;
	struct push_options options;
};

static json_t *sources_of(const struct plan *p, const struct target *targets, size_t n)
{
	json_t *rows = json_array();

	for (unsigned i = 0; i < p->sources.n; i++) {
		const struct target *t = &targets[n == 1 ? 0 : i];

		json_array_append_new(rows, json_pack("{s:s, s:s, s:I}", "node",
						      p->nodes[p->sources.nodes[i]], "buffer",
						      t->name, "version", (json_int_t)t->version));
	}
	return rows;
}

static json_t *names_of(const struct plan *p, const struct ranks *ranks)
{
	json_t *names = json_array();

	for (unsigned i = 0; i < ranks->n; i++)
		json_array_append_new(names, json_string(p->nodes[ranks->nodes[i]]));
	return names;
}

/* Steals `split`. */
static int sync_reshard_ask(const struct cli *cli, const struct asked *a, const struct plan *p,
			    const struct target *targets, size_t n, json_t *split)
{
	const struct target into = {.name = cli_name(cli, a->into)};
	char made[64];
	const struct pushing kind = {
		.what = a->kind->what, .op = "reshard", .makes = true, .made = made};
	json_t *more;

	if (json_dumpb(split, NULL, 0, JSON_COMPACT) > ASKED_SPLIT_MAX) {
		json_decref(split);
		return cli_error("%s has more than the %zu KiB of a request to weightd-sync; "
				 "patterns such as \"*.weight\" take fewer rules",
				 a->split, ASKED_SPLIT_MAX >> 10);
	}
	more = json_pack("{s:o, s:o, s:o}", "sources", sources_of(p, targets, n), "targets",
			 names_of(p, &p->targets), "split", split);
	if (!more)
		cli_out_of_memory();
	(void)snprintf(made, sizeof(made), "%u shard%s out of %u", p->targets.n,
		       p->targets.n == 1 ? "" : "s", p->sources.n);
	return sync_push_ask(cli, &kind, &into, &a->options, more);
}

/* --- The verbs ---------------------------------------------------------------------------------- */

static void check_kind(const struct cli *cli, const struct kind *k, const struct plan *p)
{
	if (k->from_one && p->sources.n != 1)
		cli_usage(cli, "'%s' is from one node, which --ranks names; use 'sync reshard'",
			  cli->verb->name);
	if (k->onto_one && p->targets.n != 1)
		cli_usage(cli, "'%s' is onto one node, which --onto names; use 'sync reshard'",
			  cli->verb->name);
}

static void sync_reshard_check(const struct asked *a, const struct cli *cli, struct plan *p,
			       size_t n_layouts)
{
	if (!a->split || !a->ranks || !a->onto)
		cli_usage(cli,
			  "'%s' wants --split, --ranks and --onto, such as --split split.json --ranks "
			  "\"a b c d\" --onto \"e f\"",
			  cli->verb->name);
	if (!a->into && !a->options.is_dry)
		cli_usage(cli,
			  "'%s' wants the name of the buffer to make, such as --into tp2; or --dry-run",
			  cli->verb->name);
	if (a->into &&
	    (cli->device || cli->format.columns || cli->format.noheadings || cli->format.bytes))
		cli_usage(cli,
			  "--device and what tables show go with --dry-run without --into, which "
			  "asks the local weightd alone");
	if (!a->into &&
	    (a->options.group || a->options.max_rate || a->options.no_wait || a->options.queue))
		cli_usage(cli, "--group, --max-rate, --queue and --no-wait go with --into");
	take_nodes(p, cli, "--ranks", a->ranks, &p->sources);
	take_nodes(p, cli, "--onto", a->onto, &p->targets);
	check_kind(cli, a->kind, p);
	if (p->n_nodes > MOVES_NODES_MAX)
		cli_usage(cli, "%u nodes are more than the %d that can take part", p->n_nodes,
			  MOVES_NODES_MAX);
	if (n_layouts != 1 && n_layouts != p->sources.n)
		cli_usage(cli,
			  "'%s' wants the buffer of each of the %u --ranks, or one name for all of "
			  "them, not %zu",
			  cli->verb->name, p->sources.n, n_layouts);
}

static int plan_alone(struct cli *cli, struct plan *p, const struct target *targets, size_t n)
{
	cleanup(table_deinit) struct table table = {};
	char why[RESHARD_WHY_SIZE];

	table_init(&table, &cli->format, columns);
	if (take_layouts(p, cli, targets, n))
		return EXIT_FAILED;
	if (reshard_init(&p->reshard, &p->split, p->layouts, p->sources.n, p->targets.n, why) < 0 ||
	    reshard_moves(&p->reshard, p->sources.nodes, p->targets.nodes, p->n_nodes, &p->moves,
			  why) < 0)
		return cli_error("%s", why);
	return sync_reshard_print(p, cli, &table);
}

static void take_option(const struct cli *cli, struct asked *a, int option)
{
	if (option == OPTION_SPLIT)
		a->split = optarg;
	else if (option == OPTION_RANKS)
		a->ranks = optarg;
	else if (option == OPTION_ONTO)
		a->onto = optarg;
	else if (option == OPTION_INTO)
		a->into = optarg;
	else if (option == OPTION_GROUP)
		a->options.group = optarg;
	else if (option == OPTION_MAX_RATE)
		a->options.max_rate = cli_bytes(cli, "--max-rate", optarg);
	else if (option == OPTION_NO_WAIT)
		a->options.no_wait = true;
	else if (option == OPTION_QUEUE)
		a->options.queue = true;
	else if (option == OPTION_DRY_RUN)
		a->options.is_dry = true;
	else
		a->options.quiet = true;
}

static int run_kind(struct cli *cli, int argc, char *argv[], const struct kind *kind)
{
	static const struct option longs[] = {
		{"split", required_argument, NULL, OPTION_SPLIT},
		{"ranks", required_argument, NULL, OPTION_RANKS},
		{"onto", required_argument, NULL, OPTION_ONTO},
		{"into", required_argument, NULL, OPTION_INTO},
		{"group", required_argument, NULL, OPTION_GROUP},
		{"max-rate", required_argument, NULL, OPTION_MAX_RATE},
		{"dry-run", no_argument, NULL, OPTION_DRY_RUN},
		{"no-wait", no_argument, NULL, OPTION_NO_WAIT},
		{"queue", no_argument, NULL, OPTION_QUEUE},
		{"quiet", no_argument, NULL, 'q'},
		{"socket", required_argument, NULL, OPTION_SOCKET},
		OPTIONS_DEVICE,
		OPTIONS_TABLE,
		OPTIONS_AGENT,
		{},
	};
	cleanup(plan_deinit) struct plan p = {};
	cleanup(cli_freep) struct target *targets = NULL;
	cleanup(json_decrefp) json_t *split = NULL;
	struct asked a = {.kind = kind};
	size_t n;
	int option;

	while ((option = cli_option(cli, argc, argv, LETTERS_TABLE "q", longs)) >= 0)
		take_option(cli, &a, option);
	targets = cli_targets(cli, argc, argv, &n);
	sync_reshard_check(&a, cli, &p, n);
	if (take_split(&p, a.split, &split))
		return EXIT_FAILED;
	return a.into ? sync_reshard_ask(cli, &a, &p, targets, n, json_incref(split))
		      : plan_alone(cli, &p, targets, n);
}

#define ARGS "NAME[@VERSION]..."
#define OPTIONS                                                                                    \
	"     --split FILE       JSON: the dimension of each tensor to split\n"                    \
	"     --ranks NODES      nodes with the shards now, by rank, such as \"a b c d\"\n"        \
	"     --onto NODES       nodes for the new shards, by rank, such as \"e f\"\n"             \
	"     --into BUFFER      name of the new buffers\n"                                        \
	"     --group GROUP      the group; the only one it fits into if not given\n"              \
	"     --max-rate BYTES   a second out of each node at most, such as 500M or 1G\n"          \
	"     --dry-run          link all nodes, print what would be sent, and undo it;\n"         \
	"                        without --into, plan by the local weightd alone\n"                \
	"     --no-wait          print the name of the sync, and do not wait for its end\n"        \
	"     --queue            wait for the end of syncs in progress with the buffer\n"          \
	" -q, --quiet            no progress and no closing line\n"                                \
	"     --socket PATH      socket of the server, for --dry-run without --into\n" HELP_DEVICE HELP_TABLE

static int run_reshard(struct cli *cli, int argc, char *argv[])
{
	return run_kind(cli, argc, argv, &(const struct kind){.what = "reshard"});
}

static int run_gather(struct cli *cli, int argc, char *argv[])
{
	return run_kind(cli, argc, argv, &(const struct kind){.what = "gather", .onto_one = true});
}

static int run_scatter(struct cli *cli, int argc, char *argv[])
{
	return run_kind(cli, argc, argv, &(const struct kind){.what = "scatter", .from_one = true});
}

const struct verb verb_sync_reshard = {
	.name = "sync reshard",
	.args = ARGS,
	.summary = "Turn shards of a model on some nodes into others elsewhere",
	.options = OPTIONS,
	.columns = columns,
	.peer = PEER_AGENT,
	.run = run_reshard,
};

const struct verb verb_sync_gather = {
	.name = "sync gather",
	.args = ARGS,
	.summary = "Gather shards of a model into a whole on one node",
	.options = OPTIONS,
	.columns = columns,
	.peer = PEER_AGENT,
	.run = run_gather,
};

const struct verb verb_sync_scatter = {
	.name = "sync scatter",
	.args = ARGS,
	.summary = "Scatter a whole model on one node into shards on others",
	.options = OPTIONS,
	.columns = columns,
	.peer = PEER_AGENT,
	.run = run_scatter,
};
