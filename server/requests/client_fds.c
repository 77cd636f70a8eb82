#include "server/requests/client_fds.h"

#include <fcntl.h>
#include <stdlib.h>

#include "ipc/base/fd.h"
#include "server/state/quota.h"

struct charged_closing {
	struct async_closing closing;
	struct charge charge;
};

int client_fds_init(struct client_fds *c, struct loop *l, struct quota *quota,
		    struct worker *memfd_worker)
{
	c->memfd_worker = memfd_worker;
	c->quota = quota;
	return async_close_init(&c->async_close, l);
}

bool client_fds_deinit(struct client_fds *c)
{
	return async_close_deinit(&c->async_close);
}

static void client_fd_closed(struct async_closing *closing)
{
	struct charged_closing *charged = container_of(closing, struct charged_closing, closing);

	quota_refund(&charged->charge);
	free(charged);
}

void client_fds_close(struct client_fds *c, uid_t uid, int fd)
{
	struct charged_closing *charged;

	/* Only memfds and their like have seals. */
	if (fcntl(fd, F_GET_SEALS) >= 0) {
		async_close_memfd(c->memfd_worker, fd);
		return;
	}
	charged = calloc(1, sizeof(*charged));
	if (!charged) {
		(void)fd_close(fd);
		return;
	}
	/* Past the limit it is closed all the same, and counted; the limit is for client_fds_are_trusted(). */
	(void)quota_charge_anyway(c->quota, uid, QUOTA_CLOSING, 1, &charged->charge);
	async_close_start(&c->async_close, &charged->closing, fd, client_fd_closed);
}

bool client_fds_are_trusted(const struct client_fds *c, uid_t uid)
{
	return !async_close_is_stuck(&c->async_close) ||
	       quota_left(c->quota, uid, QUOTA_CLOSING) > 0;
}
