/*
 * Reads in flight are waited for before anything is freed, also by a load that fails: the kernel writes to their memory, which
 * may belong to somebody else after that. No read writes a byte that belongs to another chunk: a file system that decrypts
 * where it reads would show other bytes for a moment, and these could be digested.
 */
#include "libclient/load/cold.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/num.h"
#include "libclient/load/disk/cached.h"

#define CHUNK_SIZE_MIN (64 * KIB) /* less is not worth a direct read */
#define RING_ENTRIES 64u

/* --- Choice ------------------------------------------------------------------------------------- */

static uint64_t chunk_end(const struct cold *c, uint64_t number)
{
	uint64_t end = (number + 1) * CHUNK_SIZE;

	return end < c->wr->data_size ? end : c->wr->data_size;
}

/* Opens the file if it was not. */
static bool file_is_direct(struct cold *c, uint32_t i)
{
	struct cold_file *f = &c->files[i];

	if (c->plan->files[i].file.remote) {
		c->directs[i].align = 1;
		f->is_refused = f->is_open = true;
	}
	if (!f->is_open && !f->is_refused) {
		f->is_refused = direct_open(&c->plan->files[i].file, &c->directs[i]) < 0;
		f->is_open = !f->is_refused;
	}
	return f->is_open;
}

static uint64_t range_cached(const struct plan *plan, const struct chunk_range *range)
{
	const struct plan_file *f = &plan->files[range->file];

	if (f->n_cached == 0)
		return 0;
	if (f->n_cached == f->file.identity.size)
		return range->end - range->offset;
	return cached_bytes(f->file.fd, range->offset, range->end - range->offset);
}

/* No page of the range alone was cached: those at its ends have bytes of others too. */
static bool range_was_absent(const struct plan *plan, const struct chunk_range *range)
{
	const struct plan_file *f = &plan->files[range->file];
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	const uint64_t begin = (range->offset + page - 1) & ~(page - 1),
		       end = range->end & ~(page - 1);

	return f->n_cached == 0 || begin >= end || cached_bytes(f->file.fd, begin, end - begin) == 0;
}

static bool is_in_place(const struct cold *c, const struct chunk_ranges *ranges, uint64_t begin,
			uint64_t end)
{
	const struct chunk_range *range = &ranges->list[0];
	uintptr_t to = (uintptr_t)c->wr->memory.data + begin;

	return c->wr->memory.location.memory == WIRE_MEMORY_HOST && ranges->n == 1 &&
	       range->is_one && ranges->n_bytes == end - begin &&
	       (to - range->offset) % c->directs[range->file].align == 0;
}

static enum cold_kind kind_of(struct cold *c, uint64_t number, enum weightd_read how,
			      uint32_t *ret_file)
{
	const uint64_t begin = number * CHUNK_SIZE, end = chunk_end(c, number);
	struct chunk_ranges ranges;
	uint64_t n_cached = 0;
	bool is_remote = false;

	if (!chunk_find_ranges(c->plan, begin, end, &ranges))
		return COLD_NOT;
	for (unsigned i = 0; i < ranges.n; i++)
		is_remote |= c->plan->files[ranges.list[i].file].file.remote != NULL;
	if (!is_remote && end - begin < CHUNK_SIZE_MIN)
		return COLD_NOT;
	for (unsigned i = 0; i < ranges.n; i++)
		n_cached += range_cached(c->plan, &ranges.list[i]);
	c->was_absent[number] = n_cached < ranges.n_bytes / 2;
	for (unsigned i = 0; c->was_absent[number] && i < ranges.n; i++)
		c->was_absent[number] = range_was_absent(c->plan, &ranges.list[i]);
	if (how == WEIGHTD_READ_BUFFERED ||
	    (how == WEIGHTD_READ_AUTO && n_cached >= ranges.n_bytes / 2))
		return COLD_NOT;
	for (unsigned i = 0; i < ranges.n; i++)
		if (!file_is_direct(c, ranges.list[i].file))
			return COLD_NOT;
	*ret_file = ranges.list[0].file;
	return is_in_place(c, &ranges, begin, end) ? COLD_IN_PLACE : COLD_STAGED;
}

