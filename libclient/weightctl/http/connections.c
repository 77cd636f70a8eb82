#include "libclient/weightctl/http/connections.h"

#include <string.h>
#include <sys/socket.h>

static void connections_cut(struct connections *c, unsigned i)
{
	c->n--;
	(void)memmove(&c->open[i], &c->open[i + 1], (c->n - i) * sizeof(c->open[0]));
}

/* Its owner finds the end of the connection, and closes it. */
static void connections_shut_oldest(struct connections *c)
{
	(void)shutdown(c->open[0].fd, SHUT_RDWR);
	connections_cut(c, 0);
}

void connections_add(struct connections *c, int fd, uint64_t now_ns)
{
	if (c->n == CONNECTIONS_MAX)
		connections_shut_oldest(c);
	c->open[c->n].fd = fd;
	c->open[c->n].end_ns = now_ns + CONNECTIONS_LIFE_NS;
	c->n++;
}

void connections_remove(struct connections *c, int fd)
{
	for (unsigned i = 0; i < c->n; i++) {
		if (c->open[i].fd == fd) {
			connections_cut(c, i);
			return;
		}
	}
}

int connections_expire(struct connections *c, uint64_t now_ns)
{
	while (c->n && c->open[0].end_ns <= now_ns)
		connections_shut_oldest(c);
	/* Rounded up: a wait that ends too early is another round for nothing. */
	return c->n ? (int)((c->open[0].end_ns - now_ns + 999999) / 1000000) : -1;
}
