/*
 * The meter without rights: sock_diag, which shows any process the counters of the sockets in its network namespace.
 * It cannot see what a connection carried between the last look and its end: such a row is sampled, no longer exact.
 * The meter does not keep the descriptor of a socket, which would keep it open.
 */
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <search.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bpf/tcp/meter.h"
#include "bpf/tcp/socket_cookie.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/list.h"
#include "ipc/base/num.h"

enum state { /* as the kernel numbers them */
	FIN_WAIT1 = 4,
	FIN_WAIT2 = 5,
	TIME_WAIT = 6,
	CLOSE_WAIT = 8,
	LAST_ACK = 9,
	CLOSING = 11,
};

#define CA_LOSS 4 /* tcp_info::tcpi_ca_state */

struct diag_row {
	uint32_t row;
	struct totals totals;
	uint64_t unseen; /* sockets that were never found */
	bool sampled; /* some ended between two looks */
};

struct diag_socket {
	struct list link; /* meter_of_diag::sockets */
	struct inet_diag_req_v2 request;
	uint64_t cookie;
	struct diag_row *row;
	uint64_t base[N_COUNTERS];
	uint64_t spent[N_LIMITS_OF_TCP]; /* the same, in ns */
	uint64_t waited_ns; /* until when it waited in vain, as far as that is in the totals */
};

struct meter_of_diag {
	struct meter meter;
	int fd;
	uint32_t netns;
	void *rows; /* tree of struct diag_row, by number: a client may have a thousand */
	struct list sockets;
};

/* The kernel's data of one socket. */
struct answer {
	struct inet_diag_msg message;
	struct tcp_info info;
	uint32_t memory[SK_MEMINFO_VARS];
};

static struct meter_of_diag *diag_of(struct meter *m)
{
	return container_of(m, struct meter_of_diag, meter);
}

static int diag_open(uint32_t ring_size, struct meter **ret, char ret_why[WHY_SIZE])
{
	struct meter_of_diag *d;
	struct stat st;
	int r;

	(void)ring_size;
	d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	d->meter.kind = &meter_diag;
	list_init(&d->sockets);
	d->netns = stat("/proc/self/ns/net", &st) < 0 ? 0 : (uint32_t)st.st_ino;
	d->fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	if (d->fd < 0) {
		r = -errno;
		(void)snprintf(ret_why, WHY_SIZE, "cannot open sock_diag: %s", strerror(-r));
		free(d);
		return r;
	}
	*ret = &d->meter;
	return 0;
}

static void remove_socket(struct diag_socket *s)
{
	list_remove(&s->link);
	free(s);
}

static void diag_close(struct meter *m)
{
	struct meter_of_diag *d = diag_of(m);
	struct diag_socket *s, *next;

	list_for_each_safe(s, next, &d->sockets, link)
		remove_socket(s);
	tdestroy(d->rows, free);
	(void)fd_close(d->fd);
	free(d);
}

static int row_compare(const void *a, const void *b)
{
	uint32_t x = ((const struct diag_row *)a)->row, y = ((const struct diag_row *)b)->row;

	return (x > y) - (x < y);
}

static struct diag_row *find_row(const struct meter_of_diag *d, uint32_t number)
{
	const struct diag_row key = {.row = number};
	struct diag_row *const *found = tfind(&key, &d->rows, row_compare);

	return found ? *found : NULL;
}

static int diag_add_row(struct meter *m, uint32_t number)
{
	cleanup(freep) struct diag_row *row = calloc(1, sizeof(*row));

	if (!row)
		return -ENOMEM;
	row->row = number;
	if (!tsearch(row, &diag_of(m)->rows, row_compare))
		return -ENOMEM;
	(void)take_ptr(row);
	return 0;
}

static void diag_remove_row(struct meter *m, uint32_t number)
{
	struct diag_row *row = find_row(diag_of(m), number);
	struct diag_socket *s, *next;

	if (!row)
		return;
	list_for_each_safe(s, next, &diag_of(m)->sockets, link)
		if (s->row == row)
			remove_socket(s);
	(void)tdelete(row, &diag_of(m)->rows, row_compare);
	free(row);
}

