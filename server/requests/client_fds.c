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
	int fds[];
};

bool client_fds_have_room(const struct client_fds *c, uid_t uid)
{
	return quota_left(&c->server->quota, uid, QUOTA_CLOSING) > 0;
}

bool client_fds_are_trusted(const struct client_fds *c, uid_t uid)
{
	return client_fds_have_room(c, uid) || !async_close_is_stuck(&c->async_close, uid);
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

static void client_fds_closed(struct async_closing *closing)
{
	struct charged_closing *charged = container_of(closing, struct charged_closing, closing);
	struct server *server = charged->server;
	struct turn *turn = &cost_of(server, closing->uid)->turn;

	quota_refund(&charged->charge);
	if (quota_used(&server->quota, closing->uid, QUOTA_CLOSING) == 0)
		turns_unpark_all(turn);
	else if (client_fds_have_room(server->client_fds, closing->uid))
		turns_unpark_one(turn);
	free(charged);
}

/* One job for all of them, however many: the thread is woken once, and so is the loop. */
static struct charged_closing *charged_closing_new(struct client_fds *c, uid_t uid, const int *fds,
						   unsigned n)
{
	struct charged_closing *charged = calloc(1, sizeof(*charged) + n * sizeof(*fds));

	if (!charged) {
		for (unsigned i = 0; i < n; i++)
			(void)fd_close(fds[i]);
		return NULL;
	}
	charged->server = c->server;
	charged->closing.fds = charged->fds;
	charged->closing.n_fds = n;
	for (unsigned i = 0; i < n; i++)
		charged->fds[i] = fds[i];
	/* Past the limit they are closed all the same, and counted; the limit is for reading more. */
	(void)quota_charge_anyway(&c->server->quota, uid, QUOTA_CLOSING, n, &charged->charge);
	return charged;
}

/* Moves memfds to the front. Only they and their like have seals. Returns their number. */
static unsigned find_memfds(int *fds, unsigned n)
{
	unsigned n_memfds = 0;

	for (unsigned i = 0; i < n; i++) {
		int fd = fds[i];

		if (fcntl(fd, F_GET_SEALS) < 0)
			continue;
		fds[i] = fds[n_memfds];
		fds[n_memfds++] = fd;
	}
	return n_memfds;
}

void client_fds_close(struct client_fds *c, uid_t uid, int *fds, unsigned n)
{
	unsigned n_memfds = find_memfds(fds, n);
	struct charged_closing *charged;

	charged = n_memfds > 0 ? charged_closing_new(c, uid, fds, n_memfds) : NULL;
	if (charged)
		async_close_start_memfds(&c->server->freer, &charged->closing, uid,
					 client_fds_closed);
	charged = n > n_memfds ? charged_closing_new(c, uid, fds + n_memfds, n - n_memfds) : NULL;
	if (charged)
		async_close_start(&c->async_close, &charged->closing, uid, client_fds_closed);
}

void client_fds_hang_up(struct client_fds *c, uid_t uid, int fd)
{
	bool is_over = quota_used(&c->server->quota, uid, QUOTA_CLOSING) >= WAITED_FOR_MAX;

	if ((!is_over && client_fds_are_trusted(c, uid)) || !discards_add(&c->discards, fd))
		client_fds_close(c, uid, &fd, 1);
}

bool client_fds_hold_up(struct client_fds *c, struct session *s)
{
	if (client_fds_have_room(c, s->peer.uid))
		return false;
	turns_park(s);
	timer_start_once(&c->server->loop, &c->look, LOOK_NS);
	return true;
}
