/*
 * Descriptors of memory that one process passes to another
 *
 * The programs are at functions of the kernel that run when a descriptor is passed, and nowhere else: a message
 * without one, on whatever socket, runs none of them. They change nothing.
 *
 * The sender of a descriptor is found by the list that the kernel makes of the descriptors of each message. The
 * receiver gets that list or a copy of it, as in older kernels and when it only peeks (MSG_PEEK). So descriptors of
 * one file that one process sends again while another sends it, too, are never mixed up.
 */
#include "bpf/event/fd_passing.bpf.h"

#include "bpf/base/kernel.bpf.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "bpf/base/allowance.bpf.h"

#define LISTS_MAX 8192 /* on their way */
#define S_IFMT 0170000
#define S_IFREG 0100000
#define S_IFCHR 0020000
#define TMPFS_MAGIC 0x01021994
#define HUGETLBFS_MAGIC 0x958458f6
#define DMA_BUF_MAGIC 0x444d4142
#define NVIDIACTL                                                                                  \
	(195 << 20 | 255) /* as the kernel has devices; exports of CUDA are open files of it */

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct msghdr;
struct socket;

struct unreported unreported;

/*
 * A message that was sent. The next one at its place in memory has the same address, but mostly not the same files.
 */
struct sent {
	struct giver from;
	__u64 first; /* index of its first file */
	__u64 n;
};

/*
 * Found by their addresses. Those of messages that are never received stay until others need the room.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LISTS_MAX);
	__type(key, __u64);
	__type(value, struct sent);
} lists SEC(".maps");

/* The message that a thread is about to receive. */
struct coming {
	struct giver from;
	__u64 file; /* that alone; 0: all of a message */
	__u8 by; /* enum by */
	__u8 has_from;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct coming);
} comings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

static __always_inline enum memory memory_of(const struct file *file)
{
	const struct inode *inode = BPF_CORE_READ(file, f_inode);
	unsigned short type = BPF_CORE_READ(inode, i_mode) & S_IFMT;
	unsigned long magic = BPF_CORE_READ(inode, i_sb, s_magic);
	const struct dentry *dentry;

	if (type == S_IFCHR)
		return BPF_CORE_READ(inode, i_rdev) == NVIDIACTL ? MEMORY_NVIDIA : MEMORY_NONE;
	if (magic == DMA_BUF_MAGIC)
		return MEMORY_DMA_BUF;
	if (type != S_IFREG)
		return MEMORY_NONE;
	if (magic == HUGETLBFS_MAGIC)
		return MEMORY_HUGETLB;
	if (magic != TMPFS_MAGIC)
		return MEMORY_NONE;
	dentry = BPF_CORE_READ(file, f_path.dentry);
	return BPF_CORE_READ(dentry, d_parent) == dentry ? MEMORY_MEMFD : MEMORY_TMPFS;
}

static __always_inline int read_list(const struct scm_fp_list *list, struct sent *s)
{
	s->n = BPF_CORE_READ(list, count);
	return bpf_core_read(&s->first, sizeof(s->first), &list->fp[0]);
}

/* NULL: the sender was not seen. */
static __always_inline const struct sent *sent_find(const struct scm_fp_list *list)
{
	__u64 key = (__u64)list;
	const struct sent *s = bpf_map_lookup_elem(&lists, &key);
	struct sent now = {};

	if (!s || read_list(list, &now) < 0 || s->first != now.first || s->n != now.n)
		return 0;
	return s;
}

/*
 * Attached first, so that it sees every copy of a list that was seen. The kernel sends such a copy in place of the
 * list that it made first, and delivers one of a message that stays in its queue.
 */
SEC("fexit/scm_fp_dup")
int BPF_PROG(on_fds_copy, struct scm_fp_list *list, struct scm_fp_list *copy)
{
	const struct sent *s = sent_find(list);
	__u64 key = (__u64)copy;

	if (!copy)
		return 0;
	if (s)
		bpf_map_update_elem(&lists, &key, s, BPF_ANY);
	else
		bpf_map_delete_elem(&lists, &key);
	return 0;
}

SEC("fexit/__scm_send")
int BPF_PROG(on_fds_send, struct socket *socket, struct msghdr *message, struct scm_cookie *scm,
	     int r)
{
	const struct scm_fp_list *list = scm->fp;
	__u64 key = (__u64)list;
	struct sent s = {};

	if (r < 0 || !list || read_list(list, &s) < 0)
		return 0;
	s.from.ns = bpf_ktime_get_ns();
	s.from.tgid = bpf_get_current_pid_tgid() >> 32;
	s.from.uid = (__u32)bpf_get_current_uid_gid();
	bpf_get_current_comm(s.from.comm, sizeof(s.from.comm));
	bpf_map_update_elem(&lists, &key, &s, BPF_ANY);
	return 0;
}