/* The two bytes around the beginning of the chunk stand side by side in one file. */
static bool is_joined(const struct cold *c, uint64_t number)
{
	const struct plan *plan = c->plan;
	const uint64_t begin = number * CHUNK_SIZE;
	const struct plan_piece *next, *last;

	if (number == 0 || c->kinds[number] != COLD_IN_PLACE || c->kinds[number - 1] < COLD_IN_PLACE)
		return false;
	next = &plan->pieces[plan_find_piece(plan, begin)];
	last = &plan->pieces[plan_find_piece(plan, begin - 1)];
	return next->file == last->file && next->offset - next->dest == last->offset - last->dest;
}

/* The numbers of cold chunks, in turn from each file. `of_file`: their files; the rest of it is scratch. */
static int make_order(struct cold *c, const uint32_t *of_file)
{
	const size_t n_files = c->plan->n_files;
	uint64_t *next = calloc(n_files + 1, sizeof(*next)),
		 *end = calloc(n_files + 1, sizeof(*end));
	uint64_t *by_file = calloc(c->n_chunks, sizeof(*by_file));
	uint64_t n = 0, before = UINT64_MAX;
	int r = next && end && by_file ? 0 : -ENOMEM;

	for (uint64_t i = 0; r == 0 && i < c->n_chunks; i++)
		end[of_file[i]] += c->kinds[i] != COLD_NOT;
	for (size_t f = 0; r == 0 && f < n_files; f++) {
		next[f] = n;
		n += end[f];
		end[f] = next[f];
	}
	for (uint64_t i = 0; r == 0 && i < c->n_chunks; i++)
		if (c->kinds[i] != COLD_NOT)
			by_file[end[of_file[i]]++] = i;
	while (r == 0 && c->n_order != before) {
		before = c->n_order;
		for (size_t f = 0; f < n_files; f++)
			if (next[f] < end[f])
				c->order[c->n_order++] = by_file[next[f]++];
	}
	free(next);
	free(end);
	free(by_file);
	return r;
}

static int choose(struct cold *c, enum weightd_read how)
{
	uint32_t *of_file = calloc(c->n_chunks, sizeof(*of_file));
	int r = of_file ? 0 : -ENOMEM;

	for (uint64_t i = 0; r == 0 && i < c->n_chunks; i++)
		c->kinds[i] = (uint8_t)kind_of(c, i, how, &of_file[i]);
	for (uint64_t i = 0; r == 0 && i < c->n_chunks; i++) {
		bool joined = is_joined(c, i);

		if (joined)
			c->kinds[i] = COLD_JOINED;
		atomic_init(&c->waits[i], joined ? 2 : 1);
	}
	if (r == 0)
		r = make_order(c, of_file);
	free(of_file);
	return r;
}

/* --- Memory ------------------------------------------------------------------------------------- */

/* Its pages come with the first read to them: chunks in place need few. */
static int make_chunks(struct cold *c)
{
	const unsigned n = c->n_order < COLD_IN_FLIGHT_MAX ? (unsigned)c->n_order
							   : COLD_IN_FLIGHT_MAX;
	void *stage;

	c->chunks = calloc(n, sizeof(*c->chunks));
	if (!c->chunks)
		return -ENOMEM;
	stage = mmap(NULL, n * CHUNK_STAGE_SIZE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stage == MAP_FAILED)
		return -ENOMEM;
	if (memchr(c->kinds, COLD_STAGED, c->n_chunks))
		(void)madvise(stage, n * CHUNK_STAGE_SIZE, MADV_HUGEPAGE);
	c->stage = stage;
	c->n_in_flight_max = n;
	for (unsigned i = 0; i < n; i++) {
		c->chunks[i].stage = c->stage + i * CHUNK_STAGE_SIZE;
		c->chunks[i].next = c->free;
		c->free = &c->chunks[i];
	}
	return 0;
}

int cold_init(struct cold *c, const struct plan *plan, struct weightd_writer *wr,
	      struct supply *supply, struct pace *pace, enum weightd_read how)
{
	int r = 0;

