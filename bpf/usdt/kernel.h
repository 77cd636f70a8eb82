/*
 * The few members of the kernel's structs that usdt.bpf.c reads, as bpf/flows/kernel.h has those of sockets
 */
#pragma once

#include <linux/bpf.h>
/* Of a task, as it was interrupted. */
#include <linux/ptrace.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned inum;
};

struct pid_namespace {
	struct ns_common ns;
};

struct nsproxy {
	struct pid_namespace *pid_ns_for_children;
};

struct task_struct {
	struct nsproxy *nsproxy;
};

#pragma clang attribute pop
