/*
 * The protocol
 *
 * SOCK_SEQPACKET on a Unix socket: one message is one packet, a header and one fixed-size body, with at
 * most WIRE_FDS_MAX descriptors beside it. The client asks, the server answers, strictly in turn; the
 * first request is WIRE_HELLO. A layout travels as a sealed memfd, which the client made and pays for; a
 * listing comes in pages, since a memfd of the server's would be its memory for as long as a client likes.
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
	WIRE_OP_END,

	WIRE_ERROR = 0x7fff, /* with WIRE_REPLY: the answer to any request that failed */
};

struct wire_header {
	uint32_t size; /* of the whole message */
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

/* --- hello: who speaks, and in which version --- */
struct wire_hello {
	uint32_t version;
	uint32_t pad;
	uint64_t features; /* bits both ends know; none yet */
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

/* --- ping --- */
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

/* --- create: descriptor 0 is the sealed layout. The reply carries the slot: writable, read-only --- */
#define WIRE_CREATE_NEW_LAYOUT 1u /* the layout may differ from the newest version's */

struct wire_create {
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	uint32_t mode; /* of a new buffer */
	uint32_t keep; /* 0: the server's default */
	uint32_t flags;
	uint32_t pad;
};
static_assert(sizeof(struct wire_create) == 208, "wire_create is ABI");

struct wire_create_reply {
	uint64_t writer; /* id of the unpublished version, for publish, abort and detach */
	uint64_t buffer;
	uint64_t version; /* the number it will get */
	uint64_t data_size; /* bytes of the flat range */
	uint64_t slot_size; /* data, then the digest leaves; see digest_leaves_offset() */
};
static_assert(sizeof(struct wire_create_reply) == 40, "wire_create_reply is ABI");

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

/* --- abort, detach: end a writer, a lease --- */
struct wire_id {
	uint64_t id;
};

/* --- attach: the reply carries layout, head page and slot, all read-only --- */
#define WIRE_ATTACH_CHECK_LAYOUT 1u /* layout_hash must match */

struct wire_attach {
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	uint64_t version; /* 0: the newest */
	uint64_t buffer; /* id of the buffer it must still be, 0: any */
	uint32_t flags;
	uint32_t pad;
	uint8_t layout_hash[WIRE_HASH_SIZE];
};
static_assert(sizeof(struct wire_attach) == 232, "wire_attach is ABI");

#define WIRE_VERSION_DIGEST 1u /* the version was published with a digest */

struct wire_attach_reply {
	uint64_t lease;
	uint64_t buffer;
	uint64_t version;
	uint64_t data_size;
	uint64_t slot_size;
	uint32_t flags;
	uint32_t pad;
	uint8_t layout_hash[WIRE_HASH_SIZE];
	uint8_t digest[WIRE_HASH_SIZE];
};
static_assert(sizeof(struct wire_attach_reply) == 80, "wire_attach_reply is ABI");

/* --- wait: the reply comes with the version, or with -ETIMEDOUT --- */
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

/* --- list: the reply carries as many records as it has room for, and where to go on --- */
enum wire_list_kind {
	WIRE_LIST_BUFFERS = 1, /* of all names, or of `name` on all devices */
	WIRE_LIST_VERSIONS = 2, /* of one buffer */
};

struct wire_list {
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	uint64_t after; /* `next` of the reply before; 0: from the start */
	uint32_t kind;
	uint32_t pad;
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
	uint64_t version; /* newest, 0 for none */
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
	uint32_t pad;
	uint8_t layout_hash[WIRE_HASH_SIZE];
	uint8_t digest[WIRE_HASH_SIZE];
};
static_assert(sizeof(struct wire_buffer_record) == 304, "wire_buffer_record is ABI");

struct wire_version_record {
	uint64_t version;
	uint64_t n_tensors;
	uint64_t data_size;
	uint64_t slot_bytes;
	uint64_t huge_bytes;
	uint64_t published_ns;
	uint32_t n_leases;
	uint32_t uid;
	uint32_t current;
	uint32_t pad;
	uint8_t layout_hash[WIRE_HASH_SIZE];
	uint8_t digest[WIRE_HASH_SIZE];
};
static_assert(sizeof(struct wire_version_record) == 96, "wire_version_record is ABI");

/* --- drop --- */
struct wire_drop {
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	uint64_t version; /* 0: the buffer */
};
static_assert(sizeof(struct wire_drop) == 200, "wire_drop is ABI");

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little-endian");
