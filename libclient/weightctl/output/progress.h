/*
 * Progress of a load or a push, on standard error: a bar on a terminal, a line for each tenth elsewhere
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "libclient/weightctl/output/rate.h"

/* The phase of a push in which bytes move; its others have none to count. */
#define PROGRESS_SEND "send"
/* The same of a load from another node. */
#define PROGRESS_RECEIVE "receive"

struct progress {
	const char *name; /* buffer that is loaded or pushed */
	bool quiet;
	bool bar;
	bool drawn; /* the terminal's line is ours at the moment */
	uint64_t drawn_ns;
	char phase[16];
	uint64_t phase_total;
	struct rate rate; /* in the phase */
	unsigned tenths; /* tenths of the phase that are printed already */
	bool stalls; /* no byte arrives at the moment */
};

void progress_init(struct progress *p, const char *name, bool quiet);
void progress_update(struct progress *p, const char *phase, uint64_t done, uint64_t total);
/* Characters that clear the line of a bar; "" for none. */
const char *progress_clear(const struct progress *p);
/* Leaves the terminal as it was. Before anything else is printed; once or more often. */
void progress_finish(struct progress *p);
