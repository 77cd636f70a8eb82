#include "tests/fake/module.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/list.h"
#include "tests/fake/address.h"
#include "tests/fake/context.h"
#include "tests/fake/image.h"
#include "tests/fake/kernels.h"
#include "tests/fake/record.h"
#include "tests/fake/stream.h"

#define BLOCK_MAX 1024u

/* {name, function, number of parameters, {sizes}} */
static const struct kernel kernels[] = {
	{"fake_fill", kernel_fill, 3, {8, 8, 1}},
	{"weightd_digest", kernel_digest, 5, {8, 8, 8, 8, 8}},
	{"gpu_fill", kernel_gpu_fill, 3, {8, 8, 4}},
	{"gpu_sum", kernel_gpu_sum, 3, {8, 8, 8}},
	{"gpu_spin", kernel_gpu_spin, 4, {8, 8, 8, 8}},
	{"gpu_poke", kernel_gpu_poke, 2, {8, 4}},
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* modules */
static struct list modules = {&modules, &modules};

struct cu_module {
	struct list link; /* modules */
	struct image image;
};

struct running {
	struct work work;
	struct recorded recorded;
	const struct kernel *kernel;
	struct launch launch;
	char values[KERNEL_N_PARAMETERS_MAX][64];
};

void *kernel_bytes(struct launch *l, cu_ptr p, uint64_t size, bool writes)
{
	enum address_use use = writes ? ADDRESS_KERNEL_WRITE : ADDRESS_KERNEL_READ;
	struct allocation *hold;
	uint64_t n;
	char *at;

	if (l->n_holds == KERNEL_N_HOLDS_MAX)
		return NULL;
	at = address_hold(p, size, l->gpu, use, &n, &hold);
	if (!at)
		return NULL;
	l->holds[l->n_holds++] = hold;
	return n == size ? at : NULL;
}

static cu_result run_kernel(struct work *w)
{
	struct running *k = (struct running *)w;
	cu_result r;

	record_begin(&k->recorded);
	r = k->kernel->run(&k->launch);
	record_end(&k->recorded);

	while (k->launch.n_holds)
		allocation_unref(k->launch.holds[--k->launch.n_holds]);
	return r;
}

static void end_kernel(struct work *w)
{
	free(w);
}

CALL(cuModuleLoadData, cu_module *ret, const void *image)
{
	struct cu_module *m;
	cu_result r;

	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (!image)
		return CUDA_ERROR_INVALID_VALUE;
	m = calloc(1, sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = image_init(&m->image, image, context_gpu());
	if (r) {
		free(m);
		return r;
	}
	(void)pthread_mutex_lock(&mutex);
	list_append(&modules, &m->link);
	(void)pthread_mutex_unlock(&mutex);
	*ret = m;
	return CUDA_SUCCESS;
}

CALL(cuModuleUnload, cu_module m)
{
	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (!m)
		return CUDA_ERROR_INVALID_HANDLE;
	(void)context_wait();
	(void)pthread_mutex_lock(&mutex);
	list_remove(&m->link);
	(void)pthread_mutex_unlock(&mutex);
	image_deinit(&m->image);
	free(m);
	return CUDA_SUCCESS;
}

CALL(cuModuleGetFunction, cu_function *ret, cu_module m, const char *name)
{
	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (!image_has_name(&m->image, name))
		return CUDA_ERROR_NOT_FOUND;
	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
		if (!strcmp(kernels[i].name, name)) {
			*ret = (struct cu_function *)&kernels[i];
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_NOT_FOUND;
}

CALL(cuLaunchKernel, cu_function f, unsigned grid_x, unsigned grid_y, unsigned grid_z,
     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, cu_stream wanted,
     void **parameters, void **extra)
{
	const struct kernel *kernel = (const struct kernel *)f;
	struct cu_stream *s;
	struct running *k;
	cu_result r;

	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (!f || extra || !grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z ||
	    (uint64_t)block_x * block_y * block_z > BLOCK_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	r = stream_find(wanted, &s);
	if (r)
		return r;
	k = calloc(1, sizeof(*k));
	if (!k)
		return CUDA_ERROR_OUT_OF_MEMORY;
	k->work = (struct work){.run = run_kernel, .end = end_kernel};
	k->kernel = kernel;
	k->launch = (struct launch){
		.gpu = context_gpu(),
		.grid = {grid_x, grid_y, grid_z},
		.block = {block_x, block_y, block_z},
		.shared_bytes = shared_bytes,
	};
	for (size_t i = 0; i < kernel->n_parameters; i++) {
		memcpy(k->values[i], parameters[i], kernel->sizes[i]);
		k->launch.parameters[i] = k->values[i];
	}
	record_queue(&k->recorded, "kernel", k->launch.gpu, grid_x);
	return stream_submit(s, &k->work, NULL);
}
