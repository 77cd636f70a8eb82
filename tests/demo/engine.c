/*
 * engine: a server of MiniLM, as inference servers are, for the recipe of a standby
 *
 * Attaches the buffer, embeds a sentence so that nothing is left to be done for the first request, and waits for SIGUSR1.
 * From then on it answers on the socket that systemd passed: a line with a sentence gets a line with the process, the
 * version and the embedding.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <weightd.h>

#include "tests/demo/minilm.h"
#include "tests/demo/wordpiece.h"

#define LISTEN_FD 3 /* the first that systemd passes */

struct engine {
	struct weightd *w;
	struct weightd_buffer *buffer;
	struct wordpiece *vocab;
	struct minilm model;
};

static int fail(const char *what, const char *why)
{
	(void)fprintf(stderr, "engine: %s: %s\n", what, why);
	return -1;
}

static const float *find_floats(void *userdata, const char *name, uint32_t n_dims,
				const uint64_t *shape)
{
	struct weightd_tensor t = {.size = sizeof(t)};

	if (weightd_buffer_find(userdata, name, &t) < 0 || t.dtype != WEIGHTD_F32 ||
	    t.n_dims != n_dims || memcmp(t.shape, shape, n_dims * sizeof(*shape)) != 0)
		return NULL;
	return t.data;
}

static int embed(const struct engine *e, const char *sentence, float embedding[MINILM_HIDDEN])
{
	uint32_t ids[MINILM_TOKENS_MAX];
	size_t n_ids = wordpiece_encode(e->vocab, sentence, MINILM_TOKENS_MAX, ids);
	int r = minilm_embed(&e->model, ids, n_ids, embedding);

	return r < 0 ? fail("cannot embed", strerror(-r)) : 0;
}

static int warm_up(struct engine *e, const char *name, const char *vocab)
{
	float embedding[MINILM_HIDDEN];
	char missing[MINILM_NAME_MAX];
	int r = wordpiece_new(vocab, &e->vocab);

	if (r < 0)
		return fail(vocab, strerror(-r));
	r = weightd_new(&e->w);
	if (r == 0)
		r = weightd_connect(e->w, NULL);
	if (r == 0)
		r = weightd_attach(e->w, name, NULL, &e->buffer);
	if (r < 0)
		return fail(name, e->w ? weightd_error(e->w) : strerror(-r));
	if (minilm_bind(&e->model, find_floats, e->buffer, missing) < 0)
		return fail("no all-MiniLM-L6-v2, without", missing);
	return embed(e, "a sentence", embedding);
}

/* Type=notify of the unit. */
static int notify_ready(void)
{
	static const char text[] = "READY=1";
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	const char *path = getenv("NOTIFY_SOCKET");
	int fd;
	ssize_t n;

	if (!path || path[0] != '/' || strlen(path) >= sizeof(to.sun_path))
		return fail("NOTIFY_SOCKET", "systemd has to start this");
	(void)strcpy(to.sun_path, path);
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return fail("socket", strerror(errno));
	n = sendto(fd, text, strlen(text), 0, (struct sockaddr *)&to, sizeof(to));
	(void)close(fd);
	return n < 0 ? fail(path, strerror(errno)) : 0;
}

static void answer(const struct engine *e, FILE *client)
{
	float embedding[MINILM_HIDDEN];
	unsigned char bytes[sizeof(embedding)];
	char line[4096];

	if (!fgets(line, sizeof(line), client) || embed(e, line, embedding) < 0)
		return;
	memcpy(bytes, embedding, sizeof(bytes));
	(void)fprintf(client, "{\"pid\": %d, \"version\": %llu, \"embedding\": \"", getpid(),
		      (unsigned long long)weightd_buffer_version(e->buffer));
	for (size_t i = 0; i < sizeof(bytes); i++)
		(void)fprintf(client, "%02x", bytes[i]);
	(void)fputs("\"}\n", client);
}

static int serve(const struct engine *e)
{
	for (;;) {
		int fd = accept(LISTEN_FD, NULL, NULL);
		FILE *client = fd < 0 ? NULL : fdopen(fd, "r+");

		if (!client)
			return fail("accept", strerror(errno));
		answer(e, client);
		(void)fclose(client);
	}
}

/* Blocked before the service manager can send it, so that none is lost. */
static int wait_for_promotion(void)
{
	sigset_t promotion;
	int number;

	(void)sigemptyset(&promotion);
	(void)sigaddset(&promotion, SIGUSR1);
	(void)sigprocmask(SIG_BLOCK, &promotion, NULL);
	if (notify_ready() < 0)
		return -1;
	return sigwait(&promotion, &number) == 0 ? 0 : -1;
}

int main(int argc, char **argv)
{
	struct engine e = {0};

	if (argc != 3) {
		(void)fputs("usage: engine NAME VOCAB.TXT\n", stderr);
		return 2;
	}
	(void)signal(SIGPIPE, SIG_IGN);
	if (warm_up(&e, argv[1], argv[2]) < 0 || wait_for_promotion() < 0 || serve(&e) < 0)
		return 1;
	return 0;
}
