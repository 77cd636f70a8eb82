/*
 * Functions that newer releases of NCCL have: they take the arguments of theirs, and move nothing
 *
 * Up to 2.31, with any version that the library reports.
 */
#include <stddef.h>

#include "tests/fake/failure.h"

/* The arguments that only theirs uses. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define TYPES 12 /* that NCCL knows */

enum {
	OK,
	INVALID_ARGUMENT = 4,
};

struct communicator;

static int check(const char *symbol, int type)
{
	int r = failure_of(symbol);

	return r ? r : type < 0 || type >= TYPES ? INVALID_ARGUMENT : OK;
}

/* clang-format off */
#define COLLECTIVE(name, ...)                                                                      \
	int name(const void *from, void *to, size_t n, int type, __VA_ARGS__);                     \
	int name(const void *from, void *to, size_t n, int type, __VA_ARGS__)                      \
	{                                                                                          \
		return check(#name, type);                                                         \
	}

COLLECTIVE(ncclAlltoAll, struct communicator *c, void *stream)
COLLECTIVE(ncclGather, int root, struct communicator *c, void *stream)
COLLECTIVE(ncclScatter, int root, struct communicator *c, void *stream)
COLLECTIVE(ncclAllGatherConfig, struct communicator *c, void *stream, const void *config)
COLLECTIVE(ncclAllReduceConfig, int operation, struct communicator *c, void *stream, const void *config)
COLLECTIVE(ncclAlltoAllConfig, struct communicator *c, void *stream, const void *config)
COLLECTIVE(ncclBroadcastConfig, int root, struct communicator *c, void *stream, const void *config)
COLLECTIVE(ncclGatherConfig, int root, struct communicator *c, void *stream, const void *config)
COLLECTIVE(ncclReduceConfig, int operation, int root, struct communicator *c, void *stream, const void *config)
COLLECTIVE(ncclReduceScatterConfig, int operation, struct communicator *c, void *stream, const void *config)
COLLECTIVE(ncclScatterConfig, int root, struct communicator *c, void *stream, const void *config)
/* clang-format on */

int ncclPutSignal(const void *from, size_t n, int type, int peer, void *window, size_t offset,
		  int signal, int context, unsigned flags, struct communicator *c, void *stream);
int ncclPutSignal(const void *from, size_t n, int type, int peer, void *window, size_t offset,
		  int signal, int context, unsigned flags, struct communicator *c, void *stream)
{
	return check("ncclPutSignal", type);
}

/* One that is there, and no more. */
static int make(const char *symbol, void **ret)
{
	static char one;
	int r = failure_of(symbol);

	*ret = r ? NULL : &one;
	return r;
}

int ncclCommShrink(struct communicator *c, int *excluded, int n_excluded, void **ret, void *config,
		   int flags);
int ncclCommShrink(struct communicator *c, int *excluded, int n_excluded, void **ret, void *config,
		   int flags)
{
	return make("ncclCommShrink", ret);
}

int ncclCommGrow(struct communicator *c, int n, const void *id, int rank, void **ret, void *config);
int ncclCommGrow(struct communicator *c, int n, const void *id, int rank, void **ret, void *config)
{
	return make("ncclCommGrow", ret);
}

int ncclCommRevoke(struct communicator *c, int flags);
int ncclCommRevoke(struct communicator *c, int flags)
{
	return failure_of("ncclCommRevoke");
}

int ncclMemAlloc(void **ret, size_t size);
int ncclMemAlloc(void **ret, size_t size)
{
	return make("ncclMemAlloc", ret);
}

int ncclMemFree(void *p);
int ncclMemFree(void *p)
{
	return failure_of("ncclMemFree");
}

int ncclCommRegister(struct communicator *c, void *buffer, size_t size, void **ret);
int ncclCommRegister(struct communicator *c, void *buffer, size_t size, void **ret)
{
	return make("ncclCommRegister", ret);
}

int ncclCommDeregister(struct communicator *c, void *registration);
int ncclCommDeregister(struct communicator *c, void *registration)
{
	return failure_of("ncclCommDeregister");
}

int ncclCommWindowRegister(struct communicator *c, void *buffer, size_t size, void **ret, int flags);
int ncclCommWindowRegister(struct communicator *c, void *buffer, size_t size, void **ret, int flags)
{
	return make("ncclCommWindowRegister", ret);
}

int ncclCommWindowDeregister(struct communicator *c, void *window);
int ncclCommWindowDeregister(struct communicator *c, void *window)
{
	return failure_of("ncclCommWindowDeregister");
}