/* As much of an attribute as there is room for; how much that was. */
static size_t attr_copy(void *to, size_t room, const struct nlattr *a)
{
	size_t n = a->nla_len - sizeof(*a);

	n = n < room ? n : room;
	memcpy(to, a + 1, n);
	return n;
}

/* -ENOENT: there is no such socket any more. */
static int answer_parse(const struct nlmsghdr *h, size_t n, struct answer *ret)
{
	const struct nlattr *a;
	size_t at = NLMSG_HDRLEN + NLMSG_ALIGN(sizeof(ret->message));
	bool has_info = false;

	if (n < sizeof(*h) || h->nlmsg_len > n)
		return -EBADMSG;
	if (h->nlmsg_type == NLMSG_ERROR)
		return n < NLMSG_HDRLEN + sizeof(int)
			       ? -EBADMSG
			       : ((const struct nlmsgerr *)NLMSG_DATA(h))->error;
	if (h->nlmsg_type != SOCK_DIAG_BY_FAMILY || h->nlmsg_len < at)
		return -EBADMSG;
	*ret = (struct answer){};
	memcpy(&ret->message, NLMSG_DATA(h), sizeof(ret->message));
	for (; at + sizeof(*a) <= h->nlmsg_len; at += NLMSG_ALIGN(a->nla_len)) {
		a = (const void *)((const char *)h + at);
		if (a->nla_len < sizeof(*a) || at + a->nla_len > h->nlmsg_len)
			return -EBADMSG;
		/* An older kernel sends less of it; bytes_sent and bytes_retrans are of 4.19. */
		if (a->nla_type == INET_DIAG_INFO)
			has_info = attr_copy(&ret->info, sizeof(ret->info), a) >=
				   offsetof(struct tcp_info, tcpi_bytes_retrans) + sizeof(uint64_t);
		else if (a->nla_type == INET_DIAG_SKMEMINFO)
			(void)attr_copy(ret->memory, sizeof(ret->memory), a);
	}
	if (has_info)
		return 0;
	return -ENOENT; /* a socket in TIME_WAIT has no counters any more */
}

union packet {
	struct nlmsghdr header;
	char bytes[8192];
};

/* Reads the answer into `ret`. Returns its size. */
static ssize_t diag_exchange(struct meter_of_diag *d, const struct inet_diag_req_v2 *request,
			     uint16_t flags, union packet *ret)
{
	struct {
		struct nlmsghdr header;
		struct inet_diag_req_v2 request;
	} question = {
		.header = {.nlmsg_len = sizeof(question),
			   .nlmsg_type = SOCK_DIAG_BY_FAMILY,
			   .nlmsg_flags = NLM_F_REQUEST | flags},
		.request = *request,
	};
	ssize_t n;

	if (send(d->fd, &question, sizeof(question), 0) < 0)
		return -errno;
	n = recv(d->fd, ret, sizeof(*ret), 0);
	return n < 0 ? -errno : n;
}

static int diag_ask(struct meter_of_diag *d, const struct inet_diag_req_v2 *request,
		    struct answer *ret)
{
	union packet packet;
	ssize_t n = diag_exchange(d, request, 0, &packet);

	return n < 0 ? (int)n : answer_parse(&packet.header, (size_t)n, ret);
}

/*
 * TCP's part of sock_diag is mostly a module. Without it the kernel's answer for one socket is that of a socket which
 * does not exist; hence the request is for all sockets in no state, which are none.
 */
