/*
 * Bytes of TCP connections, counted by TCP
 *
 * No program here runs when bytes are sent or received, except the two at the end, which are attached only while
 * calls are counted. The kernel counts the bytes. `mark`, an iterator that the collector runs, adds to the totals
 * what each followed socket carried since the last time, and a socket that is destroyed adds the rest itself. Both
 * may do so at once: the iterator adds nothing if the base changed under its reading, and the socket tries again.
 *
 * `mark` visits the sockets that have storage, of all network namespaces. Some kernels refuse that iterator.
 * `mark_tcp` then visits all sockets of one namespace. It looks up `unread` for those that TCP has in no table any more.
 *
 * `adopt` follows the sockets that processes have already, in all namespaces. Newer kernels let no program follow a
 * socket to which a file led it, but let it read anything: `want` then notes the sockets, and `mark_tcp` follows them.
 */
#include "bpf/tcp/meter.bpf.h"

#include "bpf/tcp/kernel.bpf.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define AF_INET 2
#define IPPROTO_TCP 6
#define CGROUPS_DEEP 32 /* levels above a process that are looked at */
#define FLUSHES_MAX 4 /* no iterator gets in between more often */
#define READS_MAX                                                                                  \
	4 /* nor does how a connection spends its time change more often between two reads */
#define MSG_PEEK 0x2
#define MSG_ERRQUEUE 0x2000
#define RETRANSMIT_NS 10000000 /* between two events of one socket */

char LICENSE[] SEC("license") = "Dual MIT/GPL";

const volatile __u64 jiffy_ns; /* how long one is */
const volatile __u8 by_namespace; /* the kernel refuses `mark` */

__u32 look; /* the number of the current mark, or of the last */
__u32 n_wanted; /* nothing is looked up in `wanted` while it is 0 */
__u32 n_missed; /* that `wanted` has no room for */
__u32 n_unread; /* entries of `unread`, at least: it is large, and not walked through while this is 0 */

/* One socket's row is changed by the next mark, which sets the cookie to 0. */
__u64 tag_cookie;
__u32 tag_row;
__u8 tag_since; /* enum since */

__u32 n_cgroups; /* that are watched */

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	/* Connections that a listener accepts are followed as it is. */
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags,
	       BPF_F_NO_PREALLOC); /* as are the others: most have room that is never used */
	__uint(max_entries, 262144);
	__type(key, __u32); /* row */
	__type(value, struct totals);
} totals SEC(".maps");

/* Processes with all of their sockets followed. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 32768);
	__type(key, __u32); /* tgid */
	__type(value, __u32); /* row */
} watched SEC(".maps");

/* Control groups of version 2, likewise of all processes in them and below. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 32768);
	__type(key, __u64); /* its number */
	__type(value, __u32); /* row */
} watched_cgroups SEC(".maps");

/* Rows with counted calls, too. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, __u32); /* row */
	__type(value, struct calls);
} calls SEC(".maps");

/* Sockets that watched processes have already, until mark_tcp() visits them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, WANTED_MAX);
	__type(key, struct socket_name);
	__type(value, struct want);
} wanted SEC(".maps");

/* Connections that are over with unread bytes, by their addresses; only without `mark`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct unread);
} unread SEC(".maps");

/* Network namespaces of connections that are followed, or wanted; `mark` and `adopt` need none. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, NAMESPACES_MAX);
	__type(key, __u32); /* its inode */
	__type(value, __u32); /* the look that saw one there last */
} namespaces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

static __always_inline __u32 netns_of(const struct sock *sk)
{
	return BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum);
}

static __always_inline void note_namespace(__u32 inum)
{
	__u32 now = look;

	bpf_map_update_elem(&namespaces, &inum, &now, BPF_ANY);
}

static __always_inline int has_unread(const struct tcp_sock *tp)
{
	return tp->rcv_nxt != tp->copied_seq;
}

