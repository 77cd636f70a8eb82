/*
 * A tensor without a rule is an error, not a tensor that every rank has: a program that computes with parts must know of
 * each tensor whether it has a part of it.
 */
#include "libclient/select/slice.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "ipc/dtype.h"
#include "ipc/reshard/slicing_read.h"
#include "libclient/load/folder/configuration.h"
#include "libclient/select/cast.h"

#define LIST_MAX 256
#define QUOTE(text) quote_name(&(struct quote){0}, text)
#define QUOTE_PATH(path) file_quote(&(struct quote){0}, path)

static int out_of_memory(struct sentence *s)
{
	return sentence_set(s, -ENOMEM, "there is not enough memory for the plan");
}

void slicer_deinit(struct slicer *k)
{
	slicing_deinit(&k->slicing);
	free(k->rules);
}

/* --- Configurations ----------------------------------------------------------------------------- */

/* 0: it has no such number. */
static uint32_t find_number(const json_t *config, const char *const *keys, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		json_int_t value = json_integer_value(json_object_get(config, keys[i]));

		if (value > 0 && value <= (json_int_t)SLICING_HEADS_MAX)
			return (uint32_t)value;
	}
	return 0;
}

/* Settings of the text win. A model without a number of heads of keys has one to each of queries. */
static void set_heads(struct slicing *s, const json_t *config)
{
	static const char *const heads[] = {"num_attention_heads", "n_head"};
	static const char *const kv_heads[] = {"num_key_value_heads"};
	uint32_t n = find_number(config, heads, ARRAY_LEN(heads));
	uint32_t n_kv = find_number(config, kv_heads, ARRAY_LEN(kv_heads));

	if (s->heads == 0)
		s->heads = n;
	if (s->kv_heads == 0)
		s->kv_heads = n_kv ? n_kv : n;
}

static json_t *read_configuration(const char *weights)
{
	const char *slash = strrchr(weights, '/');
	cleanup(freep) char *directory = slash ? strndup(weights, (size_t)(slash + 1 - weights))
					       : strdup(".");

	return directory ? configuration_read(directory) : NULL;
}

/* --- Rules -------------------------------------------------------------------------------------- */

static const char *list_ready(char to[LIST_MAX])
{
	size_t used = 0;

	to[0] = '\0';
	for (size_t i = 0; slicing_ready_at(i); i++) {
		int n = snprintf(to + used, LIST_MAX - used, "%s%s", i ? ", " : "",
				 slicing_ready_at(i)->model_type);

		assert(n > 0 && used + (size_t)n < LIST_MAX);
		used += (size_t)n;
	}
	return to;
}

static int read_text(const struct file *f, struct slicing *ret, struct sentence *s)
{
	cleanup(freep) char *text = NULL;
	char why[SLICING_WHY_SIZE];
	unsigned line;
	int r;

	if (f->is_directory)
		return sentence_set(s, -EBADMSG, "%s is a directory, not a file of rules",
				    QUOTE_PATH(f->path));
	if (f->identity.size > SLICING_TEXT_MAX)
		return sentence_set(s, -EBADMSG, "%s is no file of rules: it has more than 1 MiB",
				    QUOTE_PATH(f->path));
	text = malloc(f->identity.size + 1);
	if (!text)
		return out_of_memory(s);
	r = file_read(f, text, f->identity.size, 0, s);
	if (r < 0)
		return r;
	r = slicing_read(text, f->identity.size, ret, &line, why);
	if (r < 0 && line)
		return sentence_set(s, r, "%s:%u: %s", f->path, line, why);
	return r < 0 ? sentence_set(s, r, "%s: %s", f->path, why) : 0;
}

static int read_file(struct slicer *k, const char *path, struct sentence *s)
{
	cleanup(file_deinit) struct file f = FILE_INIT;
	const char *slash = strrchr(path, '/');
	char list[LIST_MAX];
	int r = file_open(path, &f, s);

	if (r == -ENOENT && !slash)
		return sentence_set(s, r,
				    "rules for tensor parallelism: %s is no file, and none of the "
				    "ready ones: %s",
				    QUOTE(path), list_ready(list));
	if (r == 0)
		r = read_text(&f, &k->slicing, s);
	if (r < 0)
		return r;
	k->rules = strdup(slash ? slash + 1 : path);
	return k->rules ? 0 : out_of_memory(s);
}

static int choose_by_type(struct slicer *k, const char *model_type, const char *weights,
			  struct sentence *s)
{
	char list[LIST_MAX];

	if (!model_type)
		return sentence_set(s, -EINVAL,
				    "no config.json beside %s has the type of the model, which "
				    "tensor parallelism needs: give rules (--tp-rules TYPE or FILE)",
				    QUOTE_PATH(weights));
	k->slicing.ready = slicing_ready_find(model_type);
	if (!k->slicing.ready)
		return sentence_set(s, -EINVAL,
				    "no rules for tensor parallelism are ready for the type %s of "
				    "config.json: give those of another (--tp-rules %s) or a file",
				    QUOTE(model_type), list_ready(list));
	k->rules = strdup(model_type);
	return k->rules ? 0 : out_of_memory(s);
}

