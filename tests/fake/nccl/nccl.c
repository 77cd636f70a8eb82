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
#include "tests/fake/nccl/element.h"
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
	SUM,
	AVERAGE = 4,
};

#define GROUP_MAX (2 * RING_RANKS_MAX) /* sends and receives at once */

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

enum kind {
	BROADCAST,
	GATHER,
	REDUCE,
	SEND,
	RECEIVE,
};

struct operation {
	struct operation *next; /* of the same group */
	struct communicator *c;
	enum kind kind;
	cu_ptr from, to;
	size_t size; /* bytes, of each rank in a gather */
	int type, reduction;
	int root; /* the other rank of a send or receive */
	cu_stream stream;
	void *event;
};

/* Of this thread. */
static _Thread_local struct {
	int depth;
	struct operation *first, **end;
} group;

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

static bool pass_on(struct ring *r, int root, char *bytes, size_t n)
{
	int place = (r->rank - root + r->n) % r->n;

	return (place == 0 || ring_receive(r, bytes, n)) &&
	       (place == r->n - 1 || ring_send(r, bytes, n));
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
		element_add(o->type, bytes, theirs, n);
	}
	if (!ring_send(r, bytes, n))
		return false;
	if (r->rank == last)
		return true;
	return ring_receive(r, bytes, n) && (r->rank == last - 1 || ring_send(r, bytes, n));
}

/* The first `n` bytes of a piece in place, which are those that this rank has. */
static bool take_ours(const struct operation *o, size_t at, char *bytes, size_t n)
{
	struct communicator *c = o->c;
	struct guest *hold;
	const char *from;

	if (o->from != o->to) {
		from = driver.bytes(o->from + at, n, c->gpu, false, &hold);
		if (!from)
			return false;
		memcpy(bytes, from, n);
		driver.let_go(hold);
	}
	if (o->reduction == AVERAGE)
		element_divide(o->type, bytes, n, c->ring.n);
	return true;
}

static cu_result run_piece(struct operation *o, size_t at, size_t n)
{
	struct communicator *c = o->c;
	const bool is_ours = o->kind == REDUCE || c->ring.rank == o->root;
	const bool writes = o->kind != BROADCAST || !is_ours;
	struct guest *hold;
	char *bytes = driver.bytes(o->to + at, n, c->gpu, writes, &hold);
	int r = failure_at(c, "ncclPiece");
	bool is_good;

	if (!bytes || (writes && is_ours && !take_ours(o, at, bytes, n)))
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	is_good = !r &&
		  (o->kind == REDUCE ? reduce(o, bytes, n) : pass_on(&c->ring, o->root, bytes, n));
	driver.let_go(hold);
	return is_good ? CUDA_SUCCESS : give_up(c, r ? r : REMOTE_ERROR);
}

static cu_result run_pieces(struct operation *o)
{
	cu_result r = CUDA_SUCCESS;

	for (size_t at = 0; !r && at < o->size && !atomic_load(&o->c->ring.is_cut); at += PIECE)
		r = run_piece(o, at, o->size - at < PIECE ? o->size - at : PIECE);
	return r;
}

/* A broadcast of each rank's part, to its place at all others. */
static cu_result run_gather(const struct operation *all)
{
	cu_result r = CUDA_SUCCESS;

	for (int rank = 0; !r && rank < all->c->ring.n; rank++) {
		struct operation one = *all;

		one.root = rank;
		one.to += (cu_ptr)rank * all->size;
		r = run_pieces(&one);
	}
	return r;
}

/* A send or receive of a group, and the piece that is under way. */
struct transfer {
	const struct operation *o;
	size_t at;
	struct guest *hold; /* NULL: none is */
	struct ring_transfer piece;
};

