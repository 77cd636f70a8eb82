/*
 * Provision: progress of the server in providing the memory of a load, before the load reads
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "libclient/connection/client.h"
#include "libclient/load/progress.h"

struct provision {
	struct progress *progress;
	const char *name; /* name of the buffer; its device is the host */
	uint64_t total;
	uint64_t done; /* as last reported by the server */
	struct weightd *observer; /* a second connection for queries while the first one waits; NULL: no queries */
};

/*
 * `w` is the connection of the load. Without a progress function, to a server that replies after the first part, and for
 * memory of a GPU, it sends no queries.
 */
void provision_init(struct provision *p, struct weightd *w, struct progress *progress,
		    const char *name, const char *device, uint64_t total);
void provision_deinit(struct provision *p);

/* As client_call::tick, of a struct provision. */
int provision_tick(void *userdata);
/* All of it is there. As progress_report(). */
int provision_end(struct provision *p);
