/*
 * Building layouts: the sections of an image as growing arrays, with the name index kept along the way,
 * so that the same calls always give the same image and the same hash.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "ipc/digest.h"
#include "ipc/layout_check.h"
#include "libclient/version/difference.h"
#include "libclient/version/layout_builder.h"
#include "libclient/version/tensor.h"
#include "weightd.h"

#define BUCKETS_MIN 16
/* Names that collide on purpose are refused rather than given a table of any size. */
#define SPARSEST 64

struct weightd_layout {
	uint64_t end; /* end of the last tensor */
	uint64_t strings_size;
	bool ends_tight; /* the data end with the last tensor */
	bool is_loose; /* no alignment was asked for */
	uint32_t alignment;
	uint32_t n_tensors, n_dims, n_units, n_buckets;
	size_t tensors_room, hashes_room, dims_room, units_room, strings_room;
	struct layout_tensor *tensors;
	uint32_t *hashes; /* of their names: a look at a bucket rarely needs the name itself */
	uint64_t *dims;
	struct layout_unit *units;
	uint32_t *buckets;
	char *strings;
};

CLEANUP_POINTER(struct weightd_layout, weightd_layout_free);

/* Room for n + more items. */
static int layout_reserve(void *array, size_t item_size, size_t n, size_t more, size_t *room)
{
	size_t want = *room ? *room : 64;
	void **p = array, *grown;

	while (want < n + more)
		want *= 2;
	if (want == *room)
		return 0;
	grown = reallocarray(*p, want, item_size);
	if (!grown)
		return -ENOMEM;
	*p = grown;
	*room = want;
	return 0;
}

int layout_builder_new(uint64_t alignment, struct weightd_layout **ret)
{
	struct weightd_layout *l;

	if (!num_is_power_of_two(alignment) || alignment < LAYOUT_ALIGNMENT_MIN ||
	    alignment > LAYOUT_ALIGNMENT_MAX)
		return -EINVAL;
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->alignment = (uint32_t)alignment;
	l->n_buckets = BUCKETS_MIN;
	l->buckets = malloc(BUCKETS_MIN * sizeof(*l->buckets));
	if (!l->buckets) {
		free(l);
		return -ENOMEM;
	}
	memset(l->buckets, 0xff, BUCKETS_MIN * sizeof(*l->buckets)); /* LAYOUT_NONE */
	*ret = l;
	return 0;
}

int weightd_layout_new(uint64_t alignment, struct weightd_layout **ret)
{
	bool is_loose = alignment == 0;
	int r = -EINVAL;

	if (is_loose)
		alignment = LAYOUT_ALIGNMENT_DEFAULT;
	if (alignment >= LAYOUT_ALIGNMENT_FLAT_MIN)
		r = layout_builder_new(alignment, ret);
	if (r == 0)
		(*ret)->is_loose = is_loose;
	return r;
}

int layout_builder_reserve(struct weightd_layout *l, size_t n_tensors, size_t n_dims,
			   size_t strings_size)
{
	int r = layout_reserve(&l->tensors, sizeof(*l->tensors), l->n_tensors, n_tensors,
			       &l->tensors_room);

	if (r == 0)
		r = layout_reserve(&l->hashes, sizeof(*l->hashes), l->n_tensors, n_tensors,
				   &l->hashes_room);
	if (r == 0)
		r = layout_reserve(&l->dims, sizeof(*l->dims), l->n_dims, n_dims, &l->dims_room);
	if (r == 0)
		r = layout_reserve(&l->strings, 1, l->strings_size, strings_size, &l->strings_room);
	return r;
}

void layout_builder_end_tight(struct weightd_layout *l)
{
	l->ends_tight = true;
}

bool layout_builder_is_loose(const struct weightd_layout *l)
{
	return l->is_loose;
}

static int check_image(const void *image, uint64_t size, uint64_t *ret_end)
{
	struct layout_check c;
	int r = layout_check_init(&c, image, size);

	if (r == 0)
		do
			r = layout_check_step(&c);
		while (r == 1);
	*ret_end = c.end;
	layout_check_deinit(&c);
	return r;
}

