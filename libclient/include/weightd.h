/*
 * weightd.h: share model weights between the processes of one machine, without copies
 *
 * A server, weightd, owns one flat buffer of bytes per model and device. A *writer* creates a new
 * version of a buffer from a layout (the ordered tensor table), fills it and publishes it; from then
 * on nobody, the writer included, can change it. *Readers* attach a published version and find its
 * tensors by name or index, at their final place in memory that all readers share.
 *
 * Errors. A function that can fail returns 0 or a positive result, or a negative errno. The sentence
 * that goes with the last failure on a connection is weightd_error(). Outputs are written on success
 * only. Codes with a fixed meaning here:
 *	-ENOENT		no such buffer, version or tensor
 *	-ENODATA	the buffer exists, but no version of it has been published
 *	-ESTALE		the buffer was removed (and perhaps made again since); what a writer wrote is lost
 *	-EACCES		the permissions of the buffer do not allow it
 *	-EPERM		... nor would others: it is for administrators, or this user owns nothing
 *	-EBUSY		another writer is at work on the buffer, or bytes are still mapped writable
 *	-ENOMEM		this machine has no room for the bytes; the sentence says how much is missing
 *	-EDQUOT		a limit of the user or of the server is reached
 *	-EPROTOTYPE	the layout is not the one asked for
 *	-EAGAIN		the buffer is being updated in place; wait for the next version
 *	-EUCLEAN	an exclusive buffer is torn, since its writer died in the middle of an update; update it again
 *	-EALREADY	this writer has published or was aborted
 *	-ECONNABORTED	the server was started anew while it answered: whether it did what was asked is unknown
 *	-ENOTRECOVERABLE the service manager or keeper that the server survives with is gone: nothing new is made
 *	-EBADMSG	a file, layout or message breaks its format
 *	-EILSEQ		bytes differ from their digest
 *	-EMFILE		this process, or the server, is out of descriptors
 *	-ETIMEDOUT	the deadline passed; of a create: readers did not pause
 *	-ENOTCONN	not connected, or the server went away
 *	-ECHILD		the connection belongs to the process that forked this one; connect again
 *	-ECANCELED	a progress callback asked to stop
 *	-ENODEV		this process has no such GPU, or no driver for one
 *	-ENOSYS		its CUDA driver is too old
 *	-EOPNOTSUPP	this kind of memory, or these two GPUs, cannot do that
 *	-EADDRNOTAVAIL	the memory was given back, and only its addresses are kept
 *	-EIO		the GPU or its driver fails; of cuda-ipc memory: it is lost with the process that held it
 *
 * Restarts. Where the server survives its own death (under systemd, or `weightd --keeper`) a call that finds
 * the connection lost waits for the server to come back, for weightd_set_restart_timeout() at most, takes
 * its leases and writers up again and goes on: an attachment keeps its memory in any case, and a writer that
 * had not published can go on filling. The server waits for both only so long ([store] resume-timeout in
 * weightd.conf(5)): a writer that comes later gets -ESTALE, a reader keeps what it maps, without a lease and
 * uncounted. A call that cannot be asked twice (weightd_drop(), weightd_rollback() to
 * version 0) and whose answer was lost returns -ECONNABORTED. The time of a call that has one goes on meanwhile.
 * Attached bytes, their head pages and waits on them do not need the server; detaching does not wait for it.
 *
 * Threads. A connection and what was made from it (writers, attach and detach, lists) may be used by
 * one thread at a time; threads that want to work side by side connect once each. What only looks at
 * an attached buffer (every function here that takes a `const struct weightd_buffer *`) may be called
 * from any number of threads at once.
 *
 * Processes. After fork() the child may read the buffers its parent had attached in host memory, and nothing
 * more: calls that talk to the server return -ECHILD there, and so does every use of GPU memory.
 *
 * Devices. A buffer is on "host", or on a GPU: "cuda:N", counted as this process counts (CUDA_VISIBLE_DEVICES, as
 * torch does; "cuda" is "cuda:0"), or "cuda:GPU-<uuid>" or "cuda:MIG-<uuid>", which mean the same to everybody.
 * Where this process has no CUDA driver, "cuda:N" is the N of nvidia-smi, to ask about a buffer by. Several GPUs
 * in one process are fine. What is told of a device is always its UUID; weightd_buffer_location() has the
 * number. Addresses of buffers and tensors on a GPU are addresses of the GPU's: they go to kernels and copies, and
 * are not to be followed.
 *
 * Contexts. libcuda.so.1 is opened when a GPU is first named, and never before. Calls about GPU memory are made in
 * the current context where that is one of this GPU, else in its primary context (that of the CUDA runtime
 * and of torch), which is held for as long as a buffer or writer on it is; what was current before a call is
 * current after it. The first such call of a process may take a second, to make the context.
 *
 * Streams. Bytes on a GPU are read and written in an order that only the caller knows. Calls that make bytes
 * immutable or take them away wait first: those whose name ends with _on for the work that was queued, up to
 * the call, in one stream (a CUstream or cudaStream_t of the context named above; NULL is its default stream), the
 * others as with WEIGHTD_ALL_STREAMS: for all work of this process on that GPU, in the primary context and in the
 * current one. Work that is queued meanwhile, or in other contexts, is the caller's to hold back. For host memory
 * there is nothing to wait for, and streams are ignored. None of them may be called while the stream is
 * captured into a graph.
 *
 * Structs that cross the call begin with their size, set by the caller; what the caller does not set must
 * be zero (struct weightd_create_options o = {.size = sizeof(o)}). Options of a later release that are not
 * zero are refused with -E2BIG, rather than ignored, by a library that does not know them.
 *
 * The library never prints, never exits and installs no signal handlers, but for what
 * weightd_guard() is asked for.
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

/* Element types, those of safetensors. */
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
};

