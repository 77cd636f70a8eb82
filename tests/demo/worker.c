/*
 * worker: one of the demo's processes, in C
 *
 * Attaches a buffer, or reads a file into private memory (--file), and computes over the weights: the
 * embeddings of the sentences it was given, if it was given BERT's vocabulary, and a checksum over all
 * bytes. Prints one line of JSON for each version it sees. With --follow it stays until SIGTERM or the
 * end of its standard input. The server is the one of $WEIGHTD_SOCKET. worker.py is its twin.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <weightd.h>

#include "tests/demo/filecopy.h"
#include "tests/demo/minilm.h"
#include "tests/demo/wordpiece.h"

#define STOP_CHECK_MS 100 /* how often a waiting worker looks whether it shall end */

struct options {
	const char *name, *file, *vocab;
	bool follow;
	char **sentences; /* up to a NULL */
};

/* The weights in use: one of the two. */
struct source {
	struct weightd_buffer *buffer;
	struct filecopy *copy;
};

static volatile sig_atomic_t stopped;

static void stop(int signal_number)
{
	(void)signal_number;
	stopped = 1;
}

__attribute__((format(printf, 1, 2))) static int fail(const char *format, ...)
{
	va_list args;

	fputs("worker: ", stderr);
	va_start(args, format);
	(void)vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	return -1;
}

static double now_us(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

/* --- Computing --------------------------------------------------------------------------------- */

static const float *find_floats(void *userdata, const char *name, uint32_t n_dims,
				const uint64_t *shape)
{
	const struct source *s = userdata;
	struct weightd_tensor t = {.size = sizeof(t)};

	if (s->buffer) {
		if (weightd_buffer_find(s->buffer, name, &t) < 0)
			return NULL;
	} else {
		const struct weightd_tensor *found = filecopy_find(s->copy, name);

		if (!found)
			return NULL;
		t = *found;
	}
	if (t.dtype != WEIGHTD_F32 || t.n_dims != n_dims ||
	    memcmp(t.shape, shape, n_dims * sizeof(*shape)) != 0)
		return NULL;
	return t.data;
}

/* The sum of the 64-bit words, the last one filled up with zeros. */
static uint64_t sum_words(const void *data, size_t size)
{
	const char *p = data;
	uint64_t sum = 0, word;

	for (; size >= sizeof(word); size -= sizeof(word), p += sizeof(word)) {
		memcpy(&word, p, sizeof(word));
		sum += word;
	}
	word = 0;
	memcpy(&word, p, size);
	return sum + word;
}

static uint64_t checksum(const struct source *s)
{
	struct weightd_tensor t = {.size = sizeof(t)};
	uint64_t sum = 0;

	if (s->buffer)
		for (uint32_t i = 0; weightd_buffer_tensor(s->buffer, i, &t) == 0; i++)
			sum += sum_words(t.data, t.n_bytes);
	else
		for (size_t i = 0; i < s->copy->n_tensors; i++)
			sum += sum_words(s->copy->tensors[i].data, s->copy->tensors[i].n_bytes);
	return sum;
}

static int print_embedding(const struct minilm *m, const struct wordpiece *vocab,
			   const char *sentence)
{
	uint32_t ids[MINILM_TOKENS_MAX];
	size_t n_ids = wordpiece_encode(vocab, sentence, MINILM_TOKENS_MAX, ids);
	float embedding[MINILM_HIDDEN];
	unsigned char bytes[sizeof(embedding)];
	int r;

	r = minilm_embed(m, ids, n_ids, embedding);
	if (r < 0)
		return fail("cannot embed '%s': %s", sentence, strerror(-r));
	memcpy(bytes, embedding, sizeof(bytes));
	for (size_t i = 0; i < sizeof(bytes); i++)
		(void)printf("%02x", bytes[i]);
	return 0;
}

/* Everything about one version, as one line. */
static int report(const struct options *o, const struct source *s, const struct wordpiece *vocab,
		  double start_us)
{
	char missing[MINILM_NAME_MAX];
	struct minilm m;
	double attach_us, compute_us;

	if (vocab && minilm_bind(&m, find_floats, (void *)s, missing) < 0)
		return fail("not all-MiniLM-L6-v2: '%s' is missing, or is of another shape",
			    missing);
	attach_us = now_us() - start_us;

	(void)printf("{\"program\": \"C\", \"pid\": %d, \"version\": %" PRIu64 ", \"embeddings\": [",
		     getpid(), s->buffer ? weightd_buffer_version(s->buffer) : 0);
	start_us = now_us();
	for (char **sentence = o->sentences; vocab && *sentence; sentence++) {
		(void)fputs(sentence == o->sentences ? "\"" : ", \"", stdout);
		if (print_embedding(&m, vocab, *sentence) < 0)
			return -1;
		(void)putchar('"');
	}
	(void)printf("], \"checksum\": \"%016" PRIx64 "\"", checksum(s));
	compute_us = now_us() - start_us;
	if (s->buffer)
		(void)printf(", \"address\": %" PRIuPTR,
			     (uintptr_t)weightd_buffer_data(s->buffer, NULL));
	(void)printf(", \"attach_us\": %.1f, \"compute_us\": %.0f}\n", attach_us, compute_us);
	return fflush(stdout) == 0 ? 0 : fail("cannot write: %s", strerror(errno));
}

/* --- Versions ---------------------------------------------------------------------------------- */

static bool should_stop(void)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	char c;

	if (stopped)
		return true;
	return poll(&input, 1, 0) == 1 && read(STDIN_FILENO, &c, 1) <= 0;
}

