/*
 * Patches: applying one restores the version, for any changes and any number of steps; invalid
 * patches are detected.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/sync/base/patch.h"

#define N_BYTES (3 * MIB + 200 * KIB + 6) /* neither whole leaves, nor blocks, nor elements */

struct file {
	int fd;
	uint8_t *data;
	uint64_t size;
};

static uint64_t state = 88172645463325252u;

static uint64_t draw(uint64_t n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % n;
}

/* Exactly `n` bytes, so that ASan detects an access past the end. */
static uint8_t *copy_of(const uint8_t *from, uint64_t n)
{
	uint8_t *p = malloc(n);

	assert_non_null(p);
	if (from)
		memcpy(p, from, n);
	for (uint64_t i = 0; !from && i < n; i++)
		p[i] = (uint8_t)draw(256);
	return p;
}

static void hash_of(const uint8_t *data, uint64_t n, uint8_t ret[MERKLE_HASH_SIZE])
{
	merkle_hash(data, n, ret);
}

static void whole(uint64_t n_bytes, struct ranges *ret)
{
	ranges_init(ret);
	assert_int_equal(ranges_add(ret, 0, n_bytes), 0);
}

static struct file write_draft(struct patch_draft *d, const uint8_t *from, const uint8_t *to)
{
	uint8_t base[MERKLE_HASH_SIZE], result[MERKLE_HASH_SIZE];
	struct file f = {.size = d->size};

	hash_of(from, d->n_bytes, base);
	hash_of(to, d->n_bytes, result);
	assert_int_equal(patch_draft_write(d, base, result, &f.fd), 0);
	patch_draft_deinit(d);
	assert_true(fd_is_sealed(f.fd));
	assert_int_equal(lseek(f.fd, 0, SEEK_END), f.size);
	f.data = mmap(NULL, f.size, PROT_READ, MAP_SHARED, f.fd, 0);
	assert_ptr_not_equal(f.data, MAP_FAILED);
	return f;
}

static void file_free(struct file *f)
{
	munmap(f->data, f->size);
	close(f->fd);
}

static struct file difference(const uint8_t *from, const uint8_t *to, uint64_t n_bytes)
{
	struct patch_draft d;
	struct ranges all;
	struct file f;

	whole(n_bytes, &all);
	assert_int_equal(patch_draft_difference(from, to, n_bytes, &all, &d), 0);
	f = write_draft(&d, from, to);
	ranges_deinit(&all);
	return f;
}

static int apply(const struct patch *p, uint8_t *to)
{
	int r = 0;

	for (uint64_t i = 0; i < merkle_n_leaves(p->n_bytes) && r == 0; i++)
		r = patch_apply(p, i, to + i * MERKLE_LEAF_SIZE);
	return r;
}

static void expect_applied(const struct file *f, const uint8_t *from, const uint8_t *to,
			   uint64_t n_bytes)
{
	uint8_t *made = copy_of(from, n_bytes);
	struct patch p;

	assert_int_equal(patch_open(f->data, f->size, &p), 0);
	assert_int_equal(p.n_bytes, n_bytes);
	for (unsigned i = 0; i < 2; i++) { /* applying it twice has the same result */
		assert_int_equal(apply(&p, made), 0);
		assert_memory_equal(made, to, n_bytes);
	}
	patch_close(&p);
	free(made);
}

/* Changes like those of versions: single elements, a run, a block, or nothing. */
static void change(uint8_t *p, uint64_t n_bytes)
{
	for (uint64_t block = 0; block < n_bytes; block += PATCH_BLOCK_SIZE) {
		uint64_t left = n_bytes - block < PATCH_BLOCK_SIZE ? n_bytes - block
								   : PATCH_BLOCK_SIZE;
		uint64_t n = 1 + draw(left), width = (uint64_t)1 << draw(3);

		switch (draw(5)) {
		case 0:
			break;
		case 1: /* about one of fifty */
			for (uint64_t i = 0; i + width <= left; i += width)
				if (draw(50) == 0)
					p[block + i + draw(width)] ^= (uint8_t)(1 + draw(255));
			break;
		case 2: /* most */
			for (uint64_t i = 0; i < left; i++)
				p[block + i] ^= (uint8_t)draw(256);
			break;
		case 3: /* a run */
			memset(p + block + draw(left - n + 1), (int)draw(256), n);
			break;
		case 4:
			p[block + draw(left)] ^= 1;
			break;
		}
	}
}

static void test_what_changed_is_there_and_nothing_else(void **unused)
{
	const uint64_t sizes[] = {1,   2,       3,      4, 6, 254, 128 * KIB, 128 * KIB + 1,
				  MIB, MIB + 2, N_BYTES};

	(void)unused;
	for (unsigned i = 0; i < 4 * ARRAY_LEN(sizes); i++) {
		uint64_t n = sizes[i % ARRAY_LEN(sizes)];
		uint8_t *from = copy_of(NULL, n), *to = copy_of(from, n);
		struct file f;

		change(to, n);
		f = difference(from, to, n);
		expect_applied(&f, from, to, n);
		file_free(&f);
		free(from);
		free(to);
	}
}

