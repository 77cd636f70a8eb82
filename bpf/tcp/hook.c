/*
 * Each hook is tried alone: a kernel may have one and refuse the next, whatever rights the collector has.
 */
#include "bpf/tcp/hook.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <string.h>

#include "bpf/base/programs.h"
#include "bpf/base/support.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"

#include <bpf/tcp/meter.skel.h>

#define SHARE 10 /* looks may take one part in so many of the time */

const struct hook hooks[N_HOOKS] = {
	[HOOK_STATE] = {"on_state", "tp_btf/inet_sock_set_state", BPF_SINCE,
			"all exact counts: sock_diag counts instead"},
	[HOOK_DESTROY] = {"on_destroy", "tp_btf/tcp_destroy_sock", BPF_SINCE,
			  "bytes that are read from a connection after its end"},
	[HOOK_RETRANSMIT] = {"on_retransmit", "tp_btf/tcp_retransmit_skb", BPF_SINCE,
			     "the time of each retransmission; not their number"},
	[HOOK_MARK] =
		{"mark", "iter/bpf_sk_storage_map", BPF_SINCE,
		 "time, as iter/tcp visits all sockets at each look; without that, all that BPF counts"},
	[HOOK_MARK_TCP] = {"mark_tcp", "iter/tcp", BPF_SINCE,
			   "nothing while iter/bpf_sk_storage_map is on, but on newer kernels sockets that a "
			   "process had before it was watched"},
	[HOOK_FILES] = {"want", "iter/task_file", BPF_SINCE,
			"sockets that a process had before it was watched"},
	[HOOK_SEND] = {"on_send", "tp_btf/sock_send_length", "6.3", "the sizes of calls that send"},
	[HOOK_RECEIVE] = {"on_receive", "tp_btf/sock_recv_length", "6.3",
			  "the sizes of calls that receive"},
};

static void meter_bpf_destroyp(struct meter_bpf **bpf)
{
	meter_bpf__destroy(*bpf);
}

/* 0, or negative errno and why. */
static int hook_try(const struct hook *hook, char ret_why[WHY_SIZE])
{
	cleanup(meter_bpf_destroyp) struct meter_bpf *bpf = meter_bpf__open();
	cleanup(program_link_freep) struct bpf_link *link = NULL;
	cleanup(fd_closep) int fd = -1;
	struct bpf_program *program;
	int r = bpf ? 0 : -errno;

	if (r == 0) {
		program_choose(bpf->obj, hook->program);
		r = meter_bpf__load(bpf);
	}
	if (r == 0) {
		program = bpf_object__find_program_by_name(bpf->obj, hook->program);
		link = program == bpf->progs.mark ? program_attach_to_map(program, bpf->maps.flows)
						  : bpf_program__attach(program);
		r = link ? 0 : -errno;
		if (link && bpf_program__expected_attach_type(program) == BPF_TRACE_ITER)
			r = fd = program_iterate(link);
	}
	if (r < 0)
		support_explain(r, hook->since, ret_why);
	return r < 0 ? r : 0;
}

void hooks_look(struct findings *f)
{
	uint64_t began_ns = num_now_ns();

	if (began_ns < f->old_ns)
		return;
	for (size_t i = 0; i < N_HOOKS; i++)
		if (hook_try(&hooks[i], f->why_not[i]) == 0)
			f->why_not[i][0] = '\0';
	f->old_ns = num_now_ns() + SHARE * (num_now_ns() - began_ns);
}
