/*
 * Plans are printed as the agent sends them, with its own sums: weightctl adds up nothing, so that a sum that
 * contradicts its table would show.
 */
#include "libclient/weightctl/verbs/push_plan.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/control/sync.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/json.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/output/table.h"

#define LINKS_MAX 4096 /* an agent has fewer; one that lies fills no memory */

struct link {
	const char *from;
	const char *to;
	uint64_t stripes; /* pairs of interfaces that share the bytes */
	uint64_t bytes;
	uint64_t planned; /* with what engines add */
};

#define LINK(member) offsetof(struct link, member)
#define COLUMN_STRIPES 2

static const struct column columns[] = {
	{"FROM", COLUMN_TEXT, LINK(from), .shown = true, .cut = true, .width = 0.4},
	{"TO", COLUMN_TEXT, LINK(to), .shown = true, .cut = true, .width = 0.4},
	{"STRIPES", COLUMN_U64, LINK(stripes), .shown = false},
	{"BYTES", COLUMN_SIZE, LINK(bytes), .shown = true},
	{"PLANNED", COLUMN_COUNTED, LINK(planned), .shown = true},
	{},
};

struct sums {
	const char *schedule;
	const char *by; /* full, leaves or patch */
	uint64_t size; /* bytes of the version */
	uint64_t changed; /* part that some node lacks, or the bytes of the patch */
	uint64_t total; /* over all links */
	uint64_t planned;
	uint64_t takes_ns; /* UINT64_MAX: no rate yet */
};

#define SUMS(member) offsetof(struct sums, member)

static const struct column sums_columns[] = {
	COLUMN("SCHEDULE", COLUMN_TEXT, SUMS(schedule)),
	COLUMN("BY", COLUMN_TEXT, SUMS(by)),
	COLUMN("SIZE", COLUMN_SIZE, SUMS(size)),
	COLUMN("CHANGED", COLUMN_SIZE, SUMS(changed)),
	COLUMN("TOTAL", COLUMN_SIZE, SUMS(total)),
	COLUMN("PLANNED", COLUMN_COUNTED, SUMS(planned)),
	COLUMN("TAKES", COLUMN_DURATION, SUMS(takes_ns)),
	{},
};

void push_plan_deinit(struct push_plan *p)
{
	json_decref(p->links);
	json_decref(p->sums);
}

void push_plan_take(struct push_plan *p, json_t *event)
{
	json_t *links = json_object_get(event, "links");

	if (!p->sums ||
	    json_array_size(p->links) >= json_field_number(p->sums, "n_links", 0)) { /* a new one */
		push_plan_deinit(p);
		p->sums = json_incref(event);
		p->links = json_array();
	}
	if (!p->links || (json_array_size(p->links) < LINKS_MAX && json_is_array(links) &&
			  json_array_extend(p->links, links) < 0))
		cli_out_of_memory();
}

static struct sums sums_of(const struct push_plan *p)
{
	return (struct sums){
		.schedule = json_field_text(p->sums, "schedule"),
		.by = json_field_text(p->sums, "by"),
		.size = json_field_number(p->sums, "size", 0),
		.changed = json_field_number(p->sums, "changed", 0),
		.total = json_field_number(p->sums, "total", 0),
		.planned = json_field_number(p->sums, "planned", UINT64_MAX),
		.takes_ns = json_field_number(p->sums, "takes_ns", UINT64_MAX),
	};
}

static struct link link_of(const json_t *row)
{
	return (struct link){
		.from = json_field_text(row, "from"),
		.to = json_field_text(row, "to"),
		.stripes = json_field_number(row, "stripes", 1),
		.bytes = json_field_number(row, "bytes", 0),
		.planned = json_field_number(row, "planned", UINT64_MAX),
	};
}

static void put_links(const struct push_plan *p, struct table *table)
{
	const json_t *row;
	size_t i;

	json_array_foreach(p->links, i, row)
	{
		const struct link link = link_of(row);

		table_row(table, &link);
	}
}

