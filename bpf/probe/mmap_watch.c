#include "bpf/probe/mmap_watch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

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
		if (!*ret_why[i])
			(void)snprintf(ret_why[i], WHY_SIZE, "%s", strerror(-r));
	}
	return r;
}

/* The best last, as it says what can be done. */
void arrivals_say_why(const char why[N_ARRIVALS_KINDS][WHY_SIZE], char ret_why[WHY_SIZE])
{
	int n = 0;

	for (size_t i = N_ARRIVALS_KINDS; i-- > 0 && n < WHY_SIZE;)
		n += snprintf(ret_why + n, (size_t)(WHY_SIZE - n), "%s%s: %s", n ? "; " : "",
			      arrivals_kinds[i]->hook, why[i]);
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
