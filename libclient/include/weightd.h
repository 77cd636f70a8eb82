/*
 * weightd.h: share model weights between the processes of one machine, without copies
 *
 * A server, weightd, owns one flat buffer of bytes per model and device. A *writer* creates a new
 * version of a buffer from a layout (the ordered tensor table), fills it and publishes it. A published
 * version is immutable, for its writer too. *Readers* attach a published version and find its
 * tensors by name or index, at their final place in memory that all readers share.
 *
 * Errors. A function that can fail returns 0 or a positive result, or a negative errno. weightd_error()
 * returns the sentence of the last failure on a connection. Outputs are written on success only. Codes
 * with a fixed meaning here:
 *	-ENOENT		no such buffer, version or tensor
 *	-ENODATA	the buffer exists, but no version of it has been published
 *	-ESTALE		the buffer was removed (and perhaps created again since); a writer's bytes are lost
 *	-EACCES		the permissions of the buffer do not allow it
 *	-EPERM		only administrators may do it, or this user may own nothing; or the buffer belongs to another
 *			user than the one that the call means
 *	-EBUSY		the buffer has another writer, or its bytes are still mapped writable
 *	-ENOMEM		this machine has no room for the bytes; the sentence has the missing size
 *	-EDQUOT		a limit of the user or of the server is reached
 *	-EPROTOTYPE	the layout is not the one asked for
 *	-EMEDIUMTYPE	an attribute of the version is not the one required
 *	-EAGAIN		the buffer is being updated in place; wait for the next version
 *	-EUCLEAN	an exclusive buffer is torn: its writer died during an update; update it again
 *	-EALREADY	this writer has published or was aborted
 *	-ECONNABORTED	the server restarted during the call, which may or may not have taken effect
 *	-ENOTRECOVERABLE the service manager or keeper that the server survives with is gone: no new versions
 *	-EBADMSG	a file, layout or message breaks its format
 *	-EILSEQ		bytes differ from their digest
 *	-EMFILE		this process, or the server, is out of descriptors
 *	-ETIMEDOUT	the deadline passed; of a create: readers did not pause
 *	-ENOTCONN	not connected, or the server went away
 *	-ECHILD		the connection belongs to the process that forked this one; connect again
 *	-ECANCELED	a progress callback asked to stop
 *	-ENOLINK	/proc does not lead to the descriptors of this process
 *	-ENODEV		this process has no such GPU, or no driver for one
 *	-ENOSYS		its CUDA driver is too old
 *	-EOPNOTSUPP	this kind of memory or version, or these two GPUs, cannot do that
 *	-EADDRNOTAVAIL	the memory was given back, and only its addresses are kept
 *	-EIO		the GPU or its driver fails; of cuda-ipc memory: it is lost with the process that held it
 *
 * Restarts. A server under systemd or `weightd --keeper` survives its own death. A call that finds the
 * connection to such a server lost waits until the server is back, for weightd_set_restart_timeout() at
 * most, resumes leases, writers and ranks of jobs, and continues. An attachment keeps its memory in any case, and an
 * unpublished writer can continue to fill its version. The server keeps leases and writers for [store]
 * resume-timeout, see weightd.conf(5). weightd_load() reconnects while it reads, so that it may read for
 * longer. A writer that resumes later fails with -ESTALE; a reader keeps its
 * mapping, without a lease and uncounted. A call that must not be repeated (weightd_drop(),
 * weightd_rollback() to version 0) returns -ECONNABORTED if its reply was lost. The wait counts against
 * the timeout of the call. Attached bytes, their head pages and waits on them do not need the server;
 * detaching does not wait for it.
 *
 * Owners. The first create of a name makes its user the owner of the buffer, for good: the owner publishes in it, removes it
 * and admits others. So a name that an attacker took first belongs to the attacker. A create is for buffers of its own user
 * only, unless it names another owner; an attach that names an owner returns no other user's bytes.
 *
 * Threads. One thread at a time may use a connection and its objects (writers, attach and detach,
 * lists); threads that work concurrently need a connection each. Functions that only read an attached
 * buffer (all that take a `const struct weightd_buffer *`) may be called from any number of threads
 * at once.
 *
 * Processes. After fork() the child may read the buffers that its parent attached in host memory, and
 * nothing more: calls that need the server return -ECHILD there, and so does every use of GPU memory.
 *
 * Devices. A buffer is on "host", or on a GPU: "cuda:N", numbered as in this process (CUDA_VISIBLE_DEVICES,
 * as torch does; "cuda" is "cuda:0"), or "cuda:GPU-<uuid>" or "cuda:MIG-<uuid>", which are the same in every
 * process. Without a CUDA driver in this process, "cuda:N" has the N of nvidia-smi and serves queries only. One
 * process may use several GPUs. Functions that return a device return its UUID; weightd_buffer_location()
 * returns the number. Addresses of buffers and tensors on a GPU are device addresses: pass them to kernels and
 * copies; the host must not dereference them.
 *
 * Contexts. The library opens libcuda.so.1 when a GPU is first named, and never before. It works on GPU memory
 * in the current context if that context is on this GPU, else in the GPU's primary context (the one of the CUDA
 * runtime and of torch), which it retains for as long as a buffer or writer on the GPU exists. A call leaves the
 * current context as it was. The first such call of a process may take a second to create the context.
 *
 * Streams. Only the caller knows in which order a GPU reads and writes bytes. Calls that make bytes immutable
 * or unmap them wait first. Functions with the suffix _on wait for the work queued so far in one stream (a
 * CUstream or cudaStream_t of the context above; NULL is its default stream). The others wait as with
 * WEIGHTD_ALL_STREAMS, for all work of this process on that GPU, in the primary context and in the current
 * one. The caller must hold back work that it would queue meanwhile, and work in other contexts. Host memory
 * needs no wait, and streams are ignored for it. None of these functions may be called while the stream is
 * captured into a graph.
 *
 * Structs. Structs passed by pointer begin with their size, which the caller sets; fields that the caller does
 * not use must be zero (struct weightd_create_options o = {.size = sizeof(o)}). A library that is older than an
 * option refuses it with -E2BIG unless it is zero.
 *
 * The library never prints, never exits and installs no signal handlers, except as weightd_guard() requests.
 */
#ifndef WEIGHTD_H
#define WEIGHTD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEIGHTD_VERSION_MAJOR 0
#define WEIGHTD_VERSION_MINOR 1
#define WEIGHTD_VERSION_PATCH 0

/* The release of the library in use, "0.1.0". */
const char *weightd_release(void);
/* The file that the library in use was loaded from, with its folders. */
const char *weightd_library(void);

/*
 * Limits. Names of buffers are 1 to WEIGHTD_NAME_MAX of [A-Za-z0-9._/:-] and start with a letter or a
 * digit; names of tensors are 1 to WEIGHTD_TENSOR_NAME_MAX bytes of UTF-8 without NUL.
 */
#define WEIGHTD_NAME_MAX 127
#define WEIGHTD_DEVICE_MAX 63
#define WEIGHTD_TENSOR_NAME_MAX 1024
#define WEIGHTD_TENSORS_MAX 4194304
#define WEIGHTD_DIMS_MAX 32
#define WEIGHTD_DIGEST_SIZE 16
#define WEIGHTD_LEAF_SIZE 1048576 /* bytes of one digest leaf */

/* Element types: those of safetensors, and of GGUF. */
enum weightd_dtype {
	WEIGHTD_BOOL = 1,
	WEIGHTD_F4, /* two to a byte */
	WEIGHTD_F6_E2M3, /* four to three bytes */
	WEIGHTD_F6_E3M2,
	WEIGHTD_U8,
	WEIGHTD_I8,
	WEIGHTD_F8_E5M2,
	WEIGHTD_F8_E4M3,
	WEIGHTD_F8_E8M0,
	WEIGHTD_F8_E4M3FNUZ,
	WEIGHTD_F8_E5M2FNUZ,
	WEIGHTD_I16,
	WEIGHTD_U16,
	WEIGHTD_F16,
	WEIGHTD_BF16,
	WEIGHTD_I32,
	WEIGHTD_U32,
	WEIGHTD_F32,
	WEIGHTD_C64, /* two F32 */
	WEIGHTD_F64,
	WEIGHTD_I64,
	WEIGHTD_U64,
	/* Block-quantised types of GGUF. A row of a tensor, its innermost dimension, is a number of whole blocks. */
	WEIGHTD_Q4_0,
	WEIGHTD_Q4_1,
	WEIGHTD_Q5_0,
	WEIGHTD_Q5_1,
	WEIGHTD_Q8_0,
	WEIGHTD_Q8_1,
	WEIGHTD_Q2_K,
	WEIGHTD_Q3_K,
	WEIGHTD_Q4_K,
	WEIGHTD_Q5_K,
	WEIGHTD_Q6_K,
	WEIGHTD_Q8_K,
	WEIGHTD_IQ2_XXS,
	WEIGHTD_IQ2_XS,
	WEIGHTD_IQ3_XXS,
	WEIGHTD_IQ1_S,
	WEIGHTD_IQ4_NL,
	WEIGHTD_IQ3_S,
	WEIGHTD_IQ2_S,
	WEIGHTD_IQ4_XS,
	WEIGHTD_IQ1_M,
	WEIGHTD_TQ1_0,
	WEIGHTD_TQ2_0,
	WEIGHTD_MXFP4,
	WEIGHTD_NVFP4,
	WEIGHTD_Q1_0,
};

/* The name of an element type, such as "BF16"; NULL for an unknown code. */
const char *weightd_dtype_name(enum weightd_dtype dtype);
/* The code of an element type by its name, such as "BF16"; -EINVAL for an unknown name. */
int weightd_dtype_parse(const char *name);
/* Bits of one element; 0 for an unknown code, and for a block type, whose elements have no size of their own. */
unsigned weightd_dtype_bits(enum weightd_dtype dtype);
/*
 * The fewest elements that fill whole bytes, and the number of these bytes: 256 and 144 for Q4_K, 1 and 2 for BF16, 2 and
 * 1 for F4. -EINVAL for an unknown code.
 */
int weightd_dtype_block(enum weightd_dtype dtype, uint32_t *ret_elements, uint32_t *ret_bytes);

/* The role of a tensor in its module. */
enum weightd_role {
	WEIGHTD_PARAM = 1, /* readers share it */
	WEIGHTD_BUFFER, /* mutable or non-parameter state: readers make a private copy */
};

#define WEIGHTD_NOT_TIED UINT32_MAX

/*
 * One tensor. The caller sets `size` to sizeof(struct weightd_tensor) before each call that fills one.
 * The buffer or writer owns the strings and the shape.
 */
struct weightd_tensor {
	size_t size;
	const char *name; /* NUL-terminated */
	const char *unit; /* module block, e.g. "encoder.layer.3"; "" when it has none */
	const uint64_t *shape; /* n_dims of them, outermost first; row-major and contiguous */
	void *data; /* read-only in an attached or published buffer */
	uint64_t offset; /* bytes from the start of the buffer; data == base + offset */
	uint64_t n_bytes;
	uint32_t index;
	uint32_t tied_to; /* this name shares the bytes of the tensor with that index; or WEIGHTD_NOT_TIED */
	uint32_t n_dims; /* 0 for a scalar */
	enum weightd_dtype dtype;
	enum weightd_role role;
};

/* Kinds of memory. */
enum weightd_memory {
	WEIGHTD_MEMORY_HOST,
	WEIGHTD_MEMORY_CUDA, /* an allocation on a GPU, mapped by CUDA virtual memory management */
	WEIGHTD_MEMORY_CUDA_IPC, /* an allocation on a GPU, opened by a cudaIpcMemHandle_t */
};

struct weightd_location {
	size_t size; /* set by the caller */
	enum weightd_memory memory;
	int device; /* number, in this process, of the GPU that maps it; -1: host memory */
	uint8_t uuid[16]; /* UUID of the GPU or MIG partition with the memory; zero for host memory */
	uint64_t map_size; /* CUDA memory: bytes of the allocation; a mapping of its descriptor must span all of them */
	/*
	 * Host memory: the byte at which the data begin in the descriptor of weightd_attach() or weightd_writer_fd(),
	 * behind the header of a version that is a file. 0: the descriptor begins with them.
	 */
	uint64_t data_offset;
};

/* All streams of a GPU, where a stream is expected. */
#define WEIGHTD_ALL_STREAMS ((void *)-1)

/* --- Connections ------------------------------------------------------------------------------- */

struct weightd;

/*
 * Creates a connection object, not yet connected: a failure to connect has its sentence there. The caller owns it, and
 * releases it with weightd_close(). -ENOMEM.
 */
