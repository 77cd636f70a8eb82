/*
 * A file is probed as long as any process has it mapped, as the last sweep over all processes found.
 */
#include "bpf/probe/probed_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bpf/elf/elf_symbol.h"
#include "bpf/probe/uprobe_multi.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"

#define PATH_OF_FD_SIZE 32
#define GONE " (deleted)"
#define ROOT_SIZE 32 /* "/proc/4194304/root" */

void probed_files_init(struct probed_files *f, const struct mappings *mappings,
		       struct site_state *state, probed_file_fn unseen_fn, void *context)
{
	*f = (struct probed_files){.mappings = mappings,
				   .state = state,
				   .unseen_fn = unseen_fn,
				   .context = context,
				   .call_program = -1,
				   .return_program = -1};
	list_init(&f->all);
}

static void probed_file_free(struct probed_file *file)
{
	/* Its functions first: calls that return meanwhile are still reported. */
	(void)fd_close(file->call_fd);
	(void)fd_close(file->return_fd);
	free(file->path);
	free(file);
}

static void probed_file_freep(struct probed_file **file)
{
	if (*file)
		probed_file_free(*file);
}

static void probed_file_drop(struct probed_file *file)
{
	list_remove(&file->link);
	probed_file_free(file);
}

void probed_files_deinit(struct probed_files *f)
{
	struct probed_file *file, *next;

	list_for_each_safe(file, next, &f->all, link)
		probed_file_drop(file);
}

struct search {
	uint64_t inode, ino;
	uint32_t dev;
	bool is_found;
};

static void mapping_compare(void *context, const struct mapping *m)
{
	struct search *s = context;

	s->is_found |= m->inode == s->inode && m->ino == s->ino && m->dev == s->dev;
}

/*
 * True if the kernel shows that inode when we map the file: fstat() shows another one on file systems that are made
 * of others.
 */
static bool is_same_file(struct probed_files *f, const struct probed_file *file, int fd)
{
	struct search s = {.inode = file->inode, .ino = file->ino, .dev = file->dev};
	size_t size = (size_t)sysconf(_SC_PAGESIZE);
	void *page = mmap(NULL, size, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);

	if (page == MAP_FAILED)
		return false;
	(void)mappings_look(f->mappings, getpid(), mapping_compare, &s);
	(void)munmap(page, size);
	return s.is_found;
}

/* Opening never waits, whatever the file is. */
static int open_at(const char *root, const char *path, int *ret_fd, struct stat *ret)
{
	cleanup(freep) char *whole = NULL;
	cleanup(fd_closep) int fd = -1;

	if (asprintf(&whole, "%s%s", root, path) < 0) {
		whole = NULL;
		return -ENOMEM;
	}
	fd = open(whole, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, ret) < 0)
		return -errno;
	if (!S_ISREG(ret->st_mode))
		return -ENOENT;
	*ret_fd = take_fd(fd);
	return 0;
}

/* The very file, by its path here or by the path in the root of a process that has it. 0, or negative errno and why. */
static int open_same_file(struct probed_files *f, struct probed_file *file, pid_t pid, int *ret_fd)
{
	char root[ROOT_SIZE];
	const char *const roots[] = {"", root};
	int r[2] = {};

	(void)snprintf(root, sizeof(root), "/proc/%d/root", pid);
	for (int i = 0; i < 2; i++) {
		cleanup(fd_closep) int fd = -1;
		struct stat st;

		r[i] = open_at(roots[i], file->path, &fd, &st);
		if (r[i] == 0 && is_same_file(f, file, fd)) {
			file->uid = st.st_uid;
			*ret_fd = take_fd(fd);
			return 0;
		}
	}
	if (r[0] == 0 || r[0] == -ENOENT)
		(void)snprintf(
			file->why, sizeof(file->why), "its path leads to %s here: it was replaced%s",
			r[0] ? "nothing" : "another file",
			r[1] == -EACCES || r[1] == -EPERM
				? ", or is in a container, which takes CAP_SYS_PTRACE to look into"
				: "");
	else
		(void)snprintf(file->why, sizeof(file->why), "it cannot be opened: %s",
			       strerror(-r[0]));
	return -ENOENT;
}

/*
 * Returns the offset behind the mark for jump targets that a function may begin with (endbr64): the kernel has to
 * single-step it, which costs 1 microsecond, and 20 in some virtual machines, but emulates the usual next
 * instruction. Nothing has moved yet there, the return address included.
 */
static uint64_t behind_mark(int fd, uint64_t offset)
{
	static const uint8_t mark[] = {0xf3, 0x0f, 0x1e, 0xfa};
	uint8_t code[sizeof(mark)];

	if (pread(fd, code, sizeof(code), (off_t)offset) != sizeof(code) ||
	    memcmp(code, mark, sizeof(mark)) != 0)
		return offset;
	return offset + sizeof(mark);
}

static int probed_file_attach(struct probed_files *f, struct probed_file *file, int fd,
			      const uint64_t *offsets)
{
	uint64_t found[SITES_MAX], cookies[SITES_MAX];
	char path[PATH_OF_FD_SIZE];
	struct uprobe_multi multi = {.path = path, .offsets = found, .cookies = cookies};
	int r;

	for (size_t i = 0; i < file->library->n_sites; i++) {
		if (offsets[i] == ELF_SYMBOL_NONE)
			continue;
		found[multi.n] = behind_mark(fd, offsets[i]);
		cookies[multi.n++] = site_number(file->library, i);
	}
	if (multi.n == 0) {
		(void)snprintf(file->why, sizeof(file->why),
			       "it has none of the functions that are looked for");
		return -ENOENT;
	}
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	/* Returns first: every call that is seen is seen to return. */
	multi.is_return = true;
	r = uprobe_multi_attach(f->return_program, &multi, &file->return_fd);
	multi.is_return = false;
	if (r == 0)
		r = uprobe_multi_attach(f->call_program, &multi, &file->call_fd);
	if (r < 0) {
		file->return_fd = fd_close(file->return_fd);
		(void)snprintf(file->why, sizeof(file->why), "the kernel refuses it: %s",
			       strerror(-r));
		return r;
	}
	file->n_sites = multi.n;
	return 0;
}

