/*
 * One safetensors file
 *
 *	| header size, u64 little endian | header, JSON | data |
 *
 * Accepts what the reference implementation accepts and nothing that readers of the format disagree
 * about. Every tensor of an accepted header lies inside the data, and together they cover all of it.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "libclient/connection/sentence.h"
#include "libclient/image/file.h"
#include "weightd.h"

#define SAFETENSORS_PREFIX_SIZE 8
#define SAFETENSORS_HEADER_MAX 100000000u /* as in the reference */

/* Rules that a file can break, each with the reference's name of the error. */
enum safetensors_refusal {
	SAFETENSORS_TOO_SMALL = 1, /* HeaderTooSmall */
	SAFETENSORS_HEADER_TOO_LARGE, /* HeaderTooLarge */
	SAFETENSORS_HEADER_LENGTH, /* InvalidHeaderLength */
	SAFETENSORS_UTF8, /* InvalidHeader */
	SAFETENSORS_JSON, /* InvalidHeaderDeserialization */
	SAFETENSORS_METADATA, /* InvalidHeaderDeserialization */
	SAFETENSORS_ENTRY, /* InvalidHeaderDeserialization: dtype, shape or data_offsets */
	SAFETENSORS_DTYPE, /* InvalidHeaderDeserialization: an unknown element type */
	SAFETENSORS_DUPLICATE, /* accepted there: the last one wins */
	SAFETENSORS_NAME, /* accepted there: empty, too long, NUL */
	SAFETENSORS_LIMIT, /* accepted there: too many tensors or dimensions */
	SAFETENSORS_OFFSET, /* InvalidOffset: a hole, an overlap, an end before the begin */
	SAFETENSORS_OVERFLOW, /* ValidationOverflow */
	SAFETENSORS_MISALIGNED, /* MisalignedSlice */
	SAFETENSORS_SIZE, /* TensorInvalidInfo */
	SAFETENSORS_INCOMPLETE, /* MetadataIncompleteBuffer */
};

struct safetensors_tensor {
	const char *name; /* NUL-terminated, in safetensors::text */
	uint64_t begin, end; /* in the data */
	uint64_t first_dim; /* in safetensors::dims */
	uint32_t name_size;
	uint32_t n_dims;
	enum weightd_dtype dtype;
	enum weightd_role role;
	const char *unit; /* NULL: none in the metadata */
};

/* A second name for a tensor, of this file or of another one of the same model. */
struct safetensors_tie {
	const char *alias, *name; /* NUL-terminated, in safetensors::text */
	uint32_t alias_size, name_size;
	const char *unit; /* NULL: none in the metadata */
};

struct safetensors {
	struct safetensors_tensor *tensors; /* in the order of their bytes */
	size_t n_tensors;
	uint64_t *dims;
	size_t n_dims;
	struct safetensors_tie *ties; /* in the order of the header */
	size_t n_ties;
	char *text;
	uint64_t data_offset; /* position of the data in the file, set by safetensors_read() */
};

/*
 * Reads the eight bytes that every file begins with: the size of the header behind them. Nothing is
 * allocated before they were compared with the file. 0, or which rule they break.
 */
int safetensors_parse_prefix(const uint8_t prefix[SAFETENSORS_PREFIX_SIZE], uint64_t file_size,
			     uint64_t *ret_header_size, struct sentence *s);

/* Parses a header in front of `data_size` bytes of data. 0, which rule it breaks, or -ENOMEM. */
int safetensors_parse(const char *header, uint64_t size, uint64_t data_size,
		      struct safetensors *ret, struct sentence *s);

/*
 * Reads and parses the header of a file. A broken rule is -EBADMSG here; the sentence names the file. `ret_start` gets the
 * file up to its data, unless it is NULL.
 */
int safetensors_read(const struct file *f, struct safetensors *ret, void **ret_start,
		     struct sentence *s);

void safetensors_deinit(struct safetensors *st);

/* t->n_dims of them. */
static inline const uint64_t *safetensors_shape(const struct safetensors *st,
						const struct safetensors_tensor *t)
{
	return t->n_dims ? st->dims + t->first_dim : NULL;
}
