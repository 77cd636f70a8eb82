/*
 * Both ways to draw a patch end in the same data: for each block, the changed units of two bytes,
 * and the new bytes. The encoding with the fewest bytes is chosen from these. Each block is
 * compared twice, once to find the size of the patch and once to write it. That is cheaper than
 * memory for a draft that may be as large as the version.
 */
#include "server/sync/base/patch.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

#define UNIT 2 /* bytes: the smallest element that is compared */
#define UNITS_OF_MARK 64
#define N_MARKS (PATCH_BLOCK_SIZE / UNIT / UNITS_OF_MARK)
#define BYTES_OF_MARK ((size_t)(UNITS_OF_MARK * UNIT))
#define BLOCKS_OF_LEAF (MERKLE_LEAF_SIZE / PATCH_BLOCK_SIZE)
#define EVERY_OTHER 0x5555555555555555u
#define SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static const char magic[8] = "wdpatch\1";

enum mode {
	MODE_NONE, /* in a draft: the block does not change */
	MODE_SPARSE2, /* elements of two bytes */
	MODE_SPARSE4,
	MODE_DENSE,
};

struct header {
	char magic[8];
	uint64_t n_bytes;
	uint64_t n_blocks;
	uint64_t n_changed;
	uint8_t base[MERKLE_HASH_SIZE];
	uint8_t result[MERKLE_HASH_SIZE];
	uint8_t zero[32];
};
static_assert(sizeof(struct header) == PATCH_HEADER_SIZE, "no padding");

struct entry {
	uint64_t index;
	uint32_t count;
	uint32_t mode;
};
static_assert(sizeof(struct entry) == 16, "no padding");

/* A block of a draft. */
struct view {
	uint64_t marks[N_MARKS]; /* a bit for each unit that changes */
	const uint8_t *bytes; /* the new bytes; undefined in units that do not change */
	size_t size;
	uint8_t own[PATCH_BLOCK_SIZE];
};

static uint64_t n_blocks_of(uint64_t n_bytes)
{
	return n_bytes / PATCH_BLOCK_SIZE + (n_bytes % PATCH_BLOCK_SIZE != 0);
}

static size_t block_size(uint64_t n_bytes, uint64_t index)
{
	uint64_t left = n_bytes - index * PATCH_BLOCK_SIZE;

	return left < PATCH_BLOCK_SIZE ? left : PATCH_BLOCK_SIZE;
}

/* A block that ends within an element is sent whole. */
static bool may_be_sparse(size_t size)
{
	return size % 4 == 0;
}

static uint64_t payload_size(const struct patch_block *b, size_t size)
{
	switch (b->mode) {
	case MODE_SPARSE2:
		return (uint64_t)b->count * (2 + 2);
	case MODE_SPARSE4:
		return (uint64_t)b->count * (2 + 4);
	case MODE_DENSE:
		return size;
	default:
		return 0;
	}
}

/* --- Reading ---------------------------------------------------------------------------------- */

static int check_block(const struct patch_block *b, size_t size)
{
	if (b->mode == MODE_DENSE)
		return b->count == 0 ? 0 : -EBADMSG;
	if ((b->mode != MODE_SPARSE2 && b->mode != MODE_SPARSE4) || !may_be_sparse(size))
		return -EBADMSG;
	return b->count && b->count <= size / (b->mode == MODE_SPARSE2 ? 2 : 4) ? 0 : -EBADMSG;
}

/* Reads the table once: other processes may write this memory. */
static int read_table(struct patch *p, uint64_t size)
{
	const uint8_t *at = p->data + PATCH_HEADER_SIZE;
	uint64_t offset = PATCH_HEADER_SIZE + p->n_blocks * sizeof(struct entry);

	for (uint64_t i = 0; i < p->n_blocks; i++, at += sizeof(struct entry)) {
		struct patch_block *b = &p->blocks[i];
		struct entry e;
		uint64_t n;

		memcpy(&e, at, sizeof(e));
		*b = (struct patch_block){.index = le64toh(e.index),
					  .offset = offset,
					  .count = le32toh(e.count),
					  .mode = le32toh(e.mode)};
		if (b->index >= n_blocks_of(p->n_bytes) || (i > 0 && b->index <= b[-1].index) ||
		    check_block(b, block_size(p->n_bytes, b->index)) < 0)
			return -EBADMSG;
		n = payload_size(b, block_size(p->n_bytes, b->index));
		if (n > size - offset)
			return -EBADMSG;
		offset += n;
	}
	return offset == size ? 0 : -EBADMSG;
}

