/*
 * NCCL, as a plug-in of its profiler sees it: loads one and does with it what the lines of its standard input say, each
 * of which it answers with one. test_nccl_plugin.py has the words.
 *
 * What is handed over is laid out by the declarations of each version, written down here once more after NCCL's own;
 * each descriptor is just as large as that version has it, in a block of its own, and what NCCL does not set is no zero.
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

#define REGISTERS 64
#define THREADS_MAX 16
#define WORDS_MAX 16

/* Of verbs. */
#define QP_NUM 52
#define READY_TO_RECEIVE 2
#define MASK_STATE 0x1
#define MASK_PEER 0x100000

#define COLL_V4                                                                                    \
	uint64_t seq;                                                                              \
	const char *func;                                                                          \
	void const *send;                                                                          \
	void *receive;                                                                             \
	size_t count;                                                                              \
	int root;                                                                                  \
	const char *datatype;                                                                      \
	uint8_t channels;                                                                          \
	uint8_t warps;                                                                             \
	const char *algo;                                                                          \
	const char *proto
#define P2P_V4                                                                                     \
	const char *func;                                                                          \
	void *buffer;                                                                              \
	const char *datatype;                                                                      \
	size_t count;                                                                              \
	int peer;                                                                                  \
	uint8_t channels
#define OTHERS                                                                                     \
	struct {                                                                                   \
		pid_t pid;                                                                         \
		uint8_t channel;                                                                   \
		int peer, steps, chunk_size, is_send;                                              \
	} op;                                                                                      \
	struct {                                                                                   \
		int step;                                                                          \
	} step;                                                                                    \
	struct {                                                                                   \
		uint8_t channel;                                                                   \
		uint64_t timer;                                                                    \
	} kernel;                                                                                  \
	struct {                                                                                   \
		int64_t id;                                                                        \
		void *data;                                                                        \
	} net
#define CE_COLL_V6                                                                                 \
	uint64_t seq;                                                                              \
	const char *func;                                                                          \
	void const *send;                                                                          \
	void *receive;                                                                             \
	size_t count;                                                                              \
	int root;                                                                                  \
	const char *datatype, *strategy;                                                           \
	bool is_within;                                                                            \
	uint32_t size, n, seq_of_ce;                                                               \
	void *stream

struct v4 {
	uint8_t type;
	void *parent;
	int rank;
	union {
		struct {
			COLL_V4;
		} coll;
		struct {
			P2P_V4;
		} p2p;
		OTHERS;
	};
};

struct v5 {
	uint64_t type;
	void *parent;
	int rank;
	union {
		struct {
			COLL_V4;
			void *group;
		} coll;
		struct {
			P2P_V4;
			void *group;
		} p2p;
		OTHERS;
	};
};

struct v6 {
	uint64_t type;
	void *parent;
	int rank;
	union {
		struct {
			COLL_V4;
			void *group;
		} coll;
		struct {
			P2P_V4;
			void *group;
		} p2p;
		OTHERS;
		struct {
			CE_COLL_V6;
		} ce_coll;
	};
};

struct v7 {
	uint64_t type;
	void *parent;
	int rank;
	union {
		struct {
			COLL_V4;
			void *group;
			const char *variant;
			bool is_symmetric;
			uint64_t tag;
		} coll;
		struct {
			P2P_V4;
			void *group;
			uint64_t tag;
		} p2p;
		OTHERS;
		struct {
			CE_COLL_V6;
			uint64_t tag;
		} ce_coll;
	};
};

struct net_socket {
	uint8_t type;
	union {
		struct {
			int fd, op;
			size_t length;
		} socket;
	};
};

struct net_qp {
	uint8_t type;
	union {
		struct {
			int device;
			uint64_t wr_id;
			int opcode, number;
			size_t length;
		} qp;
	};
};

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
	GROUP = 1,
	COLL = 2,
	P2P = 4,
	OP = 8,
	STEP = 16,
	NET = 128,
	CE_COLL = 4096
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
static void *handle_of(const char *word)
{
	return *word == '-'   ? NULL
	       : *word == '!' ? (void *)(uintptr_t)0xdeadbeefcafe
			      : handles[number(word)];
}

static void *context_of(const char *word)
{
	return *word == '-'   ? NULL
	       : *word == '!' ? (void *)(uintptr_t)0xdeadbeefcafe
			      : contexts[number(word)];
}

#define OF_VERSION(d, action)                                                                      \
	do {                                                                                       \
		if (version == 4) {                                                                \
			struct v4 *v = (d);                                                        \
			action;                                                                    \
		} else if (version == 5) {                                                         \
			struct v5 *v = (d);                                                        \
			action;                                                                    \
		} else if (version == 6) {                                                         \
			struct v6 *v = (d);                                                        \
			action;                                                                    \
		} else {                                                                           \
			struct v7 *v = (d);                                                        \
			action;                                                                    \
		}                                                                                  \
	} while (0)

