#include "server/sync/engine/traffic.h"

#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/ioctl.h>

/* Values of tcpi_state; <netinet/tcp.h>, which names them, also has an outdated tcp_info. */
enum {
	STATE_TIME_WAIT = 6,
	STATE_CLOSE = 7,
	STATE_CLOSE_WAIT = 8,
	STATE_LAST_ACK = 9,
	STATE_CLOSING = 11,
};

int traffic_info(int fd, struct tcp_info *ret)
{
	socklen_t size = sizeof(*ret);

	*ret = (struct tcp_info){0};
	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, ret, &size) < 0 ? -errno : 0;
}

bool traffic_has_peers_fin(const struct tcp_info *info)
{
	static const unsigned states = 1u << STATE_TIME_WAIT | 1u << STATE_CLOSE_WAIT |
				       1u << STATE_LAST_ACK | 1u << STATE_CLOSING;

	return states >> info->tcpi_state & 1;
}

bool traffic_is_closed(const struct tcp_info *info)
{
	return info->tcpi_state == STATE_CLOSE;
}

bool traffic_is_queued(int fd)
{
	int n = 0;

	return ioctl(fd, SIOCOUTQ, &n) == 0 && n > 0;
}

/*
 * The count bytes_acked includes our SYN if we dialled, and would include our FIN, but this is called before
 * there is one. bytes_received includes the peer's FIN. Bytes written and not acknowledged yet are
 * in the queue. Its length must be the same before and after.
 */
int traffic_count(int fd, bool is_dialled, struct traffic *ret)
{
	struct tcp_info info;
	int before, after, r;

	do {
		if (ioctl(fd, SIOCOUTQ, &before) < 0)
			return -errno;
		r = traffic_info(fd, &info);
		if (r < 0)
			return r;
		if (ioctl(fd, SIOCOUTQ, &after) < 0)
			return -errno;
	} while (before != after);
	ret->kernel_received = (uint64_t)info.tcpi_bytes_received -
			       (traffic_has_peers_fin(&info) ? 1u : 0u);
	ret->kernel_sent = (uint64_t)info.tcpi_bytes_acked + (uint64_t)after -
			   (is_dialled ? 1u : 0u);
	return 0;
}

int traffic_check(const struct traffic *t, const struct planned_bytes *planned,
		  char why[ENGINE_ORDER_WHY_SIZE])
{
	if (t->received == t->kernel_received && t->sent == t->kernel_sent &&
	    t->payload_received == planned->received && t->payload_sent == planned->sent)
		return 0;
	(void)snprintf(why, ENGINE_ORDER_WHY_SIZE,
		       "%llu bytes received and %llu sent were counted, by the kernel %llu and %llu; of "
		       "them %llu and %llu were payload, and planned were %llu and %llu",
		       (unsigned long long)t->received, (unsigned long long)t->sent,
		       (unsigned long long)t->kernel_received, (unsigned long long)t->kernel_sent,
		       (unsigned long long)t->payload_received, (unsigned long long)t->payload_sent,
		       (unsigned long long)planned->received, (unsigned long long)planned->sent);
	return -EPROTO;
}

void traffic_add(struct traffic *sum, const struct traffic *t)
{
	sum->received += t->received;
	sum->sent += t->sent;
	sum->kernel_received += t->kernel_received;
	sum->kernel_sent += t->kernel_sent;
	sum->payload_received += t->payload_received;
	sum->payload_sent += t->payload_sent;
}

json_t *traffic_describe(const struct traffic *t, bool is_in)
{
	uint64_t bytes = is_in ? t->received : t->sent;
	uint64_t kernel = is_in ? t->kernel_received : t->kernel_sent;
	uint64_t payload = is_in ? t->payload_received : t->payload_sent;

	return json_pack("{sI sI so*}", "bytes", (json_int_t)bytes, "kernel", (json_int_t)kernel,
			 "payload", payload == bytes ? NULL : json_integer((json_int_t)payload));
}