/* A copy of a section, as an array that can grow. */
static int take_section(void *array, const void *section, size_t item_size, size_t n, size_t *room)
{
	int r = n ? layout_reserve(array, item_size, 0, n, room) : 0;

	if (r == 0 && n)
		memcpy(*(void **)array, section, n * item_size);
	return r;
}

/* The hashes of an image's names, which it does not have; or of the layout that it is a view of. */
static int take_hashes(struct weightd_layout *l, const uint32_t *hashes)
{
	int r = layout_reserve(&l->hashes, sizeof(*l->hashes), 0, l->n_tensors, &l->hashes_room);

	if (r == 0 && hashes && l->n_tensors)
		memcpy(l->hashes, hashes, l->n_tensors * sizeof(*hashes));
	for (uint32_t i = 0; r == 0 && !hashes && i < l->n_tensors; i++)
		l->hashes[i] = layout_name_hash(l->strings + l->tensors[i].name,
						l->tensors[i].name_size);
	return r;
}

static int take_sections(struct weightd_layout *l, const struct layout *from)
{
	const struct layout_header *h = from->header;
	size_t strings_size = h->strings_size;
	int r = take_section(&l->tensors, from->tensors, sizeof(*l->tensors), h->n_tensors,
			     &l->tensors_room);

	if (r == 0)
		r = take_section(&l->dims, from->dims, sizeof(*l->dims), h->n_dims, &l->dims_room);
	if (r == 0)
		r = take_section(&l->units, from->units, sizeof(*l->units), h->n_units,
				 &l->units_room);
	if (r == 0)
		r = take_section(&l->strings, from->strings, 1, strings_size, &l->strings_room);
	if (r < 0)
		return r;
	l->buckets = malloc(h->n_buckets * sizeof(*l->buckets));
	if (!l->buckets)
		return -ENOMEM;
	memcpy(l->buckets, from->buckets, h->n_buckets * sizeof(*l->buckets));
	l->strings_size = strings_size;
	l->alignment = h->alignment;
	l->ends_tight = h->data_size % h->alignment != 0;
	l->n_tensors = h->n_tensors;
	l->n_dims = h->n_dims;
	l->n_units = h->n_units;
	l->n_buckets = h->n_buckets;
	return 0;
}

int weightd_layout_parse(const void *image, uint64_t size, struct weightd_layout **ret)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = NULL;
	cleanup(freep) void *copy = NULL;
	struct layout view;
	int r;

	if (size == 0 || size > LAYOUT_SIZE_MAX)
		return -EBADMSG;
	copy = malloc(size);
	l = calloc(1, sizeof(*l));
	if (!copy || !l)
		return -ENOMEM;
	memcpy(copy, image, size);
	r = check_image(copy, size, &l->end);
	if (r == 0)
		r = layout_open(copy, size, &view);
	if (r == 0)
		r = take_sections(l, &view);
	if (r == 0)
		r = take_hashes(l, NULL);
	if (r == 0)
		*ret = take_ptr(l);
	return r;
}

void weightd_layout_free(struct weightd_layout *l)
{
	if (!l)
		return;
	free(l->tensors);
	free(l->hashes);
	free(l->dims);
	free(l->units);
	free(l->buckets);
	free(l->strings);
	free(l);
}

/* The bucket for a new name: -EEXIST when it is taken, -E2BIG when the chain is too long. */
static int free_bucket(const struct weightd_layout *l, const uint32_t *buckets, uint32_t n_buckets,
		       const char *name, size_t size, uint32_t *ret)
{
	uint32_t hash = l->hashes[l->n_tensors]; /* see index_name() */

	for (unsigned i = 0; i < LAYOUT_PROBES_MAX; i++) {
		uint32_t at = (hash + i) & (n_buckets - 1);
		const struct layout_tensor *t;

		/* A layout that was parsed may have anything there, as long as every name is found. */
		if (buckets[at] >= l->n_tensors) {
			*ret = at;
			return 0;
		}
		if (l->hashes[buckets[at]] != hash)
			continue;
		t = &l->tensors[buckets[at]];
		if (t->name_size == size && !memcmp(l->strings + t->name, name, size))
			return -EEXIST;
	}
	return -E2BIG;
}