#define SINCE_V5(d, action)                                                                        \
	do {                                                                                       \
		if (version == 5) {                                                                \
			struct v5 *v = (d);                                                        \
			action;                                                                    \
		} else if (version == 6) {                                                         \
			struct v6 *v = (d);                                                        \
			action;                                                                    \
		} else if (version == 7) {                                                         \
			struct v7 *v = (d);                                                        \
			action;                                                                    \
		}                                                                                  \
	} while (0)

static void *descr_new(uint64_t type, void *parent)
{
	static const size_t sizes[] = {sizeof(struct v4), sizeof(struct v5), sizeof(struct v6),
				       sizeof(struct v7)};
	size_t size = sizes[version - 4];
	void *d = malloc(size);

	if (!d)
		abort();
	memset(d, 0xa5, size);
	OF_VERSION(d, v->type = (__typeof__(v->type))type; v->parent = parent; v->rank = 0);
	return d;
}

static void *start(void *context, void *d)
{
	void *handle = (void *)(uintptr_t)1;

	check(table->start(context, &handle, d));
	free(d);
	return handle;
}

static void *start_coll(void *context, void *parent, const char *func, size_t count,
			const char *datatype, uint64_t seq)
{
	void *d = descr_new(COLL, parent);

	OF_VERSION(d, v->coll.seq = seq; v->coll.func = func; v->coll.count = count;
		   v->coll.root = 0; v->coll.datatype = datatype; v->coll.channels = 2;
		   v->coll.algo = "RING"; v->coll.proto = "SIMPLE");
	SINCE_V5(d, v->coll.group = parent; v->parent = NULL);
	return start(context, d);
}

static void *start_p2p(void *context, void *parent, const char *func, size_t count,
		       const char *datatype, int peer)
{
	void *d = descr_new(P2P, parent);

	OF_VERSION(d, v->p2p.func = func; v->p2p.count = count; v->p2p.datatype = datatype;
		   v->p2p.peer = peer; v->p2p.channels = 1);
	SINCE_V5(d, v->p2p.group = parent; v->parent = NULL);
	return start(context, d);
}

static void *start_op(void *context, void *parent, int peer, bool is_send, pid_t pid)
{
	void *d = descr_new(OP, parent);

	OF_VERSION(d, v->op.pid = pid; v->op.channel = 0; v->op.peer = peer; v->op.steps = 1;
		   v->op.is_send = is_send);
	return start(context, d);
}

static void *start_step(void *context, void *parent)
{
	void *d = descr_new(STEP, parent);

	OF_VERSION(d, v->step.step = 0);
	return start(context, d);
}

static void *start_net(void *context, void *parent, int64_t id, void *data)
{
	void *d = descr_new(NET, parent);

	OF_VERSION(d, v->net.id = id; v->net.data = data);
	return start(context, d);
}

static void *start_socket(void *context, void *parent, int fd, bool is_send, size_t length)
{
	struct net_socket n = {.type = 1,
			       .socket = {.fd = fd, .op = is_send ? 0 : 1, .length = length}};

	return start_net(context, parent, 2 << 16 | 1, &n);
}

static void set_state(void *handle, int state, size_t size)
{
	size_t args = size;

	check(table->state(handle, state, &args));
}

/* --- What bytes a network carries ---------------------------------------------------------------- */

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
	void *group = start(context, descr_new(GROUP, NULL));
	/* As NCCL 2.27 does it. */
	void *coll = version > 4 || group
			     ? start_coll(context, group, "AllReduce", size / 4, "ncclFloat32", seq)
			     : NULL;

	check(table->stop(coll));
	check(table->stop(group));
	void *ops[2] = {start_op(context, coll, 1, true, getpid()),
			start_op(context, coll, 2, false, getpid())};
	void *steps[2] = {start_step(context, ops[0]), start_step(context, ops[1])};
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
	int64_t ns; /* of callbacks alone */
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
	void *coll = descr_new(COLL, NULL), *op = descr_new(OP, NULL),
	     *step = descr_new(STEP, NULL), *net = descr_new(NET, NULL);
	void *handle[4] = {NULL};
	size_t size = 4096;
	int64_t began = now_ns();

	OF_VERSION(coll, v->coll.seq = 1; v->coll.func = "AllReduce"; v->coll.count = 1024;
		   v->coll.datatype = "ncclFloat32"; v->coll.algo = "RING";
		   v->coll.proto = "SIMPLE"; v->coll.channels = 1);
	OF_VERSION(op, v->op.pid = getpid(); v->op.peer = 1; v->op.is_send = 1);
	OF_VERSION(net, v->net.id = 2 << 16 | 1; v->net.data = &n);
	for (unsigned i = 0; i < job->n; i++) {
		(void)table->start(job->context, &handle[0], coll);
		OF_VERSION(op, v->parent = handle[0]);
		(void)table->start(job->context, &handle[1], op);
		OF_VERSION(step, v->parent = handle[1]);
		(void)table->start(job->context, &handle[2], step);
		(void)table->state(handle[2], SEND_WAIT, &size);
		OF_VERSION(net, v->parent = handle[2]);
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

	if (version == 4)
		check(table_v4->init(&contexts[c], &mask, name, hash, 2, 8, number(w[4]), on_log));
	else
		check(table->init(&contexts[c], hash, &mask, name, 2, 8, number(w[4]), on_log));
	(void)printf("%d %s\n", mask, contexts[c] ? "context" : "none");
}

