/*
 * The weights as every process would hold them without weightd: a private copy of the file's bytes
 *
 * For comparison only, so it shares no code with libweightd's loader and trusts its input more: one
 * safetensors file, names without escapes.
 */
#pragma once

#include <stddef.h>

#include <weightd.h>

struct filecopy {
	struct weightd_tensor *tensors; /* tied_to, unit and offset are not set */
	size_t n_tensors;
	char *header; /* the names lie in it */
	uint64_t (*shapes)[WEIGHTD_DIMS_MAX];
	char *data;
	size_t n_bytes;
};

/* -EBADMSG when it is not such a file. */
int filecopy_new(const char *path, struct filecopy **ret);
void filecopy_free(struct filecopy *f);

/* NULL if there is none of that name. */
const struct weightd_tensor *filecopy_find(const struct filecopy *f, const char *name);
