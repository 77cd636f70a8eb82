/*
 * Groups are sorted by counting, so that a layout with millions of tensors is read three times and no more.
 */
#include "libclient/image/packing.h"

#include <errno.h>
#include <stdlib.h>

#include "ipc/base/cleanup.h"
#include "ipc/dtype.h"
#include "libclient/version/layout_builder.h"

#define BITS_MAX 64 /* of an element */

/* Groups by their place: 0 for multiples of the default alignment, then BITS_MAX + 1 - bits of an element. */
#define GROUPS (BITS_MAX + 2)

CLEANUP_POINTER(struct weightd_layout, weightd_layout_free);

static unsigned group_of(const struct layout_tensor *t)
{
	return t->n_bytes % LAYOUT_ALIGNMENT_DEFAULT ? BITS_MAX + 1 - dtype_bits(t->dtype) : 0;
}

uint32_t packing_order(const struct layout *l, uint32_t *order)
{
	uint32_t starts[GROUPS + 1] = {0};

	for (uint32_t i = 0; i < l->header->n_tensors; i++)
		if (layout_untied(l, i) == i)
			starts[group_of(&l->tensors[i]) + 1]++;
	for (unsigned g = 0; g < GROUPS; g++)
		starts[g + 1] += starts[g];
	for (uint32_t i = 0; i < l->header->n_tensors; i++)
		if (layout_untied(l, i) == i)
			order[starts[group_of(&l->tensors[i])]++] = i;
	return starts[GROUPS];
}

static int packing_add(struct weightd_layout *packed, const struct layout *l, uint32_t index)
{
	const struct layout_tensor *t = &l->tensors[index];

	return weightd_layout_add(packed, layout_tensor_name(l, t), (enum weightd_dtype)t->dtype,
				  t->n_dims, layout_tensor_shape(l, t), (enum weightd_role)t->role,
				  layout_tensor_unit(l, t));
}

/* `places` has the new index of each tensor that is not tied. */
static int packing_tie(struct weightd_layout *packed, const struct layout *l, const uint32_t *places)
{
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < l->header->n_tensors; i++)
		if (layout_untied(l, i) != i)
			r = weightd_layout_tie(packed, layout_tensor_name(l, &l->tensors[i]),
					       places[layout_untied(l, i)],
					       layout_tensor_unit(l, &l->tensors[i]));
	return r;
}

int packing_make(const struct layout *given, struct weightd_layout **ret)
{
	size_t n = given->header->n_tensors;
	cleanup(freep) uint32_t *order = calloc(n + 1, sizeof(*order));
	cleanup(freep) uint32_t *places = calloc(n + 1, sizeof(*places));
	cleanup(weightd_layout_freep) struct weightd_layout *packed = NULL;
	int r = order && places ? layout_builder_new(1, &packed) : -ENOMEM;
	uint32_t n_untied;

	if (r < 0)
		return r;
	n_untied = packing_order(given, order);
	for (uint32_t i = 0; r == 0 && i < n_untied; i++) {
		places[order[i]] = i;
		r = packing_add(packed, given, order[i]);
	}
	if (r == 0)
		r = packing_tie(packed, given, places);
	if (r == 0)
		*ret = take_ptr(packed);
	return r;
}
