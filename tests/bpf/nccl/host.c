/*
 * NCCL, as a plug-in of its profiler sees it: loads a plug-in and calls it as the lines of its standard input ask,
 * and answers each line with one. test_nccl_plugin.py has the words, descr.c the descriptors.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/bpf/nccl/descr.h"

#define REGISTERS 64
#define THREADS_MAX 16
#define WORDS_MAX 16

/* Constants of verbs. */
#define QP_NUM 52
#define READY_TO_RECEIVE 2
#define MASK_STATE 0x1
#define MASK_PEER 0x100000

/* The transport of a network event, and its version. */
#define OF_QP (1 << 16 | 1)
#define OF_SOCKET (2 << 16 | 1)

typedef void (*log_fn)(int level, unsigned long flags, const char *file, int line,
		       const char *format, ...);

struct table_v4 {
	const char *name;
	int (*init)(void **context, int *mask, const char *name, uint64_t hash, int n_nodes,
		    int n_ranks, int rank, log_fn log);
	int (*start)(void *context, void **handle, void *descr);
	int (*stop)(void *handle);
	int (*state)(void *handle, int state, void *args);
	int (*finalize)(void *context);
};

struct table {
	const char *name;
	int (*init)(void **context, uint64_t hash, int *mask, const char *name, int n_nodes,
		    int n_ranks, int rank, log_fn log);
	int (*start)(void *context, void **handle, void *descr);
	int (*stop)(void *handle);
	int (*state)(void *handle, int state, void *args);
	int (*finalize)(void *context);
};

enum {
	SEND_WAIT = 9,
	RECV_FLUSH_WAIT = 11,
	RECV_GPU_WAIT = 12
};

static int version;
static void *library, *verbs;
static const struct table *table; /* v4's differs in init() alone */
static const struct table_v4 *table_v4;
static void *contexts[REGISTERS], *handles[REGISTERS];
static void *queue_pairs[REGISTERS];
static int fds[REGISTERS];
static char last_log[512];

static void on_log(int level, unsigned long flags, const char *file, int line, const char *format,
		   ...)
{
	va_list args;

	(void)level;
	(void)flags;
	(void)file;
	(void)line;
	va_start(args, format);
	(void)vsnprintf(last_log, sizeof(last_log), format, args);
	va_end(args);
}

static void check(int r)
{
	if (r != 0) {
		(void)printf("a callback returned %d\n", r);
		exit(1);
	}
}

static int number(const char *word)
{
	return (int)strtol(word, NULL, 0);
}

/* `-` is none, `!` a wild one, and else that of a register. */
static void *one_of(void **registers, const char *word)
{
	return *word == '-'   ? NULL
	       : *word == '!' ? (void *)(uintptr_t)0xdeadbeefcafe
			      : registers[number(word)];
}

static void *handle_of(const char *word)
{
	return one_of(handles, word);
}

static void *context_of(const char *word)
{
	return one_of(contexts, word);
}

static int init(void **context, int *mask, const char *name, uint64_t hash, int n_nodes,
		int n_ranks, int rank, log_fn log)
{
	if (version == 4)
		return table_v4->init(context, mask, name, hash, n_nodes, n_ranks, rank, log);
	return table->init(context, hash, mask, name, n_nodes, n_ranks, rank, log);
}

/* Frees `d`. */
static void *start(void *context, void *d)
{
	void *handle = (void *)(uintptr_t)1;

	check(table->start(context, &handle, d));
	free(d);
	return handle;
}

static void *start_socket(void *context, void *parent, int fd, bool is_send, size_t length)
{
	struct net_socket n = {.type = 1,
			       .socket = {.fd = fd, .op = is_send ? 0 : 1, .length = length}};

	return start(context, descr_net(version, parent, OF_SOCKET, &n));
}

static void set_state(void *handle, int state, size_t size)
{
	size_t args = size;

	check(table->state(handle, state, &args));
}

/* --- Bytes on a network ----------------------------------------------------------------------- */

