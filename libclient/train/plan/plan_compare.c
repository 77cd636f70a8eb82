/*
 * The first difference of two plans, for a person: ranks that run different programs find out before the first step.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/quote.h"
#include "ipc/dtype.h"
#include "libclient/train/plan/names.h"
#include "libclient/train/plan/sentence.h"

/* 0: no difference yet; 1: `ret` has the sentence. */
struct difference {
	const struct weightd_plan *ours, *theirs;
	char *ret;
	size_t ret_size;
};

__attribute__((format(printf, 2, 3))) static int differ(const struct difference *d, const char *fmt,
							...)
{
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(d->ret, d->ret_size, fmt, args);
	va_end(args);
	return 1;
}

static int compare_names(const struct difference *d, const char *what, const char *ours,
			 const char *theirs)
{
	if (!strcmp(ours, theirs))
		return 0;
	return differ(d, "this rank's %s is '%s', the job's is '%s'", what, ours, theirs);
}

static int compare_sizes(const struct difference *d, const char *what, uint64_t ours,
			 uint64_t theirs)
{
	if (ours == theirs)
		return 0;
	return differ(d, "this rank's plan has %s %llu, the job's has %llu", what,
		      (unsigned long long)ours, (unsigned long long)theirs);
}

static int compare_switches(const struct difference *d, const char *what, bool ours, bool theirs)
{
	if (ours == theirs)
		return 0;
	return differ(d, "this rank's plan is %s %s, the job's is %s", ours ? "with" : "without",
		      what, theirs ? "with" : "without");
}

struct value_text {
	char text[32];
};

/* The fewest digits that are this value and no other. */
static const char *describe_value(struct value_text *v, double value)
{
	for (int digits = 1; digits <= 17; digits++) {
		(void)snprintf(v->text, sizeof(v->text), "%.*g", digits, value);
		if (strtod(v->text, NULL) == value)
			break;
	}
	return v->text;
}

static int compare_scales(const struct difference *d, const char *what, double ours, double theirs)
{
	struct value_text a, b;

	if (ours == theirs)
		return 0;
	return differ(d, "this rank's plan has scaling with %s %s, the job's with %s", what,
		      describe_value(&a, ours), describe_value(&b, theirs));
}

static int compare_scalings(const struct difference *d)
{
	const struct weightd_scaling *a = &d->ours->scaling, *b = &d->theirs->scaling;
	int r = compare_switches(d, "scaling", d->ours->has_scaling, d->theirs->has_scaling);

	if (!r)
		r = compare_scales(d, "init", a->init, b->init);
	if (!r)
		r = compare_scales(d, "growth", a->growth, b->growth);
	if (!r)
		r = compare_scales(d, "backoff", a->backoff, b->backoff);
	return r ? r : compare_sizes(d, "scaling interval", a->interval, b->interval);
}

static void describe_mesh(const struct weightd_mesh *m, char *ret, size_t size)
{
	struct weightd_mesh_dim dim;
	size_t at = 0;

	for (uint32_t i = 0; i < weightd_mesh_n_dims(m) && at < size; i++) {
		(void)weightd_mesh_dim(m, i, &dim);
		at += (size_t)snprintf(ret + at, size - at, "%s%s=%u", i ? ", " : "", dim.name,
				       dim.size);
	}
}

static int compare_meshes(const struct difference *d)
{
	char ours[128], theirs[128];

	describe_mesh(d->ours->mesh, ours, sizeof(ours));
	describe_mesh(d->theirs->mesh, theirs, sizeof(theirs));
	if (!strcmp(ours, theirs))
		return 0;
	return differ(d, "this rank's mesh is (%s), the job's is (%s)", ours, theirs);
}

