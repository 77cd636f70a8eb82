/*
 * Nothing here trusts an image: what is read from it is bounded before it is used, also after it was
 * checked, since the checks run in the server and the look-ups in every client.
 */
#include "ipc/layout.h"

#include <errno.h>
#include <string.h>

#include "ipc/base/num.h"
#include "ipc/base/utf8.h"
#include "ipc/digest.h"

bool layout_image_size(const struct layout_header *h, uint64_t *ret)
{
	uint64_t size = sizeof(*h);

	if (h->n_tensors > LAYOUT_TENSORS_MAX || h->n_units > LAYOUT_UNITS_MAX ||
	    h->strings_size > LAYOUT_SIZE_MAX)
		return false;
	/* No sum overflows: each term is below 2^36. */
	size += (uint64_t)h->n_tensors * sizeof(struct layout_tensor);
	size += (uint64_t)h->n_dims * sizeof(uint64_t);
	size += (uint64_t)h->n_units * sizeof(struct layout_unit);
	size += (uint64_t)h->n_buckets * sizeof(uint32_t);
	size += h->strings_size;
	if (size > LAYOUT_SIZE_MAX)
		return false;
	*ret = size;
	return true;
}

static bool header_ok(const struct layout_header *h, uint64_t size)
{
	uint64_t want;

	if (h->magic != LAYOUT_MAGIC || h->abi != LAYOUT_ABI || h->pad || h->pad2)
		return false;
	if (!layout_image_size(h, &want) || want != size || h->total_size != size)
		return false;
	if (!num_is_power_of_two(h->alignment) || h->alignment < LAYOUT_ALIGNMENT_MIN ||
	    h->alignment > LAYOUT_ALIGNMENT_MAX)
		return false;
	if (h->data_size > DIGEST_DATA_MAX || h->n_tensors == 0)
		return false;
	return num_is_power_of_two(h->n_buckets) && h->n_buckets / 2 >= h->n_tensors;
}

int layout_open(const void *image, uint64_t size, struct layout *ret)
{
	const struct layout_header *h = image;
	struct layout l = {.header = h};

	if (size < sizeof(*h) || !header_ok(h, size))
		return -EBADMSG;
	l.tensors = (const void *)(h + 1);
	l.dims = (const void *)(l.tensors + h->n_tensors);
	l.units = (const void *)(l.dims + h->n_dims);
	l.buckets = (const void *)(l.units + h->n_units);
	l.strings = (const void *)(l.buckets + h->n_buckets);
	*ret = l;
	return 0;
}

/* The string lies inside the section and is terminated there. */
static bool string_ok(const struct layout *l, uint64_t start, uint64_t size)
{
	uint64_t n = l->header->strings_size;

	return start < n && size < n - start && l->strings[start + size] == '\0';
}

uint32_t layout_name_hash(const char *name, size_t name_size)
{
	return (uint32_t)hash64(name, name_size);
}

uint32_t layout_bucket(const char *name, size_t name_size, uint32_t n_buckets)
{
	return layout_name_hash(name, name_size) & (n_buckets - 1);
}

int layout_find(const struct layout *l, const char *name, size_t name_size, uint32_t *ret)
{
	uint32_t n_buckets = l->header->n_buckets;
	uint32_t bucket = layout_bucket(name, name_size, n_buckets);

	for (unsigned i = 0; i < LAYOUT_PROBES_MAX; i++) {
		uint32_t index = l->buckets[(bucket + i) & (n_buckets - 1)];
		const struct layout_tensor *t;

		if (index >= l->header->n_tensors)
			return -ENOENT;
		t = &l->tensors[index];
		if (t->name_size == name_size && string_ok(l, t->name, t->name_size) &&
		    !memcmp(l->strings + t->name, name, name_size)) {
			*ret = index;
			return 0;
		}
	}
	return -ENOENT;
}

const char *layout_tensor_name(const struct layout *l, const struct layout_tensor *t)
{
	return string_ok(l, t->name, t->name_size) ? l->strings + t->name : "";
}

const char *layout_tensor_unit(const struct layout *l, const struct layout_tensor *t)
{
	const struct layout_unit *u;

	if (t->unit >= l->header->n_units)
		return "";
	u = &l->units[t->unit];
	return string_ok(l, u->name, u->name_size) ? l->strings + u->name : "";
}

const uint64_t *layout_tensor_shape(const struct layout *l, const struct layout_tensor *t)
{
	if (t->n_dims == 0 || t->dims > l->header->n_dims || t->n_dims > l->header->n_dims - t->dims)
		return NULL;
	return l->dims + t->dims;
}

uint32_t layout_untied(const struct layout *l, uint32_t index)
{
	uint32_t to = l->tensors[index].tied_to;

	return to < l->header->n_tensors ? to : index;
}

/* The length of a run of ASCII, in steps of eight characters. */
static size_t ascii_run(const unsigned char *p, size_t size)
{
	const uint64_t ones = UINT64_MAX / 255;
	size_t n = 0;

	for (uint64_t word; size - n >= sizeof(word); n += sizeof(word)) {
		memcpy(&word, p + n, sizeof(word));
		/* A NUL lends from the top bit of its byte, which no character of ASCII has. */
		if ((word | (word - ones)) & ones << 7)
			break;
	}
	return n;
}

bool layout_name_ok(const char *name, size_t size)
{
	const unsigned char *p = (const unsigned char *)name;
	uint32_t character;

	if (size == 0 || size > LAYOUT_NAME_MAX)
		return false;
	for (size_t i = ascii_run(p, size); i < size;) {
		size_t n = p[i] ? utf8_decode(p + i, size - i, &character) : 0;

		if (n == 0)
			return false;
		i += n;
	}
	return true;
}

void layout_hash(const void *image, uint64_t size, uint8_t ret_hash[HASH_SIZE])
{
	const char *data = (const char *)image + LAYOUT_HASHED_FROM;
	uint64_t data_size = size - LAYOUT_HASHED_FROM;
	uint8_t leaves[LAYOUT_SIZE_MAX / DIGEST_LEAF_SIZE][HASH_SIZE];
	uint64_t n = digest_n_leaves(data_size);

	assert(size > LAYOUT_HASHED_FROM && n <= ARRAY_LEN(leaves));
	for (uint64_t i = 0; i < n; i++)
		digest_leaf(data, data_size, i, leaves[i]);
	digest_root(leaves, n, ret_hash);
}
