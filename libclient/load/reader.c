/*
 * Work is cut by destination, not by file: a stretch of some leaves belongs to one thread from its first byte
 * to its digests, so threads share nothing but the counter of them. Tensors that stand side by side in a file
 * and padded apart in the buffer are read by one preadv. What is not in the page cache, or on a server, cold.c reads.
 */
#include "libclient/load/reader.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "ipc/base/numa.h"
#include "libclient/connection/ask.h"
#include "libclient/connection/restart.h"
#include "libclient/load/cold.h"
#include "libclient/load/disk/pace.h"
#include "libclient/load/sink.h"
#include "libclient/load/supply.h"
#include "libclient/writer_check.h"

#define THREADS_MAX 64
#define PROVIDE_SIZE                                                                               \
	(16 * MIB) /* memory asked for at a time: what the threads fill in some milliseconds */
#define READ_PATIENCE_NS UINT64_C(1000000000) /* for reads to return after the load has failed */
#define RUN_PARTS_MAX 256 /* at the default alignment a leaf may have 4096 tensors */

struct reader {
	const struct plan *plan;
	struct weightd_writer *wr;
	const struct copies *copies;
	const struct sink_kind *kind;
	struct sink sink;
	struct cold cold;
	uint64_t n_stretches;
	pthread_t threads[THREADS_MAX];
	unsigned n_threads;

	struct progress *progress;
	struct supply supply;
	struct pace pace;

	_Atomic unsigned n_begun; /* threads */
	_Atomic uint64_t next_stretch;
	_Atomic uint64_t n_done; /* bytes, without those of cold chunks */
	_Atomic bool stop; /* a thread failed or the caller cancelled */

	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t changed; /* n_running fell or r was set */
	unsigned n_running;
	int r; /* error of the first thread that failed */
	struct sentence sentence;
};

/* Bytes that stand side by side in a file and not in the buffer. */
struct run {
	const struct file *file;
	uint64_t offset, end; /* in the file */
	struct iovec parts[RUN_PARTS_MAX];
	int n_parts;
};

static int stopped(void)
{
	return -ECANCELED; /* without a sentence: the failure that stopped the threads has set it */
}

/* Takes `n` bytes off the front. */
static void run_advance(struct run *run, int *first, size_t n)
{
	run->offset += n;
	while (n > 0 && n >= run->parts[*first].iov_len)
		n -= run->parts[(*first)++].iov_len;
	if (n > 0) {
		run->parts[*first].iov_base = (char *)run->parts[*first].iov_base + n;
		run->parts[*first].iov_len -= n;
	}
}

/* Reads a run of a remote file by one request. */
static int run_fetch(struct reader *reader, struct run *run, struct sentence *s)
{
	const uint64_t size = run->end - run->offset;
	cleanup(freep) char *bytes = malloc(size);
	const char *from = bytes;
	int r;

	if (pace_take(&reader->pace, size) < 0)
		return stopped();
	r = bytes ? file_read(run->file, bytes, size, run->offset, s)
		  : sentence_set(s, -ENOMEM, "there is not enough memory to read with");

	for (int i = 0; r == 0 && i < run->n_parts; i++) {
		memcpy(run->parts[i].iov_base, from, run->parts[i].iov_len);
		from += run->parts[i].iov_len;
	}
	run->n_parts = 0;
	atomic_fetch_add_explicit(&reader->n_done, size, memory_order_relaxed);
	return r;
}

/* Reads parts from `first` on, as many as the pace allows at a time; -1 and errno. */
static ssize_t run_read_some(struct reader *reader, const struct run *run, int first)
{
	const uint64_t most = pace_most(&reader->pace);
	struct iovec part = run->parts[first];
	uint64_t n = part.iov_len;
	int end = first + 1;

	while (end < run->n_parts && n + run->parts[end].iov_len <= most)
		n += run->parts[end++].iov_len;
	if (n > most)
		n = part.iov_len = most;
	if (pace_take(&reader->pace, n) < 0) {
		errno = EINTR; /* by a stop */
		return -1;
	}
	return preadv(run->file->fd, end - first == 1 ? &part : run->parts + first, end - first,
		      (off_t)run->offset);
}