static int compare_options(const struct difference *d)
{
	const struct weightd_plan *a = d->ours, *b = d->theirs;
	int r = compare_names(d, "release of weightd", a->release, b->release);

	if (!r)
		r = compare_meshes(d);
	if (!r)
		r = compare_sizes(d, "n_nodes", a->n_nodes, b->n_nodes);
	if (!r)
		r = compare_sizes(d, "sync_every", a->sync_every, b->sync_every);
	if (!r)
		r = compare_names(d, "strategy", a->strategy, b->strategy);
	if (!r)
		r = compare_names(d, "optimizer", optimizer_name(a->optimizer),
				  optimizer_name(b->optimizer));
	if (!r)
		r = compare_names(d, "step form", form_name(a->form), form_name(b->form));
	if (!r)
		r = compare_sizes(d, "bucket_bytes", a->bucket_bytes, b->bucket_bytes);
	if (!r)
		r = compare_switches(d, "overlap", a->overlap, b->overlap);
	if (!r)
		r = compare_switches(d, "units that stay (keeps_units)", a->keeps_units,
				     b->keeps_units);
	if (!r)
		r = compare_switches(d, "prefetch of units", !a->without_prefetch,
				     !b->without_prefetch);
	if (!r)
		r = compare_sizes(d, "staleness", a->staleness, b->staleness);
	if (!r)
		r = compare_sizes(d, "n_copies", a->n_copies, b->n_copies);
	if (!r)
		r = compare_sizes(d, "state_size", a->state_size, b->state_size);
	if (!r)
		r = compare_switches(d, "a journal", !a->without_journal, !b->without_journal);
	if (!r)
		r = compare_scalings(d);
	return r;
}

/* --- Groups ------------------------------------------------------------------------------------- */

static int compare_values(const struct difference *d, uint32_t group, const char *what, double ours,
			  double theirs)
{
	struct value_text a, b;

	/* As bits: what is written is what the arithmetic uses. */
	if (!memcmp(&ours, &theirs, sizeof(ours)))
		return 0;
	return differ(d, "this rank's parameter group %u has %s %s, the job's has %s", group, what,
		      describe_value(&a, ours), describe_value(&b, theirs));
}

static int compare_group(const struct difference *d, uint32_t i)
{
	const struct weightd_group *a = &d->ours->groups[i], *b = &d->theirs->groups[i];
	int r = compare_values(d, i, "weight_decay", a->weight_decay, b->weight_decay);

	if (!r)
		r = compare_values(d, i, "beta1", a->beta1, b->beta1);
	if (!r)
		r = compare_values(d, i, "beta2", a->beta2, b->beta2);
	if (!r)
		r = compare_values(d, i, "eps", a->eps, b->eps);
	if (!r)
		r = compare_values(d, i, "momentum", a->momentum, b->momentum);
	return r ? r : compare_values(d, i, "nesterov", a->nesterov, b->nesterov);
}

static int compare_groups(const struct difference *d)
{
	int r = compare_sizes(d, "parameter groups:", d->ours->n_groups, d->theirs->n_groups);

	for (uint32_t i = 0; !r && i < d->ours->n_groups; i++)
		r = compare_group(d, i);
	return r;
}

/* --- Tensors ------------------------------------------------------------------------------------ */

struct shape_text {
	char text[96];
};

/* "[4, 8]"; of a long one, its first dimensions. */
static const char *describe_shape(struct shape_text *s, const struct weightd_train_tensor *t)
{
	size_t at = (size_t)snprintf(s->text, sizeof(s->text), "[");

	for (uint32_t i = 0; i < t->n_dims; i++) {
		if (at + 28 > sizeof(s->text)) {
			at += (size_t)snprintf(s->text + at, sizeof(s->text) - at, ", ...");
			break;
		}
		at += (size_t)snprintf(s->text + at, sizeof(s->text) - at, "%s%llu", i ? ", " : "",
				       (unsigned long long)t->shape[i]);
	}
	(void)snprintf(s->text + at, sizeof(s->text) - at, "]");
	return s->text;
}

static bool has_tensor(const struct weightd_plan *p, const char *name)
{
	for (uint32_t i = 0; i < p->n_tensors; i++)
		if (!strcmp(p->tensors[i].name, name))
			return true;
	return false;
}