/* "BF16"; NULL for an unknown code. */
const char *weightd_dtype_name(enum weightd_dtype dtype);
/* The code of "BF16"; -EINVAL for an unknown name. */
int weightd_dtype_parse(const char *name);
/* Bits of one element; 0 for an unknown code. */
unsigned weightd_dtype_bits(enum weightd_dtype dtype);

/* What a tensor is to the module it belongs to. */
enum weightd_role {
	WEIGHTD_PARAM = 1, /* shared by readers as it is */
	WEIGHTD_BUFFER, /* mutable or non-parameter state: readers take a private copy */
};

#define WEIGHTD_NOT_TIED UINT32_MAX

/*
 * One tensor. `size` is sizeof(struct weightd_tensor) as the caller knows it, set by the caller before
 * each call that fills one; strings and shape belong to the buffer or writer it came from.
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
	uint32_t tied_to; /* index of the tensor whose bytes this name shares, or WEIGHTD_NOT_TIED */
	uint32_t n_dims; /* 0 for a scalar */
	enum weightd_dtype dtype;
	enum weightd_role role;
};

/* How bytes come to a process. */
enum weightd_memory {
	WEIGHTD_MEMORY_HOST,
	WEIGHTD_MEMORY_CUDA, /* an allocation of a GPU's, mapped by its virtual memory management */
	WEIGHTD_MEMORY_CUDA_IPC, /* one of the older kind, cudaIpcMemHandle_t */
};

struct weightd_location {
	size_t size; /* set by the caller */
	enum weightd_memory memory;
	int device; /* the GPU that maps it, by its number in this process; -1: host memory */
	uint8_t uuid[16]; /* of the GPU that has it, or of the part of one; zero for host memory */
	uint64_t map_size; /* of CUDA memory: bytes of the allocation, all of which a mapping of its descriptor is of */
};

/* In the place of a stream. */
#define WEIGHTD_ALL_STREAMS ((void *)-1)

/* --- Connections ------------------------------------------------------------------------------- */

struct weightd;

/* A connection object, not yet connected; it exists so that a failure to connect has a sentence. */
int weightd_new(struct weightd **ret);

/*
 * Connects to the socket `path`; NULL means $WEIGHTD_SOCKET, else the first of
 * $XDG_RUNTIME_DIR/weightd.sock and the system's, /run/weightd/weightd.sock, that has a listener. A folder
 * $XDG_RUNTIME_DIR that another user owns, as su and sudo -E may leave it, is passed over.
 *
 * Also connects anew after the server went away; to the same socket of a server that survives, leases and
 * writers are taken up again, else what is attached stays readable without a lease, and what is being
 * written is lost (-ESTALE). A caller that connects anew should pass weightd_socket(w): NULL may find the
 * server of another socket by then.
 *
 * Blocks for the handshake (5 s at most), and up to a second for a socket that is being made: one that
 * refuses, or admits only other users, and changed within the last second; or one that is missing from a
 * folder in which a file was made or removed within the last second. A socket that refuses and did not change
 * is tried for 0.2 s, as its server may be about to make it anew. Any other server that is not there is an
 * error at once: -ENOENT; -EACCES names the group that the socket admits.
 */
int weightd_connect(struct weightd *w, const char *path);

/*
 * Drops the caller's hold; NULL is fine. Buffers and writers made from the connection keep it open
 * until they are gone too. Waits for what weightd_detach_on() left.
 */
void weightd_close(struct weightd *w);

/* The sentence of the last failure, for a person; "" if there was none. Valid until the next call. */
const char *weightd_error(const struct weightd *w);

/*
 * How long a call waits for a server that is being started again: < 0 for ever, 0 not at all. Default:
 * 30 s. Only a server that survives is waited for.
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
};

/* Asks the server who it is. */
int weightd_ping(struct weightd *w, struct weightd_server *ret);

/* --- Reading ----------------------------------------------------------------------------------- */

struct weightd_buffer;

struct weightd_attach_options {
	size_t size; /* set by the caller */
	const char *device; /* NULL: "host" */
	uint64_t version; /* 0: the newest */
	const uint8_t *layout_hash; /* 16 bytes the layout must hash to, else -EPROTOTYPE; NULL: any */
	int timeout_ms; /* how long to wait for that version, or for an update: 0 not at all, < 0 for ever */
	/*
	 * Of a buffer on a GPU: the GPU of this process that is to map it, over NVLink or PCIe; NULL: the one that
	 * has it. -EOPNOTSUPP where the two do not reach each other. Both must be visible to this process.
	 */
	const char *map_device;
	/*
	 * Gets a descriptor of the bytes, which begin at its offset 0, for sendfile() or a process that is to map
	 * them; the caller closes it. Of host memory it is read-only. Its file position is shared with others: use
	 * calls that name an offset. On a GPU it is the allocation, for cuMemImportFromShareableHandle(), and who
	 * imports it has to map weightd_location::map_size bytes of it and is kept from writing by nothing else than
	 * how it maps them; -EOPNOTSUPP for memory of the older kind. The attachment's lease is what keeps a reusable
	 * buffer's memory from being written again, the descriptor does not; and while it is open the memory is not
	 * free. NULL: none.
	 */
	int *ret_fd;
};

/*
 * Maps a published version; `options` may be NULL. The caller owns the result.
 *
 * On a GPU the mapping is read-only too: a kernel that writes through it fails, with its context (an illegal
 * address). A driver that does not know such mappings gives one that can be written, as cuda-ipc memory always
 * is: then it is by good will alone that the bytes stay, and weightd_buffer_verify() tells whether they have.
 */
int weightd_attach(struct weightd *w, const char *name,
		   const struct weightd_attach_options *options, struct weightd_buffer **ret);

/*
 * Unmaps and tells the server, ending the lease; NULL is fine. Tensor pointers are dead afterwards. Waits for
 * all streams on the GPU that maps it.
 */
void weightd_detach(struct weightd_buffer *b);

