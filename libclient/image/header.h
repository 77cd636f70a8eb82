/*
 * Headers of images
 *
 * The one place that writes headers of safetensors files:
 *
 *	| size of the JSON, u64 little endian | JSON | blanks | data |
 *
 * The format has one entry for each range of bytes and no holes between them. It has no second name for a tensor,
 * no role and no unit, so these are texts in __metadata__, which other readers ignore:
 *
 *	"weightd.tied"		a JSON object, from each tied name to the name with the bytes
 *	"weightd.buffers"	a JSON array of the names whose role is LAYOUT_BUFFER
 *	"weightd.units"		a JSON array of runs, ["unit", number of tensors], over the tensors in the order of
 *				their bytes and then the tied names; absent if each unit is that of unit_of()
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/layout.h"
#include "libclient/connection/sentence.h"

#define IMAGE_HEADER_PREFIX_SIZE 8
#define IMAGE_HEADER_TEXT_MAX 100000000u /* JSON and blanks, as in the reference implementation */
#define IMAGE_HEADER_ALIGNMENT 4096u /* of the data of a header that nothing else determines */
#define IMAGE_HEADER_ROOM 4096u /* blanks for later metadata, at least */

#define IMAGE_METADATA_NAME "__metadata__"
#define IMAGE_METADATA_TIED "weightd.tied"
#define IMAGE_METADATA_BUFFERS "weightd.buffers"
#define IMAGE_METADATA_UNITS "weightd.units"

/* UTF-8 without NUL. */
struct image_attribute {
	const char *key, *value;
};

/* Text for __metadata__. The three keys above are ignored here: the layout determines them. */
struct image_metadata {
	const struct image_attribute *list;
	size_t n;
};

/*
 * The header for a layout, from the prefix to the last blank: `*ret_size` is the offset of the data. `m` NULL is
 * {"format": "pt"}, which transformers requires.
 *
 * The header has `data_offset_wanted` bytes if it fits and the format allows that. Otherwise, and for 0, its size is a multiple of
 * IMAGE_HEADER_ALIGNMENT with IMAGE_HEADER_ROOM, or congruent to the wanted one, so that a page of the data stays
 * a page.
 *
 * -EOPNOTSUPP: the layout cannot be an image. It has an alignment other than 1, a hole, bytes behind the last tensor,
 * a tensor named __metadata__, a dimension past 2^63 - 1, or an element type that the format lacks.
 * -E2BIG: the header has more than IMAGE_HEADER_TEXT_MAX bytes. -ENOMEM.
 */
int image_header_build(const struct layout *l, const struct image_metadata *m,
		       uint64_t data_offset_wanted, void **ret, uint64_t *ret_size);

/* Tensors of a layout, for a file of their own. */
struct image_part {
	const struct layout *layout;
	const uint32_t *tensors; /* indices, none of them tied, in the order of the bytes in the file */
	uint32_t n_tensors;
	bool has_ties; /* all ties of the layout, whatever file their tensors are in */
};

/* The header for a part: the tensors lie densely in the file, wherever they are in the layout. */
int image_header_build_part(const struct image_part *part, const struct image_metadata *m,
			    uint64_t data_offset_wanted, void **ret, uint64_t *ret_size);

/*
 * Compares the header of an image, its first `data_offset` bytes, with its layout: both must have the same tensors at
 * the same places, with the same types, shapes and roles, and the same tied names. 0; -EILSEQ and a sentence that
 * completes "its header ..."; -ENOMEM.
 */
int image_header_check(const void *header, uint64_t data_offset, const struct layout *l,
		       struct sentence *s);

/*
 * Builds a header piece by piece, for tensors without a layout of their own: begin, all ties, all buffers, all runs of
 * units, all tensors in the order of their bytes, end. Failures are kept until the end.
 */
struct image_header {
	char *text;
	uint64_t size, room;
	uint64_t data_size; /* of the tensors so far */
	const char *closing; /* ends the text that was begun last, or "" */
	int stage; /* kind of the last piece */
	bool has_metadata; /* the next text of __metadata__ needs a comma */
	int r; /* the first failure */
};

void image_header_begin(struct image_header *h, const struct image_metadata *m);
void image_header_tie(struct image_header *h, const char *alias, size_t alias_size,
		      const char *name, size_t name_size);
void image_header_buffer(struct image_header *h, const char *name, size_t name_size);
void image_header_units(struct image_header *h, const char *unit, uint32_t n);
/* Appends a tensor of `n_bytes`, which begins where the one before ends. */
void image_header_tensor(struct image_header *h, const char *name, size_t name_size, unsigned dtype,
			 uint32_t n_dims, const uint64_t *shape, uint64_t n_bytes);
/* Frees `h` in any case. The results are those of image_header_build(). */
int image_header_end(struct image_header *h, uint64_t data_offset_wanted, void **ret,
		     uint64_t *ret_size);
