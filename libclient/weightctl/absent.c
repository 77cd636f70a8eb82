/*
 * A server is asked for what it has only once something has failed.
 */
#include "libclient/weightctl/absent.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/suggestion.h"
#include "libclient/weightctl/device.h"

#define HINT_MAX (WEIGHTD_NAME_MAX + 64)

static char hint[HINT_MAX];

/* On the device, NULL for any. */
static const char *nearest_buffer(const struct weightd_list *list, const char *name,
				  const char *device)
{
	const char **names = calloc(weightd_list_count(list) + 1, sizeof(*names));
	const struct weightd_buffer_info *info;
	const char *nearest;
	unsigned n = 0;

	if (!names)
		cli_out_of_memory();
	for (size_t i = 0; (info = weightd_list_buffer(list, i)); i++)
		if (!device || !strcmp(info->device, device))
			names[n++] = info->name;
	nearest = suggestion_find(name, strlen(name), names, n);
	free(names);
	return nearest;
}

static const char *say_nearest(const struct weightd_list *list, const char *name, const char *device)
{
	const char *nearest = list ? nearest_buffer(list, name, device) : NULL;

	if (nearest)
		(void)snprintf(hint, sizeof(hint), "is it '%s'?", nearest);
	else
		(void)snprintf(hint, sizeof(hint), "'weightctl ls' lists those there are");
	return hint;
}

const char *absent_hint(struct cli *cli, const char *name)
{
	cleanup(cli_list_freep) struct weightd_list *list = NULL;

	if (weightd_list(cli->w, NULL, &list) < 0)
		list = NULL; /* without a server there is no hint, only the failure itself */
	return say_nearest(list, name, NULL);
}

/* The device of a buffer with that name; the requested device has precedence over others. NULL: none. */
static const char *device_of(const struct weightd_list *list, const char *name, const char *device)
{
	const struct weightd_buffer_info *info;
	const char *found = NULL;

	for (size_t i = 0; (info = weightd_list_buffer(list, i)); i++) {
		if (strcmp(info->name, name) != 0)
			continue;
		if (!strcmp(info->device, device))
			return info->device;
		found = info->device;
	}
	return found;
}

int absent_buffer(struct cli *cli, const char *name, int r)
{
	cleanup(cli_list_freep) struct weightd_list *list = NULL;
	cleanup(cli_freep) char *sentence = NULL;
	const char *device = cli_device(cli), *found;

	if (r != -ENOENT)
		return cli_fail(cli, r);
	sentence = strdup(weightd_error(cli->w));
	if (!sentence)
		cli_out_of_memory();
	if (weightd_list(cli->w, NULL, &list) < 0)
		return cli_error("%s", sentence);
	found = device_of(list, name, device);
	if (found && !strcmp(found, device)) /* it is a version that is not there */
		return cli_error("%s", sentence);
	if (found)
		return cli_error("there is no buffer '%s' on %s, but one on %s (--device %s)", name,
				 device_short(cli, device), device_short(cli, found),
				 device_short(cli, found));
	return cli_error("there is no buffer '%s' on %s; %s", name, device_short(cli, device),
			 say_nearest(list, name, device));
}

int absent_version(struct cli *cli, const struct target *target, int r)
{
	cleanup(cli_list_freep) struct weightd_list *list = NULL;
	const char *device = cli_device(cli), *found;

	if (r != -ENOENT || !target->version || weightd_list(cli->w, NULL, &list) < 0)
		return absent_buffer(cli, target->name, r);
	found = device_of(list, target->name, device);
	if (!found || strcmp(found, device) != 0)
		return absent_buffer(cli, target->name, r);
	return cli_error("'%s' on %s has no version %" PRIu64 "; 'weightctl history %s' lists those "
			 "it has had",
			 target->name, device_short(cli, device), target->version, target->name);
}

int absent_tensor(const struct weightd_buffer *b, const char *name)
{
	const uint32_t n = weightd_buffer_n_tensors(b);
	struct weightd_tensor tensor = {.size = sizeof(tensor)};
	const char **names = calloc((size_t)n + 1, sizeof(*names));
	const char *nearest;
	uint32_t n_names = 0;
	int r;

	if (!names)
		cli_out_of_memory();
	while (n_names < n && weightd_buffer_tensor(b, n_names, &tensor) >= 0)
		names[n_names++] = tensor.name;
	nearest = suggestion_find(name, strlen(name), names, n_names);
	if (nearest)
		r = cli_error("%s@%" PRIu64 " has no tensor '%s'; is it '%s'?",
			      weightd_buffer_name(b), weightd_buffer_version(b), name, nearest);
	else
		r = cli_error("%s@%" PRIu64 " has no tensor '%s'; 'weightctl tensors %s' lists those "
			      "it has",
			      weightd_buffer_name(b), weightd_buffer_version(b), name,
			      weightd_buffer_name(b));
	free(names);
	return r;
}

int absent_file(const struct target *target, const struct weightd_files *files, const char *path)
{
	struct weightd_file file = {.size = sizeof(file)};
	const char **names = calloc(weightd_files_count(files) + 1, sizeof(*names));
	const char *nearest;
	unsigned n = 0;
	int r;

	if (!names)
		cli_out_of_memory();
	while (weightd_files_file(files, n, &file) >= 0)
		names[n++] = file.path;
	nearest = suggestion_find(path, strlen(path), names, n);
	if (nearest)
		r = cli_error("%s@%" PRIu64 " has no file '%s'; is it '%s'?", target->name,
			      target->version, path, nearest);
	else
		r = cli_error("%s@%" PRIu64 " has no file '%s'; 'weightctl files %s' lists those it "
			      "has",
			      target->name, target->version, path, target->name);
	free(names);
	return r;
}
