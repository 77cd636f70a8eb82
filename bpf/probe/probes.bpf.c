/*
 * Calls of processes into libraries
 *
 * Each probed function has two programs: one keeps the arguments at the call, one reports them at the return. They
 * run in the calling thread, which waits for them; they read the memory that the function's plan names, and change
 * nothing. A call that never returns is never reported.
 */
#include "bpf/probe/probes.bpf.h"

#include "bpf/base/kernel.bpf.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "bpf/base/allowance.bpf.h"

#define PENDING_MAX 4096 /* calls at the same time */
#define CALL_COUNTS_MAX 4096
#define HOPS_MAX 2 /* to a name */
#define GONE " (deleted)"
#if defined(__TARGET_ARCH_x86)
#define RETURN_ADDRESS_SIZE 8 /* on the stack at the call, and no more at the return */
#else
#define RETURN_ADDRESS_SIZE 0
#endif

char LICENSE[] SEC("license") = "Dual MIT/GPL";

const volatile struct plan plans[SITES_MAX];
const volatile struct name names[NAMES_MAX];
const volatile __u32 n_names;
const volatile __u32 collector; /* its tgid */
const volatile __u8 type_sizes[TYPES_MAX];

struct missed missed;
__u32 epoch; /* grows when the collector reads the call_counts */
struct mapping found; /* result of the iterator; only one iterator runs at a time */

/* How much of it was of the process that it is at. The collector looks at itself in between, which does not count. */
struct {
	__u32 tgid;
	__u32 n;
} at;

/* A function may end by jumping to another one: the new call is at the same place of the stack. */
struct pending {
	__u64 thread;
	__u64 sp;
	__u64 site;
};

/* A thread that was killed leaves its calls here, until others need the room. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PENDING_MAX);
	__type(key, struct pending);
	__type(value, struct probe_call);
} pending SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CALL_COUNTS_MAX);
	__type(key, struct call_count_key);
	__type(value, struct call_count);
} call_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} calls SEC(".maps");

/* Returns a copy: the verifier then sees all members checked against one cookie. */
static __always_inline struct plan plan_of(__u64 site)
{
	const volatile struct plan *p = &plans[site & (SITES_MAX - 1)];

	return (struct plan){
		.take = p->take,
		.take_arg = p->take_arg,
		.take_size = p->take_size,
		.take_from = p->take_from,
		.file = p->file,
		.file_arg = p->file_arg,
		.out = p->out,
		.out_arg = p->out_arg,
		.out_from = p->out_from,
		.also_done = p->also_done,
		.is_counted = p->is_counted,
		.counts = p->counts,
		.count_arg = p->count_arg,
		.type_arg = p->type_arg,
		.is_named = p->is_named,
		.name_hops = p->name_hops,
		.name_from = p->name_from,
	};
}

static __always_inline __u64 arg_of(const struct probe_call *c, __u8 i)
{
	__u64 arg = 0;

	for (int k = 0; k < CALL_ARGS; k++)
		if (i == k)
			arg = c->args[k];
	return arg;
}

static __always_inline void probe_call_take(struct probe_call *c, struct plan plan, __u64 address)
{
	__u32 size = plan.take_size;

	barrier_var(size); /* a comparison of its lowest byte alone is not understood */
	if (size > CALL_DATA_SIZE)
		size = CALL_DATA_SIZE;
	c->has_data = bpf_probe_read_user(c->data, size, (void *)(address + plan.take_from)) == 0;
}

static __always_inline void take_name(struct probe_call *c, struct plan plan)
{
	__u64 address = c->args[0];

	for (int i = 0; i < HOPS_MAX; i++)
		if (i < plan.name_hops &&
		    bpf_probe_read_user(&address, sizeof(address), (void *)address) < 0)
			return;
	/* All zero where it cannot be read. */
	bpf_probe_read_user(c->name, sizeof(c->name), (void *)(address + plan.name_from));
}