int weightd_new(struct weightd **ret);

/*
 * Connects to the socket `path`. NULL means $WEIGHTD_SOCKET, else the first socket with a listener of
 * $XDG_RUNTIME_DIR/weightd.sock and the system's, /run/weightd/weightd.sock. A $XDG_RUNTIME_DIR that another
 * user owns, as su and sudo -E may leave it, is skipped.
 *
 * May be called again to reconnect. On the same socket of a server that survives restarts, leases and writers
 * are resumed. Otherwise attached buffers stay readable without a lease, and writers lose their bytes
 * (-ESTALE). Pass weightd_socket(w) to reconnect: NULL may then select the server of another socket.
 *
 * Blocks for the handshake (5 s at most), and up to a second for a socket that a server is creating: one that
 * refuses, or admits only other users, and changed within the last second; or one that is missing from a
 * folder in which a file was created or removed within the last second. A socket that refuses and did not
 * change is retried for 0.2 s, because its server may be about to replace it. Other failures return at once:
 * -ENOENT, -ECONNREFUSED, or -EACCES; the sentence of -EACCES names the group that the socket admits.
 *
 * A program that attaches first connects in the same round trip: weightd_attach_options::connect.
 */
int weightd_connect(struct weightd *w, const char *path);

/*
 * Returns true while there is a connection, as far as the last call has found out. After a call that failed, false means
 * that it failed for want of a server.
 */
bool weightd_is_connected(const struct weightd *w);

/*
 * Releases the caller's reference; NULL is fine. Buffers and writers of the connection keep it open until
 * they are freed. Waits for the streams of buffers that weightd_detach_on() has not finished.
 */
void weightd_close(struct weightd *w);

/* The message of the last failure, for people; "" if there was none. Valid until the next call. */
const char *weightd_error(const struct weightd *w);

/*
 * Sets how long a call waits for a server that restarts: < 0 for ever, 0 not at all. Default: 30 s. Calls wait
 * only for a server that survives restarts.
 */
void weightd_set_restart_timeout(struct weightd *w, int timeout_ms);

/* The socket path in use or last tried. */
const char *weightd_socket(const struct weightd *w);

struct weightd_server {
	size_t size; /* set by the caller */
	uint64_t instance; /* random, new at each start */
	uint64_t uptime_ns;
	uint64_t n_buffers;
	uint64_t n_sessions;
	uint64_t n_leases;
	uint64_t n_bytes; /* in slots, of all versions */
	uint32_t pid;
	char release[32];
	char program[256]; /* file of weightd; "" where this process cannot see it: it belongs to another user, or namespace */
};

/* Asks the server for its identity and counters. Blocks for the reply. */
int weightd_ping(struct weightd *w, struct weightd_server *ret);

/* --- Reading ----------------------------------------------------------------------------------- */

struct weightd_buffer;

/* The facts of an attachment. Pointers are owned by it; a swap, pause or reacquire may change all but the first two. */
struct weightd_attached {
	size_t size; /* set by the caller */
	const char *name; /* of the buffer */
	const char *device; /* as the server names it: a GPU by its UUID */
	uint64_t version;
	const void *data; /* start of the bytes; on a GPU, an address of that GPU */
	uint64_t n_bytes;
	const uint8_t *layout_hash; /* 16 bytes */
	const uint8_t *digest; /* 16 bytes; NULL if the writer published without one */
	enum weightd_memory memory;
	uint32_t n_tensors;
	uint64_t data_offset; /* like weightd_location::data_offset */
	bool is_mutable; /* like weightd_buffer_is_mutable() */
	bool has_owner; /* false: the server is older, and `owner` is 0 */
	uint32_t owner; /* uid, like weightd_buffer_owner() */
};

struct weightd_attach_options {
	size_t size; /* set by the caller */
	const char *device; /* NULL: "host" */
	uint64_t version; /* 0: the newest */
	const uint8_t *layout_hash; /* 16 bytes that the layout must hash to, else -EPROTOTYPE; NULL: any */
	int timeout_ms; /* to wait for that version, or for an update: 0 not at all, < 0 for ever */
	/*
	 * Buffers on a GPU: the GPU of this process that maps it, over NVLink or PCIe; NULL: the GPU with the
	 * memory. -EOPNOTSUPP if the two have no peer access. Both must be visible to this process.
	 */
	const char *map_device;
	/*
	 * Receives a descriptor of the bytes, which begin at weightd_location::data_offset, for sendfile() or for
	 * another process to map; the caller closes it. NULL: none. For host memory the descriptor is read-only; other
	 * processes share its file position, so use calls with an explicit offset. On a GPU it is the allocation, for
	 * cuMemImportFromShareableHandle(). Its importer must map weightd_location::map_size bytes; nothing prevents
	 * it from mapping them writable. -EOPNOTSUPP for cuda-ipc memory. Only the lease of the attachment protects
	 * the memory of a reusable buffer from a new writer, the descriptor does not. The server cannot free the
	 * memory while the descriptor is open.
	 */
	int *ret_fd;
	/*
	 * Attributes that the version must have, "key=value" each, `n_require` of them, else -EMEDIUMTYPE: the sentence has
	 * both values. Later swaps do not check them again.
	 */
	const char *const *require;
	size_t n_require;
	/*
	 * Uid of the user that must own the buffer, else -EPERM; NULL: any. weightd_buffer_refresh(), _swap() and
	 * _reacquire() demand the same of later versions. Copied. -EOPNOTSUPP: the server is older.
	 */
	const uint32_t *owner;
	/*
	 * Connects first, if `w` is not connected, or its server has ended: like weightd_connect(), with its failures, to
	 * `socket`; NULL: the socket that `w` was connected to, else like NULL there. Where `w` holds nothing, connecting and
	 * attaching take one round trip; two if the server is older. weightd_is_connected() distinguishes -ENOENT and
	 * -EACCES of the socket from those of the buffer.
	 */
	bool connect;
	const char *socket;
	/* Receives what weightd_buffer_attached() returns; NULL: nothing. Its `size` is set by the caller. */
	struct weightd_attached *ret_attached;
};

/*
 * Maps a published version; `options` may be NULL. The caller owns the result, and releases it with
 * weightd_detach(). -ENOENT, -ENODATA, -EACCES, -EAGAIN, -EUCLEAN, -EPROTOTYPE, -EMEDIUMTYPE, -ETIMEDOUT.
 *
 * On a GPU the mapping is read-only too: a kernel that writes through it fails, with its context (an illegal
 * address). A driver without such mappings returns a writable one, and cuda-ipc memory is always writable: there
 * the bytes stay only if every process leaves them alone, and weightd_buffer_verify() detects a change.
 */
int weightd_attach(struct weightd *w, const char *name,
		   const struct weightd_attach_options *options, struct weightd_buffer **ret);

/*
 * Unmaps the buffer and ends its lease; NULL is fine. Tensor pointers are invalid afterwards. Waits for all
 * streams on the GPU that maps it.
 */
void weightd_detach(struct weightd_buffer *b);

/*
 * Like weightd_detach(), but returns at once: the memory stays mapped and the lease held until the work that is now
 * queued in `stream` is done. Later calls to the server on this connection, and weightd_reap(), check for that.
 * `b` must not be used any more; the stream may be destroyed. Waits like weightd_detach() with
 * WEIGHTD_ALL_STREAMS, for a stream that takes no event, and after weightd_close().
 */
void weightd_detach_on(struct weightd_buffer *b, void *stream);

/* Finishes calls of weightd_detach_on() once their stream is done. Returns the number that is left. Does not wait. */
int weightd_reap(struct weightd *w);

/* All facts of the attachment at once. From any thread, like the functions below. -EINVAL: `ret->size` was not set. */
int weightd_buffer_attached(const struct weightd_buffer *b, struct weightd_attached *ret);
/* The name of the buffer, owned by it. */
const char *weightd_buffer_name(const struct weightd_buffer *b);
/* The device as the server names it: a GPU by its UUID. */
const char *weightd_buffer_device(const struct weightd_buffer *b);
/*
 * The user that owned the buffer when this version was attached. -EOPNOTSUPP: the server is older; weightd_list() has it
 * then, too.
 */
int weightd_buffer_owner(const struct weightd_buffer *b, uint32_t *ret_uid);
/* The attached version; only weightd_buffer_swap(), _reacquire() and _pause() change it. */
uint64_t weightd_buffer_version(const struct weightd_buffer *b);
/* Start of the bytes, and their number if `ret_size` is given. */
const void *weightd_buffer_data(const struct weightd_buffer *b, uint64_t *ret_size);
/* The kind of memory, and the GPU that maps it. -EINVAL: `ret->size` was not set. */
int weightd_buffer_location(const struct weightd_buffer *b, struct weightd_location *ret);
/*
 * Copies the cudaIpcMemHandle_t, 64 bytes, of a cuda-ipc buffer, for a program of this machine that opens it itself;
 * the bytes begin at the start of the opened memory. The handle is valid while this attachment exists: close the memory
 * before weightd_detach(). The attachment that weightd_buffer_refresh() returns needs a handle of its own. Nothing
 * prevents the program from writing. -EOPNOTSUPP: memory of another kind; -EIO: the memory was lost with the process
 * that held it, and no longer opens.
 */
int weightd_buffer_ipc_handle(const struct weightd_buffer *b, uint8_t ret_handle[64]);
/*
 * Copies `n` bytes from `offset` on into host memory, from any kind of memory. Blocks until the copy is done, on a GPU
 * also for the work of its default stream. -EINVAL: not within the buffer. -EADDRNOTAVAIL, -EIO.
 */
int weightd_buffer_read(struct weightd_buffer *b, uint64_t offset, void *to, uint64_t n);
/* The hash of the layout: 16 bytes, owned by the buffer. */
const uint8_t *weightd_buffer_layout_hash(const struct weightd_buffer *b);
/*
 * The layout as one constant range of bytes, owned by the buffer; weightd_layout_parse() turns it into a layout
 * again, in another process or on another machine.
 */
const void *weightd_buffer_layout_image(const struct weightd_buffer *b, uint64_t *ret_size);
/* The digest of the attached version: 16 bytes, owned by the buffer; NULL if the writer published without one. */
const uint8_t *weightd_buffer_digest(const struct weightd_buffer *b);
/* The number of tensors. */
uint32_t weightd_buffer_n_tensors(const struct weightd_buffer *b);

/* Tensor `index` of the table, in the order of the layout. -ENOENT. Constant time. */
int weightd_buffer_tensor(const struct weightd_buffer *b, uint32_t index,
			  struct weightd_tensor *ret);
/* The tensor with that name. -ENOENT. Constant time: a hash table inside the mapped layout. */
int weightd_buffer_find(const struct weightd_buffer *b, const char *name,
			struct weightd_tensor *ret);

/*
 * The current version of the buffer, which is the newest except after a rollback: one atomic load, no system
 * call. -ESTALE: the buffer was removed.
 */
int weightd_buffer_latest(const struct weightd_buffer *b, uint64_t *ret_version);

/*
 * Blocks until the current version is newer than `version`. timeout_ms < 0: for ever. -ETIMEDOUT, -ESTALE.
 * Needs no connection, so it does not notice the end of the server.
 */
int weightd_buffer_wait(const struct weightd_buffer *b, uint64_t version, int timeout_ms,
			uint64_t *ret_version);

/*
 * Maps the current version beside the attached one. Returns 1 and the new attachment, which the caller detaches
 * (`b` stays valid until it is detached too), or 0 if `b` has the current version already. -EIO: it has, but its
 * memory is lost.
 */
int weightd_buffer_refresh(struct weightd_buffer *b, struct weightd_buffer **ret);

/*
 * Like weightd_buffer_refresh(), at the same address: the memory of the new version replaces that of the old
 * one, so that pointers, views and captured graphs stay valid. Call it at a safe point, where no thread of the
 * process reads the buffer. Returns 1: swapped; 0: `b` has the current version already; -EPROTOTYPE: the layout
 * differs (the sentence has the differences), or the data have another place in a page of memory, attach anew. After
 * a failure `b` keeps its version. Results of weightd_buffer_tensor() stay valid, except for the bytes.
 *
 * On a GPU the call imports the new memory, then waits for the streams; work queued after the call reads the new
 * version. -EIO: the driver could map neither the new memory nor the old one again, and `b` has no memory until
 * another swap succeeds. -EOPNOTSUPP for cuda-ipc memory: the driver chooses its address; refresh instead.
 * -EADDRNOTAVAIL after weightd_buffer_release().
 */
int weightd_buffer_swap(struct weightd_buffer *b);
int weightd_buffer_swap_on(struct weightd_buffer *b, void *stream);

