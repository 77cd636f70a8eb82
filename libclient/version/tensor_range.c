#include "libclient/version/tensor_range.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

void tensor_range_find(const struct layout *l, uint64_t begin, uint64_t end, uint32_t *next,
		       struct tensor_range *ret)
{
	bool is_past = true; /* all tensors so far end before the range */

	*ret = (struct tensor_range){0};
	for (uint32_t i = *next; i < l->header->n_tensors; i++) {
		const struct layout_tensor *t = &l->tensors[i];

		if (layout_untied(l, i) != i || t->n_bytes == 0)
			continue;
		if (t->offset >= end)
			break;
		if (t->offset + t->n_bytes <= begin) {
			*next = is_past ? i + 1 : *next;
			continue;
		}
		is_past = false;
		if (ret->n++ == 0)
			ret->first = i;
		ret->last = i;
	}
}

const char *tensor_range_text(const struct layout *l, const struct tensor_range *range,
			      char ret[TENSOR_RANGE_TEXT_MAX])
{
	const char *name;
	struct quote q;

	if (range->n == 0) {
		(void)snprintf(ret, TENSOR_RANGE_TEXT_MAX, "between tensors");
		return ret;
	}
	name = quote_name(&q, layout_tensor_name(l, &l->tensors[range->first]));
	if (range->n == 1)
		(void)snprintf(ret, TENSOR_RANGE_TEXT_MAX, "tensor %s", name);
	else
		(void)snprintf(ret, TENSOR_RANGE_TEXT_MAX, "tensor %s or the %" PRIu32 " behind it",
			       name, range->n - 1);
	return ret;
}
