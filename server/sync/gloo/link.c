#include "server/sync/gloo/link.h"

#include <errno.h>
#include <netinet/in.h>

#include "server/sync/engine/traffic.h"

int link_new(const struct link_form *form, struct link **ret, char why[LINK_WHY_SIZE])
{
	const struct link_ops *ops = form->tls ? &tls_link_ops : &gloo_link_ops;
	int r = ops->make(form, ret, why);

	if (r == 0)
		(*ret)->ops = ops;
	return r;
}

size_t link_hello(const struct link *l, uint8_t ret[LINK_HELLO_MAX])
{
	return l->ops->hello(l, ret);
}

/* It has the same offset in both families. */
static uint16_t port_of(const struct sockaddr_storage *a)
{
	return ntohs(((const struct sockaddr_in *)a)->sin_port);
}

uint16_t link_port(const struct link *l)
{
	struct sockaddr_storage ours = {0};
	uint8_t hello[LINK_HELLO_MAX];
	char why[LINK_WHY_SIZE];

	/* Cannot fail: it is our own. */
	(void)l->ops->hello_place(l, hello, l->ops->hello(l, hello), &ours, why);
	return port_of(&ours);
}

int link_hello_place(const struct link *l, const uint8_t *hello, size_t size,
		     struct sockaddr_storage *ret, char why[LINK_WHY_SIZE])
{
	return l->ops->hello_place(l, hello, size, ret, why);
}

int link_connect(struct link *l, const char *node, const uint8_t *hello, size_t size,
		 char why[LINK_WHY_SIZE])
{
	return l->ops->connect(l, node, hello, size, why);
}

int link_fd(const struct link *l)
{
	return l->ops->fd(l);
}

/* An accepted socket has the port of our hello. Gloo does not report which end dialled. */
int link_is_dialled(const struct link *l, bool *ret)
{
	struct sockaddr_storage here;
	socklen_t size = sizeof(here);

	if (getsockname(link_fd(l), (struct sockaddr *)&here, &size) < 0)
		return -errno;
	*ret = port_of(&here) != link_port(l);
	return 0;
}

int link_send(struct link *l, uint64_t slot, const void *from, size_t size, struct transfer **ret,
	      char why[LINK_WHY_SIZE])
{
	return l->ops->send(l, slot, from, size, ret, why);
}

int link_receive(struct link *l, uint64_t slot, void *to, size_t size, struct transfer **ret,
		 char why[LINK_WHY_SIZE])
{
	return l->ops->receive(l, slot, to, size, ret, why);
}

int transfer_finish(struct transfer *t, char why[LINK_WHY_SIZE])
{
	return t->link->ops->finish(t, why);
}

bool link_refusal(struct link *l, char why[LINK_WHY_SIZE])
{
	return l->ops->refusal && l->ops->refusal(l, why);
}

/* There is no FIN of ours, even if a link closes its descriptor: ours is open. */
int link_traffic(struct link *l, struct traffic *ret)
{
	struct traffic t = {0};
	bool is_dialled;
	int r;

	if (l->ops->traffic)
		return l->ops->traffic(l, ret);
	l->ops->count(l, &t.received, &t.sent);
	t.payload_received = t.received;
	t.payload_sent = t.sent;
	r = link_is_dialled(l, &is_dialled);
	if (r == 0)
		r = traffic_count(link_fd(l), is_dialled, &t);
	if (r == 0)
		*ret = t;
	return r;
}