/*
 * Puts the buffer to sleep: waits for `stream`, returns memory and lease to the server, and keeps the addresses, for an
 * engine that frees its GPU while it is idle. Until weightd_buffer_reacquire(), reads of the addresses fault, and
 * functions that need the bytes (weightd_buffer_read(), weightd_buffer_verify(), weightd_read_begin(),
 * weightd_buffer_swap(), weightd_buffer_pause()) return -EADDRNOTAVAIL. Functions that use the layout or the head page
 * (weightd_buffer_latest(), weightd_buffer_wait(), weightd_buffer_state()) still work, and so do
 * weightd_buffer_refresh(), which attaches a current version other than this one beside it, and weightd_detach(). The
 * server may free the version meanwhile, and writers do not wait for a sleeping reader. Returns 0 if it is asleep
 * already. -EOPNOTSUPP for cuda-ipc memory. Does not need the server.
 */
int weightd_buffer_release(struct weightd_buffer *b, void *stream);

/*
 * Wakes the buffer: maps memory at the same addresses, which makes pointers and captured graphs valid again. Returns
 * 0: the same version, or it was not asleep; 1: the current version, because the old one is gone. After a failure the
 * buffer stays asleep. -ESTALE: it was removed; -EPROTOTYPE: its versions have another layout now, attach anew;
 * -ENODATA, -EAGAIN and -EUCLEAN as for weightd_attach(); -ENOMEM and other errors of the GPU.
 */
int weightd_buffer_reacquire(struct weightd_buffer *b);

/* The state of a buffer. */
enum weightd_state {
	WEIGHTD_EMPTY, /* no version yet, or a writer replaces it */
	WEIGHTD_READY,
	WEIGHTD_UPDATING, /* a writer waits for the readers to pause, or writes in place */
	WEIGHTD_TORN, /* the writer died during an update in place */
	WEIGHTD_GONE, /* removed */
};

/* State and current version: one atomic load, no system call. `ret_version` may be NULL. */
enum weightd_state weightd_buffer_state(const struct weightd_buffer *b, uint64_t *ret_version);

/*
 * Validates reads of an exclusive buffer by readers that cannot pause, like a seqlock. Bytes read between a begin and a
 * retry that returns false are one whole version; bytes read before a retry that returns true may be torn, and must be
 * discarded. weightd_read_begin() returns 0; -EAGAIN during an update (try again, or call weightd_buffer_wait());
 * -EUCLEAN: torn, or weightd_buffer_pause() has reported that this reader was evicted; -ESTALE. Sealed versions are
 * always whole. Two loads, no system call.
 */
int weightd_read_begin(const struct weightd_buffer *b, uint64_t *ret_ticket);
bool weightd_read_retry(const struct weightd_buffer *b, uint64_t ticket);

/*
 * A safe point for readers that can pause. In state WEIGHTD_UPDATING, reports to the server that this process does not
 * read, and waits until it may read again. Returns 0: no writer waits; 1: paused and resumed, possibly with another
 * version, at the same addresses. -ETIMEDOUT: still paused, call again. -EUCLEAN: this reader was evicted, attach anew;
 * or the buffer is torn (see weightd_buffer_state()): detach, or call again, because its repair waits for this reader
 * too. -ESTALE. -EPROTOTYPE: the next version has another layout, attach anew. No thread of the process may read the
 * buffer during the call. Waits for all streams on the GPU that maps it.
 *
 * A pause covers one update; the next update needs another. A reader that received -ETIMEDOUT and reads without
 * another call may read during either update.
 *
 * While a writer replaces the buffer, its memory goes back to the server and the addresses are kept. Until the call
 * returns 1, also after -ETIMEDOUT and other failures, reads of the addresses fault, and only this function and
 * weightd_detach() may be called with `b`.
 */
int weightd_buffer_pause(struct weightd_buffer *b, int timeout_ms);

/* True if the bytes can change in place: in an exclusive buffer. */
bool weightd_buffer_is_mutable(const struct weightd_buffer *b);

/*
 * Computes the digest of the mapped bytes and compares it with the published one. A GPU digests its own memory, beside
 * its other work, and copies back 16 bytes of each leaf. 0: equal; -EILSEQ: they differ (the sentence has the first bad
 * range, its tensors and its leaf); -ENODATA: published without a digest; -EAGAIN: an exclusive buffer was updated since `b` was attached or
 * last paused; -EUCLEAN, -ESTALE, -EADDRNOTAVAIL, -EIO. Reads all bytes, and blocks for it. Of a version that is a file
 * it compares the header too, with its digest and with the layout, for which it asks the server; without a lease, without
 * the server and in a child it compares the data alone, as a whole.
 */
int weightd_buffer_verify(struct weightd_buffer *b);

#define WEIGHTD_HEADER_LEAF UINT64_MAX

/* A part of a version whose bytes are not those published: a leaf, or the header of a file. */
struct weightd_damage {
	size_t size; /* size of this struct in the library */
	uint64_t leaf; /* WEIGHTD_HEADER_LEAF: the header */
	uint64_t begin,
		end; /* bytes of the data, from its start; of the header, bytes of the file */
	/* Tensors with bytes in the leaf, without tied names, and the indexes of the first and the last of them. */
	uint32_t n_tensors;
	uint32_t first_tensor, last_tensor;
};

/* Called for each damaged part, in order, with a pointer that is valid during the call. Not 0: stop. */
typedef int (*weightd_damage_fn)(void *userdata, const struct weightd_damage *damage);

/*
 * The same, and calls `fn`, which may be NULL, for each damaged part. -EILSEQ without a call: the digests themselves are
 * damaged, or could not be had, so that no part can be named; or the header does not describe the layout. -ECANCELED:
 * `fn` has stopped it. In an exclusive buffer calls before another result than -EILSEQ mean nothing.
 */
int weightd_buffer_verify_each(struct weightd_buffer *b, weightd_damage_fn fn, void *userdata);

/*
 * Installs a handler of SIGSEGV for debugging, which explains a fault in weightd's host memory in one line on standard
 * error, with the tensor, the buffer and its version. Such faults are a write to a published version and any use of
 * memory that weightd_buffer_release() returned. Only the first one of a process is explained, even if a handler
 * recovers from it. The signal, and that of other faults, then reaches the handler installed before, or ends the
 * process. Covers up to 4096 attachments and writers of the process. If another handler was installed since, a second
 * call puts this one before it. One thread at a time. -errno.
 */
int weightd_guard(void);

/* --- Layouts ----------------------------------------------------------------------------------- */

struct weightd_layout;

/*
 * Creates an empty layout, which the caller frees. `alignment` is that of every tensor's offset in bytes, a power
 * of two from 64 to 2 MiB. 0 leaves order and offsets to weightd_create(): a version in host memory is a file then, see
 * there. The functions on layouts show such a layout in the order of the calls, with an alignment of 256. -EINVAL,
 * -ENOMEM.
 */
int weightd_layout_new(uint64_t alignment, struct weightd_layout **ret);
void weightd_layout_free(struct weightd_layout *l);

/*
 * Appends a tensor at the next aligned offset. `unit` may be NULL. Returns 0, -EINVAL (name, shape or
 * dtype out of bounds), -EEXIST (the name is taken), -EOVERFLOW, -ENOMEM.
 */
int weightd_layout_add(struct weightd_layout *l, const char *name, enum weightd_dtype dtype,
		       uint32_t n_dims, const uint64_t *shape, enum weightd_role role,
		       const char *unit);

/*
 * Serializes the layout, with its hash, into one range of bytes for weightd_layout_parse(); the same bytes as
 * weightd_buffer_layout_image() of a buffer with this layout. The caller releases it with free(). -EINVAL: no tensors;
 * -EOVERFLOW: more than 1 GiB; -ENOMEM. Reads the whole table.
 */
int weightd_layout_image(const struct weightd_layout *l, void **ret_image, uint64_t *ret_size);

/*
 * Parses an image of weightd_buffer_layout_image() or weightd_layout_image() into a layout with the same hash, which the
 * caller frees. The image is untrusted: the function copies it and checks it as the server does. -EBADMSG, also for an
 * image of more than 1 GiB; -ENOMEM. Reads the whole table.
 */
int weightd_layout_parse(const void *image, uint64_t size, struct weightd_layout **ret);

/*
 * Compares two layouts. They belong to one model if they have the same set of (name, type, shape), in any order. A
 * name in only one of them is no difference if it is tied to a name in both. Returns 0, or -EPROTOTYPE with the
 * differences in up to `size` bytes of `ret_text`: "other type or shape: 'w' is F32 [4, 4], was BF16 [4, 4]; only in
 * this layout: 'a', 'b' and 3 more; only in the other: 'c'". 256 bytes hold some names of each kind. `ret_text` may
 * be NULL if `size` is 0. -ENOMEM. Reads both tables.
 */
int weightd_layout_compare(const struct weightd_layout *l, const struct weightd_layout *other,
			   char *ret_text, size_t size);

/* Appends another name for the bytes of tensor `index`, with its dtype, shape and role. */
int weightd_layout_tie(struct weightd_layout *l, const char *name, uint32_t index, const char *unit);

/* The number of tensors, those with tied names included. */
uint32_t weightd_layout_n_tensors(const struct weightd_layout *l);
/* The bytes of the flat buffer. */
uint64_t weightd_layout_n_bytes(const struct weightd_layout *l);
/* Like weightd_buffer_tensor(), with data == NULL. Pointers are valid until the layout changes. */
int weightd_layout_tensor(const struct weightd_layout *l, uint32_t index,
			  struct weightd_tensor *ret);
/* The hash of the layout in weightd: weightd_buffer_layout_hash(). Reads the whole table. */
int weightd_layout_hash(const struct weightd_layout *l, uint8_t ret_hash[WEIGHTD_DIGEST_SIZE]);

/* --- Writing ----------------------------------------------------------------------------------- */

struct weightd_writer;

/* Policies for a reader that does not pause in time. */
enum weightd_policy {
	WEIGHTD_WAIT, /* create fails with -ETIMEDOUT, without any effect */
	/*
	 * The writer no longer waits for the reader. Its reads in place are torn, which the library reports to it; a
	 * replaced version it keeps, with its memory, until it detaches.
	 */
	WEIGHTD_EVICT,
	/*
	 * Like EVICT, and weightd kills the process, if it belongs to the writer's user, or the writer is root; and if
	 * weightd may: as root, or as that user; since Linux 6.5.
	 */
	WEIGHTD_KILL,
};

/* Ways to share a buffer on a GPU. */
enum weightd_handle {
	WEIGHTD_HANDLE_VMM, /* a descriptor: the memory exists for as long as a process has it open or mapped */
	/*
	 * A cudaIpcMemHandle_t, for consumers that can open nothing else: the memory belongs to a process of the
	 * server and is lost with it, no mapping is read-only, and addresses change.
	 */
	WEIGHTD_HANDLE_IPC,
};

struct weightd_create_options {
	size_t size; /* set by the caller */
	const char *device; /* NULL: "host" */
	uint32_t mode; /* permission bits of a new buffer; 0: 0640 */
	uint32_t keep; /* versions to keep, the newest included; 0: as before, 2 for a new buffer */
	/*
	 * Publish in the given layout, independent of the newest version: allows other tensors, and another order of
	 * the same ones. Not for an exclusive buffer.
	 */
	bool new_layout;
	/*
	 * Kinds of a new buffer. Exclusive: one slot, never sealed, which the next create updates in place once its
	 * readers have paused, for models that do not fit twice. Reusable: the slots of freed versions are used
	 * again, neither sealed nor zeroed, for trusted writers that publish often.
	 */
	bool exclusive;
	bool reusable;
	/*
	 * In a buffer that is neither: ask its readers to release their memory and free its versions first. If the
	 * new version would not fit even then, create fails with -ENOMEM or -EDQUOT before that; a writer that fails
	 * later leaves the buffer without a version.
	 */
	bool replace;
	/* With exclusive and replace: time for readers to pause (< 0: for ever; 0: 10 s), and the policy afterwards. */
	int pause_timeout_ms;
	enum weightd_policy policy;
	enum weightd_handle handle; /* way to share a new buffer on a GPU */
	/*
	 * The header of a file whose data `layout` describes, of `header_size` bytes up to the data, and with
	 * `new_layout`: a version that is a file then begins with exactly these bytes. -EINVAL: it is another format than
	 * safetensors and GGUF, or does not describe the layout. NULL: the library writes a header.
	 */
	const void *header;
	uint64_t header_size;
	/*
	 * Uid of the owner of the buffer, to publish in that of another user, which can remove and overwrite every version
	 * of it. NULL: the caller's own buffer, an existing one or a new one; another user's is -EPERM. A buffer is never
	 * made for another user: -ENOENT. Copied. -EOPNOTSUPP: the server is older, and checks no owner.
	 */
	const uint32_t *owner;
	/*
	 * NUMA nodes of the host memory that the server makes: "0" or "0,2-3", these nodes alone (-ENOMEM when they are full);
	 * "preferred:1", these while they have free memory; "interleave" or "interleave:0-1", all or these in turn, by huge
	 * pages; "local", the node on which the calling thread runs, preferred; "default", as the server's threads run. NULL: as
	 * the memory policy of the calling thread (set_mempolicy(2), numactl(8)), or, without one, preferred on the node of its
	 * CPUs if all are of one; as far as the server can, but nodes that the thread is bound to must be the server's. -EINVAL: another
	 * text, a node that the server may not use, or memory of a GPU; -EPERM: the server may not place memory; -EOPNOTSUPP: it
	 * is older. Memory that exists stays where it is: of an exclusive buffer, of a reusable one, and by
	 * weightd_load_options::share.
	 */
	const char *numa;
};

