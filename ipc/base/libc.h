/*
 * Functions that glibc has after 2.28
 *
 * The wheel of Python runs with glibc 2.28, as torch does: there a program that needs a newer function does not start. System
 * calls do without the function; a weak reference is NULL where the C library has none. A test compares what the programs need.
 */
#pragma once

#include <spawn.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

const char *strerrorname_np(int error) __attribute__((weak));
const char *sigabbrev_np(int signal) __attribute__((weak));
int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t *actions, int from)
	__attribute__((weak));

static inline int libc_close_range(unsigned first, unsigned last)
{
	return (int)syscall(SYS_close_range, first, last, 0);
}

static inline int libc_pidfd_open(pid_t pid)
{
	return (int)syscall(SYS_pidfd_open, pid, 0);
}

static inline pid_t libc_gettid(void)
{
	return (pid_t)syscall(SYS_gettid);
}

/* "EPERM"; NULL before glibc 2.32. */
static inline const char *libc_error_name(int error)
{
	return strerrorname_np ? strerrorname_np(error) : NULL;
}

/* "KILL"; NULL for what is no signal, and before glibc 2.32. */
static inline const char *libc_signal_name(int signal)
{
	return sigabbrev_np ? sigabbrev_np(signal) : NULL;
}

/* Before glibc 2.34 close-on-exec has to do, which all descriptors of ours have. */
static inline int libc_spawn_close_from(posix_spawn_file_actions_t *actions, int from)
{
	return posix_spawn_file_actions_addclosefrom_np
		       ? posix_spawn_file_actions_addclosefrom_np(actions, from)
		       : 0;
}
