/*
 * Arrivals: processes that begin to map a file of which they may execute what is in it
 *
 * The kernel tells of every such mapping on the machine, as it does perf(1): when a program starts, and when a library
 * is loaded by one that runs. It needs CAP_PERFMON, and changes nothing in any process.
 */
#pragma once

#include <sys/types.h>

struct arrivals;

int arrivals_open(struct arrivals **ret);
void arrivals_close(struct arrivals *a);
/* Readable when there is one; no more so once that was asked, as by epoll_ctl(), whether it was taken or not. */
int arrivals_fd(const struct arrivals *a);
/*
 * All that there are: the process, and the file's name without its folders. How many times the kernel told of anything;
 * -ENOBUFS: it had no room for some, of which nobody knows.
 */
int arrivals_take(struct arrivals *a, void (*fn)(void *context, pid_t pid, const char *name),
		  void *context);