/*
 * As weightd_detach(), but returns at once: the memory stays mapped and the lease held until the work that is now
 * queued in `stream` is done, which each later call on the connection that talks to the server looks at, and
 * weightd_reap(). `b` is not to be used any more; the stream may be destroyed. With WEIGHTD_ALL_STREAMS, for a
 * stream that takes no event, and after weightd_close(), it waits.
 */
void weightd_detach_on(struct weightd_buffer *b, void *stream);

/* Ends what weightd_detach_on() left and its stream has passed. How many are left. Does not wait. */
int weightd_reap(struct weightd *w);

const char *weightd_buffer_name(const struct weightd_buffer *b);
/* As the server calls it: a GPU by its UUID. */
const char *weightd_buffer_device(const struct weightd_buffer *b);
/* The version this attachment reads; only weightd_buffer_swap() and weightd_buffer_pause() change it. */
uint64_t weightd_buffer_version(const struct weightd_buffer *b);
/* Start of the bytes, and their number if `ret_size` is given. */
const void *weightd_buffer_data(const struct weightd_buffer *b, uint64_t *ret_size);
/* Where it is, and the GPU that maps it. -EINVAL: `ret->size` was not set. */
int weightd_buffer_location(const struct weightd_buffer *b, struct weightd_location *ret);
/*
 * The 64 bytes of the cudaIpcMemHandle_t of a buffer of the older kind, for a program of this machine that opens it
 * itself: the buffer's bytes begin at the start of what it gets. It is good for as long as this attachment
 * is there, and so to be closed before weightd_detach(); and not behind weightd_buffer_refresh(), which attaches
 * another allocation. Nothing keeps who opens it from writing. -EOPNOTSUPP: memory of another kind; -EIO: it is
 * lost with the process that held it, and does not open any more.
 */
int weightd_buffer_ipc_handle(const struct weightd_buffer *b, uint8_t ret_handle[64]);
/*
 * Copies `n` bytes from `offset` on into host memory, wherever they are; blocks until they are there, on a GPU
 * also for the work of its default stream. -EINVAL: not within the buffer. -EADDRNOTAVAIL, -EIO.
 */
int weightd_buffer_read(struct weightd_buffer *b, uint64_t offset, void *to, uint64_t n);
/* 16 bytes, owned by the buffer. */
const uint8_t *weightd_buffer_layout_hash(const struct weightd_buffer *b);
/*
 * The layout as one range of bytes that does not change, owned by the buffer; weightd_layout_parse() makes a
 * layout of it again, in another process or on another machine.
 */
const void *weightd_buffer_layout_image(const struct weightd_buffer *b, uint64_t *ret_size);
/* 16 bytes, owned by the buffer; NULL when the writer published without a digest. */
const uint8_t *weightd_buffer_digest(const struct weightd_buffer *b);
uint32_t weightd_buffer_n_tensors(const struct weightd_buffer *b);

/* Tensor `index` of the table, in the order of the layout. -ENOENT. Constant time. */
int weightd_buffer_tensor(const struct weightd_buffer *b, uint32_t index,
			  struct weightd_tensor *ret);
/* The tensor of that name. -ENOENT. Constant time: a hash table inside the mapped layout. */
int weightd_buffer_find(const struct weightd_buffer *b, const char *name,
			struct weightd_tensor *ret);

/*
 * The current version of the buffer, which is the newest but after a rollback: one atomic load, no system
 * call. -ESTALE once the buffer was removed.
 */
int weightd_buffer_latest(const struct weightd_buffer *b, uint64_t *ret_version);

/*
 * Blocks until the current version is newer than `version`. timeout_ms < 0: for ever. -ETIMEDOUT, -ESTALE.
 * Needs no connection, and hence does not notice that the server has ended.
 */
int weightd_buffer_wait(const struct weightd_buffer *b, uint64_t version, int timeout_ms,
			uint64_t *ret_version);

/*
 * Maps the current version beside the one `b` reads. Returns 1 and the new attachment (to be detached
 * like any other; `b` stays valid until it is detached), or 0 when `b` is the current one already. -EIO: it is,
 * and its memory is lost.
 */
int weightd_buffer_refresh(struct weightd_buffer *b, struct weightd_buffer **ret);

/*
 * As weightd_buffer_refresh(), at the same address: the new version's memory takes the place of the
 * old one's, so that pointers, views and captured graphs stay valid. To be called at a safe point,
 * where no thread of the process reads the buffer. 1: swapped, 0: `b` has the current version
 * already; -EPROTOTYPE when the layout differs (the sentence says in what): attach anew. On a
 * failure `b` goes on with the version it has. What weightd_buffer_tensor() had told stays true but
 * for the bytes.
 *
 * On a GPU the new memory is imported first; then the streams are waited for, and what is queued after the call
 * reads the new version. Should the driver then map neither the new nor again the old memory, -EIO says so, and `b`
 * has none until another swap succeeds. -EOPNOTSUPP for cuda-ipc memory, whose address is the driver's choice:
 * refresh there. -EADDRNOTAVAIL after weightd_buffer_release().
 */
int weightd_buffer_swap(struct weightd_buffer *b);
int weightd_buffer_swap_on(struct weightd_buffer *b, void *stream);

/*
 * Sleep: gives memory and lease back, once `stream` has passed, and keeps the addresses, for an engine that frees
 * its GPU while it has nothing to do. Until weightd_buffer_reacquire() reads fault, and what needs the bytes
 * (weightd_buffer_read(), weightd_buffer_verify(), weightd_read_begin(), weightd_buffer_swap(),
 * weightd_buffer_pause()) returns -EADDRNOTAVAIL; what looks at the layout or the head page
 * (weightd_buffer_latest(), weightd_buffer_wait(), weightd_buffer_state()) works, and so do weightd_buffer_refresh(),
 * which attaches the current version beside it if that is another one, and weightd_detach(). The server may free
 * the version meanwhile: nobody waits for a sleeper. Asleep already: 0. -EOPNOTSUPP for cuda-ipc memory. Does
 * not need the server.
 */
