/*
 * The work is cut by tensors of the files: a thread reads the next MiB of one, and copies it to each rank that has some of
 * it. Publish digests the versions, since no leaf of them is complete before the end.
 */
#include "libclient/load/ranks.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "ipc/reshard/slicing.h"
#include "libclient/connection/client.h"
#include "libclient/connection/restart.h"
#include "libclient/load/companions.h"
#include "libclient/load/placement.h"
#include "libclient/load/selection.h"
#include "libclient/writer.h"

#define CHUNK_SIZE MIB
#define THREADS_MAX 4

struct rank {
	char *name; /* of its buffer */
	unsigned number;
	struct plan plan; /* of its part; the files are those of the plan of whole tensors */
	struct companions companions;
	struct weightd_writer *wr;
	struct sentence *s; /* of the load */
};

/* The bytes of a tensor that a rank has. */
struct part {
	uint32_t tensor; /* index in the layout of whole tensors */
	uint32_t rank; /* index in ranks::list */
	struct plan_piece piece; /* its place is that in the writer */
};

struct ranks {
	const struct plan *plan;
	struct rank *list;
	size_t n;
	struct part *parts; /* by tensor */
	size_t n_parts;
	uint64_t n_bytes; /* of the tensors that some rank has */
	struct progress *progress;

	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t changed;
	size_t next_part; /* the first one of the tensor that is read */
	uint64_t next_byte; /* in it */
	uint64_t n_done;
	unsigned n_running;
	int r; /* error of the first thread that failed, or of the caller */
	struct sentence sentence;
};

static int out_of_memory(struct sentence *s)
{
	return sentence_set(s, -ENOMEM, "there is not enough memory for the plan");
}

static void ranks_deinit(struct ranks *k)
{
	for (size_t i = 0; i < k->n; i++) {
		weightd_writer_free(k->list[i].wr);
		companions_deinit(&k->list[i].companions);
		selection_part_deinit(&k->list[i].plan);
		free(k->list[i].name);
	}
	free(k->list);
	free(k->parts);
}

/* --- Writers ------------------------------------------------------------------------------------ */

static int rank_plan(struct rank *rank, const char *name, const struct plan *plan,
		     const char *const *paths, size_t n_paths, struct weightd *w,
		     const struct weightd_load_options *o, struct sentence *s)
{
	struct weightd_load_options options = *o;
	int r;

	options.tp_rank = rank->number;
	if (asprintf(&rank->name, "%s-tp%u", name, rank->number) < 0) {
		rank->name = NULL;
		return out_of_memory(s);
	}
	r = selection_take(&options, plan, &rank->plan, s);
	if (r < 0)
		return r;
	return companions_init(&rank->companions, w, &rank->plan, paths, n_paths, &options);
}

/* Fails where the bytes cannot be placed, before anything of the buffer changes: names that are tied there have to agree. */
static int rank_adopt(void *userdata, const struct weightd_writer *wr)
{
	struct rank *rank = userdata;
	struct placement placement = {0};
	int r = placement_init(&placement, &rank->plan, wr, rank->name, rank->s);

	placement_deinit(&placement);
	return r;
}

static int rank_create(struct rank *rank, struct weightd *w, const struct weightd_load_options *o)
{
	const struct writer_hooks hooks = {.adopt = rank_adopt, .userdata = rank};

	rank->s = client_sentence(w);
	return writer_create(w, rank->name, rank->plan.layout, o->create, &hooks, &rank->wr);
}

static int ranks_create(struct ranks *k, struct weightd *w, const struct weightd_load_options *o)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < k->n; i++) {
		r = progress_report(k->progress, "memory", i, k->n);
		if (r == 0)
			r = rank_create(&k->list[i], w, o);
		else
			r = progress_failed(k->progress, client_sentence(w));
	}
	return r;
}

/* --- Parts -------------------------------------------------------------------------------------- */

/* Tensors of a rank stand in the order of the whole ones, and some are left out. */
static int add_parts(struct ranks *k, uint32_t rank)
{
	struct weightd_tensor t = {.size = sizeof(t)}, whole = {.size = sizeof(whole)};
	struct weightd_tensor at = {.size = sizeof(at)};
	struct rank *of = &k->list[rank];
	uint32_t tensor = 0;
	int r = 0;

	for (uint32_t i = 0; r == 0 && weightd_layout_tensor(of->plan.layout, i, &t) == 0; i++) {
		if (t.tied_to != WEIGHTD_NOT_TIED || t.n_bytes == 0)
			continue;
		while (weightd_layout_tensor(k->plan->layout, tensor, &whole) == 0 &&
		       strcmp(whole.name, t.name) != 0)
			tensor++;
		r = weightd_writer_find(of->wr, t.name, &at);
		k->parts[k->n_parts] = (struct part){tensor, rank, plan_tensor_piece(&of->plan, &t)};
		k->parts[k->n_parts++].piece.dest = at.offset;
	}
	return r;
}

