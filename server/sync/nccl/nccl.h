/*
 * NCCL
 *
 * libnccl.so.2 as a table of functions, opened by soname at run time. This file and its .c are the only ones that
 * name its symbols; they are declared here by hand, from the reference of NCCL 2.18 to 2.28, so that nothing of NCCL
 * is needed to build, nor by a node that has no GPU.
 */
#pragma once

#include <stddef.h>

#include "ipc/cuda/cuda_driver.h"

typedef int nccl_result;
typedef struct nccl_comm *nccl_comm;

/* Results that mean something here; the others are told by name. */
#define NCCL_OK 0
#define NCCL_SYSTEM_ERROR 2
#define NCCL_REMOTE_ERROR 6
#define NCCL_IN_PROGRESS 7

#define NCCL_UINT8 1
#define NCCL_UINT32 3
#define NCCL_SUM 0

#define NCCL_ID_SIZE 128
#define NCCL_UNDEFINED (-2147483647 - 1) /* of a setting: what the library takes */
#define NCCL_CONFIG_MAGIC 0xcafebeefu

/* Who has it may join a communicator: it is told to members alone, over connections that prove who they are. */
struct nccl_id {
	char bytes[NCCL_ID_SIZE];
};

/* As of 2.18: a later library takes it for what it was, by `size` and `version`. */
struct nccl_config {
	size_t size;
	unsigned magic;
	unsigned version;
	int blocking;
	int cga_cluster_size;
	int min_ctas;
	int max_ctas;
	const char *net_name;
	int split_share;
};

#define NCCL_CONFIG_VERSION 21800

/* X(field, symbol, result, parameters): every function is there, or the library is too old. */
#define NCCL_FUNCTIONS(X)                                                                          \
	X(get_version, "ncclGetVersion", nccl_result, (int *ret))                                  \
	X(error_string, "ncclGetErrorString", const char *, (nccl_result r))                       \
	X(last_error, "ncclGetLastError", const char *, (nccl_comm c))                             \
	X(get_id, "ncclGetUniqueId", nccl_result, (struct nccl_id * ret))                          \
	X(init, "ncclCommInitRankConfig", nccl_result,                                             \
	  (nccl_comm * ret, int n_ranks, struct nccl_id id, int rank, struct nccl_config *config)) \
	X(async_error, "ncclCommGetAsyncError", nccl_result, (nccl_comm c, nccl_result * ret))     \
	X(finalize, "ncclCommFinalize", nccl_result, (nccl_comm c))                                \
	X(abort, "ncclCommAbort", nccl_result, (nccl_comm c))                                      \
	X(broadcast, "ncclBroadcast", nccl_result,                                                 \
	  (const void *from, void *to, size_t n, int type, int root, nccl_comm c, cu_stream s))    \
	X(all_reduce, "ncclAllReduce", nccl_result,                                                \
	  (const void *from, void *to, size_t n, int type, int operation, nccl_comm c, cu_stream s))

struct nccl {
#define X(field, symbol, result, parameters) result(*field) parameters;
	NCCL_FUNCTIONS(X)
#undef X
	int version; /* 22809: 2.28.9 */
};

#define NCCL_WHY_SIZE 256
#define NCCL_VERSION_SIZE 32

/*
 * 0; -ENOENT: no libnccl.so.2; -ENOSYS: it is too old; -EIO. `ret_why` gets a clause for a person on failure:
 * "libnccl.so.2 cannot be opened: ...".
 */
int nccl_open(struct nccl *ret, char ret_why[NCCL_WHY_SIZE]);

/* "2.28.9". Returns `ret`. */
const char *nccl_format_version(int version, char ret[NCCL_VERSION_SIZE]);

/* "remote process exited or there was a network error: socketProgress: ...", as far as the library has words for it. */
void nccl_explain(const struct nccl *n, nccl_comm c, nccl_result result,
		  char ret_why[NCCL_WHY_SIZE]);