/* Reads the open file of the running thread. */
static __always_inline void take_file(struct probe_call *c, __u32 fd)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **files, *file = 0;

	if (fd >= BPF_CORE_READ(table, max_fds))
		return;
	files = BPF_CORE_READ(table, fd);
	if (bpf_probe_read_kernel(&file, sizeof(file), files + fd) < 0 || !file)
		return;
	c->file = (__u64)file;
	c->inode = (__u64)BPF_CORE_READ(file, f_inode);
}

SEC("uprobe")
int on_call(struct pt_regs *ctx)
{
	__u64 site = bpf_get_attach_cookie(ctx);
	struct plan plan = plan_of(site);
	struct pending key = {.thread = bpf_get_current_pid_tgid(),
			      .sp = PT_REGS_SP(ctx),
			      .site = site};
	struct probe_call c = {};

	c.ns = bpf_ktime_get_ns();
	c.sp = key.sp;
	c.args[0] = PT_REGS_PARM1(ctx);
	c.args[1] = PT_REGS_PARM2(ctx);
	c.args[2] = PT_REGS_PARM3(ctx);
	c.args[3] = PT_REGS_PARM4(ctx);
	c.args[4] = PT_REGS_PARM5(ctx);
	c.args[5] = SIXTH_ARGUMENT(ctx);
	c.tid = (__u32)key.thread;
	c.site = site;
	if (plan.take == TAKE_AT_CALL)
		probe_call_take(&c, plan, arg_of(&c, plan.take_arg));
	else if (plan.take == TAKE_VALUE)
		probe_call_take(&c, plan,
				RETURN_ADDRESS_SIZE ? key.sp + RETURN_ADDRESS_SIZE
						    : arg_of(&c, plan.take_arg));
	if (plan.file == FILE_IN)
		take_file(&c, arg_of(&c, plan.file_arg));
	if (plan.is_named)
		take_name(&c, plan);
	bpf_map_update_elem(&pending, &key, &c, BPF_ANY);
	return 0;
}

static __always_inline void take_at_return(struct probe_call *c, struct plan plan)
{
	__u32 size = plan.out, fd = 0;

	if (plan.take == TAKE_AT_RETURN)
		probe_call_take(c, plan, arg_of(c, plan.take_arg));
	else if (plan.take == TAKE_RESULT && c->result)
		probe_call_take(c, plan, c->result);
	barrier_var(size);
	if (size > sizeof(c->out))
		size = sizeof(c->out);
	if (size)
		c->has_out = bpf_probe_read_user(&c->out, size,
						 (void *)(arg_of(c, plan.out_arg) + plan.out_from)) ==
			     0;
	if (plan.file == FILE_OUT &&
	    bpf_probe_read_user(&fd, sizeof(fd), (void *)arg_of(c, plan.file_arg)) == 0)
		take_file(c, fd);
}

static __always_inline struct call_count *call_count_of(__u32 tgid, __u32 site)
{
	struct call_count_key key = {.tgid = tgid, .site = site};
	struct call_count *t = bpf_map_lookup_elem(&call_counts, &key);
	struct call_count none = {};

	if (t)
		return t;
	none.uid = (__u32)bpf_get_current_uid_gid();
	none.epoch = epoch - 1;
	bpf_get_current_comm(none.comm, sizeof(none.comm));
	bpf_map_update_elem(&call_counts, &key, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&call_counts, &key);
}

/* Announces new counts once until they are read. */
static __always_inline void call_count_announce(struct call_count *t, __u32 site)
{
	__u32 now = *(volatile __u32 *)&epoch;
	struct probe_call *report;

	if (t->epoch == now)
		return;
	report = bpf_ringbuf_reserve(&calls, sizeof(*report), 0);
	if (!report) /* the next call announces it */
		return;
	t->epoch = now;
	__builtin_memset(report, 0, sizeof(*report));
	report->site = site;
	bpf_ringbuf_submit(report, 0);
}

