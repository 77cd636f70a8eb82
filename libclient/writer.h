#pragma once

#include <stdatomic.h>

#include "ipc/layout.h"
#include "libclient/connection/restart.h"
#include "libclient/version/adoption.h"
#include "libclient/version/guard.h"
#include "libclient/version/memory.h"
#include "weightd.h"

struct weightd_writer {
	struct held held; /* weightd::writers */
	struct weightd *w; /* referenced */
	uint64_t id; /* on the server: of the writer, then of the lease; 0: of none any more */
	uint64_t buffer;
	pid_t owner; /* the process that maps the bytes writable: in its children they are not mapped */
	bool aborted;
	bool lost; /* the server has dropped it */
	struct sentence why_lost;
	uint64_t committed; /* the version, as reported by a restarted server */
	uint64_t version; /* 0 until published */
	struct memory memory;
	uint64_t data_size;
	int fd; /* writable; -1 once published */
	int reader_fd;
	void *image; /* of the layout of the version to be */
	uint64_t image_size;
	struct layout layout;
	struct adoption adoption; /* where that is not the layout that the caller gave */
	char name[WIRE_NAME_SIZE];
	struct guarded guarded;
	uint64_t n_leaves;
	_Atomic bool *leaf_done; /* its digest stands in `leaves` */
	uint8_t (*leaves)[HASH_SIZE]; /* put behind the data by publish */
	uint8_t digest[HASH_SIZE];
};

/* All may be NULL. */
struct writer_hooks {
	/*
	 * Called every now and then while the server provides the memory; < 0 gives up and closes
	 * the connection.
	 */
	int (*tick)(void *userdata);
	/*
	 * Called when the layout of the newest version is to be used for the given one, before
	 * there is memory, and again when it is another one meanwhile; < 0, with a sentence on the
	 * connection, ends the create.
	 */
	int (*adopt)(void *userdata, const struct weightd_writer *wr);
	void *userdata;
};

/* As weightd_create(). */
int writer_create(struct weightd *w, const char *name, const struct weightd_layout *layout,
		  const struct weightd_create_options *options, const struct writer_hooks *hooks,
		  struct weightd_writer **ret);

/* True where the layout is that of the newest version, and not the one that was given. */
static inline bool writer_has_adopted(const struct weightd_writer *wr)
{
	return wr->adoption.image;
}

/* The digest that was published: 16 bytes, owned by the writer. */
const uint8_t *writer_digest(const struct weightd_writer *wr);

/*
 * Compares leaves [first, first + n) of an unpublished version with their digests. -EILSEQ: leaf `*ret_bad` differs,
 * and the sentence is not set.
 */
int writer_compare(const struct weightd_writer *wr, uint64_t first, uint64_t n, uint64_t *ret_bad,
		   struct sentence *s);