static int run_read(struct reader *reader, struct run *run, struct sentence *s)
{
	int first = 0;

	if (run->n_parts > 0 && run->file->remote)
		return run_fetch(reader, run, s);
	while (run->offset < run->end) {
		ssize_t n;

		if (atomic_load_explicit(&reader->stop, memory_order_relaxed))
			return stopped();
		n = run_read_some(reader, run, first);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return file_read_failed(run->file, run->offset, n < 0 ? -errno : 0, s);
		run_advance(run, &first, (size_t)n);
		atomic_fetch_add_explicit(&reader->n_done, (uint64_t)n, memory_order_relaxed);
	}
	run->n_parts = 0;
	return 0;
}

static bool run_continues(const struct run *run, const struct file *file, uint64_t offset)
{
	return run->n_parts > 0 && run->n_parts < RUN_PARTS_MAX && run->file == file &&
	       run->end == offset;
}

/* The bytes of a piece with a cut, which no run has. */
static int read_cut(struct reader *reader, const struct plan_piece *piece, uint64_t skip,
		    uint64_t n, char *to, struct sentence *s)
{
	const struct cut *cut = &reader->plan->cuts[piece->cut - 1];
	const uint64_t most = cut_size(cut, pace_most(&reader->pace)), end = skip + n;
	int r = 0;

	for (; r == 0 && skip < end; skip += n, to += n) {
		n = end - skip < most ? end - skip : most;
		if (pace_take(&reader->pace, cut_source_size(cut, n)) < 0 ||
		    atomic_load_explicit(&reader->stop, memory_order_relaxed))
			return stopped();
		r = plan_read(reader->plan, piece, skip, n, to, s);
		if (r == 0)
			atomic_fetch_add_explicit(&reader->n_done, n, memory_order_relaxed);
	}
	return r;
}

/* In memory that is used again the bytes between tensors are what was there. */
static void reader_zero(const struct reader *reader, char *at, uint64_t n)
{
	if (reader->sink.kind->is_used_again)
		memset(at, 0, n);
}

/* To `at`, up to where the next leaf or the end is. */
static int read_leaf(struct reader *reader, uint64_t leaf, char *at, struct sentence *s)
{
	const struct plan *plan = reader->plan;
	const uint64_t begin = leaf * WEIGHTD_LEAF_SIZE, left = reader->wr->data_size - begin;
	const uint64_t end = begin + (left < WEIGHTD_LEAF_SIZE ? left : WEIGHTD_LEAF_SIZE);
	uint64_t filled = begin;
	struct run run = {0};
	int r;

	for (size_t i = plan_find_piece(plan, begin); i < plan->n_pieces; i++) {
		const struct plan_piece *piece = &plan->pieces[i];
		const struct file *file = &plan->files[piece->file].file;
		uint64_t skip = piece->dest < begin ? begin - piece->dest : 0;
		uint64_t offset = piece->offset + skip, size = piece->size - skip;
		uint64_t dest = piece->dest + skip;

		if (dest >= end)
			break;
		if (size > end - dest)
			size = end - dest;
		reader_zero(reader, at + (filled - begin), dest - filled);
		filled = dest + size;
		if (piece->cut) {
			r = read_cut(reader, piece, skip, size, at + (dest - begin), s);
			if (r < 0)
				return r;
			continue;
		}
		if (!run_continues(&run, file, offset)) {
			r = run_read(reader, &run, s);
			if (r < 0)
				return r;
			run.file = file;
			run.offset = run.end = offset;
		}
		run.parts[run.n_parts++] = (struct iovec){at + (dest - begin), size};
		run.end += size;
	}
	reader_zero(reader, at + (filled - begin), end - filled);
	return run_read(reader, &run, s);
}

/* Waits until the leaf has memory. */
static int reader_await(struct reader *reader, uint64_t leaf)
{
	uint64_t end = (leaf + 1) * WEIGHTD_LEAF_SIZE, size = reader->wr->data_size;

	return supply_await(&reader->supply, end < size ? end : size) < 0 ? stopped() : 0;
}

