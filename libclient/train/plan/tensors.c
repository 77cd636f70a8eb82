/*
 * Tensors of a plan: their places. Parameters follow each other in the flat range, buffers in BUFFER, in the order in
 * which the caller named them: a model whose tensors have another order is another model.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "ipc/base/quote.h"
#include "ipc/base/utf8.h"
#include "ipc/dtype.h"
#include "libclient/train/plan/build.h"
#include "libclient/train/plan/names.h"
#include "libclient/train/plan/sentence.h"

#define BUFFER_ALIGN 64
#define BUFFER_MAX (PLAN_ELEMENTS_MAX * 4)

static int check_name(const char *name, uint32_t index)
{
	size_t size = name ? strnlen(name, WEIGHTD_TENSOR_NAME_MAX + 1) : 0;
	struct quote q;

	if (size == 0 || size > WEIGHTD_TENSOR_NAME_MAX)
		return train_fail(-EINVAL, "the name of tensor %u has %s; it has 1 to %d bytes",
				  index, size ? "more bytes" : "no bytes", WEIGHTD_TENSOR_NAME_MAX);
	for (size_t i = 0; i < size;) {
		uint32_t c;
		size_t n = utf8_decode((const unsigned char *)name + i, size - i, &c);

		if (n == 0)
			return train_fail(-EINVAL, "the name %s of tensor %u is not UTF-8",
					  quote_name(&q, name), index);
		i += n;
	}
	return 0;
}

/* Its bytes, or a refusal by its name. */
static int size_tensor(const struct weightd_train_tensor *t, uint64_t *ret)
{
	struct quote q;

	if (t->n_dims > WEIGHTD_DIMS_MAX)
		return train_fail(-EINVAL, "%s has %u dimensions; %d are the most",
				  quote_name(&q, t->name), t->n_dims, WEIGHTD_DIMS_MAX);
	if (t->n_dims && !t->shape)
		return train_fail(-EINVAL, "%s has %u dimensions and no shape",
				  quote_name(&q, t->name), t->n_dims);
	for (uint32_t i = 0; i < t->n_dims; i++)
		if (t->shape[i] > PLAN_ELEMENTS_MAX)
			return train_fail(
				-EINVAL,
				"%s has %llu elements in dimension %u; a plan has %llu at most",
				quote_name(&q, t->name), (unsigned long long)t->shape[i], i,
				PLAN_ELEMENTS_MAX);
	if (dtype_tensor_size(t->dtype, t->n_dims, t->shape, ret) < 0)
		return train_fail(-EINVAL, "%s has too many elements; a plan has %llu at most",
				  quote_name(&q, t->name), PLAN_ELEMENTS_MAX);
	return 0;
}

static int check_tensor(const struct weightd_plan *p, const struct weightd_train_tensor *t,
			uint32_t index)
{
	unsigned bits = dtype_bits(t->dtype);
	struct quote q;
	int r = check_name(t->name, index);

	if (r < 0)
		return r;
	if (!role_name(t->role))
		return train_fail(-EINVAL, "%s is neither WEIGHTD_PARAM nor WEIGHTD_BUFFER",
				  quote_name(&q, t->name));
	if (!dtype_name(t->dtype))
		return train_fail(-EINVAL, "the element type %u of %s is unknown", t->dtype,
				  quote_name(&q, t->name));
	if (t->role == WEIGHTD_PARAM && t->dtype != WEIGHTD_F32)
		return train_fail(-EOPNOTSUPP, "the parameter %s is %s; optimizers have F32 alone",
				  quote_name(&q, t->name), dtype_name(t->dtype));
	if (bits == 0 || bits % 8)
		return train_fail(-EOPNOTSUPP,
				  "the buffer %s is %s, whose elements are no whole bytes",
				  quote_name(&q, t->name), dtype_name(t->dtype));
	if (t->role == WEIGHTD_PARAM && t->group >= p->n_groups)
		return train_fail(-EINVAL, "%s is in parameter group %u, and there are %u",
				  quote_name(&q, t->name), t->group, p->n_groups);
	return 0;
}