static int diag_check(struct meter *m, char ret_why[WHY_SIZE])
{
	const struct inet_diag_req_v2 request = {.sdiag_family = AF_INET,
						 .sdiag_protocol = IPPROTO_TCP};
	union packet packet;
	ssize_t n = diag_exchange(diag_of(m), &request, NLM_F_DUMP, &packet);
	int r = n < 0 ? (int)n : -EBADMSG;

	/* The end of a list and an error both begin with an error number. */
	if (n >= (ssize_t)(NLMSG_HDRLEN + sizeof(r)))
		memcpy(&r, NLMSG_DATA(&packet.header), sizeof(r));
	if (r < 0)
		(void)snprintf(ret_why, WHY_SIZE,
			       "the kernel shows no TCP socket by sock_diag, for which it may have a "
			       "module (modprobe tcp_diag): %s",
			       strerror(-r));
	return r;
}

static void counters_of(const struct answer *a, uint64_t *c)
{
	uint8_t state = a->message.idiag_state;
	uint64_t unacked = a->message.idiag_wqueue, unread = a->message.idiag_rqueue;
	bool fin = state == FIN_WAIT1 || state == FIN_WAIT2 || state == CLOSING || state == LAST_ACK;
	bool peer_fin = state == CLOSE_WAIT || state == LAST_ACK || state == CLOSING;

	c[COUNTER_SUBMITTED] = a->info.tcpi_bytes_acked + unacked - fin;
	c[COUNTER_DELIVERED] = a->info.tcpi_bytes_acked - (fin && !unacked);
	c[COUNTER_RECEIVED] = a->info.tcpi_bytes_received - peer_fin;
	c[COUNTER_CONSUMED] = a->info.tcpi_bytes_received - unread - (unread ? 0 : peer_fin);
	c[COUNTER_WIRE] = a->info.tcpi_bytes_sent;
	c[COUNTER_RETRANS_BYTES] = a->info.tcpi_bytes_retrans;
	c[COUNTER_RETRANS_SEGMENTS] = a->info.tcpi_total_retrans;
}

static void spent_of(const struct answer *a, uint64_t now_ns, uint64_t *spent)
{
	const struct tcp_info *i = &a->info;

	spent[LIMIT_RECEIVE_WINDOW] = i->tcpi_rwnd_limited * 1000;
	spent[LIMIT_SEND_BUFFER] = i->tcpi_sndbuf_limited * 1000;
	spent[LIMIT_BUSY] = (i->tcpi_busy_time - i->tcpi_rwnd_limited - i->tcpi_sndbuf_limited) *
			    1000;
	spent[LIMIT_PRODUCER] = now_ns - i->tcpi_busy_time * 1000;
}

/* As in meter.bpf.c, for one look; `grown` is how TCP accounts the time since the last one. */
static void count_wait(struct diag_socket *s, const struct tcp_info *i, uint64_t now_ns,
		       const uint64_t *grown)
{
	struct totals *t = &s->row->totals;
	uint64_t from = now_ns - i->tcpi_last_ack_recv * UINT64_C(1000000);
	bool is_silent = i->tcpi_retransmits >= UNANSWERED || i->tcpi_probes >= UNANSWERED;
	int most = 0;

	if (from < s->waited_ns)
		from = s->waited_ns;
	if ((!is_silent && i->tcpi_ca_state != CA_LOSS) || from >= now_ns)
		return;
	for (int k = 1; k < N_LIMITS; k++)
		if ((int64_t)grown[k] > (int64_t)grown[most])
			most = k;
	t->limit_ns[is_silent ? LIMIT_SILENT : LIMIT_LOSS] += now_ns - from;
	t->limit_ns[most] -= now_ns - from;
	s->waited_ns = now_ns;
}

