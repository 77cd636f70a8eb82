/*
 * Provision: how far the server is with the memory that a load waits for
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "libclient/connection/client.h"
#include "libclient/load/progress.h"

struct provision {
	struct progress *progress;
	const char *name; /* of the buffer, on the host */
	uint64_t total;
	uint64_t done; /* as the server said last */
	struct weightd *observer; /* a connection to ask on while the other waits; NULL: nobody is asked */
	bool is_cancelled;
};

/* `w` is where the load goes; nothing is asked without a progress function, or of a GPU's memory. */
void provision_init(struct provision *p, struct weightd *w, struct progress *progress,
		    const char *name, const char *device, uint64_t total);
void provision_deinit(struct provision *p);

/* As client_call::tick, of a struct provision. */
int provision_tick(void *userdata);
/* All of it is there. 0, or -ECANCELED. */
int provision_end(struct provision *p);
