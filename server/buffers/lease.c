#include "server/buffers/lease.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "ipc/base/num.h"
#include "server/buffers/buffer.h"
#include "server/buffers/paused_reader.h"
#include "server/buffers/probe.h"
#include "server/buffers/reaper.h"
#include "server/buffers/retention.h"
#include "server/buffers/version.h"
#include "server/state/server.h"
#include "server/state/session.h"

int lease_new(struct session *session, struct version *version, uint64_t id, struct lease **ret)
{
	struct server *server = session->server;
	struct lease *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return -ENOMEM;
	r = quota_charge(&server->quota, session->peer.uid, QUOTA_LEASES, 1, &l->charge);
	if (r != 0) {
		free(l);
		return r;
	}
	l->session = session;
	l->version = version;
	l->id = id;
	l->began_ns = num_now_ns();
	version->n_leases++;
	list_append(&session->leases, &l->link);
	list_append(&version->leases, &l->version_link);
	server->n_leases++;
	version->buffer->manifest->n_leases++;
	*ret = l;
	return 0;
}

static void end_hold(struct version *v)
{
	struct buffer *b = v->buffer;

	assert(v->n_leases > 0);
	if (--v->n_leases > 0 || b->server->stopping)
		return;
	if (v->ended_ns) {
		if (!version_reap(v))
			reaper_start(b->server->reaper);
	} else {
		buffer_trim(b);
	}
}

void lease_free(struct lease *l)
{
	struct buffer *b = l->version->buffer;

	list_remove(&l->link);
	list_remove(&l->version_link);
	l->session->server->n_leases--;
	if (!b->server->stopping) { /* or the successor would expect no readers */
		b->manifest->n_leases--;
		PROBE(detach, l);
	}
	buffer_ref(b);
	end_hold(l->version);
	paused_readers_changed(b); /* perhaps it was the last one that an update waited for */
	buffer_unref(b);
	quota_refund(&l->charge);
	free(l);
}

struct lease *lease_find(struct session *session, uint64_t id)
{
	struct lease *l;

	list_for_each(l, &session->leases, link)
		if (l->id == id)
			return l;
	return NULL;
}
