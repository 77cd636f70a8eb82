/*
 * A stand-in for libnccl.so.2
 *
 * For communicators that do not block, of ranks in processes of their own that use the stand-in for libcuda: all that
 * is asked of one is taken some questions later, in order, as work in the stream; and what goes wrong shows when the
 * communicator is asked, while the work waits for ever, unless it is aborted.
 *
 * FAKE_NCCL_VERSION  the version (22809)
 * FAKE_NCCL_STATE    a folder where ranks meet that do not have the same GPUs
 * FAKE_CUDA_STATE/fail, as for the driver, with the names of functions, and of three that are none: "ncclInit@RANK",
 * "ncclPiece@RANK" (64 KiB that a rank is about to move) and "ncclAbort@RANK" (what an abort does).
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "tests/fake/failure.h"
#include "tests/fake/guest.h"
#include "tests/fake/nccl/profiler.h"
#include "tests/fake/nccl/ring.h"
#include "tests/fake/state.h"

#define PIECE 65536u
#define QUESTIONS 2 /* until what was asked is taken */
#define CONFIG_MAGIC 0xcafebeefu

enum {
	OK,
	UNHANDLED_CUDA_ERROR,
	SYSTEM_ERROR,
	INTERNAL_ERROR,
	INVALID_ARGUMENT,
	INVALID_USAGE,
	REMOTE_ERROR,
	IN_PROGRESS,
};

enum {
	UINT8 = 1,
	UINT32 = 3,
	FLOAT32 = 7,
};

struct id {
	char bytes[128];
};

struct config {
	size_t size;
	unsigned magic, version;
	int blocking;
};

struct operation;

struct communicator {
	struct ring ring;
	char id[17];
	int gpu;
	atomic_int state; /* returned to queries, unless it is broken */
	atomic_int broken;
	atomic_flag is_in_call;
	struct operation *asked; /* not taken yet */
	int n_questions;
	_Atomic(void *) profiler; /* its context */
};

struct operation {
	struct communicator *c;
	bool is_reduction;
	cu_ptr from, to;
	size_t size;
	int type, root;
	cu_stream stream;
	void *event;
};

static struct {
	cu_result (*run)(cu_stream s, cu_result (*fn)(void *arg), void *arg);
	int (*gpu)(void);
	char *(*bytes)(cu_ptr p, uint64_t size, int gpu, bool writes, struct guest **ret);
	void (*let_go)(struct guest *g);
} driver;

static bool find_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return false;
	*(void **)&driver.run = dlsym(library, "cuFakeRun");
	*(void **)&driver.gpu = dlsym(library, "cuFakeGpu");
	*(void **)&driver.bytes = dlsym(library, "cuFakeBytes");
	*(void **)&driver.let_go = dlsym(library, "cuFakeLetGo");
	return driver.run && driver.gpu && driver.bytes && driver.let_go;
}

/* Real communicators fail for reasons that cannot be explained. */
static void enter(struct communicator *c)
{
	if (!atomic_flag_test_and_set(&c->is_in_call))
		return;
	(void)fprintf(stderr, "libnccl: two calls at once on one communicator\n");
	abort();
}

static int leave(struct communicator *c, int result)
{
	atomic_flag_clear(&c->is_in_call);
	return result;
}

static int state_of(struct communicator *c)
{
	int broken = atomic_load(&c->broken);

	return broken ? broken : atomic_load(&c->state);
}

static int failure_at(const struct communicator *c, const char *what)
{
	char symbol[64];

	(void)snprintf(symbol, sizeof(symbol), "%s@%d", what, c->ring.rank);
	return failure_of(symbol);
}

/* --- Work in a stream -------------------------------------------------------------------------- */

/* A failure in other ranks is reported, and waited for like any other work. */
static cu_result give_up(struct communicator *c, int why)
{
	int expected = OK;

	(void)atomic_compare_exchange_strong(&c->broken, &expected, why);
	ring_await_cut(&c->ring);
	return CUDA_SUCCESS;
}

static bool pass_on(struct operation *o, char *bytes, size_t n)
{
	struct ring *r = &o->c->ring;
	int place = (r->rank - o->root + r->n) % r->n;

	return (place == 0 || ring_receive(r, bytes, n)) &&
	       (place == r->n - 1 || ring_send(r, bytes, n));
}

static void add(int type, char *to, const char *from, size_t n)
{
	for (size_t i = 0; i < n; i += 4) {
		uint32_t a, b;
		float x, y;

		memcpy(&a, to + i, 4);
		memcpy(&b, from + i, 4);
		memcpy(&x, to + i, 4);
		memcpy(&y, from + i, 4);
		a += b;
		x += y;
		memcpy(to + i, type == UINT32 ? (void *)&a : (void *)&x, 4);
	}
}