	*c = (struct cold){.plan = plan, .wr = wr, .supply = supply, .pace = pace};
	(void)pthread_mutex_init(&c->lock, NULL);
	(void)pthread_cond_init(&c->ready, NULL);
	(void)pthread_cond_init(&c->freed, NULL);
	c->n_chunks = (wr->data_size + CHUNK_SIZE - 1) / CHUNK_SIZE;
	c->kinds = calloc(c->n_chunks + 1, sizeof(*c->kinds));
	c->was_absent = calloc(c->n_chunks + 1, sizeof(*c->was_absent));
	c->waits = calloc(c->n_chunks + 1, sizeof(*c->waits));
	c->order = calloc(c->n_chunks + 1, sizeof(*c->order));
	c->files = calloc(plan->n_files + 1, sizeof(*c->files));
	c->directs = calloc(plan->n_files + 1, sizeof(*c->directs));
	if (!c->kinds || !c->was_absent || !c->waits || !c->order || !c->files || !c->directs)
		return -ENOMEM;
	for (size_t i = 0; i < plan->n_files; i++)
		c->directs[i] = (struct direct)DIRECT_INIT;
	if (c->n_chunks > 0)
		r = choose(c, how);
	if (r < 0 || c->n_order == 0)
		return r;
	r = make_chunks(c);
	if (r == 0 && pace->rate == 0)
		c->ring_error = ring_new(RING_ENTRIES, &c->ring);
	return r;
}

void cold_deinit(struct cold *c)
{
	if (!c->plan)
		return;
	assert(!c->has_thread);
	c->ring = ring_free(c->ring);
	if (c->stage)
		(void)munmap(c->stage, c->n_in_flight_max * CHUNK_STAGE_SIZE);
	for (size_t i = 0; c->directs && i < c->plan->n_files; i++)
		direct_close(&c->directs[i]);
	free(c->directs);
	free(c->files);
	free(c->chunks);
	free(c->order);
	free(c->waits);
	free(c->was_absent);
	free(c->kinds);
	(void)pthread_cond_destroy(&c->freed);
	(void)pthread_cond_destroy(&c->ready);
	(void)pthread_mutex_destroy(&c->lock);
	*c = (struct cold){0};
}

/* --- Reading ------------------------------------------------------------------------------------ */

/* The other files of that file system are refused the same. */
static void refuse(struct cold *c, uint32_t file)
{
	const dev_t dev = c->plan->files[file].file.identity.dev;

	for (size_t i = 0; i < c->plan->n_files; i++)
		if (c->plan->files[i].file.identity.dev == dev)
			c->files[i].is_refused = true;
}

static void chunk_begin(struct cold *c, struct chunk *chunk, uint64_t number)
{
	char *to = (char *)c->wr->memory.data + number * CHUNK_SIZE;
	bool found;

	chunk->number = number;
	chunk->begin = number * CHUNK_SIZE;
	chunk->end = chunk_end(c, number);
	chunk->in_place = c->kinds[number] != COLD_STAGED;
	chunk->n_pending = 0;
	chunk->n_counted = 0;
	found = chunk_find_ranges(c->plan, chunk->begin, chunk->end, &chunk->ranges);
	assert(found); /* as it was when it was chosen */
	if (chunk->in_place)
		chunk_plan_in_place(chunk, c->plan, c->directs, to, c->kinds[number] == COLD_JOINED,
				    number + 1 < c->n_chunks && c->kinds[number + 1] == COLD_JOINED);
	else
		chunk_plan_staged(chunk, c->plan, c->directs);
}

/* Queues the rest of a read. */
static int submit(struct cold *c, struct chunk_read *read)
{
	int r = ring_read(c->ring, &(struct ring_read){
					   .fd = c->directs[read->file].fd,
					   .to = read->to + read->done,
					   .size = (uint32_t)(read->size - read->done),
					   .offset = read->offset + read->done,
					   .tag = read,
				   });

	c->n_reads += r == 0;
	return r;
}

static int submit_chunk(struct cold *c, struct chunk *chunk)
{
	int r = 0;

	for (unsigned i = 0; r == 0 && i < chunk->n_reads; i++) {
		if (c->files[chunk->reads[i].file].is_refused)
			continue;
		r = submit(c, &chunk->reads[i]);
		chunk->n_pending += r == 0;
	}
	return r;
}

