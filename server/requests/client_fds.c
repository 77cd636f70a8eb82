#include "server/requests/client_fds.h"

#include <fcntl.h>
#include <stdlib.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/state/cost.h"
#include "server/state/quota.h"
#include "server/state/server.h"
#include "server/state/session.h"

#define LOOK_NS 200000000u
#define WAITED_FOR_MAX                                                                             \
	256 /* sockets of a user that its thread may have before that proves to be stuck */

struct charged_closing {
	struct async_closing closing;
	struct charge charge;
	struct server *server;
};

static bool has_too_many(const struct client_fds *c, uid_t uid)
{
	return quota_left(&c->server->quota, uid, QUOTA_CLOSING) == 0;
}

bool client_fds_are_trusted(const struct client_fds *c, uid_t uid)
{
	return !has_too_many(c, uid) || !async_close_is_stuck(&c->async_close, uid);
}

/* Sessions of users that are not trusted any more are served, which ends them. */
static void client_fds_on_look(struct timer *timer)
{
	struct client_fds *c = container_of(timer, struct client_fds, look);
	struct session *s;
	bool some = false;

	list_for_each(s, &c->server->sessions, link) {
		struct turn *turn = &s->cost->turn;

		if (list_empty(&turn->parked))
			continue;
		if (client_fds_are_trusted(c, s->peer.uid))
			some = true;
		else
			turns_unpark_all(turn);
	}
	if (some)
		timer_start(&c->server->loop, &c->look, num_now_ns() + LOOK_NS);
}

int client_fds_init(struct client_fds *c, struct server *server)
{
	c->server = server;
	timer_init(&c->look, client_fds_on_look);
	discards_init(&c->discards, &server->loop);
	return async_close_init(&c->async_close, &server->loop);
}

bool client_fds_deinit(struct client_fds *c)
{
	timer_stop(&c->look);
	discards_deinit(&c->discards);
	return async_close_deinit(&c->async_close);
}

static void client_fd_closed(struct async_closing *closing)
{
	struct charged_closing *charged = container_of(closing, struct charged_closing, closing);
	struct server *server = charged->server;
	struct turn *turn = &cost_of(server, closing->uid)->turn;

	quota_refund(&charged->charge);
	if (quota_used(&server->quota, closing->uid, QUOTA_CLOSING) == 0)
		turns_unpark_all(turn);
	else if (!has_too_many(server->client_fds, closing->uid))
		turns_unpark_one(turn);
	free(charged);
}

void client_fds_close(struct client_fds *c, uid_t uid, int fd)
{
	struct charged_closing *charged = calloc(1, sizeof(*charged));

	if (!charged) {
		(void)fd_close(fd);
		return;
	}
	charged->server = c->server;
	/* Past the limit it is closed all the same, and counted; the limit is for reading more. */
	(void)quota_charge_anyway(&c->server->quota, uid, QUOTA_CLOSING, 1, &charged->charge);
	/* Only memfds and their like have seals. */
	if (fcntl(fd, F_GET_SEALS) >= 0)
		async_close_start_memfd(&c->server->freer, &charged->closing, uid, fd,
					client_fd_closed);
	else
		async_close_start(&c->async_close, &charged->closing, uid, fd, client_fd_closed);
}

void client_fds_hang_up(struct client_fds *c, uid_t uid, int fd)
{
	bool is_over = quota_used(&c->server->quota, uid, QUOTA_CLOSING) >= WAITED_FOR_MAX;

	if ((!is_over && client_fds_are_trusted(c, uid)) || !discards_add(&c->discards, fd))
		client_fds_close(c, uid, fd);
}

bool client_fds_hold_up(struct client_fds *c, struct session *s)
{
	if (!has_too_many(c, s->peer.uid))
		return false;
	turns_park(s);
	timer_start_once(&c->server->loop, &c->look, LOOK_NS);
	return true;
}
