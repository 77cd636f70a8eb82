/*
 * The few members of the kernel's structs that meter.bpf.c reads
 *
 * libbpf finds their places in the running kernel when it loads the programs (CO-RE): names and types matter here,
 * order and gaps do not.
 */
#pragma once

#include <linux/bpf.h>

#define SOCK_DONE 1 /* bit of sock_common::skc_flags: the peer's FIN has arrived */

enum tcp_chrono { /* value of tcp_sock::chrono_type; chrono_stat begins with the first that is any */
	TCP_CHRONO_UNSPEC,
	TCP_CHRONO_BUSY,
	TCP_CHRONO_RWND_LIMITED,
	TCP_CHRONO_SNDBUF_LIMITED,
};

#define TCP_CA_LOSS 4 /* inet_connection_sock::icsk_ca_state */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	union {
		__u8 u6_addr8[16];
	} in6_u;
};

typedef struct {
	long long counter;
} atomic64_t;

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	unsigned long skc_flags;
	atomic64_t skc_cookie; /* 0: nobody asked for it yet */
};

struct sock {
	struct sock_common __sk_common;
	__u16 sk_protocol;
	struct socket *sk_socket;
	int sk_sndbuf;
	int sk_wmem_queued;
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate; /* ~0: there is none */
};

struct inet_connection_sock {
	__u8 icsk_ca_state : 5;
	__u8 icsk_retransmits;
	__u8 icsk_probes_out;
};

struct minmax_sample {
	__u32 t;
	__u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_sock {
	__u64 bytes_received;
	__u64 bytes_sent;
	__u64 bytes_acked;
	__u64 bytes_retrans;
	__u32 rcv_nxt;
	__u32 copied_seq;
	__u32 snd_nxt;
	__u32 mss_cache;
	__u32 snd_una;
	__u32 write_seq;
	__u32 srtt_us;
	__u32 snd_cwnd;
	__u32 packets_out;
	__u32 total_retrans;
	__u32 rcv_tstamp;
	__u32 chrono_start;
	__u32 chrono_stat[3];
	__u8 chrono_type : 2;
	struct minmax rtt_min;
};

struct socket {
	struct sock *sk;
};

struct inode {
	unsigned long i_ino;
};

struct file {
	struct inode *f_inode;
};

struct socket_alloc {
	struct socket socket;
	struct inode vfs_inode;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup *dfl_cgrp; /* its group of version 2 */
};

struct task_struct {
	int tgid;
	struct css_set *cgroups;
};

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct sock *sk;
	void *value;
};

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	struct file *file;
};

#pragma clang attribute pop
