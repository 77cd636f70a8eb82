/*
 * An allowance of events for each user: any user may call a library of its own by one of the names that are looked
 * for, or run a program of that name, as often as it can
 *
 * For BPF programs, each of which has a map of its own.
 */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#define ALLOWANCE_USERS_MAX 1024
#define ALLOWANCE_NS 1000000000

/* Events of a user in the second that began then. */
struct allowance {
	__u64 since_ns;
	__u64 n;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, ALLOWANCE_USERS_MAX);
	__type(key, __u32); /* uid */
	__type(value, struct allowance);
} allowances SEC(".maps");

/* Counts one more. Whether it is among the first `max` of this second. */
static __always_inline int allowance_take(__u32 uid, __u64 now, __u64 max)
{
	struct allowance *a = bpf_map_lookup_elem(&allowances, &uid);
	struct allowance first = {.since_ns = now, .n = 1};

	if (!a) {
		bpf_map_update_elem(&allowances, &uid, &first, BPF_ANY);
		return 1;
	}
	if (now - a->since_ns > ALLOWANCE_NS) {
		a->since_ns = now;
		a->n = 0;
	}
	return __sync_fetch_and_add(&a->n, 1) < max;
}
