/*
 * The cost of connections of agents: tool_connections FOLDER COUNT. Opens COUNT connections between
 * two nodes a and b in this process, over sockets of the kernel, from the start to both ends'
 * hello, with certificates ca.crt, a.crt, a.key, b.crt and b.key in FOLDER. One JSON object on
 * standard output:
 *
 *	connections
 *	handshake_cpu_s		one end of one
 *	heap_bytes		one end of one, at rest
 */
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#include "ipc/base/num.h"
#include "server/sync/net/connection.h"

#define COUNT_MAX 4096

struct node {
	struct trust trust;
	SSL_CTX *context;
	struct connection_manner manner;
};

static struct loop loop;
static unsigned n_waiting; /* ends that received no hello */

__attribute__((format(printf, 1, 2), noreturn)) static void give_up(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	(void)fputs("tool_connections: ", stderr);
	(void)vfprintf(stderr, fmt, args);
	(void)fputc('\n', stderr);
	va_end(args);
	exit(1);
}

static void on_name(struct connection *c)
{
	(void)c;
}

static void on_hello(struct connection *c)
{
	(void)c;
	if (--n_waiting == 0)
		loop_quit(&loop);
}

static void on_message(struct connection *c, const json_t *message)
{
	(void)c, (void)message;
}

static uint64_t blob_limit(struct connection *c, const uint8_t hash[32])
{
	(void)c, (void)hash;
	return 0;
}

static void on_blob(struct connection *c, const uint8_t hash[32], int fd, uint64_t size)
{
	(void)c, (void)hash, (void)fd, (void)size;
}

static void on_end(struct connection *c)
{
	give_up("a connection ended: %s", c->why);
}

static const struct connection_events EVENTS = {
	.on_name = on_name,
	.on_hello = on_hello,
	.on_message = on_message,
	.blob_limit = blob_limit,
	.on_blob = on_blob,
	.on_end = on_end,
};

static void init_node(struct node *n, const char *folder, const char *name)
{
	char paths[3][4096], why[WHY_SIZE];
	struct trust_files files = {.ca = paths[0], .certificate = paths[1], .key = paths[2]};

	(void)snprintf(paths[0], sizeof(paths[0]), "%s/ca.crt", folder);
	(void)snprintf(paths[1], sizeof(paths[1]), "%s/%s.crt", folder, name);
	(void)snprintf(paths[2], sizeof(paths[2]), "%s/%s.key", folder, name);
	trust_init(&n->trust);
	if (trust_load(&files, name, &n->trust, why) < 0 ||
	    tls_context_new(&n->trust, &n->context, why) < 0)
		give_up("%s", why);
	/* No pings meanwhile. */
	n->manner = (struct connection_manner){.loop = &loop,
					       .events = &EVENTS,
					       .node = name,
					       .incarnation = 1,
					       .heartbeat_ns = (uint64_t)3600 * 1000000000};
}

static void connect_them(struct node *a, struct node *b, struct connection *ret[2])
{
	const struct address none = {0};
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0)
		give_up("there are too few descriptors for so many");
	if (connection_new(&a->manner, a->context, fds[0], &none, true, NULL, &ret[0]) < 0 ||
	    connection_new(&b->manner, b->context, fds[1], &none, false, NULL, &ret[1]) < 0)
		give_up("no memory");
}

/* Waits for `n` connections. */
static void await_hellos(unsigned n)
{
	n_waiting = 2 * n;
	loop.quit = false;
	if (loop_run(&loop) < 0)
		give_up("the loop broke");
}

static double cpu_s(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static size_t heap(void)
{
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

static void allow_descriptors(void)
{
	struct rlimit files;

	(void)getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &files);
}

int main(int argc, char **argv)
{
	unsigned long n = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
	static struct connection *connections[COUNT_MAX + 1][2];
	struct node a, b;
	size_t before;
	double cpu;

	if (n == 0 || n > COUNT_MAX) {
		(void)fprintf(stderr, "tool_connections: wants FOLDER COUNT\n");
		return 2;
	}
	allow_descriptors();
	if (loop_init(&loop) < 0)
		give_up("no loop");
	init_node(&a, argv[1], "a");
	init_node(&b, argv[1], "b");
	connect_them(&a, &b,
		     connections[0]); /* one more, for the one-time initialization of libraries */
	await_hellos(1);
	before = heap();
	cpu = cpu_s();
	for (unsigned long i = 1; i <= n; i++)
		connect_them(&a, &b, connections[i]);
	await_hellos((unsigned)n);
	(void)printf("{\"connections\": %lu, \"handshake_cpu_s\": %.6f, \"heap_bytes\": %zu}\n", n,
		     (cpu_s() - cpu) / 2 / (double)n, (heap() - before) / 2 / n);
	return 0; /* the process ends, and frees all */
}
