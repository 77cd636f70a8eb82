/*
 * NCCL
 *
 * libnccl.so.2 as a table of functions, opened by soname at run time. Only this file and its .c
 * name its symbols. They are declared here by hand, from the reference of NCCL 2.18 to 2.28: so
 * neither the build nor a node without a GPU needs NCCL.
 */
#pragma once

#include <stddef.h>

#include "ipc/cuda/cuda_driver.h"

typedef int nccl_result;
typedef struct nccl_comm *nccl_comm;

/* Results that are handled here; the others are reported by name. */
#define NCCL_OK 0
#define NCCL_SYSTEM_ERROR 2
#define NCCL_REMOTE_ERROR 6
#define NCCL_IN_PROGRESS 7

#define NCCL_UINT8 1
#define NCCL_UINT32 3
#define NCCL_FLOAT16 6
#define NCCL_FLOAT32 7
#define NCCL_BFLOAT16 9
#define NCCL_SUM 0
#define NCCL_AVG 4

#define NCCL_ID_SIZE 128
#define NCCL_UNDEFINED (-2147483647 - 1) /* a setting: the library's default */
#define NCCL_CONFIG_MAGIC 0xcafebeefu

/*
 * A secret: any process that has it can join the communicator. It is sent to members alone, over
 * authenticated connections.
 */
struct nccl_id {
	char bytes[NCCL_ID_SIZE];
};

/* As of 2.18: later libraries recognize it by `size` and `version`. */
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

/* X(field, symbol, result, parameters): the library is too old if a function is missing. */
#define NCCL_FUNCTIONS(X)                                                                            \
	X(get_version, "ncclGetVersion", nccl_result, (int *ret))                                    \
	X(error_string, "ncclGetErrorString", const char *, (nccl_result r))                         \
	X(last_error, "ncclGetLastError", const char *, (nccl_comm c))                               \
	X(get_id, "ncclGetUniqueId", nccl_result, (struct nccl_id * ret))                            \
	X(init, "ncclCommInitRankConfig", nccl_result,                                               \
	  (nccl_comm * ret, int n_ranks, struct nccl_id id, int rank, struct nccl_config *config))   \
	X(async_error, "ncclCommGetAsyncError", nccl_result, (nccl_comm c, nccl_result * ret))       \
	X(finalize, "ncclCommFinalize", nccl_result, (nccl_comm c))                                  \
	X(abort, "ncclCommAbort", nccl_result, (nccl_comm c))                                        \
	X(broadcast, "ncclBroadcast", nccl_result,                                                   \
	  (const void *from, void *to, size_t n, int type, int root, nccl_comm c, cu_stream s))      \
	X(all_reduce, "ncclAllReduce", nccl_result,                                                  \
	  (const void *from, void *to, size_t n, int type, int operation, nccl_comm c, cu_stream s)) \
	X(all_gather, "ncclAllGather", nccl_result,                                                  \
	  (const void *from, void *to, size_t n, int type, nccl_comm c, cu_stream s))                \
	X(send, "ncclSend", nccl_result,                                                             \
	  (const void *from, size_t n, int type, int peer, nccl_comm c, cu_stream s))                \
	X(receive, "ncclRecv", nccl_result,                                                          \
	  (void *to, size_t n, int type, int peer, nccl_comm c, cu_stream s))                        \
	X(group_start, "ncclGroupStart", nccl_result, (void))                                        \
	X(group_end, "ncclGroupEnd", nccl_result, (void))

struct nccl {
#define X(field, symbol, result, parameters) result(*field) parameters;
	NCCL_FUNCTIONS(X)
#undef X
	int version; /* 22809: 2.28.9 */
};

#define NCCL_WHY_SIZE 256
#define NCCL_VERSION_SIZE 32

/*
 * 0; -ENOENT: no libnccl.so.2; -ENOSYS: it is too old; -EIO. On failure, `ret_why` is a clause for
 * people: "libnccl.so.2 cannot be opened: ...".
 */
int nccl_open(struct nccl *ret, char ret_why[NCCL_WHY_SIZE]);

/* Writes "2.28.9". Returns `ret`. */
const char *nccl_format_version(int version, char ret[NCCL_VERSION_SIZE]);

/*
 * Writes "remote process exited or there was a network error: socketProgress: ...", as far as the
 * library explains it.
 */
void nccl_explain(const struct nccl *n, nccl_comm c, nccl_result result,
		  char ret_why[NCCL_WHY_SIZE]);