static int read_stretch(struct reader *reader, unsigned thread, uint64_t first, struct sentence *s)
{
	struct sink *sink = &reader->sink;
	const uint64_t n_leaves = reader->wr->n_leaves, begin = first * WEIGHTD_LEAF_SIZE;
	uint64_t end = first + sink->kind->n_leaves, size;
	char *at;
	int r = sink->kind->begin(sink, thread, first, &at, s);

	if (end > n_leaves)
		end = n_leaves;
	for (uint64_t leaf = first; r == 0 && leaf < end; leaf++) {
		char *bytes = at + (leaf - first) * WEIGHTD_LEAF_SIZE;

		r = reader_await(reader, leaf);
		if (r == 0)
			r = read_leaf(reader, leaf, bytes, s);
		if (r == 0 && !sink->kind->compares)
			weightd_writer_digest_bytes(reader->wr, leaf, bytes);
	}
	if (r < 0)
		return r;
	size = end == n_leaves ? reader->wr->data_size - begin : (end - first) * WEIGHTD_LEAF_SIZE;
	return sink->kind->end(sink, thread, first, size, s);
}

static void reader_fail(struct reader *reader, int r, const struct sentence *s)
{
	(void)pthread_mutex_lock(&reader->lock);
	if (reader->r == 0) {
		reader->r = r;
		reader->sentence = *s;
	}
	(void)pthread_mutex_unlock(&reader->lock);
	atomic_store_explicit(&reader->stop, true, memory_order_relaxed);
	pace_stop(&reader->pace);
	supply_stop(&reader->supply);
	cold_stop(&reader->cold);
}

/* The next stretch that the page cache has. */
static bool take_stretch(struct reader *reader, uint64_t *ret_leaf)
{
	uint64_t stretch;

	do {
		stretch = atomic_fetch_add_explicit(&reader->next_stretch, 1, memory_order_relaxed);
		*ret_leaf = stretch * reader->sink.kind->n_leaves;
	} while (stretch < reader->n_stretches && cold_has(&reader->cold, *ret_leaf));
	return stretch < reader->n_stretches;
}

static int finish_chunk(struct reader *reader, unsigned thread, struct chunk *chunk,
			struct sentence *s)
{
	int r = cold_finish(&reader->cold, chunk, &reader->sink, thread, s);

	cold_release(&reader->cold, chunk);
	return r;
}

/* Chunks that are there come first: their memory is for the next ones. */
static void *thread_main(void *arg)
{
	struct reader *reader = arg;
	unsigned thread = atomic_fetch_add(&reader->n_begun, 1);
	struct numa_cpus before;
	struct chunk *chunk;
	struct sentence s;
	uint64_t leaf;
	int r = 0;

	if (reader->sink.node >= 0)
		(void)numa_run_on_node((unsigned)reader->sink.node, &before);
	while (r == 0 && !atomic_load_explicit(&reader->stop, memory_order_relaxed)) {
		chunk = cold_take(&reader->cold, false);
		if (!chunk && take_stretch(reader, &leaf)) {
			r = read_stretch(reader, thread, leaf, &s);
			continue;
		}
		if (!chunk)
			chunk = cold_take(&reader->cold, true);
		if (!chunk)
			break;
		r = finish_chunk(reader, thread, chunk, &s);
	}
	if (r < 0 && !atomic_load_explicit(&reader->stop, memory_order_relaxed))
		reader_fail(reader, r, &s);
	(void)pthread_mutex_lock(&reader->lock);
	reader->n_running--;
	(void)pthread_cond_signal(&reader->changed);
	(void)pthread_mutex_unlock(&reader->lock);
	return NULL;
}

/* Threads that wait for a server need no core. */
static unsigned threads_wanted(unsigned n, unsigned n_default, bool is_remote, uint64_t n_stretches)
{
	cpu_set_t cpus;

	if (n == 0 && is_remote) {
		n = FETCHER_LINES;
	} else if (n == 0) {
		n = sched_getaffinity(0, sizeof(cpus), &cpus) < 0 ? 1 : (unsigned)CPU_COUNT(&cpus);
		if (n > n_default)
			n = n_default;
	}
	if (n > THREADS_MAX)
		n = THREADS_MAX;
	return n < n_stretches ? n : (unsigned)n_stretches;
}

