/*
 * The whole plan is made first, so that patterns see all names, those of ties and of all files. Then a second layout is
 * built from what is left, and each of its tensors takes its bytes from where the first one has them.
 */
#include "libclient/load/selection.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "ipc/base/pattern.h"
#include "ipc/dtype.h"
#include "libclient/image/array.h"
#include "libclient/select/cast.h"
#include "libclient/select/cut.h"
#include "libclient/select/slice.h"

#define NEAR_MAX 5 /* a name as far from a pattern is not near */
#define QUOTE(text) quote_bytes(&(struct quote){0}, text, strlen(text))
#define QUOTE_PATH(path) file_quote(&(struct quote){0}, path)

CLEANUP_POINTER(struct weightd_layout, weightd_layout_free);

static const char *const attributes[] = {"include", "exclude", "cast", "tp", "tp_rules"};

#define CUTS_LOOKED_AT 16 /* the last ones: layers repeat the shapes of each other */

/* The part of a plan that is left. */
struct remains {
	const struct plan *from;
	struct slicer slicer;
	struct weightd_layout *layout;
	struct plan_piece *pieces;
	size_t n_pieces, pieces_max;
	struct cut *cuts;
	size_t n_cuts, cuts_max;
	uint64_t n_bytes;
	uint32_t *indices; /* by the tensor with the bytes: its index in `layout`, or WEIGHTD_NOT_TIED */
	bool is_changed; /* there is a difference to `from` */
	struct sentence *s;
};

static int out_of_memory(struct sentence *s)
{
	return sentence_set(s, -ENOMEM, "there is not enough memory for the plan");
}

static void remains_deinit(struct remains *m)
{
	weightd_layout_free(m->layout);
	free(m->pieces);
	free(m->cuts);
	free(m->indices);
	slicer_deinit(&m->slicer);
}

/* It is not of a whole file any more. */
static void remains_give(struct remains *m, struct plan *plan)
{
	plan->original = (struct original){0};
	plan->layout = take_ptr(m->layout);
	plan->pieces = take_ptr(m->pieces);
	plan->n_pieces = m->n_pieces;
	plan->cuts = take_ptr(m->cuts);
	plan->n_bytes = m->n_bytes;
}

/* --- Patterns ----------------------------------------------------------------------------------- */

static bool matches_any(const char *const *patterns, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (pattern_matches(patterns[i], name))
			return true;
	return false;
}

static bool is_selected(const struct weightd_load_options *o, const char *name)
{
	return (o->n_include == 0 || matches_any(o->include, o->n_include, name)) &&
	       !matches_any(o->exclude, o->n_exclude, name);
}

/* The name that needs the fewest changes of the pattern; NULL: none is near. */
static const char *find_near(const struct weightd_layout *layout, const char *pattern)
{
	struct weightd_tensor t = {.size = sizeof(t)};
	const size_t third = strlen(pattern) / 3;
	unsigned best = third < NEAR_MAX ? (unsigned)third + 1 : NEAR_MAX;
	const char *near = NULL;

	for (uint32_t i = 0; weightd_layout_tensor(layout, i, &t) == 0; i++) {
		unsigned d = pattern_distance(pattern, t.name, best);

		if (d < best) {
			best = d;
			near = t.name;
		}
	}
	return near;
}

static int refuse_pattern(const struct plan *plan, const char *option, const char *pattern,
			  struct sentence *s)
{
	const char *near = find_near(plan->layout, pattern);
	struct weightd_tensor t = {.size = sizeof(t)};

	if (near)
		return sentence_set(s, -EINVAL,
				    "no tensor of %s matches the pattern %s of %s; is %s meant?",
				    QUOTE_PATH(plan->files[0].file.path), QUOTE(pattern), option,
				    QUOTE(near));
	(void)weightd_layout_tensor(plan->layout, 0, &t);
	return sentence_set(s, -EINVAL,
			    "no tensor of %s matches the pattern %s of %s; the first one is %s",
			    QUOTE_PATH(plan->files[0].file.path), QUOTE(pattern), option,
			    QUOTE(t.name));
}

