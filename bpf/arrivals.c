#include "bpf/arrivals.h"

int arrivals_open(struct arrivals **ret, char ret_why[WHY_SIZE])
{
	return arrivals_perf.open(ret, ret_why);
}

void arrivals_close(struct arrivals *a)
{
	if (a)
		a->kind->close(a);
}

int arrivals_fd(const struct arrivals *a)
{
	return a->kind->fd(a);
}

int arrivals_take(struct arrivals *a, arrivals_fn fn, void *context)
{
	return a->kind->take(a, fn, context);
}