int weightd_buffer_release(struct weightd_buffer *b, void *stream);

/*
 * Wake: memory at the same addresses again, so that pointers and captured graphs are valid again. 0: the version
 * there was, or it was not asleep; 1: the current one, since that was gone. After a failure it sleeps on: -ESTALE:
 * the buffer was removed; -EPROTOTYPE: its versions have another layout now: attach anew; -ENODATA, -EAGAIN and
 * -EUCLEAN as for weightd_attach(); -ENOMEM and others of the GPU.
 */
int weightd_buffer_reacquire(struct weightd_buffer *b);

/* The state of a buffer. */
enum weightd_state {
	WEIGHTD_EMPTY, /* nothing published yet, or being replaced */
	WEIGHTD_READY,
	WEIGHTD_UPDATING, /* a writer waits for the readers to pause, or writes in place */
	WEIGHTD_TORN, /* the writer died in the middle of an update in place */
	WEIGHTD_GONE, /* removed */
};

/* State and current version: one atomic load, no system call. `ret_version` may be NULL. */
enum weightd_state weightd_buffer_state(const struct weightd_buffer *b, uint64_t *ret_version);

/*
 * For readers of an exclusive buffer that cannot pause: what was read between a begin and a retry that
 * returns false is of one version, whole; what was read before a retry that returns true may be torn, and
 * must not have been believed. begin: 0; -EAGAIN while the buffer is updated (to be tried again, or
 * weightd_buffer_wait()), -EUCLEAN, -ESTALE, and -EUCLEAN too once weightd_buffer_pause() has told this reader
 * that it was evicted. What is sealed is always whole. Two loads, no system call.
 */
int weightd_read_begin(const struct weightd_buffer *b, uint64_t *ret_ticket);
bool weightd_read_retry(const struct weightd_buffer *b, uint64_t ticket);

/*
 * A safe point for readers that can pause: where WEIGHTD_UPDATING stands, tells the server that this
 * process does not read, and waits until it may go on. 0: nobody asked; 1: paused, and going on, with
 * another version perhaps, at the same addresses; -ETIMEDOUT: still paused, to be called again; -EUCLEAN:
 * this reader was evicted: attach anew; or the buffer is torn, which weightd_buffer_state() tells: detach, or
 * call again, since its repair waits for this reader too; -ESTALE; -EPROTOTYPE: the next version has another
 * layout: attach anew. No thread of the process may read the buffer during the call; all streams on
 * the GPU that maps it are waited for first.
 *
 * A pause is for one update only: the next one asks again. Who was told -ETIMEDOUT and reads without another
 * call may hence read in the midst of either.
 *
 * Where the buffer is being replaced its memory is given back meanwhile and the addresses are kept: until
 * the call returns 1 a read of them faults, after -ETIMEDOUT and other failures too, and `b` is good for
 * another call of this function and for weightd_detach() only.
 */
int weightd_buffer_pause(struct weightd_buffer *b, int timeout_ms);

/* True when the bytes can change in place: those of an exclusive buffer. */
bool weightd_buffer_is_mutable(const struct weightd_buffer *b);

/*
 * Computes the digest of the mapped bytes and compares it with the one that was published; a GPU does it for
 * memory of its own, beside what else it does, and no more than 16 bytes of each leaf come back. 0: equal;
 * -EILSEQ: they differ (the sentence names the first bad range); -ENODATA: published without a digest;
 * -EAGAIN: an exclusive buffer has been updated since `b` was attached or paused last; -EUCLEAN, -ESTALE,
 * -EADDRNOTAVAIL, -EIO.
 */
int weightd_buffer_verify(struct weightd_buffer *b);

/*
 * For debugging: from now on a fault in host memory of weightd's is explained in a line on standard
 * error, which names the tensor, the buffer and its version. Only the first such fault of a process
 * is explained, also where its handler recovers from that. A write to a published version is one,
 * as is any use of what weightd_buffer_release() gave back. The signal, SIGSEGV, then goes on to
 * the handler that had it before, or ends the process, as do faults that have nothing to do with
 * weightd, without a line. Up to 4096 attachments and writers of the process are known. Installs a
 * handler of SIGSEGV; where another one has taken its place since, a second call puts it before
 * that. One thread at a time. -errno.
 */
int weightd_guard(void);

/* --- Layouts ----------------------------------------------------------------------------------- */

struct weightd_layout;

/*
 * An empty layout. `alignment` is that of every tensor's offset in bytes, a power of two from 64 to
 * 2 MiB; 0 means 256.
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
 * The layout as one range of bytes, its hash in it, which weightd_layout_parse() takes and weightd_buffer_layout_image()
 * gives for a buffer of this layout. The caller frees it, by free(). -EINVAL: it is empty; -EOVERFLOW: it would have
 * more than 1 GiB; -ENOMEM. Reads the whole table.
 */
int weightd_layout_image(const struct weightd_layout *l, void **ret_image, uint64_t *ret_size);

/*
 * The layout that weightd_buffer_layout_image() has written down, and which has the same hash. The image is
 * copied and then checked, as the server checks it: it may come from anybody. -EBADMSG, also for an image of
 * more than 1 GiB; -ENOMEM. Reads the whole table. To be freed like one of weightd_layout_new().
 */
int weightd_layout_parse(const void *image, uint64_t size, struct weightd_layout **ret);

/*
 * Compares two layouts, which are of one model when they have the same set of (name, type, shape),
 * in any order. A name that only one of them has is no difference where it is tied to a name that
 * both have. Returns 0, or -EPROTOTYPE: up to `size` bytes of `ret_text` name the differences,
 * "other type or shape: 'w' is F32 [4, 4], was BF16 [4, 4]; only in this layout: 'a', 'b' and 3
 * more; only in the other: 'c'". 256 bytes hold some names of each kind. `ret_text` may be NULL
 * where `size` is 0. -ENOMEM. Reads both tables.
 */
