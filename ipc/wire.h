/*
 * The protocol
 *
 * SOCK_SEQPACKET on a Unix socket: one message is one packet, a header and one fixed-size body, with at
 * most WIRE_FDS_MAX descriptors beside it. The client sends a request and the server a reply, strictly in
 * turn; the first request is WIRE_HELLO, or WIRE_HELLO_ATTACH. A layout is sent as a sealed memfd, which the client
 * creates and is charged for. Listings are sent in pages: a client could hold a memfd of the server's for ever.
 *
 * Integers are little-endian like every machine weightd runs on; strings are NUL-padded to their field
 * and always terminated; padding is zero. A changed meaning is a new opcode. Unknown opcode, wrong
 * size, wrong number of descriptors: the server closes the connection.
 */
#pragma once

#include <assert.h>
#include <stdint.h>

#define WIRE_VERSION 1

#define WIRE_MESSAGE_MAX 4096
#define WIRE_FDS_MAX 4
#define WIRE_NAME_SIZE 128
#define WIRE_DEVICE_SIZE 64
#define WIRE_TEXT_SIZE 512
#define WIRE_HASH_SIZE 16

#define WIRE_REPLY 0x8000 /* set in the opcode of a reply */

enum wire_op {
	WIRE_HELLO = 1,
	WIRE_PING = 2,
	WIRE_CREATE = 3,
	WIRE_PUBLISH = 4,
	WIRE_ABORT = 5,
	WIRE_ATTACH = 6,
	WIRE_DETACH = 7,
	WIRE_WAIT = 8,
	WIRE_LIST = 9,
	WIRE_DROP = 10,
	WIRE_RESUME = 11,
	WIRE_RENEW = 12,
	WIRE_ROLLBACK = 13,
	WIRE_ACCESS = 14,
	WIRE_PAUSE = 15,
	WIRE_EVENTS = 16,
	WIRE_STAT = 17,
	WIRE_LAYOUT = 18,
	WIRE_CREATE_IMAGE = 19,
	WIRE_PROOF = 20,
	WIRE_SET_FILES = 21,
	WIRE_FILES = 22,
	WIRE_JOB_CREATE = 23,
	WIRE_JOB_JOIN = 24,
	WIRE_JOB_PART = 25,
	WIRE_JOB_DESCRIPTION = 26,
	WIRE_JOB_LEAVE = 27,
	WIRE_JOB_REMOVE = 28,
	WIRE_JOB_VIEW = 29,
	WIRE_CREATE_OWNED = 30,
	WIRE_CREATE_IMAGE_OWNED = 31,
	WIRE_HELLO_ATTACH = 32,
	WIRE_PROVIDE = 33,
	WIRE_PUBLISH_SHARED = 34,
	WIRE_NUMA = 35,
	WIRE_OP_END,

	WIRE_HELLO_ERROR =
		0x7ffe, /* with WIRE_REPLY: the answer to WIRE_HELLO_ATTACH if only the attach failed */
	WIRE_ERROR = 0x7fff, /* with WIRE_REPLY: the answer to any request that failed */
};

struct wire_header {
	uint32_t size; /* bytes of the whole message */
	uint16_t op;
	uint16_t n_fds;
	uint64_t serial; /* chosen by the client, repeated in the reply */
};
static_assert(sizeof(struct wire_header) == 16, "wire_header is ABI");

struct wire_error {
	int32_t error; /* negative errno */
	uint32_t pad;
	char text[WIRE_TEXT_SIZE];
};
static_assert(sizeof(struct wire_error) == 520, "wire_error is ABI");

/* --- hello: the client's program and the version of the protocol --- */
#define WIRE_FEATURE_SURVIVES                                                                      \
	1u /* the server's: when it dies it is started again, with all it had */
#define WIRE_FEATURE_LAYOUT 2u /* the server's: it answers WIRE_LAYOUT */
#define WIRE_FEATURE_IMAGE                                                                         \
	4u /* both ends': images, files, and the requests of both; a client without it attaches no image */

#define WIRE_FEATURE_JOBS 8u /* the server's: it answers the requests about jobs */
#define WIRE_FEATURE_JOB_VIEW 16u /* the server's: it answers WIRE_JOB_VIEW */
#define WIRE_FEATURE_OWNER                                                                         \
	32u /* both ends': requests name the owner of a buffer, and the reply to attach has it */
#define WIRE_FEATURE_COSTS 64u /* the server's: it has the list WIRE_LIST_COSTS */
#define WIRE_FEATURE_HOLDERS 128u /* the server's: it has the list WIRE_LIST_HOLDERS */
#define WIRE_FEATURE_HEALTH 256u /* the server's: it has the list WIRE_LIST_HEALTH */
#define WIRE_FEATURE_PROVIDE 512u /* the server's: it answers WIRE_PROVIDE */
#define WIRE_FEATURE_SHARE 1024u /* the server's: it answers WIRE_PUBLISH_SHARED */
#define WIRE_FEATURE_NUMA 2048u /* the server's: it answers WIRE_NUMA */