static __always_inline struct coming *coming_to_us(__u64 flags)
{
	return bpf_task_storage_get(&comings, bpf_get_current_task_btf(), 0, flags);
}

SEC("fentry/scm_detach_fds")
int BPF_PROG(on_fds_come, struct msghdr *message, struct scm_cookie *scm)
{
	const struct scm_fp_list *list = scm->fp;
	const struct sent *s = sent_find(list);
	struct coming *c = coming_to_us(BPF_LOCAL_STORAGE_GET_F_CREATE);
	__u64 key = (__u64)list;

	if (c) {
		c->by = BY_MESSAGE;
		c->file = 0;
		c->has_from = s != 0;
		if (s)
			c->from = s->from;
	}
	bpf_map_delete_elem(&lists, &key);
	return 0;
}

SEC("fexit/scm_detach_fds")
int BPF_PROG(on_fds_came, struct msghdr *message, struct scm_cookie *scm)
{
	bpf_task_storage_delete(&comings, bpf_get_current_task_btf());
	return 0;
}

/* The descriptor that pidfd_getfd() takes from a process. */
SEC("fexit/fget_task")
int BPF_PROG(on_fd_take, struct task_struct *task, unsigned fd, struct file *file)
{
	struct coming *c;

	if (!file || memory_of(file) == MEMORY_NONE)
		return 0;
	c = coming_to_us(BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!c)
		return 0;
	c->by = BY_PIDFD;
	c->file = (__u64)file;
	c->has_from = 1;
	c->from.ns = bpf_ktime_get_ns();
	c->from.tgid = task->tgid;
	c->from.uid = BPF_CORE_READ(task, real_cred, uid.val);
	BPF_CORE_READ_STR_INTO(&c->from.comm, task, group_leader, comm);
	return 0;
}

static __always_inline void passed_fd_fill(struct passed_fd *p, const struct file *file,
					   const struct coming *c)
{
	const struct inode *inode = BPF_CORE_READ(file, f_inode);
	const struct dentry *dentry = BPF_CORE_READ(file, f_path.dentry);
	__u64 thread = bpf_get_current_pid_tgid();

	p->bytes = BPF_CORE_READ(inode, i_size);
	p->ino = BPF_CORE_READ(inode, i_ino);
	p->tgid = thread >> 32;
	p->tid = (__u32)thread;
	p->by = BY_OTHER;
	p->has_from = 0;
	if (c) {
		p->by = c->by;
		p->has_from = c->has_from;
		p->from = c->from;
	}
	p->is_memfd = BPF_CORE_READ(dentry, d_parent) == dentry;
	bpf_get_current_comm(p->comm, sizeof(p->comm));
	if (bpf_probe_read_kernel_str(p->name, sizeof(p->name),
				      BPF_CORE_READ(dentry, d_name.name)) < 0)
		p->name[0] = 0;
}

static __always_inline void passed_fd_report(const struct file *file, enum memory memory, int fd,
					     const struct coming *c)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 uid = (__u32)bpf_get_current_uid_gid();
	struct passed_fd *p;

	if (!allowance_take(uid, now, PASSED_OF_USER_MAX)) {
		__sync_fetch_and_add(&unreported.limited, 1);
		return;
	}
	p = bpf_ringbuf_reserve(&events, sizeof(*p), 0);
	if (!p) {
		__sync_fetch_and_add(&unreported.ring, 1);
		return;
	}
	p->ns = now;
	p->uid = uid;
	p->fd = fd;
	p->memory = memory;
	passed_fd_fill(p, file, c);
	bpf_ringbuf_submit(p, 0);
}

/* Once for each descriptor. Before Linux 6.8 it is called __receive_fd. */
SEC("fexit/receive_fd")
int BPF_PROG(on_fd_receive, struct file *file, int *to, unsigned flags, int fd)
{
	enum memory memory = memory_of(file);
	struct coming *c;

	if (memory == MEMORY_NONE)
		return 0;
	c = coming_to_us(0);
	if (c && c->file && c->file != (__u64)file)
		c = 0;
	if (fd >= 0)
		passed_fd_report(file, memory, fd, c);
	if (c && c->file)
		bpf_task_storage_delete(&comings, bpf_get_current_task_btf());
	return 0;
}

/*
 * The function under pidfd_getfd() before Linux 6.8. The compiler may have inlined the other one into it, which is
 * not called then.
 */
SEC("fexit/receive_fd")
int BPF_PROG(on_fd_taken, struct file *file, unsigned flags, int fd)
{
	struct coming *c = coming_to_us(0);

	if (!c || c->file != (__u64)file)
		return 0;
	if (fd >= 0)
		passed_fd_report(file, memory_of(file), fd, c);
	bpf_task_storage_delete(&comings, bpf_get_current_task_btf());
	return 0;
}