static __always_inline void read_counters(struct tcp_sock *tp, struct flow *f, __u64 *c)
{
	struct sock *sk = (struct sock *)tp;
	__u32 unacked = tp->write_seq - tp->snd_una, unread = tp->rcv_nxt - tp->copied_seq;
	__u64 acked = tp->bytes_acked, peer_fin = sk->__sk_common.skc_flags >> SOCK_DONE & 1;

	acked -= acked ? f->syn : 0;
	c[COUNTER_SUBMITTED] = acked + unacked - f->fin;
	c[COUNTER_DELIVERED] = acked - (f->fin && !unacked);
	c[COUNTER_RECEIVED] = tp->bytes_received - peer_fin;
	/* An unread FIN is among the unread bytes. */
	c[COUNTER_CONSUMED] = tp->bytes_received - unread - (unread ? 0 : peer_fin);
	c[COUNTER_WIRE] = tp->bytes_sent;
	c[COUNTER_RETRANS_BYTES] = tp->bytes_retrans;
	c[COUNTER_RETRANS_SEGMENTS] = tp->total_retrans;
}

/* Value of tcp_sock::chrono_type. */
static __always_inline enum limit limit_of(__u8 chrono)
{
	switch (chrono) {
	case TCP_CHRONO_BUSY:
		return LIMIT_BUSY;
	case TCP_CHRONO_RWND_LIMITED:
		return LIMIT_RECEIVE_WINDOW;
	case TCP_CHRONO_SNDBUF_LIMITED:
		return LIMIT_SEND_BUFFER;
	default:
		return LIMIT_PRODUCER;
	}
}

/* How TCP spent its time since some moment long ago. */
static __always_inline void read_spent(const struct tcp_sock *tp, __u64 *spent)
{
	__u64 now, stat[N_LIMITS_OF_TCP] = {};
	__u32 start;
	__u8 chrono;

	/* TCP has not added up the running period yet; it is added for this look. */
	for (int i = 0; i < READS_MAX; i++) {
		start = tp->chrono_start;
		chrono = BPF_CORE_READ_BITFIELD(tp, chrono_type);
		stat[LIMIT_BUSY] = tp->chrono_stat[TCP_CHRONO_BUSY - 1];
		stat[LIMIT_RECEIVE_WINDOW] = tp->chrono_stat[TCP_CHRONO_RWND_LIMITED - 1];
		stat[LIMIT_SEND_BUFFER] = tp->chrono_stat[TCP_CHRONO_SNDBUF_LIMITED - 1];
		barrier();
		if (*(const volatile __u32 *)&tp->chrono_start == start)
			break;
	}
	now = bpf_jiffies64();
	switch (limit_of(chrono)) {
	case LIMIT_BUSY:
		stat[LIMIT_BUSY] += (__u32)now - start;
		break;
	case LIMIT_RECEIVE_WINDOW:
		stat[LIMIT_RECEIVE_WINDOW] += (__u32)now - start;
		break;
	case LIMIT_SEND_BUFFER:
		stat[LIMIT_SEND_BUFFER] += (__u32)now - start;
		break;
	default:
		break;
	}
	stat[LIMIT_PRODUCER] = now - stat[LIMIT_BUSY] - stat[LIMIT_RECEIVE_WINDOW] -
			       stat[LIMIT_SEND_BUFFER];
	for (int i = 0; i < N_LIMITS_OF_TCP; i++)
		spent[i] = stat[i] * jiffy_ns;
}

static __always_inline enum limit busy_with(const struct tcp_sock *tp)
{
	const struct sock *sk = (const void *)tp;
	struct sender s = {
		.buffer = sk->sk_sndbuf,
		.queued = sk->sk_wmem_queued,
		.notsent = tp->write_seq - tp->snd_nxt,
		.mss = tp->mss_cache,
		.n_packets = tp->packets_out,
		.cwnd = tp->snd_cwnd,
		.since_ack_us = ((__u32)bpf_jiffies64() - tp->rcv_tstamp) * (jiffy_ns / 1000),
		.srtt_us = tp->srtt_us >> 3,
		.pacing_rate = sk->sk_pacing_rate,
		.max_pacing_rate = sk->sk_max_pacing_rate,
	};

	return limit_of_busy(&s);
}

static __always_inline void flush_spent(const struct tcp_sock *tp, struct flow *f, struct totals *t)
{
	__u64 base[N_LIMITS_OF_TCP], spent[N_LIMITS_OF_TCP];
	enum limit limit;

	__builtin_memcpy(base, f->spent, sizeof(base));
	barrier();
	read_spent(tp, spent);
	for (int i = 0; i < N_LIMITS_OF_TCP; i++) {
		limit = i == LIMIT_BUSY ? busy_with(tp) : i;
		if (__sync_val_compare_and_swap(&f->spent[i], base[i], spent[i]) == base[i])
			__sync_fetch_and_add(&t->limit_ns[limit], spent[i] - base[i]);
	}
}