/* Each pattern must match a tensor, one that the other option leaves out perhaps. */
static int check_patterns(const struct plan *plan, const char *option, const char *const *patterns,
			  size_t n, struct sentence *s)
{
	struct weightd_tensor t = {.size = sizeof(t)};

	for (size_t i = 0; i < n; i++) {
		uint32_t k = 0;

		while (weightd_layout_tensor(plan->layout, k, &t) == 0 &&
		       !pattern_matches(patterns[i], t.name))
			k++;
		if (k == weightd_layout_n_tensors(plan->layout))
			return refuse_pattern(plan, option, patterns[i], s);
	}
	return 0;
}

/* --- Tensors ------------------------------------------------------------------------------------ */

static int refuse_tensor(struct remains *m, const char *name, int r)
{
	if (r == -ENOMEM)
		return out_of_memory(m->s);
	return sentence_set(m->s, r, "tensor %s does not fit into a layout: %s", QUOTE(name),
			    strerror(-r));
}

/* Appends bytes to read, to the last piece if they follow it on both sides. */
static int add_piece(struct remains *m, struct plan_piece piece)
{
	struct plan_piece *last = m->n_pieces ? &m->pieces[m->n_pieces - 1] : NULL;

	m->n_bytes += piece.size;
	if (last && !last->cut && !piece.cut && last->file == piece.file &&
	    last->offset + last->size == piece.offset && last->dest + last->size == piece.dest) {
		last->size += piece.size;
		return 0;
	}
	if (!array_reserve(m->pieces, m->n_pieces, m->pieces_max))
		return out_of_memory(m->s);
	m->pieces[m->n_pieces++] = piece;
	return 0;
}

/* Its number, from 1; 0: out of memory. */
static uint32_t add_cut(struct remains *m, const struct cut *c)
{
	const size_t first = m->n_cuts > CUTS_LOOKED_AT ? m->n_cuts - CUTS_LOOKED_AT : 0;

	for (size_t i = m->n_cuts; i-- > first;)
		if (cut_is_same(&m->cuts[i], c))
			return (uint32_t)i + 1;
	if (!array_reserve(m->cuts, m->n_cuts, m->cuts_max))
		return 0;
	m->cuts[m->n_cuts++] = *c;
	return (uint32_t)m->n_cuts;
}

/* True for integers that are quantised weights: their scales are floats, which would be cast without them. */
static bool is_packed(const char *name)
{
	static const char *const suffixes[] = {".weight", ".qweight", ".qzeros", ".weight_packed",
					       "_blocks"};

	for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
		size_t n = strlen(name), n_suffix = strlen(suffixes[i]);

		if (n >= n_suffix && !strcmp(name + n - n_suffix, suffixes[i]))
			return true;
	}
	return false;
}

/* The type of a tensor in the buffer. Integers and booleans stay as they are, as torch's Module.to() has it. */
static int find_dtype(const struct weightd_load_options *o, const struct weightd_tensor *t,
		      enum weightd_dtype *ret, struct sentence *s)
{
	static const enum weightd_dtype kept[] = {
		WEIGHTD_BOOL, WEIGHTD_U8,  WEIGHTD_I8,  WEIGHTD_I16, WEIGHTD_U16,
		WEIGHTD_I32,  WEIGHTD_U32, WEIGHTD_I64, WEIGHTD_U64,
	};
	bool is_kept = o->dtype == 0;

	for (size_t i = 0; i < ARRAY_LEN(kept); i++)
		is_kept |= t->dtype == kept[i] && !is_packed(t->name);
	if (!is_kept && !cast_is_from((unsigned)t->dtype))
		return sentence_set(s, -EOPNOTSUPP,
				    "tensor %s is %s, %s: --dtype cannot convert it; load it as it "
				    "is, or leave it out with --exclude",
				    QUOTE(t->name), weightd_dtype_name(t->dtype),
				    t->dtype == WEIGHTD_C64 ? "complex" : "of a quantised model");
	*ret = is_kept ? t->dtype : o->dtype;
	return 0;
}

/* The bytes in the buffer, from `dest` on, of a slice of a tensor. It has some. */
static int add_slice(struct remains *m, const struct weightd_tensor *t, const struct slice *slice,
		     const struct weightd_tensor *added)
{
	const struct cut cut = slice_find(slice, t, added->dtype);
	struct plan_piece piece = plan_tensor_piece(m->from, t);

	piece.dest = added->offset;
	piece.size = added->n_bytes;
	if (cut_is_range(&cut, t->n_bytes)) {
		piece.offset += cut.parts[0].offset;
		return add_piece(m, piece);
	}
	piece.cut = add_cut(m, &cut);
	return piece.cut ? add_piece(m, piece) : out_of_memory(m->s);
}

