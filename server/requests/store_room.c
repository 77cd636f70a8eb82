#include "server/requests/store_room.h"

#include <errno.h>
#include <stdio.h>

#include "server/buffers/retention.h"
#include "server/restart/store.h"
#include "server/state/server.h"
#include "server/state/session.h"

int store_room_make(struct session *s, unsigned n)
{
	struct store *store = &s->server->store;
	char more[48] = "";

	if (store_is_expected(store) && !store_works(store)) {
		session_fail(s, -ENOTRECOVERABLE,
			     "the service manager that kept the memory of this weightd is gone, so "
			     "nothing can be created; restart weightd");
		return -ENOTRECOVERABLE;
	}
	while (!store_has_room(store, n) && buffers_evict(s->server, NULL, 0))
		;
	if (store_has_room(store, n))
		return 0;
	if (store->n_reserved)
		(void)snprintf(more, sizeof(more), ", and %u more are being made",
			       store->n_reserved);
	session_fail(s, -EDQUOT,
		     "the service manager keeps %u descriptors for weightd already, of %u%s; remove a "
		     "buffer (weightctl rm), or raise FileDescriptorStoreMax= and [store] max",
		     store->n_kept, store->max, more);
	return -EDQUOT;
}

int store_room_reserve(struct session *s, unsigned n, struct store_reservation *ret)
{
	int r = store_room_make(s, n);

	if (r == 0)
		store_reserve(&s->server->store, n, ret);
	return r;
}