/*
 * A timer of the connection ran out: it has waited in vain since the last acknowledgement, whatever TCP accounts for
 * that time. A retransmission or a mark shows the timer.
 */
static __always_inline void count_wait(const struct tcp_sock *tp, struct flow *f, struct totals *t)
{
	const struct inet_connection_sock *icsk = (const void *)tp;
	__u64 now = bpf_jiffies64(), before = f->waited, from;
	__s32 since_ack = (__s32)((__u32)now - tp->rcv_tstamp);
	enum limit limit;

	if (icsk->icsk_retransmits >= UNANSWERED || icsk->icsk_probes_out >= UNANSWERED)
		limit = LIMIT_SILENT;
	else if (BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state) == TCP_CA_LOSS)
		limit = LIMIT_LOSS;
	else
		return;
	from = now - since_ack > before ? now - since_ack : before;
	if (since_ack <= 0 || from >= now ||
	    __sync_val_compare_and_swap(&f->waited, before, now) != before)
		return;
	now = (now - from) * jiffy_ns;
	__sync_fetch_and_add(&t->limit_ns[limit], now);
	limit = limit_of(BPF_CORE_READ_BITFIELD(tp, chrono_type));
	__sync_fetch_and_add(&t->limit_ns[limit], -now);
}

static __always_inline void settle_time(const struct tcp_sock *tp, struct flow *f, struct totals *t)
{
	count_wait(tp, f, t);
	flush_spent(tp, f, t);
}

/*
 * Adds what is not in the totals yet. False if another context did so meanwhile, perhaps with newer numbers.
 */
static __always_inline int flow_flush(struct tcp_sock *tp, struct flow *f, struct totals *t)
{
	__u64 base[N_COUNTERS], c[N_COUNTERS];
	__u8 life = f->life;
	int done = 1;

	if (life == LIFE_NONE)
		return 1;
	__builtin_memcpy(base, f->base, sizeof(base));
	barrier();
	read_counters(tp, f, c);
	barrier();
	/* Counters of a socket that was disconnected meanwhile, or before, mean nothing. */
	if (*(volatile __u8 *)&f->life != life)
		return 0;
	if (life == LIFE_OVER && c[COUNTER_RECEIVED] < base[COUNTER_RECEIVED])
		return 1;
	for (int i = 0; i < N_COUNTERS; i++) {
		if (life == LIFE_OVER && i != COUNTER_CONSUMED)
			continue;
		if (__sync_val_compare_and_swap(&f->base[i], base[i], c[i]) == base[i])
			__sync_fetch_and_add(&t->counter[i], c[i] - base[i]);
		else
			done = 0;
	}
	return done;
}

/* The last one, against the iterator on another processor. */
static __always_inline void flush_finally(struct tcp_sock *tp, struct flow *f, struct totals *t)
{
	for (int i = 0; i < FLUSHES_MAX && !flow_flush(tp, f, t); i++)
		;
}

static __always_inline void sample_fill(struct sample *s, struct tcp_sock *tp, const struct flow *f)
{
	struct sock *sk = (struct sock *)tp;
	const struct sock_common *c = &sk->__sk_common;

	__builtin_memset(s, 0, sizeof(*s));
	s->ns = bpf_ktime_get_ns();
	s->cookie = f->cookie;
	s->row = f->row;
	s->bytes_sent = tp->bytes_sent;
	s->bytes_retrans = tp->bytes_retrans;
	s->bytes_acked = tp->bytes_acked;
	s->bytes_received = tp->bytes_received;
	s->netns = c->skc_net.net->ns.inum;
	s->srtt_us = tp->srtt_us >> 3;
	s->min_rtt_us = tp->rtt_min.s[0].v;
	s->cwnd = tp->snd_cwnd;
	s->total_retrans = tp->total_retrans;
	s->notsent = tp->write_seq - tp->snd_nxt;
	s->unacked = tp->snd_nxt - tp->snd_una;
	s->family = c->skc_family;
	s->local_port = c->skc_num ?: f->port;
	s->peer_port = bpf_ntohs(c->skc_dport);
	s->state = c->skc_state;
	if (s->family == AF_INET) {
		*(__be32 *)s->local = c->skc_rcv_saddr;
		*(__be32 *)s->peer = c->skc_daddr;
	} else {
		BPF_CORE_READ_INTO(&s->local, sk, __sk_common.skc_v6_rcv_saddr.in6_u.u6_addr8);
		BPF_CORE_READ_INTO(&s->peer, sk, __sk_common.skc_v6_daddr.in6_u.u6_addr8);
	}
}

