/*
 * Loads each program alone, and frees it. Meanwhile an iterator is attached for a moment; on_call only for a path that
 * the kernel must refuse.
 */
#include "bpf/probe/probe_needs.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/capability.h>

#include "bpf/base/programs.h"
#include "bpf/probe/mappings.h"
#include "bpf/probe/mmap_watch.h"
#include "bpf/probe/probes.bpf.h"
#include "bpf/probe/uprobe_multi.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

#include <bpf/probe/probes.skel.h>

const struct probe_need probe_needs[N_PROBE_NEEDS] = {
	{"on_call", "uprobe_multi", UPROBE_MULTI_SINCE,
	 "calls of CUDA, NCCL and verbs, and events of weightd"},
	{"look", "iter/task_vma", BPF_SINCE,
	 "processes that have a library or weightd, and with that all that "
	 "probes see"},
	{NULL, "perf/mmap", BPF_SINCE,
	 "processes that load one later, and with that all that probes see"},
};

static void probes_destroyp(struct probes_bpf **bpf)
{
	probes_bpf__destroy(*bpf);
}

/* Loads it alone: 0, or negative errno. */
static int need_try(const struct probe_need *need)
{
	cleanup(probes_destroyp) struct probes_bpf *bpf = probes_bpf__open();
	cleanup(program_link_freep) struct bpf_link *link = NULL;
	cleanup(fd_closep) int fd = -1;
	int r;

	if (!bpf)
		return -errno;
	(void)bpf_program__set_expected_attach_type(bpf->progs.on_call, UPROBE_MULTI_ATTACH_TYPE);
	program_choose(bpf->obj, need->program);
	mappings_choose(bpf);
	r = probes_bpf__load(bpf);
	if (r < 0)
		return r;
	if (bpf_program__autoload(bpf->progs.on_call))
		return uprobe_multi_check(bpf_program__fd(bpf->progs.on_call));
	link = bpf_program__attach_iter(bpf->progs.look, NULL);
	fd = link ? program_iterate(link) : -errno;
	return fd < 0 ? fd : 0;
}

static void check_mmap_watch(char ret_why[WHY_SIZE])
{
	char why[N_MMAP_WATCH_KINDS][WHY_SIZE];
	struct mmap_watch *mmap_watch;

	if (mmap_watch_open(&mmap_watch, why) == 0)
		mmap_watch_close(mmap_watch);
	else if (support_has_capability(CAP_PERFMON) || support_has_capability(CAP_SYS_ADMIN))
		mmap_watch_explain(why, ret_why);
	else
		support_explain(-EPERM, BPF_SINCE, ret_why);
}

void probe_needs_check(struct probe_findings *ret)
{
	int r;

	for (size_t i = 0; i < N_PROBE_NEEDS; i++) {
		*ret->why_not[i] = '\0';
		r = probe_needs[i].program ? need_try(&probe_needs[i]) : 0;
		if (r < 0)
			support_explain(r, probe_needs[i].since, ret->why_not[i]);
		if (!probe_needs[i].program)
			check_mmap_watch(ret->why_not[i]);
	}
}
