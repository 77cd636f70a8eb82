#include "libclient/load/original.h"

#include <errno.h>
#include <stdlib.h>

#include "ipc/base/cleanup.h"
#include "libclient/version/layout_builder.h"

CLEANUP_POINTER(struct weightd_layout, weightd_layout_free);

static int out_of_memory(struct sentence *s)
{
	return sentence_set(s, -ENOMEM, "there is not enough memory for the plan");
}

static int add_tensor(struct weightd_layout *to, const struct weightd_tensor *t)
{
	if (t->tied_to != WEIGHTD_NOT_TIED)
		return weightd_layout_tie(to, t->name, t->tied_to, t->unit);
	return weightd_layout_add(to, t->name, t->dtype, t->n_dims, t->shape, t->role, t->unit);
}

/* The same tensors at another alignment. */
static int align_again(const struct weightd_layout *from, uint64_t alignment,
		       struct weightd_layout **ret)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = NULL;
	struct weightd_tensor t = {.size = sizeof(t)};
	int r = layout_builder_new(alignment, &l);

	for (uint32_t i = 0; r == 0 && weightd_layout_tensor(from, i, &t) == 0; i++)
		r = add_tensor(l, &t);
	if (r == 0)
		*ret = take_ptr(l);
	return r;
}

int original_init(struct original *ret, const struct file *f, const struct original_data *data,
		  const struct weightd_layout *layout, struct sentence *s)
{
	cleanup(original_deinit) struct original v = {.header_size = data->offset};
	int r = align_again(layout, data->alignment, &v.layout);

	if (r < 0)
		return out_of_memory(s); /* all else would have failed in `layout` */
	if (weightd_layout_n_bytes(v.layout) != data->size)
		layout_builder_end_tight(v.layout);
	if (weightd_layout_n_bytes(v.layout) != data->size)
		return 0;
	v.header = malloc(data->offset);
	if (!v.header)
		return out_of_memory(s);
	r = file_read(f, v.header, data->offset, 0, s);
	if (r < 0)
		return r;
	*ret = v;
	v = (struct original){0};
	return 0;
}

void original_deinit(struct original *v)
{
	weightd_layout_free(v->layout);
	free(v->header);
	*v = (struct original){0};
}
