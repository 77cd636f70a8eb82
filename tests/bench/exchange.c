/*
 * exchange MESSAGE PAIRS BATCHES: what a message costs that one thread sends to itself over TCP
 *
 * For each line of standard input it sends and receives PAIRS messages of that many bytes, BATCHES times,
 * and prints the processor's nanoseconds of each batch in a line. One thread that does both, and its own
 * time: that is the same on a machine that others use.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/bench/stopwatch.h"

#define ROOM (8 << 20) /* in either buffer, where the kernel allows that much */

struct pair {
	int from, to;
	char *message;
	size_t size;
};

static void check(int r, const char *what)
{
	if (r < 0)
		stopwatch_fail("%s: %s", what, strerror(errno));
}

static void connect_pair(struct pair *p)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int listener = socket(AF_INET, SOCK_STREAM, 0), room = ROOM, on = 1;
	socklen_t n = sizeof(at);

	p->from = socket(AF_INET, SOCK_STREAM, 0);
	check(listener < 0 ? listener : p->from, "socket");
	check(setsockopt(p->from, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)), "SO_SNDBUF");
	check(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)), "SO_RCVBUF");
	check(setsockopt(p->from, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), "TCP_NODELAY");
	check(bind(listener, (const struct sockaddr *)&at, sizeof(at)), "bind");
	check(getsockname(listener, (struct sockaddr *)&at, &n), "getsockname");
	check(listen(listener, 1), "listen");
	check(connect(p->from, (const struct sockaddr *)&at, sizeof(at)), "connect");
	p->to = accept(listener, NULL, NULL);
	check(p->to, "accept");
	(void)close(listener);
}

/* Bytes without room wait until the rest was received. */
static void exchange(const struct pair *p)
{
	size_t sent = 0, received = 0;
	ssize_t n;

	while (received < p->size) {
		n = sent < p->size ? send(p->from, p->message + sent, p->size - sent, MSG_DONTWAIT)
				   : 0;
		if (n < 0 && errno != EAGAIN)
			stopwatch_fail("send: %s", strerror(errno));
		sent += n > 0 ? (size_t)n : 0;
		if (sent == received) /* the received bytes are not acknowledged yet */
			continue;
		n = recv(p->to, p->message, sent - received, 0);
		if (n <= 0)
			stopwatch_fail("recv: %s", n < 0 ? strerror(errno) : "the connection ended");
		received += (size_t)n;
	}
}

int main(int argc, char **argv)
{
	struct pair p = {.size = argc == 4 ? stopwatch_number(argv[1]) : 0};
	uint64_t pairs, batches, began;
	char line[64];

	if (argc != 4)
		stopwatch_fail("wants MESSAGE PAIRS BATCHES");
	pairs = stopwatch_number(argv[2]);
	batches = stopwatch_number(argv[3]);
	p.message = calloc(1, p.size);
	if (!p.message)
		stopwatch_fail("no memory");
	connect_pair(&p);
	(void)setvbuf(stdout, NULL, _IOLBF, 0);
	(void)puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		for (uint64_t i = 0; i < batches; i++) {
			began = stopwatch_cpu_ns();
			for (uint64_t j = 0; j < pairs; j++)
				exchange(&p);
			(void)printf("%s%" PRIu64, i ? " " : "", stopwatch_cpu_ns() - began);
		}
		(void)putchar('\n');
	}
	free(p.message);
	return 0;
}