/* A tensor with the bytes of `t`, which may be a tie to a tensor that was left out. */
static int add_tensor(struct remains *m, const struct weightd_load_options *o,
		      const struct weightd_tensor *t)
{
	struct weightd_tensor added = {.size = sizeof(added)};
	enum weightd_dtype dtype = t->dtype;
	struct slice slice;
	int r;

	r = find_dtype(o, t, &dtype, m->s);
	if (r == 0)
		r = slicer_cut(&m->slicer, t, &slice, m->s);
	if (r < 0)
		return r;
	r = weightd_layout_add(m->layout, t->name, dtype, t->n_dims, slice.shape, t->role, t->unit);
	if (r == 0)
		r = weightd_layout_tensor(m->layout, weightd_layout_n_tensors(m->layout) - 1,
					  &added);
	if (r < 0)
		return refuse_tensor(m, t->name, r);
	m->is_changed |= dtype != t->dtype || slice.dim != SLICING_WHOLE;
	return added.n_bytes ? add_slice(m, t, &slice, &added) : 0;
}

/* The tensor that is `index` in the new layout has the bytes of `t`, and must have the same slice of them. */
static int check_tie(struct remains *m, const struct weightd_tensor *t, uint32_t index)
{
	struct weightd_tensor added = {.size = sizeof(added)}, first = *t;
	struct slice slice, of_first;
	int r;

	(void)weightd_layout_tensor(m->layout, index, &added);
	first.name = added.name;
	r = slicer_cut(&m->slicer, t, &slice, m->s);
	if (r == 0)
		r = slicer_cut(&m->slicer, &first, &of_first, m->s);
	if (r < 0 || slice_is_same(&slice, &of_first))
		return r;
	return sentence_set(m->s, -EINVAL,
			    "tensor %s is tied to %s, and rules of %s cut them differently: write a "
			    "file of rules (--tp-rules) with the same for both",
			    QUOTE(t->name), QUOTE(first.name), QUOTE(m->slicer.rules));
}

static int take_tensor(struct remains *m, const struct weightd_load_options *o,
		       const struct weightd_tensor *t)
{
	const uint32_t root = t->tied_to == WEIGHTD_NOT_TIED ? t->index : t->tied_to;
	uint32_t *index = &m->indices[root];
	int r;

	if (*index == WEIGHTD_NOT_TIED) {
		*index = weightd_layout_n_tensors(m->layout);
		return add_tensor(m, o, t);
	}
	r = check_tie(m, t, *index);
	if (r < 0)
		return r;
	r = weightd_layout_tie(m->layout, t->name, *index, t->unit);
	return r < 0 ? refuse_tensor(m, t->name, r) : 0;
}

static int take_tensors(struct remains *m, const struct weightd_load_options *o)
{
	const uint32_t n = weightd_layout_n_tensors(m->from->layout);
	struct weightd_tensor t = {.size = sizeof(t)};
	int r = 0;

	m->indices = malloc(n * sizeof(*m->indices));
	if (!m->indices || weightd_layout_new(0, &m->layout) < 0)
		return out_of_memory(m->s);
	for (uint32_t i = 0; i < n; i++)
		m->indices[i] = WEIGHTD_NOT_TIED;
	for (uint32_t i = 0; r == 0 && weightd_layout_tensor(m->from->layout, i, &t) == 0; i++) {
		if (is_selected(o, t.name))
			r = take_tensor(m, o, &t);
		else
			m->is_changed = true;
	}
	return r;
}

/* --- Selections --------------------------------------------------------------------------------- */

/* A version of a GGUF file is that file, header and all. */
static bool is_gguf(const struct plan *plan)
{
	struct weightd_tensor t = {.size = sizeof(t)};

	if (plan->architecture)
		return true;
	for (uint32_t i = 0; weightd_layout_tensor(plan->layout, i, &t) == 0; i++)
		if (dtype_is_block((unsigned)t.dtype))
			return true;
	return false;
}

static int check_options(const struct weightd_load_options *o, const struct plan *plan,
			 struct sentence *s)
{
	int r;

