#include "server/memory/layout_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/layout.h"
#include "server/base/async_close.h"
#include "server/state/server.h"

int layout_table_new(struct server *server, uid_t uid, int fd, uint64_t size,
		     struct layout_table **ret)
{
	struct layout_table *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return -ENOMEM;
	r = quota_charge(&server->quota, uid, QUOTA_BYTES, size, &t->charge);
	if (r == 0)
		r = quota_charge(&server->quota, uid, QUOTA_DESCRIPTORS, 1, &t->descriptor);
	if (r != 0) {
		quota_refund(&t->charge);
		free(t);
		return r;
	}
	t->server = server;
	t->n_refs = 1;
	t->id = server_next_id(server);
	t->fd = fd;
	t->size = size;
	server->n_table_bytes += size;
	*ret = t;
	return 0;
}

/* The layout was checked when it was received, and has been sealed since: its header is enough. */
static int read_header(struct layout_table *t)
{
	struct layout_header h;

	if (!fd_is_sealed(t->fd) || fd_size(t->fd, &t->size) < 0 ||
	    pread(t->fd, &h, sizeof(h), 0) != sizeof(h) || h.magic != LAYOUT_MAGIC)
		return -EBADMSG;
	t->data_size = h.data_size;
	t->n_tensors = h.n_tensors;
	memcpy(t->hash, h.hash, sizeof(t->hash));
	return 0;
}

int layout_table_recover(struct server *server, uid_t uid, uint64_t id, int fd,
			 struct layout_table **ret)
{
	cleanup(freep) struct layout_table *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return -ENOMEM;
	*t = (struct layout_table){.server = server, .n_refs = 1, .id = id, .fd = fd, .kept = true};
	r = read_header(t);
	if (r == 0)
		r = quota_charge_anyway(&server->quota, uid, QUOTA_BYTES, t->size, &t->charge);
	if (r == 0)
		r = quota_charge_anyway(&server->quota, uid, QUOTA_DESCRIPTORS, 1, &t->descriptor);
	if (r < 0) {
		quota_refund(&t->charge);
		return r;
	}
	server->n_table_bytes += t->size;
	*ret = take_ptr(t);
	return 0;
}

struct layout_table *layout_table_ref(struct layout_table *t)
{
	t->n_refs++;
	return t;
}

void layout_table_unref(struct layout_table *t)
{
	if (!t || --t->n_refs > 0)
		return;
	if (t->kept)
		store_remove(&t->server->store, STORE_TABLE, t->id);
	t->server->n_table_bytes -= t->size;
	async_close_memfd(&t->server->worker, t->fd);
	quota_refund(&t->charge);
	quota_refund(&t->descriptor);
	free(t);
}

void layout_table_keep(struct layout_table *t)
{
	if (t->kept)
		return;
	t->kept = true;
	(void)store_put(&t->server->store, STORE_TABLE, t->id,
			t->fd); /* the barrier after it reports errors */
}
