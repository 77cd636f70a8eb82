#include "server/buffers/waiter.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/buffers/buffer.h"
#include "server/buffers/buffer_commit.h"
#include "server/state/access.h"
#include "server/state/server.h"
#include "server/state/session.h"

static void waiter_on_deadline(struct timer *timer)
{
	struct waiter *w = container_of(timer, struct waiter, timer);
	struct session *session = w->session;
	char name[WIRE_NAME_SIZE], device[WIRE_DEVICE_SIZE];
	uint64_t version = w->version;

	memcpy(name, w->name, sizeof(name));
	memcpy(device, w->device, sizeof(device));
	waiter_free(w);
	session_fail(session, -ETIMEDOUT, "'%s' on %s did not reach version %" PRIu64 " in time",
		     name, device, version ? version : 1);
}

int waiter_new(struct session *session, const struct wire_wait *wait)
{
	struct server *server = session->server;
	struct waiter *w = calloc(1, sizeof(*w));

	if (!w)
		return -ENOMEM;
	w->session = session;
	w->version = wait->version;
	memcpy(w->name, wait->name, sizeof(w->name));
	memcpy(w->device, wait->device, sizeof(w->device));
	timer_init(&w->timer, waiter_on_deadline);
	if (wait->timeout_ms >= 0)
		timer_start(&server->loop, &w->timer,
			    num_now_ns() + (uint64_t)wait->timeout_ms * 1000000);
	list_append(&server->waiters, &w->link);
	session->waiter = w;
	return 0;
}

void waiter_free(struct waiter *w)
{
	timer_stop(&w->timer);
	list_remove(&w->link);
	w->session->waiter = NULL;
	free(w);
}

bool waiter_is_served(const struct buffer *b, uint64_t version)
{
	return b->current && b->current >= version && buffer_shown_state(b) == HEAD_READY;
}

/* In a turn of its user. */
static void waiter_answer(struct session *s)
{
	struct waiter *w = s->waiter;
	struct buffer *b = w ? buffer_find(s->server, w->name, w->device) : NULL;
	struct wire_reply reply = {0};

	if (!b || !waiter_is_served(b, w->version))
		return; /* it waits for the next one */
	waiter_free(w);
	reply.wait.version = b->current;
	if (access_allows(&b->access, &s->peer, ACCESS_READ))
		(void)session_reply(s, WIRE_WAIT, &reply, NULL, 0);
	else
		session_fail(s, -EACCES, "uid %u may not read '%s'", s->peer.uid, b->name);
}

void waiters_notify(struct buffer *b)
{
	struct waiter *w;

	list_for_each(w, &b->server->waiters, link)
		if (!strcmp(w->name, b->name) && !strcmp(w->device, b->device) &&
		    waiter_is_served(b, w->version))
			session_wake(w->session, waiter_answer);
}