int weightd_layout_compare(const struct weightd_layout *l, const struct weightd_layout *other,
			   char *ret_text, size_t size);

/* Appends another name for the bytes of tensor `index`, with its dtype, shape and role. */
int weightd_layout_tie(struct weightd_layout *l, const char *name, uint32_t index, const char *unit);

uint32_t weightd_layout_n_tensors(const struct weightd_layout *l);
/* Bytes of the flat buffer. */
uint64_t weightd_layout_n_bytes(const struct weightd_layout *l);
/* As weightd_buffer_tensor(), with data == NULL. Pointers live until the layout changes. */
int weightd_layout_tensor(const struct weightd_layout *l, uint32_t index,
			  struct weightd_tensor *ret);
/* The hash that weightd will know the layout by. Reads the whole table. */
int weightd_layout_hash(const struct weightd_layout *l, uint8_t ret_hash[WEIGHTD_DIGEST_SIZE]);

/* --- Writing ----------------------------------------------------------------------------------- */

struct weightd_writer;

/* What becomes of a reader that has not paused in time. */
enum weightd_policy {
	WEIGHTD_WAIT, /* the writer gets -ETIMEDOUT, and nothing happened */
	/*
	 * It is not waited for any longer. What it reads in place is torn, and the library tells it so; what is
	 * replaced it keeps, with its memory, until it lets go.
	 */
	WEIGHTD_EVICT,
	/*
	 * ... and its process is killed, if it is one of the writer's user, or the writer is root; and if
	 * weightd can: as root, or as that user; from Linux 6.5 on.
	 */
	WEIGHTD_KILL,
};

/* How a buffer on a GPU is shared. */
enum weightd_handle {
	WEIGHTD_HANDLE_VMM, /* by a descriptor: the memory lives for as long as anybody has it */
	/*
	 * By a cudaIpcMemHandle_t, for consumers that can open nothing else: the memory lives in a process of the
	 * server's and is lost with it, nothing is ever read-only, and addresses do not stay.
	 */
	WEIGHTD_HANDLE_IPC,
};

struct weightd_create_options {
	size_t size; /* set by the caller */
	const char *device; /* NULL: "host" */
	uint32_t mode; /* permission bits of a new buffer; 0: 0640 */
	uint32_t keep; /* versions to keep, the newest included; 0: as before, 2 for a new buffer */
	/*
	 * Publish in exactly the given layout, whatever the newest version has: allows other
	 * tensors, and another order of the same ones. Not of an exclusive buffer.
	 */
	bool new_layout;
	/*
	 * Of a new buffer. Exclusive: one slot, never sealed, which the next create hands out again once its
	 * readers have paused: for what does not fit twice. Reusable: the slots of versions that are gone are
	 * used again, not sealed, not zeroed: for writers that are trusted and publish often.
	 */
	bool exclusive;
	bool reusable;
	/*
	 * Before a version of a buffer that is neither, ask the readers to let go and free the
	 * versions there are. A version that cannot fit even then is -ENOMEM or
	 * -EDQUOT before that; a writer that fails later leaves none.
	 */
	bool replace;
	/* With exclusive and replace: how long readers may take to pause (< 0: for ever; 0: 10 s), and then. */
	int pause_timeout_ms;
	enum weightd_policy policy;
	enum weightd_handle handle; /* of a new buffer on a GPU */
};

/*
 * Starts the next version of buffer `name`, creating the buffer if there is none. Blocks while the
 * server provides the memory, and for readers to pause. The bytes are zero; of an exclusive buffer they are
 * the version there was, of a reusable one an older version's perhaps. -EBUSY while somebody else is writing
 * the buffer; -ENOTRECOVERABLE.
 *
 * A layout of the same model as the newest version's (weightd_layout_compare()) stands for that
 * one: the version gets the order, offsets, alignment, roles, units and ties of the newest version,
 * so that readers can swap to it. weightd_writer_tensor() and weightd_writer_find() tell where the
 * tensors are; offsets and indices of the given layout do not count then. Names that the given
 * layout ties stay tied for the writer, also where the newest version has each of them on its own:
 * they show one memory, which publish copies to the others. Names that only the newest version ties
 * show one memory too. -EPROTOTYPE: the newest version has other tensors, which the sentence names;
 * or new_layout is set and the buffer is exclusive. Needs no permission to read.
 *
 * In place and with replace: a writer that has published holds a lease like a reader, and does not pause: free
 * it first. What is attached on this very connection is not waited for in place, since it cannot pause. A
 * writer that was aborted, or whose process goes on without its connection, must be freed: while it maps the
 * bytes writable the next update waits, and fails with -EBUSY.
 */
int weightd_create(struct weightd *w, const char *name, const struct weightd_layout *layout,
		   const struct weightd_create_options *options, struct weightd_writer **ret);

/* Start of the bytes, and their number if `ret_size` is given. Writable until published. */
void *weightd_writer_data(const struct weightd_writer *wr, uint64_t *ret_size);
/* The layout of the version to be, which may be that of the newest version: see weightd_create(). */
uint32_t weightd_writer_n_tensors(const struct weightd_writer *wr);
int weightd_writer_tensor(const struct weightd_writer *wr, uint32_t index,
			  struct weightd_tensor *ret);
/*
 * Finds also a name that only the given layout has, as a tie: `ret->index` is the tensor it is tied
 * to then.
 */
int weightd_writer_find(const struct weightd_writer *wr, const char *name,
			struct weightd_tensor *ret);
/* As for buffers. -EALREADY: a published one is not written. */
int weightd_writer_location(const struct weightd_writer *wr, struct weightd_location *ret);
int weightd_writer_read(struct weightd_writer *wr, uint64_t offset, void *to, uint64_t n);
int weightd_writer_write(struct weightd_writer *wr, uint64_t offset, const void *from, uint64_t n);