static void count_time(struct diag_socket *s, const struct answer *a)
{
	uint64_t now_ns = num_now_ns(), spent[N_LIMITS_OF_TCP], grown[N_LIMITS] = {};
	const struct sender sender = {
		.buffer = a->memory[SK_MEMINFO_SNDBUF],
		.queued = a->memory[SK_MEMINFO_WMEM_QUEUED],
		.notsent = a->info.tcpi_notsent_bytes,
		.mss = a->info.tcpi_snd_mss,
		.n_packets = a->info.tcpi_unacked,
		.cwnd = a->info.tcpi_snd_cwnd,
		.since_ack_us = a->info.tcpi_last_ack_recv * 1000,
		.srtt_us = a->info.tcpi_rtt,
		.pacing_rate = a->info.tcpi_pacing_rate,
		.max_pacing_rate = a->info.tcpi_max_pacing_rate,
	};
	const enum limit busy_with = limit_of_busy(&sender);

	spent_of(a, now_ns, spent);
	for (int i = 0; i < N_LIMITS_OF_TCP; i++)
		grown[i == LIMIT_BUSY ? (int)busy_with : i] += spent[i] - s->spent[i];
	for (int i = 0; i < N_LIMITS; i++)
		s->row->totals.limit_ns[i] += grown[i];
	memcpy(s->spent, spent, sizeof(spent));
	count_wait(s, &a->info, now_ns, grown);
}

static void socket_count(struct diag_socket *s, const struct answer *a)
{
	uint64_t c[N_COUNTERS];

	counters_of(a, c);
	for (int i = 0; i < N_COUNTERS; i++)
		s->row->totals.counter[i] += c[i] - s->base[i];
	memcpy(s->base, c, sizeof(c));
	count_time(s, a);
}

static void sample_of(const struct meter_of_diag *d, const struct diag_socket *s,
		      const struct answer *a, struct sample *ret)
{
	*ret = (struct sample){
		.ns = num_now_ns(),
		.cookie = s->cookie,
		.bytes_sent = a->info.tcpi_bytes_sent,
		.bytes_retrans = a->info.tcpi_bytes_retrans,
		.bytes_acked = a->info.tcpi_bytes_acked,
		.bytes_received = a->info.tcpi_bytes_received,
		.row = s->row->row,
		.netns = d->netns,
		.srtt_us = a->info.tcpi_rtt,
		.min_rtt_us = a->info.tcpi_min_rtt,
		.cwnd = a->info.tcpi_snd_cwnd,
		.total_retrans = a->info.tcpi_total_retrans,
		.notsent = a->info.tcpi_notsent_bytes,
		.unacked = a->message.idiag_wqueue - a->info.tcpi_notsent_bytes,
		.family = a->message.idiag_family,
		.local_port = ntohs(a->message.id.idiag_sport),
		.peer_port = ntohs(a->message.id.idiag_dport),
		.state = a->message.idiag_state,
	};
	memcpy(ret->local, a->message.id.idiag_src, sizeof(ret->local));
	memcpy(ret->peer, a->message.id.idiag_dst, sizeof(ret->peer));
}

static int diag_mark(struct meter *m, meter_sample_fn fn, void *context)
{
	struct meter_of_diag *d = diag_of(m);
	struct diag_socket *s, *next;
	struct sample sample;
	struct answer a;
	int r;

	list_for_each_safe(s, next, &d->sockets, link) {
		r = diag_ask(d, &s->request, &a);
		if (r == -ENOENT) {
			s->row->totals.closed++;
			s->row->sampled = true;
			remove_socket(s);
			continue;
		}
		if (r < 0)
			return r;
		socket_count(s, &a);
		if (!fn)
			continue;
		sample_of(d, s, &a, &sample);
		fn(&sample, context);
	}
	return 0;
}

/* Fills in one end of the connection, as sock_diag wants it. */
static int set_end(const struct sockaddr_storage *address, __be16 *port, __be32 ip[4],
		   uint8_t *family)
{
	const struct sockaddr_in *v4 = (const void *)address;
	const struct sockaddr_in6 *v6 = (const void *)address;

	*family = (uint8_t)address->ss_family;
	if (address->ss_family == AF_INET) {
		*port = v4->sin_port;
		ip[0] = v4->sin_addr.s_addr;
	} else if (address->ss_family == AF_INET6) {
		*port = v6->sin6_port;
		memcpy(ip, &v6->sin6_addr, sizeof(v6->sin6_addr));
	} else {
		return -EAFNOSUPPORT;
	}
	return 0;
}

