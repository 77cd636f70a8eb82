/*
 * Tensors are compared by name: their places, order, roles and units do not matter.
 */
#include "libclient/diff/diff.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/dtype.h"
#include "libclient/connection/client.h"
#include "libclient/diff/elements.h"
#include "libclient/diff/side.h"

struct diff {
	struct side first, second;
	weightd_diff_fn fn;
	void *userdata;
	struct weightd_diff_result result;
	struct sentence *s;
};

const char *weightd_diff_name(enum weightd_diff_kind kind)
{
	static const char *const names[] = {
		[WEIGHTD_DIFF_ONLY_FIRST] = "only-first",
		[WEIGHTD_DIFF_ONLY_SECOND] = "only-second",
		[WEIGHTD_DIFF_TYPE] = "type",
		[WEIGHTD_DIFF_SHAPE] = "shape",
		[WEIGHTD_DIFF_BYTES] = "bytes",
	};

	return (unsigned)kind < sizeof(names) / sizeof(*names) ? names[kind] : NULL;
}

static int diff_report(struct diff *d, struct weightd_difference difference)
{
	difference.size = sizeof(difference);
	d->result.n_different++;
	if (d->fn && d->fn(d->userdata, &difference))
		return sentence_set(d->s, -ECANCELED, "the comparison was cancelled");
	return 0;
}

/* --- Bytes ------------------------------------------------------------------------------------ */

static uint64_t n_elements(const struct weightd_tensor *t)
{
	uint32_t elements, size;

	if (dtype_is_block(t->dtype) && dtype_block(t->dtype, &elements, &size) == 0)
		return t->n_bytes / size; /* blocks */
	return t->n_bytes ? t->n_bytes * 8 / dtype_bits(t->dtype) : 0;
}

/* A multiple of ELEMENTS_CHUNK would not end with a block of any type. */
static uint64_t chunk_of(const struct weightd_tensor *t)
{
	uint32_t elements, size;

	if (dtype_is_block(t->dtype) && dtype_block(t->dtype, &elements, &size) == 0)
		return ELEMENTS_CHUNK / size * size;
	return ELEMENTS_CHUNK;
}

static int compare_bytes(struct diff *d, const struct weightd_tensor *a,
			 const struct weightd_tensor *b, struct elements *e)
{
	uint64_t chunk = chunk_of(a);
	const void *x, *y;
	int r = 0;

	for (uint64_t at = 0, n; r == 0 && at < a->n_bytes; at += n) {
		n = a->n_bytes - at < chunk ? a->n_bytes - at : chunk;
		r = side_read(&d->first, a, at, n, ELEMENTS_CHUNK, &x);
		if (r == 0)
			r = side_read(&d->second, b, at, n, ELEMENTS_CHUNK, &y);
		if (r == 0)
			elements_compare(e, a->dtype, x, y, n);
	}
	d->result.n_bytes += a->n_bytes;
	return r;
}

static bool same_shape(const struct weightd_tensor *a, const struct weightd_tensor *b)
{
	return a->n_dims == b->n_dims &&
	       (a->n_dims == 0 || !memcmp(a->shape, b->shape, a->n_dims * sizeof(*a->shape)));
}

static int compare_tensors(struct diff *d, const struct weightd_tensor *a,
			   const struct weightd_tensor *b)
{
	struct weightd_difference difference = {.first = a, .second = b};
	struct elements e = {0};
	int r;

	d->result.n_tensors++;
	if (a->dtype != b->dtype || !same_shape(a, b)) {
		difference.kind = a->dtype != b->dtype ? WEIGHTD_DIFF_TYPE : WEIGHTD_DIFF_SHAPE;
		return diff_report(d, difference);
	}
	r = compare_bytes(d, a, b, &e);
	if (r < 0 || e.n_different == 0)
		return r;
	difference.kind = WEIGHTD_DIFF_BYTES;
	difference.n_elements = n_elements(a);
	difference.n_different = e.n_different;
	difference.n_unmeasured = e.n_unmeasured;
	difference.max_abs = e.max_abs;
	return diff_report(d, difference);
}

/* --- Names ------------------------------------------------------------------------------------ */

static uint32_t root_of(const struct weightd_tensor *t)
{
	return t->tied_to == WEIGHTD_NOT_TIED ? t->index : t->tied_to;
}

static struct weightd_tensor empty_tensor(void)
{
	return (struct weightd_tensor){.size = sizeof(struct weightd_tensor)};
}

static uint32_t count_tensors(const struct side *side)
{
	struct weightd_tensor t = empty_tensor();
	uint32_t n = 0;

	while (side_tensor(side, n, &t) == 0)
		n++;
	return n;
}

