/*
 * The codec: a table with a row for each message says what a good one is; from each of them every way
 * to be wrong is made.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "ipc/codec.h"

#define SERIAL 0x1122334455667788u
#define FIELDS_MAX 6

/* Bytes of a message's body that must be zero, or that are a string. */
struct field {
	size_t at, size;
};
#define FIELD(type, member)                                                                        \
	{                                                                                          \
		offsetof(struct type, member), sizeof(((struct type *)0)->member)                  \
	}

struct message {
	const char *name;
	enum wire_op op;
	unsigned n_fds;
	size_t body_size;
	struct field strings[FIELDS_MAX]; /* up to one of size 0 */
	struct field paddings[FIELDS_MAX];
	size_t flags_at; /* offset of 32 bits, when there are known_flags */
	bool has_flags;
	uint32_t known_flags;
	void (*fill)(char *body); /* the numbers that have bounds */
};

static void fill_wait(char *body)
{
	((struct wire_wait *)body)->timeout_ms = -5;
}

static void fill_create(char *body)
{
	((struct wire_create *)body)->timeout_ms = -5;
	((struct wire_create *)body)->policy = WIRE_POLICY_KILL;
}

static void fill_create_image(char *body)
{
	fill_create(body);
	((struct wire_create_image *)body)->data_offset = WIRE_DATA_OFFSET_MAX;
}

static void fill_create_owned(char *body)
{
	fill_create(body);
	((struct wire_create_owned *)body)->data_offset = 0;
}

static void fill_attach(char *body)
{
	((struct wire_attach *)body)->owner = 0;
}

static void fill_pause(char *body)
{
	((struct wire_pause *)body)->timeout_ms = INT32_MAX;
}

static void fill_events(char *body)
{
	((struct wire_events *)body)->timeout_ms = INT32_MAX;
}

static void fill_error(char *body)
{
	((struct wire_error *)body)->error = -ENOENT;
}

static void fill_location(struct wire_location *l)
{
	*l = (struct wire_location){.memory = WIRE_MEMORY_CUDA_IPC, .map_size = UINT64_MAX};
	memset(l->uuid, 1, sizeof(l->uuid));
	memset(l->handle, 2, sizeof(l->handle));
}

static void fill_create_reply(char *body)
{
	fill_location(&((struct wire_create_reply *)body)->location);
}

static void fill_attach_reply(char *body)
{
	struct wire_attach_reply *attach = (struct wire_attach_reply *)body;

	fill_location(&attach->location);
	attach->data_size = attach->slot_size;
}

static void fill_layout_reply(char *body)
{
	((struct wire_layout_reply *)body)->data_offset = WIRE_DATA_OFFSET_MAX;
}

static void fill_job_join(char *body)
{
	struct wire_job_join *join = (struct wire_job_join *)body;

	memset(join->parts, 0, sizeof(join->parts));
	join->n_parts = 2;
	for (unsigned i = 0; i < join->n_parts; i++) {
		memcpy(join->parts[i].kind, "JOURNAL", 7);
		join->parts[i].size = UINT64_MAX - i;
	}
}

static void fill_numa(char *body)
{
	((struct wire_numa *)body)->mode = WIRE_NUMA_BIND;
}

static void fill_job_view_reply(char *body)
{
	((struct wire_job_view_reply *)body)->n_ranks = WIRE_JOB_RANKS_MAX;
}

#define N_RECORDS 13
#define RECORD_SIZE 304

static void fill_list_reply(char *body)
{
	struct wire_list_reply *list = (struct wire_list_reply *)body;

	list->n_records = N_RECORDS;
	list->record_size = RECORD_SIZE;
	memset(list->records + N_RECORDS * RECORD_SIZE, 0,
	       sizeof(list->records) - N_RECORDS * RECORD_SIZE);
}