/*
 * Starts the next version of buffer `name`, and creates the buffer if it does not exist. The caller owns the writer,
 * and releases it with weightd_writer_free(). Blocks while the server provides the memory, and for readers to pause.
 * The bytes are zero; in an exclusive buffer they are the current version, in a reusable one possibly an older
 * version. -EBUSY: the buffer has another writer; -EPERM: it belongs to another user (see `owner`); -EACCES, -ENOMEM, -EDQUOT, -ETIMEDOUT, -ENOTRECOVERABLE.
 *
 * A version in host memory is a safetensors file, and nothing else, if its layout can be one: a header, and behind it
 * the bytes, from weightd_location::data_offset on. A layout of weightd_layout_new(0) is packed for that: first the
 * tensors whose size is a multiple of 256, then the others by falling size of their elements, without room between them.
 * A layout with an alignment, and one of weightd_layout_parse(), is used as it is, and is a file only if it was one's.
 * Versions of exclusive and reusable buffers, of GPUs, and those whose header would have more than 100 MB, have the flat
 * form: the bytes, and behind them their digests. So have all versions of an older server.
 *
 * A layout of the same model as the newest version (weightd_layout_compare()) is replaced by that version's: the new
 * version has the order, offsets, alignment, roles, units and ties of the newest one, and its data begin at the same
 * place in a page, so that readers can swap to it. A file never follows the flat form that way: if the newest version has
 * that, and the new one can be a file, it has its own layout, and readers attach anew.
 * weightd_writer_tensor() and weightd_writer_find() return the actual places; offsets and indices of the given layout
 * do not apply then. Names that the given layout ties stay tied for the writer, even if the newest version has separate
 * memory for each: the writer sees one memory, and publish copies it to the others. Names that only the newest version
 * ties share one memory too. -EPROTOTYPE: the newest version has other tensors, which the sentence lists; or new_layout
 * is set and the buffer is exclusive. Does not need read permission.
 *
 * In place and with replace: a published writer holds a lease like a reader, and cannot pause: free it first. An update
 * in place does not wait for attachments of this same connection, because they cannot pause. An aborted writer, and a
 * writer with a lost connection, must be freed: while it maps the bytes writable, the next update waits, and fails
 * with -EBUSY.
 */
int weightd_create(struct weightd *w, const char *name, const struct weightd_layout *layout,
		   const struct weightd_create_options *options, struct weightd_writer **ret);

/* Start of the bytes, and their number if `ret_size` is given. Writable until published. */
void *weightd_writer_data(const struct weightd_writer *wr, uint64_t *ret_size);
/* The layout of the new version, which may be that of the newest one: see weightd_create(). */
uint32_t weightd_writer_n_tensors(const struct weightd_writer *wr);
int weightd_writer_tensor(const struct weightd_writer *wr, uint32_t index,
			  struct weightd_tensor *ret);
/*
 * The tensor with that name. Also finds a tied name that only the given layout has: `ret->index` is then the tensor it is tied to. -ENOENT.
 */
int weightd_writer_find(const struct weightd_writer *wr, const char *name,
			struct weightd_tensor *ret);
/* Location, reads and writes of unpublished bytes, like the functions of buffers. -EALREADY: a published version cannot be written. */
int weightd_writer_location(const struct weightd_writer *wr, struct weightd_location *ret);
int weightd_writer_read(struct weightd_writer *wr, uint64_t offset, void *to, uint64_t n);
int weightd_writer_write(struct weightd_writer *wr, uint64_t offset, const void *from, uint64_t n);

/*
 * A writable descriptor of the bytes, which begin at weightd_location::data_offset, for another process to write
 * them; the caller closes it. publish itself writes the header in front of them. On a GPU it is the allocation, as in
 * weightd_attach(). -EOPNOTSUPP: cuda-ipc memory; -EALREADY: published or aborted; -ESTALE; -ECHILD.
 *
 * The other process must stop writing and unmap before weightd_writer_publish(): publish waits a second for writable
 * mappings of host memory to end and then fails with -EBUSY. Bytes written while publish digests are in the version,
 * and possibly not in its digest. Publish seals host memory, unless the buffer is exclusive or reusable, and writes
 * through the descriptor then fail; GPU memory cannot be sealed. A leaf that another process wrote after
 * weightd_writer_digest_leaf() must be digested again.
 */
int weightd_writer_fd(const struct weightd_writer *wr, int *ret_fd);

/*
 * Digests leaf `leaf` (bytes [leaf, leaf + 1) x WEIGHTD_LEAF_SIZE) now, while it is in the cache; it must not change
 * any more. Optional: publish digests the remaining leaves. Several threads may call it at once for different leaves.
 */
void weightd_writer_digest_leaf(struct weightd_writer *wr, uint64_t leaf);

/*
 * The same from a copy in host memory of the leaf's present or future bytes. weightd_writer_verify() compares the leaf
 * with that digest, and publish uses it.
 */
void weightd_writer_digest_bytes(struct weightd_writer *wr, uint64_t leaf, const void *bytes);

/*
 * Compares leaves [first, first + n) with their digests: proves that a copy to a GPU has arrived. The GPU digests its
 * memory, and copies back 16 bytes of each leaf. 0: equal; -EILSEQ: they differ (the sentence has the first bad range);
 * -ENODATA: a leaf was not digested; -EINVAL: no such leaves; -EALREADY, -EIO.
 */
int weightd_writer_verify(struct weightd_writer *wr, uint64_t first, uint64_t n);

/*
 * Publishes the bytes as a version: digests them, makes the mapping read-only in place (pointers and views stay valid),
 * and has the server seal the memory and make the version current. Blocks for that. After a failure the writer can
 * continue to write and try again, unless the sentence says otherwise. -EBUSY: the sentence names the processes that
 * still map the bytes writable. The memory of exclusive and reusable buffers is not sealed: their writers are trusted.
 * -ESTALE: the bytes did not survive the server, or the buffer was removed, or it is reusable, its permissions
 * changed since create, and its memory was used before; or the buffer was given to another user since. -EALREADY.
 *
 * On a GPU the call waits for the streams first: work queued before it is part of the version; work queued later fails,
 * with its context. GPU memory is not sealed: only weightd_buffer_verify() detects a writer that keeps a writable
 * mapping of its own.
 */
int weightd_writer_publish(struct weightd_writer *wr, uint64_t *ret_version);
int weightd_writer_publish_on(struct weightd_writer *wr, void *stream, uint64_t *ret_version);

/*
 * Drops the unpublished version, and allows another writer. The bytes stay mapped, in this process alone, until the
 * writer is freed. An exclusive buffer is torn until its next update, which waits for this writer to be freed.
 * -EALREADY.
 */
int weightd_writer_abort(struct weightd_writer *wr);

/*
 * Waits for all streams on the GPU, unmaps and frees the writer; NULL is fine. An unpublished version is dropped as by
 * weightd_writer_abort().
 */
void weightd_writer_free(struct weightd_writer *wr);

/* --- Files beside the weights ------------------------------------------------------------------- */

#define WEIGHTD_FILES_MAX 67108864 /* bytes of all files of a version */
#define WEIGHTD_FILES_COUNT_MAX 4096
#define WEIGHTD_FILE_PATH_MAX 1024
#define WEIGHTD_ATTRIBUTES_MAX 256
#define WEIGHTD_ATTRIBUTE_KEY_MAX 127
#define WEIGHTD_ATTRIBUTE_VALUE_MAX 4095

/*
 * The small files of a model directory beside its weights (config.json, those of a tokenizer), and attributes: short
 * texts by name, as "architecture", "dtype" or "tp_rank". They belong to a version and are published with it.
 *
 * A path is relative, with '/' between its components: no component is empty, "." or "..", or longer than 255 bytes,
 * and none has control characters. No path is a folder of another. The attribute "weights" is the path of the weights in
 * such a directory; without it that is "model.safetensors". No file has this path.
 */
struct weightd_files;

struct weightd_file {
	size_t size; /* set by the caller */
	const char *path;
	const void *data; /* owned by the set of files */
	uint64_t n_bytes;
};

/* Creates an empty set, which the caller frees. -ENOMEM. */
int weightd_files_new(struct weightd_files **ret);
/* Frees a set of files; NULL is fine. */
void weightd_files_free(struct weightd_files *f);

/*
 * Adds a file with a copy of these bytes. -EEXIST: the path is taken, or one of the two is a folder of the other;
 * -EINVAL: it is no path as above; -EFBIG: the files would have more than WEIGHTD_FILES_MAX bytes, or there are too many;
 * -ENOMEM. weightd_files_error() has the sentence.
 */
int weightd_files_add(struct weightd_files *f, const char *path, const void *data, uint64_t n_bytes);

/*
 * Sets an attribute; `value` NULL removes it. A key is 1 to WEIGHTD_ATTRIBUTE_KEY_MAX of [A-Za-z0-9._-], a value is at
 * most WEIGHTD_ATTRIBUTE_VALUE_MAX bytes of UTF-8. -EINVAL, -EFBIG: too many; -ENOMEM. weightd_files_error() has the
 * sentence.
 */
int weightd_files_set_attribute(struct weightd_files *f, const char *key, const char *value);

/* The message of the last failure of weightd_files_add() or weightd_files_set_attribute(); "" if there was none. */
const char *weightd_files_error(const struct weightd_files *f);

/* The number of files. */
size_t weightd_files_count(const struct weightd_files *f);
/* File `i`, in the order of the paths' bytes. -ENOENT; -EINVAL: `ret->size` was not set. */
int weightd_files_file(const struct weightd_files *f, size_t i, struct weightd_file *ret);
/* The file with that path. -ENOENT, -EINVAL. */
int weightd_files_find(const struct weightd_files *f, const char *path, struct weightd_file *ret);
/* The number of attributes. */
size_t weightd_files_n_attributes(const struct weightd_files *f);
/* Attribute `i`, in the order of the keys' bytes; both texts are owned by the set of files. -ENOENT. */
int weightd_files_attribute(const struct weightd_files *f, size_t i, const char **ret_key,
			    const char **ret_value);
/* The value of an attribute, owned by the set of files; NULL: there is none. */
const char *weightd_files_value(const struct weightd_files *f, const char *key);

/*
 * All of it as one range of bytes, a safetensors file, for another machine: weightd_files_parse() makes the same set of
 * it. An unchanged set of weightd_files_get() or weightd_files_parse() returns the very bytes that it was made of. Owned
 * by `f`, until the next change. NULL: a file has the path of the weights, or there is no memory; weightd_files_error()
 * has the sentence.
 */
const void *weightd_files_image(struct weightd_files *f, uint64_t *ret_size);

/*
 * Parses such a range of bytes into a set that the caller frees. The bytes are untrusted: the function copies and checks
 * them. -EBADMSG, -ENOMEM.
 */
int weightd_files_parse(const void *image, uint64_t size, struct weightd_files **ret);

/*
 * The files of version `version` of a buffer (0: the current one) on `device` (NULL: "host"), without attaching it. The
 * caller frees the result; their bytes are shared memory. -ENOENT, -EACCES; -ENODATA: the version has none, or the buffer
 * has no version; -EBADMSG: its writer sent something else; -EOPNOTSUPP: the server is older.
 */
int weightd_files_get(struct weightd *w, const char *name, const char *device, uint64_t version,
		      struct weightd_files **ret);

/*
 * Makes these files, which the caller keeps, those of the version that `wr` publishes; NULL: none. A writer begins with
 * those of the newest version. May be called again before the publish. -EEXIST: a file has the path of the weights;
 * -EOPNOTSUPP: cuda-ipc memory, or an older server; -EALREADY, -ESTALE, -EDQUOT, -ENOMEM.
 */