/* The socket gets into `state` behind us. */
static __always_inline void flow_emit(struct tcp_sock *tp, const struct flow *f, struct totals *t,
				      enum tcp_event_kind kind, __u8 state)
{
	struct tcp_event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e) {
		__sync_fetch_and_add(&t->lost, 1);
		return;
	}
	e->kind = kind;
	sample_fill(&e->sample, tp, f);
	e->sample.state = state;
	bpf_ringbuf_submit(e, 0);
}

static __always_inline struct totals *totals_of(const struct flow *f)
{
	__u32 row = f->row;

	return bpf_map_lookup_elem(&totals, &row);
}

/* Returns the row of the nearest group that is watched. */
static __always_inline __u32 *row_of_cgroup(const struct task_struct *task)
{
	const struct cgroup *cgroup;
	__u32 *row;
	__u64 id;

	if (!bpf_core_field_exists(task->cgroups)) /* a kernel without them */
		return 0;
	cgroup = BPF_CORE_READ(task, cgroups, dfl_cgrp);
	for (int i = 0; i < CGROUPS_DEEP && cgroup; i++) {
		id = BPF_CORE_READ(cgroup, kn, id);
		row = bpf_map_lookup_elem(&watched_cgroups, &id);
		if (row)
			return row;
		cgroup = BPF_CORE_READ(cgroup, self.parent, cgroup);
	}
	return 0;
}

/* The row of a process that is watched, by itself or by its group. */
static __always_inline __u32 *row_of_task(const struct task_struct *task)
{
	__u32 tgid = BPF_CORE_READ(task, tgid), *row = bpf_map_lookup_elem(&watched, &tgid);

	return !row && n_cgroups ? row_of_cgroup(task) : row;
}

/* The flow of a socket, which is in that row if it is in none. */
static __always_inline struct flow *flow_in_row(struct sock *sk, __u32 row)
{
	struct flow *f = bpf_sk_storage_get(&flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!f || totals_of(f))
		return f;
	f->cookie = bpf_get_socket_cookie(sk);
	f->row = row;
	f->life = LIFE_NONE;
	return f;
}

/* The flow of a socket of this process. */
static __always_inline struct flow *flow_follow(struct sock *sk, const struct task_struct *task)
{
	struct flow *f = bpf_sk_storage_get(&flows, sk, 0, 0);
	__u32 *row;

	if (f && totals_of(f))
		return f;
	row = row_of_task(task);
	return row ? flow_in_row(sk, *row) : f;
}

static __always_inline void flow_begin(const struct tcp_sock *tp, struct flow *f)
{
	if (by_namespace)
		note_namespace(netns_of((const struct sock *)tp));
	f->waited = bpf_jiffies64();
	read_spent(tp, f->spent);
	f->life = LIFE_OPEN;
}

/*
 * Adds the socket to its row; `t` are the totals of that row. A connection that is older than that counts from now on.
 */
static __always_inline void flow_join(struct tcp_sock *tp, struct flow *f, struct totals *t,
				      __u8 since)
{
	struct sock *sk = (struct sock *)tp;
	__u8 state = sk->__sk_common.skc_state;
	int is_whole = 0;

	if (state == BPF_TCP_SYN_SENT) /* the programs did not see its SYN */
		f->syn = 1;
	if (state == BPF_TCP_CLOSE || state == BPF_TCP_LISTEN || state == BPF_TCP_SYN_SENT ||
	    state == BPF_TCP_SYN_RECV)
		return;
	if (f->life == LIFE_NONE) {
		f->port = sk->__sk_common.skc_num;
		f->fin = state == BPF_TCP_FIN_WAIT1 || state == BPF_TCP_FIN_WAIT2 ||
			 state == BPF_TCP_CLOSING || state == BPF_TCP_LAST_ACK;
		if (since == SINCE_NOW) {
			read_counters(tp, f, f->base);
		} else {
			__builtin_memset(f->base, 0, sizeof(f->base));
			f->syn = since == SINCE_DIALLED;
		}
		flow_begin(tp, f);
		is_whole = since != SINCE_NOW;
	}
	__sync_fetch_and_add(&t->sockets, 1);
	if (is_whole)
		(void)flow_flush(tp, f, t); /* if it fails, the next mark flushes */
	else if (tp->bytes_sent || tp->bytes_received)
		__sync_fetch_and_add(&t->adopted, 1);
}