struct wire_hello {
	uint32_t version;
	uint32_t pad;
	uint64_t features; /* bits that both ends support */
	char program[32];
};
static_assert(sizeof(struct wire_hello) == 48, "wire_hello is ABI");

struct wire_hello_reply {
	uint32_t version;
	uint32_t pid;
	uint64_t features;
	uint64_t instance; /* random, new at each start of the server */
	char release[32];
};
static_assert(sizeof(struct wire_hello_reply) == 56, "wire_hello_reply is ABI");

/* --- ping: the identity of the server, and its counters --- */
struct wire_ping_reply {
	uint64_t instance;
	uint64_t uptime_ns;
	uint64_t n_buffers;
	uint64_t n_sessions;
	uint64_t n_leases;
	uint64_t n_bytes;
	uint32_t pid;
	uint32_t pad;
	char release[32];
};
static_assert(sizeof(struct wire_ping_reply) == 88, "wire_ping_reply is ABI");

/*
 * --- create: descriptor 0 is the sealed layout. The reply carries the slot: writable, read-only. ---
 * For an existing exclusive buffer, and with WIRE_CREATE_REPLACE, the server replies once the readers have
 * paused. If the reply is lost with the connection, the client sends the create again with the same cookie.
 */
#define WIRE_CREATE_NEW_LAYOUT 1u /* the layout may differ from the newest version's */
#define WIRE_CREATE_EXCLUSIVE 2u /* new buffer: one slot, written in place */
#define WIRE_CREATE_REUSABLE 4u /* new buffer: slots are not sealed, and used again */
#define WIRE_CREATE_REPLACE 8u /* free the version there is first, for want of room */
#define WIRE_CREATE_IPC 16u /* new buffer: GPU memory of the older kind, WIRE_MEMORY_CUDA_IPC */
#define WIRE_CREATE_EARLY                                                                          \
	32u /* the server may reply once the first part of the memory is there; see provide */

/* Policies for a reader that has not paused in time. */
enum wire_policy {
	WIRE_POLICY_WAIT = 0, /* the writer gets -ETIMEDOUT, and nothing happened */
	WIRE_POLICY_EVICT = 1, /* it loses its lease: what it reads is torn */
	WIRE_POLICY_KILL = 2, /* ... and its process gets SIGKILL, if the writer may send it one */
};

struct wire_create {
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	uint64_t cookie; /* random, never 0 */
	int64_t timeout_ms; /* time for readers to pause; < 0: for ever */
	uint32_t mode; /* mode of a new buffer */
	uint32_t keep; /* 0: the server's default */
	uint32_t flags;
	uint32_t policy;
};
static_assert(sizeof(struct wire_create) == 224, "wire_create is ABI");

/*
 * Kinds of a slot's memory, and the use of its descriptor. A device is "host" or
 * "cuda:GPU-<uuid>" or "cuda:MIG-<uuid>" here: ordinals mean something else in each process, and are the
 * client's to translate.
 */
enum wire_memory {
	WIRE_MEMORY_HOST = 0, /* the descriptor is a memfd, to be mapped */
	WIRE_MEMORY_CUDA = 1, /* it is a handle of GPU memory, to be imported */
	WIRE_MEMORY_CUDA_IPC =
		2, /* it reads as ended once the memory is lost; `handle` is to be opened */
	WIRE_MEMORY_END,
};

#define WIRE_UUID_SIZE 16
#define WIRE_HANDLE_SIZE 64

struct wire_location {
	uint32_t memory; /* enum wire_memory */
	uint32_t pad;
	uint64_t map_size; /* bytes of the allocation: the slot's, rounded up to what the device maps */
	uint8_t uuid[WIRE_UUID_SIZE]; /* UUID of the GPU, or of the part of one; zero for host memory */
	uint8_t handle[WIRE_HANDLE_SIZE]; /* CUDA_IPC: a cudaIpcMemHandle_t; else zero */
};
static_assert(sizeof(struct wire_location) == 96, "wire_location is ABI");

struct wire_create_reply {
	uint64_t writer; /* id of the unpublished version, for publish, abort and detach */
	uint64_t buffer;
	uint64_t version; /* the number it will get */
	uint64_t data_size; /* bytes of the flat range */
	uint64_t slot_size; /* data, then the digest leaves; of an image: data_offset, then data */
	uint32_t flags; /* flags of the buffer: WIRE_BUFFER_* */
	uint32_t n_parts; /* parts of WIRE_PART_SIZE at the start that have memory; 0: all of the slot has */
	struct wire_location location;
};
static_assert(sizeof(struct wire_create_reply) == 144, "wire_create_reply is ABI");

#define WIRE_PART_SIZE ((uint64_t)2 << 20) /* bytes; the last part may be shorter */

/*
 * --- provide: more memory for a version created with WIRE_CREATE_EARLY, from the start of the slot to the end. ---
 * The server makes memory in the time of this request alone, and replies once the first `until` bytes of the slot have
 * it. The client must not touch bytes beyond those: it would be charged for their memory, and not the server. The version
 * exists from the reply that `done` is the size of the slot in: only then it can be published, and survives a restart of
 * the server. An error ends the version, as that of a create does.
 */