static int request_of(int fd, uint64_t cookie, struct inet_diag_req_v2 *ret)
{
	struct sockaddr_storage local, peer;
	socklen_t n_local = sizeof(local), n_peer = sizeof(peer);
	struct inet_diag_sockid *id = &ret->id;
	int r;

	if (getsockname(fd, (struct sockaddr *)&local, &n_local) < 0 ||
	    getpeername(fd, (struct sockaddr *)&peer, &n_peer) < 0)
		return -errno;
	*ret = (struct inet_diag_req_v2){
		.sdiag_protocol = IPPROTO_TCP,
		.idiag_ext = 1 << (INET_DIAG_INFO - 1) | 1 << (INET_DIAG_SKMEMINFO - 1),
		.idiag_states = UINT32_MAX,
	};
	r = set_end(&local, &id->idiag_sport, id->idiag_src, &ret->sdiag_family);
	if (r == 0)
		r = set_end(&peer, &id->idiag_dport, id->idiag_dst, &ret->sdiag_family);
	id->idiag_cookie[0] = (uint32_t)cookie;
	id->idiag_cookie[1] = (uint32_t)(cookie >> 32);
	return r;
}

static int diag_tag(struct meter *m, int fd, uint32_t number, enum since since)
{
	struct meter_of_diag *d = diag_of(m);
	struct diag_row *row = find_row(d, number);
	cleanup(freep) struct diag_socket *s = calloc(1, sizeof(*s));
	struct diag_socket *old, *next;
	struct answer a;
	int r;

	if (!s || !row)
		return -ENOMEM;
	r = socket_cookie(fd, &s->cookie);
	if (r == 0)
		r = request_of(fd, s->cookie, &s->request);
	if (r < 0)
		return r;
	r = diag_mark(m, NULL, NULL);
	if (r < 0)
		return r;
	list_for_each_safe(old, next, &d->sockets, link) {
		if (old->cookie != s->cookie)
			continue;
		old->row->totals.closed++;
		remove_socket(old);
		since = SINCE_NOW; /* the other row has what it carried */
	}
	r = diag_ask(d, &s->request, &a);
	if (r < 0 && r != -ENOENT)
		return r;
	row->totals.sockets++;
	if (r == -ENOENT) { /* in another namespace */
		row->unseen++;
		return 0;
	}
	s->waited_ns = num_now_ns();
	spent_of(&a, s->waited_ns, s->spent);
	s->row = row;
	if (since == SINCE_NOW) {
		counters_of(&a, s->base);
		row->totals.adopted += a.info.tcpi_bytes_sent || a.info.tcpi_bytes_received;
	} else {
		/* A SYN was acknowledged, which is no byte of anybody's. */
		s->base[COUNTER_SUBMITTED] = s->base[COUNTER_DELIVERED] = since == SINCE_DIALLED;
		socket_count(s, &a);
	}
	list_append(&d->sockets, &s->link);
	(void)take_ptr(s);
	return 0;
}

static int diag_read(struct meter *m, uint32_t number, struct reading *ret)
{
	const struct diag_row *row = find_row(diag_of(m), number);
	enum quality quality = QUALITY_EXACT;

	if (!row)
		return -ENOENT;
	if (row->unseen && row->unseen == row->totals.sockets)
		quality = QUALITY_ABSENT;
	else if (row->unseen || row->sampled)
		quality = QUALITY_SAMPLED;
	ret->totals = row->totals;
	for (int i = 0; i < N_COUNTERS; i++)
		ret->quality[i] = quality;
	ret->opened = QUALITY_EXACT;
	ret->ended = quality == QUALITY_ABSENT ? QUALITY_ABSENT : QUALITY_SAMPLED;
	return 0;
}

static int diag_events_fd(struct meter *m)
{
	(void)m;
	return -1;
}

const struct meter_kind meter_diag = {
	.name = "diag",
	.open = diag_open,
	.close = diag_close,
	.check = diag_check,
	.add_row = diag_add_row,
	.remove_row = diag_remove_row,
	.tag = diag_tag,
	.mark = diag_mark,
	.read = diag_read,
	.events_fd = diag_events_fd,
};
