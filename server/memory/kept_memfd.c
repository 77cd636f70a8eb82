#include "server/memory/kept_memfd.h"

#include <errno.h>

#include "ipc/base/fd.h"
#include "server/base/headroom.h"
#include "server/base/threads/async_close.h"
#include "server/state/server.h"

static int charge(struct kept_memfd *m, uid_t uid,
		  int (*fn)(struct quota *, uid_t, enum quota_kind, uint64_t, struct charge *))
{
	struct quota *q = &m->server->quota;
	int r = fn(q, uid, QUOTA_BYTES, m->size, &m->charge);

	if (r == 0)
		r = fn(q, uid, QUOTA_DESCRIPTORS, 1, &m->descriptor);
	if (r != 0) {
		quota_refund(&m->charge);
		return r;
	}
	m->n_refs = 1;
	m->uid = uid;
	m->server->n_table_bytes += m->size;
	headroom_receive(m->size);
	return 0;
}

int kept_memfd_init(struct kept_memfd *m, uid_t uid)
{
	int r = fd_size(m->fd, &m->size);

	if (r < 0)
		return r;
	m->id = server_next_id(m->server);
	return charge(m, uid, quota_charge);
}

int kept_memfd_recover(struct kept_memfd *m, uid_t uid)
{
	if (!fd_is_sealed(m->fd) || fd_size(m->fd, &m->size) < 0)
		return -EBADMSG;
	m->kept = true;
	return charge(m, uid, quota_charge_anyway);
}

void kept_memfd_keep(struct kept_memfd *m, uid_t store_uid)
{
	if (m->kept)
		return;
	m->kept = true;
	m->store_uid = store_uid;
	(void)store_put(&m->server->store, store_uid, m->kind, m->id,
			m->fd); /* the barrier after it reports errors */
}

bool kept_memfd_unref(struct kept_memfd *m)
{
	if (--m->n_refs > 0)
		return false;
	if (m->kept)
		store_remove(&m->server->store, m->store_uid, m->kind, m->id);
	m->server->n_table_bytes -= m->size;
	headroom_release(m->size);
	async_close_memfd(&m->server->freer, m->charge.account->uid, m->fd);
	quota_refund(&m->charge);
	quota_refund(&m->descriptor);
	return true;
}
