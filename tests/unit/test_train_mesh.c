#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "weightd-train.h"

#define ROUNDS 300

static unsigned draw(unsigned n)
{
	return (unsigned)(random() % n);
}

static struct weightd_mesh *draw_mesh(void)
{
	static const char *const names[] = {"pp", "dp_replicate", "dp_shard", "tp"};
	struct weightd_mesh_dim dims[WEIGHTD_MESH_DIMS_MAX];
	uint32_t n = 1 + draw(WEIGHTD_MESH_DIMS_MAX);
	struct weightd_mesh *m = NULL;

	for (uint32_t i = 0; i < n; i++)
		dims[i] = (struct weightd_mesh_dim){names[i], 1 + draw(4)};
	assert_int_equal(weightd_mesh_new(dims, n, &m), 0);
	return m;
}

static void ranks_are_numbered_with_the_last_dimension_fastest(void **state)
{
	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct weightd_mesh *m = draw_mesh();

		for (uint32_t rank = 0; rank < weightd_mesh_n_ranks(m); rank++) {
			uint32_t number = 0;

			for (uint32_t i = 0; i < weightd_mesh_n_dims(m); i++) {
				struct weightd_mesh_dim dim;
				uint32_t at;

				assert_int_equal(weightd_mesh_dim(m, i, &dim), 0);
				assert_int_equal(weightd_mesh_coordinate(m, rank, i, &at), 0);
				assert_true(at < dim.size);
				number = number * dim.size + at;
			}
			assert_int_equal(number, rank);
		}
		weightd_mesh_free(m);
	}
}

/* Each member computes its own group: all must have the same one, and each rank must be in one of a dimension. */
static void groups_partition_the_ranks_and_are_the_same_on_all_of_them(void **state)
{
	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct weightd_mesh *m = draw_mesh();
		uint32_t n = weightd_mesh_n_ranks(m);

		for (uint32_t d = 0; d < weightd_mesh_n_dims(m); d++) {
			uint32_t seen[WEIGHTD_RANKS_MAX] = {0};
			struct weightd_mesh_dim dim;

			assert_int_equal(weightd_mesh_dim(m, d, &dim), 0);
			for (uint32_t rank = 0; rank < n; rank++) {
				uint32_t group[WEIGHTD_RANKS_MAX], other[WEIGHTD_RANKS_MAX], at;

				assert_int_equal(weightd_mesh_group(m, rank, d, group), 0);
				assert_int_equal(weightd_mesh_coordinate(m, rank, d, &at), 0);
				assert_int_equal(group[at], rank);
				for (uint32_t i = 0; i < dim.size; i++) {
					assert_true(group[i] < n);
					assert_int_equal(weightd_mesh_group(m, group[i], d, other),
							 0);
					assert_memory_equal(group, other, dim.size * sizeof(*group));
					seen[group[i]]++;
				}
			}
			/* Each of the members counted it. */
			for (uint32_t rank = 0; rank < n; rank++)
				assert_int_equal(seen[rank], dim.size);
		}
		weightd_mesh_free(m);
	}
}

static void dimensions_are_found_by_name(void **state)
{
	const struct weightd_mesh_dim dims[] = {{"dp", 3}, {"tp", 2}};
	struct weightd_mesh *m = NULL;
	struct weightd_mesh_dim dim;
	uint32_t i, group[3];

	(void)state;
	assert_int_equal(weightd_mesh_new(dims, 2, &m), 0);
	assert_int_equal(weightd_mesh_find(m, "tp", &i), 0);
	assert_int_equal(i, 1);
	assert_int_equal(weightd_mesh_find(m, "pp", &i), -ENOENT);
	assert_string_equal(weightd_train_error(), "the mesh has no dimension 'pp'");
	assert_int_equal(weightd_mesh_dim(m, 2, &dim), -ENOENT);
	assert_int_equal(weightd_mesh_coordinate(m, 6, 0, &i), -ENOENT);
	assert_string_equal(weightd_train_error(), "the mesh has 6 ranks, and no rank 6");
	assert_int_equal(weightd_mesh_group(m, 1, 0, group), 0);
	assert_int_equal(group[0], 1);
	assert_int_equal(group[1], 3);
	assert_int_equal(group[2], 5);
	weightd_mesh_free(m);
}

static void bad_meshes_are_refused_with_a_reason(void **state)
{
	const struct {
		struct weightd_mesh_dim dims[5];
		uint32_t n_dims;
		const char *sentence;
	} cases[] = {
		{{{"dp", 2}}, 0, "a mesh has 1 to 4 dimensions, and this one has 0"},
		{{{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}},
		 5,
		 "a mesh has 1 to 4 dimensions, and this one has 5"},
		{{{"dp", 0}}, 1, "the mesh dimension 'dp' has no ranks"},
		{{{"dp", 2}, {"dp", 2}}, 2, "the mesh has two dimensions 'dp'"},
		{{{"dp", 257}}, 1, "the mesh has more than 256 ranks"},
		{{{"dp", 65536}, {"tp", 65536}}, 2, "the mesh has more than 256 ranks"},
		{{{"", 2}}, 1, "the name '' of a mesh dimension"},
		{{{NULL, 2}}, 1, "the name '' of a mesh dimension"},
		{{{"DP", 2}}, 1, "the name 'DP' of a mesh dimension"},
		{{{"a\033[2J", 2}}, 1, "the name 'a\\x1b[2J' of a mesh dimension"},
		{{{"abcdefghijklmnop", 2}}, 1, "the name 'abcdefghijklmnop' of a mesh dimension"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct weightd_mesh *m = NULL;

		assert_int_equal(weightd_mesh_new(cases[i].dims, cases[i].n_dims, &m), -EINVAL);
		if (!strstr(weightd_train_error(), cases[i].sentence))
			fail_msg("'%s' lacks '%s'", weightd_train_error(), cases[i].sentence);
		assert_null(m);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks_are_numbered_with_the_last_dimension_fastest),
		cmocka_unit_test(groups_partition_the_ranks_and_are_the_same_on_all_of_them),
		cmocka_unit_test(dimensions_are_found_by_name),
		cmocka_unit_test(bad_meshes_are_refused_with_a_reason),
	};

	srandom(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
