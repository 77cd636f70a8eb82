/*
 * Checkpoints
 *
 * The names of a checkpoint's files, and the tensors of each. A trained tensor belongs to the rank that owns its first
 * element: that rank writes all of it, so that every tensor is whole in one file, and the tensors of a rank are one
 * interval of the flat range. With several nodes the ranks of node 0 write all files.
 *
 *	model-0000I-of-0000N.safetensors	parameters; those of rank 0 have its buffers, and what is frozen
 *	optimizer-0000I-of-0000N.safetensors	NAME.master, NAME.exp_avg and so on, fp32
 *	rank-0000R-of-0000N.safetensors		"state", and "buffer.NAME", of each rank of the mesh
 *	model.safetensors.index.json, optimizer.safetensors.index.json	the file of each tensor
 *	trainer.json				the rest
 */
#pragma once

#include <stdint.h>

#include "libclient/train/plan/plan.h"

#define CHECKPOINT_VERSION 1
#define CHECKPOINT_FORMAT "weightd-train checkpoint"
#define CHECKPOINT_TRAINER "trainer.json"
#define CHECKPOINT_MODEL "model"
#define CHECKPOINT_OPTIMIZER "optimizer"
#define CHECKPOINT_RANK "rank"
#define CHECKPOINT_STATE "state"
#define CHECKPOINT_MASTER "master"
#define CHECKPOINT_BUFFER "buffer."
#define CHECKPOINT_STATES_MAX 3 /* of the optimizer, of one tensor */
#define CHECKPOINT_NAME_MAX 64 /* of a file or folder */

/* Elements of the flat range whose tensors a rank writes; empty: none. */
struct plan_interval checkpoint_owned(const struct weightd_plan *p, uint32_t rank);
/* The number of a rank of a node in the mesh. */
static inline uint32_t checkpoint_rank(const struct weightd_plan *p, uint32_t node, uint32_t rank)
{
	return node * p->n_ranks + rank;
}

/* The rank that writes a trained tensor. */
uint32_t checkpoint_owner(const struct weightd_plan *p, const struct weightd_train_tensor *t);

/* The numbers of the files of ranks, from 1 on; 0: it owns nothing, and has none. Rank 0 owns the first tensor. */
struct checkpoint_files {
	uint32_t numbers[WEIGHTD_RANKS_MAX];
	uint32_t n;
};

void checkpoint_files_find(const struct weightd_plan *p, struct checkpoint_files *ret);
/* "model-00001-of-00004.safetensors", of a rank with a number. */
void checkpoint_file(const struct checkpoint_files *files, const char *stem, uint32_t rank,
		     char ret[CHECKPOINT_NAME_MAX]);
/* Likewise by number and count, both from 1 on. */
void checkpoint_file_name(const char *stem, uint32_t number, uint32_t n,
			  char ret[CHECKPOINT_NAME_MAX]);
void checkpoint_folder_name(uint64_t step, char ret[CHECKPOINT_NAME_MAX]);
/* True for such a name. */
bool checkpoint_folder_parse(const char *name, uint64_t *ret_step);

/* A state of the optimizer: a flat range of fp32. */
struct checkpoint_state {
	char suffix[32]; /* of the tensors' names: ".exp_avg" */
	enum weightd_kind kind;
	uint32_t moment; /* MOMENTS: which of them */
};

/* PARAM in the place of a state: where plan_shards_params(), nodes have parts of it as they have of states. */
extern const struct checkpoint_state checkpoint_params;

/* False: it has fewer. The originals of 16-bit parameters are the first one. */
bool checkpoint_state(const struct weightd_plan *p, uint32_t index, struct checkpoint_state *ret);