static int compare_parts(const void *a, const void *b)
{
	const struct part *p = a, *q = b;

	if (p->tensor != q->tensor)
		return p->tensor < q->tensor ? -1 : 1;
	return p->rank < q->rank ? -1 : p->rank > q->rank;
}

static struct plan_piece whole_piece(const struct ranks *k, const struct part *part)
{
	struct weightd_tensor t = {.size = sizeof(t)};

	(void)weightd_layout_tensor(k->plan->layout, part->tensor, &t);
	return plan_tensor_piece(k->plan, &t);
}

static int find_parts(struct ranks *k, struct sentence *s)
{
	size_t n = 0;
	int r = 0;

	for (size_t i = 0; i < k->n; i++)
		n += weightd_layout_n_tensors(k->list[i].plan.layout);
	k->parts = calloc(n + 1, sizeof(*k->parts));
	if (!k->parts)
		return out_of_memory(s);
	for (uint32_t i = 0; r == 0 && i < k->n; i++)
		r = add_parts(k, i);
	if (r < 0)
		return sentence_set(s, r, "the tensors cannot be placed: %s", strerror(-r));
	if (k->n_parts > 1)
		qsort(k->parts, k->n_parts, sizeof(*k->parts), compare_parts);
	for (size_t i = 0; i < k->n_parts; i++)
		if (i == 0 || k->parts[i].tensor != k->parts[i - 1].tensor)
			k->n_bytes += whole_piece(k, &k->parts[i]).size;
	return 0;
}

/* --- Reading ------------------------------------------------------------------------------------ */

/* Bytes of a tensor, and the parts of ranks in it. */
struct chunk_of {
	const struct part *parts;
	size_t n_parts;
	struct plan_piece whole;
	uint64_t at, n; /* in the tensor */
};

/* The parts of the tensor that `first` is of. */
static size_t count_parts(const struct ranks *k, size_t first)
{
	size_t n = 1;

	while (first + n < k->n_parts && k->parts[first + n].tensor == k->parts[first].tensor)
		n++;
	return n;
}

/* False: there is none, or no more is to be read. */
static bool take_chunk(struct ranks *k, struct chunk_of *ret)
{
	bool is_there;

	(void)pthread_mutex_lock(&k->lock);
	is_there = k->r == 0 && k->next_part < k->n_parts;
	if (is_there) {
		*ret = (struct chunk_of){
			.parts = &k->parts[k->next_part],
			.n_parts = count_parts(k, k->next_part),
			.whole = whole_piece(k, &k->parts[k->next_part]),
			.at = k->next_byte,
		};
		ret->n = ret->whole.size - ret->at;
		if (ret->n > CHUNK_SIZE)
			ret->n = CHUNK_SIZE;
		k->next_byte += ret->n;
		if (k->next_byte == ret->whole.size) {
			k->next_part += ret->n_parts;
			k->next_byte = 0;
		}
	}
	(void)pthread_mutex_unlock(&k->lock);
	return is_there;
}

/* The bytes of the tensor that a part without a cut is. */
static void find_range(const struct chunk_of *c, const struct plan_piece *piece,
		       uint64_t *ret_begin, uint64_t *ret_end)
{
	const uint64_t first = piece->cut ? c->at : piece->offset - c->whole.offset;
	const uint64_t end = piece->cut ? c->at + c->n : first + piece->size;

	*ret_begin = first > c->at ? first : c->at;
	*ret_end = end < c->at + c->n ? end : c->at + c->n;
}

static void copy_part(const struct ranks *k, const struct chunk_of *c, const struct part *part,
		      const char *bytes)
{
	const struct rank *rank = &k->list[part->rank];
	const struct plan_piece *piece = &part->piece;
	char *to = (char *)rank->wr->memory.data + piece->dest;
	uint64_t begin, end;

	find_range(c, piece, &begin, &end);
	if (piece->cut)
		cut_scatter(&rank->plan.cuts[piece->cut - 1], bytes, c->at, c->n, to);
	else if (begin < end)
		memcpy(to + (begin - (piece->offset - c->whole.offset)), bytes + (begin - c->at),
		       end - begin);
}

