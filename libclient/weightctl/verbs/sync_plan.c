/*
 * weightctl sync plan: compute how long a push to a group of any size would take, by each schedule.
 *
 * Uses the model of push_model.c with the values of the options, and contacts no service. sync push --dry-run prints
 * the plan of a real push.
 */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/verb.h"
#include "libclient/weightctl/verbs/push_model.h"

#define NIC_MIN 1e6 /* bits a second */
#define NIC_MAX 1e13
#define SECONDS_MAX 3600.0

enum {
	OPTION_NODES = OPTION_OWN,
	OPTION_NIC,
	OPTION_SIZE,
	OPTION_SCHEDULE,
	OPTION_CHUNK,
	OPTION_STRAGGLERS,
	OPTION_FAILURES,
	OPTION_STALL,
	OPTION_LATENCY,
	OPTION_EFFICIENCY,
	OPTION_DIGEST,
};

struct plan {
	struct push_model_cluster cluster;
	double nic; /* bits a second */
	double efficiency; /* percent of it */
	const struct push_model_schedule *only; /* NULL: all of them */
};

struct row {
	const char *schedule;
	bool runs;
	uint64_t moves_ns, others_ns, total_ns; /* UINT64_MAX: not printed */
	uint64_t root, link, all, again;
	uint64_t n_links;
};

#define ROW(member) offsetof(struct row, member)

static const struct column columns[] = {
	{"SCHEDULE", COLUMN_TEXT, ROW(schedule), .help = "schedule; weightctl(1) has the formulae",
	 .shown = true},
	{"RUNS", COLUMN_BOOL, ROW(runs), .help = "the schedule of weightd-sync", .shown = true},
	{"MOVES", COLUMN_DURATION, ROW(moves_ns), .help = "time until the last node has all bytes",
	 .shown = true},
	{"OTHERS", COLUMN_DURATION, ROW(others_ns),
	 .help = "the same for those that are no stragglers", .shown = true},
	{"TIME", COLUMN_DURATION, ROW(total_ns),
	 .help = "time until all can be read, with the digests", .shown = true},
	{"ROOT", COLUMN_SIZE, ROW(root), .help = "bytes that the publisher sends", .shown = true},
	{"LINK", COLUMN_SIZE, ROW(link), .help = "most bytes from one node to another",
	 .shown = true},
	{"TOTAL", COLUMN_SIZE, ROW(all), .help = "bytes over all links", .shown = true},
	{"LINKS", COLUMN_U64, ROW(n_links), .help = "number of links"},
	{"AGAIN", COLUMN_SIZE, ROW(again),
	 .help = "bytes sent once more, or in vain, for those that fail"},
	{},
};

/* --- Options ------------------------------------------------------------------------------------ */

static double decimal(const struct cli *cli, const char *what, const char *arg, double min,
		      double max)
{
	char *end = NULL;
	double n = arg[0] && strspn(arg, "0123456789.") == strlen(arg) ? strtod(arg, &end) : -1;

	if (!end || *end || n < min || n > max)
		cli_usage(cli, "%s wants a number from %g to %g, not '%s'", what, min, max, arg);
	return n;
}

/* "400G", "1TB", "1.5TiB": a number, perhaps with a prefix, perhaps with a unit. -1: something else. */
static double quantity(const char *arg, const char *const *units)
{
	static const char prefixes[] = "kMGTP";
	size_t n_digits = strspn(arg, "0123456789.");
	const char *prefix = arg[n_digits] ? strchr(prefixes, arg[n_digits]) : NULL;
	const char *unit = arg + n_digits + (prefix != NULL);
	double base = 1000, n;
	char *end;

	if (prefix && *unit == 'i') {
		base = 1024;
		unit++;
	}
	while (*units && strcmp(*units, unit) != 0)
		units++;
	n = strtod(arg, &end);
	if (!n_digits || end != arg + n_digits || !*units)
		return -1;
	return prefix ? n * pow(base, (double)(prefix - prefixes + 1)) : n;
}

static uint64_t bytes(const struct cli *cli, const char *what, const char *arg, uint64_t max)
{
	static const char *const units[] = {"", "B", NULL};
	double n = quantity(arg, units);

	if (n < 1 || n > (double)max) {
		char text[SIZE_TEXT_MAX];

		cli_usage(cli, "%s wants a number of bytes up to %s, such as 16G or 1.5TB, not '%s'",
			  what, size_text(text, max), arg);
	}
	return (uint64_t)n;
}

static double bits(const struct cli *cli, const char *what, const char *arg)
{
	static const char *const units[] = {"", "b", "bit", "b/s", "bit/s", "bps", NULL};
	double n = quantity(arg, units);

	if (n < NIC_MIN || n > NIC_MAX)
		cli_usage(cli, "%s wants bits a second from 1M to 10T, such as 400G, not '%s'",
			  what, arg);
	return n;
}

