/*
 * Names are looked up in the tables inside the layouts, one look-up for each tensor of the first. Layouts are
 * untrusted: indices in them are bounded before use.
 */
#include "libclient/version/difference.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "libclient/connection/sentence.h"

#define SHAPE_MAX 64
#define MORE_MAX 20 /* " and 4294967295 more" */

/* Flags for each tensor of one of the two layouts. */
struct tally {
	const struct layout *layout;
	bool *in_both; /* the name */
	bool *is_held; /* untied tensors: the name, or one tied to it, is in both */
};

static void tally_deinit(struct tally *t)
{
	free(t->in_both);
	free(t->is_held);
}

static int tally_init(struct tally *t, const struct layout *l)
{
	*t = (struct tally){.layout = l};
	t->in_both = calloc(l->header->n_tensors + 1, sizeof(*t->in_both));
	t->is_held = calloc(l->header->n_tensors + 1, sizeof(*t->is_held));
	return t->in_both && t->is_held ? 0 : -ENOMEM;
}

static void tally_mark(struct tally *t, uint32_t index)
{
	t->in_both[index] = true;
	t->is_held[layout_untied(t->layout, index)] = true;
}

static void list_add(struct difference_list *list, uint32_t index)
{
	if (list->n < DIFFERENCE_SHOWN)
		list->shown[list->n] = index;
	list->n++;
}

static bool is_alike(const struct layout *a, const struct layout_tensor *t, const struct layout *b,
		     const struct layout_tensor *u)
{
	const uint64_t *shape = layout_tensor_shape(a, t), *other = layout_tensor_shape(b, u);

	if (t->dtype != u->dtype || t->n_dims != u->n_dims || !shape != !other)
		return false;
	return !shape || !memcmp(shape, other, t->n_dims * sizeof(*shape));
}

static void difference_compare(struct tally *here, struct tally *there,
			       struct difference_list *other)
{
	const struct layout *a = here->layout, *b = there->layout;

	for (uint32_t i = 0; i < a->header->n_tensors; i++) {
		const char *name = layout_tensor_name(a, &a->tensors[i]);
		uint32_t k;

		if (layout_find(b, name, strlen(name), &k) < 0)
			continue;
		tally_mark(here, i);
		tally_mark(there, k);
		if (!is_alike(a, &a->tensors[i], b, &b->tensors[k]))
			list_add(other, i);
	}
}

static void list_rest(const struct tally *t, struct difference_list *ret)
{
	for (uint32_t i = 0; i < t->layout->header->n_tensors; i++)
		if (!t->in_both[i] && !t->is_held[layout_untied(t->layout, i)])
			list_add(ret, i);
}

int difference_find(const struct layout *here, const struct layout *there, struct difference *ret)
{
	cleanup(tally_deinit) struct tally a = {0};
	cleanup(tally_deinit) struct tally b = {0};
	struct difference d = {0};
	int r = tally_init(&a, here);

	if (r == 0)
		r = tally_init(&b, there);
	if (r < 0)
		return r;
	difference_compare(&a, &b, &d.other);
	list_rest(&a, &d.here);
	list_rest(&b, &d.there);
	*ret = d;
	return d.other.n || d.here.n || d.there.n;
}

/* --- Sentences --- */

struct text {
	char *start;
	size_t size, at; /* the text has `at` bytes now, and a NUL behind them */
};

/* All of it, or nothing where that would leave less than `reserve` bytes. */
static bool difference_put(struct text *t, const char *piece, size_t reserve)
{
	size_t n = strlen(piece);

	if (t->at + n + reserve >= t->size)
		return false;
	memcpy(t->start + t->at, piece, n + 1);
	t->at += n;
	return true;
}