struct wire_provide {
	uint64_t writer;
	uint64_t until;
};
static_assert(sizeof(struct wire_provide) == 16, "wire_provide is ABI");

struct wire_provide_reply {
	uint64_t done; /* bytes at the start of the slot that have memory */
};

/*
 * --- numa: NUMA nodes of host memory that the server makes for later creates of this connection. ---
 * Without it, pages are on the nodes of the server's threads that make them. The policy stays until the next such request.
 * -EINVAL: the server may not use memory of one of the nodes; -EPERM: a filter of system calls forbids it policies.
 */
enum wire_numa_mode { /* numbers of the kernel's: see mbind(2) */
	WIRE_NUMA_DEFAULT = 0, /* no policy */
	WIRE_NUMA_PREFERRED = 1, /* the nodes while they have free memory */
	WIRE_NUMA_BIND = 2, /* the nodes alone: -ENOMEM when they have none */
	WIRE_NUMA_INTERLEAVE =
		3, /* the nodes in turn, a huge page or a page each; no nodes: all that the server may use */
	WIRE_NUMA_END,
};

#define WIRE_NUMA_NODES_MAX 1024

struct wire_numa {
	uint32_t mode; /* enum wire_numa_mode */
	uint32_t pad;
	uint64_t nodes[WIRE_NUMA_NODES_MAX / 64]; /* bit n % 64 of nodes[n / 64]: node n */
};
static_assert(sizeof(struct wire_numa) == 136, "wire_numa is ABI");

/*
 * --- create image: like create, for a version that is a file: a header of data_offset bytes, then the data. ---
 * The reply is that of create, with a third descriptor: the version's digests, writable, which the client writes
 * before it publishes; see digest.h. -EMEDIUMTYPE: the buffer is exclusive, reusable or on a GPU, and can only
 * have versions of the flat form.
 */
struct wire_create_image {
	struct wire_create create;
	uint64_t data_offset; /* 1 to WIRE_DATA_OFFSET_MAX */
};
static_assert(sizeof(struct wire_create_image) == 232, "wire_create_image is ABI");

#define WIRE_DATA_OFFSET_MAX ((uint64_t)128 << 20)

/*
 * --- create owned, create image owned: like create and create image, for a buffer that must belong to `owner`. ---
 * The requests without an owner are for buffers of the client's user: -EPERM for another user's. A buffer that does not
 * exist is made for the client's user alone: -ENOENT for another owner.
 */
struct wire_create_owned {
	struct wire_create create;
	uint64_t data_offset; /* like create image; 0 for create owned */
	uint32_t owner; /* uid */
	uint32_t pad;
};
static_assert(sizeof(struct wire_create_owned) == 240, "wire_create_owned is ABI");

#define WIRE_BUFFER_EXCLUSIVE 1u
#define WIRE_BUFFER_REUSABLE 2u
#define WIRE_BUFFER_IPC 4u

/* --- set files: descriptor 0 is a sealed memfd with the files of an unpublished version. --- */
/*
 * The server never looks into it: see libclient/image/files.h. Replaces what the writer had: at first the files of
 * the newest version. The reply comes once the service manager has the descriptor.
 */
#define WIRE_FILES_MAX ((uint64_t)80 << 20) /* bytes of the memfd */

/* --- files: the files of a version, for a client that may read it. The reply carries the memfd. -ENODATA: none. --- */
struct wire_files {
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	uint64_t version; /* 0: the current one; one that was removed since, if the client has a lease on it */
};
static_assert(sizeof(struct wire_files) == 200, "wire_files is ABI");

struct wire_files_reply {
	uint64_t version;
};

/*
 * --- layout: the layout of a version, for a client that may read or write it. The reply carries the memfd ---
 * and no lease. A create is measured by the layout of the newest version.
 */
struct wire_layout {
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	uint64_t version; /* 0: the newest, which after a rollback is not the current one */
};
static_assert(sizeof(struct wire_layout) == 200, "wire_layout is ABI");

struct wire_layout_reply {
	uint64_t version;
	uint32_t flags; /* flags of the buffer: WIRE_BUFFER_* */
	uint32_t data_offset; /* of an image, for a client with WIRE_FEATURE_IMAGE; else 0 */
	uint8_t layout_hash[WIRE_HASH_SIZE];
};
static_assert(sizeof(struct wire_layout_reply) == 32, "wire_layout_reply is ABI");

/* --- publish: afterwards the writer's id is a lease on the version --- */
#define WIRE_PUBLISH_DIGEST 1u /* digest is valid and the leaves stand behind the data */

struct wire_publish {
	uint64_t writer;
	uint32_t flags;
	uint32_t pad;
	uint8_t digest[WIRE_HASH_SIZE];
};
static_assert(sizeof(struct wire_publish) == 32, "wire_publish is ABI");

struct wire_publish_reply {
	uint64_t version;
};

/*
 * --- publish shared: like publish, in the memory of a version that the client has attached and found to be the same. ---
 * The lease is of this connection. Layout, form and digest of both versions must be the same, and both in sealed host memory,
 * else -EXDEV; the server does not read the bytes. The writer's memory is freed once the client has unmapped and closed it. The
 * memory of the other version is charged to the writer's user too, and exists until both versions are freed. After an error
 * the writer exists as before, and can publish; after a restart of the server it may be either.
 */
