/*
 * Entries below a directory: files, links and the folders between them
 *
 * Paths are relative and stem from other users. No function follows a link, hence none leaves the directory.
 */
#pragma once

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* True for a relative path without empty components, "." and "..", of a length and depth that file systems can hold. */
bool tree_takes(const char *path);

/* Create an entry and the folders above it; `path` is one that tree_takes(). -EEXIST: the path is taken; -ENOTDIR. */
int tree_add_link(int top_fd, const char *path, const char *target);
int tree_add_file(int top_fd, const char *path, const void *data, uint64_t size);

/*
 * Removes the write permissions of everything, `top_fd` included, and leaves those of `mode`. Processes that ignore
 * modes are kept from writing by the file system, if it has a flag for that and this process may set it. tree_seal()
 * sets that flag for the top itself, which cannot be renamed from then on.
 */
int tree_protect(int top_fd, mode_t mode);
void tree_seal(int top_fd);

/* Removes everything below `top_fd`, and makes that writable for its owner. */
int tree_clear(int top_fd);

/*
 * True if everything is protected, belongs to this process's user, and the only links are at least one into a folder
 * /proc/PID/fd.
 */
bool tree_is_protected(int top_fd);

/* The same for a tree that is not protected yet. */
bool tree_is_unfinished(int top_fd);
bool tree_is_empty(int top_fd);

static inline void tree_closedirp(DIR **d)
{
	if (*d)
		(void)closedir(*d);
}