int weightd_writer_set_files(struct weightd_writer *wr, struct weightd_files *f);

/*
 * A copy of the files that `wr` publishes, to change and to pass to weightd_writer_set_files(); empty if there are none. The
 * caller frees it. Errors as for weightd_files_get().
 */
int weightd_writer_get_files(struct weightd_writer *wr, struct weightd_files **ret);

/* --- Loading files ----------------------------------------------------------------------------- */

/*
 * Called when a phase begins, when a phase of known length ends, and at most every 50 ms in between.
 * `phase` is "plan", "memory", "read", "verify" (on a GPU: the bytes that arrived are the bytes that were read;
 * and what weightd_load_options::verify asks for) or "publish". A return value other than 0 cancels the load. "memory" ends without a report once the first 16 MiB of
 * host memory are there: the server provides the rest during "read". An earlier server provides all of it during
 * "memory", which counts the bytes for users that may read the buffer; otherwise it stays at 0 until the end.
 */
typedef int (*weightd_progress_fn)(void *userdata, const char *phase, uint64_t done, uint64_t total);

/*
 * Receives a sentence about a choice that the caller may not expect: the files chosen from a directory, the rule, and
 * the files left out. `text` is valid during the call.
 */
typedef void (*weightd_note_fn)(void *userdata, const char *text);

/* Ways to read files. All fill the version with the same bytes. */
enum weightd_read {
	WEIGHTD_READ_AUTO = 0, /* each 4 MiB as they are found: in the page cache, or not in it */
	WEIGHTD_READ_DIRECT, /* past the page cache, where the file system can */
	WEIGHTD_READ_BUFFERED, /* by the page cache */
};

/* Effects of a load on the page cache. */
enum weightd_cache {
	WEIGHTD_CACHE_KEEP = 0, /* keep what was read by it */
	WEIGHTD_CACHE_DROP, /* remove it again, unless it was there before; also if the load fails */
};

/*
 * Checks of a load's content, before it is published. Structure is always checked, and a digest always made, of the bytes
 * in the version; on a GPU the version is always compared with it.
 */
enum weightd_verify {
	WEIGHTD_VERIFY_NONE = 0, /* no other */
	/* Read the files again, by the page cache, and digest both that and the version: both must have the digest. */
	WEIGHTD_VERIFY_XXH3,
	/*
	 * Compare the SHA-256 of each file with that in SHA256SUMS beside it, as sha256sum writes it; without SHA256SUMS, with
	 * the name of the blob that its path leads to in a cache of Hugging Face.
	 */
	WEIGHTD_VERIFY_SHA256,
};

/* The name of a way to verify: "none", "xxh3", "sha256"; NULL for an unknown one. */
const char *weightd_verify_name(enum weightd_verify verify);

struct weightd_load_result;

struct weightd_load_options {
	size_t size; /* set by the caller */
	const struct weightd_create_options *create; /* NULL: the defaults */
	unsigned n_threads; /* 0: one per core, at most 4, or 8 to a GPU; one more waits for direct reads */
	weightd_progress_fn progress; /* may be NULL; called from the calling thread */
	void *userdata; /* argument of both functions */
	weightd_note_fn note; /* may be NULL; called from the calling thread, before memory is requested */
	bool no_files; /* load the weights alone, without the small files beside them */
	const char *const *attributes; /* "key=value" each; they replace what the load itself finds */
	size_t n_attributes;
	/*
	 * Patterns of tensor names, as fnmatch() has them: a tensor is loaded if it matches one of `include`, or there are
	 * none, and none of `exclude`. A pattern that no tensor matches is -EINVAL.
	 */
	const char *const *include;
	size_t n_include;
	const char *const *exclude;
	size_t n_exclude;
	enum weightd_read read;
	enum weightd_cache cache;
	/*
	 * WEIGHTD_F32, WEIGHTD_F16 or WEIGHTD_BF16: convert tensors of F64, F32, F16 and BF16 to it, as torch does, rounded to
	 * nearest even. Integers and booleans stay as they are. Other types are -EOPNOTSUPP, and so are integers whose names
	 * are those of quantised weights (X.weight, X.qweight, X.qzeros, X.weight_packed, X_blocks). 0: no tensor is converted.
	 */
	enum weightd_dtype dtype;
	/*
	 * Further GPUs, `n_more_devices` of them: the version is also published in the buffer `name` on each, with the
	 * same layout and digest. The device of `create` is a GPU then. Bytes are read once, and copied from GPU to GPU where
	 * the driver reports peer access, else from host memory to each. -EPROTOTYPE: buffers of the name that keep their
	 * layouts have different ones. No version is published before all GPUs have checked their bytes. If a publish fails
	 * then, the earlier ones stay, and the sentence names them. `ret_more_versions`: room for the numbers of the versions
	 * there, or NULL.
	 */
	const char *const *more_devices;
	size_t n_more_devices;
	uint64_t *ret_more_versions;
	enum weightd_verify verify;
	/*
	 * > 0: -ETIMEDOUT after these milliseconds, and nothing is published. A load that ends early, for this or another
	 * reason, returns when the reads under way have. If one does not within a second, the server has freed a version in
	 * host memory by then; that of an exclusive or reusable buffer, it frees later.
	 */
	unsigned timeout_ms;
	uint64_t max_rate; /* bytes a second to read from files, over all threads; 0: no limit */
	/*
	 * Tensor parallelism: load what rank `tp_rank` of `tp_world` ranks has of each tensor, by rules that weightctl(1)
	 * describes. `tp_rules` is a type of model for which there are some ("llama"), or the path of a file of rules; NULL:
	 * those for the `model_type` of the config.json beside the weights. A tensor without a rule, or one that the ranks
	 * cannot share by it, is -EINVAL. tp_world 0: tensors are whole.
	 */
	unsigned tp_rank, tp_world;
	const char *tp_rules;
	/*
	 * Publish in the memory of another version with the same layout and the same bytes, if the caller may read one in host
	 * memory, of any user: there is one copy of the pages, charged to both. What was read is compared with that memory,
	 * which is sealed, and its own is freed. Versions of exclusive and reusable buffers have their own.
	 */
	bool share;
	/*
	 * Further ranks, `n_tp_more_ranks` of them: each rank has a buffer in host memory, "NAME-tpRANK", and each byte of the
	 * files is read once for all of them. No version is published before all are filled. If a publish fails then, the
	 * earlier ones stay, and the sentence names them. `ret_tp_results`: room for their results, each with its size set, or
	 * NULL. Such a load has no `verify`, `max_rate`, `share`, WEIGHTD_READ_DIRECT and WEIGHTD_CACHE_DROP (-EOPNOTSUPP), and
	 * weightd_load_needed() and plans are of `tp_rank` alone.
	 */
	const unsigned *tp_more_ranks;
	size_t n_tp_more_ranks;
	struct weightd_load_result *ret_tp_results;
};

struct weightd_load_result {
	size_t size; /* set by the caller */
	uint64_t version;
	uint64_t n_bytes; /* bytes of tensor data, in the types of the version */
	uint64_t n_tensors;
	uint64_t n_files;
	uint64_t elapsed_ns; /* from the call to the publish */
	uint64_t memory_ns; /* part of elapsed_ns, waiting for the first of the server's memory */
	uint64_t read_ns; /* part of elapsed_ns, reading and digesting while the server provides the rest, and copying to a GPU */
	uint8_t digest[WEIGHTD_DIGEST_SIZE];
	uint64_t n_direct_bytes; /* part of n_bytes, read past the page cache */
	int ring_error; /* negative errno: direct reads wanted io_uring and did without, by pread(); else 0 */
	enum weightd_verify verified; /* the check that it passed */
	bool is_shared; /* the version has the memory of another one, by `share` */
};

/*
 * Loads safetensors or GGUF into the next version of `name` and publishes it. Each path is a safetensors file, an index
 * (X.safetensors.index.json, X.safetensors.index.VARIANT.json, X.safetensors.VARIANT.index.json), a directory, or the URL
 * (https or http) of a file or an index; a GGUF file must be the only path. In host memory the version of one file is that file, byte for byte, unless the buffer is
 * exclusive or reusable, or its newest version has the same tensors in another order. A
 * directory stands for one set of files: the one with a well-known name (model, diffusion_pytorch_model), else the one
 * of its only index, else its only set X-00001-of-0000N, else its only file, which may be GGUF if it has no other
 * weights; weightctl(1) has the rules. Several
 * candidates are -EBADMSG. The library opens files with the caller's permissions. A failure leaves the previous version
 * untouched, with two exceptions: an exclusive buffer is torn once the update has begun, and a replaced buffer is left
 * without a version. A file that changes during the load is -EBADMSG, and so is one with another SHA-256 than expected;
 * -ENODATA: none is known; -EILSEQ: WEIGHTD_VERIFY_XXH3 found a difference. Blocks, and uses a connection of its own to the
 * same server. `options` and `ret` may be NULL.
 *
 * For a GPU each reading thread has 4 MiB of pinned host memory. Loads and copies of a process share 128 MiB of it: each takes
 * at most half of what the others have left, and so many threads; without any left it waits for its turn. It stays pinned for
 * the next load as long as the process has a version on a GPU attached, or is writing one.
 *
 * URLs are fetched by up to 16 threads, or `n_threads`; weightctl(1), SOURCES, has the rules. -EOPNOTSUPP: there is no
 * libcurl, or the server sends no ranges; -EINVAL: a URL that is not used; -EACCES, -ENOENT, -EIO, -ETIMEDOUT: it cannot be
 * fetched.
 *
 * A checkpoint of torch.save() (X.bin, X.pt, X.pth, X.ckpt, or an index X.bin.index.json) is converted in a child process, the
 * Python $WEIGHTD_PYTHON, else python3; weightctl(1), SOURCES. -EBADMSG: it is refused; -EOPNOTSUPP: there is no torch.
 *
 * A directory's small files (its configuration and tokenizer, see weightctl(1)) become the files of the version; they are
 * -EFBIG if they have more than WEIGHTD_FILES_MAX bytes. A load of other paths keeps the files of the newest version.
 * A load of a part of the tensors sets the attributes include and exclude to its patterns, one that converts them the
 * attribute cast to the type, and one for tensor parallelism the attributes tp to "RANK/WORLD" and tp_rules to the type of
 * model, or the name of the file without its folder. GGUF files are loaded whole and as they are: a selection is -EOPNOTSUPP. One that verifies
 * sets the attribute verified, "sha256 of xxh3:DIGEST": it holds for the version with this digest, and later versions of
 * writers inherit it. The load sets the attributes architecture, dtype, quantization, producer, weights and weightd. An older server, and cuda-ipc
 * memory, have neither; there `attributes` are -EOPNOTSUPP.
 */
int weightd_load(struct weightd *w, const char *name, const char *const *paths, size_t n_paths,
		 const struct weightd_load_options *options, struct weightd_load_result *ret);

/*
 * Compares what weightd_load() would publish of one path with the current version. Returns 0: its tensors, files and
 * attributes are the same, as weightd_diff() compares tensors, and it belongs to the caller, or to the owner of
 * `options->create`; `*ret_version` has its number. 1: they differ, or the version cannot be attached. The permissions and limits of
 * `options->create` are not compared. A version for which less was verified than `options->verify` differs. Reads all bytes, and blocks for it. Errors as for weightd_diff(). `options` and
 * `ret_version` may be NULL.
 */
int weightd_load_needed(struct weightd *w, const char *name, const char *path,
			const struct weightd_load_options *options, uint64_t *ret_version);

/*
 * The plan of a load, made from the headers and indexes of the files alone. It needs no server: `w` has the sentences, and
 * need not be connected. Functions below may be called from any thread, and return in constant time.
 */
struct weightd_load_plan;

/* How the version of a plan is laid out. */
enum weightd_plan_form {
	WEIGHTD_PLAN_FILE, /* as its one file, byte for byte; offsets count from the first byte of data */
	WEIGHTD_PLAN_PACKED, /* as a safetensors file, without room between tensors */
	WEIGHTD_PLAN_FLAT, /* in the order of the files, each tensor at a multiple of 256 bytes */
};

struct weightd_plan_file {
	size_t size; /* set by the caller */
	const char *path; /* as the load opens it */
	uint64_t n_bytes; /* bytes that are read for tensors, without the header */
	uint64_t n_ranges;
};

/*
 * Bytes that stand side by side in a file and in the buffer; or all that a load takes of one tensor that it converts or
 * cuts, which begins at `offset` in the file. Ranges are in the order of the buffer.
 */