/*
 * A writable descriptor of the bytes, which begin at its offset 0, for a process that is to write them; the caller
 * closes it. On a GPU it is the allocation, as that of weightd_attach(). -EOPNOTSUPP: memory of the older kind of a GPU;
 * -EALREADY: published or aborted; -ESTALE; -ECHILD.
 *
 * Before weightd_writer_publish() whoever got it must have unmapped and stopped writing: publish waits a second for
 * writable mappings of host memory to go and then fails with -EBUSY, and what is written while it digests the bytes is
 * in the version and perhaps not in its digest. Host memory of a buffer that is neither exclusive nor reusable is
 * sealed then, and the descriptor writes no more; a GPU's is not. What other processes have written into a leaf after
 * weightd_writer_digest_leaf() must be digested again.
 */
int weightd_writer_fd(const struct weightd_writer *wr, int *ret_fd);

/*
 * Tells that leaf `leaf` (bytes [leaf, leaf + 1) x WEIGHTD_LEAF_SIZE) will not change any more, and
 * digests it now, while it is hot. Optional: publish digests what is left. May be called by several
 * threads at once for different leaves.
 */
void weightd_writer_digest_leaf(struct weightd_writer *wr, uint64_t leaf);

/*
 * The same by a copy in host memory of the bytes that the leaf has or will have: what weightd_writer_verify()
 * compares the leaf with, and what publish takes for its digest.
 */
void weightd_writer_digest_bytes(struct weightd_writer *wr, uint64_t leaf, const void *bytes);

/*
 * Whether leaves [first, first + n) have the bytes that were digested: proves that a copy to a GPU has arrived,
 * of which the GPU digests what it has, and no more than 16 bytes of each leaf come back. -EILSEQ: they have others
 * (the sentence names the first bad range); -ENODATA: one of them was not digested; -EINVAL: there are not so many
 * leaves; -EALREADY, -EIO.
 */
int weightd_writer_verify(struct weightd_writer *wr, uint64_t first, uint64_t n);

/*
 * Makes the bytes a version: digests them, makes the mapping read-only in place (pointers and views
 * stay valid), lets the server seal the memory and flip to it. After a failure the writer can write on
 * and try again, unless the sentence says otherwise. -EBUSY names who still maps the bytes writable. The
 * memory of exclusive and reusable buffers is not sealed: there the writer is trusted. -ESTALE: what was
 * written did not survive the server, or the buffer was removed; or it is a reusable one whose permissions
 * have changed meanwhile, and its memory was used before. -EALREADY.
 *
 * On a GPU the streams are waited for first: what was queued is part of the version, what is queued later fails,
 * with its context. Nothing is sealed there: a writer that keeps a writable mapping of its own making, with the
 * driver's calls, is not found out but by weightd_buffer_verify().
 */
int weightd_writer_publish(struct weightd_writer *wr, uint64_t *ret_version);
int weightd_writer_publish_on(struct weightd_writer *wr, void *stream, uint64_t *ret_version);

/*
 * Drops the version that was not published, and lets another writer in. The bytes stay mapped, for
 * nobody else, until the writer is freed. An exclusive buffer is torn then, until it is updated again, which
 * waits for the writer to be freed. -EALREADY.
 */
int weightd_writer_abort(struct weightd_writer *wr);

/*
 * Unmaps, once all streams on the GPU have passed. What was not published is dropped as by
 * weightd_writer_abort(); NULL is fine.
 */
void weightd_writer_free(struct weightd_writer *wr);

/* --- Loading files ----------------------------------------------------------------------------- */

/*
 * Told when a phase begins, when one ends whose end is known, and at most every 50 ms in between. `phase`
 * is "plan", "memory", "read", "verify" (of a GPU: that what arrived is what was read) or "publish"; a return
 * value other than 0 cancels the load. "memory" counts what the server has provided of host memory, which it
 * lists for users that may read the buffer; else it stays at 0 until all is there.
 */
typedef int (*weightd_progress_fn)(void *userdata, const char *phase, uint64_t done, uint64_t total);

/*
 * Receives a sentence about a choice that the caller may not expect: which files of a directory
 * were taken, by which rule, and which were left out.
 */
typedef void (*weightd_note_fn)(void *userdata, const char *text);

struct weightd_load_options {
	size_t size; /* set by the caller */
	const struct weightd_create_options *create; /* NULL: the defaults */
	unsigned n_threads; /* 0: as many as there are cores, 4 at most, or 8 to a GPU */
	weightd_progress_fn progress; /* may be NULL; called from the calling thread */
	void *userdata; /* of both functions */
	weightd_note_fn note; /* may be NULL; called from the calling thread, before memory is asked for */
};

struct weightd_load_result {
	size_t size; /* set by the caller */
	uint64_t version;
	uint64_t n_bytes; /* of tensor data, read from files */
	uint64_t n_tensors;
	uint64_t n_files;
	uint64_t elapsed_ns; /* from the call to the publish */
	uint64_t memory_ns; /* of them, waiting for the server's memory */
	uint64_t read_ns; /* of them, reading and digesting, and copying to a GPU */
	uint8_t digest[WEIGHTD_DIGEST_SIZE];
};

/*
 * Loads safetensors into the next version of `name` and publishes it. Each path is a safetensors
 * file, an index (X.safetensors.index.json, X.safetensors.index.VARIANT.json,
 * X.safetensors.VARIANT.index.json), or a directory. A directory stands for one set of files: that
 * of a well-known name (model, diffusion_pytorch_model), else that of its only index, else its only
 * set X-00001-of-0000N, else its only file; weightctl(1) has the rules. More than one is -EBADMSG.
 * Files are opened with the caller's permissions. On any failure nothing is left behind and the
 * previous version is untouched; but an exclusive buffer is torn once its memory was handed out,
 * and one that is replaced is left without a version. A file that changes meanwhile is -EBADMSG.
 * Uses a connection of its own to the same server. `options` and `ret` may be NULL.
 */
int weightd_load(struct weightd *w, const char *name, const char *const *paths, size_t n_paths,
		 const struct weightd_load_options *options, struct weightd_load_result *ret);