static void test_equal_versions_differ_in_nothing(void **unused)
{
	uint8_t *from = copy_of(NULL, N_BYTES);
	struct file f = difference(from, from, N_BYTES);

	(void)unused;
	assert_int_equal(f.size, PATCH_HEADER_SIZE);
	expect_applied(&f, from, from, N_BYTES);
	file_free(&f);
	free(from);
}

static void test_leaves_that_do_not_differ_are_not_looked_at(void **unused)
{
	uint8_t *from = copy_of(NULL, 3 * MIB), *to = copy_of(NULL, 3 * MIB);
	struct ranges differ;
	struct patch_draft d;
	struct patch p;
	struct file f;

	(void)unused;
	ranges_init(&differ);
	assert_int_equal(ranges_add(&differ, MIB, MIB), 0);
	assert_int_equal(patch_draft_difference(from, to, 3 * MIB, &differ, &d), 0);
	f = write_draft(&d, from, to);
	assert_int_equal(patch_open(f.data, f.size, &p), 0);
	assert_int_equal(p.n_blocks, 8);
	assert_int_equal(p.blocks[0].index, 8);
	assert_int_equal(p.n_changed <= MIB, true);
	patch_close(&p);
	file_free(&f);
	ranges_deinit(&differ);
	free(from);
	free(to);
}

/* Two bytes for each changed element, and two for its place. */
static void test_two_in_a_hundred_elements_take_four_in_a_hundred_bytes(void **unused)
{
	const uint64_t n = 4 * MIB;
	uint8_t *from = copy_of(NULL, n), *to = copy_of(from, n);
	uint64_t changed = 0;
	struct patch p;
	struct file f;

	(void)unused;
	for (uint64_t i = 0; i < n; i += 2)
		if (draw(50) == 0) {
			to[i] ^= 1;
			changed += 2;
		}
	f = difference(from, to, n);
	assert_int_equal(f.size, PATCH_HEADER_SIZE + 32 * 16 + 2 * changed);
	assert_int_equal(patch_open(f.data, f.size, &p), 0);
	assert_int_equal(p.n_changed, changed);
	assert_true(f.size < n / 20);
	patch_close(&p);
	file_free(&f);
	changed = 0;
	for (uint64_t i = 0; i < n; i += 4) /* elements of four bytes: one place for both halves */
		if (to[i] != from[i] || to[i + 2] != from[i + 2]) {
			to[i] = from[i] ^ 3;
			to[i + 2] = from[i + 2] ^ 3;
			changed += 4;
		}
	f = difference(from, to, n);
	assert_int_equal(f.size, PATCH_HEADER_SIZE + 32 * 16 + changed / 4 * 6);
	file_free(&f);
	free(from);
	free(to);
}

static void test_a_patch_is_never_longer_than_what_it_replaces(void **unused)
{
	uint8_t *from = copy_of(NULL, N_BYTES), *to = copy_of(NULL, N_BYTES);
	struct file f = difference(from, to, N_BYTES);

	(void)unused;
	assert_true(f.size <= PATCH_HEADER_SIZE + 27 * 16 + N_BYTES);
	expect_applied(&f, from, to, N_BYTES);
	file_free(&f);
	free(from);
	free(to);
}

/* The result is the same from any patch of the chain on. */
static void test_patches_in_a_row_are_one(void **unused)
{
	enum {
		N = 5
	};
	uint8_t *versions[N + 1];
	struct patch patches[N];
	struct file files[N];

	(void)unused;
	versions[0] = copy_of(NULL, N_BYTES);
	for (unsigned i = 0; i < N; i++) {
		versions[i + 1] = copy_of(versions[i], N_BYTES);
		change(versions[i + 1], N_BYTES);
		files[i] = difference(versions[i], versions[i + 1], N_BYTES);
		assert_int_equal(patch_open(files[i].data, files[i].size, &patches[i]), 0);
	}
	for (unsigned first = 0; first < N; first++) {
		struct patch_draft d;
		struct file f, again;

		assert_int_equal(patch_draft_union(patches + first, N - first, &d), 0);
		f = write_draft(&d, versions[first], versions[N]);
		for (unsigned i = first; i <= N; i++)
			expect_applied(&f, versions[i], versions[N], N_BYTES);
		if (first > 0) { /* a composed patch may replace its parts */
			struct patch pair[2] = {patches[first - 1]};

			assert_int_equal(patch_open(f.data, f.size, &pair[1]), 0);
			assert_int_equal(patch_draft_union(pair, 2, &d), 0);
			again = write_draft(&d, versions[first - 1], versions[N]);
			expect_applied(&again, versions[first - 1], versions[N], N_BYTES);
			patch_close(&pair[1]);
			file_free(&again);
		}
		file_free(&f);
	}
	for (unsigned i = 0; i < N; i++) {
		patch_close(&patches[i]);
		file_free(&files[i]);
	}
	for (unsigned i = 0; i <= N; i++)
		free(versions[i]);
}