static void take_stragglers(const struct cli *cli, struct push_model_cluster *c, char *arg)
{
	char *colon = strchr(arg, ':');

	if (!colon)
		cli_usage(cli,
			  "--stragglers wants how many and how many times slower, such as 10:2, not '%s'",
			  arg);
	*colon = '\0';
	c->n_stragglers = cli_number(cli, "--stragglers", arg, 10, 0, PUSH_MODEL_NODES_MAX);
	c->slowness = decimal(cli, "how many times slower --stragglers are", colon + 1, 1, 1e6);
}

static const struct push_model_schedule *schedule(const struct cli *cli, const char *arg)
{
	const struct push_model_schedule *s = push_model_schedules;

	while (s->name && strcmp(s->name, arg) != 0)
		s++;
	if (!s->name)
		cli_usage(cli,
			  "--schedule wants chain, tree, binomial, ring or one-to-all, not '%s'",
			  arg);
	return s;
}

static void sync_plan_take(struct plan *p, const struct cli *cli, int option, char *arg)
{
	struct push_model_cluster *c = &p->cluster;

	switch (option) {
	case OPTION_NODES:
		c->n_nodes = cli_number(cli, "--nodes", arg, 10, 2, PUSH_MODEL_NODES_MAX);
		break;
	case OPTION_NIC:
		p->nic = bits(cli, "--nic", arg);
		break;
	case OPTION_SIZE:
		c->n_bytes = bytes(cli, "--size", arg, PUSH_MODEL_BYTES_MAX);
		break;
	case OPTION_SCHEDULE:
		p->only = schedule(cli, arg);
		break;
	case OPTION_CHUNK:
		c->chunk = bytes(cli, "--chunk", arg, PUSH_MODEL_BYTES_MAX);
		break;
	case OPTION_STRAGGLERS:
		take_stragglers(cli, c, arg);
		break;
	case OPTION_FAILURES:
		c->n_failures = cli_number(cli, "--failures", arg, 10, 0, PUSH_MODEL_FAILURES_MAX);
		break;
	case OPTION_STALL:
		c->stall_s = decimal(cli, "--stall", arg, 0, SECONDS_MAX);
		break;
	case OPTION_LATENCY:
		c->latency_s = decimal(cli, "--latency", arg, 0, SECONDS_MAX);
		break;
	case OPTION_EFFICIENCY:
		p->efficiency = decimal(cli, "--efficiency", arg, 1, 100);
		break;
	case OPTION_DIGEST:
		c->digest_rate = (double)cli_bytes(cli, "--digest", arg);
		break;
	}
}

/* Ends the program where they make no sense together. */
static void sync_plan_check(const struct plan *p, const struct cli *cli)
{
	const struct push_model_cluster *c = &p->cluster;

	if (!c->n_nodes || p->nic <= 0 || !c->n_bytes)
		cli_usage(cli,
			  "'%s' wants --nodes, --nic and --size, such as --nodes 1000 --nic 400G "
			  "--size 1TB",
			  cli->verb->name);
	if (c->n_stragglers >= c->n_nodes)
		cli_usage(cli, "of %ju nodes, at most %ju can be --stragglers: one publishes",
			  (uintmax_t)c->n_nodes, (uintmax_t)c->n_nodes - 1);
	if (c->n_failures && c->n_failures + 1 >= c->n_nodes)
		cli_usage(cli,
			  "of %ju nodes, --failures can have at most %ju, or none is left to send to",
			  (uintmax_t)c->n_nodes, (uintmax_t)c->n_nodes - 2);
}

/* --- Results ------------------------------------------------------------------------------------ */

/* Five centuries are as good as any longer time. */
static uint64_t ns(double s)
{
	return s < 1.8e10 ? (uint64_t)(s * 1e9) : UINT64_MAX - 1;
}

static struct row row_of(const struct push_model_schedule *s, const struct push_model_cluster *c)
{
	struct push_model f;

	push_model_make(s, c, &f);
	return (struct row){
		.schedule = s->name,
		.runs = s->runs,
		.moves_ns = ns(f.moves_s),
		.others_ns = c->n_stragglers && c->n_stragglers < c->n_nodes - 1 ? ns(f.others_s)
										 : UINT64_MAX,
		.total_ns = ns(f.total_s),
		.root = (uint64_t)f.root_bytes,
		.link = (uint64_t)f.link_bytes,
		.all = (uint64_t)f.all_bytes,
		.n_links = f.n_links,
		.again = (uint64_t)f.again_bytes,
	};
}

static void put_given(struct json *j, const struct plan *p)
{
	const struct push_model_cluster *c = &p->cluster;

	json_put_number(j, "nodes", c->n_nodes);
	json_put_number(j, "size", c->n_bytes);
	json_put_number(j, "nic", (uint64_t)p->nic);
	json_put_number(j, "rate", (uint64_t)c->rate);
	json_put_number(j, "chunk", c->chunk);
	json_put_number(j, "latency_ns", ns(c->latency_s));
	json_put_number(j, "digest_rate", (uint64_t)c->digest_rate);
	json_put_number(j, "stragglers", c->n_stragglers);
	json_put_number(j, "straggler_rate", (uint64_t)(c->rate / c->slowness));
	json_put_number(j, "failures", c->n_failures);
	json_put_number(j, "stall_ns", ns(c->stall_s));
}