static const struct message requests[] = {
	{
		.name = "hello",
		.op = WIRE_HELLO,
		.body_size = sizeof(struct wire_hello),
		.strings = {FIELD(wire_hello, program)},
		.paddings = {FIELD(wire_hello, pad)},
	},
	{.name = "ping", .op = WIRE_PING},
	{
		.name = "create",
		.op = WIRE_CREATE,
		.n_fds = 1,
		.body_size = sizeof(struct wire_create),
		.strings = {FIELD(wire_create, name), FIELD(wire_create, device)},
		.has_flags = true,
		.flags_at = offsetof(struct wire_create, flags),
		.known_flags = WIRE_CREATE_NEW_LAYOUT | WIRE_CREATE_EXCLUSIVE | WIRE_CREATE_REUSABLE |
			       WIRE_CREATE_REPLACE | WIRE_CREATE_IPC | WIRE_CREATE_EARLY,
		.fill = fill_create,
	},
	{
		.name = "publish",
		.op = WIRE_PUBLISH,
		.body_size = sizeof(struct wire_publish),
		.paddings = {FIELD(wire_publish, pad)},
		.has_flags = true,
		.flags_at = offsetof(struct wire_publish, flags),
		.known_flags = WIRE_PUBLISH_DIGEST,
	},
	{.name = "abort", .op = WIRE_ABORT, .body_size = sizeof(struct wire_id)},
	{
		.name = "attach",
		.op = WIRE_ATTACH,
		.body_size = sizeof(struct wire_attach),
		.strings = {FIELD(wire_attach, name), FIELD(wire_attach, device)},
		.has_flags = true,
		.flags_at = offsetof(struct wire_attach, flags),
		.known_flags = WIRE_ATTACH_CHECK_LAYOUT | WIRE_ATTACH_OWNER,
		.fill = fill_attach,
	},
	{.name = "detach", .op = WIRE_DETACH, .body_size = sizeof(struct wire_id)},
	{
		.name = "wait",
		.op = WIRE_WAIT,
		.body_size = sizeof(struct wire_wait),
		.strings = {FIELD(wire_wait, name), FIELD(wire_wait, device)},
		.fill = fill_wait,
	},
	{
		.name = "list",
		.op = WIRE_LIST,
		.body_size = sizeof(struct wire_list),
		.strings = {FIELD(wire_list, name), FIELD(wire_list, device)},
		.has_flags = true,
		.flags_at = offsetof(struct wire_list, flags),
		.known_flags = WIRE_LIST_KNOWN,
	},
	{
		.name = "drop",
		.op = WIRE_DROP,
		.body_size = sizeof(struct wire_drop),
		.strings = {FIELD(wire_drop, name), FIELD(wire_drop, device)},
	},
	{.name = "resume", .op = WIRE_RESUME, .body_size = sizeof(struct wire_id)},
	{.name = "renew", .op = WIRE_RENEW, .body_size = sizeof(struct wire_renew)},
	{
		.name = "rollback",
		.op = WIRE_ROLLBACK,
		.body_size = sizeof(struct wire_rollback),
		.strings = {FIELD(wire_rollback, name), FIELD(wire_rollback, device)},
	},
	{
		.name = "access",
		.op = WIRE_ACCESS,
		.body_size = sizeof(struct wire_access),
		.strings = {FIELD(wire_access, name), FIELD(wire_access, device)},
		.has_flags = true,
		.flags_at = offsetof(struct wire_access, flags),
		.known_flags = WIRE_ACCESS_MODE | WIRE_ACCESS_UID | WIRE_ACCESS_GID,
	},
	{
		.name = "pause",
		.op = WIRE_PAUSE,
		.body_size = sizeof(struct wire_pause),
		.fill = fill_pause,
	},
	{
		.name = "events",
		.op = WIRE_EVENTS,
		.body_size = sizeof(struct wire_events),
		.fill = fill_events,
	},
	{.name = "stat", .op = WIRE_STAT},
	{
		.name = "layout",
		.op = WIRE_LAYOUT,
		.body_size = sizeof(struct wire_layout),
		.strings = {FIELD(wire_layout, name), FIELD(wire_layout, device)},
	},
	{
		.name = "create image",
		.op = WIRE_CREATE_IMAGE,
		.n_fds = 1,
		.body_size = sizeof(struct wire_create_image),
		.strings = {FIELD(wire_create, name), FIELD(wire_create, device)},
		.has_flags = true,
		.flags_at = offsetof(struct wire_create, flags),
		.known_flags = WIRE_CREATE_NEW_LAYOUT | WIRE_CREATE_EXCLUSIVE | WIRE_CREATE_REUSABLE |
			       WIRE_CREATE_REPLACE | WIRE_CREATE_IPC | WIRE_CREATE_EARLY,
		.fill = fill_create_image,
	},
	{.name = "proof", .op = WIRE_PROOF, .body_size = sizeof(struct wire_id)},
	{
		.name = "set files",
		.op = WIRE_SET_FILES,
		.n_fds = 1,
		.body_size = sizeof(struct wire_id),
	},
	{
		.name = "files",
		.op = WIRE_FILES,
		.body_size = sizeof(struct wire_files),
		.strings = {FIELD(wire_files, name), FIELD(wire_files, device)},
	},
	{
		.name = "job create",
		.op = WIRE_JOB_CREATE,
		.body_size = sizeof(struct wire_job_create),
		.strings = {FIELD(wire_job_create, name)},
		.paddings = {FIELD(wire_job_create, pad)},
	},
	{
		.name = "job join",
		.op = WIRE_JOB_JOIN,
		.n_fds = 1,
		.body_size = sizeof(struct wire_job_join),
		.strings = {FIELD(wire_job_join, name), FIELD(wire_job_join, parts[0].kind),
			    FIELD(wire_job_join, parts[1].kind)},
		.paddings = {FIELD(wire_job_join, parts[2]),
			     FIELD(wire_job_join, parts[WIRE_JOB_PARTS_MAX - 1])},
		.fill = fill_job_join,
	},
	{
		.name = "job part",
		.op = WIRE_JOB_PART,
		.body_size = sizeof(struct wire_job_index),
		.paddings = {FIELD(wire_job_index, pad)},
	},
	{
		.name = "job description",
		.op = WIRE_JOB_DESCRIPTION,
		.body_size = sizeof(struct wire_job_key),
		.strings = {FIELD(wire_job_key, name)},
	},
	{
		.name = "job leave",
		.op = WIRE_JOB_LEAVE,
		.body_size = sizeof(struct wire_job_leave),
		.paddings = {FIELD(wire_job_leave, pad)},
		.has_flags = true,
		.flags_at = offsetof(struct wire_job_leave, flags),
		.known_flags = WIRE_LEAVE_DONE,
	},
	{
		.name = "job remove",
		.op = WIRE_JOB_REMOVE,
		.body_size = sizeof(struct wire_job_remove),
		.strings = {FIELD(wire_job_remove, name)},
	},
	{
		.name = "job view",
		.op = WIRE_JOB_VIEW,
		.body_size = sizeof(struct wire_job_view),
		.strings = {FIELD(wire_job_view, name)},
	},
	{
		.name = "create owned",
		.op = WIRE_CREATE_OWNED,
		.n_fds = 1,
		.body_size = sizeof(struct wire_create_owned),
		.strings = {FIELD(wire_create, name), FIELD(wire_create, device)},
		.paddings = {FIELD(wire_create_owned, data_offset), FIELD(wire_create_owned, pad)},
		.has_flags = true,
		.flags_at = offsetof(struct wire_create, flags),
		.known_flags = WIRE_CREATE_NEW_LAYOUT | WIRE_CREATE_EXCLUSIVE | WIRE_CREATE_REUSABLE |
			       WIRE_CREATE_REPLACE | WIRE_CREATE_IPC | WIRE_CREATE_EARLY,
		.fill = fill_create_owned,
	},
	{
		.name = "create image owned",
		.op = WIRE_CREATE_IMAGE_OWNED,
		.n_fds = 1,
		.body_size = sizeof(struct wire_create_owned),
		.strings = {FIELD(wire_create, name), FIELD(wire_create, device)},
		.paddings = {FIELD(wire_create_owned, pad)},
		.has_flags = true,
		.flags_at = offsetof(struct wire_create, flags),
		.known_flags = WIRE_CREATE_NEW_LAYOUT | WIRE_CREATE_EXCLUSIVE | WIRE_CREATE_REUSABLE |
			       WIRE_CREATE_REPLACE | WIRE_CREATE_IPC | WIRE_CREATE_EARLY,
		.fill = fill_create_image,
	},
	{
		.name = "hello attach",
		.op = WIRE_HELLO_ATTACH,
		.body_size = sizeof(struct wire_hello_attach),
		.strings = {FIELD(wire_hello_attach, attach.name),
			    FIELD(wire_hello_attach, attach.device),
			    FIELD(wire_hello_attach, hello.program)},
		.paddings = {FIELD(wire_hello_attach, hello.pad)},
		.has_flags = true,
		.flags_at = offsetof(struct wire_hello_attach, attach.flags),
		.known_flags = WIRE_ATTACH_CHECK_LAYOUT | WIRE_ATTACH_OWNER,
		.fill = fill_attach,
	},
	{.name = "provide", .op = WIRE_PROVIDE, .body_size = sizeof(struct wire_provide)},
	{
		.name = "publish shared",
		.op = WIRE_PUBLISH_SHARED,
		.body_size = sizeof(struct wire_publish_shared),
	},
	{
		.name = "numa",
		.op = WIRE_NUMA,
		.body_size = sizeof(struct wire_numa),
		.paddings = {FIELD(wire_numa, pad)},
		.fill = fill_numa,
	},
};