struct wire_publish_shared {
	uint64_t writer;
	uint64_t lease;
	uint8_t digest[WIRE_HASH_SIZE];
};
static_assert(sizeof(struct wire_publish_shared) == 32, "wire_publish_shared is ABI");

/* --- abort, detach: abort ends a writer, detach a lease --- */
struct wire_id {
	uint64_t id;
};

/* --- attach: the reply carries layout, head page and slot, all read-only --- */
#define WIRE_ATTACH_CHECK_LAYOUT 1u /* layout_hash must match */
#define WIRE_ATTACH_OWNER 2u /* the buffer must belong to `owner`, else -EPERM */

struct wire_attach {
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	uint64_t version; /* 0: the newest */
	uint64_t buffer; /* id of the buffer it must still be, 0: any */
	uint32_t flags;
	uint32_t owner; /* uid; 0 without WIRE_ATTACH_OWNER */
	uint8_t layout_hash[WIRE_HASH_SIZE];
};
static_assert(sizeof(struct wire_attach) == 232, "wire_attach is ABI");

#define WIRE_VERSION_DIGEST 1u /* the version was published with a digest */
#define WIRE_VERSION_MUTABLE 2u /* it is of an exclusive buffer: read it between begin and retry */
#define WIRE_VERSION_IMAGE                                                                         \
	4u /* the data begin at slot_size - data_size, behind a header; see digest.h */
#define WIRE_VERSION_FILES 8u /* it has files; see WIRE_FILES */

struct wire_attach_reply {
	uint64_t lease;
	uint64_t buffer;
	uint64_t version;
	uint64_t data_size;
	uint64_t slot_size;
	uint32_t flags;
	uint32_t uid; /* owner of the buffer, if both ends have WIRE_FEATURE_OWNER; else 0 */
	uint8_t layout_hash[WIRE_HASH_SIZE];
	uint8_t digest[WIRE_HASH_SIZE];
	struct wire_location location;
};
static_assert(sizeof(struct wire_attach_reply) == 176, "wire_attach_reply is ABI");

/*
 * --- hello attach: hello and attach in one request, the first of a connection. ---
 * The reply is that of attach, with the server's hello behind it. If only the attach failed, it is WIRE_HELLO_ERROR,
 * which has the server's hello too, and the connection continues as after hello; after WIRE_ERROR it had no hello. A server
 * that does not know the request closes the connection without a reply: the client connects again and sends hello.
 */
struct wire_hello_attach {
	struct wire_attach attach;
	struct wire_hello hello;
};
static_assert(sizeof(struct wire_hello_attach) == 280, "wire_hello_attach is ABI");

struct wire_hello_attach_reply {
	struct wire_attach_reply attach;
	struct wire_hello_reply hello;
};
static_assert(sizeof(struct wire_hello_attach_reply) == 232, "wire_hello_attach_reply is ABI");

struct wire_hello_error {
	struct wire_error error;
	struct wire_hello_reply hello;
};
static_assert(sizeof(struct wire_hello_error) == 576, "wire_hello_error is ABI");

/*
 * --- proof: what else it takes to verify the version of a lease (struct wire_id), which is an image. ---
 * The reply carries the digests and the slot, both read-only.
 */

/* --- wait: the reply has the version, or -ETIMEDOUT --- */
struct wire_wait {
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	uint64_t version; /* this one or a later one; 0: any */
	int64_t timeout_ms; /* < 0: for ever */
};
static_assert(sizeof(struct wire_wait) == 208, "wire_wait is ABI");

struct wire_wait_reply {
	uint64_t version;
};

/* --- resume: continues a writer after its connection ended with the server --- */
struct wire_resume_reply {
	uint64_t buffer;
	uint64_t version; /* 0: not published yet, go on; else it is, and the id is a lease on it */
};
static_assert(sizeof(struct wire_resume_reply) == 16, "wire_resume_reply is ABI");

/* --- renew: a new lease on what the client still maps, after its connection ended with the server --- */
struct wire_renew {
	uint64_t buffer;
	uint64_t version;
};

struct wire_renew_reply {
	uint64_t lease;
};

/* --- rollback: makes a kept version the current one. Not relative: sent twice it does the same --- */
struct wire_rollback {
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	uint64_t version; /* 0: the newest that is older than the current one */
};
static_assert(sizeof(struct wire_rollback) == 200, "wire_rollback is ABI");

struct wire_rollback_reply {
	uint64_t version;
};

/* --- access: changes mode and owner of a buffer --- */
#define WIRE_ACCESS_MODE 1u
#define WIRE_ACCESS_UID 2u
#define WIRE_ACCESS_GID 4u

struct wire_access {
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	uint32_t flags; /* members to set, WIRE_ACCESS_* */
	uint32_t mode, uid, gid;
};
static_assert(sizeof(struct wire_access) == 208, "wire_access is ABI");

/*
 * --- pause: a reader has stopped reading, because the head has state UPDATING. ---
 * The server replies when it may continue, with the version to read; or with -ETIMEDOUT, and the pause still
 * holds. Without an update the reply is immediate.
 */
