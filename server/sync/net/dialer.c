#include "server/sync/net/dialer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"

#define WAIT_MIN_NS 200000000u
#define WAIT_MAX_NS 5000000000u

static void dialer_on_found(struct lookup *lookup, int error, const struct addrinfo *found);

static void wait_for_next_round(struct dialer *d)
{
	d->n_addresses = 0;
	timer_start(d->loop, &d->timer, num_now_ns() + d->wait_ns);
	d->wait_ns = d->wait_ns * 2 < WAIT_MAX_NS ? d->wait_ns * 2 : WAIT_MAX_NS;
}

static int open_socket(const struct address *a)
{
	int fd = socket(a->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int r;

	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)&a->at, a->size) == 0 || errno == EINPROGRESS)
		return fd;
	r = -errno;
	(void)fd_close(fd);
	return r;
}

static void try_next(struct dialer *d)
{
	char why[WHY_SIZE] = "", text[ADDRESS_TEXT_SIZE];

	while (d->next < d->n_addresses) {
		const struct address *a = &d->addresses[d->next++];
		int fd;

		if (!d->events->may_dial(d, a, why))
			continue;
		fd = open_socket(a);
		if (fd >= 0) {
			d->events->on_socket(d, fd, a);
			return;
		}
		(void)snprintf(why, sizeof(why), "%s cannot be connected to: %s",
			       address_format((const struct sockaddr *)&a->at, text), strerror(-fd));
	}
	wait_for_next_round(d);
	if (why[0])
		d->events->on_failure(d, why);
}

static void dialer_on_round(struct timer *timer)
{
	struct dialer *d = container_of(timer, struct dialer, timer);

	d->next = 0;
	if (!address_from_digits(d->peer->host, d->peer->port, &d->addresses[0])) {
		lookup_start(&d->lookup, d->resolver);
		return;
	}
	d->n_addresses = 1;
	try_next(d);
}

static void dialer_on_found(struct lookup *lookup, int error, const struct addrinfo *found)
{
	struct dialer *d = container_of(lookup, struct dialer, lookup);
	char why[WHY_SIZE];

	d->n_addresses = 0;
	for (; found && d->n_addresses < DIALER_ADDRESSES_MAX; found = found->ai_next) {
		struct address *a = &d->addresses[d->n_addresses];

		if (found->ai_addrlen > sizeof(a->at))
			continue;
		*a = (struct address){.size = found->ai_addrlen};
		memcpy(&a->at, found->ai_addr, found->ai_addrlen);
		d->n_addresses++;
	}
	if (d->n_addresses > 0) {
		try_next(d);
		return;
	}
	(void)snprintf(why, sizeof(why), "the name '%s' has no address: %s", d->peer->host,
		       error ? gai_strerror(error) : "it is of another kind");
	wait_for_next_round(d);
	d->events->on_failure(d, why);
}

void dialer_init(struct dialer *d, struct loop *loop, struct resolver *resolver,
		 const struct dialer_events *events, const struct peer_config *peer)
{
	*d = (struct dialer){
		.loop = loop,
		.resolver = resolver,
		.events = events,
		.peer = peer,
		.wait_ns = WAIT_MIN_NS,
	};
	timer_init(&d->timer, dialer_on_round);
	lookup_init(&d->lookup, peer->host, peer->port, dialer_on_found);
}

void dialer_deinit(struct dialer *d)
{
	timer_stop(&d->timer);
	lookup_cancel(&d->lookup);
}

void dialer_start(struct dialer *d)
{
	timer_start(d->loop, &d->timer, num_now_ns());
}

void dialer_again(struct dialer *d)
{
	if (d->next < d->n_addresses)
		try_next(d);
	else
		wait_for_next_round(d);
}

void dialer_reset(struct dialer *d)
{
	d->wait_ns = WAIT_MIN_NS;
	d->n_addresses = 0;
}