	if (o->dtype != 0 && !cast_is_to((unsigned)o->dtype))
		return sentence_set(s, -EINVAL, "a load converts to F32, F16 or BF16 only");
	if (is_gguf(plan))
		return sentence_set(s, -EOPNOTSUPP,
				    "%s is a GGUF file, of which a version has all tensors as they "
				    "are: load it without a selection",
				    QUOTE_PATH(plan->files[0].file.path));
	r = check_patterns(plan, "--include", o->include, o->n_include, s);
	return r == 0 ? check_patterns(plan, "--exclude", o->exclude, o->n_exclude, s) : r;
}

static int remains_make(struct remains *m, const struct weightd_load_options *o)
{
	int r = check_options(o, m->from, m->s);

	if (r == 0)
		r = slicer_init(&m->slicer, o, m->from->files[0].file.path, m->s);
	if (r == 0)
		r = take_tensors(m, o);
	if (r == 0 && weightd_layout_n_tensors(m->layout) == 0)
		r = sentence_set(m->s, -EINVAL,
				 "the patterns leave no tensor of %s: --exclude wins over "
				 "--include",
				 QUOTE_PATH(m->from->files[0].file.path));
	return r;
}

int selection_apply(const struct weightd_load_options *o, struct plan *plan, struct sentence *s)
{
	cleanup(remains_deinit) struct remains m = {.from = plan, .s = s};
	int r;

	if (o->n_include == 0 && o->n_exclude == 0 && o->dtype == 0 && !slicer_is_wanted(o))
		return 0;
	r = remains_make(&m, o);
	if (r < 0)
		return r;
	if (m.is_changed) {
		weightd_layout_free(plan->layout);
		free(plan->pieces);
		original_deinit(&plan->original);
		remains_give(&m, plan);
	}
	plan->tp_rules = take_ptr(m.slicer.rules);
	return 0;
}

int selection_take(const struct weightd_load_options *o, const struct plan *plan, struct plan *ret,
		   struct sentence *s)
{
	cleanup(remains_deinit) struct remains m = {.from = plan, .s = s};
	int r = remains_make(&m, o);

	if (r < 0)
		return r;
	*ret = *plan;
	remains_give(&m, ret);
	ret->tp_rules = take_ptr(m.slicer.rules);
	return 0;
}

void selection_part_deinit(struct plan *p)
{
	weightd_layout_free(p->layout);
	free(p->pieces);
	free(p->cuts);
	free(p->tp_rules);
}

/* --- Attributes --------------------------------------------------------------------------------- */

/* Patterns joined by spaces. A list that does not fit is cut, and ends with "...". */
static const char *join(const char *const *patterns, size_t n,
			char to[WEIGHTD_ATTRIBUTE_VALUE_MAX + 1])
{
	const size_t room = WEIGHTD_ATTRIBUTE_VALUE_MAX - sizeof(" ...");
	size_t used = 0;

	for (size_t i = 0; i < n; i++) {
		size_t size = strlen(patterns[i]);

		if (used + size + 1 > room) {
			memcpy(to + used, " ...", sizeof(" ..."));
			return to;
		}
		if (used > 0)
			to[used++] = ' ';
		memcpy(to + used, patterns[i], size);
		used += size;
	}
	to[used] = '\0';
	return n > 0 ? to : NULL;
}

int selection_describe(const struct weightd_load_options *o, const char *tp_rules,
		       struct weightd_files *f, struct sentence *s)
{
	char text[WEIGHTD_ATTRIBUTE_VALUE_MAX + 1];
	int r;

	r = files_set_attribute(f, "include", join(o->include, o->n_include, text), s);
	if (r == 0)
		r = files_set_attribute(f, "exclude", join(o->exclude, o->n_exclude, text), s);
	if (r == 0)
		r = files_set_attribute(f, "cast", o->dtype ? weightd_dtype_name(o->dtype) : NULL,
					s);
	(void)snprintf(text, sizeof(text), "%u/%u", o->tp_rank, o->tp_world);
	if (r == 0)
		r = files_set_attribute(f, "tp", o->tp_world ? text : NULL, s);
	return r == 0 ? files_set_attribute(f, "tp_rules", tp_rules, s) : r;
}

bool selection_has_attribute(const char *key)
{
	for (size_t i = 0; i < ARRAY_LEN(attributes); i++)
		if (!strcmp(key, attributes[i]))
			return true;
	return false;
}