static void carry(int from, int to, size_t size)
{
	static _Thread_local char bytes[65536];
	size_t sent = 0, received = 0;

	while (received < size) {
		if (sent < size) {
			size_t n = size - sent < sizeof(bytes) ? size - sent : sizeof(bytes);
			ssize_t r = send(from, bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL);

			sent += r > 0 ? (size_t)r : 0;
		}
		ssize_t r = recv(to, bytes, sizeof(bytes), sent < size ? MSG_DONTWAIT : 0);

		received += r > 0 ? (size_t)r : 0;
	}
}

static void connect_pair(int *ret_a, int *ret_b)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (bind(listener, (struct sockaddr *)&address, size) < 0 || listen(listener, 1) < 0 ||
	    getsockname(listener, (struct sockaddr *)&address, &size) < 0)
		abort();
	*ret_a = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(*ret_a, (struct sockaddr *)&address, size) < 0)
		abort();
	*ret_b = accept(listener, NULL, NULL);
	(void)close(listener);
}

static uint64_t cookie_of(int fd)
{
	socklen_t size = sizeof(uint64_t);
	uint64_t cookie = 0;

	(void)getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size);
	return cookie;
}

/* As NCCL does it: the call stops when its work is handed over, then the proxy begins. */
static void all_reduce(void *context, uint64_t seq, int a, int b, size_t size)
{
	void *group = start(context, descr_new(version, GROUP, NULL));
	/* As NCCL 2.27 does it. */
	void *coll = version > 4 || group ? start(context, descr_coll(version, group, "AllReduce",
								      size / 4, "ncclFloat32", seq))
					  : NULL;

	check(table->stop(coll));
	check(table->stop(group));
	void *ops[2] = {start(context, descr_op(version, coll, 1, true, getpid())),
			start(context, descr_op(version, coll, 2, false, getpid()))};
	void *steps[2] = {start(context, descr_step(version, ops[0])),
			  start(context, descr_step(version, ops[1]))};
	void *nets[2];

	set_state(steps[0], SEND_WAIT, size);
	nets[0] = start_socket(context, steps[0], a, true, size);
	nets[1] = start_socket(context, steps[1], b, false, size);
	carry(a, b, size);
	set_state(steps[1], RECV_FLUSH_WAIT, size);
	set_state(steps[1], RECV_GPU_WAIT, size);
	for (int i = 0; i < 2; i++) {
		check(table->stop(nets[i]));
		check(table->stop(steps[i]));
		check(table->stop(ops[i]));
	}
}

/* --- Many threads -------------------------------------------------------------------------------- */

static struct job {
	pthread_t thread;
	void *context;
	unsigned n;
	int a, b;
	int64_t ns; /* time in callbacks alone */
	unsigned n_calls;
} jobs[THREADS_MAX];

static int64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

static void *work(void *arg)
{
	struct job *job = arg;

	for (unsigned i = 0; i < job->n; i++)
		all_reduce(job->context, i, job->a, job->b, 4096);
	return NULL;
}

/* Descriptors are made before the clock is read: what is measured is the plug-in. */
static void *measure(void *arg)
{
	struct job *job = arg;
	struct net_socket n = {.type = 1, .socket = {.fd = job->a, .op = 0, .length = 4096}};
	void *coll = descr_coll(version, NULL, "AllReduce", 1024, "ncclFloat32", 1);
	void *op = descr_op(version, NULL, 1, true, getpid()), *step = descr_step(version, NULL);
	void *net = descr_net(version, NULL, OF_SOCKET, &n);
	void *handle[4] = {NULL};
	size_t size = 4096;
	int64_t began = now_ns();

	for (unsigned i = 0; i < job->n; i++) {
		(void)table->start(job->context, &handle[0], coll);
		descr_set_parent(version, op, handle[0]);
		(void)table->start(job->context, &handle[1], op);
		descr_set_parent(version, step, handle[1]);
		(void)table->start(job->context, &handle[2], step);
		(void)table->state(handle[2], SEND_WAIT, &size);
		descr_set_parent(version, net, handle[2]);
		(void)table->start(job->context, &handle[3], net);
		for (int k = 3; k >= 0; k--)
			(void)table->stop(handle[k]);
		job->n_calls += 9;
	}
	job->ns = now_ns() - began;
	free(coll);
	free(op);
	free(step);
	free(net);
	return NULL;
}