static const struct message replies[] = {
	{
		.name = "hello reply",
		.op = WIRE_HELLO,
		.body_size = sizeof(struct wire_hello_reply),
		.strings = {FIELD(wire_hello_reply, release)},
	},
	{
		.name = "ping reply",
		.op = WIRE_PING,
		.body_size = sizeof(struct wire_ping_reply),
		.strings = {FIELD(wire_ping_reply, release)},
		.paddings = {FIELD(wire_ping_reply, pad)},
	},
	{
		.name = "create reply",
		.op = WIRE_CREATE,
		.n_fds = 2,
		.body_size = sizeof(struct wire_create_reply),
		.paddings = {FIELD(wire_create_reply, location.pad)},
		.has_flags = true,
		.flags_at = offsetof(struct wire_create_reply, flags),
		.known_flags = WIRE_BUFFER_EXCLUSIVE | WIRE_BUFFER_REUSABLE | WIRE_BUFFER_IPC,
		.fill = fill_create_reply,
	},
	{.name = "publish reply", .op = WIRE_PUBLISH, .body_size = sizeof(struct wire_publish_reply)},
	{.name = "abort reply", .op = WIRE_ABORT},
	{
		.name = "attach reply",
		.op = WIRE_ATTACH,
		.n_fds = 3,
		.body_size = sizeof(struct wire_attach_reply),
		.paddings = {FIELD(wire_attach_reply, location.pad)},
		.has_flags = true,
		.flags_at = offsetof(struct wire_attach_reply, flags),
		.known_flags = WIRE_VERSION_DIGEST | WIRE_VERSION_MUTABLE | WIRE_VERSION_IMAGE |
			       WIRE_VERSION_FILES,
		.fill = fill_attach_reply,
	},
	{.name = "detach reply", .op = WIRE_DETACH},
	{.name = "wait reply", .op = WIRE_WAIT, .body_size = sizeof(struct wire_wait_reply)},
	{
		.name = "list reply",
		.op = WIRE_LIST,
		.body_size = sizeof(struct wire_list_reply),
		.fill = fill_list_reply,
	},
	{.name = "drop reply", .op = WIRE_DROP},
	{.name = "resume reply", .op = WIRE_RESUME, .body_size = sizeof(struct wire_resume_reply)},
	{.name = "renew reply", .op = WIRE_RENEW, .body_size = sizeof(struct wire_renew_reply)},
	{
		.name = "rollback reply",
		.op = WIRE_ROLLBACK,
		.body_size = sizeof(struct wire_rollback_reply),
	},
	{.name = "access reply", .op = WIRE_ACCESS},
	{
		.name = "pause reply",
		.op = WIRE_PAUSE,
		.body_size = sizeof(struct wire_pause_reply),
		.paddings = {FIELD(wire_pause_reply, pad)},
		.has_flags = true,
		.flags_at = offsetof(struct wire_pause_reply, flags),
		.known_flags = WIRE_VERSION_DIGEST | WIRE_VERSION_MUTABLE | WIRE_VERSION_IMAGE |
			       WIRE_VERSION_FILES,
	},
	{
		.name = "events reply",
		.op = WIRE_EVENTS,
		.body_size = sizeof(struct wire_list_reply),
		.fill = fill_list_reply,
	},
	{.name = "stat reply", .op = WIRE_STAT, .body_size = sizeof(struct wire_stat_reply)},
	{
		.name = "layout reply",
		.op = WIRE_LAYOUT,
		.n_fds = 1,
		.body_size = sizeof(struct wire_layout_reply),
		.has_flags = true,
		.flags_at = offsetof(struct wire_layout_reply, flags),
		.known_flags = WIRE_BUFFER_EXCLUSIVE | WIRE_BUFFER_REUSABLE | WIRE_BUFFER_IPC,
		.fill = fill_layout_reply,
	},
	{
		.name = "create image reply",
		.op = WIRE_CREATE_IMAGE,
		.n_fds = 3,
		.body_size = sizeof(struct wire_create_reply),
		.paddings = {FIELD(wire_create_reply, location.pad)},
		.has_flags = true,
		.flags_at = offsetof(struct wire_create_reply, flags),
		.known_flags = WIRE_BUFFER_EXCLUSIVE | WIRE_BUFFER_REUSABLE | WIRE_BUFFER_IPC,
		.fill = fill_create_reply,
	},
	{.name = "proof reply", .op = WIRE_PROOF, .n_fds = 2},
	{.name = "set files reply", .op = WIRE_SET_FILES},
	{
		.name = "files reply",
		.op = WIRE_FILES,
		.n_fds = 1,
		.body_size = sizeof(struct wire_files_reply),
	},
	{.name = "job create reply", .op = WIRE_JOB_CREATE},
	{
		.name = "job join reply",
		.op = WIRE_JOB_JOIN,
		.body_size = sizeof(struct wire_job_join_reply),
	},
	{.name = "job part reply", .op = WIRE_JOB_PART, .n_fds = 1},
	{.name = "job description reply", .op = WIRE_JOB_DESCRIPTION, .n_fds = 1},
	{.name = "job leave reply", .op = WIRE_JOB_LEAVE},
	{.name = "job remove reply", .op = WIRE_JOB_REMOVE},
	{
		.name = "job view reply",
		.op = WIRE_JOB_VIEW,
		.n_fds = 2,
		.body_size = sizeof(struct wire_job_view_reply),
		.paddings = {FIELD(wire_job_view_reply, pad)},
		.fill = fill_job_view_reply,
	},
	{
		.name = "create owned reply",
		.op = WIRE_CREATE_OWNED,
		.n_fds = 2,
		.body_size = sizeof(struct wire_create_reply),
		.paddings = {FIELD(wire_create_reply, location.pad)},
		.has_flags = true,
		.flags_at = offsetof(struct wire_create_reply, flags),
		.known_flags = WIRE_BUFFER_EXCLUSIVE | WIRE_BUFFER_REUSABLE | WIRE_BUFFER_IPC,
		.fill = fill_create_reply,
	},
	{
		.name = "create image owned reply",
		.op = WIRE_CREATE_IMAGE_OWNED,
		.n_fds = 3,
		.body_size = sizeof(struct wire_create_reply),
		.paddings = {FIELD(wire_create_reply, location.pad)},
		.has_flags = true,
		.flags_at = offsetof(struct wire_create_reply, flags),
		.known_flags = WIRE_BUFFER_EXCLUSIVE | WIRE_BUFFER_REUSABLE | WIRE_BUFFER_IPC,
		.fill = fill_create_reply,
	},
	{
		.name = "hello attach reply",
		.op = WIRE_HELLO_ATTACH,
		.n_fds = 3,
		.body_size = sizeof(struct wire_hello_attach_reply),
		.strings = {FIELD(wire_hello_attach_reply, hello.release)},
		.paddings = {FIELD(wire_hello_attach_reply, attach.location.pad)},
		.has_flags = true,
		.flags_at = offsetof(struct wire_hello_attach_reply, attach.flags),
		.known_flags = WIRE_VERSION_DIGEST | WIRE_VERSION_MUTABLE | WIRE_VERSION_IMAGE |
			       WIRE_VERSION_FILES,
		.fill = fill_attach_reply,
	},
	{
		.name = "provide reply",
		.op = WIRE_PROVIDE,
		.body_size = sizeof(struct wire_provide_reply),
	},
	{
		.name = "publish shared reply",
		.op = WIRE_PUBLISH_SHARED,
		.body_size = sizeof(struct wire_publish_reply),
	},
	{.name = "numa reply", .op = WIRE_NUMA},
	{
		.name = "hello error",
		.op = WIRE_HELLO_ERROR,
		.body_size = sizeof(struct wire_hello_error),
		.strings = {FIELD(wire_hello_error, error.text),
			    FIELD(wire_hello_error, hello.release)},
		.paddings = {FIELD(wire_hello_error, error.pad)},
		.fill = fill_error,
	},
	{
		.name = "error",
		.op = WIRE_ERROR,
		.body_size = sizeof(struct wire_error),
		.strings = {FIELD(wire_error, text)},
		.paddings = {FIELD(wire_error, pad)},
		.fill = fill_error,
	},
};