int patch_open(const void *data, uint64_t size, struct patch *ret)
{
	struct patch p = {.data = data};
	struct header h;
	int r;

	if (size < sizeof(h))
		return -EBADMSG;
	memcpy(&h, data, sizeof(h));
	p.n_bytes = le64toh(h.n_bytes);
	p.n_blocks = le64toh(h.n_blocks);
	p.n_changed = le64toh(h.n_changed);
	if (memcmp(h.magic, magic, sizeof(magic)) != 0 || p.n_bytes > INT64_MAX ||
	    p.n_changed > p.n_bytes || p.n_blocks > n_blocks_of(p.n_bytes) ||
	    p.n_blocks > (size - sizeof(h)) / sizeof(struct entry))
		return -EBADMSG;
	memcpy(p.base, h.base, sizeof(p.base));
	memcpy(p.result, h.result, sizeof(p.result));
	p.blocks = calloc(p.n_blocks + 1, sizeof(*p.blocks));
	if (!p.blocks)
		return -ENOMEM;
	r = read_table(&p, size);
	if (r < 0)
		patch_close(&p);
	else
		*ret = p;
	return r;
}

void patch_close(struct patch *p)
{
	free(p->blocks);
	*p = (struct patch){0};
}

/* --- Applying --------------------------------------------------------------------------------- */

static void mark_all(uint64_t marks[N_MARKS], size_t size)
{
	size_t n = (size + UNIT - 1) / UNIT;

	for (size_t i = 0; i < n / UNITS_OF_MARK; i++)
		marks[i] = UINT64_MAX;
	if (n % UNITS_OF_MARK)
		marks[n / UNITS_OF_MARK] |= ((uint64_t)1 << n % UNITS_OF_MARK) - 1;
}

static inline int put_sparse(const uint8_t *at, uint32_t count, size_t width, uint8_t *to,
			     size_t size, uint64_t *marks)
{
	const uint8_t *values = at + 2 * (size_t)count;
	const uint64_t units = width == 4 ? 3 : 1;

	for (size_t i = 0; i < count; i++) {
		uint16_t raw;
		size_t index, unit;

		memcpy(&raw, at + 2 * i, sizeof(raw));
		index = le16toh(raw);
		if ((index + 1) * width > size)
			return -EBADMSG;
		memcpy(to + index * width, values + i * width, width);
		unit = index * width / UNIT;
		if (marks)
			marks[unit / UNITS_OF_MARK] |= units << unit % UNITS_OF_MARK;
	}
	return 0;
}

/* Writes the new values into the bytes of a block, and their marks, unless that is NULL. */
static int patch_put(const struct patch *p, const struct patch_block *b, uint8_t *to,
		     uint64_t *marks)
{
	const size_t size = block_size(p->n_bytes, b->index);
	const uint8_t *at = p->data + b->offset;

	if (b->mode == MODE_SPARSE2)
		return put_sparse(at, b->count, 2, to, size, marks);
	if (b->mode == MODE_SPARSE4)
		return put_sparse(at, b->count, 4, to, size, marks);
	memcpy(to, at, size);
	if (marks)
		mark_all(marks, size);
	return 0;
}