struct weightd_plan_range {
	size_t size; /* set by the caller */
	uint64_t offset; /* in the file, bytes */
	uint64_t dest; /* from the start of the buffer, bytes */
	uint64_t n_bytes; /* in the buffer; never 0 */
	uint32_t file; /* index of the file */
};

/*
 * Plans what weightd_load() of these paths would do, with the same `options`, which may be NULL, in a buffer without
 * versions: the next version of a buffer that has some may keep their layout. Opens and reads the files, as
 * weightd_load() does, but none of their data, except that of two tied names. Errors as there; `*ret` is freed by the
 * caller, before or after `w`.
 */
int weightd_load_plan_new(struct weightd *w, const char *const *paths, size_t n_paths,
			  const struct weightd_load_options *options,
			  struct weightd_load_plan **ret);
/* Frees a plan; NULL is fine. */
void weightd_load_plan_free(struct weightd_load_plan *p);
enum weightd_plan_form weightd_load_plan_form(const struct weightd_load_plan *p);
/* The tensors and their offsets in the buffer. The plan owns the layout. */
const struct weightd_layout *weightd_load_plan_layout(const struct weightd_load_plan *p);
/* Fills in a file, from index 0, which the plan owns. -ENOENT behind the last; -EINVAL: `ret->size`. */
int weightd_load_plan_file(const struct weightd_load_plan *p, uint64_t index,
			   struct weightd_plan_file *ret);
/* Fills in a range, from index 0. -ENOENT behind the last; -EINVAL: `ret->size`. */
int weightd_load_plan_range(const struct weightd_load_plan *p, uint64_t index,
			    struct weightd_plan_range *ret);

/* --- Copying ------------------------------------------------------------------------------------ */

struct weightd_copy_options {
	size_t size; /* set by the caller */
	/*
	 * Device (NULL: "host") and options of the new version; NULL: the defaults. `mode` 0: a new buffer has the mode of
	 * the source. `new_layout` and the header are set by the call.
	 */
	const struct weightd_create_options *create;
	bool no_files; /* copy weights and attributes alone */
	/* Phases "memory", "copy", "verify" (bytes that a GPU received from the host) and "publish". May be NULL. */
	weightd_progress_fn progress;
	void *userdata; /* its argument */
};

struct weightd_copy_result {
	size_t size; /* set by the caller */
	uint64_t version;
	uint64_t n_bytes;
	uint64_t n_tensors;
	uint64_t elapsed_ns;
	uint8_t digest[WEIGHTD_DIGEST_SIZE];
};

/*
 * Publishes a copy of the attached version as the next version of buffer `name` (NULL: the name of `b`) on the device of
 * `options`: host to GPU, GPU to GPU, GPU to host, or under another name. The copy has the layout, digest, files and
 * attributes of `b`. Its buffer belongs to the caller. A new one has the mode of the source, and its group if the caller is
 * in that; otherwise its group may do what all may. The digest of the new bytes is compared with that of `b` before the
 * publish. A GPU copies from the memory of another one if the driver reports peer access, else through host memory. A
 * failure leaves nothing. Blocks, and uses a connection of its own. -EINVAL: that is `b` itself; -EILSEQ: the bytes of
 * `b` differ from its digest; -EAGAIN: an exclusive buffer was updated meanwhile; -ECANCELED; others as for
 * weightd_create(). `options` and `ret` may be NULL.
 */
int weightd_copy(struct weightd_buffer *b, const char *name,
		 const struct weightd_copy_options *options, struct weightd_copy_result *ret);

/* --- Saving and comparing ----------------------------------------------------------------------- */

struct weightd_save_options {
	size_t size; /* set by the caller */
	uint64_t shard_size; /* bytes of tensors in a file, at most, unless one tensor is larger; 0: 5,000,000,000 */
	bool replace; /* replace a directory that has weights, with all that is in it */
	bool no_files; /* save the weights alone */
	weightd_progress_fn progress; /* may be NULL; called from the calling thread; "write" or "commit" */
	void *userdata; /* its argument */
};

struct weightd_save_result {
	size_t size; /* set by the caller */
	uint64_t n_bytes; /* bytes of tensor data */
	uint64_t n_tensors;
	uint64_t n_files; /* of weights, and others */
	uint64_t elapsed_ns;
};

/*
 * Writes the attached version to a directory: weights as safetensors (model.safetensors; or, if they need several files,
 * model-00001-of-0000N.safetensors and model.safetensors.index.json; the attribute "weights" is another path), or as the
 * GGUF file that they are, and the files of the version. The directory must not exist or be empty, unless `replace` is set, and appears at once, with all
 * of it on the disk: a failure leaves nothing, and what was there before. A version that is a file, and fits one, is
 * written byte for byte. Ties, roles and units are in the metadata of the files, so that weightd_load() makes the same
 * layout of one file, and of several the same tensors, perhaps in another order. Blocks. -ENOTEMPTY; -ENOSPC, -EDQUOT;
 * -EBUSY: the directory is a mount point, or a model directory with a holder; -EOPNOTSUPP: a type that
 * safetensors lacks; -E2BIG: too many tensors for one file; -EAGAIN: an exclusive buffer was updated meanwhile;
 * -ECANCELED; other errors of files. `options` and `ret` may be NULL.
 */
int weightd_save(struct weightd_buffer *b, const char *directory,
		 const struct weightd_save_options *options, struct weightd_save_result *ret);

/* Differences of one tensor. */
enum weightd_diff_kind {
	WEIGHTD_DIFF_ONLY_FIRST = 1, /* the second side has no tensor of that name */
	WEIGHTD_DIFF_ONLY_SECOND,
	WEIGHTD_DIFF_TYPE, /* and perhaps the shape */
	WEIGHTD_DIFF_SHAPE,
	WEIGHTD_DIFF_BYTES,
};

/* The name of a kind of difference: "only-first", "only-second", "type", "shape", "bytes"; NULL for an unknown one. */
const char *weightd_diff_name(enum weightd_diff_kind kind);

struct weightd_difference {
	size_t size; /* size of this struct in the library */
	enum weightd_diff_kind kind;
	const struct weightd_tensor *first, *second; /* NULL: that side has no such tensor */
	/* BYTES, else 0. Of a block type of GGUF, blocks are counted instead of elements. */
	uint64_t n_elements;
	uint64_t n_different; /* elements whose bits differ */
	uint64_t n_unmeasured; /* part of n_different: without a finite difference, as for NaN and infinities */
	double max_abs; /* the largest finite absolute difference of two elements; of C64, of a part of one */
};

/* Called for each tensor that differs, with pointers that are valid during the call. Not 0: stop. */
typedef int (*weightd_diff_fn)(void *userdata, const struct weightd_difference *difference);

struct weightd_diff_side {
	size_t size; /* set by the caller */
	struct weightd_buffer *buffer; /* or NULL */
	const char *path; /* or NULL: a file, index or directory as weightd_load() takes it */
};

struct weightd_diff_result {
	size_t size; /* set by the caller */
	uint64_t n_tensors; /* that were compared; tied names of the same tensor count once */
	uint64_t n_different; /* part of them */
	uint64_t n_bytes; /* compared, of one side */
};

/*
 * Compares the tensors of two versions or checkpoints by name: types, shapes, and bytes. Their order and places, roles and
 * units do not matter, and a name in only one of them is no difference if it is tied to a name in both. Returns 0:
 * equal; 1: different. `w` has the sentence of a failure and need not be connected to compare paths; buffers may be of
 * any connections that this thread may use. Reads all bytes, and blocks for it. -ECANCELED; -EINVAL; -EAGAIN: an
 * exclusive buffer was updated meanwhile; errors as for weightd_load() and weightd_buffer_read(). `fn` and `ret` may be
 * NULL.
 */
int weightd_diff(struct weightd *w, const struct weightd_diff_side *first,
		 const struct weightd_diff_side *second, weightd_diff_fn fn, void *userdata,
		 struct weightd_diff_result *ret);

/* --- Safetensors files ------------------------------------------------------------------------- */

/*
 * Single files, written and read piece by piece. They need no server: `w` has the sentences, and need not be connected.
 */
struct weightd_safetensors_contents {
	size_t size; /* set by the caller */
	const struct weightd_layout *layout; /* names, types and shapes; its offsets do not matter */
	const void *const *data; /* of each tensor of the layout, by its index; NULL for one without bytes */
	weightd_progress_fn progress; /* may be NULL; called from the calling thread; "write" */
	void *userdata; /* its argument */
};

/*
 * Writes tensors to a new file `name` in a directory, down to the disk, with the header that weightd_save() writes: roles
 * and units are in its metadata. Tensors keep the order of the layout if each of them is then aligned to its elements.
 * A failure may leave a part of the file. -EEXIST: something has that name; -EOPNOTSUPP: a type, name or dimension that
 * safetensors lacks; -ENOSPC, -EDQUOT; -EINVAL: no tensors, or ties; -ECANCELED, by `progress`; other errors of files.
 */
int weightd_safetensors_write(struct weightd *w, const char *directory, const char *name,
			      const struct weightd_safetensors_contents *contents);

struct weightd_safetensors;

/*
 * Opens a safetensors file and reads its header alone. The caller closes it, before `w`. -EBADMSG: it is damaged, or
 * none, by the rule that it breaks; other errors of files.
 */
int weightd_safetensors_open(struct weightd *w, const char *path, struct weightd_safetensors **ret);
/* Closes a file; NULL is fine. */
void weightd_safetensors_close(struct weightd_safetensors *f);
/* Describes a tensor of the file: `offset` is that in the file, `data` NULL. The file owns the strings. -ENOENT. */
int weightd_safetensors_find(const struct weightd_safetensors *f, const char *name,
			     struct weightd_tensor *ret);
/* Reads these bytes of the file, and no others. -EBADMSG: it is shorter than its header says; other errors of files. */
int weightd_safetensors_read(struct weightd_safetensors *f, uint64_t offset, void *ret,
			     uint64_t size);

/* --- Model directories --------------------------------------------------------------------------- */

struct weightd_model_dir;

struct weightd_model_dir_options {
	size_t size; /* set by the caller */
	/*
	 * The directory to make: it must not exist, or be empty and belong to the caller. NULL: a new private one, below
	 * the first of $XDG_RUNTIME_DIR, $TMPDIR and /tmp that has room for the files.
	 */
	const char *path;
	/*
	 * > 0: the links lead to /proc/self/fd/N, with N from this number on in the order of the versions. The caller
	 * passes the descriptors of weightd_model_dir_weights() to one program under these numbers. In any other process
	 * the links lead nowhere, or to another file. 0: links to the descriptors of this process.
	 */
	int self_fd;
	const uint32_t *owner; /* uid of the user that must own all the buffers, else -EPERM; NULL: any */
};

/*
 * Makes a directory that programs without libweightd read models from by its path: the weights of each version, and the
 * files beside them. `specs` are `n` texts NAME or NAME@VERSION, of buffers on the host. One version lies in the
 * directory itself, several in a folder each, named like the buffer. The caller owns the result, and releases it with
 * weightd_model_dir_free().
 *
 * The weights are a link /proc/PID/fd/N to a descriptor of this process, the holder: their memory is mapped, not copied.
 * The kernel opens the link for processes of the same user with no fewer capabilities, in the same PID and user namespace,
 * for as long as this process lives. The result holds leases like attachments: a version stays while newer ones are
 * published.
 *
 * The directory is read-only, because a program that saves a model replaces the link by a file. Modes do not bind
 * processes with CAP_DAC_OVERRIDE, as those of root: for them, the file system forbids changes if it has the immutable flag
 * (ext4, xfs, btrfs, and tmpfs since Linux 6.0) and this process has CAP_LINUX_IMMUTABLE. Other users can read the files
 * if the mode of each buffer allows others to read it.
 *
 * A holder that is killed leaves the directory, with links that lead nowhere. The next private directory of the same user
 * in the same folder, and the next one at the same path, remove it.
 *
 * -EOPNOTSUPP: a version is not stored as a file; -ENOLINK: /proc does not lead to this process's descriptors; -EBADMSG:
 * a file would leave the directory; -EEXIST: two names are the same, or two files; -ENOTEMPTY; -EBUSY: another holder has
 * this directory; and errors of weightd_attach() and of the file system.
 */
int weightd_model_dir_new(struct weightd *w, const char *const *specs, size_t n,
			  const struct weightd_model_dir_options *options,
			  struct weightd_model_dir **ret);

/* The absolute path of the directory, owned by it. */
const char *weightd_model_dir_path(const struct weightd_model_dir *d);

struct weightd_model_weights {
	size_t size; /* set by the caller */
	const char *name; /* of the buffer; owned by the directory, like `path` */
	uint64_t version;
	const char *path; /* path of the weights below the directory: "model.safetensors" */
	int fd; /* read-only, close-on-exec; owned by the directory */
};