/* One direction of the wire: its messages and the functions under test, behind one signature. */
struct direction {
	const struct message *messages;
	size_t n_messages;
	size_t struct_size;
	uint16_t op_bit;
	int (*decode)(const void *data, size_t size, unsigned n_fds, void *ret);
	size_t (*seal)(void *m, enum wire_op op, uint64_t serial);
};

static int decode_request(const void *data, size_t size, unsigned n_fds, void *ret)
{
	return codec_decode_request(data, size, n_fds, ret);
}

static size_t seal_request(void *m, enum wire_op op, uint64_t serial)
{
	return codec_seal_request(m, op, serial);
}

static int decode_reply(const void *data, size_t size, unsigned n_fds, void *ret)
{
	return codec_decode_reply(data, size, n_fds, ret);
}

static size_t seal_reply(void *m, enum wire_op op, uint64_t serial)
{
	return codec_seal_reply(m, op, serial);
}

static const struct direction directions[] = {
	{requests, ARRAY_LEN(requests), sizeof(struct wire_request), 0, decode_request, seal_request},
	{replies, ARRAY_LEN(replies), sizeof(struct wire_reply), WIRE_REPLY, decode_reply,
	 seal_reply},
};

/* The header as bytes on the wire say it. */
static struct wire_header make_header(const struct direction *d, const struct message *m)
{
	return (struct wire_header){
		.size = (uint32_t)(sizeof(struct wire_header) + m->body_size),
		.op = (uint16_t)((unsigned)m->op | d->op_bit),
		.n_fds = (uint16_t)m->n_fds,
		.serial = SERIAL,
	};
}

/* A good message: numbers that differ from each other, zero padding, known flags, short strings. */
static size_t make_message(const struct direction *d, const struct message *m,
			   char packet[WIRE_MESSAGE_MAX])
{
	struct wire_header header = make_header(d, m);
	char *body = packet + sizeof(header);

	memset(packet, 0, WIRE_MESSAGE_MAX);
	memcpy(packet, &header, sizeof(header));
	for (size_t i = 0; i < m->body_size; i++)
		body[i] = (char)(i * 37 + 1);
	for (const struct field *f = m->paddings; f->size; f++)
		memset(body + f->at, 0, f->size);
	for (const struct field *f = m->strings; f->size; f++) {
		memset(body + f->at, 0, f->size);
		memcpy(body + f->at, "llama", 5);
	}
	if (m->has_flags)
		memcpy(body + m->flags_at, &m->known_flags, sizeof(m->known_flags));
	if (m->fill)
		m->fill(body);
	return header.size;
}

/* From memory that ends where the packet ends, so that ASan sees a read past it. */
static int decode(const struct direction *d, const char *packet, size_t size, unsigned n_fds,
		  void *ret)
{
	char *copy = malloc(size ? size : 1);
	int r;

	assert_non_null(copy);
	memcpy(copy, packet, size);
	r = d->decode(copy, size, n_fds, ret);
	free(copy);
	return r;
}

