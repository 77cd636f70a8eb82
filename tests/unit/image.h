/*
 * Images of layouts for the tests of layouts: a sample, its parts, and what holds for every image.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "ipc/layout.h"
#include "ipc/layout_check.h"
#include "libclient/version/tensor.h"
#include "weightd.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

CLEANUP_POINTER(struct weightd_layout, weightd_layout_free);

/* --- Building ------------------------------------------------------------------------------------- */

struct image {
	char *bytes; /* exactly size of them, so that ASan sees a read past the end */
	uint64_t size;
};

static inline void image_free(struct image *image)
{
	free(take_ptr(image->bytes));
}

static inline struct weightd_layout *new_layout(uint64_t alignment)
{
	struct weightd_layout *l = NULL;

	assert_int_equal(weightd_layout_new(alignment, &l), 0);
	return l;
}

static inline struct image build(const struct weightd_layout *l)
{
	struct image image = {0};
	void *bytes = NULL;

	assert_int_equal(weightd_layout_image(l, &bytes, &image.size), 0);
	image.bytes = bytes;
	return image;
}

#define ADD(l, name, dtype, role, unit, ...)                                                        \
	assert_int_equal(weightd_layout_add(l, name, WEIGHTD_##dtype,                               \
					    ARRAY_LEN(((uint64_t[]){__VA_ARGS__})),                 \
					    (const uint64_t[]){__VA_ARGS__}, WEIGHTD_##role, unit), \
			 0)

/* Most tests start from this image. The corruptions use the indices. */
enum {
	A_WEIGHT,
	A_BIAS,
	B_WEIGHT,
	STEP,
	EMPTY,
	HEAD,
	HEAD_AGAIN,
	LAST,
	N_SAMPLE
};
enum {
	UNIT_A,
	UNIT_B,
	UNIT_HEAD,
	UNIT_A_AGAIN,
	N_UNITS
};
#define N_DIMS 8 /* those that are tied have none of their own */

static inline struct weightd_layout *sample_layout(void)
{
	struct weightd_layout *l = new_layout(0);

	ADD(l, "a.weight", F32, PARAM, "a", 3, 100);
	ADD(l, "a.bias", F32, PARAM, "a", 3);
	ADD(l, "b.weight", BF16, PARAM, "b", 64, 32);
	assert_int_equal(weightd_layout_add(l, "step", WEIGHTD_I64, 0, NULL, WEIGHTD_BUFFER, NULL),
			 0);
	ADD(l, "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", U8, PARAM, "", 0, 7);
	assert_int_equal(weightd_layout_tie(l, "head.weight", A_WEIGHT, "head"), 0);
	assert_int_equal(weightd_layout_tie(l, "head.again", HEAD, "head"), 0);
	ADD(l, "z", F4, PARAM, "a", 6);
	return l;
}

static inline struct image sample(void)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = sample_layout();

	return build(l);
}

/* Tensors layers.0.weight, layers.1.weight and so on, of different sizes. */
static inline struct weightd_layout *numbered_layout(uint32_t n)
{
	struct weightd_layout *l = new_layout(0);

	for (uint32_t i = 0; i < n; i++) {
		const uint64_t shape[] = {i % 7, 3};
		char name[32];

		(void)snprintf(name, sizeof(name), "layers.%u.weight", i);
		if (weightd_layout_add(l, name, WEIGHTD_F32, 2, shape, WEIGHTD_PARAM, "layers") != 0)
			fail_msg("tensor %u is refused", i);
	}
	return l;
}

static inline struct layout_header *header_of(const struct image *image)
{
	return (struct layout_header *)image->bytes;
}

static inline struct layout_tensor *tensor_of(const struct image *image, uint32_t i)
{
	return (struct layout_tensor *)(header_of(image) + 1) + i;
}

static inline struct layout open_image(const struct image *image)
{
	struct layout l = {0};

	assert_int_equal(layout_open(image->bytes, image->size, &l), 0);
	return l;
}

static inline void make_hash(struct image *image)
{
	layout_hash(image->bytes, image->size, header_of(image)->hash);
}

/* --- Checking ------------------------------------------------------------------------------------- */

#define STEP_LONG_NS 5000000u