/* The bucket for a hash in a table with none of its name. False: the chain is too long. */
static bool empty_bucket(const uint32_t *buckets, uint32_t n_buckets, uint32_t hash, uint32_t *ret)
{
	for (unsigned i = 0; i < LAYOUT_PROBES_MAX; i++) {
		*ret = (hash + i) & (n_buckets - 1);
		if (buckets[*ret] == LAYOUT_NONE)
			return true;
	}
	return false;
}

/* A table of this size with all tensors in it. No two have one name, so that none is compared. */
static int make_buckets(const struct weightd_layout *l, uint32_t n_buckets, uint32_t **ret)
{
	cleanup(freep) uint32_t *buckets = malloc(n_buckets * sizeof(*buckets));
	uint32_t at;

	if (!buckets)
		return -ENOMEM;
	memset(buckets, 0xff, n_buckets * sizeof(*buckets)); /* LAYOUT_NONE */
	for (uint32_t i = 0; i < l->n_tensors; i++) {
		if (!empty_bucket(buckets, n_buckets, l->hashes[i], &at))
			return -E2BIG;
		buckets[at] = i;
	}
	*ret = take_ptr(buckets);
	return 0;
}

/*
 * Makes room in the index for one more name, at most half full, and finds its bucket. A name that is
 * refused changes nothing: the size of the table is a part of the hash.
 */
static int index_name(struct weightd_layout *l, const char *name, size_t size, uint32_t *ret)
{
	cleanup(freep) uint32_t *grown = NULL;
	uint32_t n_buckets = l->n_buckets;
	int r;

	l->hashes[l->n_tensors] =
		layout_name_hash(name, size); /* that of the next tensor; room was made */
	r = free_bucket(l, l->buckets, n_buckets, name, size, ret);

	if (r == 0 && n_buckets / 2 < l->n_tensors + 1)
		r = -E2BIG;
	while (r == -E2BIG && n_buckets / SPARSEST <= l->n_tensors) {
		free(take_ptr(grown));
		r = make_buckets(l, n_buckets *= 2, &grown);
		if (r == 0)
			r = free_bucket(l, grown, n_buckets, name, size, ret);
	}
	if (r == 0 && grown) {
		free(l->buckets);
		l->buckets = take_ptr(grown);
		l->n_buckets = n_buckets;
	}
	return r == -E2BIG ? -EINVAL : r;
}

/* Appends a string and its NUL; room was made. */
static uint64_t put_string(struct weightd_layout *l, const char *s, size_t size)
{
	uint64_t at = l->strings_size;

	memcpy(l->strings + at, s, size);
	l->strings[at + size] = '\0';
	l->strings_size += size + 1;
	return at;
}

/* True for the unit of the last tensor that has one, which was checked then. */
static bool is_last_unit(const struct weightd_layout *l, const char *unit, size_t size)
{
	const struct layout_unit *last = l->n_units ? &l->units[l->n_units - 1] : NULL;

	return last && last->name_size == size && !memcmp(l->strings + last->name, unit, size);
}

/* The module block: one entry for a run of tensors that share it. */
static uint32_t put_unit(struct weightd_layout *l, const char *unit, size_t size)
{
	if (size == 0)
		return LAYOUT_NONE;
	if (!is_last_unit(l, unit, size))
		l->units[l->n_units++] = (struct layout_unit){
			.name = put_string(l, unit, size),
			.name_size = (uint32_t)size,
		};
	return l->n_units - 1;
}