static void refuse(const struct direction *d, const struct message *m, const char *packet,
		   size_t size, unsigned n_fds, const char *what)
{
	cleanup(freep) char *got = malloc(d->struct_size);
	cleanup(freep) char *untouched = malloc(d->struct_size);
	int r;

	assert_non_null(got);
	assert_non_null(untouched);
	memset(got, 0x5a, d->struct_size);
	memset(untouched, 0x5a, d->struct_size);
	r = decode(d, packet, size, n_fds, got);
	if (r != -EBADMSG)
		fail_msg("%s, %s, %zu bytes, %u descriptors: wanted %d, got %d", m->name, what,
			 size, n_fds, -EBADMSG, r);
	assert_memory_equal(got, untouched, d->struct_size);
}

static void accept(const struct direction *d, const struct message *m, const char *packet,
		   size_t size, const char *what)
{
	cleanup(freep) char *got = malloc(d->struct_size);
	int r;

	assert_non_null(got);
	r = decode(d, packet, size, m->n_fds, got);
	if (r != 0)
		fail_msg("%s, %s: wanted 0, got %d", m->name, what, r);
	assert_memory_equal(got, packet, size);
}

/* Calls the function with each message of both directions, made anew. */
static void for_each_message(void (*fn)(const struct direction *, const struct message *, char *,
					size_t))
{
	for (size_t i = 0; i < ARRAY_LEN(directions); i++)
		for (size_t k = 0; k < directions[i].n_messages; k++) {
			const struct message *m = &directions[i].messages[k];
			char packet[WIRE_MESSAGE_MAX] __attribute__((aligned(8)));
			size_t size = make_message(&directions[i], m, packet);

			fn(&directions[i], m, packet, size);
		}
}

static void round_trip(const struct direction *d, const struct message *m, char *packet, size_t size)
{
	cleanup(freep) char *got = malloc(d->struct_size);

	assert_non_null(got);
	assert_int_equal(decode(d, packet, size, m->n_fds, got), 0);
	assert_memory_equal(got, packet, size);
	/* The header is made again from the operation alone. */
	memset(got, 0xff, sizeof(struct wire_header));
	assert_int_equal(d->seal(got, m->op, SERIAL), size);
	assert_memory_equal(got, packet, size);
}

static void every_message_makes_the_round_trip(void **state)
{
	(void)state;
	for_each_message(round_trip);
}

static void the_table_of_this_test_has_every_operation(void **state)
{
	(void)state;
	assert_int_equal(ARRAY_LEN(requests), WIRE_OP_END - WIRE_HELLO);
	assert_int_equal(ARRAY_LEN(replies), WIRE_OP_END - WIRE_HELLO + 2); /* and errors */
	for (int op = WIRE_HELLO; op < WIRE_OP_END; op++) {
		assert_int_equal(requests[op - WIRE_HELLO].op, op);
		assert_int_equal(replies[op - WIRE_HELLO].op, op);
	}
}

static void a_message_fits_a_packet_and_its_header_is_first(void **state)
{
	(void)state;
	assert_in_range(sizeof(struct wire_request), 1, WIRE_MESSAGE_MAX);
	assert_in_range(sizeof(struct wire_reply), 1, WIRE_MESSAGE_MAX);
	assert_int_equal(offsetof(struct wire_request, attach), sizeof(struct wire_header));
	assert_int_equal(offsetof(struct wire_reply, attach), sizeof(struct wire_header));
}

/* Once with the header saying the true size, once with the header of the good message. */
static void try_all_sizes(const struct direction *d, const struct message *m, char *packet,
			  size_t size)
{
	for (size_t n = 0; n <= d->struct_size + 8; n++) {
		uint32_t told = (uint32_t)n;

		if (n == size)
			continue;
		refuse(d, m, packet, n, m->n_fds, "another size");
		memcpy(packet, &told, sizeof(told));
		refuse(d, m, packet, n, m->n_fds, "another size and its header knows");
		refuse(d, m, packet, size, m->n_fds, "the right size and its header is wrong");
		told = (uint32_t)size;
		memcpy(packet, &told, sizeof(told));
	}
	accept(d, m, packet, size, "the right size");
}

static void every_size_but_the_exact_one_is_refused(void **state)
{
	(void)state;
	for_each_message(try_all_sizes);
}

static void try_sizes_told_by_the_header(const struct direction *d, const struct message *m,
					 char *packet, size_t size)
{
	const uint32_t sizes[] = {0, (uint32_t)size ^ 0x80000000, UINT32_MAX, (uint32_t)size << 16};

	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		memcpy(packet, &sizes[i], sizeof(sizes[i]));
		refuse(d, m, packet, size, m->n_fds, "a size that is not its own");
	}
}

static void a_header_that_lies_about_the_size_is_refused(void **state)
{
	(void)state;
	for_each_message(try_sizes_told_by_the_header);
}

static void try_numbers_of_descriptors(const struct direction *d, const struct message *m,
				       char *packet, size_t size)
{
	struct wire_header header = make_header(d, m);

	for (unsigned n = 0; n <= WIRE_FDS_MAX + 1; n++) {
		if (n == m->n_fds)
			continue;
		refuse(d, m, packet, size, n, "another number of descriptors");
		header.n_fds = (uint16_t)n;
		memcpy(packet, &header, sizeof(header));
		refuse(d, m, packet, size, n, "another number of descriptors and its header knows");
		refuse(d, m, packet, size, m->n_fds,
		       "its header tells another number of descriptors");
		header.n_fds = (uint16_t)m->n_fds;
		memcpy(packet, &header, sizeof(header));
	}
	refuse(d, m, packet, size, 0x10000 + m->n_fds, "descriptors past 16 bits");
}

static void another_number_of_descriptors_is_refused(void **state)
{
	(void)state;
	for_each_message(try_numbers_of_descriptors);
}

/* Every operation there could be: only its own one fits a message, or one with a body like it. */
static void try_all_operations(const struct direction *d, const struct message *m, char *packet,
			       size_t size)
{
	struct wire_header header = make_header(d, m);

	for (unsigned op = 0; op <= UINT16_MAX; op++) {
		bool known = false;

		for (size_t i = 0; i < d->n_messages; i++)
			known |= op == ((unsigned)d->messages[i].op | d->op_bit);
		if (known)
			continue;
		header.op = (uint16_t)op;
		memcpy(packet, &header, sizeof(header));
		refuse(d, m, packet, size, m->n_fds, "an operation that is none");
	}
}

