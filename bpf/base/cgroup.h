/*
 * Control groups: the group of a process, and the container of a group
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#define CONTAINER_SIZE 65 /* with the NUL */

/*
 * Returns the path in the text of /proc/PID/cgroup, which it changes, that shows most. NULL: none.
 */
const char *cgroup_parse(char *text);
/* The same of a process; the caller frees it. NULL: unknown. */
char *cgroup_of(pid_t pid);

/* The number of a container that runs in a group of this path, 12 to 64 hexadecimal digits; false: it is none. */
bool cgroup_container(const char *path, char ret[CONTAINER_SIZE]);

/*
 * A group of version 2 by its path, that in its hierarchy or that of its directory: a descriptor with which it can be
 * looked at, and the former, which the caller frees. -ENOENT: there is none; -ENOTSUP: there is no hierarchy of version 2.
 */
int cgroup_open(const char *path, int *ret_fd, char **ret_path);
