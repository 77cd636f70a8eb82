/*
 * Reads plans from JSON. A plan is made of the options and tensors, and written again: each member must then be there as
 * this library writes it, and none beside. So the parser has no rules of its own that could differ.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "ipc/base/quote.h"
#include "ipc/dtype.h"
#include "libclient/train/plan/build.h"
#include "libclient/train/plan/names.h"
#include "libclient/train/plan/plan_json.h"
#include "libclient/train/plan/sentence.h"

#define JSON_SIZE_MAX (256 * MIB)
#define PATH_SIZE 160

/* The object that is read, and its place, "tensors[3]". */
struct member_of {
	const json_t *o;
	const char *at;
};

/* Refuses a member, by its path and what it must be. */
static int fail_member(const struct member_of *m, const char *key, const char *must)
{
	return train_fail(-EBADMSG, "%s%s%s of the plan must be %s", m->at, *m->at ? "." : "", key,
			  must);
}

static int get_string(const struct member_of *m, const char *key, const char **ret)
{
	*ret = json_string_value(json_object_get(m->o, key));
	return *ret ? 0 : fail_member(m, key, "a string");
}

static int get_size(const struct member_of *m, const char *key, uint64_t max, uint64_t *ret)
{
	const json_t *value = json_object_get(m->o, key);

	if (!json_is_integer(value) || json_integer_value(value) < 0 ||
	    (uint64_t)json_integer_value(value) > max)
		return fail_member(m, key,
				   max == UINT32_MAX ? "an integer of 0 to 4294967295"
						     : "an integer that is not negative");
	*ret = (uint64_t)json_integer_value(value);
	return 0;
}

static int get_u32(const struct member_of *m, const char *key, uint32_t *ret)
{
	uint64_t n = 0;
	int r = get_size(m, key, UINT32_MAX, &n);

	if (r >= 0)
		*ret = (uint32_t)n;
	return r;
}

static int get_bool(const struct member_of *m, const char *key, bool *ret)
{
	const json_t *value = json_object_get(m->o, key);

	*ret = json_is_true(value);
	return json_is_boolean(value) ? 0 : fail_member(m, key, "true or false");
}

static int get_real(const struct member_of *m, const char *key, double *ret)
{
	const json_t *value = json_object_get(m->o, key);

	*ret = json_number_value(value);
	return json_is_number(value) ? 0 : fail_member(m, key, "a number");
}

/* An array of 1 to `max` objects or numbers. */
static int get_array(const struct member_of *m, const char *key, size_t max, const json_t **ret)
{
	*ret = json_object_get(m->o, key);
	if (!json_is_array(*ret) || json_array_size(*ret) > max)
		return train_fail(-EBADMSG,
				  "%s%s%s of the plan must be an array of %zu values at most",
				  m->at, *m->at ? "." : "", key, max);
	return 0;
}

/* Options and tensors of the JSON, before a plan is made of them. Names are the JSON's. */
struct draft {
	const char *release;
	struct weightd_mesh_dim dims[WEIGHTD_MESH_DIMS_MAX];
	struct weightd_group groups[PLAN_GROUPS_MAX];
	struct weightd_scaling scaling;
	struct weightd_plan_options options;
	struct weightd_mesh *mesh;
	struct weightd_train_tensor *tensors;
	uint32_t n_tensors;
};

static void draft_deinit(struct draft *d)
{
	for (uint32_t i = 0; i < d->n_tensors; i++)
		free((void *)d->tensors[i].shape);
	free(d->tensors);
	weightd_mesh_free(d->mesh);
}

