/* Host memory takes the bytes where they belong, and there is nothing to wait for. */
#include "libclient/load/sink.h"

#include "ipc/digest.h"

static int host_open(struct sink *k, unsigned *n_threads, struct sentence *s)
{
	(void)k;
	(void)n_threads;
	(void)s;
	return 0;
}

static int host_begin(struct sink *k, unsigned thread, uint64_t leaf, char **ret, struct sentence *s)
{
	(void)thread;
	(void)s;
	*ret = (char *)k->wr->memory.data + leaf * DIGEST_LEAF_SIZE;
	return 0;
}

static int host_end(struct sink *k, unsigned thread, uint64_t leaf, uint64_t size,
		    struct sentence *s)
{
	(void)k;
	(void)thread;
	(void)leaf;
	(void)size;
	(void)s;
	return 0;
}

static int host_finish(struct sink *k, struct sentence *s)
{
	(void)k;
	(void)s;
	return 0;
}

static void host_close(struct sink *k)
{
	(void)k;
}

const struct sink_kind sink_host = {
	.n_threads = 4,
	.n_leaves = 1,
	.open = host_open,
	.begin = host_begin,
	.end = host_end,
	.finish = host_finish,
	.close = host_close,
};

const struct sink_kind *sink_kind_of(const struct weightd_writer *wr)
{
	return wr->memory.location.memory == WIRE_MEMORY_HOST ? &sink_host : &sink_cuda;
}

int sink_open(struct sink *k, unsigned *n_threads, struct sentence *s)
{
	k->node = -1;
	return k->kind->open(k, n_threads, s);
}

void sink_close(struct sink *k)
{
	if (k->kind)
		k->kind->close(k);
	*k = (struct sink){0};
}