/* " 1.8: the mean of 16.1 GB over 6 links, 64.4 GB in all, in about 9.1 s; nothing was sent" */
static void print_all_to_all(const struct sums *s, const char *version, size_t n)
{
	char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX];

	(void)printf(" %s: the mean of %s over %zu links, %s in all", version ? version : "-",
		     size_text(a, s->changed), n, size_text(b, s->total));
	if (s->takes_ns != UINT64_MAX)
		(void)printf(", in about %s", size_duration(b, s->takes_ns));
	(void)puts("; nothing was sent");
}

/* ": 16.1 GB over 6 links, 2.0 GB stay on their nodes, in about 9.1 s; nothing was sent" */
static void print_shards(const struct sums *s, size_t n)
{
	char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX];

	(void)printf(": %s over %zu link%s, %s stay on their nodes", size_text(a, s->total), n,
		     n == 1 ? "" : "s", size_text(b, s->changed - s->total));
	if (s->takes_ns != UINT64_MAX)
		(void)printf(", in about %s", size_duration(b, s->takes_ns));
	(void)puts("; nothing was sent");
}

/* "llama 1.8: 21.0 MB (2.0% of 1.1 GB) to each of 3 nodes, 63.0 MB in all, in about 9.1 s; nothing was sent" */
static void print_sums(const struct push_plan *p, const char *buffer)
{
	const struct sums s = sums_of(p);
	const char *version = sync_version_text(sync_version_of(p->sums));
	size_t n = json_array_size(p->links);
	char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX], part[SIZE_TEXT_MAX];
	const bool is_same = s.total == n * s.changed; /* each node receives all of it */

	escape_name(stdout, buffer);
	if (s.schedule && !strcmp(s.schedule, "all-to-all")) {
		print_all_to_all(&s, version, n);
		return;
	}
	if (s.schedule && !strcmp(s.schedule, "shards")) {
		print_shards(&s, n);
		return;
	}
	if (!n) {
		(void)printf(" %s: every node has all of it; nothing was sent\n",
			     version ? version : "-");
		return;
	}
	(void)printf(" %s: %s", version ? version : "-", size_text(a, s.changed));
	if (s.changed < s.size)
		(void)printf(" (%s of %s)", size_part(part, s.changed, s.size),
			     size_text(b, s.size));
	if (s.by && !strcmp(s.by, "patch"))
		(void)fputs(is_same ? " as a patch" : ", partly as a patch,", stdout);
	(void)printf(" to %s%zu node%s", n > 1 && is_same ? "each of " : "", n, n == 1 ? "" : "s");
	if (n > 1)
		(void)printf(", %s in all", size_text(a, s.total));
	if (s.takes_ns != UINT64_MAX)
		(void)printf(", in about %s", size_duration(b, s.takes_ns));
	(void)puts("; nothing was sent");
}

/* Stripes are printed only if a link has several. */
static bool is_striped(const struct push_plan *p)
{
	const json_t *row;
	size_t i;

	json_array_foreach(p->links, i, row) if (link_of(row).stripes > 1) return true;
	return false;
}

int push_plan_print(const struct push_plan *p, const struct cli *cli, const char *buffer)
{
	cleanup(table_deinit) struct table table = {};
	struct column shown[sizeof(columns) / sizeof(columns[0])];
	int r = 0;

	memcpy(shown, columns, sizeof(columns));
	shown[COLUMN_STRIPES].shown = is_striped(p);
	if (json_array_size(p->links)) {
		table_init(&table, &cli->format, shown);
		table_begin(&table, NULL, NULL);
		put_links(p, &table);
		r = table_end(&table);
		(void)putchar('\n');
	}
	if (!r)
		print_sums(p, buffer);
	return r;
}

void push_plan_json(const struct push_plan *p, struct json *j)
{
	const struct sums s = sums_of(p);
	const json_t *row;
	size_t i;

	column_json_all(sums_columns, &s, j);
	json_open(j, "links", '[');
	json_array_foreach(p->links, i, row)
	{
		const struct link link = link_of(row);

		json_open(j, NULL, '{');
		column_json_all(columns, &link, j);
		json_close(j, '}');
	}
	json_close(j, ']');
}