static int get_mesh(const struct member_of *m, struct draft *d)
{
	const json_t *a;
	int r = get_array(m, "mesh", WEIGHTD_MESH_DIMS_MAX, &a);

	if (r < 0)
		return r;
	for (size_t i = 0; i < json_array_size(a); i++) {
		char at[PATH_SIZE];
		struct member_of dim = {json_array_get(a, i), at};

		(void)snprintf(at, sizeof(at), "mesh[%zu]", i);
		r = get_string(&dim, "name", &d->dims[i].name);
		if (r >= 0)
			r = get_u32(&dim, "size", &d->dims[i].size);
		if (r < 0)
			return r;
	}
	return weightd_mesh_new(d->dims, (uint32_t)json_array_size(a), &d->mesh);
}

static int get_group(const struct member_of *m, bool is_sgd, struct weightd_group *ret)
{
	int r = get_real(m, "weight_decay", &ret->weight_decay);

	ret->size = sizeof(*ret);
	if (r < 0)
		return r;
	if (is_sgd) {
		r = get_real(m, "momentum", &ret->momentum);
		return r < 0 ? r : get_bool(m, "nesterov", &ret->nesterov);
	}
	r = get_real(m, "beta1", &ret->beta1);
	if (r >= 0)
		r = get_real(m, "beta2", &ret->beta2);
	return r < 0 ? r : get_real(m, "eps", &ret->eps);
}

static int get_groups(const struct member_of *m, struct draft *d)
{
	const json_t *a;
	int r = get_array(m, "groups", PLAN_GROUPS_MAX, &a);

	for (size_t i = 0; r >= 0 && i < json_array_size(a); i++) {
		char at[PATH_SIZE];
		struct member_of group = {json_array_get(a, i), at};

		(void)snprintf(at, sizeof(at), "groups[%zu]", i);
		r = get_group(&group, d->options.optimizer == WEIGHTD_SGD, &d->groups[i]);
	}
	d->options.groups = d->groups;
	d->options.n_groups = (uint32_t)json_array_size(a);
	return r;
}

/* Codes that are written as names. */
static int get_codes(const struct member_of *m, struct weightd_plan_options *o)
{
	const char *optimizer, *form;
	int r = get_string(m, "optimizer", &optimizer);

	if (r >= 0)
		r = get_string(m, "form", &form);
	if (r < 0)
		return r;
	o->optimizer = optimizer_find(optimizer);
	o->form = form_find(form);
	if (!o->optimizer)
		return fail_member(m, "optimizer", "\"adamw\", \"adam\" or \"sgd\"");
	return o->form ? 0 : fail_member(m, "form", "\"fused\" or \"two-phase\"");
}

/* Refuses what is no element type's name. */
static int get_dtype(const struct member_of *m, const char *key, enum weightd_dtype *ret)
{
	const char *name;
	int r = get_string(m, key, &name), code;

	if (r < 0)
		return r;
	code = dtype_parse(name);
	if (code < 0)
		return fail_member(m, key, "an element type, such as \"F32\"");
	*ret = (enum weightd_dtype)code;
	return 0;
}

static int get_scaling(const struct member_of *m, struct draft *d)
{
	const json_t *o = json_object_get(m->o, "scaling");
	struct member_of scaling = {o, "scaling"};
	int r;

	if (json_is_null(o))
		return 0;
	if (!json_is_object(o))
		return fail_member(m, "scaling", "null or an object");
	d->scaling.size = sizeof(d->scaling);
	d->options.scaling = &d->scaling;
	r = get_real(&scaling, "init", &d->scaling.init);
	if (r >= 0)
		r = get_real(&scaling, "growth", &d->scaling.growth);
	if (r >= 0)
		r = get_real(&scaling, "backoff", &d->scaling.backoff);
	return r < 0 ? r : get_u32(&scaling, "interval", &d->scaling.interval);
}

