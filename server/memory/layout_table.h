/*
 * Layout tables
 *
 * The layout of versions, as the server sees it: one sealed memfd with a hash, checked once and never
 * looked into again. Versions of a buffer that have the same layout share one.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/wire.h"
#include "server/memory/kept_memfd.h"

struct layout_header;
struct server;

struct layout_table {
	struct kept_memfd memfd;
	uint64_t data_size; /* bytes of the flat range it describes */
	uint64_t n_tensors;
	uint8_t hash[WIRE_HASH_SIZE];
	bool needs_images; /* no client without WIRE_FEATURE_IMAGE can open it */
};

/* Takes `fd`, of a layout with that header, on success. 0, QUOTA_EXCEEDED or -ENOMEM. */
int layout_table_new(struct server *server, uid_t uid, int fd, const struct layout_header *h,
		     struct layout_table **ret);

/* Recovers a table from the store. Charges in any case. */
int layout_table_recover(struct server *server, uid_t uid, uint64_t id, int fd,
			 struct layout_table **ret);

struct layout_table *layout_table_ref(struct layout_table *t);
/* NULL is fine. */
void layout_table_unref(struct layout_table *t);