/* The weights of version `i`, in the order of the specs. -ENOENT; -EINVAL: `ret->size` was not set. */
int weightd_model_dir_weights(const struct weightd_model_dir *d, size_t i,
			      struct weightd_model_weights *ret);

/*
 * Removes the directory, closes the descriptors and ends the leases; NULL is fine. A directory that existed before is
 * emptied instead. In a child of the process that made it, the directory stays.
 */
void weightd_model_dir_free(struct weightd_model_dir *d);

/* --- Managing ---------------------------------------------------------------------------------- */

struct weightd_buffer_info {
	size_t size; /* size of this struct in the library */
	const char *name;
	const char *device;
	enum weightd_state state;
	bool writing; /* the next version has a writer */
	uint32_t uid, gid, mode;
	uint32_t keep;
	uint32_t n_versions;
	uint32_t n_readers; /* leases on all versions */
	uint64_t version; /* the current one, 0 for none */
	uint64_t n_tensors;
	uint64_t n_bytes; /* bytes of the current version */
	uint64_t slot_bytes; /* memory in slots, of all versions */
	uint64_t huge_bytes; /* part of slot_bytes, in huge pages */
	uint64_t published_ns; /* CLOCK_REALTIME of the current version, 0 for none */
	uint8_t layout_hash[WEIGHTD_DIGEST_SIZE];
	uint8_t digest[WEIGHTD_DIGEST_SIZE]; /* all zero: published without one */
	uint64_t newest; /* greater than `version` after a rollback */
	bool exclusive;
	bool reusable;
	enum weightd_memory memory;
};

/* Reasons for the end of a version. */
enum weightd_end {
	WEIGHTD_END_NONE, /* it exists */
	WEIGHTD_END_KEEP, /* the buffer keeps fewer versions */
	WEIGHTD_END_MEMORY, /* its memory was needed */
	WEIGHTD_END_DROPPED, /* a user removed it */
	WEIGHTD_END_REWRITTEN, /* updated in place, or replaced */
	WEIGHTD_END_LOST, /* its memory did not survive a restart, or the process that held it */
};

/* The name of a reason: "keep", "memory", "dropped", "rewritten", "lost"; "" for NONE; NULL for an unknown one. */
const char *weightd_end_name(enum weightd_end end);

struct weightd_version_info {
	size_t size; /* size of this struct in the library */
	uint64_t version;
	uint64_t n_tensors;
	uint64_t n_bytes;
	uint64_t slot_bytes;
	uint64_t huge_bytes;
	uint64_t published_ns; /* CLOCK_REALTIME */
	uint32_t n_readers;
	uint32_t uid; /* user of its writer */
	bool current;
	uint8_t layout_hash[WEIGHTD_DIGEST_SIZE];
	uint8_t digest[WEIGHTD_DIGEST_SIZE];
	uint32_t pid; /* process of its writer, when it published */
	enum weightd_end end;
	uint64_t ended_ns; /* CLOCK_REALTIME; 0: it exists */
	bool image; /* it is a file: see weightd_create() */
	bool has_files; /* files beside the weights */
};

/* Uses of memory. */
enum weightd_slot_state {
	WEIGHTD_SLOT_WRITING = 1,
	WEIGHTD_SLOT_CURRENT,
	WEIGHTD_SLOT_KEPT,
	WEIGHTD_SLOT_LEAVING, /* its version was dropped; readers hold it */
	/*
	 * Its version was dropped, and a process still maps it or has it open without a lease, by the kernel's count of
	 * references; for GPU memory, by the free memory of the GPU.
	 */
	WEIGHTD_SLOT_ORPHAN,
};

struct weightd_slot_info {
	size_t size; /* size of this struct in the library */
	const char *name; /* name of the buffer, also after it was removed */
	const char *device;
	uint64_t slot; /* id */
	uint64_t version; /* 0: not published */
	uint64_t n_bytes; /* bytes of the slot */
	uint64_t allocated; /* part of n_bytes, with memory behind it */
	uint64_t huge_bytes; /* part of `allocated`, in huge pages when it was allocated */
	enum weightd_slot_state state;
	uint32_t n_readers;
	uint32_t uid; /* user charged for it */
	bool removed; /* the buffer is gone */
};

#define WEIGHTD_UNLIMITED UINT64_MAX

/* The use and the limits of a user. */
struct weightd_user_info {
	size_t size; /* size of this struct in the library */
	uint32_t uid;
	uint64_t n_connections, max_connections;
	uint64_t n_readers, max_readers;
	uint64_t n_buffers, max_buffers;
	uint64_t n_versions, max_versions;
	uint64_t n_bytes, max_bytes; /* bytes of slots and layouts */
	uint64_t n_descriptors, max_descriptors; /* kept by the service manager */
};

/*
 * A user charged for memory that exists only because of readers: versions that have ended, and versions beyond those that
 * their buffer keeps. `name`, `device` and `version` are of the one that the user was charged for first.
 */
struct weightd_holder_info {
	size_t size; /* size of this struct in the library */
	uint32_t uid;
	uint32_t n_versions;
	uint64_t n_bytes, max_bytes;
	bool over; /* above the limit: the user gets no further attachment */
	const char *name;
	const char *device;
	uint64_t version;
	uint32_t pid; /* process that attached it; 0: it is mapped without an attachment */
	uint64_t since_ns; /* CLOCK_REALTIME of that attachment; 0: none */
};

/*
 * Costs of a user to the server, since it has known the user; a server forgets one without connections in favour of
 * others. answered[i] counts requests answered at once, by the time from the read of the request to the answer: those
 * of at most span_ns << i that are in no member before, and in the last one all others.
 */
struct weightd_cost_info {
	size_t size; /* size of this struct in the library */
	uint32_t uid;
	uint32_t n_spans; /* members of answered */
	uint64_t n_requests;
	uint64_t loop_ns; /* of the thread that answers requests */
	uint64_t worker_ns; /* of threads that check layouts, make memory and free it */
	uint64_t longest_ns; /* the longest time that one connection was served without a break */
	uint64_t held_bytes; /* memory that exists only because of the user's attachments, now */
	uint64_t checking_bytes; /* mapped for layouts that are being checked, now */
	uint64_t n_refused; /* requests and connections, for a limit */
	uint64_t span_ns;
	const uint64_t *answered;
};

/* A device for buffers. */
struct weightd_device_info {
	size_t size; /* size of this struct in the library */
	const char *device; /* "host", "cuda:GPU-<uuid>", "cuda:MIG-<uuid>"; "cuda" with a `why`: no GPU */
	const char *name; /* "NVIDIA H100 80GB HBM3" */
	const char *why; /* "", or a sentence: the reason why it cannot be used */
	uint64_t total, free; /* bytes, of all processes */
	uint64_t ours; /* part of total, in the server's slots */
	uint64_t granularity; /* bytes: allocations are multiples of it */
	uint32_t index; /* GPUs: number in nvidia-smi, in the order of PCI addresses */
	uint32_t driver; /* newest CUDA release that the driver supports, 13000 for 13.0; 0 for the host */
	uint32_t capability; /* compute capability, 90 for 9.0 */
	bool vmm; /* can have buffers shared by descriptor */
	bool ipc; /* can have buffers shared by cudaIpcMemHandle_t */
	bool fabric; /* handles reach other nodes, over NVLink */
	bool rdma; /* network cards can reach its buffers */
	bool mig; /* it is a MIG partition of a GPU */
};

/*
 * Translates any spelling of a device into the server's name for it, to compare with listings and events. -EINVAL: not a
 * device; -ENODEV: no such GPU.
 */
int weightd_device_name(struct weightd *w, const char *device, char ret[WEIGHTD_DEVICE_MAX + 1]);

struct weightd_list;

/* All buffers, or those named `name`, ordered by name and device. The caller frees the result, here and below. */
int weightd_list(struct weightd *w, const char *name, struct weightd_list **ret);
/* The versions of one buffer that exist, oldest first. `device` NULL: "host". */
int weightd_list_versions(struct weightd *w, const char *name, const char *device,
			  struct weightd_list **ret);
/*
 * The present and past versions of one buffer, oldest first, as far as the server keeps them (the last 64).
 */
int weightd_list_history(struct weightd *w, const char *name, const char *device,
			 struct weightd_list **ret);
/* All slots of buffers that the caller may read or owns; all of one buffer for a `name`. */
int weightd_list_slots(struct weightd *w, const char *name, struct weightd_list **ret);
/* The use and limits of the caller's user; of all users, for administrators. */
int weightd_list_users(struct weightd *w, struct weightd_list **ret);
/*
 * The users that are charged as readers; without administration, only the caller's. Empty for an earlier server, which
 * charges no readers.
 */
int weightd_list_holders(struct weightd *w, struct weightd_list **ret);

/* Costs of the caller's user; of all users, for administrators. Empty with an earlier server. */
int weightd_list_costs(struct weightd *w, struct weightd_list **ret);
/*
 * The host, then the GPUs in the order of their indices; if GPUs cannot be used, one record with the reason. Blocks
 * while the server queries the driver, for which it may have to start a program that takes some of each GPU's memory.
 * Unless `now` is set, the server returns earlier results if it has any, in which the free memory may be out of date.
 */
int weightd_list_devices(struct weightd *w, bool now, struct weightd_list **ret);

/* Frees a list; NULL is fine. */
void weightd_list_free(struct weightd_list *l);
/* The number of records in a list. */
size_t weightd_list_count(const struct weightd_list *l);
/* Record `i` of a list, owned by the list. NULL if `i` is out of range or the list holds another kind. */
const struct weightd_buffer_info *weightd_list_buffer(const struct weightd_list *l, size_t i);
const struct weightd_version_info *weightd_list_version(const struct weightd_list *l, size_t i);
const struct weightd_slot_info *weightd_list_slot(const struct weightd_list *l, size_t i);
const struct weightd_user_info *weightd_list_user(const struct weightd_list *l, size_t i);
const struct weightd_holder_info *weightd_list_holder(const struct weightd_list *l, size_t i);
const struct weightd_cost_info *weightd_list_cost(const struct weightd_list *l, size_t i);
const struct weightd_device_info *weightd_list_device(const struct weightd_list *l, size_t i);

/* The memory of the server as a whole; an engine may size its caches by it. */
struct weightd_stat {
	size_t size; /* set by the caller */
	uint64_t headroom; /* bytes that the server can still provide, now */
	uint64_t slot_bytes; /* in slots, in any state */
	uint64_t kept_bytes; /* part of slot_bytes, in old versions that the server frees as soon as a create needs the room */
	uint64_t leaving_bytes; /* part of slot_bytes, in dropped versions with readers */
	uint64_t orphan_bytes; /* part of slot_bytes, in dropped versions that are mapped without a lease */
	uint64_t layout_bytes;
	uint64_t n_quarantined; /* descriptors that the service manager returned and that match no buffer */
	uint64_t store_used; /* descriptors that the service manager keeps */
	uint64_t store_max; /* 0: it keeps none: the weights end with the server */
};

/* Asks for the memory of the server as a whole. Blocks for the reply. */
int weightd_stat(struct weightd *w, struct weightd_stat *ret);

/* The process that keeps the descriptors of buffers while the server restarts. */
enum weightd_keeper {
	WEIGHTD_KEEPER_NONE, /* the buffers end with the server */
	WEIGHTD_KEEPER_MANAGER, /* systemd, or another service manager */
	WEIGHTD_KEEPER_PARENT, /* weightd --keeper */
	WEIGHTD_KEEPER_GONE, /* one that ended: the buffers end with the server, and it creates no versions */
};

/* Reasons for which the server refused requests and connections. */
enum weightd_refusal {
	WEIGHTD_REFUSAL_PERMISSION, /* -EACCES, -EPERM */
	WEIGHTD_REFUSAL_LIMIT, /* -EDQUOT */
	WEIGHTD_REFUSAL_MEMORY, /* -ENOMEM */
	WEIGHTD_REFUSAL_DESCRIPTORS, /* -EMFILE */
	WEIGHTD_REFUSAL_KEEPER, /* -ENOTRECOVERABLE */
	WEIGHTD_REFUSALS,
};

/* Threads of the server beside its loop, by their work. */
enum weightd_worker {
	WEIGHTD_WORKER_CHECK, /* layouts, and memory that is provided */
	WEIGHTD_WORKER_FREE,
	WEIGHTD_WORKER_SEAL,
	WEIGHTD_WORKER_WAKE, /* readers that wait for a version */
	WEIGHTD_WORKERS,
};

