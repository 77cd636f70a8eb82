/*
 * The digest kernel alone: digest IMAGE MIB [GPU] compares its digests with the host's, for every length that has a
 * rule of its own, and tells how long the driver took to load it, which may be to compile it, and what it reads in a
 * second, beside what a copy on the GPU reads and writes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/digest.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/reply.h"

#define MIB ((uint64_t)1 << 20)
#define IMAGE_MAX ((size_t)4 << 20)
#define N_THREADS 256
#define N_SHORT 2100 /* lengths from 1 on */
#define N_AROUND 129 /* and about each of the long ones */
#define N_ROUNDS 7
#define COPY_MAX (1024 * MIB) /* as much is pinned for it */

static const uint64_t longs[] = {64 << 10, 960 << 10, MIB, 2 * MIB};

#define N_LONG (sizeof(longs) / sizeof(*longs))
#define N_CHECKS (N_SHORT + N_LONG * N_AROUND)
#define CHECK_LEAVES 3 /* of the longest */

struct bench {
	struct gpu gpu;
	cu_function digest;
	cu_event begin, end;
	cu_ptr data, out;
	uint64_t size;
	uint64_t load_ns;
};

static cu_result load(struct bench *b, const char *image)
{
	const struct cuda_driver *cuda = b->gpu.cuda;
	const uint64_t begin = now_ns();
	cu_module module;
	cu_result r;

	if ((r = cuda->module_load(&module, image)) ||
	    (r = cuda->module_function(&b->digest, module, "weightd_digest")))
		return r;
	b->load_ns = now_ns() - begin;
	return CU_OK;
}

static cu_result launch(struct bench *b, uint64_t size, cu_ptr out)
{
	uint64_t first = 0, n = digest_n_leaves(size);
	void *parameters[] = {&b->data, &size, &first, &n, &out};

	return b->gpu.cuda->launch(b->digest, (unsigned)n, 1, 1, N_THREADS, 1, 1, 0, b->gpu.stream,
				   parameters, NULL);
}

static cu_result prepare(struct bench *b, const char *image)
{
	const struct cuda_driver *cuda = b->gpu.cuda;
	const size_t n_leaves = digest_n_leaves(b->size);
	const size_t n = n_leaves > N_CHECKS * CHECK_LEAVES ? n_leaves : N_CHECKS * CHECK_LEAVES;
	cu_result r;

	if ((r = load(b, image)) || (r = cuda->event_create(&b->begin, 0)) ||
	    (r = cuda->event_create(&b->end, 0)) || (r = cuda->mem_alloc(&b->data, b->size)) ||
	    (r = cuda->mem_alloc(&b->out, n * HASH_SIZE)) ||
	    (r = gpu_fill(&b->gpu, b->data, b->size, 7)))
		return r;
	return cuda->stream_synchronize(b->gpu.stream);
}

static uint64_t check_size(size_t i)
{
	return i < N_SHORT
		       ? i + 1
		       : longs[(i - N_SHORT) / N_AROUND] - N_AROUND / 2 + (i - N_SHORT) % N_AROUND;
}

/* How many of the checks have another digest than on the host. */
static cu_result compare(struct bench *b, size_t *ret_wrong)
{
	const struct cuda_driver *cuda = b->gpu.cuda;
	const size_t size = check_size(N_CHECKS - 1), n = N_CHECKS * CHECK_LEAVES;
	cleanup(freep) uint8_t(*found)[HASH_SIZE] = calloc(n, sizeof(*found));
	cleanup(freep) char *data = malloc(size);
	uint8_t hash[HASH_SIZE];
	cu_result r = found && data ? CU_OK : CU_OUT_OF_MEMORY;

	for (size_t i = 0; r == CU_OK && i < N_CHECKS; i++)
		r = launch(b, check_size(i), b->out + i * CHECK_LEAVES * HASH_SIZE);
	if (r || (r = cuda->stream_synchronize(b->gpu.stream)) ||
	    (r = cuda->memcpy_to_host(found, b->out, n * HASH_SIZE)) ||
	    (r = cuda->memcpy_to_host(data, b->data, size)))
		return r;
	*ret_wrong = 0;
	for (size_t i = 0; i < N_CHECKS; i++)
		for (uint64_t leaf = 0; leaf < digest_n_leaves(check_size(i)); leaf++) {
			digest_leaf(data, check_size(i), leaf, hash);
			*ret_wrong += memcmp(hash, found[i * CHECK_LEAVES + leaf], HASH_SIZE) != 0;
		}
	return CU_OK;
}

/* Of the fastest round. */
static cu_result time_digest(struct bench *b, double *ret_rate)
{
	const struct cuda_driver *cuda = b->gpu.cuda;
	float ms, best = 0;
	cu_result r;

	for (int i = 0; i < N_ROUNDS; i++) {
		if ((r = cuda->event_record(b->begin, b->gpu.stream)) ||
		    (r = launch(b, b->size, b->out)) ||
		    (r = cuda->event_record(b->end, b->gpu.stream)) ||
		    (r = cuda->event_synchronize(b->end)) ||
		    (r = cuda->event_elapsed(&ms, b->begin, b->end)))
			return r;
		if (i == 0 || ms < best)
			best = ms;
	}
	*ret_rate = best > 0 ? (double)b->size / best * 1e3 : 0;
	return CU_OK;
}

/* With a NUL at its end, as PTX needs. */
static char *read_image(const char *path)
{
	cleanup(freep) char *text = calloc(1, IMAGE_MAX);
	FILE *file = fopen(path, "re");
	size_t n = file && text ? fread(text, 1, IMAGE_MAX - 1, file) : 0;

	if (file)
		(void)fclose(file);
	return n ? take_ptr(text) : NULL;
}

static int run(struct bench *b, const char *image, int ordinal)
{
	double from_host, copied, digested;
	char why[CUDA_WHY_SIZE];
	size_t wrong;
	cu_result r = gpu_open(&b->gpu, ordinal, why);

	if (r) {
		reply_failed(r, "%s", why);
		return 1;
	}
	if ((r = prepare(b, image)) || (r = compare(b, &wrong)) || (r = time_digest(b, &digested)) ||
	    (r = gpu_copy_rate(&b->gpu, b->size < COPY_MAX ? b->size : COPY_MAX, &from_host,
			       &copied))) {
		reply_result(b->gpu.cuda, r);
		return 1;
	}
	reply_done(", \"load_ns\": %lu, \"checked\": %zu, \"wrong\": %zu, \"bytes\": %lu, \"digest\": %.0f, "
		   "\"on_device\": %.0f",
		   b->load_ns, (size_t)N_CHECKS, wrong, b->size, digested, copied);
	return wrong != 0;
}

int main(int argc, char *argv[])
{
	struct bench b = {0};
	cleanup(freep) char *image = argc > 2 ? read_image(argv[1]) : NULL;

	if (!image) {
		(void)fprintf(stderr, "usage: digest IMAGE MIB [GPU]\n");
		return 2;
	}
	b.size = strtoul(argv[2], NULL, 0) * MIB;
	if (b.size < 4 * MIB)
		b.size = 4 * MIB; /* what is compared has to fit */
	return run(&b, image, argc > 3 ? atoi(argv[3]) : 0);
}
