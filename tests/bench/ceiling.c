/*
 * ceiling existing|fresh|memcpy FILE...: how fast files in the page cache get into huge pages and are digested
 *
 * The best any loader can hope for: one thread a core (4 at most) takes block after block, reads it by pread
 * and digests it by XXH3-128 while it is hot. "existing": into pages that are there already. "fresh":
 * each block's pages are made first, by the thread that fills them. "memcpy": as many bytes of memory, by one thread, without
 * a digest, into pages that are there. Prints the nanoseconds that passed and those of the processors.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/bench/slab.h"
#include "tests/bench/stopwatch.h"

#define LEAF ((uint64_t)1 << 20) /* bytes that weightd digests at a time */
#define THREADS_MAX 4

/* XXH3_128bits() of libxxhash, which weightd's own code does not share. */
struct hash {
	uint64_t low, high;
};
typedef struct hash (*hash_fn)(const void *data, size_t size);

struct file {
	int fd;
	uint64_t start, size; /* in the memory, at a multiple of a block */
};

struct work {
	struct file *files;
	unsigned n_files;
	char *to;
	uint64_t size;
	bool fresh;
	hash_fn hash;
	uint64_t started, cpu_started;
	_Atomic uint64_t next; /* the first byte that no thread has taken */
	_Atomic uint64_t sum; /* sum of the digests, so that they are computed */
};

static hash_fn find_hash(void)
{
	void *library = dlopen("libxxhash.so.0", RTLD_NOW);
	hash_fn hash = NULL;
	/* The first chooses by the processor, where the library was built with it. */
	void *found = library ? dlsym(library, "XXH3_128bits_dispatch") : NULL;

	if (library && !found)
		found = dlsym(library, "XXH3_128bits");
	if (!found)
		stopwatch_fail("%s (apt-get install libxxhash0)", dlerror());
	memcpy(&hash, &found, sizeof(hash)); /* ISO C has no cast for that */
	return hash;
}

static void read_leaf(struct work *w, const struct file *f, uint64_t at, uint64_t size)
{
	struct hash hash;

	for (uint64_t done = 0; done < size;) {
		ssize_t n = pread(f->fd, w->to + at + done, size - done,
				  (off_t)(at - f->start + done));

		if (n <= 0)
			stopwatch_fail("the file cannot be read: %s", strerror(n < 0 ? errno : EIO));
		done += (uint64_t)n;
	}
	hash = w->hash(w->to + at, size);
	atomic_fetch_add_explicit(&w->sum, hash.low ^ hash.high, memory_order_relaxed);
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static void read_block(struct work *w, uint64_t block)
{
	const struct file *f = w->files;
	uint64_t end;

	while (block - f->start >= f->size)
		f++;
	end = smaller(block + SLAB_HUGE, f->start + f->size);
	if (w->fresh)
		(void)slab_provide(w->to + block, SLAB_HUGE);
	for (uint64_t at = block; at < end; at += LEAF)
		read_leaf(w, f, at, smaller(LEAF, end - at));
}

static void *thread_main(void *arg)
{
	struct work *w = arg;
	uint64_t block;

	while ((block = atomic_fetch_add_explicit(&w->next, SLAB_HUGE, memory_order_relaxed)) <
	       w->size)
		read_block(w, block);
	return NULL;
}

static void run(struct work *w)
{
	pthread_t threads[THREADS_MAX];
	cpu_set_t cpus;
	int n = sched_getaffinity(0, sizeof(cpus), &cpus) < 0 ? 1 : CPU_COUNT(&cpus);

	if (n > THREADS_MAX)
		n = THREADS_MAX;
	for (int i = 0; i < n; i++)
		if (pthread_create(&threads[i], NULL, thread_main, w))
			stopwatch_fail("no thread");
	for (int i = 0; i < n; i++)
		(void)pthread_join(threads[i], NULL);
}

static void open_files(struct work *w, char **paths, int n)
{
	w->files = calloc((size_t)n, sizeof(*w->files));
	if (!w->files)
		stopwatch_fail("no memory");
	for (; w->n_files < (unsigned)n; w->n_files++) {
		struct file *f = &w->files[w->n_files];
		struct stat st;

		f->fd = open(paths[w->n_files], O_RDONLY | O_CLOEXEC);
		if (f->fd < 0 || fstat(f->fd, &st) < 0 || st.st_size == 0)
			stopwatch_fail("%s: %s", paths[w->n_files], strerror(errno));
		f->start = w->size;
		f->size = (uint64_t)st.st_size;
		w->size += (f->size + SLAB_HUGE - 1) & ~(SLAB_HUGE - 1);
	}
}

static void copy(struct work *w)
{
	char *from = slab_new(w->size);

	(void)slab_provide(from, w->size);
	memset(from, 2, w->size);
	w->started = stopwatch_ns();
	w->cpu_started = stopwatch_cpu_ns();
	memcpy(w->to, from, w->size);
	w->sum = (unsigned char)w->to[w->size - 1]; /* so that it is done */
}

int main(int argc, char **argv)
{
	struct work w = {.hash = find_hash()};
	bool is_copy = argc > 2 && !strcmp(argv[1], "memcpy");

	if (argc < 3 || (!is_copy && strcmp(argv[1], "existing") && strcmp(argv[1], "fresh")))
		stopwatch_fail("wants existing|fresh|memcpy FILE...");
	w.fresh = !strcmp(argv[1], "fresh");
	open_files(&w, argv + 2, argc - 2);
	w.to = slab_new(w.size);
	if (!w.fresh) {
		(void)slab_provide(w.to, w.size);
		memset(w.to, 1, w.size);
	}

	w.started = stopwatch_ns();
	w.cpu_started = stopwatch_cpu_ns();
	if (is_copy)
		copy(&w);
	else
		run(&w);
	(void)printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", stopwatch_ns() - w.started,
		     stopwatch_cpu_ns() - w.cpu_started, w.sum);
	return 0;
}