/* The sum grows from the first to the last, and goes round once more. */
static bool reduce(struct operation *o, char *bytes, size_t n)
{
	struct ring *r = &o->c->ring;
	const int last = r->n - 1;
	char theirs[PIECE];

	if (r->n == 1)
		return true;
	if (r->rank > 0) {
		if (!ring_receive(r, theirs, n))
			return false;
		add(o->type, bytes, theirs, n);
	}
	if (!ring_send(r, bytes, n))
		return false;
	if (r->rank == last)
		return true;
	return ring_receive(r, bytes, n) && (r->rank == last - 1 || ring_send(r, bytes, n));
}

static cu_result run_piece(struct operation *o, size_t at)
{
	struct communicator *c = o->c;
	const size_t n = o->size - at < PIECE ? o->size - at : PIECE;
	const bool writes = o->is_reduction || c->ring.rank != o->root;
	struct guest *hold;
	char *bytes = driver.bytes(o->to + at, n, c->gpu, writes, &hold);
	int r = failure_at(c, "ncclPiece");
	bool is_good;

	if (!bytes)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	is_good = !r && (o->is_reduction ? reduce(o, bytes, n) : pass_on(o, bytes, n));
	driver.let_go(hold);
	return is_good ? CUDA_SUCCESS : give_up(c, r ? r : REMOTE_ERROR);
}

static cu_result run(void *arg)
{
	struct operation *o = arg;
	cu_result r = CUDA_SUCCESS;

	for (size_t at = 0; !r && at < o->size && !atomic_load(&o->c->ring.is_cut); at += PIECE)
		r = run_piece(o, at);
	profiler_stop(o->event);
	free(o);
	return r;
}

/* --- Communicators ----------------------------------------------------------------------------- */

static void *form(void *arg)
{
	struct {
		struct communicator *c;
		int rank, n;
	} *init = arg;
	struct communicator *c = init->c;
	const char *host = getenv("NCCL_HOSTID");
	char who[RING_WHO_SIZE] = "", previous[RING_WHO_SIZE] = "";
	int r = failure_at(c, "ncclInit");

	(void)snprintf(who, sizeof(who), "%.60s on %d", host ? host : "this machine", c->gpu);
	if (!r && !ring_form(&c->ring, c->id, init->rank, init->n, who, previous))
		r = REMOTE_ERROR;
	if (!r && init->n > 1 && !strcmp(who, previous))
		r = INVALID_USAGE; /* Duplicate GPU detected */
	if (!r)
		atomic_store(&c->profiler,
			     profiler_open(strtoull(c->id, NULL, 16), init->rank, init->n));
	atomic_store(&c->state, r);
	free(init);
	return NULL;
}

static int start(struct communicator *c, int rank, int n)
{
	pthread_t thread;
	struct {
		struct communicator *c;
		int rank, n;
	} *init = malloc(sizeof(*init));

	if (!init)
		return SYSTEM_ERROR;
	init->c = c;
	init->rank = c->ring.rank = rank;
	init->n = c->ring.n = n;
	if (pthread_create(&thread, NULL, form, init) != 0)
		return SYSTEM_ERROR;
	(void)pthread_detach(thread);
	return IN_PROGRESS;
}

int ncclCommInitRankConfig(struct communicator **ret, int n, struct id id, int rank,
			   struct config *config);
int ncclCommInitRankConfig(struct communicator **ret, int n, struct id id, int rank,
			   struct config *config)
{
	struct communicator *c;
	int r = failure_of("ncclCommInitRankConfig");

	*ret = NULL;
	if (r)
		return r;
	if (!find_driver() || driver.gpu() < 0)
		return UNHANDLED_CUDA_ERROR;
	if (n < 1 || rank < 0 || rank >= n || config->magic != CONFIG_MAGIC ||
	    config->version < 21700 || config->size < sizeof(*config))
		return INVALID_ARGUMENT;
	if (config->blocking != 0)
		return INVALID_USAGE; /* nothing here blocks */
	c = calloc(1, sizeof(*c));
	if (!c)
		return SYSTEM_ERROR;
	atomic_store(&c->ring.next_fd, -1);
	atomic_store(&c->ring.previous_fd, -1);
	for (size_t i = 0; i < 8; i++)
		(void)snprintf(c->id + 2 * i, 3, "%02x", (unsigned char)id.bytes[i]);
	c->gpu = driver.gpu();
	atomic_store(&c->state, IN_PROGRESS);
	r = start(c, rank, n);
	*ret = c; /* never freed: work may be left that has it */
	return r;
}

