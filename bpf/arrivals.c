#include "bpf/arrivals.h"

#include <errno.h>

/* Perf tells of threads that begin and end, too, in vain; but with it no program of ours runs. */
const struct arrivals_kind *const arrivals_kinds[N_ARRIVALS_KINDS] = {&arrivals_perf,
								      &arrivals_fentry};

int arrivals_open(struct arrivals **ret, char ret_why[N_ARRIVALS_KINDS][WHY_SIZE])
{
	int r = -ENOSYS;

	for (size_t i = 0; i < N_ARRIVALS_KINDS; i++) {
		*ret_why[i] = '\0';
		r = arrivals_kinds[i]->open(ret, ret_why[i]);
		if (r == 0)
			break;
	}
	return r;
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