static __always_inline void probe_call_count(const struct probe_call *c, struct plan plan,
					     __u32 tgid, __u64 site, __u64 now, int result)
{
	struct call_count *t = call_count_of(tgid, site);

	if (!t) {
		__sync_fetch_and_add(&missed.pending, 1);
		return;
	}
	__sync_fetch_and_add(&t->calls, 1);
	__sync_fetch_and_add(&t->calling_ns, now - c->ns);
	if (result && result != plan.also_done)
		__sync_fetch_and_add(&t->errors, 1);
	else if (plan.counts)
		__sync_fetch_and_add(&t->bytes,
				     arg_of(c, plan.count_arg) *
					     type_sizes[arg_of(c, plan.type_arg) & (TYPES_MAX - 1)]);
	t->ns = now;
	call_count_announce(t, site);
}

SEC("uprobe")
int on_return(struct pt_regs *ctx)
{
	__u64 site = bpf_get_attach_cookie(ctx), now = bpf_ktime_get_ns();
	struct pending key = {.thread = bpf_get_current_pid_tgid(),
			      .sp = PT_REGS_SP(ctx) - RETURN_ADDRESS_SIZE,
			      .site = site};
	struct probe_call *c = bpf_map_lookup_elem(&pending, &key), *report;
	const struct task_struct *task = (void *)bpf_get_current_task();
	struct plan plan = plan_of(site);

	if (!c) {
		__sync_fetch_and_add(&missed.pending, 1);
		return 0;
	}
	if (plan.is_counted) {
		probe_call_count(c, plan, key.thread >> 32, site, now, (int)PT_REGS_RC(ctx));
		bpf_map_delete_elem(&pending, &key);
		return 0;
	}
	if (!allowance_take((__u32)bpf_get_current_uid_gid(), now, CALLS_OF_USER_MAX)) {
		__sync_fetch_and_add(&missed.limited, 1);
		bpf_map_delete_elem(&pending, &key);
		return 0;
	}
	report = bpf_ringbuf_reserve(&calls, sizeof(*report), 0);
	if (!report) {
		__sync_fetch_and_add(&missed.ring, 1);
		bpf_map_delete_elem(&pending, &key);
		return 0;
	}
	__builtin_memcpy(report, c, sizeof(*report));
	bpf_map_delete_elem(&pending, &key);
	/* Others may have taken its room in the map while we looked, or it is of a call that never returned. */
	if (report->tid != (__u32)key.thread || report->sp != key.sp || report->site != site) {
		__sync_fetch_and_add(&missed.pending, 1);
		bpf_ringbuf_discard(report, 0);
		return 0;
	}
	report->took_ns = now - report->ns;
	report->ns = now;
	report->result = PT_REGS_RC(ctx);
	report->began_ns = BPF_CORE_READ(task, group_leader, start_boottime);
	report->tgid = key.thread >> 32;
	report->uid = (__u32)bpf_get_current_uid_gid();
	bpf_get_current_comm(report->comm, sizeof(report->comm));
	take_at_return(report, plan);
	bpf_ringbuf_submit(report, 0);
	return 0;
}

static __always_inline int has_a_name(const struct file *file)
{
	const unsigned char *text = BPF_CORE_READ(file, f_path.dentry, d_name.name);
	char name[NAME_SIZE] = {};
	int is_so = 0;

	bpf_probe_read_kernel_str(name, sizeof(name), text);
	for (__u32 i = 0; i < NAMES_MAX; i++) {
		int is_this = i < n_names;

		for (__u32 k = 0; k < NAME_SIZE; k++)
			if (k < names[i].size && name[k] != names[i].text[k])
				is_this = 0;
		is_so |= is_this;
	}
	return is_so;
}

/*
 * Each file takes time to look at, and any process may map as many of these names as it has room for.
 */
static __always_inline int is_beyond(__u32 tgid)
{
	if (tgid == collector)
		return 0;
	if (tgid != at.tgid) {
		at.tgid = tgid;
		at.n = 0;
	}
	return at.n++ >= MAPPINGS_OF_PROCESS_MAX;
}