static __always_inline void flow_adopt(struct tcp_sock *tp, struct flow *f)
{
	struct totals *t = f ? totals_of(f) : 0;

	if (t && f->life == LIFE_NONE)
		flow_join(tp, f, t, SINCE_NOW);
}

static __always_inline void on_established(struct sock *sk, struct flow *f)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	struct totals *t = totals_of(f);

	if (!tp || !t)
		return;
	f->port = sk->__sk_common.skc_num;
	flow_begin(tp, f);
	__sync_fetch_and_add(&t->sockets, 1);
	flow_emit(tp, f, t, TCP_EVENT_OPEN, BPF_TCP_ESTABLISHED);
}

/* A connection that is over is looked for until its process has read what it received. */
static __always_inline void await_reader(const struct tcp_sock *tp, const struct flow *f)
{
	__u64 address = (__u64)tp;
	struct unread u = {
		.cookie = f->cookie,
		.received = f->base[COUNTER_RECEIVED],
		.consumed = f->base[COUNTER_CONSUMED],
		.row = f->row,
	};

	__sync_fetch_and_add(&n_unread, 1);
	bpf_map_update_elem(&unread, &address, &u, BPF_ANY);
}

/*
 * Reads a socket that may end meanwhile, and its memory become another one's. It is in the map until it ends. Returns
 * whether it has no unread bytes any more.
 */
static __always_inline int unread_flush(__u64 address, struct unread *u)
{
	const struct tcp_sock *tp = (const void *)address;
	const struct sock *sk = (const void *)address;
	__u64 base = u->consumed, received, consumed;
	__u32 left, row = u->row;
	const struct unread *now;
	struct totals *t;
	__u8 fin;

	barrier();
	received = BPF_CORE_READ(tp, bytes_received);
	left = BPF_CORE_READ(tp, rcv_nxt) - BPF_CORE_READ(tp, copied_seq);
	fin = BPF_CORE_READ(sk, __sk_common.skc_flags) >> SOCK_DONE & 1;
	if (BPF_CORE_READ(sk, __sk_common.skc_cookie.counter) != u->cookie)
		return 0;
	barrier();
	now = bpf_map_lookup_elem(&unread, &address);
	if (!now || now->cookie != u->cookie || received - fin < u->received)
		return 0;
	consumed = received - left - (left ? 0 : fin);
	t = bpf_map_lookup_elem(&totals, &row);
	if (t && __sync_val_compare_and_swap(&u->consumed, base, consumed) == base)
		__sync_fetch_and_add(&t->counter[COUNTER_CONSUMED], consumed - base);
	return left == 0;
}

static long visit_unread(void *map, const __u64 *address, struct unread *u, void *context)
{
	if (tag_cookie && u->cookie == tag_cookie) {
		unread_flush(*address, u);
		u->row = tag_row;
		tag_cookie = 0;
	}
	unread_flush(*address, u);
	return 0;
}

/* The last one. False: it is not awaited. */
static __always_inline int end_wait(const struct sock *sk)
{
	__u64 address = (__u64)sk;
	struct unread *u = by_namespace ? bpf_map_lookup_elem(&unread, &address) : 0;

	if (!u)
		return 0;
	unread_flush(address, u);
	if (bpf_map_delete_elem(&unread, &address) == 0)
		__sync_fetch_and_add(&n_unread, -1);
	return 1;
}

/*
 * Before disconnect() takes its counters and addresses away. It is counted as closed before it is so: a census that
 * looks in between finds one too many, and never one too few.
 */
static __always_inline void on_over(struct sock *sk, struct flow *f)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	struct totals *t = totals_of(f);
	int is_awaited;

	if (!tp || !t)
		return;
	is_awaited = by_namespace && has_unread(tp);
	settle_time(tp, f, t);
	flush_finally(tp, f, t);
	__sync_fetch_and_add(&t->closed, 1);
	f->life = LIFE_OVER;
	if (is_awaited)
		await_reader(tp, f);
	flow_emit(tp, f, t, TCP_EVENT_CLOSE, BPF_TCP_CLOSE);
}

