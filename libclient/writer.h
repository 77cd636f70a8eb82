/*
 * Writers
 *
 * One unpublished version. The caller owns it; a reference to its connection keeps that open.
 */
#pragma once

#include <stdatomic.h>

#include "ipc/base/cleanup.h"
#include "ipc/layout.h"
#include "libclient/connection/call.h"
#include "libclient/connection/restart.h"
#include "libclient/image/header.h"
#include "libclient/image/verbatim.h"
#include "libclient/version/adoption.h"
#include "libclient/version/guard.h"
#include "libclient/version/memory.h"
#include "weightd.h"

struct weightd_writer {
	struct held held; /* weightd::writers */
	struct weightd *w; /* referenced */
	uint64_t id; /* on the server: of the writer, after publishing of the lease; 0: ended */
	uint64_t buffer;
	pid_t owner; /* the process that maps the bytes writable; its children do not inherit the mapping */
	bool aborted;
	bool lost; /* the server has dropped it */
	struct sentence why_lost;
	uint64_t committed; /* the version, as reported by a restarted server */
	uint64_t version; /* 0 until published */
	struct memory memory;
	uint64_t data_size;
	uint64_t slot_size; /* header or digests included */
	uint64_t provided; /* bytes at the start of the slot that have memory */
	int fd; /* writable; -1 once published */
	int reader_fd;
	int digests_fd; /* of an image, likewise writable */
	void *header; /* of an image, header_size bytes in front of the data; NULL: the flat form */
	uint64_t header_size;
	int files_fd; /* those that were set or are replaced; -1: those of the newest version */
	void *image; /* mapped image of the new version's layout */
	uint64_t image_size;
	struct layout layout;
	struct adoption adoption; /* if that is not the caller's layout */
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	struct guarded guarded;
	uint64_t n_leaves;
	_Atomic bool *leaf_done; /* its digest is in `leaves` */
	/* Called whenever a leaf got its digest, by the thread that made it; NULL: nothing is. */
	void (*on_digest)(void *userdata);
	void *on_digest_data; /* its argument */
	uint8_t (*digests)[HASH_SIZE]; /* of the header of an image, and of the leaves */
	uint8_t (*leaves)[HASH_SIZE]; /* in `digests` */
	uint8_t digest[HASH_SIZE];
};

/* All may be NULL. */
struct writer_hooks {
	/* Called periodically while the server provides the memory; < 0 cancels and closes the connection. */
	int (*tick)(void *userdata);
	/*
	 * Called before another layout replaces the given one: that of the newest version, or of a file.
	 * Memory is requested afterwards. Called again if another version is the newest meanwhile. < 0, with a
	 * sentence on the connection, ends the create.
	 */
	int (*adopt)(void *userdata, const struct weightd_writer *wr);
	void *userdata;
	/* A file whose layout and header a new buffer, or one with the same layout, gets. The given layout has its tensors. */
	const struct image_verbatim *verbatim;
	/*
	 * The writer may begin before all of its memory is there. The caller must have the rest made by writer_provide(), and
	 * touch nothing beyond weightd_writer::provided.
	 */
	bool is_early;
	/* For headers that the library writes; NULL: the default of image_header_build(). */
	const struct image_metadata *metadata;
};

/* A writer without a version yet, to be filled by a create. NULL: out of memory. */
struct weightd_writer *client_writer_new(struct weightd *w);
struct weightd_writer *client_writer_free(struct weightd_writer *wr);
CLEANUP_POINTER(struct weightd_writer, client_writer_free);

/*
 * Takes the memory over that the reply to a create or create image has, for the layout and header that it asked with.
 * Sets the sentence on failure, and ends the version.
 */
int writer_begin(struct weightd_writer *wr, struct client_call *call);

/* Like weightd_create(). */
int writer_create(struct weightd *w, const char *name, const struct weightd_layout *layout,
		  const struct weightd_create_options *options, const struct writer_hooks *hooks,
		  struct weightd_writer **ret);

/*
 * Has the server make more memory, and waits until the first `until` bytes of the slot have it. `tick` is as in
 * writer_hooks. -ESTALE: the server was restarted, and the version is lost (weightd_writer::lost).
 */
int writer_provide(struct weightd_writer *wr, uint64_t until, int (*tick)(void *userdata),
		   void *userdata);

/* True once the server has provided all of the memory. */
static inline bool writer_is_provided(const struct weightd_writer *wr)
{
	return wr->provided == wr->slot_size;
}

/* True if the layout is not the caller's, but that of the newest version or of a file. */
static inline bool writer_has_adopted(const struct weightd_writer *wr)
{
	return wr->adoption.image;
}

/*
 * Gives tied tensors their bytes, and digests what has no digest yet: writer_digest() is then what a publish of these bytes
 * would have.
 */
int writer_digest_all(struct weightd_writer *wr, struct sentence *s);

/* The digest of writer_digest_all() or of the publish: 16 bytes, owned by the writer. */
const uint8_t *writer_digest(const struct weightd_writer *wr);

struct weightd_buffer;

/*
 * Publishes in the memory of `same`, which is attached on the same connection, if it has the same bytes, header and digests.
 * Unmaps the writer's memory. -EXDEV: it has not, or is not sealed. After an error the writer can publish as before.
 */
int writer_publish_shared(struct weightd_writer *wr, struct weightd_buffer *same);

/*
 * Compares leaves [first, first + n) of an unpublished version with their digests. -EILSEQ: leaf `*ret_bad` differs,
 * and the sentence is not set.
 */
int writer_compare(const struct weightd_writer *wr, uint64_t first, uint64_t n, uint64_t *ret_bad,
		   struct sentence *s);
