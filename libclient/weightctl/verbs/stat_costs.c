#include "libclient/weightctl/verbs/stat_costs.h"

#include <stddef.h>
#include <stdio.h>

#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/output/user.h"

struct cost {
	struct weightd_cost_info info;
	uint64_t p99_ns; /* UINT64_MAX: none, or unknown */
};

#define COST(member) offsetof(struct cost, info.member)

static const char *cost_user(const void *row, bool json)
{
	const struct cost *cost = row;

	(void)json;
	return user_name(cost->info.uid);
}

static const struct column columns[] = {
	{"USER", COLUMN_WORD, .word = cost_user, .shown = true, .cut = true, .width = 0.1},
	COLUMN("UID", COLUMN_U32, COST(uid)),
	{"REQUESTS", COLUMN_U64, COST(n_requests), .shown = true},
	{"LOOP", COLUMN_MICROSECONDS, COST(loop_ns), .shown = true},
	{"WORKER", COLUMN_MICROSECONDS, COST(worker_ns), .shown = true},
	{"LONGEST", COLUMN_MICROSECONDS, COST(longest_ns), .shown = true},
	{"P99", COLUMN_MICROSECONDS, offsetof(struct cost, p99_ns), .shown = true},
	{"HELD", COLUMN_SIZE, COST(held_bytes), .shown = true},
	{"CHECKING", COLUMN_SIZE, COST(checking_bytes), .shown = true},
	{"REFUSED", COLUMN_U64, COST(n_refused), .shown = true},
	{},
};

/* The end of the span that has the 99th percentile. */
static uint64_t cost_p99(const struct weightd_cost_info *info)
{
	uint64_t all = 0, some = 0;

	for (unsigned i = 0; i < info->n_spans; i++)
		all += info->answered[i];
	for (unsigned i = 0; all && i + 1 < info->n_spans; i++) {
		some += info->answered[i];
		if (some >= all - all / 100)
			return info->span_ns << i;
	}
	return UINT64_MAX;
}

static void put_answered(struct json *json, const struct weightd_cost_info *info)
{
	json_open(json, "answered", '[');
	for (unsigned i = 0; i < info->n_spans; i++) {
		json_open(json, NULL, '{');
		if (i + 1 < info->n_spans)
			json_put_number(json, "up_to_ns", info->span_ns << i);
		else
			json_put_null(json, "up_to_ns");
		json_put_number(json, "count", info->answered[i]);
		json_close(json, '}');
	}
	json_close(json, ']');
}

static void put_costs(struct json *json, const struct weightd_list *list)
{
	const struct weightd_cost_info *info;

	json_open(json, "costs", '[');
	for (size_t i = 0; (info = weightd_list_cost(list, i)); i++) {
		uint64_t p99_ns = cost_p99(info);

		json_open(json, NULL, '{');
		json_put_string(json, "user", user_name(info->uid));
		json_put_number(json, "uid", info->uid);
		json_put_number(json, "requests", info->n_requests);
		json_put_number(json, "loop_ns", info->loop_ns);
		json_put_number(json, "worker_ns", info->worker_ns);
		json_put_number(json, "longest_ns", info->longest_ns);
		if (p99_ns == UINT64_MAX)
			json_put_null(json, "p99_ns");
		else
			json_put_number(json, "p99_ns", p99_ns);
		json_put_number(json, "held", info->held_bytes);
		json_put_number(json, "checking", info->checking_bytes);
		json_put_number(json, "refused", info->n_refused);
		put_answered(json, info);
		json_close(json, '}');
	}
	json_close(json, ']');
}

int stat_costs_print(const struct cli *cli, struct json *json, const struct weightd_list *list)
{
	cleanup(table_deinit) struct table table = {};
	const struct weightd_cost_info *info;
	struct table_format usual = cli->format;

	if (cli->format.json) {
		put_costs(json, list);
		return 0;
	}
	if (!weightd_list_count(list))
		return 0;
	(void)fputc('\n', stdout);
	usual.columns = NULL; /* -o is about the slots */
	table_init(&table, &usual, columns);
	table_begin(&table, json, "costs");
	for (size_t i = 0; (info = weightd_list_cost(list, i)); i++) {
		struct cost cost = {.info = *info, .p99_ns = cost_p99(info)};

		table_row(&table, &cost);
	}
	return table_end(&table);
}
