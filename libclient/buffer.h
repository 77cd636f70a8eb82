/*
 * Attached buffers
 *
 * One attachment of a version. The caller owns it; a reference to its connection keeps that open.
 */
#pragma once

#include "ipc/base/cleanup.h"
#include "ipc/head.h"
#include "ipc/layout.h"
#include "libclient/connection/call.h"
#include "libclient/connection/client.h"
#include "libclient/version/guard.h"
#include "libclient/version/memory.h"
#include "weightd.h"

struct weightd_buffer {
	struct held held; /* weightd::buffers */
	struct weightd *w; /* referenced */
	char *name;
	char *device;
	uint64_t id; /* the server's id of the buffer */
	uint64_t lease; /* 0: none, because the server granted none, or while the buffer sleeps or is replaced */
	uint64_t version;
	struct memory memory; /* read-only, like the other two */
	uint64_t data_size;
	void *image; /* the mapped image of the layout */
	uint64_t image_size;
	struct layout layout;
	struct guarded guarded;
	int map_device; /* number of the GPU that maps it; -1: the one with the memory */
	void *head; /* struct head */
	bool has_digest;
	bool is_mutable; /* the buffer is exclusive */
	bool was_evicted; /* reads of an exclusive buffer may be torn */
	bool is_asleep; /* without memory, until weightd_buffer_reacquire() */
	bool is_leaving; /* detached, but a stream may still use it */
	uint8_t layout_hash[HASH_SIZE];
	uint8_t digest[HASH_SIZE];
	uint32_t uid; /* owner, if the server has sent it */
	bool has_uid;
	bool has_owner; /* the caller demands `owner`, of later versions too */
	uint32_t owner;
};

struct attaching {
	struct wire_attach attach;
	struct weightd_buffer *
		over; /* the attachment that it replaces in place; NULL: it maps memory of its own */
	void *stream; /* stream of `over`: waited for before the old memory is unmapped */
	int map_device;
	bool connects; /* on a connection that is made for it, if there is none */
	const char *socket; /* then; borrowed; see weightd_attach_options */
	int *ret_fd; /* receives the descriptor of the bytes; NULL: none */
	uint64_t deadline_ns; /* deadline to wait for a server that restarts; 0: none */
};

/* Returns a new attachment; with `over`, `over` itself, after detaching its previous version. */
int buffer_attach(struct weightd *w, const struct attaching *a, struct weightd_buffer **ret);

/* Fills the request for the current version of the buffer of `b`. */
int buffer_request_current(struct weightd_buffer *b, struct wire_attach *ret);

/* Like weightd_buffer_swap_on(), with a deadline for a server that restarts; 0: none. */
int buffer_swap_until(struct weightd_buffer *b, void *stream, uint64_t deadline_ns);

/* Unmaps and frees it and ends its lease, without waiting for a GPU. */
void buffer_end(struct weightd_buffer *b);

/* Reads the header of an image, memory::offset bytes. */
int buffer_read_header(struct weightd_buffer *b, void *ret);