static int copy_tensor(const struct weightd_train_tensor *from, struct weightd_train_tensor *to)
{
	size_t size = from->n_dims * sizeof(*from->shape);
	uint64_t *shape = malloc(size + 1);

	*to = *from;
	to->size = sizeof(*to);
	to->shape = shape;
	to->name = strdup(from->name);
	if (!to->name || !shape)
		return train_out_of_memory();
	if (size)
		memcpy(shape, from->shape, size);
	if (to->role == WEIGHTD_BUFFER)
		to->group = 0;
	return 0;
}

/* The next place in a range of `*end` bytes. */
static int place_tensor(struct weightd_train_tensor *t, uint64_t align, uint64_t max, uint64_t *end)
{
	struct quote q;

	t->offset = *end;
	if (__builtin_add_overflow(*end, t->n_bytes, end) || !num_align_up(*end, align, end) ||
	    *end > max)
		return train_fail(
			-EINVAL,
			"%s has %llu bytes at offset %llu; all %s of a plan have %llu at most",
			quote_name(&q, t->name), (unsigned long long)t->n_bytes,
			(unsigned long long)t->offset,
			t->role == WEIGHTD_PARAM ? "parameters" : "buffers",
			(unsigned long long)max);
	return 0;
}

static int compare_names(const void *a, const void *b, void *plan)
{
	const struct weightd_plan *p = plan;
	const uint32_t *i = a, *j = b;

	return strcmp(p->tensors[*i].name, p->tensors[*j].name);
}

static int sort_names(struct weightd_plan *p)
{
	struct quote q;

	p->by_name = malloc(p->n_tensors * sizeof(*p->by_name));
	if (!p->by_name)
		return train_out_of_memory();
	for (uint32_t i = 0; i < p->n_tensors; i++)
		p->by_name[i] = i;
	qsort_r(p->by_name, p->n_tensors, sizeof(*p->by_name), compare_names, p);
	for (uint32_t i = 1; i < p->n_tensors; i++)
		if (!strcmp(p->tensors[p->by_name[i - 1]].name, p->tensors[p->by_name[i]].name))
			return train_fail(-EINVAL,
					  "two tensors are named %s; tied names are one tensor",
					  quote_name(&q, p->tensors[p->by_name[i]].name));
	return 0;
}

int build_tensors(struct weightd_plan *p, const struct weightd_train_tensor *tensors, uint32_t n)
{
	uint64_t param_end = 0, in_use = 0;

	if (n == 0)
		return train_fail(-EINVAL, "there are no parameters to train");
	if (n > WEIGHTD_TENSORS_MAX)
		return train_fail(-EINVAL, "%u tensors are too many; %d are the most", n,
				  WEIGHTD_TENSORS_MAX);
	p->tensors = calloc(n, sizeof(*p->tensors));
	if (!p->tensors)
		return train_out_of_memory();
	for (uint32_t i = 0; i < n; i++) {
		struct weightd_train_tensor *t = &p->tensors[i];
		bool is_param = tensors[i].role == WEIGHTD_PARAM;
		uint64_t n_bytes;
		int r = check_tensor(p, &tensors[i], i);

		if (r >= 0)
			r = size_tensor(&tensors[i], &n_bytes);
		if (r < 0)
			return r;
		p->n_tensors++;
		r = copy_tensor(&tensors[i], t);
		if (r < 0)
			return r;
		t->n_bytes = n_bytes;
		r = is_param ? place_tensor(t, PLAN_ALIGN * 4, PLAN_ELEMENTS_MAX * 4, &param_end)
			     : place_tensor(t, BUFFER_ALIGN, BUFFER_MAX, &p->buffer_size);
		if (r < 0)
			return r;
		in_use += is_param ? n_bytes : 0;
	}
	if (in_use == 0)
		return train_fail(-EINVAL, "there are no parameters to train");
	p->n_elements = (param_end / 4 + PLAN_CUT - 1) / PLAN_CUT * PLAN_CUT;
	p->n_padding = p->n_elements - in_use / 4;
	return sort_names(p);
}
