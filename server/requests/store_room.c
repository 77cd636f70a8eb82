#include "server/requests/store_room.h"

#include <errno.h>

#include "server/buffers/retention.h"
#include "server/restart/store.h"
#include "server/state/server.h"
#include "server/state/session.h"

int store_room_make(struct session *s, unsigned n)
{
	struct store *store = &s->server->store;

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
	session_fail(s, -EDQUOT,
		     "the service manager keeps %u descriptors for weightd already, of %u; remove a "
		     "buffer (weightctl rm), or raise FileDescriptorStoreMax= and [store] max",
		     store->n_kept, store->max);
	return -EDQUOT;
}
