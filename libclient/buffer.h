#pragma once

#include "ipc/base/cleanup.h"
#include "ipc/head.h"
#include "ipc/layout.h"
#include "libclient/call.h"
#include "libclient/memory.h"
#include "libclient/restart.h"
#include "weightd.h"

struct weightd_buffer {
	struct weightd *w; /* referenced */
	struct list link; /* weightd::buffers */
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
	void *head; /* struct head */
	bool has_digest;
	bool is_mutable; /* of an exclusive buffer */
	bool was_evicted; /* from it: what is read may be torn */
	uint8_t layout_hash[HASH_SIZE];
	uint8_t digest[HASH_SIZE];
};

/* As weightd_buffer_swap(), up to a deadline if the server is away; 0: none. */
int buffer_swap_until(struct weightd_buffer *b, uint64_t deadline_ns);

/* A lease again, on a new connection; none when the server will not give one. */
int buffer_renew(struct weightd_buffer *b, const struct restart_patience *p);