static int get_options(const struct member_of *m, struct draft *d)
{
	struct weightd_plan_options *o = &d->options;
	bool journal = true;
	int r = get_string(m, "release", &d->release);

	o->size = sizeof(*o);
	if (r >= 0)
		r = get_mesh(m, d);
	if (r >= 0)
		r = get_u32(m, "n_nodes", &o->n_nodes);
	if (r >= 0)
		r = get_u32(m, "sync_every", &o->sync_every);
	if (r >= 0)
		r = get_string(m, "strategy", &o->strategy);
	if (r >= 0)
		r = get_codes(m, o);
	if (r >= 0)
		r = get_size(m, "bucket_bytes", INT64_MAX, &o->bucket_bytes);
	if (r >= 0)
		r = get_bool(m, "overlap", &o->overlap);
	if (r >= 0)
		r = get_bool(m, "keeps_units", &o->keeps_units);
	if (r >= 0)
		r = get_bool(m, "without_prefetch", &o->without_prefetch);
	if (r >= 0)
		r = get_u32(m, "staleness", &o->staleness);
	if (r >= 0)
		r = get_u32(m, "n_copies", &o->n_copies);
	if (r >= 0)
		r = get_u32(m, "state_size", &o->state_size);
	if (r >= 0)
		r = get_bool(m, "journal", &journal);
	if (r >= 0)
		r = get_dtype(m, "grad_dtype", &o->grad_dtype);
	if (r >= 0)
		r = get_scaling(m, d);
	if (r >= 0)
		r = get_groups(m, d);
	o->mesh = d->mesh;
	o->without_journal = !journal;
	return r;
}

static int get_shape(const struct member_of *m, struct weightd_train_tensor *t)
{
	const json_t *a;
	uint64_t *shape;
	int r = get_array(m, "shape", WEIGHTD_DIMS_MAX, &a);

	if (r < 0)
		return r;
	t->n_dims = (uint32_t)json_array_size(a);
	t->shape = shape = calloc(t->n_dims + 1ull, sizeof(*shape));
	if (!shape)
		return train_out_of_memory();
	for (uint32_t i = 0; i < t->n_dims; i++) {
		const json_t *value = json_array_get(a, i);

		if (!json_is_integer(value) || json_integer_value(value) < 0)
			return train_fail(
				-EBADMSG,
				"%s.shape[%u] of the plan must be an integer that is not negative",
				m->at, i);
		shape[i] = (uint64_t)json_integer_value(value);
	}
	return 0;
}

static int get_tensor(const struct member_of *m, struct weightd_train_tensor *t)
{
	const char *role;
	int r = get_string(m, "name", &t->name);

	t->size = sizeof(*t);
	if (r >= 0)
		r = get_dtype(m, "dtype", &t->dtype);
	if (r >= 0)
		r = get_string(m, "role", &role);
	if (r >= 0)
		r = get_bool(m, "frozen", &t->frozen);
	if (r >= 0)
		r = get_u32(m, "group", &t->group);
	if (r >= 0)
		r = get_u32(m, "unit", &t->unit);
	if (r >= 0)
		r = get_u32(m, "level", &t->level);
	if (r < 0)
		return r;
	t->role = role_find(role);
	if (!t->role)
		return fail_member(m, "role", "\"param\" or \"buffer\"");
	return get_shape(m, t);
}

static int get_tensors(const struct member_of *m, struct draft *d)
{
	const json_t *a;
	int r = get_array(m, "tensors", WEIGHTD_TENSORS_MAX, &a);

	if (r < 0)
		return r;
	d->tensors = calloc(json_array_size(a) + 1, sizeof(*d->tensors));
	if (!d->tensors)
		return train_out_of_memory();
	d->n_tensors = (uint32_t)json_array_size(a);
	for (uint32_t i = 0; i < d->n_tensors; i++) {
		char at[PATH_SIZE];
		struct member_of tensor = {json_array_get(a, i), at};

		(void)snprintf(at, sizeof(at), "tensors[%u]", i);
		r = get_tensor(&tensor, &d->tensors[i]);
		if (r < 0)
			return r;
	}
	return 0;
}