/* Returns the first block that is not before `index`. */
static uint64_t patch_find(const struct patch *p, uint64_t index)
{
	uint64_t low = 0, high = p->n_blocks;

	while (low < high) {
		uint64_t middle = low + (high - low) / 2;

		if (p->blocks[middle].index < index)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

int patch_apply(const struct patch *p, uint64_t leaf, uint8_t *bytes)
{
	const uint64_t first = leaf * BLOCKS_OF_LEAF;
	int r = 0;

	for (uint64_t i = patch_find(p, first); r == 0 && i < p->n_blocks; i++) {
		const struct patch_block *b = &p->blocks[i];

		if (b->index - first >= BLOCKS_OF_LEAF)
			break;
		r = patch_put(p, b, bytes + (b->index - first) * PATCH_BLOCK_SIZE, NULL);
	}
	return r;
}

/* --- Drawing ---------------------------------------------------------------------------------- */

static uint64_t mark_word(uint64_t x)
{
	return (uint64_t)((x & 0xffff) != 0) | (uint64_t)((x >> 16 & 0xffff) != 0) << 1 |
	       (uint64_t)((x >> 32 & 0xffff) != 0) << 2 | (uint64_t)(x >> 48 != 0) << 3;
}

/* Optimized for words that are equal, as most are. */
static void patch_compare(const uint8_t *x, const uint8_t *y, size_t size, uint64_t marks[N_MARKS])
{
	size_t i = 0;

	for (; i + 8 <= size; i += 8) {
		uint64_t a, b;

		memcpy(&a, x + i, sizeof(a));
		memcpy(&b, y + i, sizeof(b));
		if (a != b)
			marks[i / BYTES_OF_MARK] |= mark_word(le64toh(a ^ b))
						    << i % BYTES_OF_MARK / UNIT;
	}
	for (; i < size; i++)
		if (x[i] != y[i])
			marks[i / BYTES_OF_MARK] |= (uint64_t)1 << i % BYTES_OF_MARK / UNIT;
}

static int patch_draft_look(const struct patch_draft *d, uint64_t index, struct view *v)
{
	const uint64_t offset = index * PATCH_BLOCK_SIZE;
	int r = 0;

	memset(v->marks, 0, sizeof(v->marks));
	v->size = block_size(d->n_bytes, index);
	if (d->to) {
		v->bytes = d->to + offset;
		patch_compare(d->from + offset, v->bytes, v->size, v->marks);
		return 0;
	}
	v->bytes = v->own;
	for (unsigned i = 0; r == 0 && i < d->n_patches; i++) {
		const struct patch *p = &d->patches[i];
		uint64_t at = patch_find(p, index);

		if (at < p->n_blocks && p->blocks[at].index == index)
			r = patch_put(p, &p->blocks[at], v->own, v->marks);
	}
	return r;
}

/* Chooses the smallest encoding. Without `knows_all` it must not contain unknown bytes. */
static void view_measure(const struct view *v, bool knows_all, struct patch_block *b)
{
	const bool sparse = may_be_sparse(v->size);
	size_t n2 = 0, n4 = 0, best = SIZE_MAX;

	for (size_t i = 0; i < N_MARKS; i++) {
		n2 += (size_t)__builtin_popcountll(v->marks[i]);
		n4 += (size_t)__builtin_popcountll((v->marks[i] | v->marks[i] >> 1) & EVERY_OTHER);
	}
	if (!n2)
		return;
	if (sparse) {
		*b = (struct patch_block){b->index, 0, (uint32_t)n2, MODE_SPARSE2};
		best = (2 + 2) * n2;
	}
	if (sparse && (2 + 4) * n4 < best && (knows_all || n2 == 2 * n4)) {
		*b = (struct patch_block){b->index, 0, (uint32_t)n4, MODE_SPARSE4};
		best = (2 + 4) * n4;
	}
	if (v->size <= best && (knows_all || n2 * UNIT >= v->size))
		*b = (struct patch_block){b->index, 0, (uint32_t)n2, MODE_DENSE};
}

static bool is_in(const struct ranges *ranges, uint64_t offset)
{
	size_t low = 0, high = ranges->n;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct range *r = &ranges->at[middle];

		if (offset < r->offset)
			high = middle;
		else if (offset - r->offset >= r->size)
			low = middle + 1;
		else
			return true;
	}
	return false;
}

static void measure_leaf(void *userdata, uint64_t leaf)
{
	struct patch_draft *d = userdata;
	const uint64_t first = leaf * BLOCKS_OF_LEAF, all = n_blocks_of(d->n_bytes);
	struct view v;
	int r = 0;

	if (d->differ && !is_in(d->differ, leaf * MERKLE_LEAF_SIZE))
		return;
	for (uint64_t i = first; r == 0 && i < all && i < first + BLOCKS_OF_LEAF; i++) {
		d->blocks[i].index = i;
		r = patch_draft_look(d, i, &v);
		if (r == 0)
			view_measure(&v, d->to, &d->blocks[i]);
	}
	if (r < 0)
		__atomic_store_n(&d->r, r, __ATOMIC_RELAXED); /* if several fail, any error */
}

/* Computes the offset of each payload; unchanged blocks have none. */
static void lay_out(struct patch_draft *d)
{
	const uint64_t all = n_blocks_of(d->n_bytes);
	uint64_t n = 0;

	for (uint64_t i = 0; i < all; i++)
		if (d->blocks[i].mode != MODE_NONE)
			d->blocks[n++] = d->blocks[i];
	d->n_blocks = n;
	d->size = PATCH_HEADER_SIZE + n * sizeof(struct entry);
	for (uint64_t i = 0; i < n; i++) {
		struct patch_block *b = &d->blocks[i];

		d->n_changed += (uint64_t)b->count * (b->mode == MODE_SPARSE4 ? 4 : UNIT);
		b->count = b->mode == MODE_DENSE ? 0 : b->count;
		b->offset = d->size;
		d->size += payload_size(b, block_size(d->n_bytes, b->index));
	}
	if (d->n_changed > d->n_bytes)
		d->n_changed = d->n_bytes; /* the last unit may be cut */
}

static int patch_draft_run(struct patch_draft *d)
{
	int r;

	d->blocks = calloc(n_blocks_of(d->n_bytes) + 1, sizeof(*d->blocks));
	if (!d->blocks)
		return -ENOMEM;
	merkle_each_leaf(d->n_bytes, measure_leaf, d);
	r = d->r;
	if (r < 0)
		patch_draft_deinit(d);
	else
		lay_out(d);
	return r;
}

int patch_draft_difference(const void *from, const void *to, uint64_t n_bytes,
			   const struct ranges *differ, struct patch_draft *ret)
{
	*ret = (struct patch_draft){.n_bytes = n_bytes, .from = from, .to = to, .differ = differ};
	return patch_draft_run(ret);
}

int patch_draft_union(const struct patch *patches, unsigned n, struct patch_draft *ret)
{
	*ret = (struct patch_draft){.patches = patches, .n_patches = n};
	for (unsigned i = 0; i < n; i++) {
		ret->n_bytes = patches[0].n_bytes;
		if (patches[i].n_bytes != ret->n_bytes)
			return -EBADMSG;
	}
	return patch_draft_run(ret);
}

void patch_draft_deinit(struct patch_draft *d)
{
	free(d->blocks);
	*d = (struct patch_draft){0};
}

/* --- Writing ---------------------------------------------------------------------------------- */

struct writing {
	struct patch_draft *d;
	uint8_t *map;
};

/* Writes a bit per element of `width` bytes as an index; a cut element counts as none. */
static uint32_t write_sparse(const struct view *v, size_t width, uint32_t count, uint8_t *to)
{
	uint8_t *values = to + 2 * (size_t)count;
	uint32_t n = 0;

	for (size_t i = 0; i < N_MARKS; i++) {
		uint64_t m = v->marks[i];

		if (width == 4)
			m = (m | m >> 1) & EVERY_OTHER;
		for (; m && n < count; m &= m - 1, n++) {
			size_t unit = i * UNITS_OF_MARK + (size_t)__builtin_ctzll(m);
			uint16_t index = htole16((uint16_t)(unit * UNIT / width));

			memcpy(to + 2 * (size_t)n, &index, sizeof(index));
			memcpy(values + n * width, v->bytes + unit * UNIT, width);
		}
	}
	return n;
}

static void write_block(struct writing *w, const struct patch_block *b, uint64_t i)
{
	struct entry e = {htole64(b->index), htole32(b->count), htole32(b->mode)};
	struct view v;
	int r = patch_draft_look(w->d, b->index, &v);
	uint32_t n = 0;

	memcpy(w->map + PATCH_HEADER_SIZE + i * sizeof(e), &e, sizeof(e));
	if (r == 0 && b->mode == MODE_DENSE)
		memcpy(w->map + b->offset, v.bytes, v.size);
	else if (r == 0)
		n = write_sparse(&v, b->mode == MODE_SPARSE4 ? 4 : 2, b->count, w->map + b->offset);
	if (r < 0 || n != b->count) /* another process wrote to the source */
		__atomic_store_n(&w->d->r, -EBADMSG, __ATOMIC_RELAXED);
}

static void write_leaf(void *userdata, uint64_t leaf)
{
	struct writing *w = userdata;
	const struct patch all = {.blocks = w->d->blocks, .n_blocks = w->d->n_blocks};
	const uint64_t first = leaf * BLOCKS_OF_LEAF;

	for (uint64_t i = patch_find(&all, first); i < all.n_blocks; i++) {
		if (all.blocks[i].index - first >= BLOCKS_OF_LEAF)
			break;
		write_block(w, &all.blocks[i], i);
	}
}

static int write_all(struct patch_draft *d, const uint8_t base[MERKLE_HASH_SIZE],
		     const uint8_t result[MERKLE_HASH_SIZE], int fd)
{
	struct header h = {.n_bytes = htole64(d->n_bytes),
			   .n_blocks = htole64(d->n_blocks),
			   .n_changed = htole64(d->n_changed)};
	struct writing w = {.d = d};
	void *map = mmap(NULL, d->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (map == MAP_FAILED)
		return -errno;
	w.map = map;
	memcpy(h.magic, magic, sizeof(magic));
	memcpy(h.base, base, sizeof(h.base));
	memcpy(h.result, result, sizeof(h.result));
	memcpy(map, &h, sizeof(h));
	merkle_each_leaf(d->n_bytes, write_leaf, &w);
	(void)munmap(map, d->size);
	return d->r;
}

int patch_draft_write(struct patch_draft *d, const uint8_t base[MERKLE_HASH_SIZE],
		      const uint8_t result[MERKLE_HASH_SIZE], int *ret_fd)
{
	cleanup(fd_closep) int fd = -1;
	int r = fd_memfd("weightd-sync-patch", d->size, &fd);

	if (r == 0)
		r = write_all(d, base, result, fd);
	if (r < 0)
		return r;
	if (fcntl(fd, F_ADD_SEALS, SEALS) < 0)
		return -errno;
	return fd_reopen_readonly(fd, ret_fd);
}