/* The assumptions of the figures, in sentences below them. */
static void print_given(const struct plan *p)
{
	const struct push_model_cluster *c = &p->cluster;
	uint64_t rate = (uint64_t)c->rate, digest_rate = (uint64_t)c->digest_rate;
	char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX], d[SIZE_TEXT_MAX];

	(void)printf("\n%s to %ju nodes of %s (%g%% of %g Gb/s), in chunks of %s.\n",
		     size_text(a, c->n_bytes), (uintmax_t)c->n_nodes - 1,
		     size_rate(b, rate, 1000000000), p->efficiency, p->nic / 1e9,
		     size_text(d, c->chunk));
	(void)printf("A digest takes %s, at %s: one at the publisher, one at the others.\n",
		     size_duration(a, ns((double)c->n_bytes / c->digest_rate)),
		     size_rate(b, digest_rate, 1000000000));
	if (c->n_stragglers)
		(void)printf("Stragglers: %ju, %g times slower, where they do the least harm.\n",
			     (uintmax_t)c->n_stragglers, c->slowness);
	if (c->n_failures)
		(void)printf("Failures: %ju, each in the middle, noticed after %s.\n",
			     (uintmax_t)c->n_failures, size_duration(a, ns(c->stall_s)));
}

static int sync_plan_print(const struct cli *cli, struct table *table, const struct plan *p)
{
	struct json json = {.file = stdout};
	int r;

	if (cli->format.json) {
		json_open(&json, NULL, '{');
		put_given(&json, p);
	}
	table_begin(table, &json, "schedules");
	for (const struct push_model_schedule *s = push_model_schedules; s->name; s++) {
		struct row row;

		if (p->only && s != p->only)
			continue;
		row = row_of(s, &p->cluster);
		table_row(table, &row);
	}
	r = table_end(table);
	if (cli->format.json)
		json_close(&json, '}');
	else if (!r && !cli->format.columns && !cli->format.noheadings)
		print_given(p);
	return r;
}

static int sync_plan_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"nodes", required_argument, NULL, OPTION_NODES},
		{"nic", required_argument, NULL, OPTION_NIC},
		{"size", required_argument, NULL, OPTION_SIZE},
		{"schedule", required_argument, NULL, OPTION_SCHEDULE},
		{"chunk", required_argument, NULL, OPTION_CHUNK},
		{"stragglers", required_argument, NULL, OPTION_STRAGGLERS},
		{"failures", required_argument, NULL, OPTION_FAILURES},
		{"stall", required_argument, NULL, OPTION_STALL},
		{"latency", required_argument, NULL, OPTION_LATENCY},
		{"efficiency", required_argument, NULL, OPTION_EFFICIENCY},
		{"digest", required_argument, NULL, OPTION_DIGEST},
		OPTIONS_TABLE,
		OPTION_HELP,
		{},
	};
	cleanup(table_deinit) struct table table = {};
	struct plan p = {
		.cluster = {.digest_rate = 8e9,
			    .chunk = 1 << 20,
			    .latency_s = 1e-4,
			    .slowness = 1,
			    .stall_s = 5},
		.efficiency = 85,
	};
	int option;

	while ((option = cli_option(cli, argc, argv, LETTERS_TABLE, longs)) >= 0)
		sync_plan_take(&p, cli, option, optarg);
	if (argc - optind > 0)
		cli_usage(cli, "'%s' takes no arguments", cli->verb->name);
	sync_plan_check(&p, cli);
	p.cluster.rate = p.nic / 8 * p.efficiency / 100;
	table_init(&table, &cli->format, columns);
	return sync_plan_print(cli, &table, &p);
}

const struct verb verb_sync_plan = {
	.name = "sync plan",
	.args = "--nodes NODES --nic BITS --size BYTES",
	.summary = "Predict how long a push takes, by schedule",
	.options = "     --nodes NODES      how many, the publisher included\n"
		   "     --nic BITS         a second, in each direction, of each node, such as "
		   "400G\n"
		   "     --size BYTES       of the version, such as 16G, 1.5TB or 256MiB\n"
		   "     --schedule NAME    chain, tree, binomial, ring or one-to-all (all of "
		   "them)\n"
		   "     --chunk BYTES      unit that nodes forward (1 MiB)\n"
		   "     --stragglers N:FACTOR\n"
		   "                        so many nodes are so many times slower (none)\n"
		   "     --failures N       so many nodes fail during the push (none)\n"
		   "     --stall SECONDS    until that is detected, stall-timeout (5)\n"
		   "     --latency SECONDS  from one node to the next (0.0001)\n"
		   "     --efficiency PERCENT\n"
		   "                        of the NIC that one stream reaches (85)\n"
		   "     --digest BYTES     a second that a node digests (8G)\n" HELP_TABLE,
	.columns = columns,
	.peer = PEER_NONE,
	.run = sync_plan_run,
};
