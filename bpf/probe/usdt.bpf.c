/*
 * Events that weightd reports by its probes
 *
 * One program for all of them. It runs in the thread of weightd, which waits for it; it reads two texts and changes
 * nothing. The arguments are in the registers of a call: the notes confirm that, or the program is not attached.
 */
#include "bpf/probe/usdt.bpf.h"

#include "bpf/base/kernel.bpf.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "bpf/base/allowance.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

__u64 missed; /* there was no room, or its user had as many as it may */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

static __always_inline void read_text(char *to, __u32 size, __u64 address)
{
	if (bpf_probe_read_user_str(to, size, (void *)address) < 0)
		to[0] = 0;
}

SEC("uprobe")
int on_probe(struct pt_regs *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	__u32 uid = (__u32)bpf_get_current_uid_gid();
	__u64 now = bpf_ktime_get_ns();
	int may = uid == 0 || allowance_take(uid, now, USDT_EVENTS_PER_USER_MAX);
	struct usdt_event *s = may ? bpf_ringbuf_reserve(&events, sizeof(*s), 0) : 0;

	if (!s) {
		__sync_fetch_and_add(&missed, 1);
		return 0;
	}
	s->ns = now;
	s->tgid = bpf_get_current_pid_tgid() >> 32;
	s->uid = uid;
	s->pid_namespace = BPF_CORE_READ(task, nsproxy, pid_ns_for_children, ns.inum);
	s->kind = bpf_get_attach_cookie(ctx);
	s->args[0] = PT_REGS_PARM3(ctx);
	s->args[1] = PT_REGS_PARM4(ctx);
	s->args[2] = PT_REGS_PARM5(ctx);
	s->args[3] = SIXTH_ARGUMENT(ctx);
	read_text(s->name, sizeof(s->name), PT_REGS_PARM1(ctx));
	read_text(s->device, sizeof(s->device), PT_REGS_PARM2(ctx));
	bpf_ringbuf_submit(s, 0);
	return 0;
}
