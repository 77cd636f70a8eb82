/*
 * What flows.bpf.c and the collector tell each other
 *
 * Bytes are an application's own: neither SYN nor FIN is one, whatever the kernel's counters say.
 */
#pragma once

#include <linux/types.h>

enum counter {
	COUNTER_SUBMITTED, /* bytes handed to the kernel to send */
	COUNTER_DELIVERED, /* of these, acknowledged by the other end */
	COUNTER_RECEIVED, /* bytes that came in, each once */
	COUNTER_CONSUMED, /* of these, taken by the application */
	COUNTER_WIRE, /* bytes sent, those sent again included */
	COUNTER_RETRANS_BYTES,
	COUNTER_RETRANS_SEGMENTS,
	N_COUNTERS,
};

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

/* In the storage of a socket, whence it goes with it. */
struct flow {
	__u64 cookie; /* of another socket: a copy of the listener's, which the kernel made */
	__u64 base[N_COUNTERS]; /* what is in the totals */
	__u64 retrans_ns; /* of the last event of a retransmission */
	__u32 row;
	__u16 port; /* the kernel forgets it before the socket is destroyed */
	__u8 life; /* enum life */
	__u8 syn; /* bytes_acked has one, ours */
	__u8 fin; /* write_seq has one, ours */
	__u8 unused[7];
};

/* Of all sockets of a row, those that are gone included. */
struct totals {
	__u64 counter[N_COUNTERS];
	__u64 sockets; /* connections that were ever counted */
	__u64 adopted; /* of these, that had carried bytes before */
	__u64 closed; /* of these, that are counted here no more */
	__u64 lost; /* events for which the ring had no room */
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
	__u8 local[16], peer[16]; /* of IPv4 the first four */
};

enum event_kind {
	EVENT_OPEN,
	EVENT_CLOSE,
	EVENT_RETRANSMIT,
	N_EVENTS,
};

struct event {
	__u64 kind;
	struct sample sample;
};
