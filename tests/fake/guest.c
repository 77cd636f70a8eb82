#include "tests/fake/guest.h"

#include <stdlib.h>

#include "tests/fake/address.h"
#include "tests/fake/context.h"
#include "tests/fake/stream.h"

struct guest_work {
	struct work work;
	cu_result (*run)(void *arg);
	void *arg;
};

static cu_result run(struct work *w)
{
	struct guest_work *g = (struct guest_work *)w;

	return g->run(g->arg);
}

static void end(struct work *w)
{
	free(w);
}

cu_result cuFakeRun(cu_stream wanted, cu_result (*fn)(void *arg), void *arg)
{
	struct cu_stream *s;
	struct guest_work *g;
	cu_result r = stream_find(wanted, &s);

	if (r)
		return r;
	g = malloc(sizeof(*g));
	if (!g)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*g = (struct guest_work){.work = {.run = run, .end = end}, .run = fn, .arg = arg};
	return stream_submit(s, &g->work, NULL);
}

int cuFakeGpu(void)
{
	return context_check() ? -1 : context_gpu();
}

char *cuFakeBytes(cu_ptr p, uint64_t size, int gpu, bool writes, struct guest **ret)
{
	struct allocation *hold = NULL;
	uint64_t n;
	char *bytes = address_hold(p, size, gpu,
				   writes ? ADDRESS_KERNEL_WRITE : ADDRESS_KERNEL_READ, &n, &hold);

	if (!bytes || n != size) {
		allocation_unref(hold);
		return NULL;
	}
	*ret = (struct guest *)hold;
	return bytes;
}

void cuFakeLetGo(struct guest *g)
{
	allocation_unref((struct allocation *)g);
}