static int make_plan(const json_t *o, struct weightd_plan **ret)
{
	struct member_of m = {o, ""};
	struct draft d = {0};
	const char *format;
	int r = json_is_object(o) ? 0 : train_fail(-EBADMSG, "the plan must be a JSON object");

	if (r >= 0)
		r = get_string(&m, "format", &format);
	if (r >= 0 && strcmp(format, PLAN_JSON_FORMAT))
		r = fail_member(&m, "format", "\"" PLAN_JSON_FORMAT "\"");
	if (r >= 0)
		r = get_options(&m, &d);
	if (r >= 0)
		r = get_tensors(&m, &d);
	if (r >= 0)
		r = build_plan(d.tensors, d.n_tensors, &d.options, d.release, ret);
	draft_deinit(&d);
	if (r < 0 && r != -ENOMEM)
		return train_fail(-EBADMSG, "%s", weightd_train_error());
	return r;
}

/* --- Strictness --------------------------------------------------------------------------------- */

static int find_difference(const json_t *given, const json_t *made, const char *at);

static int find_in_objects(const json_t *given, const json_t *made, const char *at)
{
	struct quote q;
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)made, key, value)
	{
		char path[PATH_SIZE];
		const json_t *other = json_object_get(given, key);
		int r;

		(void)snprintf(path, sizeof(path), "%s%s%s", at, *at ? "." : "", key);
		if (!other)
			return train_fail(-EBADMSG, "%s of the plan is missing", path);
		r = find_difference(other, value, path);
		if (r < 0)
			return r;
	}
	json_object_foreach((json_t *)given, key, value) if (!json_object_get(made, key)) return train_fail(
		-EBADMSG, "%s of the plan has a member %s, which is unknown", *at ? at : "the top",
		quote_name(&q, key));
	return 0;
}

static int find_in_arrays(const json_t *given, const json_t *made, const char *at)
{
	if (json_array_size(given) != json_array_size(made))
		return train_fail(-EBADMSG, "%s of the plan has %zu values; its options make it %zu",
				  at, json_array_size(given), json_array_size(made));
	for (size_t i = 0; i < json_array_size(made); i++) {
		char path[PATH_SIZE];
		int r;

		(void)snprintf(path, sizeof(path), "%s[%zu]", at, i);
		r = find_difference(json_array_get(given, i), json_array_get(made, i), path);
		if (r < 0)
			return r;
	}
	return 0;
}

/* 0, or -EBADMSG with the path of the first difference. */
static int find_difference(const json_t *given, const json_t *made, const char *at)
{
	cleanup(freep) char *text = NULL;

	if (json_is_object(made) && json_is_object(given))
		return find_in_objects(given, made, at);
	if (json_is_array(made) && json_is_array(given))
		return find_in_arrays(given, made, at);
	if (json_equal(given, made) || (json_is_real(made) && json_is_number(given) &&
					json_number_value(given) == json_number_value(made)))
		return 0;
	text = json_dumps(made, JSON_ENCODE_ANY | JSON_COMPACT);
	if (!text)
		return train_out_of_memory();
	return train_fail(-EBADMSG,
			  "%s of the plan does not follow from its options, which make it %.200s",
			  at, text);
}

int weightd_plan_parse_json(const char *json, size_t size, struct weightd_plan **ret)
{
	cleanup(plan_json_decref) json_t *given = NULL, *made = NULL;
	struct weightd_plan *p = NULL;
	json_error_t error;
	int r;

	if (size > JSON_SIZE_MAX)
		return train_fail(-EBADMSG, "a plan of %zu bytes is too large", size);
	given = json_loadb(json, size, JSON_REJECT_DUPLICATES, &error);
	if (!given)
		return train_fail(-EBADMSG, "the plan is not JSON: line %d: %s", error.line,
				  error.text);
	r = make_plan(given, &p);
	if (r < 0)
		return r;
	made = plan_json(p);
	r = made ? find_difference(given, made, "") : train_out_of_memory();
	if (r < 0) {
		weightd_plan_free(p);
		return r;
	}
	*ret = p;
	return 0;
}
