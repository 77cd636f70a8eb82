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
#include "libclient/train/plan/strategy.h"

#define RANGE_MAX (PLAN_ELEMENTS_MAX * 4) /* bytes of buffers of a rank, or of frozen parameters */

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

/* "parameter", "frozen parameter" or "buffer" */
static const char *describe_role(const struct weightd_train_tensor *t)
{
	if (t->role == WEIGHTD_BUFFER)
		return "buffer";
	return t->frozen ? "frozen parameter" : "parameter";
}

/* A plan may have millions of tensors: it is not searched for each of them. `first`: the first trained one, or NULL. */
static int check_trained(const struct weightd_plan *p, const struct weightd_train_tensor *t,
			 const struct weightd_train_tensor *first)
{
	struct quote q, other;

	if (t->dtype != WEIGHTD_F32 && t->dtype != WEIGHTD_BF16 && t->dtype != WEIGHTD_F16)
		return train_fail(-EOPNOTSUPP,
				  "the parameter %s is %s; trained parameters are F32, BF16 or F16",
				  quote_name(&q, t->name), dtype_name(t->dtype));
	if (first && first->dtype != t->dtype)
		return train_fail(-EOPNOTSUPP,
				  "the parameter %s is %s, and %s is %s; all trained parameters have "
				  "one element type: freeze one of them, or convert it",
				  quote_name(&q, t->name), dtype_name(t->dtype),
				  quote_name(&other, first->name), dtype_name(first->dtype));
	if (t->group >= p->n_groups)
		return train_fail(-EINVAL, "%s is in parameter group %u, and there are %u",
				  quote_name(&q, t->name), t->group, p->n_groups);
	return 0;
}

static int check_tensor(const struct weightd_plan *p, const struct weightd_train_tensor *t,
			uint32_t index, const struct weightd_train_tensor *first)
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
	if (t->role == WEIGHTD_BUFFER && t->frozen)
		return train_fail(-EINVAL, "the buffer %s is frozen; only parameters can be",
				  quote_name(&q, t->name));
	if (plan_is_trained(t))
		return check_trained(p, t, first);
	if (bits == 0 || bits % 8)
		return train_fail(-EOPNOTSUPP, "the %s %s is %s, whose elements are no whole bytes",
				  describe_role(t), quote_name(&q, t->name), dtype_name(t->dtype));
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
	if (!plan_is_trained(to))
		to->group = 0;
	return 0;
}

/* The next place in a range of `*end` bytes. */
static int place_tensor(struct weightd_train_tensor *t, uint64_t max, uint64_t *end)
{
	struct quote q;

	t->offset = *end;
	if (__builtin_add_overflow(*end, t->n_bytes, end) || !num_align_up(*end, PLAN_ALIGN, end) ||
	    *end > max)
		return train_fail(
			-EINVAL,
			"%s has %llu bytes at offset %llu; all %ss of a plan have %llu at most",
			quote_name(&q, t->name), (unsigned long long)t->n_bytes,
			(unsigned long long)t->offset, describe_role(t), (unsigned long long)max);
	return 0;
}

/* Places the newest tensor of the plan. */
static int place(struct weightd_plan *p, struct weightd_train_tensor *t, uint64_t *param_end)
{
	if (t->role == WEIGHTD_BUFFER)
		return place_tensor(t, RANGE_MAX, &p->buffer_size);
	if (t->frozen)
		return place_tensor(t, RANGE_MAX, &p->frozen_size);
	p->param_dtype = t->dtype;
	return place_tensor(t, PLAN_ELEMENTS_MAX * dtype_bits(t->dtype) / 8, param_end);
}

/* The type of gradients that the options ask for: that of the parameters, or fp32. */
static int take_grad_dtype(struct weightd_plan *p, enum weightd_dtype asked)
{
	p->grad_dtype = asked ? asked : p->param_dtype;
	if (p->grad_dtype == p->param_dtype || p->grad_dtype == WEIGHTD_F32)
		return 0;
	if (!dtype_name(asked))
		return train_fail(-EINVAL, "the element type %u of gradients is unknown", asked);
	return train_fail(-EOPNOTSUPP, "grad_dtype is %s and the parameters are %s; it is %s%s",
			  dtype_name(asked), dtype_name(p->param_dtype), dtype_name(p->param_dtype),
			  plan_has_master(p) ? " or F32" : "");
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

int build_tensors(struct weightd_plan *p, const struct weightd_train_tensor *tensors, uint32_t n,
		  enum weightd_dtype grad_dtype)
{
	const struct weightd_train_tensor *first = NULL;
	uint64_t param_end = 0, in_use = 0, size;
	int r;

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
		uint64_t n_bytes;

		r = check_tensor(p, &tensors[i], i, first);
		if (r >= 0)
			r = size_tensor(&tensors[i], &n_bytes);
		if (r < 0)
			return r;
		p->n_tensors++;
		r = copy_tensor(&tensors[i], t);
		if (r < 0)
			return r;
		t->n_bytes = n_bytes;
		if (!p->row->has_units || !plan_is_trained(t) || !n_bytes)
			t->unit = t->level = 0;
		r = place(p, t, &param_end);
		if (r < 0)
			return r;
		if (!plan_is_trained(t))
			continue;
		in_use += n_bytes;
		first = first ? first : t;
	}
	if (in_use == 0)
		return train_fail(-EINVAL, "there are no parameters to train");
	r = take_grad_dtype(p, grad_dtype);
	if (r < 0)
		return r;
	size = plan_element_size(p, WEIGHTD_KIND_PARAM);
	p->n_elements = (param_end / size + PLAN_CUT - 1) / PLAN_CUT * PLAN_CUT;
	p->n_padding = p->n_elements - in_use / size;
	return sort_names(p);
}