/* Everything that can fail, before anything changes. */
static int layout_prepare(struct weightd_layout *l, const char *name, const char *unit,
			  uint32_t n_dims, uint32_t *ret_bucket)
{
	size_t name_size = strlen(name), unit_size = strlen(unit);
	int r;

	if (!layout_name_ok(name, name_size) || n_dims > LAYOUT_DIMS_MAX)
		return -EINVAL;
	if (unit_size && !is_last_unit(l, unit, unit_size) && !layout_name_ok(unit, unit_size))
		return -EINVAL;
	if (l->n_tensors >= LAYOUT_TENSORS_MAX)
		return -EOVERFLOW;
	r = layout_builder_reserve(l, 1, n_dims, name_size + unit_size + 2);
	if (r == 0)
		r = layout_reserve(&l->units, sizeof(*l->units), l->n_units, 1, &l->units_room);
	if (r == 0)
		r = index_name(l, name, name_size, ret_bucket);
	return r;
}

static void layout_append(struct weightd_layout *l, const char *name, const char *unit,
			  uint32_t bucket, struct layout_tensor t)
{
	t.unit = put_unit(l, unit, strlen(unit));
	t.name_size = (uint32_t)strlen(name);
	t.name = put_string(l, name, t.name_size);
	l->buckets[bucket] = l->n_tensors;
	l->tensors[l->n_tensors++] = t;
}

int weightd_layout_add(struct weightd_layout *l, const char *name, enum weightd_dtype dtype,
		       uint32_t n_dims, const uint64_t *shape, enum weightd_role role,
		       const char *unit)
{
	struct layout_tensor t = {
		.tied_to = LAYOUT_NONE,
		.dtype = (uint8_t)dtype,
		.role = (uint8_t)role,
		.n_dims = (uint8_t)n_dims,
	};
	uint64_t end;
	uint32_t bucket;
	int r;

	if (role < WEIGHTD_PARAM || role > WEIGHTD_BUFFER || n_dims > LAYOUT_DIMS_MAX ||
	    !dtype_name((unsigned)dtype))
		return -EINVAL;
	r = dtype_tensor_size((unsigned)dtype, n_dims, shape, &t.n_bytes);
	if (r < 0)
		return r;
	if (!num_align_up(l->end, l->alignment, &t.offset) ||
	    __builtin_add_overflow(t.offset, t.n_bytes, &end) ||
	    end > DIGEST_DATA_MAX - LAYOUT_ALIGNMENT_MAX)
		return -EOVERFLOW;
	r = layout_prepare(l, name, unit ? unit : "", n_dims, &bucket);
	if (r < 0)
		return r;
	t.dims = l->n_dims;
	if (n_dims)
		memcpy(l->dims + l->n_dims, shape, n_dims * sizeof(*shape));
	l->n_dims += n_dims;
	l->end = end;
	layout_append(l, name, unit ? unit : "", bucket, t);
	return 0;
}

int weightd_layout_tie(struct weightd_layout *l, const char *name, uint32_t index, const char *unit)
{
	struct layout_tensor t;
	uint32_t bucket;
	int r;

	if (index >= l->n_tensors)
		return -EINVAL;
	r = layout_prepare(l, name, unit ? unit : "", 0, &bucket);
	if (r < 0)
		return r;
	t = l->tensors[index];
	if (t.tied_to == LAYOUT_NONE)
		t.tied_to = index;
	layout_append(l, name, unit ? unit : "", bucket, t);
	return 0;
}

static struct layout_header make_header(const struct weightd_layout *l)
{
	return (struct layout_header){
		.magic = LAYOUT_MAGIC,
		.abi = LAYOUT_ABI,
		.data_size = weightd_layout_n_bytes(l),
		.strings_size = l->strings_size,
		.alignment = l->alignment,
		.n_tensors = l->n_tensors,
		.n_dims = l->n_dims,
		.n_units = l->n_units,
		.n_buckets = l->n_buckets,
	};
}

/* As it is read. `header` lives as long. */
static struct layout view_of(const struct weightd_layout *l, const struct layout_header *header)
{
	return (struct layout){
		.header = header,
		.tensors = l->tensors,
		.dims = l->dims,
		.units = l->units,
		.buckets = l->buckets,
		.strings = l->strings,
	};
}

