#pragma once

#include <stdatomic.h>

#include "ipc/layout.h"
#include "libclient/memory.h"
#include "libclient/restart.h"
#include "weightd.h"

struct weightd_writer {
	struct weightd *w; /* referenced */
	struct list link; /* weightd::writers */
	uint64_t id; /* on the server: of the writer, then of the lease; 0: of none any more */
	uint64_t buffer;
	pid_t owner; /* the process that maps the bytes writable: in its children they are not mapped */
	bool aborted;
	bool lost; /* the server does not know it any more */
	struct sentence why_lost;
	uint64_t committed; /* the version, by what a restarted server said */
	uint64_t version; /* 0 until published */
	struct memory memory;
	uint64_t data_size;
	int fd; /* writable; -1 once published */
	int reader_fd;
	void *image; /* of the layout */
	uint64_t image_size;
	struct layout layout;
	uint64_t n_leaves;
	_Atomic bool *leaf_done; /* its digest stands in `leaves` */
	uint8_t (*leaves)[HASH_SIZE]; /* put behind the data by publish */
	uint8_t digest[HASH_SIZE];
};

/*
 * As weightd_create(), asking `tick` every now and then while the server provides the memory; < 0 gives
 * up and closes the connection.
 */
int writer_create(struct weightd *w, const char *name, const struct weightd_layout *layout,
		  const struct weightd_create_options *options, int (*tick)(void *userdata),
		  void *userdata, struct weightd_writer **ret);

/* The digest that was published: 16 bytes, owned by the writer. */
const uint8_t *writer_digest(const struct weightd_writer *wr);

/*
 * Whether leaves [first, first + n) of what was not published have the bytes that were digested. -EILSEQ: leaf
 * `*ret_bad` has others, and nothing is said.
 */
int writer_compare(const struct weightd_writer *wr, uint64_t first, uint64_t n, uint64_t *ret_bad,
		   struct sentence *s);

/* Takes it up on a new connection; or learns that it was published, or that it is lost. */
int writer_resume(struct weightd_writer *wr, const struct restart_patience *p);

/* The connection it belongs to is another one now. */
void writer_forget(struct weightd_writer *wr);