struct wire_pause {
	uint64_t lease;
	int64_t timeout_ms; /* < 0: for ever */
};
static_assert(sizeof(struct wire_pause) == 16, "wire_pause is ABI");

struct wire_pause_reply {
	uint64_t version;
	uint32_t flags; /* WIRE_VERSION_* */
	uint32_t pad;
	uint8_t layout_hash[WIRE_HASH_SIZE];
	uint8_t digest[WIRE_HASH_SIZE];
};
static_assert(sizeof(struct wire_pause_reply) == 48, "wire_pause_reply is ABI");

/*
 * --- events: what happened since, as pages of wire_event_record; waits when there is nothing yet. ---
 * The server remembers the last WIRE_EVENTS_KEPT. Events of buffers the client may neither read nor owns
 * are left out, which is why `next` can move without a record.
 */
#define WIRE_EVENTS_KEPT 1024

struct wire_events {
	uint64_t after; /* `next` of the reply before; 0: what is remembered; UINT64_MAX: from now on */
	int64_t timeout_ms; /* < 0: for ever; then -ETIMEDOUT */
};
static_assert(sizeof(struct wire_events) == 16, "wire_events is ABI");

enum wire_event {
	WIRE_EVENT_CREATED = 1, /* the buffer */
	WIRE_EVENT_PUBLISHED,
	WIRE_EVENT_ROLLED_BACK, /* `version` is current again */
	WIRE_EVENT_VERSION_GONE, /* `why` has the reason */
	WIRE_EVENT_REMOVED, /* the buffer */
	WIRE_EVENT_UPDATING, /* readers are asked to pause */
	WIRE_EVENT_TORN,
	WIRE_EVENT_ACCESS, /* mode or owner changed */
	WIRE_EVENT_EVICTED, /* a reader that did not pause */
	WIRE_EVENT_MISSED, /* the server does not remember all since `after` */
	WIRE_EVENT_END,
};

struct wire_event_record {
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	uint64_t serial;
	uint64_t time_ns; /* CLOCK_REALTIME */
	uint64_t version;
	uint32_t event;
	uint32_t why; /* enum wire_end */
	uint32_t uid; /* user of the client that caused it */
	uint32_t pid;
};
static_assert(sizeof(struct wire_event_record) == 232, "wire_event_record is ABI");

/* --- list: the reply carries as many records as it has room for, and where to go on --- */
enum wire_list_kind {
	WIRE_LIST_BUFFERS = 1, /* all buffers, or those with the name `name` on all devices */
	WIRE_LIST_VERSIONS = 2, /* present versions of one buffer */
	WIRE_LIST_HISTORY = 3, /* versions of one buffer, and the former ones it remembers */
	WIRE_LIST_SLOTS = 4, /* all memory of buffers the client may read or owns */
	WIRE_LIST_USERS = 5, /* charges of each user; without administration, only the client's own */
	WIRE_LIST_DEVICES = 6, /* devices for buffers; may wait for the allocator of GPU memory */
	WIRE_LIST_JOBS =
		7, /* all jobs, or the one with the name `name`; without administration, only the client's own */
	WIRE_LIST_COSTS = 8, /* costs of each user to the server; likewise */
	WIRE_LIST_HOLDERS = 9, /* users charged for memory that only readers keep; likewise */
	WIRE_LIST_HEALTH = 10, /* one record about the server itself */
};

#define WIRE_LIST_KNOWN                                                                            \
	1u /* DEVICES: the server may answer from its last look; `free` may be old */

struct wire_list {
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	uint64_t after; /* `next` of the reply before; 0: from the start */
	uint32_t kind;
	uint32_t flags;
};
static_assert(sizeof(struct wire_list) == 208, "wire_list is ABI");

#define WIRE_LIST_SIZE 4032

struct wire_list_reply {
	uint32_t n_records;
	uint32_t record_size;
	uint64_t next; /* 0: that was all */
	uint8_t records[WIRE_LIST_SIZE]; /* zero behind the last */
};
static_assert(sizeof(struct wire_list_reply) == 4048, "wire_list_reply is ABI");

struct wire_buffer_record {
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	uint64_t version; /* current, 0 for none */
	uint64_t n_tensors;
	uint64_t data_size;
	uint64_t slot_bytes;
	uint64_t huge_bytes;
	uint64_t published_ns;
	uint32_t writing;
	uint32_t uid, gid, mode;
	uint32_t keep;
	uint32_t n_versions;
	uint32_t n_leases;
	uint32_t flags; /* WIRE_BUFFER_* */
	uint32_t state; /* enum head_state */
	uint32_t pad;
	uint64_t newest; /* greater than `version` after a rollback */
	uint8_t layout_hash[WIRE_HASH_SIZE];
	uint8_t digest[WIRE_HASH_SIZE];
};
static_assert(sizeof(struct wire_buffer_record) == 320, "wire_buffer_record is ABI");

