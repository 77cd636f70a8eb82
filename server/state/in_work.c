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

void in_work_end(struct server *s, struct charge *charge)
{
	uid_t uid;

	if (!charge->account)
		return;
	uid = charge->account->uid;
	quota_refund(charge);
	if (!s->stopping)
		turns_unpark_one(&cost_of(s, uid)->turn);
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
	case WIRE_PROVIDE:
	case WIRE_PUBLISH:
	case WIRE_PUBLISH_SHARED:
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

bool in_work_has_room(const struct session *s)
{
	return quota_left(&s->server->quota, s->peer.uid, QUOTA_REQUESTS) > 0;
}

bool in_work_must_wait(const struct session *s)
{
	struct request_start start;
	ssize_t n;

	if (in_work_has_room(s) || access_is_admin(&s->peer))
		return false;
	n = recv(s->source.fd, &start, sizeof(start), MSG_PEEK | MSG_DONTWAIT);
	return n >= 0 && is_for_work(&start, (size_t)n);
}