static void hammer(void *(*fn)(void *), unsigned n_threads, void *context, unsigned n)
{
	int64_t ns = 0, n_calls = 0;

	for (unsigned i = 0; i < n_threads; i++) {
		jobs[i] = (struct job){.context = context, .n = n};
		connect_pair(&jobs[i].a, &jobs[i].b);
		if (pthread_create(&jobs[i].thread, NULL, fn, &jobs[i]) != 0)
			abort();
	}
	for (unsigned i = 0; i < n_threads; i++) {
		(void)pthread_join(jobs[i].thread, NULL);
		(void)close(jobs[i].a);
		(void)close(jobs[i].b);
		ns += jobs[i].ns;
		n_calls += jobs[i].n_calls;
	}
	(void)printf("%.1f\n", n_calls ? (double)ns / (double)n_calls : 0.);
}

/* --- Words ---------------------------------------------------------------------------------------- */

static void do_load(char **w)
{
	char symbol[32];

	version = number(w[2]);
	library = dlopen(w[1], RTLD_NOW | RTLD_LOCAL);
	(void)snprintf(symbol, sizeof(symbol), "ncclProfiler_v%d", version);
	table = library ? dlsym(library, symbol) : NULL;
	table_v4 = (const void *)table;
	(void)printf("%s\n", table ? table->name : library ? "no table" : dlerror());
}

static void do_unload(char **w)
{
	(void)w;
	(void)printf("%d\n", dlclose(library));
}

/* init CONTEXT NAME HASH RANK */
static void do_init(char **w)
{
	const char *name = *w[2] == '-' ? NULL : w[2];
	uint64_t hash = strtoull(w[3], NULL, 16);
	int c = number(w[1]), mask = -1;

	check(init(&contexts[c], &mask, name, hash, 2, 8, number(w[4]), on_log));
	(void)printf("%d %s\n", mask, contexts[c] ? "context" : "none");
}

static void do_finalize(char **w)
{
	check(table->finalize(context_of(w[1])));
	(void)puts("ok");
}

/* HANDLE CONTEXT, of which `d` is an event */
static void begin(char **w, void *d)
{
	handles[number(w[1])] = start(context_of(w[2]), d);
	(void)puts(handles[number(w[1])] ? "handle" : "none");
}

/* event HANDLE CONTEXT PARENT TYPE */
static void do_event(char **w)
{
	begin(w, descr_new(version, strtoull(w[4], NULL, 0), handle_of(w[3])));
}

/* coll HANDLE CONTEXT PARENT FUNC COUNT DATATYPE SEQ, which strings NCCL has in its program */
static void do_coll(char **w)
{
	char *func = strdup(w[4]), *datatype = strdup(w[6]);

	begin(w, descr_coll(version, handle_of(w[3]), func, strtoull(w[5], NULL, 0), datatype,
			    strtoull(w[7], NULL, 0)));
	free(func);
	free(datatype);
}

static void do_p2p(char **w)
{
	char *func = strdup(w[4]), *datatype = strdup(w[6]);

	begin(w, descr_p2p(version, handle_of(w[3]), func, strtoull(w[5], NULL, 0), datatype,
			   number(w[7])));
	free(func);
	free(datatype);
}

/* ce HANDLE CONTEXT */
static void do_ce(char **w)
{
	begin(w, descr_ce(version));
}

/* op HANDLE CONTEXT PARENT PEER IS_SEND PID, of which 0 is this process */
static void do_op(char **w)
{
	begin(w, descr_op(version, handle_of(w[3]), number(w[4]), number(w[5]),
			  number(w[6]) ? number(w[6]) : getpid()));
}

static void do_step(char **w)
{
	begin(w, descr_step(version, handle_of(w[3])));
}

static void do_state(char **w)
{
	if (*w[3] == '-')
		check(table->state(handle_of(w[1]), number(w[2]), NULL));
	else
		set_state(handle_of(w[1]), number(w[2]), strtoull(w[3], NULL, 0));
	(void)puts("ok");
}