/* Names differ at `i`, or one model ends there. */
static int differ_at(const struct difference *d, uint32_t i)
{
	const struct weightd_plan *a = d->ours, *b = d->theirs;
	const char *ours = i < a->n_tensors ? a->tensors[i].name : NULL;
	const char *theirs = i < b->n_tensors ? b->tensors[i].name : NULL;
	struct quote qa, qb;

	if (ours && !has_tensor(b, ours))
		return differ(d, "this rank's model has %s, which the job's lacks",
			      quote_name(&qa, ours));
	if (theirs && !has_tensor(a, theirs))
		return differ(d, "the job's model has %s, which this rank's lacks",
			      quote_name(&qb, theirs));
	/* Both have it, so that both are there: a model without repeated names cannot end at a name that it has. */
	return differ(d,
		      "tensor %u of this rank's model is %s, of the job's %s: their order differs",
		      i, quote_name(&qa, ours ? ours : ""), quote_name(&qb, theirs ? theirs : ""));
}

static int compare_tensor(const struct difference *d, uint32_t i)
{
	const struct weightd_train_tensor *a = &d->ours->tensors[i], *b = &d->theirs->tensors[i];
	bool has_shape = a->n_dims == b->n_dims &&
			 (a->n_dims == 0 ||
			  !memcmp(a->shape, b->shape, a->n_dims * sizeof(*a->shape)));
	struct shape_text sa, sb;
	struct quote q;

	if (a->dtype != b->dtype)
		return differ(d, "this rank's model has %s %s %s, the job's has it %s %s",
			      quote_name(&q, a->name), dtype_name(a->dtype), describe_shape(&sa, a),
			      dtype_name(b->dtype), describe_shape(&sb, b));
	if (!has_shape)
		return differ(d, "this rank's model has %s %s %s, the job's has %s",
			      quote_name(&q, a->name), dtype_name(a->dtype), describe_shape(&sa, a),
			      describe_shape(&sb, b));
	if (a->role != b->role)
		return differ(d, "this rank's model has %s as a %s, the job's as a %s",
			      quote_name(&q, a->name), role_name(a->role), role_name(b->role));
	if (a->frozen != b->frozen)
		return differ(d, "this rank's model has %s %s, the job's has it %s",
			      quote_name(&q, a->name), a->frozen ? "frozen" : "trained",
			      b->frozen ? "frozen" : "trained");
	if (a->group != b->group)
		return differ(d, "this rank's model has %s in parameter group %u, the job's in %u",
			      quote_name(&q, a->name), a->group, b->group);
	if (a->unit != b->unit || a->level != b->level)
		return differ(d,
			      "this rank's model has %s in unit %u of level %u, the job's in unit %u of "
			      "level %u",
			      quote_name(&q, a->name), a->unit, a->level, b->unit, b->level);
	return 0;
}

static int compare_tensors(const struct difference *d)
{
	const struct weightd_plan *a = d->ours, *b = d->theirs;

	for (uint32_t i = 0; i < a->n_tensors || i < b->n_tensors; i++) {
		int r;

		if (i >= a->n_tensors || i >= b->n_tensors ||
		    strcmp(a->tensors[i].name, b->tensors[i].name))
			return differ_at(d, i);
		r = compare_tensor(d, i);
		if (r)
			return r;
	}
	return 0;
}

int weightd_plan_compare(const struct weightd_plan *ours, const struct weightd_plan *theirs,
			 char *ret, size_t ret_size)
{
	struct difference d = {ours, theirs, ret, ret_size};
	int r;

	if (ret_size)
		ret[0] = 0;
	if (ours->image_size == theirs->image_size &&
	    !memcmp(ours->image, theirs->image, ours->image_size))
		return 0;
	r = compare_options(&d);
	if (!r)
		r = compare_groups(&d);
	if (!r)
		r = compare_tensors(&d);
	/* Behind the tensors: by default it is their type. */
	return r ? r
		 : compare_names(&d, "type of gradients", dtype_name(ours->grad_dtype),
				 dtype_name(theirs->grad_dtype));
}