/* Why a version is no more. */
enum wire_end {
	WIRE_END_NONE, /* it is there */
	WIRE_END_KEEP, /* there were more than the buffer keeps */
	WIRE_END_MEMORY, /* its memory was needed */
	WIRE_END_DROPPED, /* somebody removed it */
	WIRE_END_REWRITTEN, /* in place, or replaced */
	WIRE_END_LOST, /* its memory did not survive a restart, or the process that held it */
	WIRE_END_END,
};

struct wire_version_record {
	uint64_t version;
	uint64_t n_tensors;
	uint64_t data_size;
	uint64_t slot_bytes;
	uint64_t huge_bytes;
	uint64_t published_ns;
	uint64_t ended_ns; /* 0: it is there */
	uint32_t n_leases;
	uint32_t uid; /* user of its writer */
	uint32_t pid;
	uint32_t current;
	uint32_t why; /* enum wire_end */
	uint32_t flags; /* WIRE_VERSION_* */
	uint8_t layout_hash[WIRE_HASH_SIZE];
	uint8_t digest[WIRE_HASH_SIZE];
};
static_assert(sizeof(struct wire_version_record) == 112, "wire_version_record is ABI");

enum wire_slot_state {
	WIRE_SLOT_WRITING = 1,
	WIRE_SLOT_CURRENT,
	WIRE_SLOT_KEPT,
	WIRE_SLOT_LEAVING, /* dropped, and a lease or mapping holds it */
	WIRE_SLOT_ORPHAN, /* dropped, no lease, and yet somebody maps it: by the kernel, or by what a GPU has free */
	WIRE_SLOT_END,
};

struct wire_slot_record {
	char name[WIRE_NAME_SIZE]; /* name of the buffer, also after it was removed */
	char device[WIRE_DEVICE_SIZE];
	uint64_t slot; /* id */
	uint64_t version; /* 0: not published */
	uint64_t size;
	uint64_t allocated; /* bytes that have memory, by fstat */
	uint64_t huge_bytes; /* part of `allocated`, in huge pages when it was allocated */
	uint32_t state; /* enum wire_slot_state */
	uint32_t n_leases;
	uint32_t uid; /* user charged for it */
	uint32_t removed; /* the buffer has lost its name */
};
static_assert(sizeof(struct wire_slot_record) == 248, "wire_slot_record is ABI");

/* In the order of the limits in weightd.conf. */
enum wire_charge {
	WIRE_CHARGE_CONNECTIONS,
	WIRE_CHARGE_LEASES,
	WIRE_CHARGE_BUFFERS,
	WIRE_CHARGE_VERSIONS,
	WIRE_CHARGE_BYTES,
	WIRE_CHARGE_DESCRIPTORS,
	WIRE_CHARGE_END,
};

struct wire_user_record {
	uint32_t uid;
	uint32_t pad;
	uint64_t used[WIRE_CHARGE_END];
	uint64_t limit[WIRE_CHARGE_END]; /* UINT64_MAX: none */
};
static_assert(sizeof(struct wire_user_record) == 104, "wire_user_record is ABI");

#define WIRE_COST_SPANS 20
#define WIRE_COST_SPAN_NS ((uint64_t)15625) /* << 7: 2 ms */

/* Since the server saw the user first, or forgot it: it remembers a few hundred without a connection. */
struct wire_cost_record {
	uint32_t uid;
	uint32_t pad;
	uint64_t n_requests;
	uint64_t loop_ns; /* of the thread that answers requests */
	uint64_t worker_ns; /* of threads that check layouts, make memory and free it */
	uint64_t longest_ns; /* the longest time that one connection was served without a break */
	uint64_t held_bytes; /* memory that exists only because of the user's leases, now */
	uint64_t checking_bytes; /* mapped for layouts being checked, now */
	uint64_t n_refused;
	/*
	 * Requests that were answered at once, by the time from the read of the request to the answer: member
	 * i counts those of at most WIRE_COST_SPAN_NS << i that are not in a member before; the last counts
	 * all others.
	 */
	uint64_t answered[WIRE_COST_SPANS];
};
static_assert(sizeof(struct wire_cost_record) == 224, "wire_cost_record is ABI");

/* A user charged for versions that only readers keep, and the one of them that it was charged for first. */
struct wire_holder_record {
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	uint64_t version;
	uint64_t since_ns; /* CLOCK_REALTIME of the user's first lease on it; 0: none is left, it is mapped without one */
	uint64_t n_bytes; /* of all of them */
	uint64_t limit;
	uint32_t uid;
	uint32_t pid; /* process of that lease; 0: none */
	uint32_t n_versions;
	uint32_t over; /* 1: the user gets no further lease */
};
static_assert(sizeof(struct wire_holder_record) == 240, "wire_holder_record is ABI");

#define WIRE_DEVICE_CUDA 1u /* WIRE_MEMORY_CUDA can be made there */
#define WIRE_DEVICE_IPC 2u /* likewise WIRE_MEMORY_CUDA_IPC */
#define WIRE_DEVICE_FABRIC 4u /* handles reach other nodes, over NVLink */
#define WIRE_DEVICE_RDMA 8u /* memory allocated there can be registered with a network card */
#define WIRE_DEVICE_MIG 16u /* it is a part of a GPU */

