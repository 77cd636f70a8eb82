/*
 * Reshards
 *
 * A model in shards on some ranks becomes other shards on others: the layouts of the targets, and the moves that
 * write each of their bytes once. One source is a scatter, one target a gather. Pure arithmetic, without input or
 * output.
 *
 * A target has the tensors of the sources in their order, each at the next multiple of RESHARD_ALIGNMENT, as in a
 * layout built by weightd_layout_add(); for tied names the rule of the first one applies. If several sources have an
 * element, a target takes it from its own node if that is one of them; otherwise the targets take turns among them.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ipc/reshard/moves.h"
#include "ipc/reshard/split.h"

#define RESHARD_RANKS_MAX MOVES_NODES_MAX
#define RESHARD_TENSORS_MAX (1u << 18)
#define RESHARD_DIMS_MAX 32
#define RESHARD_ALIGNMENT 256
#define RESHARD_NOT_TIED UINT32_MAX
#define RESHARD_WHY_SIZE 1024

/* A tensor of a layout. */
struct reshard_tensor {
	const char *name;
	const char *dtype; /* its name */
	unsigned bits; /* bits of an element */
	unsigned role;
	uint32_t tied_to; /* index of an earlier one, or RESHARD_NOT_TIED */
	uint32_t n_dims;
	const uint64_t *shape;
	uint64_t offset;
};

struct reshard_layout {
	const struct reshard_tensor *tensors;
	uint32_t n_tensors;
	uint64_t n_bytes;
};

/* How a tensor is split. */
struct reshard_cut {
	int dim[MOVES_SIDES]; /* among the sources, and among the targets; or SPLIT_REPLICATED */
	uint64_t whole; /* size of the dimension that the sources split */
};

struct reshard {
	const struct reshard_layout *sources; /* borrowed, by rank; all have the same tensors */
	unsigned n_sources;
	unsigned n_targets;
	struct reshard_cut *cuts; /* one for each tensor */
	uint64_t *offsets; /* one for each target and tensor, in the order of the targets */
	uint64_t target_bytes[RESHARD_RANKS_MAX];
};

/*
 * Sources and split have to fit together: -EBADMSG with a sentence that names tensor, rank and shapes; -ENOMEM. The
 * split is not needed any more then.
 */
int reshard_init(struct reshard *r, const struct split *split, const struct reshard_layout *sources,
		 unsigned n_sources, unsigned n_targets, char why[RESHARD_WHY_SIZE]);
void reshard_deinit(struct reshard *r);

/* The shape of a tensor of a target. */
void reshard_shape(const struct reshard *r, unsigned target, uint32_t tensor,
		   uint64_t ret[RESHARD_DIMS_MAX]);
static inline uint64_t reshard_offset(const struct reshard *r, unsigned target, uint32_t tensor)
{
	return r->offsets[(size_t)target * r->sources[0].n_tensors + tensor];
}

/*
 * Computes the moves, for ranks on these of `n_nodes` nodes; no two sources are on one node, and no two targets.
 * -EBADMSG with a sentence: it takes more than MOVES_MAX; -ENOMEM.
 */
int reshard_moves(const struct reshard *r, const unsigned *source_nodes,
		  const unsigned *target_nodes, unsigned n_nodes, struct moves *ret,
		  char why[RESHARD_WHY_SIZE]);
