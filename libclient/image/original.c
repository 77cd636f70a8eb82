#include "libclient/image/original.h"

#include <errno.h>
#include <stdlib.h>

#include "ipc/base/cleanup.h"
#include "libclient/version/layout_builder.h"

int original_init(struct original *ret, struct original_data *data,
		  const struct weightd_layout *layout, struct sentence *s)
{
	cleanup(original_deinit) struct original v = {.header_size = data->offset};
	int r = layout_builder_realign(layout, data->alignment, &v.layout);

	if (r < 0) /* all else would have failed in `layout` */
		return sentence_set(s, -ENOMEM, "there is not enough memory for the plan");
	if (weightd_layout_n_bytes(v.layout) != data->size)
		layout_builder_end_tight(v.layout);
	if (weightd_layout_n_bytes(v.layout) != data->size)
		return 0;
	v.header = take_ptr(data->header);
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