/* verbs LIBRARY, of which the next three make queue pairs, connect them and destroy them */
static void do_verbs(char **w)
{
	verbs = dlopen(w[1], RTLD_NOW | RTLD_LOCAL);
	(void)printf("%s\n", verbs ? "verbs" : dlerror());
}

/* make QP DEVICE, which answers with its number */
static void do_make(char **w)
{
	static struct device {
		char unused[24], name[64];
	} device;
	static struct device *context = &device;
	static struct device **domain = &context;
	void *(*make)(void *, const void *) = dlsym(verbs, "ibv_create_qp");
	const uint64_t attr[8] = {0};
	char *qp;

	(void)snprintf(device.name, sizeof(device.name), "%s", w[2]);
	qp = queue_pairs[number(w[1])] = make(&domain, attr);
	(void)printf("%u\n", *(const unsigned *)(const void *)(qp + QP_NUM));
}

/* connect QP PEER */
static void do_connect(char **w)
{
	int (*modify)(void *, const void *, int) = dlsym(verbs, "ibv_modify_qp");
	const uint32_t attr[22] = {[0] = READY_TO_RECEIVE, [7] = (uint32_t)number(w[2])};

	check(modify(queue_pairs[number(w[1])], attr, MASK_STATE | MASK_PEER));
	(void)puts("ok");
}

static void do_destroy(char **w)
{
	int (*destroy)(void *) = dlsym(verbs, "ibv_destroy_qp");

	check(destroy(queue_pairs[number(w[1])]));
	(void)puts("ok");
}

/* sock HANDLE CONTEXT PARENT FD IS_SEND LENGTH */
static void do_sock(char **w)
{
	int fd = *w[4] == '-' ? -1 : fds[number(w[4])];

	handles[number(w[1])] = start_socket(context_of(w[2]), handle_of(w[3]), fd, number(w[5]),
					     strtoull(w[6], NULL, 0));
	(void)puts("ok");
}

/* qp HANDLE CONTEXT PARENT DEVICE QP LENGTH */
static void do_qp(char **w)
{
	struct net_qp n = {.type = 1,
			   .qp = {.device = number(w[4]),
				  .wr_id = 7,
				  .number = number(w[5]),
				  .length = strtoull(w[6], NULL, 0)}};

	handles[number(w[1])] = start(context_of(w[2]),
				      descr_net(version, handle_of(w[3]), OF_QP, &n));
	(void)puts("ok");
}

/* net HANDLE CONTEXT PARENT ID, of which nothing else is good */
static void do_net(char **w)
{
	handles[number(w[1])] = start(context_of(w[2]), descr_net(version, handle_of(w[3]),
								  strtoll(w[4], NULL, 0), NULL));
	(void)puts("ok");
}

static void do_stop(char **w)
{
	check(table->stop(handle_of(w[1])));
	(void)puts("ok");
}

/* pair A B */
static void do_pair(char **w)
{
	int *a = &fds[number(w[1])], *b = &fds[number(w[2])];

	connect_pair(a, b);
	(void)printf("%d %d %" PRIu64 " %" PRIu64 "\n", *a, *b, cookie_of(*a), cookie_of(*b));
}

static void do_close(char **w)
{
	(void)close(fds[number(w[1])]);
	(void)puts("ok");
}

/* carry A B SIZE, without an event */
static void do_carry(char **w)
{
	carry(fds[number(w[1])], fds[number(w[2])], strtoull(w[3], NULL, 0));
	(void)puts("ok");
}

/* flood CONTEXT N: collectives that are never stopped; answers with how many had a handle */
static void do_flood(char **w)
{
	int n = 0;

	for (int i = 0; i < number(w[2]); i++)
		n += start(context_of(w[1]),
			   descr_coll(version, NULL, "AllReduce", 1, "ncclInt8", 1)) != NULL;
	(void)printf("%d\n", n);
}

/* reduce CONTEXT A B SIZE TIMES */
static void do_reduce(char **w)
{
	for (int i = 0; i < number(w[5]); i++)
		all_reduce(context_of(w[1]), (uint64_t)i, fds[number(w[2])], fds[number(w[3])],
			   strtoull(w[4], NULL, 0));
	(void)puts("ok");
}

