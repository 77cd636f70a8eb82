/*
 * Meshes: named dimensions of ranks, row-major. A group is computed and never sent, so that all ranks have the same ones.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/quote.h"
#include "libclient/train/plan/sentence.h"
#include "weightd-train.h"

struct mesh_dim {
	char name[WEIGHTD_MESH_NAME_MAX + 1];
	uint32_t size;
	uint32_t stride; /* ranks between neighbours */
};

struct weightd_mesh {
	uint32_t n_ranks;
	uint32_t n_dims;
	struct mesh_dim dims[WEIGHTD_MESH_DIMS_MAX];
};

static int check_name(const char *name)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
	size_t size = name ? strlen(name) : 0;
	struct quote q;

	if (size == 0 || size > WEIGHTD_MESH_NAME_MAX || strspn(name, allowed) != size)
		return train_fail(
			-EINVAL,
			"the name %s of a mesh dimension is not 1 to %d of a to z, 0 to 9 and _",
			quote_name(&q, name ? name : ""), WEIGHTD_MESH_NAME_MAX);
	return 0;
}

static const struct mesh_dim *find_dim(const struct weightd_mesh *m, const char *name)
{
	for (uint32_t i = 0; i < m->n_dims; i++)
		if (!strcmp(m->dims[i].name, name))
			return &m->dims[i];
	return NULL;
}

static int add_dim(struct weightd_mesh *m, const struct weightd_mesh_dim *dim)
{
	int r = check_name(dim->name);

	if (r < 0)
		return r;
	if (find_dim(m, dim->name))
		return train_fail(-EINVAL, "the mesh has two dimensions '%s'", dim->name);
	if (dim->size == 0)
		return train_fail(-EINVAL, "the mesh dimension '%s' has no ranks", dim->name);
	if (dim->size > WEIGHTD_RANKS_MAX / m->n_ranks)
		return train_fail(-EINVAL, "the mesh has more than %d ranks", WEIGHTD_RANKS_MAX);
	m->n_ranks *= dim->size;
	(void)strcpy(m->dims[m->n_dims].name, dim->name);
	m->dims[m->n_dims++].size = dim->size;
	return 0;
}

int weightd_mesh_new(const struct weightd_mesh_dim *dims, uint32_t n_dims, struct weightd_mesh **ret)
{
	struct weightd_mesh *m;
	uint32_t stride = 1;

	if (n_dims == 0 || n_dims > WEIGHTD_MESH_DIMS_MAX)
		return train_fail(-EINVAL, "a mesh has 1 to %d dimensions, and this one has %u",
				  WEIGHTD_MESH_DIMS_MAX, n_dims);
	m = calloc(1, sizeof(*m));
	if (!m)
		return train_fail(-ENOMEM, "there is not enough memory for a mesh");
	m->n_ranks = 1;
	for (uint32_t i = 0; i < n_dims; i++) {
		int r = add_dim(m, &dims[i]);

		if (r < 0) {
			free(m);
			return r;
		}
	}
	for (uint32_t i = n_dims; i-- > 0; stride *= m->dims[i].size)
		m->dims[i].stride = stride;
	*ret = m;
	return 0;
}

void weightd_mesh_free(struct weightd_mesh *m)
{
	free(m);
}

uint32_t weightd_mesh_n_ranks(const struct weightd_mesh *m)
{
	return m->n_ranks;
}

uint32_t weightd_mesh_n_dims(const struct weightd_mesh *m)
{
	return m->n_dims;
}

int weightd_mesh_dim(const struct weightd_mesh *m, uint32_t dim, struct weightd_mesh_dim *ret)
{
	if (dim >= m->n_dims)
		return train_fail(-ENOENT, "the mesh has %u dimensions, and no dimension %u",
				  m->n_dims, dim);
	*ret = (struct weightd_mesh_dim){m->dims[dim].name, m->dims[dim].size};
	return 0;
}

int weightd_mesh_find(const struct weightd_mesh *m, const char *name, uint32_t *ret_dim)
{
	const struct mesh_dim *dim = find_dim(m, name);
	struct quote q;

	if (!dim)
		return train_fail(-ENOENT, "the mesh has no dimension %s", quote_name(&q, name));
	*ret_dim = (uint32_t)(dim - m->dims);
	return 0;
}

static int check_place(const struct weightd_mesh *m, uint32_t rank, uint32_t dim)
{
	if (rank >= m->n_ranks)
		return train_fail(-ENOENT, "the mesh has %u ranks, and no rank %u", m->n_ranks,
				  rank);
	if (dim >= m->n_dims)
		return train_fail(-ENOENT, "the mesh has %u dimensions, and no dimension %u",
				  m->n_dims, dim);
	return 0;
}

int weightd_mesh_coordinate(const struct weightd_mesh *m, uint32_t rank, uint32_t dim, uint32_t *ret)
{
	int r = check_place(m, rank, dim);

	if (r < 0)
		return r;
	*ret = rank / m->dims[dim].stride % m->dims[dim].size;
	return 0;
}

int weightd_mesh_group(const struct weightd_mesh *m, uint32_t rank, uint32_t dim,
		       uint32_t *ret_ranks)
{
	uint32_t own;
	int r = weightd_mesh_coordinate(m, rank, dim, &own);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < m->dims[dim].size; i++)
		ret_ranks[i] = rank - own * m->dims[dim].stride + i * m->dims[dim].stride;
	return 0;
}