struct wire_device_record {
	char device[WIRE_DEVICE_SIZE]; /* "host", "cuda:GPU-..."; "cuda" with a `why`: there is none */
	char name[WIRE_NAME_SIZE]; /* "NVIDIA H100 80GB HBM3" */
	char why[WIRE_TEXT_SIZE / 2]; /* not empty: it cannot be used, and this is the reason */
	uint64_t total, free; /* bytes, of everybody's */
	uint64_t ours; /* bytes in slots and in parts of jobs */
	uint64_t granularity; /* bytes: allocations are multiples of it */
	uint32_t index; /* its number for nvidia-smi, in the order of PCI addresses; 0 for "host" */
	uint32_t flags; /* WIRE_DEVICE_* */
	uint32_t driver; /* newest CUDA release that the driver supports, 13000 for 13.0 */
	uint32_t capability; /* 90 for 9.0 */
};
static_assert(sizeof(struct wire_device_record) == 496, "wire_device_record is ABI");

/* The process that keeps the server's descriptors over its restarts. */
enum wire_keeper {
	WIRE_KEEPER_NONE = 0, /* the buffers end with the server */
	WIRE_KEEPER_MANAGER = 1, /* systemd, or another service manager */
	WIRE_KEEPER_PARENT = 2, /* weightd --keeper */
	WIRE_KEEPER_GONE = 3, /* there was one, and it does not receive messages any more */
};

/* Reasons of error replies. */
enum wire_refusal {
	WIRE_REFUSAL_PERMISSION, /* -EACCES, -EPERM */
	WIRE_REFUSAL_LIMIT, /* -EDQUOT */
	WIRE_REFUSAL_MEMORY, /* -ENOMEM, -ENOSPC */
	WIRE_REFUSAL_DESCRIPTORS, /* -EMFILE, -ENFILE, -ETOOMANYREFS */
	WIRE_REFUSAL_KEEPER, /* -ENOTRECOVERABLE */
	WIRE_REFUSALS,
};

/* Threads of the server beside its loop. */
enum wire_worker {
	WIRE_WORKER_CHECK, /* layouts, and memory that is provided */
	WIRE_WORKER_FREE,
	WIRE_WORKER_SEAL,
	WIRE_WORKER_WAKE, /* readers that sleep */
	WIRE_WORKERS,
};

#define WIRE_LATENCY_BUCKETS 13

/* Durations since the start. Bucket i counts those up to 4^i us, the last one all longer ones. */
struct wire_latency {
	uint64_t sum_ns;
	uint64_t counts[WIRE_LATENCY_BUCKETS];
};

struct wire_health_record {
	uint64_t started_ns; /* CLOCK_REALTIME */
	uint64_t memory; /* of the machine, or as much as its cgroups allow */
	uint64_t reserve; /* left to other programs */
	uint64_t headroom;
	char limit[256]; /* file of the cgroup that limits `headroom`; "": the machine does */
	uint64_t max_descriptors; /* RLIMIT_NOFILE; UINT64_MAX: none */
	uint64_t refused[WIRE_REFUSALS];
	struct wire_latency loop; /* rounds of the loop */
	struct wire_latency workers[WIRE_WORKERS]; /* steps of jobs */
	uint32_t keeper; /* enum wire_keeper */
	uint32_t admin; /* 1: the client may administer buffers of all users */
};
static_assert(sizeof(struct wire_health_record) == 904, "wire_health_record is ABI");

/* --- stat: the server's memory as a whole --- */
struct wire_stat_reply {
	uint64_t headroom; /* bytes that may still be handed out, now */
	uint64_t slot_bytes; /* in slots and in parts of jobs, whatever their state */
	uint64_t kept_bytes; /* part of slot_bytes, freed when a create needs the room */
	uint64_t leaving_bytes; /* part of slot_bytes, held by leases on dropped versions, or of removed jobs */
	uint64_t orphan_bytes; /* part of slot_bytes, held by mappings without a lease */
	uint64_t layout_bytes; /* of layouts and of files beside versions */
	uint64_t n_quarantined; /* descriptors that the service manager returned and that match no buffer */
	uint64_t store_used; /* descriptors kept by the service manager */
	uint64_t store_max; /* 0: the service manager keeps none */
};
static_assert(sizeof(struct wire_stat_reply) == 72, "wire_stat_reply is ABI");

/* --- drop: removes a buffer, or one version of it --- */
struct wire_drop {
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	uint64_t version; /* 0: the buffer */
};
static_assert(sizeof(struct wire_drop) == 200, "wire_drop is ABI");

/*
 * Jobs: host memory that several processes of one user write, its *ranks*.
 *
 * A job has parts, each a memfd with a kind that the server does not interpret. The server owns them, so that
 * they outlive every rank; they are never sealed. Who shows the token and is of the owner's user becomes a
 * rank. A rank is present while its connection exists. Names of jobs and of buffers are independent.
 */
#define WIRE_TOKEN_SIZE 32
#define WIRE_JOB_RANKS_MAX 256
#define WIRE_JOB_PARTS_MAX 16
#define WIRE_KIND_SIZE 16
#define WIRE_DESCRIPTION_MAX ((uint64_t)16 << 20)