static void every_unknown_operation_is_refused(void **state)
{
	struct wire_header header = {.size = sizeof(header)};

	(void)state;
	try_all_operations(&directions[0], &requests[1], (char *)&header, sizeof(header));
	try_all_operations(&directions[1], &replies[4], (char *)&header, sizeof(header));
}

static void try_the_other_direction(const struct direction *d, const struct message *m,
				    char *packet, size_t size)
{
	const struct direction *other = d == directions ? directions + 1 : directions;

	refuse(other, m, packet, size, m->n_fds, "in the other direction");
}

static void a_request_is_no_reply_and_a_reply_no_request(void **state)
{
	(void)state;
	for_each_message(try_the_other_direction);
}

static void try_strings(const struct direction *d, const struct message *m, char *packet,
			size_t size)
{
	for (const struct field *f = m->strings; f->size; f++) {
		char *s = packet + sizeof(struct wire_header) + f->at;

		memset(s, 0, f->size);
		accept(d, m, packet, size, "an empty string");
		memset(s, 'x', f->size - 1);
		accept(d, m, packet, size, "the longest string");
		s[f->size - 1] = 'x';
		refuse(d, m, packet, size, m->n_fds, "a string without an end");
		s[f->size - 1] = '\0';
		for (size_t end = 0; end < f->size - 2; end++) {
			s[end] = '\0';
			refuse(d, m, packet, size, m->n_fds, "bytes behind a string's end");
			s[end] = 'x';
		}
		memset(s, 0, f->size);
		for (size_t i = 1; i < f->size; i++) {
			s[i] = 1;
			refuse(d, m, packet, size, m->n_fds, "one byte behind a string's end");
			s[i] = 0;
		}
	}
}

static void strings_end_and_have_nothing_behind_their_end(void **state)
{
	(void)state;
	for_each_message(try_strings);
}

static void try_padding(const struct direction *d, const struct message *m, char *packet,
			size_t size)
{
	for (const struct field *f = m->paddings; f->size; f++)
		for (size_t i = 0; i < f->size; i++)
			for (int bit = 0; bit < 8; bit++) {
				char *p = packet + sizeof(struct wire_header) + f->at + i;

				*p = (char)(1 << bit);
				refuse(d, m, packet, size, m->n_fds, "padding that is not zero");
				*p = 0;
			}
}

static void padding_is_zero(void **state)
{
	(void)state;
	for_each_message(try_padding);
}

static void try_flags(const struct direction *d, const struct message *m, char *packet, size_t size)
{
	char *p = packet + sizeof(struct wire_header) + m->flags_at;

	if (!m->has_flags)
		return;
	for (int bit = 0; bit < 32; bit++) {
		uint32_t flags = (uint32_t)1 << bit;

		memcpy(p, &flags, sizeof(flags));
		if (flags & m->known_flags) {
			accept(d, m, packet, size, "a known flag");
			continue;
		}
		refuse(d, m, packet, size, m->n_fds, "an unknown flag");
		flags |= m->known_flags;
		memcpy(p, &flags, sizeof(flags));
		refuse(d, m, packet, size, m->n_fds, "an unknown flag beside known ones");
	}
	memset(p, 0, sizeof(uint32_t));
	accept(d, m, packet, size, "no flag");
}

static void only_known_flags_are_accepted(void **state)
{
	(void)state;
	for_each_message(try_flags);
}

static void a_wait_ends_within_int_milliseconds_or_never(void **state)
{
	static const int64_t good[] = {INT64_MIN, -1, 0, 1, INT32_MAX};
	static const int64_t bad[] = {(int64_t)INT32_MAX + 1, INT64_MAX};
	static const struct {
		enum wire_op op;
		size_t at;
	} places[] = {
		{WIRE_WAIT, offsetof(struct wire_wait, timeout_ms)},
		{WIRE_CREATE, offsetof(struct wire_create, timeout_ms)},
		{WIRE_PAUSE, offsetof(struct wire_pause, timeout_ms)},
		{WIRE_EVENTS, offsetof(struct wire_events, timeout_ms)},
	};

	(void)state;
	for (size_t k = 0; k < ARRAY_LEN(places); k++) {
		const struct message *m = &requests[places[k].op - WIRE_HELLO];
		char packet[WIRE_MESSAGE_MAX] __attribute__((aligned(8)));
		size_t size = make_message(directions, m, packet);
		char *timeout = packet + sizeof(struct wire_header) + places[k].at;

		for (size_t i = 0; i < ARRAY_LEN(good); i++) {
			memcpy(timeout, &good[i], sizeof(good[i]));
			accept(directions, m, packet, size, "a good time");
		}
		for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
			memcpy(timeout, &bad[i], sizeof(bad[i]));
			refuse(directions, m, packet, size, m->n_fds, "a time that is too long");
		}
	}
}

static void a_create_has_a_cookie_and_a_policy_that_is_known(void **state)
{
	const struct message *m = &requests[WIRE_CREATE - WIRE_HELLO];
	char packet[WIRE_MESSAGE_MAX] __attribute__((aligned(8)));
	size_t size = make_message(directions, m, packet);
	struct wire_create *create = (struct wire_create *)(packet + sizeof(struct wire_header));

	(void)state;
	create->cookie = 0;
	refuse(directions, m, packet, size, m->n_fds, "no cookie");
	create->cookie = 1ull << 63;
	for (uint32_t policy = 0; policy <= WIRE_POLICY_KILL; policy++) {
		create->policy = policy;
		accept(directions, m, packet, size, "a known policy");
	}
	create->policy = WIRE_POLICY_KILL + 1;
	refuse(directions, m, packet, size, m->n_fds, "an unknown policy");
	create->policy = UINT32_MAX;
	refuse(directions, m, packet, size, m->n_fds, "an unknown policy");
}

static void an_attach_has_an_owner_with_its_flag_alone(void **state)
{
	const struct message *m = &requests[WIRE_ATTACH - WIRE_HELLO];
	char packet[WIRE_MESSAGE_MAX] __attribute__((aligned(8)));
	size_t size = make_message(directions, m, packet);
	struct wire_attach *attach = (struct wire_attach *)(packet + sizeof(struct wire_header));

	(void)state;
	attach->flags = WIRE_ATTACH_OWNER;
	accept(directions, m, packet, size, "root as the owner");
	attach->owner = UINT32_MAX;
	accept(directions, m, packet, size, "any number as the owner");
	attach->flags = WIRE_ATTACH_CHECK_LAYOUT;
	refuse(directions, m, packet, size, m->n_fds, "an owner that is not asked for");
}

