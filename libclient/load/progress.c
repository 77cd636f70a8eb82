#include "libclient/load/progress.h"

#include <errno.h>
#include <string.h>

#include "ipc/base/num.h"

static bool is_time(const struct progress *p, bool at_end, uint64_t now)
{
	if (p->ended)
		return false;
	return at_end || now - p->told_ns >= PROGRESS_INTERVAL_MS * 1000000ull;
}

int progress_report(struct progress *p, const char *phase, uint64_t done, uint64_t total)
{
	/* A phase that has ended may begin again. */
	bool new_phase = !p->phase || strcmp(p->phase, phase) != 0 || (p->ended && done == 0);
	uint64_t now = num_now_ns();

	if (!p->fn || (!new_phase && !is_time(p, done >= total, now)))
		return 0;
	p->phase = phase;
	p->told_ns = now;
	p->ended = done >= total;
	return p->fn(p->userdata, phase, done, total) ? -ECANCELED : 0;
}
