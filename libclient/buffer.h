#pragma once

#include "ipc/base/cleanup.h"
#include "ipc/head.h"
#include "ipc/layout.h"
#include "libclient/connection/call.h"
#include "libclient/connection/restart.h"
#include "libclient/version/guard.h"
#include "libclient/version/memory.h"
#include "weightd.h"

struct weightd_buffer {
	struct held held; /* weightd::buffers */
	struct weightd *w; /* referenced */
	char *name;
	char *device;
	uint64_t id; /* of the buffer, on this server */
	uint64_t lease; /* 0: none, since the server has none for us, or while we have let go */
	uint64_t version;
	struct memory memory; /* read-only, like the other two */
	uint64_t data_size;
	void *image; /* of the layout */
	uint64_t image_size;
	struct layout layout;
	struct guarded guarded;
	int map_device; /* as asked for: a number of a GPU; -1: the one that has it */
	void *head; /* struct head */
	bool has_digest;
	bool is_mutable; /* of an exclusive buffer */
	bool was_evicted; /* from it: what is read may be torn */
	bool is_asleep; /* it has no memory, until it is woken */
	bool is_leaving; /* detached: only what a stream still does with it is waited for */
	uint8_t layout_hash[HASH_SIZE];
	uint8_t digest[HASH_SIZE];
};

struct attaching {
	struct wire_attach attach;
	struct weightd_buffer *
		over; /* the attachment whose memory it replaces; NULL: it maps memory of its own */
	void *stream; /* stream of `over`: waited for before the old memory is unmapped */
	int map_device;
	int *ret_fd; /* where the caller wants the descriptor of the bytes; NULL: nowhere */
	uint64_t deadline_ns; /* if the server is away; 0: none */
};

/* A new attachment; of one over another, `over` itself, and what it had is ended. */
int buffer_attach(struct weightd *w, const struct attaching *a, struct weightd_buffer **ret);

/* Asks for the current version of what `b` is attached to. */
int buffer_request_current(struct weightd_buffer *b, struct wire_attach *ret);

/* As weightd_buffer_swap_on(), up to a deadline if the server is away; 0: none. */
int buffer_swap_until(struct weightd_buffer *b, void *stream, uint64_t deadline_ns);

/* Ends it, whatever a GPU still does with it. */
void buffer_end(struct weightd_buffer *b);
