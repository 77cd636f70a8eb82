/*
 * A file of models.d
 *
 * A model that a machine has from its boot on: where its files are, and the user that loads them.
 */
#pragma once

#include <limits.h>
#include <stddef.h>

#include "server/base/ini.h"

struct model {
	char path[INI_LINE_MAX + 1];
	char user[INI_LINE_MAX + 1];
	unsigned user_line; /* line of the file with the user */
	char name[NAME_MAX + 1]; /* of the buffer */
	char device[INI_LINE_MAX + 1];
	char options[INI_LINE_MAX + 1]; /* words for weightctl load */
};

/* The name that a file gives to its model: its own, without the folder and ".conf". */
void model_name(const char *path, char ret[NAME_MAX + 1]);

/* -EINVAL and other errors, which were logged. */
int model_read(const char *path, struct model *ret);

/* The same for the text of the file `path`. */
int model_parse(const char *path, const char *text, size_t size, struct model *ret);