static void do_finalize(char **w)
{
	check(table->finalize(context_of(w[1])));
	(void)puts("ok");
}

/* event HANDLE CONTEXT PARENT TYPE */
static void do_event(char **w)
{
	handles[number(w[1])] = start(context_of(w[2]),
				      descr_new(strtoull(w[4], NULL, 0), handle_of(w[3])));
	(void)puts(handles[number(w[1])] ? "handle" : "none");
}

/* coll HANDLE CONTEXT PARENT FUNC COUNT DATATYPE SEQ, which strings NCCL has in its program */
static void do_coll(char **w)
{
	char *func = strdup(w[4]), *datatype = strdup(w[6]);

	handles[number(w[1])] = start_coll(context_of(w[2]), handle_of(w[3]), func,
					   strtoull(w[5], NULL, 0), datatype,
					   strtoull(w[7], NULL, 0));
	free(func);
	free(datatype);
	(void)puts(handles[number(w[1])] ? "handle" : "none");
}

static void do_p2p(char **w)
{
	char *func = strdup(w[4]), *datatype = strdup(w[6]);

	handles[number(w[1])] = start_p2p(context_of(w[2]), handle_of(w[3]), func,
					  strtoull(w[5], NULL, 0), datatype, number(w[7]));
	free(func);
	free(datatype);
	(void)puts(handles[number(w[1])] ? "handle" : "none");
}

/* ce HANDLE CONTEXT */
static void do_ce(char **w)
{
	void *d = descr_new(CE_COLL, NULL);

	if (version == 6) {
		struct v6 *v = d;
		v->ce_coll.seq = 5;
		v->ce_coll.func = "AllGather";
		v->ce_coll.count = 10;
		v->ce_coll.root = 0;
		v->ce_coll.datatype = "ncclBfloat16";
	} else {
		struct v7 *v = d;
		v->ce_coll.seq = 5;
		v->ce_coll.func = "AllGather";
		v->ce_coll.count = 10;
		v->ce_coll.root = 0;
		v->ce_coll.datatype = "ncclBfloat16";
	}
	handles[number(w[1])] = start(context_of(w[2]), d);
	(void)puts(handles[number(w[1])] ? "handle" : "none");
}

/* op HANDLE CONTEXT PARENT PEER IS_SEND PID, of which 0 is this process */
static void do_op(char **w)
{
	handles[number(w[1])] = start_op(context_of(w[2]), handle_of(w[3]), number(w[4]),
					 number(w[5]), number(w[6]) ? number(w[6]) : getpid());
	(void)puts(handles[number(w[1])] ? "handle" : "none");
}

static void do_step(char **w)
{
	handles[number(w[1])] = start_step(context_of(w[2]), handle_of(w[3]));
	(void)puts(handles[number(w[1])] ? "handle" : "none");
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

	handles[number(w[1])] = start_net(context_of(w[2]), handle_of(w[3]), 1 << 16 | 1, &n);
	(void)puts("ok");
}

/* net HANDLE CONTEXT PARENT ID, of which nothing else is good */
static void do_net(char **w)
{
	handles[number(w[1])] = start_net(context_of(w[2]), handle_of(w[3]), strtoll(w[4], NULL, 0),
					  NULL);
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

/* carry A B SIZE, of which nobody is told */
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
		n += start_coll(context_of(w[1]), NULL, "AllReduce", 1, "ncclInt8", 1) != NULL;
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
	if (version == 4)
		check(table_v4->init(NULL, NULL, NULL, 0, 0, 0, 0, NULL));
	else
		check(table->init(NULL, 0, NULL, NULL, 0, 0, 0, NULL));
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
		     *coll = start_coll(context, NULL, "AllReduce", 1, "ncclInt8", 1);

		check(table->stop(coll));
		check(table->finalize(context));
		if (version == 4)
			check(table_v4->init(&mine, &mask, "child", 3, 1, 1, 0, on_log));
		else
			check(table->init(&mine, 3, &mask, "child", 1, 1, 0, on_log));
		check(table->stop(start_coll(mine, NULL, "Broadcast", 1, "ncclInt8", 1)));
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

/* Of this process. */
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
