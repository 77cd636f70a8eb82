/* A thread takes one file after the other: the sum of a file is a chain, which no second thread can help with. */
#include "libclient/load/checksums.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/digest.h"

#define STEP_SIZE ((uint64_t)DIGEST_LEAF_SIZE)
#define QUOTE_PATH(path) file_quote(&(struct quote){0}, path)

/* The sum of one file, being made. */
struct summing {
	struct checksums *c;
	const struct file *file;
	struct evp_md_ctx_st *context;
	char *scratch; /* STEP_SIZE bytes */
	struct sentence *s;
};

static int out_of_memory(struct sentence *s)
{
	return sentence_set(s, -ENOMEM, "there is not enough memory for the sums of files");
}

static int find_sum(const struct file *f, struct checksum *ret, struct sentence *s)
{
	if (f->remote)
		return sentence_set(s, -EOPNOTSUPP,
				    "the SHA-256 of %s is not compared, because it is fetched or "
				    "converted: download it first, or verify with xxh3",
				    QUOTE_PATH(f->path));
	return manifest_find(f->path, ret->expected, &ret->kind, s);
}

int checksums_init(struct checksums *c, const struct plan *plan, struct sentence *s)
{
	int r = libcrypto_open(&c->lib, s);

	if (r < 0)
		return r;
	c->files = calloc(plan->n_files + 1, sizeof(*c->files));
	if (!c->files)
		return out_of_memory(s);
	for (size_t i = 0; r == 0 && i < plan->n_files; i++)
		r = find_sum(&plan->files[i].file, &c->files[i], s);
	return r;
}

void checksums_deinit(struct checksums *c)
{
	free(c->files);
	*c = (struct checksums){0};
}

/* --- Sums --------------------------------------------------------------------------------------- */

static int lib_failed(struct summing *sum)
{
	return sentence_set(sum->s, -EIO, "libcrypto cannot make the SHA-256 of %s",
			    QUOTE_PATH(sum->file->path));
}

static int sum_add(struct summing *sum, const void *bytes, uint64_t n)
{
	if (sum->c->lib->EVP_DigestUpdate(sum->context, bytes, n) != 1)
		return lib_failed(sum);
	atomic_fetch_add_explicit(&sum->c->n_done, n, memory_order_relaxed);
	return 0;
}

/* The data of host memory are hashed where they are. */
static bool is_host(const struct checksums *c)
{
	return c->wr->memory.location.memory == WIRE_MEMORY_HOST;
}

static bool has_leaf(const struct checksums *c, uint64_t leaf)
{
	return c->has_all || (is_host(c) && c->wr->leaf_done[leaf]);
}

/* Waits until the version has the leaf; UINT64_MAX: none. -ECANCELED, without a sentence: it was stopped before. */
static int await_leaf(struct checksums *c, uint64_t leaf)
{
	int r;

	(void)pthread_mutex_lock(&c->lock);
	while (!c->is_stopped && leaf != UINT64_MAX && !has_leaf(c, leaf))
		(void)pthread_cond_wait(&c->arrived, &c->lock);
	r = c->is_stopped ? -ECANCELED : 0;
	(void)pthread_mutex_unlock(&c->lock);
	return r;
}

/* Bytes [begin, end) as the file has them. */
static int sum_add_file(struct summing *sum, uint64_t begin, uint64_t end)
{
	int r = 0;

	for (uint64_t n; r == 0 && begin < end; begin += n) {
		n = end - begin < STEP_SIZE ? end - begin : STEP_SIZE;
		r = await_leaf(sum->c, UINT64_MAX);
		if (r == 0)
			r = file_read(sum->file, sum->scratch, n, begin, sum->s);
		if (r == 0)
			r = sum_add(sum, sum->scratch, n);
	}
	return r;
}

/* The header as it was when the plan was made of it, where the plan has it still. */
static int sum_add_start(struct summing *sum, uint64_t end)
{
	const struct original *original = &sum->c->plan->original;
	int r;

	if (!original->header || original->header_size > end)
		return sum_add_file(sum, 0, end);
	r = sum_add(sum, original->header, original->header_size);
	return r < 0 ? r : sum_add_file(sum, original->header_size, end);
}

/* Bytes [begin, end) of the version. */
static int sum_add_version(struct summing *sum, uint64_t begin, uint64_t end)
{
	const struct memory *m = &sum->c->wr->memory;
	const char *bytes;
	int r = 0;

	for (uint64_t n; r == 0 && begin < end; begin += n) {
		n = STEP_SIZE - begin % STEP_SIZE;
		if (n > end - begin)
			n = end - begin;
		r = await_leaf(sum->c, begin / DIGEST_LEAF_SIZE);
		bytes = is_host(sum->c) ? (const char *)m->data + begin : sum->scratch;
		if (r == 0 && !is_host(sum->c))
			r = memory_read(m, begin, sum->scratch, n, sum->s);
		if (r == 0)
			r = sum_add(sum, bytes, n);
	}
	return r;
}

