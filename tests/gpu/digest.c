/*
 * The digest kernel alone: digest IMAGE MIB [GPU] compares its digests with the host's, for every length that has a
 * rule of its own, and reports how long the driver took to load it, which may be to compile it, and how long it takes, beside a
 * copy on the GPU that reads and writes as many bytes. digest IMAGE MIB GPU ROUNDS makes so many of both, in turns.
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

static const uint64_t longs[] = {64 << 10, 960 << 10, MIB, 2 * MIB};

#define N_LONG (sizeof(longs) / sizeof(*longs))
#define N_CHECKS (N_SHORT + N_LONG * N_AROUND)
#define CHECK_LEAVES 3 /* leaves of the longest */

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

static cu_result copy_half(struct bench *b)
{
	return b->gpu.cuda->memcpy_on_device(b->data, b->data + b->size / 2, b->size / 2);
}

static cu_result digest_all(struct bench *b)
{
	return launch(b, b->size, b->out);
}

/* Measured by the GPU's clock. A copy on the device is in the default stream. */
static cu_result time_one(struct bench *b, cu_stream s, cu_result (*act)(struct bench *b),
			  uint64_t *ret_ns)
{
	const struct cuda_driver *cuda = b->gpu.cuda;
	float ms;
	cu_result r;

	if ((r = cuda->event_record(b->begin, s)) || (r = act(b)) ||
	    (r = cuda->event_record(b->end, s)) || (r = cuda->event_synchronize(b->end)) ||
	    (r = cuda->event_elapsed(&ms, b->begin, b->end)))
		return r;
	*ret_ns = (uint64_t)((double)ms * 1e6);
	return CU_OK;
}

/* Each begins every other round. */
static cu_result time_both(struct bench *b, size_t n, uint64_t *ret_digest, uint64_t *ret_copy)
{
	cu_result r = CU_OK;

	for (size_t i = 0; i < n && !r; i++) {
		if (i % 2)
			r = time_one(b, NULL, copy_half, &ret_copy[i]);
		if (!r)
			r = time_one(b, b->gpu.stream, digest_all, &ret_digest[i]);
		if (!r && i % 2 == 0)
			r = time_one(b, NULL, copy_half, &ret_copy[i]);
	}
	return r;
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

static int run(struct bench *b, const char *image, int ordinal, size_t n)
{
	cleanup(freep) uint64_t *digested = calloc(n + 1, sizeof(*digested));
	cleanup(freep) uint64_t *copied = calloc(n + 1, sizeof(*copied));
	char why[CUDA_WHY_SIZE];
	size_t wrong;
	cu_result r = digested && copied ? gpu_open(&b->gpu, ordinal, why) : CU_OUT_OF_MEMORY;

	if (r) {
		reply_failed(r, "%s", digested && copied ? why : "out of memory");
		return 1;
	}
	if ((r = prepare(b, image)) || (r = compare(b, &wrong)) ||
	    (r = time_both(b, n, digested, copied))) {
		reply_result(b->gpu.cuda, r);
		return 1;
	}
	reply_open();
	reply_member("load_ns", b->load_ns);
	reply_member("checked", N_CHECKS);
	reply_member("wrong", wrong);
	reply_member("bytes", b->size);
	reply_list("digest_ns", digested, n);
	reply_list("copy_ns", copied, n);
	reply_close();
	return wrong != 0;
}

int main(int argc, char *argv[])
{
	struct bench b = {0};
	cleanup(freep) char *image = argc > 2 ? read_image(argv[1]) : NULL;

	if (!image) {
		(void)fprintf(stderr, "usage: digest IMAGE MIB [GPU [ROUNDS]]\n");
		return 2;
	}
	b.size = strtoul(argv[2], NULL, 0) * MIB;
	if (b.size < 4 * MIB)
		b.size = 4 * MIB; /* the compared bytes must fit */
	return run(&b, image, argc > 3 ? atoi(argv[3]) : 0,
		   argc > 4 ? strtoul(argv[4], NULL, 0) : N_ROUNDS);
}
