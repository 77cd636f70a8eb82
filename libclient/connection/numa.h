/*
 * The NUMA nodes of host memory that the server makes for this process
 */
#pragma once

#include <stdbool.h>

#include "ipc/base/numa.h"
#include "libclient/connection/client.h"

struct numa_wish {
	struct numa_policy policy;
	bool is_implied; /* by the memory policy and the CPUs of the calling thread */
};

/* The wish of weightd_create_options::numa, `words`, for a version on `device`. -EINVAL, with a sentence. */
int numa_find_wish(const char *words, const char *device, struct numa_wish *ret, struct sentence *s);

/*
 * Has the server place the memory of the next creates so, unless it does already. An implied wish that it does not fulfil is
 * ignored, unless the calling thread is bound to nodes that the server may not use. An error with w->fd < 0: the connection is lost.
 */
int numa_ask(struct weightd *w, const struct numa_wish *wish);