/* `order` has the pieces of this file from `at` on. */
static int sum_file(struct summing *sum, const size_t *order, const size_t *end)
{
	const struct plan *plan = sum->c->plan;
	uint64_t at = 0;
	int r = 0;

	for (; r == 0 && order < end; order++) {
		const struct plan_piece *piece = &plan->pieces[*order];
		uint64_t skip = piece->offset < at ? at - piece->offset : 0;

		if (&plan->files[piece->file].file != sum->file)
			break;
		if (piece->cut || skip >= piece->size)
			continue;
		r = at ? sum_add_file(sum, at, piece->offset) : sum_add_start(sum, piece->offset);
		if (r == 0)
			r = sum_add_version(sum, piece->dest + skip, piece->dest + piece->size);
		at = piece->offset + piece->size;
	}
	if (r == 0)
		r = at ? sum_add_file(sum, at, sum->file->identity.size)
		       : sum_add_start(sum, sum->file->identity.size);
	return r;
}

/* --- Files -------------------------------------------------------------------------------------- */

static int refuse(const struct file *f, const struct checksum *wanted,
		  const uint8_t found[SHA256_SIZE], struct sentence *s)
{
	char expected_text[SHA256_TEXT_SIZE], found_text[SHA256_TEXT_SIZE];

	return sentence_set(s, -EBADMSG,
			    "%s is not the file it should be: SHA-256 %s is expected by %s, and %s "
			    "was found; nothing was published, fetch the file again",
			    QUOTE_PATH(f->path), sha256_text(wanted->expected, expected_text),
			    wanted->kind == MANIFEST_FILE ? "SHA256SUMS beside it"
							  : "its name in the Hugging Face cache",
			    sha256_text(found, found_text));
}

/* The first piece of the file, in the order. */
static const size_t *first_of(const struct checksums *c, size_t file)
{
	size_t low = 0, high = c->plan->n_pieces;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (c->plan->pieces[c->order[middle]].file < file)
			low = middle + 1;
		else
			high = middle;
	}
	return c->order + low;
}

static int check_file(struct summing *sum, size_t file)
{
	struct checksums *c = sum->c;
	const struct libcrypto *lib = c->lib;
	uint8_t hash[SHA256_SIZE];
	int r;

	sum->file = &c->plan->files[file].file;
	if (lib->EVP_DigestInit_ex(sum->context, lib->EVP_sha256(), NULL) != 1)
		return lib_failed(sum);
	r = sum_file(sum, first_of(c, file), c->order + c->plan->n_pieces);
	if (r < 0)
		return r;
	if (lib->EVP_DigestFinal_ex(sum->context, hash, NULL) != 1)
		return lib_failed(sum);
	if (memcmp(hash, c->files[file].expected, sizeof(hash)) != 0)
		return refuse(sum->file, &c->files[file], hash, sum->s);
	return 0;
}

static int check_files(struct checksums *c, struct sentence *s)
{
	cleanup(freep) char *scratch = malloc(STEP_SIZE);
	struct summing sum = {
		.c = c,
		.context = c->lib->EVP_MD_CTX_new(),
		.scratch = scratch,
		.s = s,
	};
	size_t file;
	int r = scratch && sum.context ? 0 : out_of_memory(s);

	while (r == 0 && (file = atomic_fetch_add(&c->next_file, 1)) < c->plan->n_files)
		r = check_file(&sum, file);
	c->lib->EVP_MD_CTX_free(sum.context);
	return r;
}

static void *checksums_main(void *arg)
{
	struct checksums *c = arg;
	struct sentence s = {0};
	int r = check_files(c, &s);

	(void)pthread_mutex_lock(&c->lock);
	if (r < 0 && !c->is_stopped) {
		c->r = r;
		c->sentence = s;
		c->is_stopped = true;
		(void)pthread_cond_broadcast(&c->arrived);
	}
	c->n_running--;
	(void)pthread_cond_signal(&c->ended);
	(void)pthread_mutex_unlock(&c->lock);
	return NULL;
}

/* --- Fills -------------------------------------------------------------------------------------- */

static int compare_pieces(const void *a, const void *b, void *arg)
{
	const struct plan_piece *pieces = arg;
	const struct plan_piece *p = &pieces[*(const size_t *)a], *q = &pieces[*(const size_t *)b];

	if (p->file != q->file)
		return p->file < q->file ? -1 : 1;
	return p->offset < q->offset ? -1 : p->offset > q->offset;
}

