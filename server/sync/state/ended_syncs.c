#include "server/sync/state/ended_syncs.h"

#include <string.h>

#define WITH_NODES 8 /* the newest ones, with the rows of their nodes */

static void ended_syncs_append(struct agent *a, json_t *row, json_t *rows)
{
	json_array_append_new(a->history, json_pack("{s:o, s:o}", "row", row, "nodes", rows));
	if (json_array_size(a->history) > ENDED_SYNCS_MAX)
		json_array_remove(a->history, 0);
}

void ended_syncs_add(struct agent *a, json_t *row, json_t *nodes)
{
	size_t size;

	ended_syncs_append(a, row, nodes);
	a->n_unsaved++;
	size = json_array_size(a->history);
	if (size > WITH_NODES)
		json_object_set_new(json_array_get(a->history, size - 1 - WITH_NODES), "nodes",
				    json_array());
}

static bool is_row_of(const json_t *row, enum metrics_role role, const char *sync)
{
	const char *id = json_string_value(json_object_get(row, "sync"));
	const char *name = json_string_value(json_object_get(row, "role"));

	return id && name && strcmp(id, sync) == 0 && strcmp(name, metrics_role(role)) == 0;
}

void ended_syncs_amend(struct agent *a, enum metrics_role role, const char *sync, uint64_t n_bytes)
{
	json_t *entry;
	size_t i;

	json_array_foreach(a->history, i, entry)
	{
		json_t *row = json_object_get(entry, "row");

		if (is_row_of(row, role, sync))
			byte_count_amend(row, n_bytes);
	}
}

json_t *ended_syncs_to_json(const struct agent *a, size_t n)
{
	json_t *rows = json_array();
	size_t size = json_array_size(a->history);

	for (size_t i = n < size ? size - n : 0; i < size; i++)
		json_array_append(rows, json_object_get(json_array_get(a->history, i), "row"));
	return rows;
}

void ended_syncs_load(struct agent *a, const json_t *rows)
{
	json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		const char *sync = json_string_value(json_object_get(row, "sync"));

		if (sync && strlen(sync) == SYNC_ID_SIZE - 1)
			ended_syncs_append(a, json_incref(row), json_array());
	}
}
