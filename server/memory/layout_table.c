#include "server/memory/layout_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/layout.h"

static void describe(struct layout_table *t, const struct layout_header *h)
{
	t->data_size = h->data_size;
	t->n_tensors = h->n_tensors;
	memcpy(t->hash, h->hash, sizeof(t->hash));
	/* Offsets used to be aligned, and the end too. */
	t->needs_images = h->alignment < LAYOUT_ALIGNMENT_FLAT_MIN || h->data_size % h->alignment;
}

int layout_table_new(struct server *server, uid_t uid, int fd, const struct layout_header *h,
		     struct layout_table **ret)
{
	cleanup(freep) struct layout_table *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return -ENOMEM;
	t->memfd = (struct kept_memfd){.server = server, .kind = STORE_TABLE, .fd = fd};
	describe(t, h);
	r = kept_memfd_init(&t->memfd, uid);
	if (r == 0)
		*ret = take_ptr(t);
	return r;
}

/* The layout was checked when it was received, and has been sealed since: its header is enough. */
static int read_header(struct layout_table *t)
{
	struct layout_header h;

	if (pread(t->memfd.fd, &h, sizeof(h), 0) != sizeof(h) || h.magic != LAYOUT_MAGIC)
		return -EBADMSG;
	describe(t, &h);
	return 0;
}

int layout_table_recover(struct server *server, uid_t uid, uint64_t id, int fd,
			 struct layout_table **ret)
{
	cleanup(freep) struct layout_table *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return -ENOMEM;
	t->memfd = (struct kept_memfd){.server = server, .kind = STORE_TABLE, .id = id, .fd = fd};
	r = read_header(t);
	if (r == 0)
		r = kept_memfd_recover(&t->memfd, uid);
	if (r == 0)
		*ret = take_ptr(t);
	return r;
}

struct layout_table *layout_table_ref(struct layout_table *t)
{
	t->memfd.n_refs++;
	return t;
}

void layout_table_unref(struct layout_table *t)
{
	if (t && kept_memfd_unref(&t->memfd))
		free(t);
}
