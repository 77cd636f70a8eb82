#include "libclient/load/original.h"

#include <errno.h>
#include <stdlib.h>

#include "ipc/base/cleanup.h"
#include "libclient/version/layout_builder.h"

static int out_of_memory(struct sentence *s)
{
	return sentence_set(s, -ENOMEM, "there is not enough memory for the plan");
}

int original_init(struct original *ret, const struct file *f, const struct original_data *data,
		  const struct weightd_layout *layout, struct sentence *s)
{
	cleanup(original_deinit) struct original v = {.header_size = data->offset};
	int r = layout_builder_realign(layout, data->alignment, &v.layout);

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
