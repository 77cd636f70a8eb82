#pragma once

#include "ipc/base/cleanup.h"
#include "ipc/head.h"
#include "ipc/layout.h"
#include "libclient/call.h"
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
	void *data; /* read-only, like the other two */
	uint64_t data_size;
	uint64_t slot_size; /* with the table of leaf digests */
	void *image; /* of the layout */
	uint64_t image_size;
	struct layout layout;
	void *head; /* struct head */
	bool has_digest;
	bool is_mutable; /* of an exclusive buffer */
	bool was_evicted; /* from it: what is read may be torn */
	bool has_let_go; /* its memory is gone for another to come: at `data` there is nothing */
	uint8_t layout_hash[HASH_SIZE];
	uint8_t digest[HASH_SIZE];
};

/* Attaches, at `at` if that is not NULL, over what is mapped there. */
int buffer_attach(struct weightd *w, const struct wire_attach *attach, void *at,
		  struct weightd_buffer **ret);

/* What attaches the version of the same buffer, and of the same layout, that is current. */
int buffer_request(struct weightd_buffer *b, struct wire_attach *ret);

/* Takes over what `n` has attached at the same address, and ends with `n` what there was before. */
void buffer_become(struct weightd_buffer *b, struct weightd_buffer *n);

/* A lease again, on a new connection; none when the server will not give one. */
int buffer_renew(struct weightd_buffer *b, const struct restart_patience *p);
