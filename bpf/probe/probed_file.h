/*
 * Files that are probed, and those that are not, with the reason
 *
 * A file is found by its inode, not its path: a file that replaced another one is another file, and so is a copy in a
 * container. It is opened by the path of a mapping, and probed only if that path leads to the same file. A user that
 * owns many files has room for no more than a share.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "bpf/base/support.h"
#include "bpf/probe/mappings.h"
#include "bpf/probe/site.h"
#include "ipc/base/list.h"

#define PROBED_FILES_MAX 64
#define PROBED_FILES_PER_USER_MAX 8 /* limit for each user but root */

struct probed_file {
	struct list link; /* probed_files::all */
	const struct library *library;
	uint64_t inode, ino;
	uint32_t dev;
	uid_t uid; /* its owner */
	char *path;
	int call_fd, return_fd; /* links, or -1 */
	unsigned n_sites; /* that are probed */
	unsigned n_processes; /* that have it mapped, when all were looked at */
	uint32_t last_tgid;
	uint64_t since_ns; /* it may be in use, and was not probed; 0: it was when we began */
	bool is_due; /* to be tried again */
	char why[WHY_SIZE]; /* it is not probed; "": it is */
};

typedef void (*probed_file_fn)(void *context, const struct probed_file *file);

struct probed_files {
	struct list all; /* struct probed_file */
	unsigned n_refused; /* there was no room for */
	uint64_t refused_since_ns; /* the earliest since_ns of such, which may be any that are added later; 0: none */
	const struct mappings *mappings;
	struct site_state *state; /* state of programs with probes of their own */
	probed_file_fn unseen_fn;
	void *context;
	int call_program, return_program;
};

/* `unseen_fn`: a file was probed after a process could use it. Probes nothing before it has its two programs. */
void probed_files_init(struct probed_files *f, const struct mappings *mappings,
		       struct site_state *state, probed_file_fn unseen_fn, void *context);
void probed_files_deinit(struct probed_files *f);

/*
 * Probes the file, if it is not probed yet. No process had it mapped before `since_ns`, unless it was refused then;
 * 0: unknown. False: there was no room.
 */
bool probed_files_add(struct probed_files *f, const struct mapping *m, uint64_t since_ns);
/*
 * Between these two all mappings of all processes are added: files without a mapping are dropped.
 */
void probed_files_begin_sweep(struct probed_files *f);
void probed_files_end_sweep(struct probed_files *f);