/* The thread that takes the chunk reads the rest. */
static int read_done(struct cold *c, struct chunk_read *read, int result)
{
	const uint32_t align = c->directs[read->file].align;

	if (result > 0)
		read->done += (uint64_t)result;
	if (result == -EINTR || (result > 0 && read->done < read->wanted && read->done % align == 0))
		return submit(c, read);
	if (result < 0 && chunk_is_refused(result))
		refuse(c, read->file);
	else if (result < 0)
		read->r = result;
	read->chunk->n_pending--;
	return 0;
}

static void push_done(struct cold *c, struct chunk *chunk)
{
	chunk->next = NULL;
	if (c->done)
		c->last_done->next = chunk;
	else
		c->done = chunk;
	c->last_done = chunk;
	(void)pthread_cond_signal(&c->ready);
}

static struct chunk *pop_free(struct cold *c)
{
	struct chunk *chunk = c->free;

	if (chunk)
		c->free = chunk->next;
	return chunk;
}

/* The next chunk to read, with memory for it; NULL: there is none of either. Waits for memory if no read is in flight. */
static struct chunk *next_to_read(struct cold *c, bool wait)
{
	struct chunk *chunk = NULL;
	uint64_t number = 0;

	(void)pthread_mutex_lock(&c->lock);
	while (wait && !c->free && !c->is_stopped && c->n_begun < c->n_order)
		(void)pthread_cond_wait(&c->freed, &c->lock);
	if (!c->is_stopped && c->n_begun < c->n_order)
		chunk = pop_free(c);
	if (chunk)
		number = c->order[c->n_begun++];
	(void)pthread_mutex_unlock(&c->lock);
	if (chunk)
		chunk_begin(c, chunk, number);
	return chunk;
}

/* Hands the chunk over if it has no read in flight. */
static void hand_over(struct cold *c, struct chunk *chunk)
{
	if (chunk->n_pending > 0)
		return;
	(void)pthread_mutex_lock(&c->lock);
	push_done(c, chunk);
	(void)pthread_mutex_unlock(&c->lock);
}

/* True if the kernel may write there. Waits for that if no read is in flight; an error is that of supply_await(). */
static int chunk_has_memory(struct cold *c, const struct chunk *chunk)
{
	int r;

	if (!chunk->in_place || supply_has(c->supply, chunk->end))
		return 1;
	if (c->n_reads > 0)
		return 0;
	r = supply_await(c->supply, chunk->end);
	return r < 0 ? r : 1;
}

/* Begins as many chunks as there is memory for. */
static int begin_chunks(struct cold *c)
{
	struct chunk *chunk;
	int r = 1;

	while (r > 0 && (c->next || (c->next = next_to_read(c, c->n_reads == 0)))) {
		r = chunk_has_memory(c, c->next);
		if (r <= 0)
			break;
		chunk = c->next;
		c->next = NULL;
		r = submit_chunk(c, chunk);
		if (r < 0)
			break;
		hand_over(c, chunk);
		r = 1;
	}
	return r < 0 ? r : 0;
}

/* Waits for one read, and hands its chunk over if that was its last. */
static int end_read(struct cold *c)
{
	struct chunk_read *read;
	void *tag;
	int result, r = ring_wait(c->ring, &tag, &result);

	if (r < 0)
		return r;
	read = tag;
	c->n_reads--;
	r = read_done(c, read, result);
	if (r == 0)
		hand_over(c, read->chunk);
	return r;
}

static int read_chunks(struct cold *c)
{
	int r = ring_begin(c->ring);

	if (r == 0)
		r = begin_chunks(c);
	while (r == 0 && c->n_reads > 0) {
		r = end_read(c);
		if (r == 0)
			r = begin_chunks(c);
	}
	if (r < 0)
		cold_stop(c);
	while (c->n_reads > 0 && end_read(c) == 0)
		;
	return r;
}

static void *cold_main(void *arg)
{
	struct cold *c = arg;

	c->r = read_chunks(c);
	return NULL;
}

void cold_start(struct cold *c)
{
	if (!c->ring)
		return;
	c->has_thread = pthread_create(&c->thread, NULL, cold_main, c) == 0;
	if (c->has_thread)
		return;
	c->ring = ring_free(c->ring);
	c->ring_error = -EAGAIN;
}

/* --- Taking ------------------------------------------------------------------------------------- */

