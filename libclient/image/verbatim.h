/*
 * Headers of files
 *
 * A file that becomes a version as it is: its header, byte for byte, and the layout that the header describes.
 */
#pragma once

#include <stdint.h>

#include "ipc/layout.h"
#include "libclient/connection/sentence.h"
#include "weightd.h"

struct image_verbatim {
	const struct weightd_layout *layout;
	const void *header; /* from the first byte of the file up to the data */
	uint64_t size;
};

/*
 * Copies the header, for data at `data_offset_wanted`. Blanks make a header of safetensors as long as that or, if it
 * is longer already, congruent to it as image_header_build() does. 0, and a header of another format: as it is.
 * -ENOMEM; -E2BIG: it would be larger than the format allows.
 */
int verbatim_header(const struct image_verbatim *v, uint64_t data_offset_wanted, void **ret,
		    uint64_t *ret_size);

/*
 * Compares a header of either format with a layout. 0; -EILSEQ and a sentence that completes "its header ...";
 * -ENOMEM.
 */
int verbatim_check(const void *header, uint64_t size, const struct layout *l, struct sentence *s);