/* Begins another piece, if the one before is through. */
static cu_result take_piece(struct transfer *t)
{
	const struct operation *o = t->o;
	const size_t left = o->size - t->at, n = left < PIECE ? left : PIECE;
	int r;

	if (t->hold && t->piece.done < t->piece.size)
		return CUDA_SUCCESS;
	if (t->hold) {
		driver.let_go(t->hold);
		t->hold = NULL;
	}
	if (n == 0)
		return CUDA_SUCCESS;
	r = failure_at(o->c, "ncclPiece");
	if (r)
		return give_up(o->c, r);
	t->piece = (struct ring_transfer){
		.peer = o->root,
		.sends = o->kind == SEND,
		.data = driver.bytes((o->kind == SEND ? o->from : o->to) + t->at, n, o->c->gpu,
				     o->kind == RECEIVE, &t->hold),
		.size = n,
	};
	t->at += n;
	return t->piece.data ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static cu_result run_transfers(struct transfer *all, size_t n)
{
	struct communicator *c = all[0].o->c;
	struct ring_transfer pieces[GROUP_MAX];
	cu_result r = CUDA_SUCCESS;
	bool is_good = true;

	for (bool is_done = false; !is_done && is_good && !r;) {
		is_done = true;
		for (size_t i = 0; !r && i < n; i++) {
			r = take_piece(&all[i]);
			pieces[i] = all[i].piece;
			is_done &= !all[i].hold;
		}
		if (!r && !is_done && !atomic_load(&c->broken))
			is_good = ring_move_some(&c->ring, pieces, n);
		else if (atomic_load(&c->broken))
			break;
		for (size_t i = 0; i < n; i++)
			all[i].piece = pieces[i];
	}
	for (size_t i = 0; i < n; i++)
		if (all[i].hold)
			driver.let_go(all[i].hold);
	return is_good ? r : give_up(c, REMOTE_ERROR);
}

/* Sends and receives of a group go at once. `*ret` is the first operation behind them. */
static cu_result run_sends(struct operation *o, struct operation **ret)
{
	struct transfer all[GROUP_MAX];
	size_t n = 0;

	for (; o && o->kind >= SEND && n < GROUP_MAX; o = o->next)
		all[n++] = (struct transfer){.o = o};
	*ret = o;
	return run_transfers(all, n);
}

static cu_result run(void *arg)
{
	struct operation *first = arg, *o = first;
	cu_result r = CUDA_SUCCESS;

	while (!r && o) {
		if (o->kind >= SEND) {
			r = run_sends(o, &o);
			continue;
		}
		r = o->kind == GATHER ? run_gather(o) : run_pieces(o);
		o = o->next;
	}
	while ((o = first)) {
		first = o->next;
		profiler_stop(o->event);
		free(o);
	}
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
	if (n < 1 || n > RING_RANKS_MAX || rank < 0 || rank >= n || config->magic != CONFIG_MAGIC ||
	    config->version < 21700 || config->size < sizeof(*config))
		return INVALID_ARGUMENT;
	if (config->blocking != 0)
		return INVALID_USAGE; /* nothing here blocks */
	c = calloc(1, sizeof(*c));
	if (!c)
		return SYSTEM_ERROR;
	ring_init(&c->ring);
	for (size_t i = 0; i < 8; i++)
		(void)snprintf(c->id + 2 * i, 3, "%02x", (unsigned char)id.bytes[i]);
	c->gpu = driver.gpu();
	atomic_store(&c->state, IN_PROGRESS);
	r = start(c, rank, n);
	*ret = c; /* never freed: work may be left that has it */
	return r;
}

/* To be taken some questions later. */
static int submit(struct communicator *c, struct operation *o)
{
	c->asked = o;
	c->n_questions = QUESTIONS;
	atomic_store(&c->state, IN_PROGRESS);
	return IN_PROGRESS;
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
	if (!element_size(like->type))
		return leave(c, INVALID_ARGUMENT);
	o = malloc(sizeof(*o));
	if (!o)
		return leave(c, SYSTEM_ERROR);
	*o = *like;
	o->size *= element_size(like->type);
	o->event = profiler_start(atomic_load(&c->profiler), symbol + strlen("nccl"), like->size,
				  element_name(o->type), o->root);
	if (!group.depth)
		return leave(c, submit(c, o));
	*group.end = o;
	group.end = &o->next;
	return leave(c, OK);
}

int ncclGroupStart(void);
int ncclGroupStart(void)
{
	int r = failure_of("ncclGroupStart");

	if (!r && group.depth++ == 0) {
		group.first = NULL;
		group.end = &group.first;
	}
	return r;
}

int ncclGroupEnd(void);
int ncclGroupEnd(void)
{
	int r = failure_of("ncclGroupEnd");

	if (group.depth == 0)
		return INVALID_USAGE;
	if (r || --group.depth > 0 || !group.first)
		return r;
	enter(group.first->c);
	return leave(group.first->c, submit(group.first->c, group.first));
}

int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, struct communicator *c,
		  cu_stream stream);
int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, struct communicator *c,
		  cu_stream stream)
{
	if (root < 0 || root >= c->ring.n || from != to)
		return INVALID_ARGUMENT;
	return ask("ncclBroadcast", &(struct operation){.c = c,
							.kind = BROADCAST,
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
	if (type == ELEMENT_UINT8 || (operation != SUM && operation != AVERAGE) ||
	    (operation == AVERAGE && type == ELEMENT_UINT32))
		return INVALID_ARGUMENT;
	return ask("ncclAllReduce", &(struct operation){.c = c,
							.kind = REDUCE,
							.from = (cu_ptr)from,
							.to = (cu_ptr)to,
							.size = n,
							.type = type,
							.reduction = operation,
							.stream = stream});
}

int ncclAllGather(const void *from, void *to, size_t n, int type, struct communicator *c,
		  cu_stream stream);
int ncclAllGather(const void *from, void *to, size_t n, int type, struct communicator *c,
		  cu_stream stream)
{
	return ask("ncclAllGather", &(struct operation){.c = c,
							.kind = GATHER,
							.from = (cu_ptr)from,
							.to = (cu_ptr)to,
							.size = n,
							.type = type,
							.stream = stream});
}

int ncclSend(const void *from, size_t n, int type, int peer, struct communicator *c,
	     cu_stream stream);
int ncclSend(const void *from, size_t n, int type, int peer, struct communicator *c,
	     cu_stream stream)
{
	if (peer < 0 || peer >= c->ring.n || peer == c->ring.rank)
		return INVALID_ARGUMENT;
	return ask("ncclSend", &(struct operation){.c = c,
						   .kind = SEND,
						   .from = (cu_ptr)from,
						   .size = n,
						   .type = type,
						   .root = peer,
						   .stream = stream});
}

int ncclRecv(void *to, size_t n, int type, int peer, struct communicator *c, cu_stream stream);
int ncclRecv(void *to, size_t n, int type, int peer, struct communicator *c, cu_stream stream)
{
	if (peer < 0 || peer >= c->ring.n || peer == c->ring.rank)
		return INVALID_ARGUMENT;
	return ask("ncclRecv", &(struct operation){.c = c,
						   .kind = RECEIVE,
						   .to = (cu_ptr)to,
						   .size = n,
						   .type = type,
						   .root = peer,
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
