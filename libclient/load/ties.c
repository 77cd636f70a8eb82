#include "libclient/load/ties.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "libclient/image/array.h"
#include "libclient/image/names.h"
#include "libclient/image/unit.h"

int ties_keep(struct ties *t, struct safetensors *st)
{
	if (st->n_ties == 0)
		return 0;
	if (!array_reserve(t->files, t->n, t->max))
		return -ENOMEM;
	t->files[t->n++] = *st;
	*st = (struct safetensors){0};
	return 0;
}

static int find_names(const struct weightd_layout *layout, struct names *ret)
{
	struct weightd_tensor t = {.size = sizeof(t)};
	int r = 0;

	for (uint32_t i = 0; r == 0 && weightd_layout_tensor(layout, i, &t) == 0; i++)
		r = names_add(ret, t.name, strlen(t.name), i);
	return r;
}

static size_t count_ties(const struct ties *t)
{
	size_t n = 0;

	for (size_t i = 0; i < t->n; i++)
		n += t->files[i].n_ties;
	return n;
}

/* The index of each tie's tensor. The names move when the layout grows, so all are looked up before. */
static int resolve(const struct ties *t, const struct weightd_layout *layout, uint32_t **ret)
{
	cleanup(freep) uint32_t *targets = calloc(count_ties(t), sizeof(*targets));
	cleanup(names_deinit) struct names names = {0};
	size_t n = 0;
	int r = targets ? find_names(layout, &names) : -ENOMEM;

	if (r < 0)
		return r;
	for (size_t i = 0; i < t->n; i++)
		for (size_t k = 0; k < t->files[i].n_ties; k++, n++) {
			const struct safetensors_tie *tie = &t->files[i].ties[k];

			if (!names_find(&names, tie->name, tie->name_size, &targets[n]))
				targets[n] = WEIGHTD_NOT_TIED;
		}
	*ret = take_ptr(targets);
	return 0;
}

static int add_tie(const struct safetensors_tie *tie, uint32_t target, struct weightd_layout *layout)
{
	char unit[UNIT_MAX];
	int r;

	if (target == WEIGHTD_NOT_TIED)
		return 0;
	r = weightd_layout_tie(layout, tie->alias, target,
			       tie->unit ? tie->unit : unit_of(tie->alias, unit));
	return r == -EEXIST ? 0 : r;
}

int ties_add(const struct ties *t, struct weightd_layout *layout, const char **ret_name)
{
	cleanup(freep) uint32_t *targets = NULL;
	size_t n = 0;
	int r = 0;

	*ret_name = "";
	if (t->n > 0)
		r = resolve(t, layout, &targets);
	for (size_t i = 0; r == 0 && i < t->n; i++)
		for (size_t k = 0; r == 0 && k < t->files[i].n_ties; k++, n++) {
			*ret_name = t->files[i].ties[k].alias;
			r = add_tie(&t->files[i].ties[k], targets[n], layout);
		}
	return r;
}

void ties_deinit(struct ties *t)
{
	for (size_t i = 0; i < t->n; i++)
		safetensors_deinit(&t->files[i]);
	free(t->files);
	*t = (struct ties){0};
}