static void a_policy_of_memory_is_known_and_has_the_nodes_that_it_needs(void **state)
{
	const struct message *m = &requests[WIRE_NUMA - WIRE_HELLO];
	char packet[WIRE_MESSAGE_MAX] __attribute__((aligned(8)));
	size_t size = make_message(directions, m, packet);
	struct wire_numa *numa = (struct wire_numa *)(packet + sizeof(struct wire_header));

	(void)state;
	memset(numa->nodes, 0, sizeof(numa->nodes));
	for (uint32_t mode = 0; mode < WIRE_NUMA_END; mode++) {
		numa->mode = mode;
		numa->nodes[ARRAY_LEN(numa->nodes) - 1] = 0;
		if (mode == WIRE_NUMA_DEFAULT || mode == WIRE_NUMA_INTERLEAVE)
			accept(directions, m, packet, size, "a policy without nodes");
		else
			refuse(directions, m, packet, size, m->n_fds, "no nodes");
		numa->nodes[ARRAY_LEN(numa->nodes) - 1] = 1ull << 63;
		if (mode == WIRE_NUMA_DEFAULT)
			refuse(directions, m, packet, size, m->n_fds, "nodes and no policy");
		else
			accept(directions, m, packet, size, "nodes that the caller must check");
	}
	numa->mode = WIRE_NUMA_END;
	refuse(directions, m, packet, size, m->n_fds, "an unknown policy");
	numa->mode = UINT32_MAX;
	refuse(directions, m, packet, size, m->n_fds, "an unknown policy");
}

static void a_job_has_a_number_of_parts_that_is_bounded_and_zeros_behind_them(void **state)
{
	static const uint32_t bad[] = {1, WIRE_JOB_PARTS_MAX + 1, 1u << 31, UINT32_MAX};
	const struct message *m = &requests[WIRE_JOB_JOIN - WIRE_HELLO];
	char packet[WIRE_MESSAGE_MAX] __attribute__((aligned(8)));
	size_t size = make_message(directions, m, packet);
	struct wire_job_join *join = (struct wire_job_join *)(packet + sizeof(struct wire_header));

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		join->n_parts = bad[i];
		refuse(directions, m, packet, size, m->n_fds, "no number of its parts");
	}
	join->n_parts = WIRE_JOB_PARTS_MAX;
	accept(directions, m, packet, size, "parts that the caller must check");
	memset(join->parts, 0, sizeof(join->parts));
	join->n_parts = 0;
	accept(directions, m, packet, size, "no parts");
	memset(join->parts[0].kind, 'A', WIRE_KIND_SIZE);
	join->n_parts = 1;
	refuse(directions, m, packet, size, m->n_fds, "a kind without an end");
}

static void an_image_has_a_header_of_a_size_that_is_bounded(void **state)
{
	static const uint64_t good[] = {1, 8, 4096, WIRE_DATA_OFFSET_MAX};
	static const uint64_t bad[] = {0, WIRE_DATA_OFFSET_MAX + 1, 1ull << 63, UINT64_MAX};
	const struct message *m = &requests[WIRE_CREATE_IMAGE - WIRE_HELLO];
	char packet[WIRE_MESSAGE_MAX] __attribute__((aligned(8)));
	size_t size = make_message(directions, m, packet);
	struct wire_create_image *image = (struct wire_create_image *)(packet +
								       sizeof(struct wire_header));

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		image->data_offset = good[i];
		accept(directions, m, packet, size, "a size of a header");
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		image->data_offset = bad[i];
		refuse(directions, m, packet, size, m->n_fds, "no size of a header");
	}
	image->data_offset = 1;
	image->create.cookie = 0;
	refuse(directions, m, packet, size, m->n_fds, "no cookie");
}

static void the_header_of_a_version_has_a_size_that_is_bounded(void **state)
{
	const struct direction *d = &directions[1];
	const struct message *m = &replies[WIRE_LAYOUT - WIRE_HELLO];
	char packet[WIRE_MESSAGE_MAX] __attribute__((aligned(8)));
	size_t size = make_message(d, m, packet);
	struct wire_layout_reply *layout = (struct wire_layout_reply *)(packet +
									sizeof(struct wire_header));

	(void)state;
	layout->data_offset = 0;
	accept(d, m, packet, size, "a version of the flat form");
	layout->data_offset = WIRE_DATA_OFFSET_MAX + 1;
	refuse(d, m, packet, size, m->n_fds, "no size of a header");
}

static void the_data_of_a_version_lie_in_its_slot(void **state)
{
	const struct direction *d = &directions[1];
	const struct message *m = &replies[WIRE_ATTACH - WIRE_HELLO];
	char packet[WIRE_MESSAGE_MAX] __attribute__((aligned(8)));
	size_t size = make_message(d, m, packet);
	struct wire_attach_reply *attach = (struct wire_attach_reply *)(packet +
									sizeof(struct wire_header));

	(void)state;
	attach->data_size = attach->slot_size - 1;
	accept(d, m, packet, size, "a header in front of the data");
	attach->data_size = attach->slot_size + 1;
	refuse(d, m, packet, size, m->n_fds, "more data than the slot has");
}

static void an_error_is_a_negative_errno(void **state)
{
	static const int32_t good[] = {-1, -ENOENT, -4095};
	static const int32_t bad[] = {0, 1, ENOENT, -4096, INT32_MIN, INT32_MAX};
	const struct direction *d = &directions[1];
	const struct message *m = &replies[ARRAY_LEN(replies) - 1];
	char packet[WIRE_MESSAGE_MAX] __attribute__((aligned(8)));
	size_t size = make_message(d, m, packet);
	struct wire_error *error = (struct wire_error *)(packet + sizeof(struct wire_header));

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		error->error = good[i];
		accept(d, m, packet, size, "a good errno");
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		error->error = bad[i];
		refuse(d, m, packet, size, 0, "no errno");
	}
}

