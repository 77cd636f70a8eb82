#include "libclient/version/tensor.h"

#include <errno.h>
#include <string.h>

/* The two enumerations are one: the public header stands alone, and the codes are those in layouts. */
static_assert((int)WEIGHTD_BOOL == (int)DTYPE_BOOL && (int)WEIGHTD_U8 == (int)DTYPE_U8 &&
		      (int)WEIGHTD_BF16 == (int)DTYPE_BF16 && (int)WEIGHTD_F32 == (int)DTYPE_F32 &&
		      (int)WEIGHTD_U64 == (int)DTYPE_U64 && (int)WEIGHTD_Q4_0 == (int)DTYPE_Q4_0 &&
		      (int)WEIGHTD_Q1_0 == (int)DTYPE_Q1_0,
	      "dtype codes are ABI");
static_assert((int)WEIGHTD_PARAM == (int)LAYOUT_PARAM && (int)WEIGHTD_BUFFER == (int)LAYOUT_BUFFER,
	      "role codes are ABI");
static_assert(WEIGHTD_NOT_TIED == LAYOUT_NONE && WEIGHTD_TENSORS_MAX == LAYOUT_TENSORS_MAX &&
		      WEIGHTD_DIMS_MAX == LAYOUT_DIMS_MAX &&
		      WEIGHTD_TENSOR_NAME_MAX == LAYOUT_NAME_MAX,
	      "limits are ABI");

const char *weightd_dtype_name(enum weightd_dtype dtype)
{
	return dtype_name((unsigned)dtype);
}

int weightd_dtype_parse(const char *name)
{
	return dtype_parse(name);
}

unsigned weightd_dtype_bits(enum weightd_dtype dtype)
{
	return dtype_bits((unsigned)dtype);
}

int weightd_dtype_block(enum weightd_dtype dtype, uint32_t *ret_elements, uint32_t *ret_bytes)
{
	return dtype_block((unsigned)dtype, ret_elements, ret_bytes);
}

int tensor_get(const struct layout *l, const void *base, uint32_t index, struct weightd_tensor *ret)
{
	const struct layout_tensor *t;
	struct weightd_tensor tensor;
	size_t size = ret->size < sizeof(tensor) ? ret->size : sizeof(tensor);

	if (ret->size < offsetof(struct weightd_tensor, data))
		return -EINVAL; /* the caller forgot to set it */
	if (index >= l->header->n_tensors)
		return -ENOENT;
	t = &l->tensors[index];
	tensor = (struct weightd_tensor){
		.size = size,
		.name = layout_tensor_name(l, t),
		.unit = layout_tensor_unit(l, t),
		.shape = layout_tensor_shape(l, t),
		.data = base ? (char *)base + t->offset : NULL,
		.offset = t->offset,
		.n_bytes = t->n_bytes,
		.index = index,
		.tied_to = t->tied_to,
		.n_dims = t->n_dims,
		.dtype = (enum weightd_dtype)t->dtype,
		.role = (enum weightd_role)t->role,
	};
	memcpy(ret, &tensor, size);
	return 0;
}

int tensor_find(const struct layout *l, const void *base, const char *name,
		struct weightd_tensor *ret)
{
	uint32_t index;
	int r = layout_find(l, name, strlen(name), &index);

	return r < 0 ? r : tensor_get(l, base, index, ret);
}
