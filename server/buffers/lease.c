#include "server/buffers/lease.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "ipc/base/num.h"
#include "server/base/subordinate.h"
#include "server/buffers/buffer.h"
#include "server/buffers/held_charge.h"
#include "server/buffers/paused_reader.h"
#include "server/buffers/probe.h"
#include "server/buffers/reaper.h"
#include "server/buffers/retention.h"
#include "server/buffers/tally.h"
#include "server/buffers/version.h"
#include "server/memory/slot.h"
#include "server/state/access.h"
#include "server/state/server.h"
#include "server/state/session.h"

/* Adds a lease to the hold of its user, which it may begin. */
static int hold_join(struct lease *l)
{
	uid_t uid = subordinate_payer(l->session->peer.uid);
	struct hold *h = version_hold(l->version, uid);

	if (!h) {
		h = calloc(1, sizeof(*h));
		if (!h)
			return -ENOMEM;
		h->uid = uid;
		list_init(&h->leases);
		list_append(&l->version->holds, &h->link);
	}
	l->hold = h;
	l->version->orphan = false;
	list_append(&h->leases, &l->hold_link);
	return 0;
}

/* True: it was the last lease, and the hold ended. */
static bool hold_leave(struct lease *l)
{
	struct hold *h = l->hold;

	list_remove(&l->hold_link);
	if (!list_empty(&h->leases))
		return false;
	if (h->uid != subordinate_payer(l->version->slot->uid))
		l->version->last_reader = h->uid;
	list_remove(&h->link);
	free(h);
	return true;
}

static int charge_lease(struct lease *l, bool is_new)
{
	const struct channel_peer *peer = &l->session->peer;
	struct quota *q = &l->session->server->quota;

	if (!is_new)
		return quota_charge_anyway(q, peer->uid, QUOTA_LEASES, 1, &l->charge);
	return quota_charge_shared(q, peer->uid, access_is_admin(peer), QUOTA_LEASES, 1, &l->charge);
}

static int lease_begin(struct session *session, struct version *version, uint64_t id, bool is_new,
		       struct lease **ret)
{
	struct server *server = session->server;
	struct buffer *b = version->buffer;
	struct lease *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return -ENOMEM;
	l->session = session;
	l->version = version;
	l->id = id;
	l->began_ns = num_now_ns();
	l->since_ns = buffer_now_ns();
	r = charge_lease(l, is_new);
	if (r == 0)
		r = hold_join(l);
	if (r != 0) {
		quota_refund(&l->charge);
		free(l);
		return r;
	}
	version->n_leases++;
	tally_change(version->buffer);
	list_append(&session->leases, &l->link);
	list_append(&version->leases, &l->version_link);
	server->n_leases++;
	b->manifest->n_leases++;
	if (version->ended_ns || b->n_versions > b->keep)
		held_settle(b);
	*ret = l;
	return 0;
}

int lease_new(struct session *session, struct version *version, uint64_t id, struct lease **ret)
{
	return lease_begin(session, version, id, true, ret);
}

int lease_renew(struct session *session, struct version *version, uint64_t id, struct lease **ret)
{
	return lease_begin(session, version, id, false, ret);
}

static void lease_leave(struct version *v, bool hold_ended)
{
	struct buffer *b = v->buffer;

	assert(v->n_leases > 0);
	tally_change(b);
	v->n_leases--;
	if (b->server->stopping)
		return;
	if (v->n_leases > 0) {
		if (hold_ended)
			held_settle(b);
	} else if (v->ended_ns) {
		if (!version_reap(v))
			reaper_start(b->server->reaper);
	} else {
		buffer_trim(b);
	}
}

void lease_free(struct lease *l)
{
	struct buffer *b = l->version->buffer;
	bool hold_ended;

	list_remove(&l->link);
	list_remove(&l->version_link);
	hold_ended = hold_leave(l);
	l->session->server->n_leases--;
	if (!b->server->stopping) { /* or the successor would expect no readers */
		b->manifest->n_leases--;
		PROBE(detach, l);
	}
	buffer_ref(b);
	lease_leave(l->version, hold_ended);
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
