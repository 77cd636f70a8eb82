/*
 * A job has ranks and a step where a buffer has readers and a version: hence a table of its own.
 */
#include "libclient/weightctl/verbs/ls_jobs.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>

#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/output/user.h"

struct job_row {
	struct weightd_job_info info;
	uint32_t present[2]; /* ranks, of how many */
	uint64_t linger_ns; /* UINT64_MAX: for ever */
};

#define INFO(member) offsetof(struct job_row, info.member)

static const char *jobs_user(const void *row, bool json)
{
	const struct job_row *job = row;

	(void)json;
	return user_name(job->info.uid);
}

static const char *jobs_group(const void *row, bool json)
{
	const struct job_row *job = row;

	(void)json;
	return user_group_name(job->info.gid);
}

/* People see for how long it has been vacant, too; programs have that as a separate field. */
static const char *jobs_state(const void *row, bool json)
{
	static char text[SIZE_TEXT_MAX + sizeof("vacant ")];
	const struct weightd_job_info *info = &((const struct job_row *)row)->info;
	uint64_t now_ns = clock_ns(CLOCK_REALTIME);
	char age[SIZE_TEXT_MAX];

	if (info->n_present)
		return "running";
	if (!info->vacant_ns)
		return "new";
	if (json)
		return "vacant";
	(void)snprintf(text, sizeof(text), "vacant %s",
		       size_age(age, now_ns > info->vacant_ns ? now_ns - info->vacant_ns : 0));
	return text;
}

static const struct column jobs_columns[] = {
	{"NAME", COLUMN_TEXT, INFO(name), .shown = true, .cut = true, .width = 0.2},
	{"USER", COLUMN_WORD, .word = jobs_user, .shown = true, .cut = true, .width = 0.1},
	COLUMN("UID", COLUMN_U32, INFO(uid)),
	{"GROUP", COLUMN_WORD, .word = jobs_group},
	COLUMN("GID", COLUMN_U32, INFO(gid)),
	{"PRESENT", COLUMN_OF, offsetof(struct job_row, present), .shown = true},
	COLUMN("RANKS", COLUMN_U32, INFO(n_ranks)),
	COLUMN("DONE", COLUMN_U32, INFO(n_done)),
	{"STEP", COLUMN_U64, INFO(step), .shown = true},
	{"SIZE", COLUMN_SIZE, INFO(n_bytes), .shown = true},
	{"STATE", COLUMN_WORD, .word = jobs_state, .shown = true},
	COLUMN("VACANT", COLUMN_AGE, INFO(vacant_ns)),
	COLUMN("LINGER", COLUMN_DURATION, offsetof(struct job_row, linger_ns)),
	{"AGE", COLUMN_AGE, INFO(created_ns), .shown = true},
	COLUMN("CREATED", COLUMN_TIME, INFO(created_ns)),
	{},
};

int ls_jobs_fetch(struct cli *cli, struct weightd_list **ret)
{
	int r = weightd_list_jobs(cli->w, ret);

	if (r < 0 && r != -EOPNOTSUPP)
		return cli_fail(cli, r);
	return 0;
}

static bool is_shown(const struct cli *cli, const struct weightd_job_info *info)
{
	return !cli->owner || *cli->owner == info->uid;
}

size_t ls_jobs_count(const struct cli *cli, const struct weightd_list *list)
{
	const struct weightd_job_info *info;
	size_t n = 0;

	for (size_t i = 0; list && (info = weightd_list_job(list, i)); i++)
		n += is_shown(cli, info);
	return n;
}

int ls_jobs_print(const struct cli *cli, struct json *json, const struct weightd_list *list)
{
	const struct table_format format = {.json = cli->format.json, .bytes = cli->format.bytes};
	cleanup(table_deinit) struct table table = {};
	const struct weightd_job_info *info;

	table_init(&table, &format, jobs_columns);
	table_begin(&table, json, "jobs");
	for (size_t i = 0; list && (info = weightd_list_job(list, i)); i++) {
		const struct job_row row = {
			.info = *info,
			.present = {info->n_present, info->n_ranks},
			.linger_ns = info->linger_ms ? (uint64_t)info->linger_ms * 1000000
						     : UINT64_MAX,
		};

		if (is_shown(cli, info))
			table_row(&table, &row);
	}
	return table_end(&table);
}
