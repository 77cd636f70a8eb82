#include "tests/fake/host.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "ipc/base/list.h"
#include "tests/fake/call.h"
#include "tests/fake/context.h"
#include "tests/fake/record.h"

struct range {
	struct list link; /* ranges */
	void *base;
	size_t size;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* ranges */
static struct list ranges = {&ranges, &ranges};

bool host_is_pinned(const void *p, size_t size)
{
	const struct range *range;
	bool found = false;

	(void)pthread_mutex_lock(&mutex);
	list_for_each(range, &ranges, link) {
		size_t offset = (uintptr_t)p - (uintptr_t)range->base;

		found |= p >= range->base && offset <= range->size && size <= range->size - offset;
	}
	(void)pthread_mutex_unlock(&mutex);
	return found;
}

CALL(cuMemHostAlloc, void **ret, size_t size, unsigned flags)
{
	struct range *range;
	void *p;

	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (!size || flags > 7)
		return CUDA_ERROR_INVALID_VALUE;
	range = calloc(1, sizeof(*range));
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!range || p == MAP_FAILED) {
		free(range);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	range->base = *ret = p;
	range->size = size;
	(void)pthread_mutex_lock(&mutex);
	list_append(&ranges, &range->link);
	(void)pthread_mutex_unlock(&mutex);
	record_pinned(size);
	return CUDA_SUCCESS;
}

CALL(cuMemFreeHost, void *p)
{
	struct range *range, *tmp, *found = NULL;

	CALL_ENTER(CALL_NEEDS_CONTEXT);
	(void)context_wait();
	(void)pthread_mutex_lock(&mutex);
	list_for_each_safe(range, tmp, &ranges, link)
		if (range->base == p) {
			list_remove(&range->link);
			found = range;
		}
	(void)pthread_mutex_unlock(&mutex);
	if (!found)
		return CUDA_ERROR_INVALID_VALUE;
	(void)munmap(found->base, found->size);
	free(found);
	return CUDA_SUCCESS;
}