/* Fewer threads than wanted will do, none will not. They take no signals: those are the caller's. */
static int reader_start(struct reader *reader, unsigned n_wanted)
{
	sigset_t all, before;
	int r = 0;

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_BLOCK, &all, &before);
	if (n_wanted > 0)
		cold_start(&reader->cold);
	(void)pthread_mutex_lock(&reader->lock);
	while (r == 0 && reader->n_threads < n_wanted) {
		r = pthread_create(&reader->threads[reader->n_threads], NULL, thread_main, reader);
		if (r == 0) {
			reader->n_threads++;
			reader->n_running++;
		}
	}
	(void)pthread_mutex_unlock(&reader->lock);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	return n_wanted > 0 && reader->n_threads == 0 ? -r : 0;
}

static const char *reader_phase(const struct reader *reader)
{
	return reader->kind->compares ? "verify" : "read";
}

/* Stops the threads if the caller cancels. */
static void reader_report(struct reader *reader)
{
	struct sentence s;

	if (atomic_load(&reader->stop) ||
	    progress_report(reader->progress, reader_phase(reader),
			    atomic_load(&reader->n_done) + atomic_load(&reader->cold.n_done),
			    reader->plan->n_bytes) == 0)
		return;
	reader_fail(reader, progress_failed(reader->progress, &s), &s);
}

static int reader_tick(void *userdata)
{
	struct reader *reader = userdata;

	reader_report(reader);
	return atomic_load(&reader->stop) ? -ECANCELED : 0;
}

/* Has the server provide the rest of the memory, ahead of the threads that fill it. */
static void reader_provide(struct reader *reader)
{
	struct weightd_writer *wr = reader->wr;

	while (!writer_is_provided(wr) && !atomic_load(&reader->stop)) {
		int r = writer_provide(wr, wr->provided + PROVIDE_SIZE, reader_tick, reader);

		if (r < 0 && !atomic_load(&reader->stop))
			reader_fail(reader, r, &wr->w->sentence);
		supply_grow(&reader->supply, wr->provided);
	}
}

/*
 * A file system can hold a read up for as long as it likes. The version ends before that on the server, unless it is in
 * memory that the next writer may get, while the read still writes to it.
 */
static void give_up(struct weightd_writer *wr)
{
	if (!wr->header || wr->aborted || wr->w->fd < 0)
		return;
	client_end(wr->w, WIRE_ABORT, wr->id);
	wr->aborted = true;
}

/* After a restart weightd keeps the version for a while only, unless the writer is there again. */
static void reader_look(struct reader *reader)
{
	struct weightd_writer *wr = reader->wr;

	if (wr->aborted || wr->version || atomic_load(&reader->stop))
		return;
	(void)restart_look(wr->w); /* as long as it is not back, the files are read */
	if (wr->lost)
		reader_fail(reader, writer_say_lost(wr), &wr->w->sentence);
}

/* Waits until all threads have ended, and reports progress meanwhile. */
static void wait_for_end(struct reader *reader)
{
	uint64_t stopped_ns = 0;

	(void)pthread_mutex_lock(&reader->lock);
	while (reader->n_running > 0) {
		progress_wait(&reader->changed, &reader->lock);
		(void)pthread_mutex_unlock(&reader->lock);
		reader_report(reader);
		reader_look(reader);
		if (!stopped_ns && atomic_load(&reader->stop))
			stopped_ns = num_now_ns();
		if (stopped_ns && num_now_ns() - stopped_ns > READ_PATIENCE_NS)
			give_up(reader->wr);
		(void)pthread_mutex_lock(&reader->lock);
	}
	(void)pthread_mutex_unlock(&reader->lock);
	for (unsigned i = 0; i < reader->n_threads; i++)
		(void)pthread_join(reader->threads[i], NULL);
}

