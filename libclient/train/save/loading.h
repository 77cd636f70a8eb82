/*
 * Loadings: a checkpoint that is read
 */
#pragma once

#include <jansson.h>

#include "libclient/train/save/description.h"

struct weightd_train;

struct loading {
	struct weightd_train *t;
	struct weightd *w; /* for the sentences of files */
	char folder[FOLDER_PATH_MAX]; /* the checkpoint */
	struct description description;
	json_t *model, *optimizer; /* files by tensor; `optimizer` NULL: it has no state */
	struct weightd_safetensors *file; /* the last one */
	char file_name[CHECKPOINT_NAME_MAX];
};

/*
 * Finds the checkpoint, or the newest one in a folder, and compares it with the plan. -ENOENT, -EBADMSG, -EPROTOTYPE, with a
 * sentence. loading_deinit() in any case.
 */
int loading_open(struct loading *l, struct weightd_train *t, const char *path);
void loading_deinit(struct loading *l);

/* Reads elements of a trained tensor, counted from its first one, of a state or of checkpoint_params. Errors as above. */
int loading_read_state(struct loading *l, const struct weightd_train_tensor *tensor,
		       const struct checkpoint_state *state, struct plan_interval part, void *to);
/* Reads all bytes of a tensor that is not trained. */
int loading_read_frozen(struct loading *l, const struct weightd_train_tensor *tensor, void *to);

/*
 * Reads the buffers, and the state (plan->state_size bytes at most), of a rank of the mesh: those of rank 0, where the
 * checkpoint has another number of ranks.
 */
int loading_read_rank(struct loading *l, uint32_t mesh_rank, uint8_t *buffers, void *state,
		      uint64_t *ret_state_size);