/* Programs that a kernel may refuse are first: libbpf loads them in this order, and the others take long. */

/* The sockets that watched processes have already. */
SEC("iter/task_file")
int adopt(struct bpf_iter__task_file *ctx)
{
	const struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct socket *socket = file ? bpf_sock_from_file(file) : 0;
	struct sock *sk = socket ? socket->sk : 0;
	struct tcp_sock *tp = sk ? bpf_skc_to_tcp_sock(sk) : 0;

	if (task && tp)
		flow_adopt(tp, flow_follow(sk, task));
	return 0;
}

/*
 * Updates the totals, and writes a sample of each connection: once in a look, however many iterators visit
 * it and however often one repeats it, as the kernel does when its buffer is full.
 */
static __always_inline void flow_visit(struct seq_file *seq, struct tcp_sock *tp, struct flow *f)
{
	struct totals *t = totals_of(f);
	struct sample s;

	if (!t) /* no collector waits for it any more */
		f->life = LIFE_NONE;
	else if (!by_namespace ||
		 f->life != LIFE_OVER) /* else it is in `unread`, or all is counted */
		(void)flow_flush(tp, f, t);
	if (t && f->life == LIFE_OPEN)
		settle_time(tp, f, t);
	if (tag_cookie && f->cookie == tag_cookie) {
		tag_cookie = 0;
		if (t && f->life == LIFE_OPEN)
			__sync_fetch_and_add(&t->closed, 1); /* only the totals of that row */
		f->row = tag_row;
		t = totals_of(f);
		if (t)
			flow_join(tp, f, t, tag_since);
	}
	if (!t || f->life != LIFE_OPEN || f->seen == look)
		return;
	if (by_namespace)
		note_namespace(netns_of((const struct sock *)tp));
	sample_fill(&s, tp, f);
	if (bpf_seq_write(seq, &s, sizeof(s)) == 0)
		f->seen = look;
}

SEC("iter/bpf_sk_storage_map")
int mark(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sock *sk = ctx->sk;
	struct tcp_sock *tp = sk ? bpf_skc_to_tcp_sock(sk) : 0;
	struct flow *f = ctx->value;

	if (tp && f)
		flow_visit(ctx->meta->seq, tp, f);
	return 0;
}

static __always_inline void follow_wanted(struct tcp_sock *tp)
{
	const struct socket_alloc *socket = (const void *)BPF_CORE_READ((struct sock *)tp,
									sk_socket);
	struct socket_name name = {.address = (__u64)tp,
				   .ino = BPF_CORE_READ(socket, vfs_inode.i_ino)};
	const struct want *want = bpf_map_lookup_elem(&wanted, &name);

	if (!want)
		return;
	flow_adopt(tp, flow_in_row((struct sock *)tp, want->row));
	bpf_map_delete_elem(&wanted, &name);
}

SEC("iter/tcp")
int mark_tcp(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;
	struct tcp_sock *tp = sk ? bpf_skc_to_tcp_sock(sk) : 0;
	struct flow *f;

	if (!sk && n_unread) /* after the last one */
		bpf_for_each_map_elem(&unread, visit_unread, 0, 0);
	if (!tp)
		return 0;
	if (n_wanted)
		follow_wanted(tp);
	f = bpf_sk_storage_get(&flows, tp, 0, 0);
	if (f)
		flow_visit(ctx->meta->seq, tp, f);
	return 0;
}

/* The same, for kernels that refuse it: sockets that TCP has in a table are wanted. */
SEC("iter/task_file")
int want(struct bpf_iter__task_file *ctx)
{
	const struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct socket *socket = file ? bpf_sock_from_file(file) : 0;
	const struct sock *sk = socket ? BPF_CORE_READ(socket, sk) : 0;
	struct socket_name name = {};
	struct want want = {};
	__u32 *row;

	if (!task || !sk || BPF_CORE_READ(sk, sk_protocol) != IPPROTO_TCP ||
	    BPF_CORE_READ(sk, __sk_common.skc_state) == BPF_TCP_CLOSE)
		return 0;
	row = row_of_task(task);
	if (!row)
		return 0;
	name.address = (__u64)sk;
	name.ino = BPF_CORE_READ(file, f_inode, i_ino);
	want.row = *row;
	want.netns = netns_of(sk);
	if (bpf_map_update_elem(&wanted, &name, &want, BPF_ANY) == 0)
		n_wanted++;
	else
		n_missed++;
	note_namespace(want.netns);
	return 0;
}

