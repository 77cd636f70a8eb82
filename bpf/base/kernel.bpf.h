/*
 * The few members of the kernel's structs that programs at functions read; bpf/tcp/kernel.bpf.h has those of sockets
 */
#pragma once

#include <linux/bpf.h>
/* The registers of a task as it was interrupted. */
#include <linux/ptrace.h>

#define VM_EXEC 0x4

/* As PT_REGS_PARM6(), which libbpf 1.2 was the first to have. */
#if defined(__TARGET_ARCH_x86)
#define SIXTH_ARGUMENT(ctx) ((ctx)->r9)
#else
#define SIXTH_ARGUMENT(ctx) (((const struct user_pt_regs *)(ctx))->regs[5])
#endif

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct super_block {
	__u32 s_dev;
	unsigned long s_magic;
};

struct inode {
	unsigned short i_mode;
	__u32 i_rdev;
	unsigned long i_ino;
	long long i_size;
	struct super_block *i_sb;
};

struct qstr {
	__u32 len;
	const unsigned char *name;
};

struct hlist_bl_node {
	struct hlist_bl_node **pprev; /* NULL: it is in no list */
};

struct dentry {
	struct hlist_bl_node d_hash;
	struct dentry *d_parent;
	struct qstr d_name;
};

struct vfsmount {
	struct dentry *mnt_root;
};

struct mount {
	struct mount *mnt_parent; /* itself: nothing is above it */
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
};

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

struct file {
	struct inode *f_inode;
	struct path f_path;
};

struct fdtable {
	unsigned max_fds;
	struct file **fd;
};

struct fs_struct {
	struct path root;
};

struct files_struct {
	struct fdtable *fdt;
};

struct ns_common {
	unsigned inum;
};

struct pid_namespace {
	struct ns_common ns;
};

struct nsproxy {
	struct pid_namespace *pid_ns_for_children;
};

typedef struct {
	unsigned val;
} kuid_t;

struct cred {
	kuid_t uid;
};

struct task_struct {
	int tgid;
	__u64 start_boottime;
	char comm[16];
	const struct cred *real_cred;
	struct task_struct *group_leader;
	struct files_struct *files;
	struct fs_struct *fs;
	struct nsproxy *nsproxy;
};

struct vm_area_struct {
	unsigned long vm_flags;
	struct file *vm_file;
};

/* The descriptors of a message, on its way. */
struct scm_fp_list {
	short count;
	struct file *fp[1]; /* there are more */
};

struct scm_cookie {
	struct scm_fp_list *fp;
};

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task_vma {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	struct vm_area_struct *vma;
};

#pragma clang attribute pop
