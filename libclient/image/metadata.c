#include "libclient/image/metadata.h"

#include <errno.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "libclient/image/header.h"

/* The JSON in the text under `key`, NULL if there is none. */
static int load_text(const json_t *metadata, const char *key, json_t **ret)
{
	const json_t *text = json_object_get(metadata, key);
	json_error_t error;

	*ret = NULL;
	if (!text)
		return 0;
	*ret = json_loadb(json_string_value(text), json_string_length(text), JSON_REJECT_DUPLICATES,
			  &error);
	return !*ret && json_error_code(&error) == json_error_out_of_memory ? -ENOMEM : 0;
}

static const char *keep_string(const char *string, size_t n, char **text)
{
	char *copy = memcpy(*text, string, n + 1);

	*text += n + 1;
	return copy;
}

static bool is_name(size_t n)
{
	return n > 0 && n <= WEIGHTD_TENSOR_NAME_MAX;
}

/* --- Ties ------------------------------------------------------------------------------------- */

static void add_tie(struct safetensors *st, const struct names *tensors, const char *alias,
		    const json_t *name, char **text)
{
	size_t alias_size = strlen(alias), name_size = json_string_length(name);
	uint32_t taken;

	if (!is_name(alias_size) || !is_name(name_size) ||
	    names_find(tensors, alias, alias_size, &taken))
		return;
	st->ties[st->n_ties++] = (struct safetensors_tie){
		.alias = keep_string(alias, alias_size, text),
		.alias_size = (uint32_t)alias_size,
		.name = keep_string(json_string_value(name), name_size, text),
		.name_size = (uint32_t)name_size,
	};
}

static int read_ties(const json_t *metadata, const struct names *tensors, struct safetensors *st,
		     char **text)
{
	cleanup(json_decrefp) json_t *tied = NULL;
	const char *alias;
	json_t *name;
	int r = load_text(metadata, IMAGE_METADATA_TIED, &tied);

	if (r < 0 || json_object_size(tied) == 0)
		return r;
	st->ties = calloc(json_object_size(tied), sizeof(*st->ties));
	if (!st->ties)
		return -ENOMEM;
	json_object_foreach(tied, alias, name)
	{
		add_tie(st, tensors, alias, name, text);
	}
	return 0;
}

/* --- Roles ------------------------------------------------------------------------------------ */

static int read_buffers(const json_t *metadata, const struct names *tensors, struct safetensors *st)
{
	cleanup(json_decrefp) json_t *buffers = NULL;
	int r = load_text(metadata, IMAGE_METADATA_BUFFERS, &buffers);

	for (size_t i = 0; r == 0 && i < json_array_size(buffers); i++) {
		const json_t *name = json_array_get(buffers, i);
		uint32_t index;

		if (json_is_string(name) &&
		    names_find(tensors, json_string_value(name), json_string_length(name), &index))
			st->tensors[index].role = WEIGHTD_BUFFER;
	}
	return r;
}

int metadata_read_names(const json_t *metadata, const struct names *tensors, struct safetensors *st,
			char **text)
{
	int r = read_ties(metadata, tensors, st, text);

	return r < 0 ? r : read_buffers(metadata, tensors, st);
}

/* --- Units ------------------------------------------------------------------------------------ */

static bool unpack_run(const json_t *run, const json_t **ret_unit, uint64_t *ret_n)
{
	const json_t *unit = json_array_get(run, 0), *n = json_array_get(run, 1);

	if (json_array_size(run) != 2 || !json_is_string(unit) || !json_is_integer(n) ||
	    json_string_length(unit) > WEIGHTD_TENSOR_NAME_MAX || json_integer_value(n) <= 0)
		return false;
	*ret_unit = unit;
	*ret_n = (uint64_t)json_integer_value(n);
	return true;
}

/* True if the runs cover all tensors and ties, and nothing more. */
static bool runs_fit(const json_t *runs, const struct safetensors *st)
{
	uint64_t left = st->n_tensors + st->n_ties, n;
	const json_t *unit;

	for (size_t i = 0; i < json_array_size(runs); i++) {
		if (!unpack_run(json_array_get(runs, i), &unit, &n) || n > left)
			return false;
		left -= n;
	}
	return json_is_array(runs) && left == 0;
}

static void set_unit(struct safetensors *st, size_t i, const char *unit)
{
	if (i < st->n_tensors)
		st->tensors[i].unit = unit;
	else
		st->ties[i - st->n_tensors].unit = unit;
}

int metadata_read_units(const json_t *metadata, struct safetensors *st, char **text)
{
	cleanup(json_decrefp) json_t *runs = NULL;
	int r = load_text(metadata, IMAGE_METADATA_UNITS, &runs);
	size_t at = 0;

	if (r < 0 || !runs_fit(runs, st))
		return r;
	for (size_t i = 0; i < json_array_size(runs); i++) {
		const json_t *unit = NULL;
		const char *copy;
		uint64_t n = 0;

		(void)unpack_run(json_array_get(runs, i), &unit, &n);
		copy = keep_string(json_string_value(unit), json_string_length(unit), text);
		while (n-- > 0)
			set_unit(st, at++, copy);
	}
	return 0;
}
