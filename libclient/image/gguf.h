/*
 * The header of a GGUF file
 *
 *	| "GGUF" | version | counts | metadata | tensor infos | padding | data |
 *
 * Accepts versions 2 and 3, little endian, and a file that llama.cpp accepts: the tensors stand in the data in the
 * order of their infos, each at the next multiple of the alignment. Metadata are checked for their form and skipped.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/layout.h"
#include "libclient/connection/sentence.h"
#include "weightd.h"

#define GGUF_MAGIC "GGUF"
#define GGUF_MAGIC_SIZE 4
#define GGUF_HEADER_MAX 100000000u /* up to the data; a large vocabulary takes ten million bytes */
#define GGUF_DIMS_MAX 4
#define GGUF_ALIGNMENT_DEFAULT 32

/* Rules that a file can break. */
enum gguf_refusal {
	GGUF_MORE = 1, /* no rule: the header goes on behind the bytes that are there */
	GGUF_NO_MAGIC,
	GGUF_VERSION,
	GGUF_CUT_OFF, /* the header ends behind the end of the file */
	GGUF_LIMIT,
	GGUF_KEY, /* of metadata: empty, too long, twice */
	GGUF_VALUE, /* of metadata: an unknown type, an array of arrays */
	GGUF_ALIGNMENT,
	GGUF_SPLIT, /* a part of a model */
	GGUF_NAME, /* of a tensor: empty, too long, NUL, not UTF-8, twice */
	GGUF_SHAPE,
	GGUF_TYPE,
	GGUF_OFFSET, /* a hole, an overlap, another order */
	GGUF_SIZE, /* the data are too short or too long */
};

struct gguf_tensor {
	const char *name; /* name_size bytes in the header, without a NUL behind them */
	uint64_t offset, n_bytes; /* in the data */
	uint64_t shape[GGUF_DIMS_MAX]; /* n_dims of them, outermost first: the reverse of the file's order */
	uint32_t name_size;
	uint32_t n_dims;
	enum weightd_dtype dtype;
};

struct gguf {
	struct gguf_tensor *tensors; /* in the order of their bytes */
	size_t n_tensors;
	uint64_t data_offset; /* bytes of the header, padding included */
	uint64_t data_size; /* bytes behind it: the end of the last tensor, or that aligned */
	uint32_t alignment; /* a power of two */
	uint32_t architecture_size;
	const char *architecture; /* general.architecture, bytes in the header; NULL: it has none */
};

/*
 * Parses the first `size` bytes of a file of `file_size`. 0: the result refers to them. GGUF_MORE, without a sentence:
 * more of the file is needed. Otherwise which rule it breaks, or -ENOMEM.
 */
int gguf_parse(const void *start, uint64_t size, uint64_t file_size, struct gguf *ret,
	       struct sentence *s);
void gguf_deinit(struct gguf *g);

/*
 * Compares the header of an image, `data_offset` bytes, with the layout that was published with it. -EILSEQ: they
 * differ; the sentence is a clause, whose subject is the header. -ENOMEM.
 */
int gguf_check(const void *header, uint64_t data_offset, const struct layout *l, struct sentence *s);

/* True for bytes that begin as a GGUF file does. */
bool gguf_is_magic(const void *start, uint64_t size);