struct verdict {
	int r;
	uint32_t at;
	const char *why;
	unsigned n_steps;
	unsigned n_long; /* steps of more than STEP_LONG_NS of the processor's time */
	uint64_t longest_ns, total_ns;
};

static inline uint64_t cpu_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Takes at most so many steps of a check. */
static inline struct verdict check_part(const struct image *image, unsigned n_steps)
{
	struct verdict v = {0};
	struct layout_check c;

	v.r = layout_check_init(&c, image->bytes, image->size);
	while (v.r >= 0 && v.n_steps < n_steps) {
		uint64_t before = cpu_ns(), ns;

		v.r = layout_check_step(&c);
		ns = cpu_ns() - before;
		v.n_steps++;
		v.n_long += ns > STEP_LONG_NS;
		v.total_ns += ns;
		if (ns > v.longest_ns)
			v.longest_ns = ns;
		if (v.r == 0)
			break;
	}
	v.at = c.at;
	v.why = c.why;
	layout_check_deinit(&c);
	return v;
}

static inline struct verdict check(const struct image *image)
{
	return check_part(image, UINT_MAX);
}

static inline void accept(const struct image *image, const char *what)
{
	struct verdict v = check(image);

	if (v.r != 0)
		fail_msg("%s: wanted 0, got %d: at %u, %s", what, v.r, v.at,
			 v.why ? v.why : "no reason");
}

static inline void refuse(const struct image *image, const char *what, uint32_t at, const char *why)
{
	struct verdict v = check(image);

	if (v.r != -EBADMSG || v.at != at || !v.why || !strstr(v.why, why))
		fail_msg("%s: wanted %d at %u, '%s', got %d at %u, '%s'", what, -EBADMSG, at, why,
			 v.r, v.at, v.why ? v.why : "no reason");
}

/* Uses whatever the look-ups give out, of any image that opens: ASan sees what lies outside. */
static inline void use_everything(const struct image *image)
{
	static volatile uint64_t sink;
	struct layout l;

	if (layout_open(image->bytes, image->size, &l) < 0)
		return;
	for (uint32_t i = 0; i < l.header->n_tensors; i++) {
		const struct layout_tensor *t = &l.tensors[i];
		const char *name = layout_tensor_name(&l, t);
		const uint64_t *shape = layout_tensor_shape(&l, t);
		struct weightd_tensor tensor = {.size = sizeof(tensor)};
		uint32_t found;

		sink += strlen(name) + strlen(layout_tensor_unit(&l, t));
		for (unsigned k = 0; shape && k < t->n_dims; k++)
			sink += shape[k];
		if (layout_find(&l, name, strlen(name), &found) == 0)
			assert_in_range(found, 0, l.header->n_tensors - 1);
		assert_int_equal(tensor_get(&l, NULL, i, &tensor), 0);
		assert_ptr_equal(tensor.name, name);
	}
}

/* Checks the properties that readers rely on in an image that passed. */
static inline void check_promises(const struct image *image)
{
	struct layout l = open_image(image);
	uint64_t end = 0, size;

	for (uint32_t i = 0; i < l.header->n_tensors; i++) {
		const struct layout_tensor *t = &l.tensors[i];
		const char *name = layout_tensor_name(&l, t);
		uint32_t found = UINT32_MAX;

		assert_int_equal(strlen(name), t->name_size);
		assert_int_equal(layout_find(&l, name, t->name_size, &found), 0);
		assert_int_equal(found, i);
		assert_int_equal(dtype_tensor_size(t->dtype, t->n_dims, layout_tensor_shape(&l, t),
						   &size),
				 0);
		assert_int_equal(size, t->n_bytes);
		assert_int_equal(t->offset % l.header->alignment, 0);
		if (t->tied_to != LAYOUT_NONE) {
			assert_in_range(t->tied_to, 0, i - 1);
			assert_int_equal(t->offset, l.tensors[t->tied_to].offset);
			continue;
		}
		assert_in_range(t->offset, end, l.header->data_size);
		end = t->offset + t->n_bytes;
		assert_in_range(end, t->offset, l.header->data_size);
	}
}

static inline void expect_no_tensor(const struct layout *l, const char *name)
{
	uint32_t found = 77;

	assert_int_equal(layout_find(l, name, strlen(name), &found), -ENOENT);
	assert_int_equal(found, 77);
}