/* --- job create: a job without memory, owned by the client's user. -EEXIST: there is one of this name. --- */
struct wire_job_create {
	char name[WIRE_NAME_SIZE];
	uint8_t token[WIRE_TOKEN_SIZE]; /* random, never zero */
	int64_t linger_ms; /* the server removes the job after this time without a rank, from now on; 0: never */
	uint32_t n_ranks; /* 1 to WIRE_JOB_RANKS_MAX, on this server */
	uint32_t pad;
};
static_assert(sizeof(struct wire_job_create) == 176, "wire_job_create is ABI");

/*
 * --- job join: the client becomes a rank. Descriptor 0 is a sealed memfd that describes the job. ---
 * The first join gives the job its parts and its description; later ones must bring the same sizes and the same hash, else
 * -EPROTOTYPE. Replies once the parts have their memory: all or none. -EACCES: wrong token or user; -ENOMEM, -EDQUOT:
 * nothing was kept, and the next join may ask again. The same connection may join again as the same rank.
 *
 * Several connections may join as one rank, which is present while one of them is: the server cannot distinguish a
 * process that is ending from one that lives. The kernel can: a record lock of the client's on byte `rank` of part 0
 * decides which process is the rank, and the other one leaves.
 */
struct wire_job_part {
	char kind[WIRE_KIND_SIZE]; /* 1 to 15 of [A-Z0-9_] */
	uint64_t size; /* bytes, not 0 */
};
static_assert(sizeof(struct wire_job_part) == 24, "wire_job_part is ABI");

struct wire_job_join {
	char name[WIRE_NAME_SIZE];
	uint8_t token[WIRE_TOKEN_SIZE];
	uint8_t hash[WIRE_HASH_SIZE]; /* of the description */
	uint32_t rank;
	uint32_t n_parts; /* 1 to WIRE_JOB_PARTS_MAX */
	struct wire_job_part parts[WIRE_JOB_PARTS_MAX]; /* zero behind the last */
};
static_assert(sizeof(struct wire_job_join) == 568, "wire_job_join is ABI");

struct wire_job_join_reply {
	uint64_t job; /* id */
	uint32_t n_ranks;
	uint32_t n_present; /* ranks, this one included */
};
static_assert(sizeof(struct wire_job_join_reply) == 16, "wire_job_join_reply is ABI");

/* --- job part: the reply carries the writable memfd of one part, for a rank --- */
struct wire_job_index {
	uint64_t job;
	uint32_t index;
	uint32_t pad;
};
static_assert(sizeof(struct wire_job_index) == 16, "wire_job_index is ABI");

/* --- job description: the reply carries the memfd of the first join. -ENODATA: nobody has joined. --- */
struct wire_job_key {
	char name[WIRE_NAME_SIZE];
	uint8_t token[WIRE_TOKEN_SIZE];
};
static_assert(sizeof(struct wire_job_key) == 160, "wire_job_key is ABI");

/*
 * --- job leave: ends the presence of this connection, as closing it does. ---
 * With WIRE_LEAVE_DONE the rank is done. Once all ranks of the job are, the server removes it. A rank that joins again is
 * not done any more.
 */
#define WIRE_LEAVE_DONE 1u

struct wire_job_leave {
	uint64_t job;
	uint32_t flags;
	uint32_t pad;
};
static_assert(sizeof(struct wire_job_leave) == 16, "wire_job_leave is ABI");

/*
 * --- job remove: by its owner or an administrator; processes keep what they have mapped ---
 * The server sets the sticky bit (S_ISVTX) of part 0, by which ranks see without a request that their job was removed.
 */
struct wire_job_remove {
	char name[WIRE_NAME_SIZE];
};
static_assert(sizeof(struct wire_job_remove) == 128, "wire_job_remove is ABI");

/*
 * --- job view: what a process that is no rank may see of a job. By its owner or an administrator. ---
 * The reply carries the memfd of the description, and part 0, read-only. The bytes of part 0 are those of ranks, which may
 * have written anything. -ENODATA: no rank has joined.
 */
struct wire_job_view {
	char name[WIRE_NAME_SIZE];
};
static_assert(sizeof(struct wire_job_view) == 128, "wire_job_view is ABI");

struct wire_job_view_reply {
	uint32_t n_ranks; /* 1 to WIRE_JOB_RANKS_MAX */
	uint32_t pad;
};
static_assert(sizeof(struct wire_job_view_reply) == 8, "wire_job_view_reply is ABI");

struct wire_job_record {
	char name[WIRE_NAME_SIZE];
	uint64_t n_bytes; /* of its parts */
	uint64_t step; /* first eight bytes of part 0, which the ranks write */
	uint64_t created_ns; /* CLOCK_REALTIME */
	uint64_t vacant_ns; /* when the last rank went; 0: there are ranks, or there was none yet */
	int64_t linger_ms;
	uint32_t uid, gid;
	uint32_t n_ranks;
	uint32_t n_present;
	uint32_t n_done; /* ranks that left */
	uint32_t n_parts;
};
static_assert(sizeof(struct wire_job_record) == 192, "wire_job_record is ABI");

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little-endian");
