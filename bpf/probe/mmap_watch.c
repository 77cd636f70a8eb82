/*
 * Chooses the first kind that the kernel allows.
 */
#include "bpf/probe/mmap_watch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Perf reports threads that begin and end, too, in vain; but with it no program of ours runs. */
const struct mmap_watch_kind *const mmap_watch_kinds[N_MMAP_WATCH_KINDS] = {&mmap_watch_perf,
									    &mmap_watch_fentry};

int mmap_watch_open(struct mmap_watch **ret, char ret_why[N_MMAP_WATCH_KINDS][WHY_SIZE])
{
	int r = -ENOSYS;

	for (size_t i = 0; i < N_MMAP_WATCH_KINDS; i++) {
		*ret_why[i] = '\0';
		r = mmap_watch_kinds[i]->open(ret, ret_why[i]);
		if (r == 0)
			break;
		if (!*ret_why[i])
			(void)snprintf(ret_why[i], WHY_SIZE, "%s", strerror(-r));
	}
	return r;
}

/* The best kind is last, as its reason names the way out. */
void mmap_watch_explain(const char why[N_MMAP_WATCH_KINDS][WHY_SIZE], char ret_why[WHY_SIZE])
{
	int n = 0;

	for (size_t i = N_MMAP_WATCH_KINDS; i-- > 0 && n < WHY_SIZE;)
		n += snprintf(ret_why + n, (size_t)(WHY_SIZE - n), "%s%s: %s", n ? "; " : "",
			      mmap_watch_kinds[i]->hook, why[i]);
}

void mmap_watch_close(struct mmap_watch *a)
{
	if (a)
		a->kind->close(a);
}

int mmap_watch_fd(const struct mmap_watch *a)
{
	return a->kind->fd(a);
}

int mmap_watch_take(struct mmap_watch *a, mmap_watch_fn fn, void *context)
{
	return a->kind->take(a, fn, context);
}