/* "F32 [4, 4]" */
static const char *type_and_shape(const struct layout *l, const struct layout_tensor *t,
				  char ret[SHAPE_MAX])
{
	const uint64_t *shape = layout_tensor_shape(l, t);
	const char *dtype = dtype_name(t->dtype);
	size_t at = (size_t)snprintf(ret, SHAPE_MAX, "%s [", dtype ? dtype : "?");

	for (unsigned i = 0; shape && i < t->n_dims; i++) {
		char dim[24];
		int n = snprintf(dim, sizeof(dim), "%s%llu", i ? ", " : "",
				 (unsigned long long)shape[i]);

		if (at + (size_t)n + sizeof(", ...]") > SHAPE_MAX) {
			at += (size_t)snprintf(ret + at, SHAPE_MAX - at, ", ...");
			break;
		}
		at += (size_t)snprintf(ret + at, SHAPE_MAX - at, "%s", dim);
	}
	(void)snprintf(ret + at, SHAPE_MAX - at, "]");
	return ret;
}

/* 'w', and where it is in both layouts also "is F32 [4, 4], was BF16 [4, 4]". */
static void describe_tensor(const struct layout *l, const struct layout *other, uint32_t index,
			    char *ret, size_t size)
{
	const struct layout_tensor *t = &l->tensors[index];
	const char *name = layout_tensor_name(l, t);
	const char *quoted = quote_bytes(&(struct quote){0}, name, strlen(name));
	char is[SHAPE_MAX], was[SHAPE_MAX];
	uint32_t k;

	if (other && layout_find(other, name, strlen(name), &k) == 0)
		(void)snprintf(ret, size, "%s is %s, was %s", quoted, type_and_shape(l, t, is),
			       type_and_shape(other, &other->tensors[k], was));
	else
		(void)snprintf(ret, size, "%s", quoted);
}

/* Within `share` bytes of the text; the number of tensors at least, where no name fits. */
static void put_list(struct text *whole, const struct difference_list *list, const char *title,
		     const struct layout *l, const struct layout *other, size_t share)
{
	struct text t = *whole;
	char piece[QUOTE_MAX + 2 * SHAPE_MAX + 16];
	uint32_t i = 0;

	if (t.size > t.at + share)
		t.size = t.at + share;
	(void)difference_put(&t, whole->at ? "; " : "", 0);
	(void)difference_put(&t, title, 0);
	for (; i < list->n && i < DIFFERENCE_SHOWN; i++) {
		size_t before = t.at;

		describe_tensor(l, other, list->shown[i], piece, sizeof(piece));
		if (!difference_put(&t, i ? ", " : ": ", MORE_MAX))
			break;
		if (difference_put(&t, piece, i + 1 < list->n ? MORE_MAX : 0))
			continue;
		t.at = before;
		t.start[before] = '\0';
		break;
	}
	(void)snprintf(piece, sizeof(piece), i ? " and %u more" : ": %u tensors", list->n - i);
	if (i < list->n)
		(void)difference_put(&t, piece, 0);
	whole->at = t.at;
}

void difference_describe(const struct difference *d, const struct layout *here,
			 const struct layout *there, const char *name_here, const char *name_there,
			 char *ret, size_t size)
{
	struct {
		const struct difference_list *list;
		const struct layout *layout, *other;
		char title[64];
	} kinds[] = {
		{&d->other, here, there, "other type or shape"},
		{&d->here, here, NULL, ""},
		{&d->there, there, NULL, ""},
	};
	struct text t = {.start = ret, .size = size};
	size_t n_left = 0;

	(void)snprintf(kinds[1].title, sizeof(kinds[1].title), "only in %s", name_here);
	(void)snprintf(kinds[2].title, sizeof(kinds[2].title), "only in %s", name_there);
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		n_left += kinds[i].list->n > 0 ? 1 : 0;
	ret[0] = '\0';
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if (kinds[i].list->n > 0)
			put_list(&t, kinds[i].list, kinds[i].title, kinds[i].layout, kinds[i].other,
				 (size - t.at) / n_left--);
}
