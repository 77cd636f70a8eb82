/*
 * Ties, roles and units in the __metadata__ of a file
 *
 * Reads the texts that image_header_build() writes. They are advice: tools copy the metadata of one file to another
 * with other tensors, so text that does not fit the tensors of its file is ignored and never makes a file wrong.
 */
#pragma once

#include <jansson.h>

#include "libclient/image/names.h"
#include "libclient/image/safetensors.h"

/*
 * Sets the roles and the ties of `st`, before its tensors are sorted: `tensors` has their indices. Appends strings
 * at `*text`, where the header's strings fit. 0, -ENOMEM.
 */
int metadata_read_names(const json_t *metadata, const struct names *tensors, struct safetensors *st,
			char **text);

/* Sets the units of the sorted tensors and of the ties. */
int metadata_read_units(const json_t *metadata, struct safetensors *st, char **text);
