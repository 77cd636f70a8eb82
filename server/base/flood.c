#include "server/base/flood.h"

#include "ipc/base/num.h"
#include "server/base/log.h"

bool flood_admits(struct flood *f, const char *what)
{
	uint64_t now = num_now_ns();

	if (now - f->since_ns > FLOOD_WINDOW_NS) {
		if (f->n > FLOOD_MAX)
			log_warning("%u more %s were not logged", f->n - FLOOD_MAX, what);
		*f = (struct flood){.since_ns = now};
	}
	return ++f->n <= FLOOD_MAX;
}
