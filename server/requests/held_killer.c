#include "server/requests/held_killer.h"

#include <unistd.h>

#include "server/base/subordinate.h"
#include "server/buffers/buffer.h"
#include "server/buffers/lease.h"
#include "server/buffers/version.h"
#include "server/memory/slot.h"
#include "server/requests/held.h"
#include "server/state/access.h"
#include "server/state/audit.h"
#include "server/state/server.h"
#include "server/state/session.h"
#include "server/state/session_kill.h"

/* False for weightd, the program that started it, and administrators, who are weightd's own user too. */
static bool may_be_killed(const struct channel_peer *peer)
{
	return peer->pid > 1 && peer->pid != getpid() && peer->pid != getppid() &&
	       !access_is_admin(peer);
}

static int try_to_kill(struct session *s, const struct version *v)
{
	int r = session_kill(s);

	audit(&(struct audit){.action = AUDIT_KILL_READER,
			      .peer = &s->peer,
			      .buffer = v->buffer->name,
			      .device = v->buffer->device,
			      .version = v->number,
			      .result = r});
	return r;
}

/* True when the user waits for a process that was killed or ended, or there is one now. */
static bool kill_reader_of(struct version *v)
{
	const struct hold *h = version_hold(v, v->holder);
	struct lease *l;

	if (!h)
		return false;
	list_for_each(l, &h->leases, hold_link) {
		struct session *s = l->session;

		if (s->killed || s->hung_up || s->doomed)
			return true;
		if (s->unkillable || !may_be_killed(&s->peer))
			continue;
		s->killed = try_to_kill(s, v) == 0;
		s->unkillable = !s->killed;
		if (s->killed)
			return true;
	}
	return false;
}

/*
 * True for a version whose end its reader must expect from its own user, from weightd's administrator, or from an owner
 * that this one trusts. Any other owner could end versions in order to have their readers killed.
 */
static bool may_end_readers(const struct server *s, const struct version *v)
{
	const struct config_users *trusted = &s->config.trusted;
	uid_t owner = v->buffer->access.uid;

	if (owner == 0 || owner == geteuid() || subordinate_payer(owner) == v->holder)
		return true;
	for (unsigned i = 0; i < trusted->n; i++)
		if (trusted->uids[i] == owner)
			return true;
	return false;
}

/* True for a user above its limit by these versions alone. */
static bool is_over(const struct server *s, uid_t uid)
{
	const struct version *v;
	uint64_t size = 0;
	unsigned n = 0;

	list_for_each(v, &s->held, held_link)
		if (v->holder == uid && may_end_readers(s, v)) {
			size += v->slot->charge.amount;
			n++;
		}
	return n > 1 && size > quota_limit(&s->quota, uid, QUOTA_HELD);
}

static void kill_oldest_reader(struct server *s, uid_t uid)
{
	struct version *v;

	list_for_each(v, &s->held, held_link)
		if (v->holder == uid && may_end_readers(s, v) && kill_reader_of(v))
			return;
}

static void held_killer_on_time(struct timer *timer)
{
	struct server *s = container_of(timer, struct held_killer, timer)->server;
	const struct version *v;

	list_for_each(v, &s->held, held_link)
		if (held_oldest(s, v->holder) == v && held_is_over(s, v->holder) &&
		    is_over(s, v->holder))
			kill_oldest_reader(s, v->holder);
}

void held_killer_init(struct held_killer *k, struct server *server)
{
	k->server = server;
	timer_init(&k->timer, held_killer_on_time);
}

void held_killer_deinit(struct held_killer *k)
{
	timer_stop(&k->timer);
}

void held_killer_start(struct server *server)
{
	if (server->config.over == CONFIG_OVER_KILL && !server->stopping)
		timer_start(&server->loop, &server->held_killer->timer, 0);
}