/* Skips bytes at either end that no rank has. */
static int read_chunk(struct ranks *k, const struct chunk_of *c, char *bytes, struct sentence *s)
{
	const struct file *f = &k->plan->files[c->whole.file].file;
	uint64_t first = c->at + c->n, last = c->at, begin, end;
	int r;

	for (size_t i = 0; i < c->n_parts; i++) {
		find_range(c, &c->parts[i].piece, &begin, &end);
		if (begin < end && begin < first)
			first = begin;
		if (begin < end && end > last)
			last = end;
	}
	if (first >= last)
		return 0;
	r = file_read(f, bytes + (first - c->at), last - first, c->whole.offset + first, s);
	for (size_t i = 0; r == 0 && i < c->n_parts; i++)
		copy_part(k, c, &c->parts[i], bytes);
	return r;
}

static void ranks_end(struct ranks *k, int r, const struct sentence *s)
{
	if (r < 0 && k->r == 0) {
		k->r = r;
		k->sentence = *s;
	}
}

static void *ranks_thread(void *arg)
{
	cleanup(freep) char *bytes = malloc(CHUNK_SIZE);
	struct ranks *k = arg;
	struct chunk_of chunk;
	struct sentence s;
	int r = bytes ? 0 : out_of_memory(&s);

	while (r == 0 && take_chunk(k, &chunk)) {
		r = read_chunk(k, &chunk, bytes, &s);
		(void)pthread_mutex_lock(&k->lock);
		k->n_done += chunk.n;
		(void)pthread_mutex_unlock(&k->lock);
	}
	(void)pthread_mutex_lock(&k->lock);
	ranks_end(k, r, &s);
	k->n_running--;
	(void)pthread_cond_signal(&k->changed);
	(void)pthread_mutex_unlock(&k->lock);
	return NULL;
}

/*
 * From the calling thread, without the lock. A report may end the load. After a restart weightd keeps the versions for a while
 * only, unless the writers are there again.
 */
static int ranks_report(struct ranks *k, uint64_t n_done, struct sentence *s)
{
	(void)restart_look(k->list[0].wr->w); /* as long as it is not back, the files are read */
	return progress_report(k->progress, "read", n_done, k->n_bytes) < 0
		       ? progress_failed(k->progress, s)
		       : 0;
}

/* Reports progress until all threads have ended. */
static void ranks_wait(struct ranks *k)
{
	struct sentence s;
	uint64_t n_done;
	int r;

	(void)pthread_mutex_lock(&k->lock);
	while (k->n_running > 0) {
		progress_wait(&k->changed, &k->lock);
		n_done = k->n_done;
		(void)pthread_mutex_unlock(&k->lock);
		r = ranks_report(k, n_done, &s);
		(void)pthread_mutex_lock(&k->lock);
		ranks_end(k, r, &s);
	}
	(void)pthread_mutex_unlock(&k->lock);
}

/* Threads take no signals: those are the caller's. */
static unsigned start_threads(struct ranks *k, pthread_t threads[THREADS_MAX], unsigned n)
{
	sigset_t all, before;
	unsigned i = 0;

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_BLOCK, &all, &before);
	(void)pthread_mutex_lock(&k->lock);
	while (i < n && pthread_create(&threads[i], NULL, ranks_thread, k) == 0)
		i++;
	k->n_running = i;
	(void)pthread_mutex_unlock(&k->lock);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	return i;
}

static int ranks_read(struct ranks *k, unsigned n_threads, struct sentence *s)
{
	pthread_t threads[THREADS_MAX];
	unsigned n;
	int r = ranks_report(k, 0, s);

	if (r < 0)
		return r;
	(void)pthread_mutex_init(&k->lock, NULL);
	progress_wait_init(&k->changed);
	n = start_threads(k, threads,
			  n_threads == 0 || n_threads > THREADS_MAX ? THREADS_MAX : n_threads);
	if (n == 0)
		k->r = sentence_set(&k->sentence, -EAGAIN, "cannot start a thread to read with");
	ranks_wait(k);
	for (unsigned i = 0; i < n; i++)
		(void)pthread_join(threads[i], NULL);
	(void)pthread_cond_destroy(&k->changed);
	(void)pthread_mutex_destroy(&k->lock);
	if (k->r < 0)
		*s = k->sentence;
	return k->r;
}

/* --- Loads -------------------------------------------------------------------------------------- */

static int ranks_check(const struct weightd_load_options *o, struct sentence *s)
{
	const char *device = o->create && o->create->device ? o->create->device : "host";

	if (strcmp(device, "host") != 0 || o->n_more_devices)
		return sentence_set(s, -EOPNOTSUPP,
				    "several ranks are loaded to host memory only; load each rank "
				    "to its GPU by itself (--tp RANK/WORLD)");
	if (o->verify || o->max_rate || o->share || o->read == WEIGHTD_READ_DIRECT ||
	    o->cache == WEIGHTD_CACHE_DROP)
		return sentence_set(s, -EOPNOTSUPP,
				    "several ranks are read at once by the page cache, without "
				    "--verify, --max-rate, --share, --read direct and --cache drop; "
				    "use them with one rank");
	for (size_t i = 0; i < o->n_tp_more_ranks; i++)
		for (size_t j = 0; j <= i; j++)
			if (o->tp_more_ranks[i] == (j ? o->tp_more_ranks[j - 1] : o->tp_rank))
				return sentence_set(s, -EINVAL, "rank %u is named twice",
						    o->tp_more_ranks[i]);
	return 0;
}

