/*
 * The ties of the two layouts are joined into groups of names, each of which is one memory for the
 * writer: that of the group's first tensor in the version. A group is a chain of indices that
 * always leads to lower ones.
 */
#include "libclient/version/adoption.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/mapping.h"

void adoption_deinit(struct adoption *a)
{
	mapping_free(a->image, a->image_size);
	free(a->homes);
	free(a->tied);
	*a = (struct adoption){0};
}

/* `n` of them, each LAYOUT_NONE. */
static uint32_t *new_indices(uint32_t n)
{
	uint32_t *indices = malloc(((size_t)n + 1) * sizeof(*indices));

	if (indices)
		memset(indices, 0xff, n * sizeof(*indices));
	return indices;
}

/* The first tensor of those that are joined with this one. */
static uint32_t first_of(uint32_t *tied, uint32_t index)
{
	while (tied[index] != LAYOUT_NONE) {
		uint32_t next = tied[index];

		if (tied[next] != LAYOUT_NONE)
			tied[index] = tied[next];
		index = next;
	}
	return index;
}

/* Adds tensor `index` of the given layout to the group of names that `root` stands for. */
static void adoption_join(struct adoption *a, const struct layout *newest, uint32_t root,
			  uint32_t index)
{
	const char *name = layout_tensor_name(&a->given, &a->given.tensors[index]);
	uint32_t found, home;

	if (layout_find(newest, name, strlen(name), &found) < 0)
		return;
	found = first_of(a->tied, layout_untied(newest, found));
	if (a->homes[root] == LAYOUT_NONE) {
		a->homes[root] = found;
		return;
	}
	home = first_of(a->tied, a->homes[root]);
	if (home < found)
		a->tied[found] = home;
	else if (found < home)
		a->tied[home] = found;
}

/* Points each at the first of its group directly, the names that the version ties as well. */
static void adoption_settle(struct adoption *a, const struct layout *newest)
{
	bool some = false;

	for (uint32_t i = 0; i < newest->header->n_tensors; i++) {
		uint32_t untied = layout_untied(newest, i), first = first_of(a->tied, untied);

		if (first != untied) {
			a->tied[i] = first;
			some = true;
		}
	}
	if (some)
		return;
	free(a->tied);
	a->tied = NULL;
}

int adoption_tie(struct adoption *a, const struct layout *newest)
{
	const struct layout *given = &a->given;

	free(a->homes);
	free(a->tied);
	a->homes = new_indices(given->header->n_tensors);
	a->tied = new_indices(newest->header->n_tensors);
	if (!a->homes || !a->tied)
		return -ENOMEM;
	for (uint32_t i = 0; i < given->header->n_tensors; i++) {
		uint32_t root = layout_untied(given, i);

		if (root == i)
			continue;
		if (a->homes[root] == LAYOUT_NONE)
			adoption_join(a, newest, root, root);
		adoption_join(a, newest, root, i);
	}
	adoption_settle(a, newest);
	return 0;
}

uint32_t adoption_home(const struct adoption *a, uint32_t index)
{
	return a->tied && a->tied[index] != LAYOUT_NONE ? a->tied[index] : index;
}

int adoption_find(const struct adoption *a, const char *name, size_t name_size, uint32_t *ret,
		  const struct layout_tensor **ret_alias)
{
	uint32_t index, home;

	if (!a->image || layout_find(&a->given, name, name_size, &index) < 0)
		return -ENOENT;
	home = a->homes[layout_untied(&a->given, index)];
	if (home == LAYOUT_NONE)
		return -ENOENT;
	*ret = adoption_home(a, home);
	*ret_alias = &a->given.tensors[index];
	return 0;
}
