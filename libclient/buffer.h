#pragma once

#include "ipc/base/cleanup.h"
#include "ipc/head.h"
#include "ipc/layout.h"
#include "libclient/client.h"
#include "weightd.h"

struct weightd_buffer {
	struct weightd *w; /* referenced */
	char *name;
	char *device;
	uint64_t id; /* of the buffer, on this server */
	uint64_t lease;
	uint64_t version;
	void *data; /* read-only, like the other two */
	uint64_t data_size;
	uint64_t slot_size; /* with the table of leaf digests */
	void *image; /* of the layout */
	uint64_t image_size;
	struct layout layout;
	void *head; /* struct head */
	bool has_digest;
	uint8_t layout_hash[HASH_SIZE];
	uint8_t digest[HASH_SIZE];
};