/* On the way from a file to the root of the collector. */
struct way {
	const struct dentry *at, *root;
	const struct vfsmount *mnt, *root_mnt;
	__u32 path_at;
	__u32 is_whole;
};

/* Puts this text before the path. False: there is no room. */
static __always_inline int path_prepend(struct way *w, const void *text, __u32 size)
{
	if (size >= MAPPING_NAME_SIZE || size > w->path_at)
		return 0;
	w->path_at -= size;
	return bpf_probe_read_kernel(&found.path[w->path_at & (MAPPING_PATH_SIZE - 1)],
				     size & (MAPPING_NAME_SIZE - 1), text) == 0;
}

/* From the root of what is mounted to the place where that is. Returns 1 if there is none. */
static __always_inline long leave_mount(struct way *w)
{
	const struct mount *m = (const void *)w->mnt - bpf_core_field_offset(struct mount, mnt);
	const struct mount *above = BPF_CORE_READ(m, mnt_parent);

	if (above == m) {
		w->is_whole = 1;
		return 1;
	}
	w->at = BPF_CORE_READ(m, mnt_mountpoint);
	w->mnt = (const void *)above + bpf_core_field_offset(struct mount, mnt);
	return 0;
}

static long path_step(__u32 i, struct way *w)
{
	const struct dentry *at = w->at, *parent;
	const struct vfsmount *mnt = w->mnt;

	w->is_whole = at == w->root && mnt == w->root_mnt;
	if (w->is_whole)
		return 1;
	parent = BPF_CORE_READ(at, d_parent);
	if (at == parent || at == BPF_CORE_READ(mnt, mnt_root))
		return leave_mount(w);
	if (!path_prepend(w, BPF_CORE_READ(at, d_name.name), BPF_CORE_READ(at, d_name.len)) ||
	    !path_prepend(w, "/", 1))
		return 1;
	w->at = parent;
	return 0;
}

/*
 * The path of a file in the root of the collector, as bpf_d_path() has it, which newer kernels refuse for a file that a
 * mapping led to. A folder may be renamed meanwhile: the path is a hint to a file, which is compared.
 */
static __always_inline void path_find(const struct file *file)
{
	const struct task_struct *task = (const void *)bpf_get_current_task();
	const struct dentry *at = BPF_CORE_READ(file, f_path.dentry);
	struct way w = {
		.at = at,
		.root = BPF_CORE_READ(task, fs, root.dentry),
		.mnt = BPF_CORE_READ(file, f_path.mnt),
		.root_mnt = BPF_CORE_READ(task, fs, root.mnt),
		.path_at = MAPPING_PATH_SIZE - 1,
	};

	found.path[w.path_at] = 0;
	if (BPF_CORE_READ(at, d_hash.pprev) || path_prepend(&w, GONE, sizeof(GONE) - 1))
		bpf_loop(MAPPING_DEEP, path_step, &w, 0);
	found.path_at = w.is_whole ? w.path_at : MAPPING_PATH_SIZE - 1;
}

/* Reports each executable mapping of a file that has one of the names. */
SEC("iter/task_vma")
int look(struct bpf_iter__task_vma *ctx)
{
	struct vm_area_struct *vma = ctx->vma;
	struct task_struct *task = ctx->task;
	struct file *file;

	if (!task || !vma || !(vma->vm_flags & VM_EXEC))
		return 0;
	file = vma->vm_file;
	if (!file || !has_a_name(file) || is_beyond(task->tgid))
		return 0;
	found.inode = (__u64)file->f_inode;
	found.ino = file->f_inode->i_ino;
	found.dev = file->f_inode->i_sb->s_dev;
	found.tgid = task->tgid;
	path_find(file);
	bpf_seq_write(ctx->meta->seq, &found, sizeof(found));
	return 0;
}
