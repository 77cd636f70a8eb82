/*
 * libsystemd
 *
 * libsystemd.so.0 as a table of functions, opened by soname where a service manager or the journal asks for it: neither
 * the build nor a machine without systemd needs it. Only this file and its .c name its symbols; a test compares these
 * declarations with systemd's own.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/* X(field, result, parameters): sd_FIELD of the library. */
#define LIBSYSTEMD_FUNCTIONS(X)                                                                    \
	X(listen_fds_with_names, int, (int unset_environment, char ***ret_names))                  \
	X(is_socket_unix, int, (int fd, int type, int listens, const char *path, size_t size))     \
	X(watchdog_enabled, int, (int unset_environment, uint64_t *ret_usec))                      \
	X(notify, int, (int unset_environment, const char *state))                                 \
	X(journal_sendv, int, (const struct iovec *fields, int n))                                 \
	X(pid_get_unit, int, (pid_t pid, char **ret_name))                                         \
	X(pid_get_slice, int, (pid_t pid, char **ret_name))

struct libsystemd {
#define X(field, result, parameters) result(*field) parameters;
	LIBSYSTEMD_FUNCTIONS(X)
#undef X
};

/*
 * Opens it at the first call, which takes milliseconds, as it has libraries of its own; it stays open. NULL if it cannot be
 * opened: then `ret_why` is a clause with the way out, which lives as long as the program. Any thread may call it.
 */
const struct libsystemd *libsystemd_open(const char **ret_why);
