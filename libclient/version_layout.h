/*
 * Layouts of versions
 *
 * The layout of a version without attaching it: mapped from the server's descriptor, without a lease.
 */
#pragma once

#include "ipc/layout.h"
#include "libclient/connection/client.h"

struct version_layout {
	void *image;
	uint64_t size;
	struct layout layout;
	uint64_t version;
	uint32_t flags; /* flags of the buffer: WIRE_BUFFER_* */
	uint64_t data_offset; /* of an image; 0: the version has the flat form */
};

/*
 * Asks for that of version `version`, 0: the newest. -ENOENT: there is no such buffer or version;
 * -ENODATA: the buffer has none; -EACCES: the client may neither read nor write it. Sets the
 * sentence.
 */
int version_layout_init(struct version_layout *l, struct weightd *w, const char *name,
			const char *device, uint64_t version);
void version_layout_deinit(struct version_layout *l); /* a zeroed one is fine */