/* With the sink open. */
static int run_threads(struct reader *reader, unsigned n_threads)
{
	struct sentence cold;
	int r, r_cold;

	(void)pthread_mutex_init(&reader->lock, NULL);
	progress_wait_init(&reader->changed);
	r = reader_start(reader, n_threads);
	if (r < 0) {
		(void)sentence_set(&reader->sentence, r, "cannot start a thread to read with: %s",
				   strerror(-r));
		cold_stop(&reader->cold);
		supply_stop(&reader->supply);
	}
	if (r == 0)
		reader_provide(reader);
	wait_for_end(reader);
	r_cold = cold_join(&reader->cold, &cold);
	if (r == 0)
		r = reader->r;
	if (r == 0 && r_cold < 0) {
		reader->sentence = cold;
		r = r_cold;
	}
	(void)pthread_cond_destroy(&reader->changed);
	(void)pthread_mutex_destroy(&reader->lock);
	return r;
}

static bool reader_is_stopped(void *userdata)
{
	struct reader *reader = userdata;

	return atomic_load_explicit(&reader->stop, memory_order_relaxed);
}

static int reader_read(struct reader *reader, unsigned n_threads, struct sentence *s)
{
	int r;

	reader->sink = (struct sink){
		.kind = reader->kind,
		.wr = reader->wr,
		.copies = reader->copies,
		.progress = reader->progress,
		.phase = reader_phase(reader),
	};
	r = sink_open(&reader->sink, &n_threads, s);
	if (r == 0) {
		r = run_threads(reader, n_threads);
		if (r < 0)
			*s = reader->sentence;
	}
	if (r == 0)
		r = reader->sink.kind->finish(&reader->sink, s);
	sink_close(&reader->sink);
	return r;
}

/* With the plan, the writer and the kind of sink. The caller ends it by reader_deinit(). */
static int reader_read_all(struct reader *reader, const struct weightd_load_options *o,
			   enum weightd_read how, struct sentence *s)
{
	struct weightd_writer *wr = reader->wr;
	const unsigned n_leaves = reader->kind->n_leaves;
	int r;

	assert(plan_end(reader->plan) <= wr->data_size);
	reader->n_stretches = (wr->n_leaves + n_leaves - 1) / n_leaves;
	if (plan_is_remote(reader->plan))
		fetcher_set_stop(reader->plan->sources.fetcher, reader_is_stopped, reader);
	supply_init(&reader->supply, wr->memory.offset, wr->provided);
	pace_init(&reader->pace, o->max_rate);
	r = cold_init(&reader->cold, reader->plan, wr, &reader->supply, &reader->pace, how);
	if (r < 0)
		return sentence_set(s, r, "there is not enough memory to read with");
	r = reader_read(reader,
			threads_wanted(o->n_threads, reader->kind->n_threads,
				       plan_is_remote(reader->plan), reader->n_stretches),
			s);
	if (o->cache == WEIGHTD_CACHE_DROP)
		cold_drop(&reader->cold);
	return r;
}

static void reader_deinit(struct reader *reader)
{
	if (plan_is_remote(reader->plan))
		fetcher_set_stop(reader->plan->sources.fetcher, NULL, NULL);
	cold_deinit(&reader->cold);
	supply_deinit(&reader->supply);
	pace_deinit(&reader->pace);
}

int reader_run(const struct plan *plan, struct weightd_writer *wr, const struct copies *copies,
	       const struct weightd_load_options *o, struct progress *progress,
	       struct weightd_load_result *result, struct sentence *s)
{
	struct reader reader = {
		.plan = plan,
		.wr = wr,
		.copies = copies,
		.kind = sink_kind_of(wr),
		.progress = progress,
	};
	int r = reader_read_all(&reader, o, o->read, s);

	result->n_direct_bytes = reader.cold.n_direct;
	result->ring_error = reader.cold.ring_error;
	reader_deinit(&reader);
	return r;
}

int reader_compare(const struct plan *plan, struct weightd_writer *wr,
		   const struct weightd_load_options *o, struct progress *progress,
		   struct sentence *s)
{
	struct reader reader = {.plan = plan, .wr = wr, .kind = &sink_compare, .progress = progress};
	int r = progress_report(progress, "verify", 0, plan->n_bytes);

	if (r < 0)
		return progress_failed(progress, s);
	r = reader_read_all(&reader, o, WEIGHTD_READ_BUFFERED, s);
	reader_deinit(&reader);
	return r;
}