static void probed_file_probe(struct probed_files *f, struct probed_file *file, int fd)
{
	const char *functions[SITES_MAX];
	uint64_t offsets[SITES_MAX];
	int r;

	if (file->library->attach) {
		r = file->library->attach(f->state, fd, &file->call_fd, file->why);
		file->n_sites = r > 0 ? (unsigned)r : 0;
		return;
	}
	for (size_t i = 0; i < file->library->n_sites; i++)
		functions[i] = file->library->sites[i].function;
	r = elf_symbol_find_all(fd, functions, file->library->n_sites, offsets);
	if (r < 0)
		(void)snprintf(file->why, sizeof(file->why), "it is no library: %s", strerror(-r));
	else
		(void)probed_file_attach(f, file, fd, offsets); /* it has set `why` */
}

static struct probed_file *probed_file_find(const struct probed_files *f, const struct mapping *m)
{
	struct probed_file *file;

	list_for_each(file, &f->all, link)
		if (file->inode == m->inode && file->ino == m->ino && file->dev == m->dev)
			return file;
	return NULL;
}

static bool has_room_for(const struct probed_files *f, uid_t uid)
{
	const struct probed_file *file;
	unsigned n = 0, n_of_user = 0;

	list_for_each(file, &f->all, link) {
		n += !file->is_due;
		n_of_user += !file->is_due && file->uid == uid;
	}
	return n < PROBED_FILES_MAX && (uid == 0 || n_of_user < PROBED_FILES_PER_USER_MAX);
}

static void count_process(struct probed_file *file, const struct mapping *m)
{
	if (file->n_processes == 0 || file->last_tgid != m->tgid)
		file->n_processes++;
	file->last_tgid = m->tgid;
}

/* The kernel appends " (deleted)" to the path of a file that is deleted. */
static const struct library *library_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	char name[NAME_MAX + sizeof(GONE)];
	size_t n;

	(void)snprintf(name, sizeof(name), "%s", slash ? slash + 1 : path);
	n = strlen(name);
	if (n >= strlen(GONE) && !strcmp(name + n - strlen(GONE), GONE))
		name[n - strlen(GONE)] = '\0';
	return library_named(name);
}

/* Adds a file; one that cannot be opened has an unknown owner. */
static bool probed_file_add(struct probed_files *f, const struct library *library,
			    const struct mapping *m, uint64_t since_ns)
{
	cleanup(probed_file_freep) struct probed_file *file = calloc(1, sizeof(*file));
	cleanup(fd_closep) int fd = -1;

	if (!file)
		return false;
	*file = (struct probed_file){.library = library,
				     .inode = m->inode,
				     .ino = m->ino,
				     .dev = m->dev,
				     .uid = UINT32_MAX,
				     .since_ns = since_ns,
				     .call_fd = -1,
				     .return_fd = -1};
	file->path = strdup(m->path + m->path_at);
	if (!file->path)
		return false;
	(void)open_same_file(f, file, (pid_t)m->tgid, &fd); /* it has set `why` */
	if (!has_room_for(f, file->uid))
		return false;
	if (fd >= 0)
		probed_file_probe(f, file, fd);
	if (*file->why)
		file->since_ns = since_ns ? since_ns : num_now_ns();
	else if (since_ns)
		f->unseen_fn(f->context, file);
	count_process(file, m);
	list_append(&f->all, &take_ptr(file)->link);
	return true;
}

/* A refused file may be in use from then on, and there is no record of which file it was. */
static void probed_file_refuse(struct probed_files *f, uint64_t since_ns)
{
	if (!since_ns)
		since_ns = num_now_ns();
	f->n_refused++;
	if (!f->refused_since_ns || since_ns < f->refused_since_ns)
		f->refused_since_ns = since_ns;
}

bool probed_files_add(struct probed_files *f, const struct mapping *m, uint64_t since_ns)
{
	const struct library *library = library_of(m->path + m->path_at);
	struct probed_file *known = probed_file_find(f, m);
	bool has;

	if (known && known->is_due) {
		since_ns = known->since_ns;
		probed_file_drop(known);
		known = NULL;
	}
	if (known)
		count_process(known, m);
	if (known || !library)
		return true;
	if (f->refused_since_ns && f->refused_since_ns < since_ns)
		since_ns = f->refused_since_ns;
	has = probed_file_add(f, library, m, since_ns);
	if (!has)
		probed_file_refuse(f, since_ns);
	return has;
}

/* Files that could not be probed are tried again. */
void probed_files_begin_sweep(struct probed_files *f)
{
	struct probed_file *file;

	f->n_refused = 0;
	list_for_each(file, &f->all, link) {
		file->n_processes = 0;
		file->is_due = *file->why;
	}
}

void probed_files_end_sweep(struct probed_files *f)
{
	struct probed_file *file, *next;

	list_for_each_safe(file, next, &f->all, link)
		if (file->n_processes == 0)
			probed_file_drop(file);
	if (f->n_refused == 0)
		f->refused_since_ns = 0;
}