/* Moves all tensors to where they begin at another alignment, and ties with them. */
static int layout_move(struct weightd_layout *l)
{
	l->end = 0;
	for (uint32_t i = 0; i < l->n_tensors; i++) {
		struct layout_tensor *t = &l->tensors[i];

		if (t->tied_to != LAYOUT_NONE) {
			t->offset = l->tensors[t->tied_to].offset;
			continue;
		}
		if (!num_align_up(l->end, l->alignment, &t->offset) ||
		    __builtin_add_overflow(t->offset, t->n_bytes, &l->end) ||
		    l->end > DIGEST_DATA_MAX - LAYOUT_ALIGNMENT_MAX)
			return -EOVERFLOW;
	}
	return 0;
}

int layout_builder_realign(const struct weightd_layout *from, uint64_t alignment,
			   struct weightd_layout **ret)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = NULL;
	struct layout_header header = make_header(from);
	struct layout view = view_of(from, &header);
	int r = layout_builder_new(alignment, &l);

	if (r < 0)
		return r;
	free(take_ptr(l->buckets));
	r = take_sections(l, &view);
	l->alignment = (uint32_t)alignment;
	l->ends_tight = false;
	if (r == 0)
		r = take_hashes(l, from->hashes);
	if (r == 0)
		r = layout_move(l);
	if (r == 0)
		*ret = take_ptr(l);
	return r;
}

uint32_t weightd_layout_n_tensors(const struct weightd_layout *l)
{
	return l->n_tensors;
}

uint64_t weightd_layout_n_bytes(const struct weightd_layout *l)
{
	if (l->ends_tight)
		return l->end;
	return (l->end + l->alignment - 1) & ~(uint64_t)(l->alignment - 1);
}

int weightd_layout_tensor(const struct weightd_layout *l, uint32_t index, struct weightd_tensor *ret)
{
	struct layout_header header = make_header(l);
	struct layout view = view_of(l, &header);

	return tensor_get(&view, NULL, index, ret);
}

int weightd_layout_compare(const struct weightd_layout *l, const struct weightd_layout *other,
			   char *ret_text, size_t size)
{
	struct layout_header header = make_header(l), other_header = make_header(other);
	struct layout view = view_of(l, &header), other_view = view_of(other, &other_header);
	struct difference d;
	int r = difference_find(&view, &other_view, &d);

	if (r < 0)
		return r;
	if (size > 0)
		difference_describe(&d, &view, &other_view, "this layout", "the other", ret_text,
				    size);
	return r > 0 ? -EPROTOTYPE : 0;
}

static void *layout_put(void *at, const void *data, size_t size)
{
	if (size)
		memcpy(at, data, size);
	return (char *)at + size;
}

int weightd_layout_image(const struct weightd_layout *l, void **ret_image, uint64_t *ret_size)
{
	struct layout_header header = make_header(l);
	cleanup(freep) char *image = NULL;
	uint64_t size;
	void *p;

	if (l->n_tensors == 0)
		return -EINVAL;
	if (!layout_image_size(&header, &size))
		return -EOVERFLOW;
	image = malloc(size);
	if (!image)
		return -ENOMEM;
	header.total_size = size;
	p = layout_put(image, &header, sizeof(header));
	p = layout_put(p, l->tensors, l->n_tensors * sizeof(*l->tensors));
	p = layout_put(p, l->dims, l->n_dims * sizeof(*l->dims));
	p = layout_put(p, l->units, l->n_units * sizeof(*l->units));
	p = layout_put(p, l->buckets, l->n_buckets * sizeof(*l->buckets));
	(void)layout_put(p, l->strings, l->strings_size);
	layout_hash(image, size, ((struct layout_header *)image)->hash);
	*ret_image = take_ptr(image);
	*ret_size = size;
	return 0;
}

int weightd_layout_hash(const struct weightd_layout *l, uint8_t ret_hash[WEIGHTD_DIGEST_SIZE])
{
	cleanup(freep) void *image = NULL;
	uint64_t size;
	int r = weightd_layout_image(l, &image, &size);

	if (r == 0)
		memcpy(ret_hash, ((struct layout_header *)image)->hash, HASH_SIZE);
	return r;
}
