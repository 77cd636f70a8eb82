/*
 * follower FILE NAME: reads the newest version of a buffer over and over until it is killed, word by word, and
 * counts in a file what it saw
 *
 * A version is its tag, the number of its words, and where each word stands: a byte of another version, or of
 * another place, shows.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <weightd.h>

#define TAGS (1 << 20)
#define PAGE_WORDS 512 /* that are alike */
#define STEP 0x9e3779b97f4a7c15u
#define WAIT_MS 1000
#define LOOKS 8 /* before it attaches anew */

struct sightings {
	_Atomic uint64_t n_reads; /* of all words of a version */
	_Atomic uint64_t n_bytes;
	_Atomic uint64_t n_mixed;
	_Atomic uint64_t n_errors; /* that should not be */
	_Atomic uint64_t last; /* tag */
	char story[512]; /* of the first fault */
	_Atomic uint64_t n_reads_of[TAGS];
};

struct follower {
	struct sightings *s;
	const char *name;
	struct weightd *w;
	struct weightd_buffer *b; /* NULL: not attached */
};

__attribute__((format(printf, 3, 4))) static void fault(struct sightings *s, _Atomic uint64_t *count,
							const char *fmt, ...)
{
	va_list args;

	atomic_fetch_add(count, 1);
	if (s->story[0])
		return;
	va_start(args, fmt);
	(void)vsnprintf(s->story, sizeof(s->story), fmt, args);
	va_end(args);
}

static struct sightings *open_sightings(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct sightings *s = MAP_FAILED;

	if (fd >= 0)
		s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (s == MAP_FAILED) {
		perror(path);
		exit(EXIT_FAILURE);
	}
	return s;
}

static bool is_whole(const uint64_t *words, uint64_t n)
{
	uint64_t difference = words[0] ^ ((words[0] >> 32 << 32) | n);

	for (uint64_t i = 0; i < n; i++)
		difference |= words[i] ^ (words[0] + i / PAGE_WORDS * STEP);
	return difference == 0;
}

static void look(struct follower *f)
{
	struct sightings *s = f->s;
	uint64_t n_bytes;
	const uint64_t *words = weightd_buffer_data(f->b, &n_bytes);
	uint64_t tag = words[0] >> 32;

	if (!is_whole(words, n_bytes / sizeof(*words)) || tag >= TAGS) {
		fault(s, &s->n_mixed, "%s@%" PRIu64 ", %" PRIu64 " bytes, begins as %" PRIx64,
		      f->name, weightd_buffer_version(f->b), n_bytes, words[0]);
		return;
	}
	atomic_fetch_add(&s->n_reads_of[tag], 1);
	atomic_store(&s->last, tag);
	atomic_fetch_add(&s->n_bytes, n_bytes);
	atomic_fetch_add(&s->n_reads, 1);
}

static void let_go(struct follower *f)
{
	weightd_detach(f->b);
	f->b = NULL;
}

static void report(struct follower *f, const char *what, int error)
{
	static const int PASSING[] = {ENOENT, ENODATA, EAGAIN, ETIMEDOUT, ESTALE};

	for (size_t i = 0; i < sizeof(PASSING) / sizeof(PASSING[0]); i++)
		if (error == -PASSING[i])
			return;
	/* Its weightd was killed: there will be another one. */
	if (error == -ENOTCONN)
		while (weightd_connect(f->w, NULL) < 0)
			;
	else
		fault(f->s, &f->s->n_errors, "%s: %s: %s (%s)", f->name, what, strerror(-error),
		      weightd_error(f->w));
}

static void follow(struct follower *f)
{
	struct weightd_attach_options o = {.size = sizeof(o), .timeout_ms = WAIT_MS};
	int r = weightd_attach(f->w, f->name, &o, &f->b);

	if (r < 0)
		report(f, "attach", r);
	for (int i = 0; r >= 0 && i < LOOKS; i++) {
		struct weightd_buffer *new;

		look(f);
		r = weightd_buffer_refresh(f->b, &new);
		if (r > 0) {
			let_go(f);
			f->b = new;
		} else if (r < 0) {
			report(f, "refresh", r);
		}
	}
	let_go(f);
}

int main(int argc, char **argv)
{
	struct follower f = {0};

	if (argc != 3)
		return 2;
	f.s = open_sightings(argv[1]);
	f.name = argv[2];
	if (weightd_new(&f.w) < 0)
		return 1;
	while (weightd_connect(f.w, NULL) < 0)
		;
	for (;;)
		follow(&f);
}