/* --- Managing ---------------------------------------------------------------------------------- */

struct weightd_buffer_info {
	size_t size; /* of this struct as the library knows it */
	const char *name;
	const char *device;
	enum weightd_state state;
	bool writing; /* a writer is at work on the next version */
	uint32_t uid, gid, mode;
	uint32_t keep;
	uint32_t n_versions;
	uint32_t n_readers; /* leases on all versions */
	uint64_t version; /* the current one, 0 for none */
	uint64_t n_tensors;
	uint64_t n_bytes; /* of the current version's flat range */
	uint64_t slot_bytes; /* memory in slots, of all versions */
	uint64_t huge_bytes; /* of them, in huge pages */
	uint64_t published_ns; /* CLOCK_REALTIME of the current version, 0 for none */
	uint8_t layout_hash[WEIGHTD_DIGEST_SIZE];
	uint8_t digest[WEIGHTD_DIGEST_SIZE]; /* all zero: published without one */
	uint64_t newest; /* greater than `version` after a rollback */
	bool exclusive;
	bool reusable;
	enum weightd_memory memory;
};

/* Why a version is no more. */
enum weightd_end {
	WEIGHTD_END_NONE, /* it is there */
	WEIGHTD_END_KEEP, /* there were more than the buffer keeps */
	WEIGHTD_END_MEMORY, /* its memory was needed */
	WEIGHTD_END_DROPPED, /* somebody removed it */
	WEIGHTD_END_REWRITTEN, /* in place, or replaced */
	WEIGHTD_END_LOST, /* its memory did not come back with the server, or died with its holder */
};

/* "keep", "memory", "dropped", "rewritten", "lost"; "" for NONE; NULL for an unknown one. */
const char *weightd_end_name(enum weightd_end end);

struct weightd_version_info {
	size_t size; /* of this struct as the library knows it */
	uint64_t version;
	uint64_t n_tensors;
	uint64_t n_bytes;
	uint64_t slot_bytes;
	uint64_t huge_bytes;
	uint64_t published_ns; /* CLOCK_REALTIME */
	uint32_t n_readers;
	uint32_t uid; /* who published it */
	bool current;
	uint8_t layout_hash[WEIGHTD_DIGEST_SIZE];
	uint8_t digest[WEIGHTD_DIGEST_SIZE];
	uint32_t pid; /* who published it, then */
	enum weightd_end end;
	uint64_t ended_ns; /* CLOCK_REALTIME; 0: it is there */
};

/* What memory is for. */
enum weightd_slot_state {
	WEIGHTD_SLOT_WRITING = 1,
	WEIGHTD_SLOT_CURRENT,
	WEIGHTD_SLOT_KEPT,
	WEIGHTD_SLOT_LEAVING, /* its version was dropped; readers hold it */
	/*
	 * ... without a lease: the kernel says that somebody maps it or has it open; of a GPU's memory, what the
	 * GPU has free, since it did not come back.
	 */
	WEIGHTD_SLOT_ORPHAN,
};

struct weightd_slot_info {
	size_t size; /* of this struct as the library knows it */
	const char *name; /* of the buffer, also after it was removed */
	const char *device;
	uint64_t slot; /* id */
	uint64_t version; /* 0: not published */
	uint64_t n_bytes; /* of the slot */
	uint64_t allocated; /* of them, with memory behind them */
	uint64_t huge_bytes; /* of them, in huge pages, when they were made */
	enum weightd_slot_state state;
	uint32_t n_readers;
	uint32_t uid; /* who is charged */
	bool removed; /* the buffer is gone */
};

#define WEIGHTD_UNLIMITED UINT64_MAX

/* What a user holds, and may. */
struct weightd_user_info {
	size_t size; /* of this struct as the library knows it */
	uint32_t uid;
	uint64_t n_connections, max_connections;
	uint64_t n_readers, max_readers;
	uint64_t n_buffers, max_buffers;
	uint64_t n_versions, max_versions;
	uint64_t n_bytes, max_bytes; /* of slots and layouts */
	uint64_t n_descriptors, max_descriptors; /* kept by the service manager */
};

/* Where memory can be. */
struct weightd_device_info {
	size_t size; /* of this struct as the library knows it */
	const char *device; /* "host", "cuda:GPU-<uuid>", "cuda:MIG-<uuid>"; "cuda" with a `why`: there is none */
	const char *name; /* "NVIDIA H100 80GB HBM3" */
	const char *why; /* "", or why it cannot be used, as a sentence */
	uint64_t total, free; /* bytes, of everybody's */
	uint64_t ours; /* of them, in the server's slots */
	uint64_t granularity; /* bytes: memory comes in multiples of it */
	uint32_t index; /* of a GPU: its number for nvidia-smi, in the order of PCI addresses */
	uint32_t driver; /* the newest CUDA that the driver knows, 13000 for 13.0; 0 for the host */
	uint32_t capability; /* of the GPU, 90 for 9.0 */
	bool vmm; /* buffers can be made there, */
	bool ipc; /* ... of the older kind, for a consumer that opens a cudaIpcMemHandle_t */
	bool fabric; /* handles reach other nodes, over NVLink */
	bool rdma; /* network cards can reach what is made there */
	bool mig; /* it is a part of a GPU */
};

/*
 * How the server calls the device of any spelling, to compare with what listings and events have. -EINVAL: it is
 * no device; -ENODEV: there is no such GPU.
 */
int weightd_device_name(struct weightd *w, const char *device, char ret[WEIGHTD_DEVICE_MAX + 1]);

struct weightd_list;

/* All buffers, or those called `name`, ordered by name and device. The caller frees the result. */
int weightd_list(struct weightd *w, const char *name, struct weightd_list **ret);
/* The versions of one buffer that exist, oldest first. `device` NULL: "host". */
int weightd_list_versions(struct weightd *w, const char *name, const char *device,
			  struct weightd_list **ret);
