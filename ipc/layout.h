/*
 * Layouts
 *
 * The ordered tensor table of a buffer as one position-independent image, which clients map and never
 * parse: name look-up is a hash table inside it, so attaching costs the same for one tensor and for
 * millions. The sections stand behind each other in this order, with nothing between them:
 *
 *	header | tensors | dims (u64) | units | buckets (u32) | strings
 *
 * The image is identified by its hash, which covers every byte after the hash itself. The server checks
 * an image completely (layout_check.h) before anybody else sees it.
 */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/dtype.h"
#include "ipc/hash.h"

#define LAYOUT_MAGIC 0x54554f59414c4457ull /* "WDLAYOUT" */
#define LAYOUT_ABI 1

#define LAYOUT_TENSORS_MAX (4u << 20)
#define LAYOUT_UNITS_MAX (4u << 20)
#define LAYOUT_DIMS_MAX 32
#define LAYOUT_NAME_MAX 1024
#define LAYOUT_SIZE_MAX ((uint64_t)1 << 30)
#define LAYOUT_ALIGNMENT_MIN 1 /* of an image of safetensors, which has no room between tensors */
#define LAYOUT_ALIGNMENT_FLAT_MIN 64 /* of what a writer may ask for */
#define LAYOUT_ALIGNMENT_MAX (2u << 20)
#define LAYOUT_ALIGNMENT_DEFAULT 256

#define LAYOUT_NONE UINT32_MAX /* no unit; not tied; an empty bucket */

/* Buckets looked at for one name. Tables are at most half full: honest chains stay far below it. */
#define LAYOUT_PROBES_MAX 256

enum layout_role {
	LAYOUT_PARAM = 1,
	LAYOUT_BUFFER, /* mutable or non-parameter state: readers copy it */
	LAYOUT_ROLE_END,
};

struct layout_header {
	uint64_t magic;
	uint32_t abi;
	uint32_t pad;
	uint8_t hash[HASH_SIZE]; /* layout_hash() of all bytes behind it */
	uint64_t total_size; /* bytes of the image */
	uint64_t data_size; /* bytes of the flat range: the end of the last tensor, or that aligned */
	uint64_t strings_size;
	uint32_t alignment; /* alignment of each offset, a power of two */
	uint32_t n_tensors;
	uint32_t n_dims; /* sum over all tensors */
	uint32_t n_units;
	uint32_t n_buckets; /* a power of two, at least twice n_tensors */
	uint32_t pad2;
};
static_assert(sizeof(struct layout_header) == 80, "layout_header is ABI");

#define LAYOUT_HASHED_FROM (offsetof(struct layout_header, hash) + HASH_SIZE)

struct layout_tensor {
	uint64_t offset; /* in the flat range */
	uint64_t n_bytes;
	uint64_t name; /* in strings, NUL-terminated there */
	uint32_t name_size; /* without the NUL */
	uint32_t dims; /* index of the first */
	uint32_t unit; /* index, or LAYOUT_NONE */
	uint32_t tied_to; /* it shares the bytes of the earlier tensor with this index; or LAYOUT_NONE */
	uint8_t dtype;
	uint8_t role;
	uint8_t n_dims;
	uint8_t pad[5];
};
static_assert(sizeof(struct layout_tensor) == 48, "layout_tensor is ABI");

struct layout_unit {
	uint64_t name; /* in strings, NUL-terminated there */
	uint32_t name_size;
	uint32_t pad;
};
static_assert(sizeof(struct layout_unit) == 16, "layout_unit is ABI");

/* An image and where its sections are. Owns nothing. */
struct layout {
	const struct layout_header *header;
	const struct layout_tensor *tensors;
	const uint64_t *dims;
	const struct layout_unit *units;
	const uint32_t *buckets;
	const char *strings;
};

/* Total size of an image with these counts. False when it is past LAYOUT_SIZE_MAX. */
bool layout_image_size(const struct layout_header *h, uint64_t *ret);

/*
 * Finds the sections: constant time, checks the header and the size and nothing else. -EBADMSG. All
 * functions below stay within the image whatever is in it.
 */
int layout_open(const void *image, uint64_t size, struct layout *ret);

/* Index of the tensor called so. -ENOENT. */
int layout_find(const struct layout *l, const char *name, size_t name_size, uint32_t *ret);

/* NUL-terminated; "" for what a broken image would put outside itself. */
const char *layout_tensor_name(const struct layout *l, const struct layout_tensor *t);
const char *layout_tensor_unit(const struct layout *l, const struct layout_tensor *t);
/* t->n_dims of them; NULL for a scalar, and for what would lie outside the image. */
const uint64_t *layout_tensor_shape(const struct layout *l, const struct layout_tensor *t);

/* The tensor with the bytes: `index` itself if it is not tied. */
uint32_t layout_untied(const struct layout *l, uint32_t index);

/* Hash of a name: its bits below n_buckets are the first bucket to look at. The builder and layout_find() agree on it. */
uint32_t layout_name_hash(const char *name, size_t name_size);
/* That bucket. */
uint32_t layout_bucket(const char *name, size_t name_size, uint32_t n_buckets);

/* 1 to LAYOUT_NAME_MAX bytes of UTF-8 without NUL. */
bool layout_name_ok(const char *name, size_t size);

/* The hash of a complete image: the root of a digest tree over the bytes behind header.hash. */
void layout_hash(const void *image, uint64_t size, uint8_t ret_hash[HASH_SIZE]);
