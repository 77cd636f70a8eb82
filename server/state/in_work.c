#include "server/state/in_work.h"

#include <sys/socket.h>

#include "ipc/channel.h"
#include "ipc/wire.h"
#include "server/state/access.h"
#include "server/state/cost.h"
#include "server/state/quota.h"
#include "server/state/server.h"
#include "server/state/session.h"
#include "server/state/turns.h"

void in_work_begin(struct server *s, uid_t uid, struct charge *charge)
{
	/* Without memory for it the request is not counted. */
	if (!charge->account)
		(void)quota_charge_anyway(&s->quota, uid, QUOTA_REQUESTS, 1, charge);
}

/* Sessions for the places that are free, and all of them once nothing is left that would call us again. */
static void unpark(struct server *s, uid_t uid)
{
	struct turn *turn = &cost_of(s, uid)->turn;
	uint64_t n = quota_left(&s->quota, uid, QUOTA_REQUESTS);

	if (quota_used(&s->quota, uid, QUOTA_REQUESTS) == 0)
		turns_unpark_all(turn);
	for (; n > 0 && !list_empty(&turn->parked); n--)
		turns_unpark_one(turn);
}

void in_work_end(struct server *s, struct charge *charge)
{
	uid_t uid;

	if (!charge->account)
		return;
	uid = charge->account->uid;
	quota_refund(charge);
	if (!s->stopping)
		unpark(s, uid);
}

/* The start of a request, as far as it shows what is asked. */
struct request_start {
	struct wire_header header;
	struct wire_list list;
};

static bool is_for_work(const struct request_start *start, size_t size)
{
	switch (size < sizeof(start->header) ? WIRE_OP_END : start->header.op) {
	case WIRE_CREATE:
	case WIRE_CREATE_IMAGE:
	case WIRE_CREATE_OWNED:
	case WIRE_CREATE_IMAGE_OWNED:
	case WIRE_PUBLISH:
	case WIRE_SET_FILES:
	case WIRE_JOB_CREATE:
	case WIRE_JOB_JOIN:
		return true;
	case WIRE_LIST:
		return size == sizeof(*start) && start->list.kind == WIRE_LIST_DEVICES;
	default:
		return false;
	}
}

bool in_work_must_wait(const struct session *s)
{
	struct request_start start;
	ssize_t n;

	if (quota_left(&s->server->quota, s->peer.uid, QUOTA_REQUESTS) > 0 ||
	    access_is_admin(&s->peer))
		return false;
	n = recv(s->source.fd, &start, sizeof(start), MSG_PEEK | MSG_DONTWAIT);
	return n >= 0 && is_for_work(&start, (size_t)n);
}