static int ask(const char *symbol, const struct operation *like)
{
	struct communicator *c = like->c;
	struct operation *o;
	int r;

	enter(c);
	r = failure_of(symbol);
	if (r)
		return leave(c, r);
	r = state_of(c); /* reports also what broke since the last query */
	if (r)
		return leave(c, r == IN_PROGRESS ? INVALID_USAGE : r);
	o = malloc(sizeof(*o));
	if (!o)
		return leave(c, SYSTEM_ERROR);
	*o = *like;
	o->event = profiler_start(atomic_load(&c->profiler), symbol + strlen("nccl"),
				  o->type == UINT8 ? o->size : o->size / 4,
				  o->type == UINT8    ? "ncclUint8"
				  : o->type == UINT32 ? "ncclUint32"
						      : "ncclFloat32",
				  o->root);
	c->asked = o;
	c->n_questions = QUESTIONS;
	atomic_store(&c->state, IN_PROGRESS);
	return leave(c, IN_PROGRESS);
}

int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, struct communicator *c,
		  cu_stream stream);
int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, struct communicator *c,
		  cu_stream stream)
{
	if (type != UINT8 || root < 0 || root >= c->ring.n || from != to)
		return INVALID_ARGUMENT;
	return ask("ncclBroadcast", &(struct operation){.c = c,
							.from = (cu_ptr)from,
							.to = (cu_ptr)to,
							.size = n,
							.type = type,
							.root = root,
							.stream = stream});
}

/* The older one, which calls the newer one by its name, as NCCL's does. */
int ncclBcast(void *buffer, size_t n, int type, int root, struct communicator *c, cu_stream stream);
int ncclBcast(void *buffer, size_t n, int type, int root, struct communicator *c, cu_stream stream)
{
	int (*volatile newer)(const void *, void *, size_t, int, int, struct communicator *,
			      cu_stream) = ncclBroadcast;

	return newer(buffer, buffer, n, type, root, c, stream);
}

int ncclAllReduce(const void *from, void *to, size_t n, int type, int operation,
		  struct communicator *c, cu_stream stream);
int ncclAllReduce(const void *from, void *to, size_t n, int type, int operation,
		  struct communicator *c, cu_stream stream)
{
	if ((type != UINT32 && type != FLOAT32) || operation != 0 || from != to)
		return INVALID_ARGUMENT;
	return ask("ncclAllReduce", &(struct operation){.c = c,
							.is_reduction = true,
							.from = (cu_ptr)from,
							.to = (cu_ptr)to,
							.size = n * 4,
							.type = type,
							.stream = stream});
}

int ncclCommGetAsyncError(struct communicator *c, int *ret);
int ncclCommGetAsyncError(struct communicator *c, int *ret)
{
	struct operation *o;
	int r;

	enter(c);
	r = failure_of("ncclCommGetAsyncError");
	o = c->asked;
	if (o && --c->n_questions == 0) {
		c->asked = NULL;
		atomic_store(&c->state, driver.run(o->stream, run, o) ? UNHANDLED_CUDA_ERROR : OK);
	}
	*ret = state_of(c);
	return leave(c, r);
}

int ncclCommFinalize(struct communicator *c);
int ncclCommFinalize(struct communicator *c)
{
	int r;

	enter(c);
	r = failure_of("ncclCommFinalize");
	return leave(c, r ? r : state_of(c));
}

int ncclCommAbort(struct communicator *c);
int ncclCommAbort(struct communicator *c)
{
	enter(c);
	(void)failure_at(c, "ncclAbort");
	ring_cut(&c->ring);
	profiler_close(atomic_exchange(&c->profiler, NULL));
	return OK; /* no call follows */
}

/* --- The library ------------------------------------------------------------------------------- */

int ncclGetVersion(int *ret);
int ncclGetVersion(int *ret)
{
	*ret = (int)state_number("FAKE_NCCL_VERSION", 22809);
	return failure_of("ncclGetVersion");
}

int ncclGetUniqueId(struct id *ret);
int ncclGetUniqueId(struct id *ret)
{
	int r = failure_of("ncclGetUniqueId");

	if (!r && getrandom(ret->bytes, sizeof(ret->bytes), 0) != sizeof(ret->bytes))
		r = SYSTEM_ERROR;
	return r;
}

const char *ncclGetErrorString(int result);
const char *ncclGetErrorString(int result)
{
	static const char *const texts[] = {
		"no error",
		"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
		"unhandled system error (run with NCCL_DEBUG=INFO for details)",
		"internal error",
		"invalid argument",
		"invalid usage",
		"remote process exited or there was a network error",
		"NCCL operation in progress",
	};

	return result >= 0 && (size_t)result < sizeof(texts) / sizeof(*texts)
		       ? texts[result]
		       : "unknown result code";
}

const char *ncclGetLastError(struct communicator *c);
const char *ncclGetLastError(struct communicator *c)
{
	return c && state_of(c) == INVALID_USAGE ? "Duplicate GPU detected\n" : "";
}
