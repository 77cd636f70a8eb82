/*
 * Files that processes map to execute them
 *
 * The program is at the kernel function that reports mappings to perf(1), and hence sees the same: new mappings, and
 * those that become executable (mprotect()). The function is not inlined, and has this argument, in all kernels that
 * were checked, 4.4 to 6.18.
 */
#include "bpf/probe/mmap_watch.bpf.h"

#include "bpf/base/kernel.bpf.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

__u64 n_missed; /* the ring had no room */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} ring SEC(".maps");

SEC("fentry/perf_event_mmap")
int BPF_PROG(on_map, struct vm_area_struct *vma)
{
	struct file *file = vma->vm_file;
	struct mmap_event *a;

	if (!file || !(vma->vm_flags & VM_EXEC))
		return 0;
	a = bpf_ringbuf_reserve(&ring, sizeof(*a), 0);
	if (!a) {
		__sync_fetch_and_add(&n_missed, 1);
		return 0;
	}
	a->tgid = bpf_get_current_pid_tgid() >> 32;
	if (bpf_probe_read_kernel_str(a->name, sizeof(a->name),
				      BPF_CORE_READ(file, f_path.dentry, d_name.name)) < 0)
		a->name[0] = 0;
	bpf_ringbuf_submit(a, 0);
	return 0;
}
