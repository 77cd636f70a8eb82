/*
 * Ties of files
 *
 * The tied names in the metadata of all files of a load. The name with the bytes may be in another file than the tie, so
 * ties are added to the layout behind all tensors.
 */
#pragma once

#include <stddef.h>

#include "libclient/image/safetensors.h"
#include "weightd.h"

struct ties {
	struct safetensors *files; /* those with ties */
	size_t n, max;
};

/* Takes `st` if it has ties. -ENOMEM. */
int ties_keep(struct ties *t, struct safetensors *st);

/*
 * Adds the ties to the layout, in the order of the files. Ignores those of tensors that are not in the layout, and names
 * that are in it already. 0 or the result of weightd_layout_tie(), and then the name.
 */
int ties_add(const struct ties *t, struct weightd_layout *layout, const char **ret_name);

void ties_deinit(struct ties *t);
