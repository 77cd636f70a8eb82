/*
 * The kernel, its stream and its output table, all of the primary context. The stream is separate, so that it waits
 * for no other work; callers wait for the writers of the bytes first.
 */
#include "libclient/cuda/digester.h"

#include <stdlib.h>

#define TABLE_LEAVES 16384u /* leaf digests that one launch computes */
#define BLOCK_THREADS 256u /* as digest.cu has it */

struct digester {
	const struct place *place;
	cu_module module;
	cu_function function;
	cu_stream stream;
	cu_event done;
	cu_ptr table; /* 0: none */
};

/*
 * The fat binary first: to compile the PTX takes the driver most of a second, and its compiler may not be installed. But
 * the fat binary has code for some GPUs only, and in a format newer than drivers before CUDA 13. Their result for that
 * is not documented, so any error leads to the PTX.
 */
static cu_result digester_load(struct digester *g)
{
	const struct cuda_driver *d = g->place->driver;

	if (d->module_load(&g->module, digest_fatbin) == CU_OK)
		return CU_OK;
	return d->module_load(&g->module, digest_ptx);
}

static cu_result digester_make(struct digester *g)
{
	const struct cuda_driver *d = g->place->driver;
	cu_result result = digester_load(g);

	if (result == CU_OK)
		result = d->module_function(&g->function, g->module, "weightd_digest");
	if (result == CU_OK)
		result = d->stream_create(&g->stream, CU_STREAM_NON_BLOCKING);
	if (result == CU_OK)
		result = d->event_create(&g->done, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
	if (result == CU_OK)
		result = d->mem_alloc(&g->table, (size_t)TABLE_LEAVES * HASH_SIZE);
	return result;
}

static void digester_unmake(struct digester *g)
{
	const struct cuda_driver *d = g->place->driver;

	if (g->table)
		(void)d->mem_free(g->table);
	if (g->done)
		(void)d->event_destroy(g->done);
	if (g->stream)
		(void)d->stream_destroy(g->stream);
	if (g->module)
		(void)d->module_unload(g->module);
}

struct digester *digester_new(const struct place *p)
{
	struct digester *g = calloc(1, sizeof(*g));

	if (!g)
		return NULL;
	g->place = p;
	if (digester_make(g) == CU_OK)
		return g;
	digester_unmake(g);
	free(g);
	return NULL;
}

struct digester *digester_free(struct digester *g)
{
	struct visit visit = {0};
	struct sentence ignored; /* without the context nothing of it is left */

	if (!g)
		return NULL;
	if (place_enter_primary(g->place, &visit, &ignored) == 0)
		digester_unmake(g);
	place_leave(&visit);
	free(g);
	return NULL;
}

static cu_result launch_kernel(struct digester *g, cu_ptr table, cu_ptr data, uint64_t data_size,
			       uint64_t first, uint64_t n)
{
	void *parameters[] = {&data, &data_size, &first, &n, &table};

	return g->place->driver->launch(g->function, (unsigned)n, 1, 1, BLOCK_THREADS, 1, 1, 0,
					g->stream, parameters, NULL);
}

/* The thread sleeps while the GPU works: a copy to memory that is not pinned would keep it busy. */
static cu_result take_digests(struct digester *g, cu_ptr table, uint64_t n,
			      uint8_t (*ret)[HASH_SIZE])
{
	const struct cuda_driver *d = g->place->driver;
	cu_result result = d->event_record(g->done, g->stream);

	if (result == CU_OK)
		result = d->event_synchronize(g->done);
	if (result == CU_OK)
		result = d->memcpy_to_host_async(ret, table, n * HASH_SIZE, g->stream);
	return result == CU_OK ? d->stream_synchronize(g->stream) : result;
}

static int digest_failed(const struct digester *g, cu_result result, struct sentence *s)
{
	return gpu_error(g->place->driver, result, "the GPU cannot digest it", s);
}

int digester_new_table(struct digester *g, uint64_t n_leaves, cu_ptr *ret, struct sentence *s)
{
	cu_result result = g->place->driver->mem_alloc(ret, n_leaves * HASH_SIZE);

	return result ? digest_failed(g, result, s) : 0;
}

int digester_queue(struct digester *g, cu_ptr table, cu_ptr data, uint64_t data_size,
		   uint64_t first, uint64_t n, cu_event after, struct sentence *s)
{
	cu_result result = g->place->driver->stream_wait_event(g->stream, after, 0);

	if (result == CU_OK)
		result = launch_kernel(g, table + first * HASH_SIZE, data, data_size, first, n);
	return result ? digest_failed(g, result, s) : 0;
}

int digester_take(struct digester *g, cu_ptr table, uint64_t n, uint8_t (*ret)[HASH_SIZE],
		  struct sentence *s)
{
	cu_result result = take_digests(g, table, n, ret);

	return result ? digest_failed(g, result, s) : 0;
}

void digester_free_table(struct digester *g, cu_ptr table)
{
	/* Kernels that failed, or were not waited for, write to it no more. */
	(void)g->place->driver->stream_synchronize(g->stream);
	(void)g->place->driver->mem_free(table);
}

int digester_run(struct digester *g, cu_ptr data, uint64_t data_size, uint64_t first, uint64_t n,
		 uint8_t (*ret)[HASH_SIZE], struct sentence *s)
{
	cu_result result = CU_OK;

	for (uint64_t i = 0; result == CU_OK && i < n; i += TABLE_LEAVES) {
		uint64_t some = n - i < TABLE_LEAVES ? n - i : TABLE_LEAVES;

		result = launch_kernel(g, g->table, data, data_size, first + i, some);
		if (result == CU_OK)
			result = take_digests(g, g->table, some, ret + i);
	}
	return result ? digest_failed(g, result, s) : 0;
}