static void a_listing_fits_and_has_zeros_behind_its_last_record(void **state)
{
	static const struct {
		uint32_t n_records, record_size;
		bool ok;
	} cases[] = {
		{0, 0, true},
		{0, 1, true},
		{0, RECORD_SIZE, true},
		{0, UINT32_MAX, true},
		{1, WIRE_LIST_SIZE, true},
		{WIRE_LIST_SIZE, 1, true},
		{WIRE_LIST_SIZE / 96, 96, true},
		{1, 0, false},
		{1, WIRE_LIST_SIZE + 1, false},
		{WIRE_LIST_SIZE + 1, 1, false},
		{WIRE_LIST_SIZE / 96 + 1, 96, false},
		{1u << 31, 2, false},
		{UINT32_MAX, UINT32_MAX, false},
	};
	const struct direction *d = &directions[1];
	static const enum wire_op ops[] = {WIRE_LIST, WIRE_EVENTS};

	(void)state;
	for (size_t k = 0; k < ARRAY_LEN(ops); k++) {
		const struct message *m = &replies[ops[k] - WIRE_HELLO];
		char packet[WIRE_MESSAGE_MAX] __attribute__((aligned(8)));
		size_t size = make_message(d, m, packet);
		struct wire_list_reply *list =
			(struct wire_list_reply *)(packet + sizeof(struct wire_header));

		for (size_t i = N_RECORDS * RECORD_SIZE; i < sizeof(list->records); i++) {
			list->records[i] = 1;
			refuse(d, m, packet, size, 0, "bytes behind the last record");
			list->records[i] = 0;
		}
		memset(list->records, 0, sizeof(list->records));
		for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
			list->n_records = cases[i].n_records;
			list->record_size = cases[i].record_size;
			if (cases[i].ok)
				accept(d, m, packet, size, "a listing that fits");
			else
				refuse(d, m, packet, size, 0, "a listing that does not fit");
		}
	}
}

static void a_decoded_struct_is_zero_behind_its_message(void **state)
{
	struct wire_header header = make_header(directions, &requests[1]);
	struct wire_request got;
	const char *p = (const char *)&got;

	(void)state;
	memset(&got, 0x5a, sizeof(got));
	assert_int_equal(decode(directions, (const char *)&header, sizeof(header), 0, &got), 0);
	for (size_t i = sizeof(header); i < sizeof(got); i++)
		assert_int_equal(p[i], 0);
}

/* The stated location of the bytes must make sense. */
static void a_wrong_location_is_refused(void **state)
{
	static const struct {
		const char *what;
		struct wire_location location;
	} wrong[] = {
		{"unknown memory", {.memory = WIRE_MEMORY_END, .map_size = 4096}},
		{"an allocation smaller than its slot", {.map_size = 4095}},
		{"host memory with a UUID", {.map_size = 4096, .uuid = {[15] = 1}}},
		{"a handle where a descriptor is one",
		 {.memory = WIRE_MEMORY_CUDA, .map_size = 4096, .handle = {[63] = 1}}},
	};
	struct wire_reply m = {.create.slot_size = 4096}, got;
	size_t size;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		m.create.location = wrong[i].location;
		size = codec_seal_reply(&m, WIRE_CREATE, SERIAL);
		if (codec_decode_reply(&m, size, 2, &got) != -EBADMSG)
			fail_msg("%s passed", wrong[i].what);
	}
	m.create.location = (struct wire_location){.memory = WIRE_MEMORY_CUDA, .map_size = 4096};
	size = codec_seal_reply(&m, WIRE_CREATE, SERIAL);
	assert_int_equal(codec_decode_reply(&m, size, 2, &got), 0);
}

static void a_string_is_put_with_zeros_behind_it_or_not_at_all(void **state)
{
	char field[8], untouched[8];

	(void)state;
	memset(field, 'x', sizeof(field));
	assert_int_equal(CODEC_PUT_STRING(field, "abc"), 0);
	assert_memory_equal(field, "abc\0\0\0\0", sizeof(field));
	memset(field, 'x', sizeof(field));
	assert_int_equal(CODEC_PUT_STRING(field, ""), 0);
	assert_memory_equal(field, "\0\0\0\0\0\0\0", sizeof(field));
	assert_int_equal(CODEC_PUT_STRING(field, "seven77"), 0);
	assert_string_equal(field, "seven77");
	memset(field, 'x', sizeof(field));
	memcpy(untouched, field, sizeof(field));
	assert_int_equal(CODEC_PUT_STRING(field, "eight888"), -ENAMETOOLONG);
	assert_memory_equal(field, untouched, sizeof(field));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_table_of_this_test_has_every_operation),
		cmocka_unit_test(a_message_fits_a_packet_and_its_header_is_first),
		cmocka_unit_test(every_message_makes_the_round_trip),
		cmocka_unit_test(every_size_but_the_exact_one_is_refused),
		cmocka_unit_test(a_header_that_lies_about_the_size_is_refused),
		cmocka_unit_test(another_number_of_descriptors_is_refused),
		cmocka_unit_test(every_unknown_operation_is_refused),
		cmocka_unit_test(a_request_is_no_reply_and_a_reply_no_request),
		cmocka_unit_test(strings_end_and_have_nothing_behind_their_end),
		cmocka_unit_test(padding_is_zero),
		cmocka_unit_test(only_known_flags_are_accepted),
		cmocka_unit_test(a_wait_ends_within_int_milliseconds_or_never),
		cmocka_unit_test(a_create_has_a_cookie_and_a_policy_that_is_known),
		cmocka_unit_test(an_attach_has_an_owner_with_its_flag_alone),
		cmocka_unit_test(a_policy_of_memory_is_known_and_has_the_nodes_that_it_needs),
		cmocka_unit_test(a_job_has_a_number_of_parts_that_is_bounded_and_zeros_behind_them),
		cmocka_unit_test(an_image_has_a_header_of_a_size_that_is_bounded),
		cmocka_unit_test(the_header_of_a_version_has_a_size_that_is_bounded),
		cmocka_unit_test(the_data_of_a_version_lie_in_its_slot),
		cmocka_unit_test(an_error_is_a_negative_errno),
		cmocka_unit_test(a_listing_fits_and_has_zeros_behind_its_last_record),
		cmocka_unit_test(a_decoded_struct_is_zero_behind_its_message),
		cmocka_unit_test(a_wrong_location_is_refused),
		cmocka_unit_test(a_string_is_put_with_zeros_behind_it_or_not_at_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
