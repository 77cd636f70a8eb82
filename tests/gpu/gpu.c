#include "tests/gpu/gpu.h"

#include "tests/gpu/kernels.h"
#include "tests/gpu/reply.h"

#define N_BLOCKS 1024
#define N_THREADS 256
#define N_ROUNDS 5

static cu_result open_context(struct gpu *gpu)
{
	const struct cuda_driver *cuda = gpu->cuda;
	cu_module module = NULL;
	uint64_t begin = now_ns();
	cu_result r;

	if ((r = cuda->primary_ctx_retain(&gpu->context, gpu->ordinal)) ||
	    (r = cuda->ctx_push(gpu->context)))
		return r;
	gpu->context_ns = now_ns() - begin;
	if ((r = cuda->stream_create(&gpu->stream, CU_STREAM_NON_BLOCKING)) ||
	    (r = cuda->stream_create(&gpu->busy_stream, CU_STREAM_NON_BLOCKING)) ||
	    (r = cuda->mem_alloc(&gpu->out, sizeof(uint64_t))))
		return r;
	begin = now_ns();
	if ((r = cuda->module_load(&module, kernels_ptx)) ||
	    (r = cuda->module_function(&gpu->fill, module, "gpu_fill")) ||
	    (r = cuda->module_function(&gpu->sum, module, "gpu_sum")) ||
	    (r = cuda->module_function(&gpu->spin, module, "gpu_spin")) ||
	    (r = cuda->module_function(&gpu->poke, module, "gpu_poke")))
		return r;
	gpu->module_ns = now_ns() - begin;
	return CU_OK;
}

int gpu_open(struct gpu *gpu, int ordinal, char ret_why[CUDA_WHY_SIZE])
{
	uint64_t begin = now_ns();
	cu_result r;

	if (cuda_driver_open(&gpu->cuda, ret_why) < 0)
		return -1;
	gpu->init_ns = now_ns() - begin;
	gpu->ordinal = ordinal;
	r = open_context(gpu);
	if (r)
		cuda_driver_explain(gpu->cuda, r, ret_why);
	return r;
}

static cu_result launch(struct gpu *gpu, cu_function f, cu_stream s, void **parameters)
{
	return gpu->cuda->launch(f, N_BLOCKS, 1, 1, N_THREADS, 1, 1, 0, s, parameters, NULL);
}

cu_result gpu_fill(struct gpu *gpu, cu_ptr p, uint64_t size, uint32_t seed)
{
	uint64_t n = size / 4;
	void *parameters[] = {&p, &n, &seed};

	return launch(gpu, gpu->fill, gpu->stream, parameters);
}

cu_result gpu_queue_sum(struct gpu *gpu, cu_ptr p, uint64_t size, cu_stream s)
{
	uint64_t n = size / 4;
	void *parameters[] = {&p, &n, &gpu->out};

	return launch(gpu, gpu->sum, s, parameters);
}

cu_result gpu_sum(struct gpu *gpu, cu_ptr p, uint64_t size, uint64_t *ret)
{
	cu_result r;

	if ((r = gpu->cuda->memset8_async(gpu->out, 0, sizeof(*ret), gpu->stream)) ||
	    (r = gpu_queue_sum(gpu, p, size, gpu->stream)) ||
	    (r = gpu->cuda->stream_synchronize(gpu->stream)))
		return r;
	return gpu->cuda->memcpy_to_host(ret, gpu->out, sizeof(*ret));
}

cu_result gpu_spin(struct gpu *gpu, cu_ptr p, uint64_t size, uint64_t ns)
{
	uint64_t n = size / 4;
	void *parameters[] = {&p, &n, &gpu->out, &ns};

	return launch(gpu, gpu->spin, gpu->busy_stream, parameters);
}

cu_result gpu_poke(struct gpu *gpu, cu_ptr p, uint32_t value)
{
	void *parameters[] = {&p, &value};
	cu_result r = launch(gpu, gpu->poke, gpu->stream, parameters);

	return r ? r : gpu->cuda->stream_synchronize(gpu->stream);
}

/* The best of some rounds: what the hardware can do. */
static cu_result time_copies(struct gpu *gpu, cu_ptr to, const void *host, cu_ptr from,
			     uint64_t size, double *ret_rate)
{
	uint64_t best = UINT64_MAX;
	cu_result r;

	for (int i = 0; i < N_ROUNDS; i++) {
		uint64_t begin = now_ns(), took;

		r = host ? gpu->cuda->memcpy_to_device_async(to, host, size, NULL)
			 : gpu->cuda->memcpy_on_device(to, from, size);
		if (r || (r = gpu->cuda->ctx_synchronize()))
			return r;
		took = now_ns() - begin;
		if (took < best)
			best = took;
	}
	*ret_rate = (double)size * 1e9 / (double)best;
	return CU_OK;
}

cu_result gpu_copy_rate(struct gpu *gpu, uint64_t size, double *ret_from_host, double *ret_on_device)
{
	const struct cuda_driver *cuda = gpu->cuda;
	cu_ptr to = 0, from = 0;
	void *host = NULL;
	cu_result r;

	if (!(r = cuda->mem_alloc(&to, size)) && !(r = cuda->mem_alloc(&from, size)) &&
	    !(r = cuda->mem_host_alloc(&host, size, 0)) &&
	    !(r = time_copies(gpu, to, host, 0, size, ret_from_host)))
		r = time_copies(gpu, to, NULL, from, size, ret_on_device);
	*ret_on_device *= 2; /* read and written */
	if (host)
		(void)cuda->mem_host_free(host);
	if (from)
		(void)cuda->mem_free(from);
	if (to)
		(void)cuda->mem_free(to);
	return r;
}