static int ranks_plan(struct ranks *k, const char *name, const char *const *paths, size_t n_paths,
		      struct weightd *w, const struct weightd_load_options *o, struct sentence *s)
{
	struct weightd_load_options options = *o;
	int r = 0;

	k->list = calloc(1 + o->n_tp_more_ranks, sizeof(*k->list));
	if (!k->list)
		return out_of_memory(s);
	for (size_t i = 0; r == 0 && i <= o->n_tp_more_ranks; i++) {
		k->n++;
		k->list[i].number = i ? o->tp_more_ranks[i - 1] : o->tp_rank;
		r = rank_plan(&k->list[i], name, k->plan, paths, n_paths, w, &options, s);
		options.note = NULL; /* one is enough */
	}
	return r;
}

static int publish_failed(const struct ranks *k, size_t failed, int r, struct sentence *s)
{
	struct sentence why = *s;

	if (failed == 0)
		return r;
	return sentence_set(s, r, "'%s' to '%s' were published, and '%s' was not: %.300s",
			    k->list[0].name, k->list[failed - 1].name, k->list[failed].name,
			    why.text);
}

static int ranks_publish(struct ranks *k, struct weightd_load_result *results, struct sentence *s)
{
	for (size_t i = 0; i < k->n; i++) {
		struct weightd_writer *wr = k->list[i].wr;
		int r = weightd_writer_publish(wr, &results[i].version);

		if (r < 0)
			return publish_failed(k, i, r, s);
		results[i].n_bytes = k->list[i].plan.n_bytes;
		results[i].n_tensors = weightd_writer_n_tensors(wr);
		results[i].n_files = k->plan->n_files;
		memcpy(results[i].digest, writer_digest(wr), sizeof(results[i].digest));
	}
	return 0;
}

static void give_results(const struct weightd_load_options *o,
			 const struct weightd_load_result *results,
			 struct weightd_load_result *ret_first)
{
	*ret_first = results[0];
	for (size_t i = 0; o->ret_tp_results && i < o->n_tp_more_ranks; i++) {
		size_t size = o->ret_tp_results[i].size;

		memcpy(&o->ret_tp_results[i], &results[i + 1],
		       size < sizeof(*results) ? size : sizeof(*results));
		o->ret_tp_results[i].size = size;
	}
}

static int ranks_fill(struct ranks *k, struct weightd *w, const struct weightd_load_options *o,
		      struct weightd_load_result *results)
{
	struct sentence *s = client_sentence(w);
	const uint64_t start = num_now_ns();
	uint64_t memory_ns;
	int r = ranks_create(k, w, o);

	memory_ns = num_now_ns() - start;
	if (r == 0)
		r = find_parts(k, s);
	if (r == 0)
		r = ranks_read(k, o->n_threads, s);
	for (size_t i = 0; r == 0 && i < k->n; i++) {
		results[i].memory_ns = memory_ns;
		results[i].read_ns = num_now_ns() - start - memory_ns;
		r = companions_send(&k->list[i].companions, k->list[i].wr, WEIGHTD_VERIFY_NONE);
	}
	if (r == 0)
		r = plan_check_unchanged(k->plan, s);
	if (r == 0 && progress_report(k->progress, "publish", 0, k->n_bytes) < 0)
		r = progress_failed(k->progress, s);
	return r == 0 ? ranks_publish(k, results, s) : r;
}

int ranks_load(struct weightd *w, const char *name, const struct plan *plan,
	       const char *const *paths, size_t n_paths, const struct weightd_load_options *o,
	       struct progress *progress, struct weightd_load_result *result)
{
	cleanup(ranks_deinit) struct ranks k = {.plan = plan, .progress = progress};
	cleanup(freep) struct weightd_load_result *results = calloc(1 + o->n_tp_more_ranks,
								    sizeof(*results));
	struct sentence *s = client_sentence(w);
	const uint64_t start = num_now_ns();
	int r = results ? ranks_check(o, s) : out_of_memory(s);

	if (r == 0)
		r = ranks_plan(&k, name, paths, n_paths, w, o, s);
	if (r == 0)
		r = ranks_fill(&k, w, o, results);
	if (r < 0)
		return r;
	for (size_t i = 0; i < k.n; i++)
		results[i].elapsed_ns = num_now_ns() - start;
	give_results(o, results, result);
	return 0;
}