/* Marks the tensors with bytes that have a name, one of their tied ones perhaps, which the other side has too. */
static int mark_shared(const struct side *side, const struct side *other, bool **ret)
{
	struct weightd_tensor t = empty_tensor(), found = empty_tensor();
	bool *shared = calloc(count_tensors(side) + 1, sizeof(*shared));

	if (!shared)
		return -ENOMEM;
	for (uint32_t i = 0; side_tensor(side, i, &t) == 0; i++)
		if (side_find(other, t.name, &found) == 0)
			shared[root_of(&t)] = true;
	*ret = shared;
	return 0;
}

/* True if both are tied to the same name, which is compared itself. */
static bool tied_alike(const struct diff *d, const struct weightd_tensor *a,
		       const struct weightd_tensor *b)
{
	struct weightd_tensor x = empty_tensor(), y = empty_tensor();

	return a->tied_to != WEIGHTD_NOT_TIED && b->tied_to != WEIGHTD_NOT_TIED &&
	       side_tensor(&d->first, a->tied_to, &x) == 0 &&
	       side_tensor(&d->second, b->tied_to, &y) == 0 && !strcmp(x.name, y.name);
}

static int compare_first(struct diff *d, const bool *shared)
{
	struct weightd_tensor a = empty_tensor(), b = empty_tensor();
	int r = 0;

	for (uint32_t i = 0; r == 0 && side_tensor(&d->first, i, &a) == 0; i++) {
		if (side_find(&d->second, a.name, &b) == 0) {
			if (!tied_alike(d, &a, &b))
				r = compare_tensors(d, &a, &b);
			continue;
		}
		if (shared[root_of(&a)])
			continue;
		d->result.n_tensors++;
		r = diff_report(d, (struct weightd_difference){
					   .kind = WEIGHTD_DIFF_ONLY_FIRST,
					   .first = &a,
				   });
	}
	return r;
}

static int compare_second(struct diff *d, const bool *shared)
{
	struct weightd_tensor a = empty_tensor(), b = empty_tensor();
	int r = 0;

	for (uint32_t i = 0; r == 0 && side_tensor(&d->second, i, &b) == 0; i++) {
		if (side_find(&d->first, b.name, &a) == 0 || shared[root_of(&b)])
			continue;
		d->result.n_tensors++;
		r = diff_report(d, (struct weightd_difference){
					   .kind = WEIGHTD_DIFF_ONLY_SECOND,
					   .second = &b,
				   });
	}
	return r;
}

static int compare_sides(struct diff *d)
{
	cleanup(freep) bool *first = NULL;
	cleanup(freep) bool *second = NULL;
	int r;

	if (mark_shared(&d->first, &d->second, &first) < 0 ||
	    mark_shared(&d->second, &d->first, &second) < 0)
		return sentence_set(d->s, -ENOMEM, "there is not enough memory for the comparison");
	r = compare_first(d, first);
	if (r == 0)
		r = compare_second(d, second);
	if (r == 0)
		r = side_check_unchanged(&d->first);
	return r < 0 ? r : side_check_unchanged(&d->second);
}

/* With the functions and the sentence of the caller. `o`: of the second side, or NULL. */
static int diff_run(struct diff *d, struct weightd *w, const struct weightd_diff_side *first,
		    const struct weightd_diff_side *second, const struct weightd_load_options *o)
{
	struct weightd_diff_side a = {0}, b = {0};
	int r = client_copy_options(w, first, sizeof(a), &a, sizeof(a));

	if (r == 0)
		r = client_copy_options(w, second, sizeof(b), &b, sizeof(b));
	if (r < 0)
		return r;
	r = side_init(&d->first, &a, NULL, d->s);
	if (r == 0)
		r = side_init(&d->second, &b, o, d->s);
	if (r == 0)
		r = compare_sides(d);
	side_deinit(&d->first);
	side_deinit(&d->second);
	return r;
}

int diff_with_load(struct weightd *w, const struct weightd_diff_side *first,
		   const struct weightd_diff_side *second, const struct weightd_load_options *o)
{
	struct diff d = {.s = client_sentence(w)};
	int r = diff_run(&d, w, first, second, o);

	return r < 0 ? r : d.result.n_different > 0;
}

int weightd_diff(struct weightd *w, const struct weightd_diff_side *first,
		 const struct weightd_diff_side *second, weightd_diff_fn fn, void *userdata,
		 struct weightd_diff_result *ret)
{
	struct diff d = {.fn = fn, .userdata = userdata, .s = client_sentence(w)};
	int r = diff_run(&d, w, first, second, NULL);

	if (r < 0)
		return r;
	if (ret) {
		d.result.size = ret->size;
		memcpy(ret, &d.result, ret->size < sizeof(d.result) ? ret->size : sizeof(d.result));
	}
	return d.result.n_different > 0;
}
