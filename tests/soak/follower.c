/*
 * follower FILE NAME: reads the newest version of a buffer over and over until it is killed, number
 * by number, and counts its observations in a file
 *
 * A version is of fp32 numbers in pages. The first of a page is the version's tag, the others are
 * the tag of another one with which it has all but these in common, and each has an addend that
 * depends on the page and on how many there are: a byte of another version, or of another place,
 * shows. All are whole and so small that means of them are exact: the mean of versions is again
 * one, and its tags are means of theirs.
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
#define PAGE_NUMBERS 1024
#define STEP 2654435761u
#define WAIT_MS 1000
#define LOOKS 8 /* before it attaches anew */

struct sightings {
	_Atomic uint64_t n_reads; /* reads of all words of a version */
	_Atomic uint64_t n_bytes;
	_Atomic uint64_t n_mixed;
	_Atomic uint64_t n_errors; /* that should not be */
	_Atomic uint64_t last; /* tag */
	char story[512]; /* describes the first fault */
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

static uint32_t place(uint64_t page, uint64_t n_pages)
{
	return (uint32_t)(page + n_pages) * STEP >> 12;
}

static uint32_t bits_of(float number)
{
	uint32_t bits;

	memcpy(&bits, &number, sizeof(bits));
	return bits;
}

static bool is_tag(float number)
{
	return number >= 0 && number < TAGS && (float)(uint32_t)number == number;
}

static bool is_whole(const float *numbers, uint64_t n_pages, uint32_t *ret_tag)
{
	float first = numbers[0] - (float)place(0, n_pages);
	float other = numbers[1] - (float)place(0, n_pages);
	uint32_t difference = 0;

	for (uint64_t page = 0; page < n_pages; page++) {
		const uint32_t *bits = (const uint32_t *)numbers + page * PAGE_NUMBERS;
		float here = (float)place(page, n_pages);
		uint32_t expected = bits_of(other + here);

		difference |= bits[0] ^ bits_of(first + here);
		for (uint64_t i = 1; i < PAGE_NUMBERS; i++)
			difference |= bits[i] ^ expected;
	}
	if (difference || !is_tag(first) || !is_tag(other))
		return false;
	*ret_tag = (uint32_t)first;
	return true;
}

static void look(struct follower *f)
{
	struct sightings *s = f->s;
	uint64_t n_bytes;
	const float *numbers = weightd_buffer_data(f->b, &n_bytes);
	uint32_t tag;

	if (!is_whole(numbers, n_bytes / sizeof(*numbers) / PAGE_NUMBERS, &tag)) {
		fault(s, &s->n_mixed, "%s@%" PRIu64 ", %" PRIu64 " bytes, begins with %f, %f",
		      f->name, weightd_buffer_version(f->b), n_bytes, (double)numbers[0],
		      (double)numbers[1]);
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
