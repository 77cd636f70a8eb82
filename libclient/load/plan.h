/*
 * Plans
 *
 * A load, computed before any memory is requested: the files, the layout of the buffer, and the place in it for each
 * range of a file. Tensors keep their order in the files.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/connection/sentence.h"
#include "libclient/image/file.h"
#include "libclient/image/original.h"
#include "libclient/load/progress.h"
#include "libclient/load/source.h"
#include "libclient/select/cut.h"
#include "weightd.h"

struct plan_file {
	struct file file;
	uint64_t n_cached; /* bytes in the page cache when it was opened */
	uint32_t first_tensor; /* index in the layout; the tensors of the next file begin at its first_tensor */
};

/* Bytes to copy, or with a cut to make from those of one tensor. Pieces stand in the order of their destination. */
struct plan_piece {
	uint64_t dest; /* in the buffer */
	uint64_t offset; /* in the file; with a cut, of the whole tensor */
	uint64_t size; /* in the buffer; never 0 */
	uint32_t file;
	uint32_t cut; /* number in plan::cuts, from 1; 0: the bytes are copied as they stand in the file */
};

struct plan {
	struct sources sources;
	struct plan_file *files;
	size_t n_files;
	struct plan_piece *pieces;
	size_t n_pieces;
	struct cut *cuts; /* NULL: the plan is of whole tensors as they are */
	struct weightd_layout *layout;
	uint64_t n_bytes; /* sum over all pieces */
	char *architecture; /* of the GGUF file; NULL: of none */
	char *tp_rules; /* name of the rules that cut the tensors; NULL: they are whole */
	struct original original; /* of the only file, if all of it is loaded */
};

/*
 * Opens what the paths name (.safetensors files, indexes, directories with them; one GGUF file; a file or an index may be a
 * URL), parses it and lays it out. All descriptors stay open in the plan. `progress` has the functions of the caller.
 */
int plan_make(const char *const *paths, size_t n_paths, struct progress *progress, struct plan *ret,
	      struct sentence *s);

/* True if bytes of it are those of a server. */
static inline bool plan_is_remote(const struct plan *p)
{
	return p->sources.fetcher != NULL;
}
void plan_deinit(struct plan *p);

/* After the last byte was read: -EBADMSG when a file is not what it was when it was opened. */
int plan_check_unchanged(const struct plan *p, struct sentence *s);

/* The end of the last piece: bytes from the start of the buffer. */
uint64_t plan_end(const struct plan *p);

/* The first piece that ends behind `dest`; n_pieces when there is none. */
size_t plan_find_piece(const struct plan *p, uint64_t dest);

/* The part of a piece, without a cut, that is between `begin` and `end` of the version; some of it is. */
struct plan_piece plan_clip(const struct plan_piece *piece, uint64_t begin, uint64_t end);

/* The piece with the bytes of a tensor of the layout, which has some, cut down to them. */
struct plan_piece plan_tensor_piece(const struct plan *p, const struct weightd_tensor *t);

/* Reads `n` bytes of a piece, from byte `at` of it on. */
int plan_read(const struct plan *p, const struct plan_piece *piece, uint64_t at, uint64_t n,
	      void *to, struct sentence *s);
