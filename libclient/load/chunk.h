/*
 * Chunks: 4 MiB of a version, and the direct reads that fill them
 *
 * A direct read has offset, size and memory at multiples of the alignment of its file. Where a chunk has the same place in
 * the memory as in the file, counted in that alignment, its bytes are read to where they belong. Elsewhere they are read into
 * memory in between, and copied from there.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/digest.h"
#include "libclient/connection/sentence.h"
#include "libclient/load/disk/direct.h"
#include "libclient/load/disk/pace.h"
#include "libclient/load/plan.h"
#include "libclient/writer.h"

#define CHUNK_LEAVES 4u
#define CHUNK_SIZE (CHUNK_LEAVES * (uint64_t)DIGEST_LEAF_SIZE)
#define CHUNK_RANGES_MAX 16u /* more are not worth direct reads */
#define CHUNK_GAP_MAX                                                                              \
	4096u /* bytes that are read and not wanted, rather than begin another range */
#define CHUNK_READ_MAX (CHUNK_SIZE + CHUNK_SIZE / 4) /* with gaps */
#define CHUNK_STAGE_SIZE (CHUNK_READ_MAX + CHUNK_RANGES_MAX * (uint64_t)(3 * DIRECT_ALIGN_MAX))

/* Bytes of a file that a chunk needs. */
struct chunk_range {
	uint32_t file;
	uint64_t offset, end; /* in the file */
	uint64_t dest; /* of its first byte in the version */
	bool is_one; /* its bytes stand in the version as in the file */
};

struct chunk_ranges {
	struct chunk_range list[CHUNK_RANGES_MAX];
	unsigned n;
	uint64_t n_bytes; /* of the version */
};

/* False: there is none, too many, or too many bytes between them; or a piece has a cut, which only threads read. */
bool chunk_find_ranges(const struct plan *plan, uint64_t begin, uint64_t end,
		       struct chunk_ranges *ret);

struct chunk_read {
	struct chunk *chunk;
	uint32_t file;
	char *to;
	uint64_t offset, size; /* multiples of the alignment */
	uint64_t wanted; /* less than the size if the file ends before */
	uint64_t done;
	int r; /* its error */
};

/* One that is being read, and then digested. */
struct chunk {
	struct chunk *next; /* in a list */
	uint64_t number;
	uint64_t begin, end; /* in the version */
	char *stage; /* CHUNK_STAGE_SIZE bytes, aligned */
	bool in_place;
	struct chunk_ranges ranges;
	struct chunk_read reads[CHUNK_RANGES_MAX];
	unsigned n_reads;
	unsigned n_pending; /* reads in flight */
	uint64_t n_counted; /* bytes that progress has of it */
};

/* Reads of all ranges to the stage, one after the other. */
void chunk_plan_staged(struct chunk *c, const struct plan *plan, const struct direct *files);

/*
 * Reads of the only range to `to`, where the chunk begins. `joins`: the chunk before reads the block that both share, and
 * this one reads the block that it shares with the next. Blocks that are shared with others go to the stage.
 */
void chunk_plan_in_place(struct chunk *c, const struct plan *plan, const struct direct *files,
			 char *to, bool joins_before, bool joins_next);

/* True for errors of a direct read, or of a ring, that reads of the page cache do not have. */
bool chunk_is_refused(int r);

/*
 * Reads on directly, as much as the pace allows at a time. Returns the number of bytes. 0: all that is wanted is there, or the
 * rest is refused, or begins at no multiple of the alignment. -ECANCELED, without a sentence: the pace was stopped.
 */
int chunk_read_direct(struct chunk_read *read, const struct file *f, const struct direct *d,
		      struct pace *pace, struct sentence *s);

/* Bytes [from, from + n) of the version, which the stage has, to `at`. What belongs to no tensor is zero if `with_zeros`. */
void chunk_copy(const struct chunk *c, const struct plan *plan, uint64_t from, uint64_t n, char *at,
		bool with_zeros);

/* Bytes at both ends of a chunk in place, from the stage to where they belong. */
void chunk_copy_ends(const struct chunk *c, char *to);