static int choose_rules(struct slicer *k, const char *wanted, const json_t *config,
			const char *weights, struct sentence *s)
{
	if (wanted && slicing_ready_find(wanted))
		return choose_by_type(k, wanted, weights, s);
	if (wanted)
		return read_file(k, wanted, s);
	return choose_by_type(k, json_string_value(json_object_get(config, "model_type")), weights,
			      s);
}

bool slicer_is_wanted(const struct weightd_load_options *o)
{
	return o->tp_world || o->tp_rank || o->tp_rules;
}

int slicer_init(struct slicer *k, const struct weightd_load_options *o, const char *weights,
		struct sentence *s)
{
	json_t *config;
	int r;

	*k = (struct slicer){.rank = o->tp_rank, .world = o->tp_world};
	if (!slicer_is_wanted(o))
		return 0;
	if (o->tp_world > SLICING_WORLD_MAX || o->tp_rank >= o->tp_world)
		return sentence_set(s, -EINVAL,
				    "there is no rank %u of %u: ranks count from 0, and are %d at "
				    "most",
				    o->tp_rank, o->tp_world, SLICING_WORLD_MAX);
	config = read_configuration(weights);
	r = choose_rules(k, o->tp_rules, config, weights, s);
	set_heads(&k->slicing, config);
	json_decref(config);
	return r;
}

/* --- Slices ------------------------------------------------------------------------------------- */

/* Integers, and floats of a byte. */
static bool may_be_quantised(const struct weightd_tensor *t)
{
	return !cast_is_from((unsigned)t->dtype);
}

static int refuse_unknown(const struct slicer *k, const struct weightd_tensor *t, struct sentence *s)
{
	return sentence_set(s, -EINVAL,
			    "no rule of %s is about tensor %s%s: write a file with one (--tp-rules), "
			    "or leave it out with --exclude",
			    QUOTE(k->rules), QUOTE(t->name),
			    may_be_quantised(t) ? ", perhaps of a quantised model" : "");
}

static int refuse_cut(const struct slicer *k, const struct weightd_tensor *t,
		      const struct slicing_rule *rule, const char *why, struct sentence *s)
{
	return sentence_set(s, -EINVAL,
			    "dimension %d of tensor %s cannot be cut by the rule %s of %s: %s; use "
			    "other ranks, or a file of rules (--tp-rules)",
			    rule->dim, QUOTE(t->name), QUOTE(rule->tensors), QUOTE(k->rules), why);
}

int slicer_cut(const struct slicer *k, const struct weightd_tensor *t, struct slice *ret,
	       struct sentence *s)
{
	const struct slicing_rule *rule = k->rules ? slicing_find(&k->slicing, t->name) : NULL;
	char why[SLICING_WHY_SIZE];
	uint64_t size = 0;
	int r;

	*ret = (struct slice){.dim = SLICING_WHOLE};
	for (uint32_t i = 0; i < t->n_dims; i++) /* a scalar has no shape to copy */
		ret->shape[i] = t->shape[i];
	if (k->rules && !rule)
		return refuse_unknown(k, t, s);
	if (!rule || rule->dim == SLICING_WHOLE)
		return 0;
	if ((uint32_t)rule->dim >= t->n_dims)
		return refuse_cut(k, t, rule, "it has no such dimension", s);
	if (dtype_bits((unsigned)t->dtype) % 8)
		return refuse_cut(k, t, rule, "its elements share bytes, as in a quantised model",
				  s);
	r = slicing_cut(&k->slicing, rule, t->shape[rule->dim], k->rank, k->world, ret->ranges,
			&ret->n_ranges, why);
	if (r < 0)
		return refuse_cut(k, t, rule, why, s);
	for (unsigned i = 0; i < ret->n_ranges; i++)
		size += ret->ranges[i].size;
	if (size < t->shape[rule->dim])
		ret->dim = rule->dim;
	ret->shape[rule->dim] = size;
	return 0;
}

bool slice_is_same(const struct slice *a, const struct slice *b)
{
	return a->dim == b->dim &&
	       (a->dim == SLICING_WHOLE ||
		(a->n_ranges == b->n_ranges &&
		 !memcmp(a->ranges, b->ranges, a->n_ranges * sizeof(*a->ranges))));
}

struct cut slice_find(const struct slice *slice, const struct weightd_tensor *t,
		      enum weightd_dtype dtype)
{
	struct cut cut = cut_of_cast((unsigned)t->dtype, (unsigned)dtype, t->n_bytes);
	uint64_t n_rows = 1, column;

	if (slice->dim == SLICING_WHOLE)
		return cut;
	for (int i = 0; i < slice->dim; i++)
		n_rows *= t->shape[i];
	cut.stride = t->n_bytes / n_rows;
	column = cut.stride / t->shape[slice->dim];
	cut.row = 0;
	cut.n_parts = slice->n_ranges;
	for (unsigned i = 0; i < slice->n_ranges; i++) {
		cut.parts[i] = (struct cut_part){slice->ranges[i].first * column,
						 slice->ranges[i].size * column};
		cut.row += cut.parts[i].size;
	}
	return cut;
}
