#include "server/sync/gloo/wire.h"

#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include "server/sync/base/merkle.h"
#include "server/sync/gloo/engine.h"

static int read_info(const struct wire *w, struct tcp_info *ret)
{
	return traffic_info(link_fd(w->link), ret);
}

/* --- Called by threads ------------------------------------------------------------------------- */

/* Gloo's own error does not explain that the peer closed. */
static bool wire_broke(struct engine *e, struct wire *w, const char *why)
{
	struct tcp_info info;

	if (link_fd(w->link) < 0)
		engine_break(e, w, "%s cannot be connected to: %s", w->node, why);
	else if (!why[0] || (!w->link->ops->explains && read_info(w, &info) == 0 &&
			     (traffic_has_peers_fin(&info) || traffic_is_closed(&info))))
		engine_break(e, w, "%s hung up", w->node);
	else
		engine_break(e, w, "the link with %s broke: %s", w->node, why);
	return false;
}

static bool is_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
	const struct sockaddr_in *a4 = (const void *)a, *b4 = (const void *)b;
	const struct sockaddr_in6 *a6 = (const void *)a, *b6 = (const void *)b;

	if (a->ss_family != b->ss_family)
		return false;
	return a->ss_family == AF_INET
		       ? a4->sin_addr.s_addr == b4->sin_addr.s_addr
		       : memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof(a6->sin6_addr)) == 0;
}

static void report_socket(struct engine *e, const struct wire *w)
{
	const struct planned_bytes planned = e->operation->plan(e, w);
	bool dialled;

	if (link_is_dialled(w->link, &dialled) == 0)
		engine_loop_report_socket(&e->engine_loop, link_fd(w->link), w->node, dialled,
					  &planned);
}

/*
 * The agent trusts the network of this address. The hello, which Gloo dials, could lead to another
 * one.
 */
bool wire_connect(struct engine *e, struct wire *w, const struct address *at, uint64_t max_rate)
{
	struct sockaddr_storage there;
	char why[LINK_WHY_SIZE];

	if (link_hello_place(w->link, w->hello, w->hello_size, &there, why) < 0)
		return wire_broke(e, w, why);
	if (!is_host(&there, &at->at)) {
		engine_break(e, w, "the hello of %s contains another address", w->node);
		return false;
	}
	if (link_connect(w->link, w->node, w->hello, w->hello_size, why) < 0)
		return wire_broke(e, w, why);
	/* Set first: the loop reports all connected wires when the agent requests them. */
	atomic_store(&w->state, WIRE_CONNECTED);
	report_socket(e, w);
	/* An error does no harm: the wire is only faster. */
	if (max_rate)
		(void)setsockopt(link_fd(w->link), SOL_SOCKET, SO_MAX_PACING_RATE, &max_rate,
				 sizeof(max_rate));
	return true;
}

bool wire_send(struct engine *e, struct wire *w, uint64_t slot, const void *from, size_t size,
	       struct transfer **ret)
{
	char why[LINK_WHY_SIZE];

	return link_send(w->link, slot, from, size, ret, why) == 0 || wire_broke(e, w, why);
}

bool wire_receive(struct engine *e, struct wire *w, uint64_t slot, void *to, size_t size,
		  struct transfer **ret)
{
	char why[LINK_WHY_SIZE];

	return link_receive(w->link, slot, to, size, ret, why) == 0 || wire_broke(e, w, why);
}

bool wire_finish(struct engine *e, struct wire *w, struct transfer **t)
{
	struct transfer *finished = *t;
	char why[LINK_WHY_SIZE];

	*t = NULL;
	return !finished || transfer_finish(finished, why) == 0 || wire_broke(e, w, why);
}

bool wire_send_wait(struct engine *e, struct wire *w, uint64_t slot, const void *from, size_t size)
{
	struct transfer *t;

	return wire_send(e, w, slot, from, size, &t) && wire_finish(e, w, &t);
}

bool wire_receive_wait(struct engine *e, struct wire *w, uint64_t slot, void *to, size_t size)
{
	struct transfer *t;

	return wire_receive(e, w, slot, to, size, &t) && wire_finish(e, w, &t);
}

void wire_prove(const uint8_t token[PREAMBLE_TOKEN_SIZE], const char *from, const char *to,
		uint8_t ret[PREAMBLE_TOKEN_SIZE])
{
	uint8_t all[PREAMBLE_TOKEN_SIZE + 2 * PREAMBLE_NAME_SIZE] = {0};

	_Static_assert(PREAMBLE_TOKEN_SIZE == MERKLE_HASH_SIZE, "it is a hash");
	memcpy(all, token, PREAMBLE_TOKEN_SIZE);
	memcpy(all + PREAMBLE_TOKEN_SIZE, from, strlen(from));
	memcpy(all + PREAMBLE_TOKEN_SIZE + PREAMBLE_NAME_SIZE, to, strlen(to));
	merkle_hash(all, sizeof(all), ret);
}

/* --- Called by the loop ------------------------------------------------------------------------ */

void wire_report_socket(struct engine *e, const struct wire *w)
{
	int state = atomic_load(&w->state);

	if (state == WIRE_CONNECTED || state == WIRE_DONE)
		report_socket(e, w);
}

uint64_t wire_silent_ns(struct wire *w, bool is_owed, uint64_t now_ns)
{
	struct tcp_info info;
	uint64_t moved = 0, ago_ns = 0;
	bool goes = w->way == WIRE_OUT || atomic_load(&w->has_all);

	if (link_fd(w->link) >= 0 && read_info(w, &info) == 0) {
		/*
		 * The kernel of a stopped process still acknowledges for long: a peer that also
		 * sends is judged by its sent bytes.
		 */
		moved = info.tcpi_bytes_received + (goes ? info.tcpi_bytes_acked : 0);
		ago_ns = goes ? 0 : info.tcpi_last_data_recv * 1000000ull;
	}
	if (!is_owed)
		w->moved_ns = now_ns;
	else if (moved != w->seen && now_ns - ago_ns > w->moved_ns)
		w->moved_ns = now_ns - ago_ns;
	w->seen = moved;
	return now_ns - w->moved_ns;
}

uint64_t wire_gone_ns(struct wire *w, uint64_t now_ns)
{
	struct tcp_info info;
	int n = 0;
	bool is_gone = link_fd(w->link) >= 0 && read_info(w, &info) == 0 &&
		       (traffic_is_closed(&info) ||
			(traffic_has_peers_fin(&info) &&
			 ioctl(link_fd(w->link), SIOCINQ, &n) == 0 && n == 0));

	if (!is_gone)
		w->gone_ns = 0;
	else if (!w->gone_ns)
		w->gone_ns = now_ns;
	return is_gone ? now_ns - w->gone_ns : 0;
}

uint64_t wire_acknowledged(const struct wire *w)
{
	struct tcp_info info;

	return link_fd(w->link) >= 0 && read_info(w, &info) == 0 ? info.tcpi_bytes_acked : 0;
}

int wire_traffic(const struct wire *w, struct traffic *ret)
{
	return link_traffic(w->link, ret);
}
