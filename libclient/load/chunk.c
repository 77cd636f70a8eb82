#include "libclient/load/chunk.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

/* --- Ranges ------------------------------------------------------------------------------------- */

static bool range_takes(struct chunk_range *last, const struct chunk_range *next)
{
	if (last->file != next->file || next->offset < last->end ||
	    next->offset - last->end > CHUNK_GAP_MAX)
		return false;
	last->is_one &= next->offset == last->end &&
			next->offset - last->offset == next->dest - last->dest;
	last->end = next->end;
	return true;
}

bool chunk_find_ranges(const struct plan *plan, uint64_t begin, uint64_t end,
		       struct chunk_ranges *ret)
{
	uint64_t n_read = 0;

	ret->n = 0;
	ret->n_bytes = 0;
	for (size_t i = plan_find_piece(plan, begin); i < plan->n_pieces; i++) {
		struct plan_piece piece;
		struct chunk_range next;

		if (plan->pieces[i].dest >= end)
			break;
		if (plan->pieces[i].cut)
			return false;
		piece = plan_clip(&plan->pieces[i], begin, end);
		next = (struct chunk_range){
			.file = piece.file,
			.offset = piece.offset,
			.end = piece.offset + piece.size,
			.dest = piece.dest,
			.is_one = true,
		};
		ret->n_bytes += piece.size;
		if (ret->n > 0 && range_takes(&ret->list[ret->n - 1], &next))
			continue;
		if (ret->n == CHUNK_RANGES_MAX)
			return false;
		ret->list[ret->n++] = next;
	}
	for (unsigned i = 0; i < ret->n; i++)
		n_read += ret->list[i].end - ret->list[i].offset;
	return ret->n > 0 && n_read <= CHUNK_READ_MAX;
}

/* --- Plans of reads ----------------------------------------------------------------------------- */

static uint64_t align_down(uint64_t n, uint32_t align)
{
	return n & ~(uint64_t)(align - 1);
}

static uint64_t align_up(uint64_t n, uint32_t align)
{
	return align_down(n + align - 1, align);
}

static void add_read(struct chunk *c, const struct plan *plan, uint32_t file, uint64_t offset,
		     uint64_t end, char *to)
{
	const uint64_t left = plan->files[file].file.identity.size - offset;

	assert(c->n_reads < CHUNK_RANGES_MAX);
	c->reads[c->n_reads++] = (struct chunk_read){
		.chunk = c,
		.file = file,
		.to = to,
		.offset = offset,
		.size = end - offset,
		.wanted = end - offset < left ? end - offset : left,
	};
}

void chunk_plan_staged(struct chunk *c, const struct plan *plan, const struct direct *files)
{
	char *to = c->stage;

	c->n_reads = 0;
	for (unsigned i = 0; i < c->ranges.n; i++) {
		const struct chunk_range *range = &c->ranges.list[i];
		const uint32_t align = files[range->file].align;
		const uint64_t offset = align_down(range->offset, align);
		const uint64_t end = align_up(range->end, align);

		/* Files of several file systems have several alignments. */
		to = c->stage + align_up((uint64_t)(to - c->stage), align);
		add_read(c, plan, range->file, offset, end, to);
		to += end - offset;
	}
	assert(to <= c->stage + CHUNK_STAGE_SIZE);
}

void chunk_plan_in_place(struct chunk *c, const struct plan *plan, const struct direct *files,
			 char *to, bool joins_before, bool joins_next)
{
	const struct chunk_range *range = &c->ranges.list[0];
	const uint32_t align = files[range->file].align;
	const uint64_t begin = align_up(range->offset, align);
	const uint64_t end = joins_next ? align_up(range->end, align)
					: align_down(range->end, align);

	assert(c->ranges.n == 1 && range->is_one && begin < end);
	c->n_reads = 0;
	add_read(c, plan, range->file, begin, end, to + (begin - range->offset));
	if (!joins_before && begin > range->offset)
		add_read(c, plan, range->file, begin - align, begin, c->stage);
	if (end < range->end)
		add_read(c, plan, range->file, end, end + align, c->stage + align);
}

/* --- Reading ------------------------------------------------------------------------------------ */

bool chunk_is_refused(int r)
{
	return r == -EINVAL || r == -EOPNOTSUPP || r == -ENOSYS || r == -EPERM || r == -ENOMEM ||
	       r == -EAGAIN;
}

int chunk_read_direct(struct chunk_read *read, const struct file *f, const struct direct *d,
		      struct pace *pace, struct sentence *s)
{
	const uint64_t left = read->size - read->done, most = pace_most(pace);
	const uint64_t size = left < most ? left : most;
	ssize_t n;

	if (read->done >= read->wanted || read->done % d->align != 0)
		return 0;
	if (pace_take(pace, size) < 0)
		return -ECANCELED;
	do
		n = pread(d->fd, read->to + read->done, size, (off_t)(read->offset + read->done));
	while (n < 0 && errno == EINTR);
	if (n < 0 && !chunk_is_refused(-errno))
		return file_read_failed(f, read->offset + read->done, -errno, s);
	if (n <= 0)
		return 0;
	read->done += (uint64_t)n;
	return (int)n;
}

/* --- Copying ------------------------------------------------------------------------------------ */

/* The byte of the stage that has this one of a file. */
static const char *stage_find(const struct chunk *c, uint32_t file, uint64_t offset, uint64_t size)
{
	for (unsigned i = 0; i < c->n_reads; i++) {
		const struct chunk_read *read = &c->reads[i];

		if (read->file == file && offset >= read->offset &&
		    offset + size <= read->offset + read->wanted)
			return read->to + (offset - read->offset);
	}
	assert(false);
	return NULL;
}

void chunk_copy(const struct chunk *c, const struct plan *plan, uint64_t from, uint64_t n, char *at,
		bool with_zeros)
{
	const uint64_t end = from + n;
	uint64_t filled = from;

	for (size_t i = plan_find_piece(plan, from); i < plan->n_pieces; i++) {
		struct plan_piece piece;

		if (plan->pieces[i].dest >= end)
			break;
		piece = plan_clip(&plan->pieces[i], from, end);
		if (with_zeros)
			memset(at + (filled - from), 0, piece.dest - filled);
		memcpy(at + (piece.dest - from),
		       stage_find(c, piece.file, piece.offset, piece.size), piece.size);
		filled = piece.dest + piece.size;
	}
	if (with_zeros)
		memset(at + (filled - from), 0, end - filled);
}

void chunk_copy_ends(const struct chunk *c, char *to)
{
	const struct chunk_range *range = &c->ranges.list[0];

	for (unsigned i = 1; i < c->n_reads; i++) {
		const struct chunk_read *read = &c->reads[i];
		uint64_t begin = read->offset > range->offset ? read->offset : range->offset;
		uint64_t end = read->offset + read->size;

		if (end > range->end)
			end = range->end;
		memcpy(to + (begin - range->offset), read->to + (begin - read->offset), end - begin);
	}
}