#define WEIGHTD_LATENCY_BUCKETS 13

/*
 * A histogram of durations since the server began. Bucket i counts those up to 4^i microseconds and longer than those of
 * bucket i - 1; the last one counts all longer ones.
 */
struct weightd_latency {
	uint64_t sum_ns;
	uint64_t counts[WEIGHTD_LATENCY_BUCKETS];
};

/* The state of the server and of the resources that it depends on. */
struct weightd_health {
	size_t size; /* set by the caller */
	uint64_t started_ns; /* CLOCK_REALTIME */
	uint64_t memory; /* bytes of the machine, or as many as the cgroups of the server allow */
	uint64_t reserve; /* bytes that the server leaves to other programs */
	uint64_t headroom; /* as weightd_stat::headroom */
	char limit[256]; /* file of the cgroup that limits `headroom`; "": the free memory of the machine does */
	uint64_t max_descriptors; /* that the server may have open; UINT64_MAX: any number */
	uint64_t refused[WEIGHTD_REFUSALS]; /* requests and connections, by enum weightd_refusal */
	struct weightd_latency loop; /* rounds of its loop: no client waits for less */
	struct weightd_latency workers[WEIGHTD_WORKERS]; /* steps of jobs, by enum weightd_worker */
	enum weightd_keeper keeper;
	bool admin; /* this user may administer buffers of all users */
};

/* Asks for the state of the server; any user may. -EOPNOTSUPP: the server is of an earlier release. Blocks for the reply. */
int weightd_health(struct weightd *w, struct weightd_health *ret);

/*
 * Blocks until version `version` of the buffer or a later one is current and can be attached (0: any); the buffer need
 * not exist yet. timeout_ms < 0: for ever. -ETIMEDOUT.
 */
int weightd_wait(struct weightd *w, const char *name, const char *device, uint64_t version,
		 int timeout_ms, uint64_t *ret_version);

/*
 * Removes a buffer (`version` 0) or one version of it. For its owner and administrators. Readers keep their
 * attachments; the server frees the memory when the last of them detaches. -EBUSY for the current version: publish
 * another one, roll back, or remove the buffer.
 */
int weightd_drop(struct weightd *w, const char *name, const char *device, uint64_t version);

/*
 * Makes version `version`, which the buffer must still keep, the current one; 0: the newest that is older than the
 * current one. Needs permission to write. The next published version is newer than all. -ENOENT: the version is gone;
 * -EAGAIN and -EUCLEAN as for weightd_attach().
 */
int weightd_rollback(struct weightd *w, const char *name, const char *device, uint64_t version,
		     uint64_t *ret_version);

/*
 * Changes permissions. The owner and administrators may change mode and gid (to a group of the caller's), administrators
 * also the uid; a mode is 0666 at most. -1 leaves a value unchanged. Applies from the next attach on.
 */
int weightd_set_access(struct weightd *w, const char *name, const char *device, int64_t mode,
		       int64_t uid, int64_t gid);

enum weightd_event_kind {
	WEIGHTD_EVENT_CREATED = 1, /* the buffer */
	WEIGHTD_EVENT_PUBLISHED,
	WEIGHTD_EVENT_ROLLED_BACK, /* `version` is current again */
	WEIGHTD_EVENT_VERSION_GONE,
	WEIGHTD_EVENT_REMOVED, /* the buffer */
	WEIGHTD_EVENT_UPDATING, /* a writer waits for readers to pause */
	WEIGHTD_EVENT_TORN,
	WEIGHTD_EVENT_ACCESS, /* mode or owner changed */
	WEIGHTD_EVENT_EVICTED, /* a reader that did not pause */
	WEIGHTD_EVENT_MISSED, /* this watch was too slow, and events before this one are lost */
	WEIGHTD_EVENT_RESTARTED, /* the server; events during the restart are lost */
};

/* The name of an event: "created", "published", "rolled-back", ...; NULL for an unknown one. */
const char *weightd_event_name(enum weightd_event_kind kind);

struct weightd_event {
	size_t size; /* set by the caller */
	enum weightd_event_kind kind;
	const char *name; /* name of the buffer; "" for MISSED and RESTARTED; valid until the next call */
	const char *device;
	uint64_t serial;
	uint64_t time_ns; /* CLOCK_REALTIME */
	uint64_t version;
	enum weightd_end end; /* reason of VERSION_GONE */
	uint32_t uid, pid; /* client that caused it; both 0 if weightd did */
};

struct weightd_watch;

/*
 * Watches the buffers that the caller may read or owns, from now on, on a connection of its own. The caller frees the
 * result.
 */
int weightd_watch_new(struct weightd *w, struct weightd_watch **ret);
/*
 * Waits for the next event. timeout_ms < 0: for ever. -ETIMEDOUT. The sentence of a failure is on the connection that
 * was passed to weightd_watch_new().
 */
int weightd_watch_next(struct weightd_watch *watch, int timeout_ms, struct weightd_event *ret);
void weightd_watch_free(struct weightd_watch *watch);

/* --- Jobs --------------------------------------------------------------------------------------- */

/*
 * A job is host memory that several processes of one user write, its ranks: the state of a training run. The server owns
 * it: it outlives every rank, and the server itself as a version does. It has parts, each a range of bytes with a kind
 * ("PARAM"), which the server does not interpret. Nothing of it is sealed, digested or readable by others; publish a
 * version for that.
 *
 * The creator receives a token and passes it on, in an environment variable or in a file of mode 0600. A process with
 * the token, of the user that created the job, becomes a rank and may write all parts. Other processes of that user
 * need no token to reach the memory: they can open /proc/PID/fd of a rank.
 *
 * A job ends when each rank has left it, when it is removed, or after its linger time without a rank. Until then a
 * process that died can be started again and finds the memory as it was.
 */
#define WEIGHTD_TOKEN_MAX                                                                          \
	193 /* bytes of a token as text, "NAME:64 hexadecimal digits", the NUL included */
#define WEIGHTD_RANKS_MAX 256
#define WEIGHTD_PARTS_MAX 16
#define WEIGHTD_PART_KIND_MAX 15
#define WEIGHTD_DESCRIPTION_MAX 16777216

struct weightd_job;

struct weightd_job_options {
	size_t size; /* set by the caller */
	uint32_t n_ranks; /* 1 to WEIGHTD_RANKS_MAX, on this machine */
	/* Milliseconds without a rank, from the creation on, after which the server removes the job; 0: never. */
	int64_t linger_ms;
};

/*
 * Creates a job without memory, and writes its token. -EEXIST: the user, or another one, has a job of that name;
 * -EINVAL: the name breaks the rules of names of buffers; -EDQUOT; -EOPNOTSUPP: the server is too old.
 */
int weightd_job_create(struct weightd *w, const char *name,
		       const struct weightd_job_options *options, char ret_token[WEIGHTD_TOKEN_MAX]);

struct weightd_part {
	size_t size; /* set by the caller */
	const char *kind; /* 1 to WEIGHTD_PART_KIND_MAX of [A-Z0-9_] */
	uint64_t n_bytes; /* not 0 */
};

struct weightd_join_options {
	size_t size; /* set by the caller */
	uint32_t rank;
	uint32_t n_parts;
	const struct weightd_part *
		parts; /* the first eight bytes of part 0 are the step that weightd_list_jobs() shows */
	/* 1 to WEIGHTD_DESCRIPTION_MAX bytes that all ranks must have equal: what the parts contain. Copied. */
	const void *description;
	uint64_t description_size;
};

/*
 * Becomes a rank of a job. The first rank makes its memory, zero, in all parts or none; this may take as long as a create.
 * The caller owns the result, which keeps the connection open. -ENOENT: no such job; -EACCES: another user's, or the
 * wrong token; -EBUSY: a living process is this rank, which the sentence names (one that is ending is waited for, 2 s at
 * most, and one that acts for the rank, 60 s: the sentence then says so); -EPROTOTYPE: parts or description differ from the
 * job's; -ENOMEM and -EDQUOT: there is no room, by the sentence, and nothing was taken.
 *
 * The library holds a POSIX record lock (F_SETLK) on byte `rank` of part 0 for as long as the process lives: the
 * kernel's proof that no two processes are one rank. Other processes read it with F_GETLK: it names the process, and
 * ends with it. One that acts for the rank (weightd_job_hold()) locks byte WEIGHTD_RANKS_MAX + `rank` as well. The lock is
 * lost if this process closes any descriptor of its own for that part.
 */
int weightd_job_join(struct weightd *w, const char *token,
		     const struct weightd_join_options *options, struct weightd_job **ret);

/* The description of the first rank, in memory that the caller frees with free(). -ENODATA: no rank has joined yet. */
int weightd_job_description(struct weightd *w, const char *token, void **ret, uint64_t *ret_size);

/* The name of a job, its number of ranks, and the rank of this process. */
const char *weightd_job_name(const struct weightd_job *j);
uint32_t weightd_job_n_ranks(const struct weightd_job *j);
uint32_t weightd_job_rank(const struct weightd_job *j);
/* The writable descriptor of a part, owned by the job: map it, never close it. -ENOENT: no such part. */
int weightd_job_fd(const struct weightd_job *j, uint32_t part);
/*
 * The process that holds a rank. 0: none does; else its pid, or -1 for one that this pid namespace does not see. -EINVAL: no such rank.
 * Does not need the server.
 */
int weightd_job_holder(const struct weightd_job *j, uint32_t rank);
/*
 * Takes the lock of another rank, whose process died, to act for it; weightd_job_release() gives it back. -EBUSY: a living
 * process is that rank, or acts for it.
 */
int weightd_job_hold(struct weightd_job *j, uint32_t rank);
void weightd_job_release(struct weightd_job *j, uint32_t rank);
/*
 * Joins again if the connection to the server was lost and the server is back. Never waits. -ESTALE: the job was removed;
 * -ENOTCONN: the server is not there (the memory is).
 */
int weightd_job_check(struct weightd_job *j);
/* This rank is done. Once all are, the server removes the job. The memory stays mapped. -ESTALE: it was removed. */
int weightd_job_leave(struct weightd_job *j);
/* Releases the job; NULL is fine. Without weightd_job_leave() it remains, and can be joined again. */
void weightd_job_free(struct weightd_job *j);

/* Removes a job by its name: its owner, or an administrator. Ranks keep what they have mapped. -ENOENT, -EACCES. */
int weightd_job_remove(struct weightd *w, const char *name);

/*
 * A job as a process sees it that is no rank: the description, part 0, and the processes of the ranks. Nothing of the job can
 * be written through it, and it does not keep a job alive, but the memory of part 0. In a process that is a rank of the job, a
 * view that was freed keeps its descriptor until the rank is freed, too: the kernel would take the rank's lock.
 */
struct weightd_job_view;

/*
 * Views a job by its name: its owner, or an administrator. The caller owns the result, which does not need the connection.
 * -ENOENT: no such job; -EACCES: another user's; -ENODATA: no rank has joined yet; -EOPNOTSUPP: the server is too old.
 */
int weightd_job_view(struct weightd *w, const char *name, struct weightd_job_view **ret);
void weightd_job_view_free(struct weightd_job_view *v);
uint32_t weightd_job_view_n_ranks(const struct weightd_job_view *v);
/* The description of the first rank, owned by the view. */
const void *weightd_job_view_description(const struct weightd_job_view *v, uint64_t *ret_size);
/*
 * Copies bytes of part 0, and returns how many: fewer at its end. The ranks write them meanwhile, each 8 bytes at a multiple of
 * 8 at once; they may have any value, and must not be trusted. Errors of pread().
 */
int64_t weightd_job_view_read(const struct weightd_job_view *v, void *to, uint64_t size,
			      uint64_t offset);
/*
 * The process that is a rank, as weightd_job_holder() returns it. One that acts for a dead rank (weightd_job_hold()) does not
 * count.
 */
int weightd_job_view_holder(const struct weightd_job_view *v, uint32_t rank);

struct weightd_job_info {
	size_t size;
	const char *name;
	uint64_t n_bytes;
	uint64_t step; /* as the ranks wrote it */
	uint64_t created_ns; /* CLOCK_REALTIME */
	uint64_t vacant_ns; /* when the last rank went; 0: there are ranks, or there was none yet */
	int64_t linger_ms; /* 0: for ever */
	uint32_t uid, gid;
	uint32_t n_ranks;
	uint32_t n_present;
	uint32_t n_done;
};

/* The jobs of the caller's user; an administrator gets all. */
int weightd_list_jobs(struct weightd *w, struct weightd_list **ret);
const struct weightd_job_info *weightd_list_job(const struct weightd_list *l, size_t i);

#ifdef __cplusplus
}
#endif

#endif