/*
 * The versions of one buffer that are there and those that were, oldest first, as far as the server
 * remembers (the last 64).
 */
int weightd_list_history(struct weightd *w, const char *name, const char *device,
			 struct weightd_list **ret);
/* All slots of buffers that the caller may read or owns; all of one buffer for a `name`. */
int weightd_list_slots(struct weightd *w, const char *name, struct weightd_list **ret);
/* What is charged to the caller; to everybody, for administrators. */
int weightd_list_users(struct weightd *w, struct weightd_list **ret);
/*
 * The host, then the GPUs in the order of their indices; where GPUs cannot be used, one record that says why.
 * Blocks while the server asks the driver, for which it may have to start a program that takes some of each
 * GPU's memory. Unless it is to be asked `now`, it tells what it has found out before, where it has: the GPUs
 * are the same, what is free in them may be old.
 */
int weightd_list_devices(struct weightd *w, bool now, struct weightd_list **ret);
void weightd_list_free(struct weightd_list *l);
size_t weightd_list_count(const struct weightd_list *l);
/* NULL when `i` is out of range or the list holds the other kind. Owned by the list. */
const struct weightd_buffer_info *weightd_list_buffer(const struct weightd_list *l, size_t i);
const struct weightd_version_info *weightd_list_version(const struct weightd_list *l, size_t i);
const struct weightd_slot_info *weightd_list_slot(const struct weightd_list *l, size_t i);
const struct weightd_user_info *weightd_list_user(const struct weightd_list *l, size_t i);
const struct weightd_device_info *weightd_list_device(const struct weightd_list *l, size_t i);

/* The memory of the server as a whole; an engine may size its caches by it. */
struct weightd_stat {
	size_t size; /* set by the caller */
	uint64_t headroom; /* bytes that the server would still hand out, now */
	uint64_t slot_bytes; /* in slots, whatever their state */
	uint64_t kept_bytes; /* of them, of old versions that go as soon as a create needs the room */
	uint64_t leaving_bytes; /* of them, of versions that were dropped and are still read */
	uint64_t orphan_bytes; /* of them, of versions that were dropped and are still mapped, without a lease */
	uint64_t layout_bytes;
	uint64_t n_quarantined; /* descriptors that came back from the service manager and match nothing */
	uint64_t store_used; /* descriptors that the service manager keeps */
	uint64_t store_max; /* 0: nobody keeps any: the weights end with the server */
};

int weightd_stat(struct weightd *w, struct weightd_stat *ret);

/*
 * Blocks until version `version` of the buffer or a later one is the current one, and can be attached (0: any);
 * the buffer need not exist yet. timeout_ms < 0: for ever. -ETIMEDOUT.
 */
int weightd_wait(struct weightd *w, const char *name, const char *device, uint64_t version,
		 int timeout_ms, uint64_t *ret_version);

/*
 * Removes a buffer (`version` 0) or one version of it. For its owner and administrators. Who has it attached
 * keeps reading it; the memory is freed when the last of them lets go. -EBUSY for the current version:
 * publish another one, roll back, or remove the buffer.
 */
int weightd_drop(struct weightd *w, const char *name, const char *device, uint64_t version);

/*
 * Makes version `version`, which the buffer still keeps, the current one; 0: the newest that is older than
 * the current one. Needs permission to write. The next publish is newer than all. -ENOENT when it is gone,
 * -EAGAIN and -EUCLEAN as for weightd_attach().
 */
int weightd_rollback(struct weightd *w, const char *name, const char *device, uint64_t version,
		     uint64_t *ret_version);

/*
 * Changes who may do what: the owner and administrators may change mode and gid (to a group the caller is
 * in), administrators also the uid; a mode is 0666 at most. -1 leaves what there is. In force from the next
 * attach on.
 */
int weightd_set_access(struct weightd *w, const char *name, const char *device, int64_t mode,
		       int64_t uid, int64_t gid);

enum weightd_event_kind {
	WEIGHTD_EVENT_CREATED = 1, /* the buffer */
	WEIGHTD_EVENT_PUBLISHED,
	WEIGHTD_EVENT_ROLLED_BACK, /* `version` is current again */
	WEIGHTD_EVENT_VERSION_GONE,
	WEIGHTD_EVENT_REMOVED, /* the buffer */
	WEIGHTD_EVENT_UPDATING, /* readers are asked to pause */
	WEIGHTD_EVENT_TORN,
	WEIGHTD_EVENT_ACCESS, /* mode or owner changed */
	WEIGHTD_EVENT_EVICTED, /* a reader that did not pause */
	WEIGHTD_EVENT_MISSED, /* too slow: events before this one are not known */
	WEIGHTD_EVENT_RESTARTED, /* the server; events of the time between are not known */
};

/* "created", "published", "rolled-back", ...; NULL for an unknown one. */
const char *weightd_event_name(enum weightd_event_kind kind);

struct weightd_event {
	size_t size; /* set by the caller */
	enum weightd_event_kind kind;
	const char *name; /* of the buffer; "" for MISSED and RESTARTED; valid until the next call */
	const char *device;
	uint64_t serial;
	uint64_t time_ns; /* CLOCK_REALTIME */
	uint64_t version;
	enum weightd_end end; /* of VERSION_GONE */
	uint32_t uid, pid; /* of the client that caused it; both 0 if weightd did by itself */
};

struct weightd_watch;

/* Watches the buffers that the caller may read or owns, from now on, on a connection of its own. */
int weightd_watch_new(struct weightd *w, struct weightd_watch **ret);
/*
 * Waits for the next event. timeout_ms < 0: for ever. -ETIMEDOUT. The sentence of a failure is on the
 * connection that the watch was made from.
 */
int weightd_watch_next(struct weightd_watch *watch, int timeout_ms, struct weightd_event *ret);
void weightd_watch_free(struct weightd_watch *watch);

#ifdef __cplusplus
}
#endif

#endif