/* A chunk whose reads were done, or one to read. NULL: there is none of them now. */
static struct chunk *take_next(struct cold *c)
{
	struct chunk *chunk;

	if (!c->ring) {
		chunk = pop_free(c);
		if (chunk)
			chunk_begin(c, chunk, c->order[c->n_begun++]);
		return chunk;
	}
	chunk = c->done;
	if (chunk)
		c->done = chunk->next;
	return chunk;
}

struct chunk *cold_take(struct cold *c, bool wait)
{
	struct chunk *chunk = NULL;

	(void)pthread_mutex_lock(&c->lock);
	while (!c->is_stopped && c->n_taken < c->n_order) {
		chunk = take_next(c);
		if (chunk || !wait)
			break;
		(void)pthread_cond_wait(&c->ready, &c->lock);
	}
	if (chunk && ++c->n_taken == c->n_order)
		(void)pthread_cond_broadcast(&c->ready);
	(void)pthread_mutex_unlock(&c->lock);
	return chunk;
}

void cold_release(struct cold *c, struct chunk *chunk)
{
	(void)pthread_mutex_lock(&c->lock);
	chunk->next = c->free;
	c->free = chunk;
	(void)pthread_cond_signal(&c->freed);
	if (!c->ring)
		(void)pthread_cond_signal(&c->ready);
	(void)pthread_mutex_unlock(&c->lock);
}

void cold_stop(struct cold *c)
{
	(void)pthread_mutex_lock(&c->lock);
	c->is_stopped = true;
	(void)pthread_cond_broadcast(&c->ready);
	(void)pthread_cond_broadcast(&c->freed);
	(void)pthread_mutex_unlock(&c->lock);
}

int cold_join(struct cold *c, struct sentence *s)
{
	if (c->has_thread)
		(void)pthread_join(c->thread, NULL);
	c->has_thread = false;
	return c->r < 0 ? sentence_set(s, c->r, "reading by io_uring failed: %s", strerror(-c->r))
			: 0;
}

/* --- Finishing ---------------------------------------------------------------------------------- */

/* A first leaf that begins in a block of the chunk before is complete when both chunks are. */
static void digest_first(struct cold *c, uint64_t number)
{
	const uint64_t leaf = number * CHUNK_LEAVES;

	if (atomic_fetch_sub(&c->waits[number], 1) == 1)
		weightd_writer_digest_bytes(c->wr, leaf,
					    (char *)c->wr->memory.data + leaf * DIGEST_LEAF_SIZE);
}

static void finish_in_place(struct cold *c, struct chunk *chunk)
{
	char *to = (char *)c->wr->memory.data + chunk->begin;
	const uint64_t first = chunk->number * CHUNK_LEAVES, next = chunk->number + 1;

	chunk_copy_ends(chunk, to);
	digest_first(c, chunk->number);
	for (uint64_t at = DIGEST_LEAF_SIZE; at < chunk->end - chunk->begin; at += DIGEST_LEAF_SIZE)
		weightd_writer_digest_bytes(c->wr, first + at / DIGEST_LEAF_SIZE, to + at);
	if (next < c->n_chunks && c->kinds[next] == COLD_JOINED)
		digest_first(c, next);
}

/* One stretch of the sink. */
static int finish_stretch(struct cold *c, struct chunk *chunk, struct sink *sink, unsigned thread,
			  uint64_t first, struct sentence *s)
{
	const uint64_t begin = first * DIGEST_LEAF_SIZE;
	uint64_t end = begin + sink->kind->n_leaves * (uint64_t)DIGEST_LEAF_SIZE;
	char *at;
	int r = sink->kind->begin(sink, thread, first, &at, s);

	if (r < 0)
		return r;
	if (end > chunk->end)
		end = chunk->end;
	for (uint64_t leaf = begin; leaf < end; leaf += DIGEST_LEAF_SIZE) {
		const uint64_t n = end - leaf < DIGEST_LEAF_SIZE ? end - leaf : DIGEST_LEAF_SIZE;

		chunk_copy(chunk, c->plan, leaf, n, at + (leaf - begin), sink->kind->is_used_again);
		weightd_writer_digest_bytes(c->wr, leaf / DIGEST_LEAF_SIZE, at + (leaf - begin));
	}
	return sink->kind->end(sink, thread, first, end - begin, s);
}