static void test_versions_of_other_sizes_are_not_composed(void **unused)
{
	uint8_t *x = copy_of(NULL, MIB), *y = copy_of(NULL, MIB);
	struct file one = difference(x, y, MIB), other = difference(x, y, MIB - 4);
	struct patch patches[2];
	struct patch_draft d;

	(void)unused;
	assert_int_equal(patch_open(one.data, one.size, &patches[0]), 0);
	assert_int_equal(patch_open(other.data, other.size, &patches[1]), 0);
	assert_int_equal(patch_draft_union(patches, 2, &d), -EBADMSG);
	patch_close(&patches[0]);
	patch_close(&patches[1]);
	file_free(&one);
	file_free(&other);
	free(x);
	free(y);
}

/* With any bytes overwritten, it is refused, or writes within the leaf; ASan checks that. */
static void test_a_patch_that_was_tampered_with_writes_nowhere_else(void **unused)
{
	const uint64_t n = MIB + 6;
	uint8_t *from = copy_of(NULL, n), *to = copy_of(from, n), *made = copy_of(from, n);
	unsigned n_opened = 0, n_refused = 0;
	struct file f;

	(void)unused;
	for (uint64_t i = 0; i < n; i += 2)
		if (draw(500) == 0)
			to[i] ^= 1;
	f = difference(from, to, n);
	for (unsigned i = 0; i < 4000; i++) {
		uint64_t size = draw(4) ? f.size : draw(f.size);
		uint8_t *bad = copy_of(f.data, size);
		struct patch p;

		for (unsigned k = 0; size > 0 && k < 3; k++)
			bad[draw(draw(2) && size > 300 ? 300 : size)] = (uint8_t)draw(256);
		if (patch_open(bad, size, &p) < 0) {
			n_refused++;
		} else {
			n_opened++;
			if (p.n_bytes == n)
				(void)apply(&p, made);
			patch_close(&p);
		}
		free(bad);
	}
	assert_true(n_opened > 100 && n_refused > 100);
	file_free(&f);
	free(from);
	free(to);
	free(made);
}

static void expect_refused(const struct file *f, size_t at, uint64_t value, size_t width)
{
	uint8_t *bad = copy_of(f->data, f->size);
	struct patch p;

	for (size_t i = 0; i < width; i++)
		bad[at + i] = (uint8_t)(value >> 8 * i);
	assert_int_equal(patch_open(bad, f->size, &p), -EBADMSG);
	free(bad);
}

static void test_what_cannot_be_is_refused(void **unused)
{
	uint8_t *from = copy_of(NULL, MIB), *to = copy_of(from, MIB);
	struct patch p;
	struct file f;

	(void)unused;
	to[0] ^= 1;
	to[200 * KIB] ^= 1;
	f = difference(from, to, MIB); /* two blocks of one element */
	assert_int_equal(f.size, 128 + 2 * 16 + 2 * 4);
	expect_refused(&f, 0, 'x', 1);
	expect_refused(&f, 7, 2, 1); /* another format */
	expect_refused(&f, 8, UINT64_MAX, 8);
	expect_refused(&f, 8, 128 * KIB, 8); /* its second block is behind the end */
	expect_refused(&f, 16, UINT64_MAX, 8);
	expect_refused(&f, 16, 1, 8);
	expect_refused(&f, 24, MIB + 1, 8);
	expect_refused(&f, 128, 1, 8); /* twice the same block */
	expect_refused(&f, 128, 8, 8);
	expect_refused(&f, 136, 0, 4);
	expect_refused(&f, 136, UINT32_MAX, 4);
	expect_refused(&f, 140, 0, 4);
	expect_refused(&f, 140, 3, 4);
	expect_refused(&f, 140, 4, 4);
	for (uint64_t size = 0; size < f.size; size++)
		assert_int_equal(patch_open(f.data, size, &p), -EBADMSG);
	file_free(&f);
	free(from);
	free(to);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_changed_is_there_and_nothing_else),
		cmocka_unit_test(test_equal_versions_differ_in_nothing),
		cmocka_unit_test(test_leaves_that_do_not_differ_are_not_looked_at),
		cmocka_unit_test(test_two_in_a_hundred_elements_take_four_in_a_hundred_bytes),
		cmocka_unit_test(test_a_patch_is_never_longer_than_what_it_replaces),
		cmocka_unit_test(test_patches_in_a_row_are_one),
		cmocka_unit_test(test_versions_of_other_sizes_are_not_composed),
		cmocka_unit_test(test_a_patch_that_was_tampered_with_writes_nowhere_else),
		cmocka_unit_test(test_what_cannot_be_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
