/*
 * Mappings that the program in mmap_watch.bpf.c reports, in one ring, for kernels that refuse perf
 *
 * It runs at each mapping on the machine, and nowhere else; for a mapping that is not executable it returns at once.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "bpf/base/programs.h"
#include "bpf/base/ring.h"
#include "bpf/base/support.h"
#include "bpf/probe/mmap_watch.bpf.h"
#include "bpf/probe/mmap_watch.h"
#include "ipc/base/list.h"

#include <bpf/probe/mmap_watch.skel.h>

struct mmap_watch_of_fentry {
	struct mmap_watch mmap_watch;
	struct mmap_watch_bpf *bpf;
	struct ring ring;
	uint64_t n_missed; /* reported already */
	mmap_watch_fn fn; /* while they are taken */
	void *context;
	int n_taken;
};

static struct mmap_watch_of_fentry *fentry_of(const struct mmap_watch *a)
{
	return container_of(a, struct mmap_watch_of_fentry, mmap_watch);
}

static void fentry_close(struct mmap_watch *a)
{
	struct mmap_watch_of_fentry *f = fentry_of(a);

	ring_close(&f->ring);
	mmap_watch_bpf__destroy(f->bpf);
	free(f);
}

static void mmap_event_take(void *context, const void *data, size_t size)
{
	struct mmap_watch_of_fentry *f = context;
	const struct mmap_event *a = data;

	if (size >= sizeof(*a))
		f->fn(f->context, (pid_t)a->tgid, a->name);
	f->n_taken++;
}

/* Also those for which it was not run: the thread had taken the processor from another one, in which it ran. */
static uint64_t fentry_missed(const struct mmap_watch_of_fentry *f)
{
	return f->bpf->bss->n_missed + program_misses(f->bpf->progs.on_map);
}

static int fentry_load(struct mmap_watch_of_fentry *f)
{
	int r;

	f->bpf = mmap_watch_bpf__open_and_load();
	if (!f->bpf)
		return -errno;
	r = mmap_watch_bpf__attach(f->bpf);
	if (r < 0)
		return r;
	f->n_missed = fentry_missed(f);
	return ring_open(&f->ring, f->bpf->maps.ring, mmap_event_take, f);
}

static int fentry_open(struct mmap_watch **ret, char ret_why[WHY_SIZE])
{
	struct mmap_watch_of_fentry *f = calloc(1, sizeof(*f));
	int r;

	if (!f)
		return -ENOMEM;
	f->mmap_watch.kind = &mmap_watch_fentry;
	r = fentry_load(f);
	if (r == -ESRCH)
		(void)snprintf(ret_why, WHY_SIZE, "the kernel has no function perf_event_mmap");
	else if (r < 0)
		support_explain(r, BPF_SINCE, ret_why);
	if (r < 0) {
		fentry_close(&f->mmap_watch);
		return r;
	}
	*ret = &f->mmap_watch;
	return 0;
}

static int fentry_fd(const struct mmap_watch *a)
{
	return ring_fd(&fentry_of(a)->ring);
}

static int fentry_take(struct mmap_watch *a, mmap_watch_fn fn, void *context)
{
	struct mmap_watch_of_fentry *f = fentry_of(a);
	uint64_t before = f->n_missed;

	f->fn = fn;
	f->context = context;
	f->n_taken = 0;
	ring_take_all(&f->ring);
	f->n_missed = fentry_missed(f);
	return f->n_missed == before ? f->n_taken : -ENOBUFS;
}

const struct bpf_object *mmap_watch_object(const struct mmap_watch *a)
{
	return a->kind == &mmap_watch_fentry ? fentry_of(a)->bpf->obj : NULL;
}

const struct mmap_watch_kind mmap_watch_fentry = {
	.hook = "fentry/perf_event_mmap",
	.open = fentry_open,
	.close = fentry_close,
	.fd = fentry_fd,
	.take = fentry_take,
};