/* Called twice for each change, the second time to no effect. */
static __always_inline void see_state(struct sock *sk, int before, int state)
{
	struct flow *f;

	if (sk->sk_protocol != IPPROTO_TCP)
		return;
	/* The process itself causes these two changes; all others may have any context. */
	if (state == BPF_TCP_SYN_SENT || state == BPF_TCP_LISTEN)
		f = flow_follow(sk, (const struct task_struct *)bpf_get_current_task());
	else
		f = bpf_sk_storage_get(&flows, sk, 0, 0);
	if (!f)
		return;
	if (state == BPF_TCP_SYN_SENT ||
	    (before == BPF_TCP_SYN_RECV && f->cookie != bpf_get_socket_cookie(sk))) {
		__builtin_memset(f->base, 0, sizeof(f->base));
		end_wait(sk);
		f->cookie = bpf_get_socket_cookie(sk);
		f->retrans_ns = 0;
		f->life = LIFE_NONE;
		f->fin = 0;
		f->syn = state == BPF_TCP_SYN_SENT;
	}
	if (state == BPF_TCP_ESTABLISHED && f->life == LIFE_NONE)
		on_established(sk, f);
	else if (state == BPF_TCP_FIN_WAIT1 || state == BPF_TCP_LAST_ACK)
		f->fin = 1;
	else if (state == BPF_TCP_CLOSE && f->life == LIFE_OPEN)
		on_over(sk, f);
}

/*
 * The kernel does not run a program that it has interrupted on this processor: what a softirq does to another
 * socket meanwhile would go unseen. It interrupts only one of these two.
 */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_state, struct sock *sk, int before, int state)
{
	see_state(sk, before, state);
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_state_too, struct sock *sk, int before, int state)
{
	see_state(sk, before, state);
	return 0;
}

SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(on_destroy, struct sock *sk)
{
	struct flow *f = bpf_sk_storage_get(&flows, sk, 0, 0);
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	struct totals *t;

	if (!f || end_wait(sk))
		return 0;
	t = totals_of(f);
	if (t && tp)
		flush_finally(tp, f, t);
	return 0;
}

SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(on_retransmit, struct sock *sk)
{
	struct flow *f = bpf_sk_storage_get(&flows, sk, 0, 0);
	__u64 now = bpf_ktime_get_ns();
	struct tcp_sock *tp;
	struct totals *t;

	if (!f || f->life != LIFE_OPEN)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	t = totals_of(f);
	if (!tp || !t)
		return 0;
	count_wait(tp, f, t);
	if (now - f->retrans_ns < RETRANSMIT_NS)
		return 0;
	f->retrans_ns = now;
	flow_emit(tp, f, t, TCP_EVENT_RETRANSMIT, sk->__sk_common.skc_state);
	return 0;
}

/* The highest bit of it that is set. */
static __always_inline __u32 class_of(__u32 n)
{
	__u32 class = 0, shift;

	for (int bits = 16; bits > 0; bits /= 2) {
		shift = n >> bits ? bits : 0;
		class += shift;
		n >>= shift;
	}
	return class % CALL_SIZES;
}

static __always_inline void count_call(struct sock *sk, enum call call, int n)
{
	struct calls *c;
	struct flow *f;
	__u32 row;

	if (n <= 0 || sk->sk_protocol != IPPROTO_TCP)
		return;
	f = bpf_sk_storage_get(&flows, sk, 0, 0);
	if (!f)
		return;
	row = f->row;
	c = bpf_map_lookup_elem(&calls, &row);
	if (!c)
		return;
	__sync_fetch_and_add(&c->of[call].bytes, n);
	__sync_fetch_and_add(&c->of[call].of_size[class_of(n)], 1);
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(on_send, struct sock *sk, int n, int flags)
{
	count_call(sk, CALL_SEND, n);
	return 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(on_receive, struct sock *sk, int n, int flags)
{
	if (!(flags & (MSG_PEEK | MSG_ERRQUEUE))) /* calls with these flags take no bytes */
		count_call(sk, CALL_RECEIVE, n);
	return 0;
}
