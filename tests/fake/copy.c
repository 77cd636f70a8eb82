/*
 * Copies and fills
 *
 * Addresses are looked at when the call is made, as the real driver does, and again when it is done: memory
 * that was unmapped in between spoils the context.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fake/address.h"
#include "tests/fake/call.h"
#include "tests/fake/context.h"
#include "tests/fake/host.h"
#include "tests/fake/record.h"
#include "tests/fake/stream.h"

/* One of `to`, `from` is an address of the host, or neither. */
struct copy {
	struct work work;
	struct recorded recorded;
	int gpu;
	cu_ptr to, from;
	void *to_host;
	const void *from_host;
	void *staged; /* a copy of our own of what is at from_host */
	bool is_fill;
	uint8_t value;
	size_t size;
};

/* Some of it, as much as lies in one allocation on either side; 0: there is nothing at the address. */
static size_t copy_some(const struct copy *c, size_t done)
{
	struct allocation *from_hold = NULL, *to_hold = NULL;
	const char *from = c->from_host;
	char *to = c->to_host;
	uint64_t n = c->size - done;

	to = to ? to + done : address_hold(c->to + done, n, c->gpu, ADDRESS_COPY_TO, &n, &to_hold);
	if (to && !c->is_fill)
		from = from ? from + done
			    : address_hold(c->from + done, n, c->gpu, ADDRESS_COPY_FROM, &n,
					   &from_hold);
	if (!to || (!from && !c->is_fill))
		n = 0;
	else if (c->is_fill)
		memset(to, c->value, n);
	else
		memmove(to, from, n);
	allocation_unref(to_hold);
	allocation_unref(from_hold);
	return n;
}

static cu_result run_copy(struct work *w)
{
	const struct copy *c = (struct copy *)w;

	record_begin(&c->recorded);
	for (size_t done = 0, n; done < c->size; done += n) {
		n = copy_some(c, done);
		if (!n)
			return CUDA_ERROR_ILLEGAL_ADDRESS;
	}
	record_end(&c->recorded);
	return CUDA_SUCCESS;
}

static void end_copy(struct work *w)
{
	free(((struct copy *)w)->staged);
	free(w);
}

static bool is_possible(const struct copy *c)
{
	if (c->to_host ? address_is_gpu(c->to_host)
		       : !address_is_usable(c->to, c->size, c->gpu, ADDRESS_COPY_TO))
		return false;
	if (c->is_fill)
		return true;
	return c->from_host ? !address_is_gpu(c->from_host)
			    : address_is_usable(c->from, c->size, c->gpu, ADDRESS_COPY_FROM);
}

static const char *kind_of(const struct copy *c)
{
	if (c->is_fill)
		return "fill";
	return c->to_host ? "DtoH" : c->from_host ? "HtoD" : "DtoD";
}

static cu_result start(struct copy like, bool is_async, cu_stream wanted)
{
	struct cu_stream *s = NULL;
	struct copy *c;
	cu_result r;

	like.gpu = context_gpu();
	like.work = (struct work){.run = run_copy, .end = end_copy};
	r = is_async ? stream_find(wanted, &s) : CUDA_SUCCESS;
	if (!r && !is_possible(&like))
		r = CUDA_ERROR_INVALID_VALUE;
	c = r ? NULL : malloc(sizeof(*c));
	if (!c) {
		free(like.staged);
		return r ? r : CUDA_ERROR_OUT_OF_MEMORY;
	}
	*c = like;
	record_queue(&c->recorded, kind_of(c), c->gpu, c->size);
	return is_async ? stream_submit(s, &c->work, NULL) : stream_run_now(&c->work);
}

static cu_result stage(struct copy *c)
{
	c->staged = malloc(c->size);
	if (!c->staged)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(c->staged, c->from_host, c->size);
	c->from_host = c->staged;
	return CUDA_SUCCESS;
}

/*
 * Those that are not called asynchronous are so nevertheless, but for copies to the host ("API synchronization
 * behavior"): this one returns when it has the bytes, which may be before the GPU has them.
 */
CALL(cuMemcpyHtoD_v2, cu_ptr to, const void *from, size_t size)
{
	struct copy copy = {.to = to, .from_host = from, .size = size};
	cu_result r;

	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (address_is_gpu(from))
		return CUDA_ERROR_INVALID_VALUE;
	r = stage(&copy);
	return r ? r : start(copy, true, NULL);
}

CALL(cuMemcpyDtoH_v2, void *to, cu_ptr from, size_t size)
{
	CALL_ENTER(CALL_NEEDS_CONTEXT);
	return start((struct copy){.to_host = to, .from = from, .size = size}, false, NULL);
}

CALL(cuMemcpyDtoD_v2, cu_ptr to, cu_ptr from, size_t size)
{
	CALL_ENTER(CALL_NEEDS_CONTEXT);
	return start((struct copy){.to = to, .from = from, .size = size}, true, NULL);
}

/*
 * Asynchronous with pinned memory only ("API synchronization behavior"). From pageable memory the driver may
 * synchronize with the stream, and then stages the bytes. To pageable memory the call returns only once the copy has
 * completed: CUDA 11 documents this, CUDA 13 that it "might be synchronous". This is the slowest that is allowed.
 */
CALL(cuMemcpyHtoDAsync_v2, cu_ptr to, const void *from, size_t size, cu_stream s)
{
	struct copy copy = {.to = to, .from_host = from, .size = size};
	cu_result r;

	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (address_is_gpu(from))
		return CUDA_ERROR_INVALID_VALUE;
	if (!host_is_pinned(from, size)) {
		r = stream_wait(s);
		if (r)
			return r;
		r = stage(&copy);
		if (r)
			return r;
	}
	return start(copy, true, s);
}

CALL(cuMemcpyDtoHAsync_v2, void *to, cu_ptr from, size_t size, cu_stream s)
{
	cu_result r;

	CALL_ENTER(CALL_NEEDS_CONTEXT);
	r = start((struct copy){.to_host = to, .from = from, .size = size}, true, s);
	return r || host_is_pinned(to, size) ? r : stream_wait(s);
}

CALL(cuMemcpyDtoDAsync_v2, cu_ptr to, cu_ptr from, size_t size, cu_stream s)
{
	CALL_ENTER(CALL_NEEDS_CONTEXT);
	return start((struct copy){.to = to, .from = from, .size = size}, true, s);
}

CALL(cuMemsetD8_v2, cu_ptr p, uint8_t value, size_t size)
{
	CALL_ENTER(CALL_NEEDS_CONTEXT);
	return start((struct copy){.to = p, .is_fill = true, .value = value, .size = size}, true,
		     NULL);
}

CALL(cuMemsetD8Async, cu_ptr p, uint8_t value, size_t size, cu_stream s)
{
	CALL_ENTER(CALL_NEEDS_CONTEXT);
	return start((struct copy){.to = p, .is_fill = true, .value = value, .size = size}, true, s);
}
