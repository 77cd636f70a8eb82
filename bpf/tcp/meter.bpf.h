/*
 * Types that meter.bpf.c and the collector share
 *
 * Bytes are an application's own: neither SYN nor FIN is one, whatever the kernel's counters hold.
 */
#pragma once

#include <linux/types.h>

#define NAMESPACES_MAX 4096
#define WANTED_MAX 262144
#define CALL_SIZES 32 /* classes: one byte, two or three, four to seven, and so on */

enum counter {
	COUNTER_SUBMITTED, /* bytes handed to the kernel to send */
	COUNTER_DELIVERED, /* the part of these that the other end acknowledged */
	COUNTER_RECEIVED, /* bytes received, each once */
	COUNTER_CONSUMED, /* the part of these that the application has read */
	COUNTER_WIRE, /* bytes sent, those sent again included */
	COUNTER_RETRANS_BYTES,
	COUNTER_RETRANS_SEGMENTS,
	N_COUNTERS,
};

/*
 * After so many timers in a row the other end is silent: the first packet that was sent again may have been lost.
 */
#define UNANSWERED 2
#define CLOCK_US 10000 /* resolution of the kernel's time of the last acknowledgement */

/* A connection is held up by one of these at every moment. */
enum limit {
	LIMIT_BUSY, /* nothing does: bytes are on their way, as many as the path takes */
	LIMIT_RECEIVE_WINDOW, /* the other end has no room: its program does not read */
	LIMIT_SEND_BUFFER, /* ours has none, and all that is in it is on its way */
	LIMIT_PRODUCER, /* there is nothing to send */
	N_LIMITS_OF_TCP, /* TCP measures these itself; the others are found among them */
	LIMIT_PACING = N_LIMITS_OF_TCP, /* SO_MAX_PACING_RATE does: no more a second is to be sent */
	LIMIT_LOSS, /* a timer ran out before anything was sent again */
	LIMIT_SILENT, /* that was not answered either */
	N_LIMITS,
};

/* A busy sender, as TCP sees it. */
struct sender {
	__u32 buffer, queued; /* SO_SNDBUF, and what is in it */
	__u32 notsent, mss;
	__u32 n_packets, cwnd; /* on their way, and how many may be */
	__u32 since_ack_us, srtt_us;
	__u64 pacing_rate, max_pacing_rate; /* bytes a second */
};

/*
 * True if all bytes are on their way and the window has room for more; less than a packet may wait for an
 * acknowledgement. TCP counts that time as busy: it looks only when it sends, which it does no more (see
 * tcp_rate_check_app_limited()).
 */
static inline int is_all_on_its_way(const struct sender *s)
{
	return s->notsent < s->mss && s->n_packets && s->n_packets < s->cwnd &&
	       /* If its acknowledgement is later than this, a packet is lost, not on its way. */
	       s->since_ack_us <= 2 * s->srtt_us + CLOCK_US;
}

/* As sk_stream_is_writeable() of the kernel defines it. */
static inline int is_buffer_full(const struct sender *s)
{
	return (__s32)(s->buffer - s->queued) < (__s32)(s->queued / 2);
}

/*
 * TCP paces a fifth faster than its window allows, at the least, or at SO_MAX_PACING_RATE if that is less (see
 * tcp_update_pacing_rate(); BBR does so too). The rate is ~0 if it was never set. If TCP paces at that rate, has more
 * to send and room in the window, only that rate holds it back.
 */
static inline int is_paced(const struct sender *s)
{
	return s->max_pacing_rate != ~0ull && s->pacing_rate == s->max_pacing_rate && s->notsent &&
	       s->n_packets < s->cwnd;
}

/* Splits the time that TCP calls busy. */
static inline enum limit limit_of_busy(const struct sender *s)
{
	if (is_all_on_its_way(s))
		return is_buffer_full(s) ? LIMIT_SEND_BUFFER : LIMIT_PRODUCER;
	return is_paced(s) ? LIMIT_PACING : LIMIT_BUSY;
}

enum life {
	LIFE_NONE, /* not connected yet, or nothing that counts */
	LIFE_OPEN, /* connected, and flow::base is of this connection */
	LIFE_OVER, /* nothing moves any more but what was received and not taken */
};

/* From when on a connection counts that is there already. */
enum since {
	SINCE_NOW,
	SINCE_DIALLED, /* from its first byte on: this end called the other one */
	SINCE_ACCEPTED, /* the same: it was called */
};

/* The storage of a socket, freed with it. */
struct flow {
	__u64 cookie; /* another socket's if the kernel copied it from a listener's */
	__u64 base[N_COUNTERS]; /* the part in the totals */
	__u64 spent[N_LIMITS_OF_TCP]; /* the same for times, in ns */
	__u64 waited; /* until when it waited in vain, as far as that is in the totals; in jiffies */
	__u64 retrans_ns; /* time of the last retransmission event */
	__u32 row;
	__u16 port; /* the kernel forgets it before the socket is destroyed */
	__u8 life; /* enum life */
	__u8 syn; /* bytes_acked has one, ours */
	__u8 fin; /* write_seq has one, ours */
	__u8 unused[3];
	__u32 seen; /* in this look */
	__u32 unused_too;
};

/* A socket that has a file. Its memory may become another one's later, which has another inode. */
struct socket_name {
	__u64 address;
	__u64 ino;
};

/* The row in which it is to be, and its network namespace. */
struct want {
	__u32 row;
	__u32 netns;
};

/* A connection that is over with bytes that its process may still read. */
struct unread {
	__u64 cookie;
	__u64 received;
	__u64 consumed; /* the part of these in the totals */
	__u32 row;
	__u32 unused;
};

/* All sockets of a row, those that were closed included. */
struct totals {
	__u64 counter[N_COUNTERS];
	__u64 limit_ns[N_LIMITS]; /* shares of all their time; some may be below 0, see stall.c */
	__u64 sockets; /* connections that were ever counted */
	__u64 adopted; /* the part of these that had carried bytes before */
	__u64 closed; /* the part of these that are counted no more */
	__u64 lost; /* events for which the ring had no room */
};

enum call {
	CALL_SEND,
	CALL_RECEIVE,
	N_CALLS,
};

/* Those that carried bytes over the sockets of a row. */
struct calls {
	struct {
		__u64 bytes;
		__u64 of_size[CALL_SIZES];
	} of[N_CALLS];
};

/* One socket at a moment; the kernel's own numbers, as `ss -ti` has them. */
struct sample {
	__u64 ns; /* CLOCK_MONOTONIC */
	__u64 cookie;
	__u64 bytes_sent, bytes_retrans, bytes_acked, bytes_received;
	__u32 row, netns;
	__u32 srtt_us, min_rtt_us, cwnd, total_retrans, notsent, unacked;
	__u16 family, local_port, peer_port;
	__u8 state;
	__u8 unused;
	__u8 local[16], peer[16]; /* IPv4 fills the first four */
};

enum tcp_event_kind {
	TCP_EVENT_OPEN,
	TCP_EVENT_CLOSE,
	TCP_EVENT_RETRANSMIT,
	N_TCP_EVENTS,
};

struct tcp_event {
	__u64 kind;
	struct sample sample;
};