/* Moves to each new version as it comes. */
static int follow(const struct options *o, struct weightd *w, struct source *s,
		  const struct wordpiece *vocab)
{
	while (!should_stop()) {
		struct weightd_buffer *next;
		uint64_t latest;
		double start_us;
		int r;

		r = weightd_buffer_wait(s->buffer, weightd_buffer_version(s->buffer), STOP_CHECK_MS,
					&latest);
		if (r == -ETIMEDOUT)
			continue;
		if (r < 0)
			return fail("cannot wait for '%s': %s", o->name, strerror(-r));
		start_us = now_us();
		r = weightd_buffer_refresh(s->buffer, &next);
		if (r < 0)
			return fail("%s", weightd_error(w));
		if (r == 0)
			continue;
		weightd_detach(s->buffer);
		s->buffer = next;
		if (report(o, s, vocab, start_us) < 0)
			return -1;
	}
	return 0;
}

static int run_attached(const struct options *o, const struct wordpiece *vocab)
{
	struct source s = {0};
	struct weightd *w = NULL;
	double start_us = now_us();
	int r;

	r = weightd_new(&w);
	if (r == 0)
		r = weightd_connect(w, NULL);
	if (r == 0)
		r = weightd_attach(w, o->name, NULL, &s.buffer);
	if (r < 0)
		r = fail("%s", w ? weightd_error(w) : strerror(-r));
	else
		r = report(o, &s, vocab, start_us);
	if (r == 0 && o->follow)
		r = follow(o, w, &s, vocab);
	weightd_detach(s.buffer);
	weightd_close(w);
	return r;
}

static int run_file(const struct options *o, const struct wordpiece *vocab)
{
	struct source s = {0};
	double start_us = now_us();
	int r;

	r = filecopy_new(o->file, &s.copy);
	if (r < 0)
		return fail("cannot read '%s': %s", o->file, strerror(-r));
	r = report(o, &s, vocab, start_us);
	filecopy_free(s.copy);
	return r;
}

/* --- The command line -------------------------------------------------------------------------- */

static const char usage[] =
	"usage: worker [--vocab VOCAB.TXT] [--follow] NAME [SENTENCE...]\n"
	"       worker [--vocab VOCAB.TXT] --file MODEL.SAFETENSORS [SENTENCE...]\n";

static bool parse(int argc, char **argv, struct options *ret)
{
	static const struct option longs[] = {
		{"file", required_argument, NULL, 'f'},
		{"vocab", required_argument, NULL, 'v'},
		{"follow", no_argument, NULL, 'w'},
		{0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "+", longs, NULL)) != -1)
		switch (c) {
		case 'f':
			ret->file = optarg;
			break;
		case 'v':
			ret->vocab = optarg;
			break;
		case 'w':
			ret->follow = true;
			break;
		default:
			return false;
		}
	if (!ret->file)
		ret->name = argv[optind++];
	if (!ret->file && !ret->name)
		return false;
	ret->sentences = argv + optind;
	return !(ret->file && ret->follow);
}

int main(int argc, char **argv)
{
	struct options o = {0};
	struct wordpiece *vocab = NULL;
	int r = 0;

	if (!parse(argc, argv, &o)) {
		(void)fputs(usage, stderr);
		return 2;
	}
	(void)sigaction(SIGTERM, &(struct sigaction){.sa_handler = stop}, NULL);
	if (o.vocab)
		r = wordpiece_new(o.vocab, &vocab);
	if (r < 0)
		r = fail("cannot read the vocabulary '%s': %s", o.vocab, strerror(-r));
	else
		r = o.file ? run_file(&o, vocab) : run_attached(&o, vocab);
	wordpiece_free(vocab);
	return r < 0 ? 1 : 0;
}