static int finish_staged(struct cold *c, struct chunk *chunk, struct sink *sink, unsigned thread,
			 struct sentence *s)
{
	const uint64_t end = (chunk->end + DIGEST_LEAF_SIZE - 1) / DIGEST_LEAF_SIZE;
	int r = 0;

	for (uint64_t leaf = chunk->number * CHUNK_LEAVES; r == 0 && leaf < end;
	     leaf += sink->kind->n_leaves)
		r = finish_stretch(c, chunk, sink, thread, leaf, s);
	return r;
}

/* Direct reads of a block have bytes besides those of the version. */
static void count_read(struct cold *c, struct chunk *chunk, uint64_t n)
{
	const uint64_t left = chunk->ranges.n_bytes - chunk->n_counted;

	n = n < left ? n : left;
	chunk->n_counted += n;
	atomic_fetch_add_explicit(&c->n_done, n, memory_order_relaxed);
}

static int finish_directly(struct cold *c, struct chunk_read *read, struct sentence *s)
{
	const struct file *f = &c->plan->files[read->file].file;
	int r;

	do {
		r = chunk_read_direct(read, f, &c->directs[read->file], c->pace, s);
		count_read(c, read->chunk, r > 0 ? (uint64_t)r : 0);
	} while (r > 0);
	return r;
}

static int finish_by_cache(struct cold *c, struct chunk_read *read, struct sentence *s)
{
	const struct file *f = &c->plan->files[read->file].file;
	const uint64_t most = pace_most(c->pace);

	while (read->done < read->wanted) {
		const uint64_t left = read->wanted - read->done, n = left < most ? left : most;
		int r = pace_take(c->pace, n);

		if (r == 0)
			r = file_read(f, read->to + read->done, n, read->offset + read->done, s);
		if (r < 0)
			return r;
		read->done += n;
		count_read(c, read->chunk, n);
	}
	return 0;
}

/* The rest of all reads. */
static int finish_reads(struct cold *c, struct chunk *chunk, struct sentence *s)
{
	bool is_direct = true;
	int r = 0;

	for (unsigned i = 0; r == 0 && i < chunk->n_reads; i++) {
		struct chunk_read *read = &chunk->reads[i];
		const struct file *f = &c->plan->files[read->file].file;

		if (read->r < 0)
			return file_read_failed(f, read->offset + read->done, read->r, s);
		if (!c->files[read->file].is_refused)
			r = finish_directly(c, read, s);
		if (r < 0 || read->done >= read->wanted)
			continue;
		is_direct = false;
		r = finish_by_cache(c, read, s);
	}
	if (r < 0)
		return r;
	count_read(c, chunk, UINT64_MAX); /* the rest, of what a ring has read too */
	if (is_direct)
		atomic_fetch_add(&c->n_direct, chunk->ranges.n_bytes);
	return 0;
}

int cold_finish(struct cold *c, struct chunk *chunk, struct sink *sink, unsigned thread,
		struct sentence *s)
{
	int r = supply_await(c->supply, chunk->end);

	if (r == 0)
		r = finish_reads(c, chunk, s);
	assert(CHUNK_LEAVES % sink->kind->n_leaves == 0);
	if (r == 0 && chunk->in_place)
		finish_in_place(c, chunk);
	else if (r == 0)
		r = finish_staged(c, chunk, sink, thread, s);
	return r;
}

/* --- The page cache ----------------------------------------------------------------------------- */

void cold_drop(const struct cold *c)
{
	struct chunk_ranges ranges;

	for (size_t i = 0; i < c->plan->n_files; i++)
		if (c->plan->files[i].n_cached == 0)
			cached_drop(c->plan->files[i].file.fd, 0, 0);
	for (uint64_t i = 0; c->was_absent && i < c->n_chunks; i++) {
		if (!c->was_absent[i] ||
		    !chunk_find_ranges(c->plan, i * CHUNK_SIZE, chunk_end(c, i), &ranges))
			continue;
		for (unsigned k = 0; k < ranges.n; k++)
			cached_drop(c->plan->files[ranges.list[k].file].file.fd,
				    ranges.list[k].offset,
				    ranges.list[k].end - ranges.list[k].offset);
	}
}