/* hammer THREADS CONTEXT TIMES */
static void do_hammer(char **w)
{
	hammer(work, (unsigned)number(w[1]), context_of(w[2]), (unsigned)number(w[3]));
}

static void do_measure(char **w)
{
	hammer(measure, (unsigned)number(w[1]), context_of(w[2]), (unsigned)number(w[3]));
}

/* NULL where something belongs. */
static void do_nothing(char **w)
{
	void *handle;

	(void)w;
	check(table->start(NULL, NULL, NULL));
	check(table->start(contexts[0], &handle, NULL));
	check(table->stop(NULL));
	check(table->state(NULL, SEND_WAIT, NULL));
	check(table->finalize(NULL));
	check(init(NULL, NULL, NULL, 0, 0, 0, 0, NULL));
	(void)puts(handle ? "handle" : "none");
}

/* fork CONTEXT: what a child does with what it has, and then with a communicator of its own */
static void do_fork(char **w)
{
	int status, mask;
	pid_t pid;

	(void)fflush(stdout);
	pid = fork();
	if (pid == 0) {
		void *context = context_of(w[1]), *mine = NULL,
		     *coll = start(context,
				   descr_coll(version, NULL, "AllReduce", 1, "ncclInt8", 1));

		check(table->stop(coll));
		check(table->finalize(context));
		check(init(&mine, &mask, "child", 3, 1, 1, 0, on_log));
		check(table->stop(
			start(mine, descr_coll(version, NULL, "Broadcast", 1, "ncclInt8", 1))));
		check(table->finalize(mine));
		exit(coll ? 3 : 0);
	}
	if (waitpid(pid, &status, 0) < 0)
		abort();
	(void)printf("%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status));
}

static void do_log(char **w)
{
	(void)w;
	(void)printf("%s\n", *last_log ? last_log : "-");
	last_log[0] = '\0';
}

/* Prints the threads of this process. */
static void do_threads(char **w)
{
	FILE *f = fopen("/proc/self/status", "re");
	char line[256];
	int n = 0;

	(void)w;
	while (f && fgets(line, sizeof(line), f))
		(void)sscanf(line, "Threads: %d", &n);
	if (f)
		(void)fclose(f);
	(void)printf("%d\n", n);
}

static void do_exit(char **w)
{
	exit(number(w[1]));
}

static const struct {
	const char *word;
	void (*fn)(char **w);
	int n; /* words, with itself */
} words[] = {
	{"load", do_load, 3},       {"unload", do_unload, 1},
	{"init", do_init, 5},       {"finalize", do_finalize, 2},
	{"event", do_event, 5},     {"coll", do_coll, 8},
	{"p2p", do_p2p, 8},         {"ce", do_ce, 3},
	{"op", do_op, 7},           {"step", do_step, 4},
	{"state", do_state, 4},     {"sock", do_sock, 7},
	{"qp", do_qp, 7},           {"net", do_net, 5},
	{"stop", do_stop, 2},       {"pair", do_pair, 3},
	{"close", do_close, 2},     {"carry", do_carry, 4},
	{"flood", do_flood, 3},     {"reduce", do_reduce, 6},
	{"hammer", do_hammer, 4},   {"measure", do_measure, 4},
	{"nothing", do_nothing, 1}, {"fork", do_fork, 2},
	{"log", do_log, 1},         {"threads", do_threads, 1},
	{"exit", do_exit, 2},       {"verbs", do_verbs, 2},
	{"make", do_make, 3},       {"connect", do_connect, 3},
	{"destroy", do_destroy, 2},
};

static void serve(char *line)
{
	char *w[WORDS_MAX] = {NULL};
	int n = 0;

	for (char *word = strtok(line, " \n"); word && n < WORDS_MAX; word = strtok(NULL, " \n"))
		w[n++] = word;
	for (size_t i = 0; n > 0 && i < sizeof(words) / sizeof(words[0]); i++)
		if (!strcmp(words[i].word, w[0]) && words[i].n == n) {
			words[i].fn(w);
			return;
		}
	(void)puts("what?");
}

int main(void)
{
	char line[1024];

	while (fgets(line, sizeof(line), stdin)) {
		serve(line);
		(void)fflush(stdout);
	}
	return 0;
}
