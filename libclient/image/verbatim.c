#include "libclient/image/verbatim.h"

#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "libclient/image/gguf.h"
#include "libclient/image/header.h"

/* True for a header that begins with its own size. */
static bool is_safetensors(const struct image_verbatim *v)
{
	uint64_t text_size;

	if (v->size < sizeof(text_size))
		return false;
	memcpy(&text_size, v->header, sizeof(text_size));
	return le64toh(text_size) == v->size - IMAGE_HEADER_PREFIX_SIZE;
}

/* The first size from that of the header on that lets a page of the data stay a page. */
static uint64_t padded_size(const struct image_verbatim *v, uint64_t wanted)
{
	if (!wanted || !is_safetensors(v))
		return v->size;
	if (wanted > v->size && wanted <= IMAGE_HEADER_PREFIX_SIZE + (uint64_t)IMAGE_HEADER_TEXT_MAX)
		return wanted;
	return v->size + (wanted - v->size) % IMAGE_HEADER_ALIGNMENT;
}

int verbatim_header(const struct image_verbatim *v, uint64_t data_offset_wanted, void **ret,
		    uint64_t *ret_size)
{
	uint64_t size = padded_size(v, data_offset_wanted), text_size;
	char *header;

	if (size > v->size && size - IMAGE_HEADER_PREFIX_SIZE > IMAGE_HEADER_TEXT_MAX)
		return -E2BIG;
	header = malloc(size);
	if (!header)
		return -ENOMEM;
	memcpy(header, v->header, v->size);
	if (size > v->size) {
		text_size = htole64(size - IMAGE_HEADER_PREFIX_SIZE);
		memcpy(header, &text_size, sizeof(text_size));
		memset(header + v->size, ' ', size - v->size);
	}
	*ret = header;
	*ret_size = size;
	return 0;
}

int verbatim_check(const void *header, uint64_t size, const struct layout *l, struct sentence *s)
{
	return gguf_is_magic(header, size) ? gguf_check(header, size, l, s)
					   : image_header_check(header, size, l, s);
}