static void checksums_arrived(void *userdata)
{
	struct checksums *c = userdata;

	(void)pthread_mutex_lock(&c->lock);
	(void)pthread_cond_broadcast(&c->arrived);
	(void)pthread_mutex_unlock(&c->lock);
}

static void init_locks(struct checksums *c)
{
	(void)pthread_mutex_init(&c->lock, NULL);
	(void)pthread_cond_init(&c->arrived, NULL);
	progress_wait_init(&c->ended);
}

static unsigned threads_wanted(size_t n_files)
{
	cpu_set_t cpus;
	unsigned n = sched_getaffinity(0, sizeof(cpus), &cpus) < 0 ? 1 : (unsigned)CPU_COUNT(&cpus);

	if (n > CHECKSUM_THREADS_MAX)
		n = CHECKSUM_THREADS_MAX;
	return n < n_files ? n : (unsigned)n_files;
}

/* One thread will do, none will not. They take no signals: those are the caller's. */
static int start_threads(struct checksums *c, struct sentence *s)
{
	const unsigned n_wanted = threads_wanted(c->plan->n_files);
	sigset_t all, before;
	int r = 0;

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_BLOCK, &all, &before);
	(void)pthread_mutex_lock(&c->lock);
	while (r == 0 && c->n_threads < n_wanted) {
		r = pthread_create(&c->threads[c->n_threads], NULL, checksums_main, c);
		if (r == 0) {
			c->n_threads++;
			c->n_running++;
		}
	}
	(void)pthread_mutex_unlock(&c->lock);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	return c->n_threads == 0
		       ? sentence_set(s, -r, "cannot start a thread to check files with: %s",
				      strerror(r))
		       : 0;
}

int checksums_start(struct checksums *c, const struct plan *plan, struct weightd_writer *wr,
		    struct sentence *s)
{
	if (!c->files)
		return 0;
	c->order = calloc(plan->n_pieces + 1, sizeof(*c->order));
	if (!c->order)
		return out_of_memory(s);
	for (size_t i = 0; i < plan->n_pieces; i++)
		c->order[i] = i;
	qsort_r(c->order, plan->n_pieces, sizeof(*c->order), compare_pieces, plan->pieces);
	c->plan = plan;
	c->wr = wr;
	c->n_bytes = 0;
	for (size_t i = 0; i < plan->n_files; i++)
		c->n_bytes += plan->files[i].file.identity.size;
	c->n_threads = 0;
	c->has_all = c->is_stopped = false;
	c->r = 0;
	atomic_store(&c->next_file, 0);
	atomic_store(&c->n_done, 0);
	init_locks(c);
	wr->on_digest = checksums_arrived;
	wr->on_digest_data = c;
	return start_threads(c, s);
}

static void wait_for_threads(struct checksums *c, struct progress *progress)
{
	int r = 0;

	(void)pthread_mutex_lock(&c->lock);
	while (c->n_running > 0) {
		if (r == 0 && !c->is_stopped) {
			(void)pthread_mutex_unlock(&c->lock);
			r = progress_report(progress, "verify", atomic_load(&c->n_done), c->n_bytes);
			(void)pthread_mutex_lock(&c->lock);
		}
		if (r < 0 && !c->is_stopped) {
			c->r = progress_failed(progress, &c->sentence);
			c->is_stopped = true;
			(void)pthread_cond_broadcast(&c->arrived);
		}
		if (c->n_running > 0)
			progress_wait(&c->ended, &c->lock);
	}
	(void)pthread_mutex_unlock(&c->lock);
}

int checksums_finish(struct checksums *c, bool has_all, struct progress *progress,
		     struct sentence *s)
{
	if (!c->order)
		return 0;
	(void)pthread_mutex_lock(&c->lock);
	c->has_all = has_all;
	c->is_stopped |= !has_all;
	(void)pthread_cond_broadcast(&c->arrived);
	(void)pthread_mutex_unlock(&c->lock);
	wait_for_threads(c, progress);
	for (unsigned i = 0; i < c->n_threads; i++)
		(void)pthread_join(c->threads[i], NULL);
	c->wr->on_digest = NULL;
	(void)pthread_cond_destroy(&c->ended);
	(void)pthread_cond_destroy(&c->arrived);
	(void)pthread_mutex_destroy(&c->lock);
	free(c->order);
	c->order = NULL;
	if (c->r < 0)
		*s = c->sentence;
	else if (has_all && progress_report(progress, "verify", c->n_bytes, c->n_bytes) < 0)
		return progress_failed(progress, s);
	return c->r;
}
