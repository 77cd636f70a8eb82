#include "tests/fake/address.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/list.h"
#include "tests/fake/device.h"
#include "tests/fake/state.h"

struct reservation {
	struct list link; /* reservations */
	cu_ptr base;
	uint64_t size;
	bool is_linear;
};

struct mapping {
	struct list link; /* mappings */
	cu_ptr base;
	uint64_t size;
	struct allocation *allocation;
	int access[DEVICE_N_MAX]; /* indexed by GPU; linear memory uses peer_enabled */
	bool is_linear, is_import;
	unsigned n_opens; /* opens of an import */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* all below */
static struct list reservations = {&reservations, &reservations};
static struct list mappings = {&mappings, &mappings};
static bool peer_enabled[DEVICE_N_MAX][DEVICE_N_MAX];

static bool is_inside(cu_ptr p, uint64_t size, cu_ptr base, uint64_t whole)
{
	return p >= base && p - base <= whole && size <= whole - (p - base);
}

static bool overlaps(cu_ptr p, uint64_t size, const struct mapping *m)
{
	return p < m->base + m->size && m->base < p + size;
}

static bool is_aligned(uint64_t n)
{
	return n % DEVICE_GRANULARITY == 0;
}

static struct mapping *mapping_at(cu_ptr p)
{
	struct mapping *m;

	list_for_each(m, &mappings, link)
		if (is_inside(p, 1, m->base, m->size))
			return m;
	return NULL;
}

static bool is_touchable(void)
{
	return state_number("FAKE_CUDA_TOUCHABLE", 0) != 0;
}

/* Sets what the processor can do there: nothing, unless asked for. */
static void protect(const struct mapping *m, int access)
{
	int prot = access == ADDRESS_ACCESS_WRITE ? PROT_READ | PROT_WRITE
		   : access                       ? PROT_READ
						  : PROT_NONE;

	if (is_touchable())
		(void)mprotect((void *)m->base, m->size, prot);
}

static void show_bytes(const struct mapping *m)
{
	if (is_touchable() && /* size 0: a second mapping of shared memory */
	    mremap(m->allocation->bytes, 0, m->size, MREMAP_MAYMOVE | MREMAP_FIXED,
		   (void *)m->base) != MAP_FAILED)
		(void)madvise((void *)m->base, m->size, MADV_DONTFORK);
}

static void hide_bytes(const struct mapping *m)
{
	(void)mmap((void *)m->base, m->size, PROT_NONE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/* Room in the address space, at `at` where that is free. */
static cu_ptr find_room(uint64_t size, uint64_t alignment, cu_ptr at)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	char *p = MAP_FAILED;
	uint64_t before;

	if (at)
		p = mmap((void *)at, size, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
	if (p != MAP_FAILED)
		return (cu_ptr)p;
	p = mmap(NULL, size + alignment, PROT_NONE, flags, -1, 0);
	if (p == MAP_FAILED)
		return 0;
	before = (alignment - (cu_ptr)p % alignment) % alignment;
	if (before)
		(void)munmap(p, before);
	if (alignment - before)
		(void)munmap(p + before + size, alignment - before);
	return (cu_ptr)(p + before);
}

static cu_result reserve(uint64_t size, uint64_t alignment, cu_ptr at, bool is_linear, cu_ptr *ret)
{
	struct reservation *v = calloc(1, sizeof(*v));

	if (!v)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*v = (struct reservation){
		.base = find_room(size, alignment, at),
		.size = size,
		.is_linear = is_linear,
	};
	if (!v->base) {
		free(v);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*ret = v->base;
	list_append(&reservations, &v->link);
	return CUDA_SUCCESS;
}

static struct reservation *reservation_of(cu_ptr p, uint64_t size, bool is_linear)
{
	struct reservation *v;

	list_for_each(v, &reservations, link)
		if (v->is_linear == is_linear && is_inside(p, size, v->base, v->size))
			return v;
	return NULL;
}

static cu_result unreserve(struct reservation *v)
{
	struct mapping *m;

	list_for_each(m, &mappings, link)
		if (overlaps(v->base, v->size, m))
			return CUDA_ERROR_INVALID_VALUE;
	(void)munmap((void *)v->base, v->size);
	list_remove(&v->link);
	free(v);
	return CUDA_SUCCESS;
}

cu_result address_reserve(uint64_t size, uint64_t alignment, cu_ptr at, cu_ptr *ret)
{
	cu_result r;

	if (!size || !is_aligned(size) || !is_aligned(at) || (alignment & (alignment - 1)))
		return CUDA_ERROR_INVALID_VALUE;
	if (alignment < DEVICE_GRANULARITY)
		alignment = DEVICE_GRANULARITY;
	(void)pthread_mutex_lock(&mutex);
	r = reserve(size, alignment, at, false, ret);
	(void)pthread_mutex_unlock(&mutex);
	return r;
}

cu_result address_unreserve(cu_ptr p, uint64_t size)
{
	cu_result r = CUDA_ERROR_INVALID_VALUE;
	struct reservation *v;

	(void)pthread_mutex_lock(&mutex);
	v = reservation_of(p, size, false);
	if (v && v->base == p && v->size == size)
		r = unreserve(v);
	(void)pthread_mutex_unlock(&mutex);
	return r;
}

static struct mapping *add_mapping(cu_ptr p, uint64_t size, struct allocation *a)
{
	struct mapping *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->base = p;
	m->size = size;
	m->allocation = a;
	list_append(&mappings, &m->link);
	show_bytes(m);
	protect(m, ADDRESS_ACCESS_NONE);
	return m;
}

static void remove_mapping(struct mapping *m)
{
	hide_bytes(m);
	allocation_unref(m->allocation);
	list_remove(&m->link);
	free(m);
}

cu_result address_map(cu_ptr p, uint64_t size, struct allocation *a)
{
	cu_result r = CUDA_ERROR_INVALID_VALUE;
	struct mapping *m;
	bool is_free;

	if (!size || !is_aligned(p) || !is_aligned(size) || size > a->size)
		return r;
	(void)pthread_mutex_lock(&mutex);
	is_free = reservation_of(p, size, false);
	list_for_each(m, &mappings, link)
		is_free &= !overlaps(p, size, m);
	if (is_free) {
		r = CUDA_ERROR_OUT_OF_MEMORY;
		allocation_ref(a);
		if (add_mapping(p, size, a))
			r = CUDA_SUCCESS;
		else
			allocation_unref(a);
	}
	(void)pthread_mutex_unlock(&mutex);
	return r;
}

/* True when whole mappings of VMM, side by side, cover the range. */
static bool is_covered_whole(cu_ptr p, uint64_t size)
{
	uint64_t covered = 0;
	struct mapping *m;

	list_for_each(m, &mappings, link) {
		if (!overlaps(p, size, m))
			continue;
		if (m->is_linear || !is_inside(m->base, m->size, p, size))
			return false;
		covered += m->size;
	}
	return covered == size;
}

cu_result address_unmap(cu_ptr p, uint64_t size)
{
	cu_result r = CUDA_ERROR_INVALID_VALUE;
	struct mapping *m, *tmp;

	(void)pthread_mutex_lock(&mutex);
	if (size && is_covered_whole(p, size)) {
		list_for_each_safe(m, tmp, &mappings, link)
			if (overlaps(p, size, m))
				remove_mapping(m);
		r = CUDA_SUCCESS;
	}
	(void)pthread_mutex_unlock(&mutex);
	return r;
}

cu_result address_set_access(cu_ptr p, uint64_t size, int gpu, int access)
{
	cu_result r = CUDA_ERROR_INVALID_VALUE;
	struct mapping *m;
	bool is_reachable = true;

	(void)pthread_mutex_lock(&mutex);
	if (size && is_covered_whole(p, size)) {
		list_for_each(m, &mappings, link)
			if (overlaps(p, size, m))
				is_reachable &= device_reaches(gpu, m->allocation->gpu);
		r = is_reachable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
	}
	list_for_each(m, &mappings, link) {
		if (r || !overlaps(p, size, m))
			continue;
		m->access[gpu] = access;
		protect(m, access);
	}
	(void)pthread_mutex_unlock(&mutex);
	return r;
}

cu_result address_place(struct allocation *a, bool is_import, cu_ptr *ret)
{
	uint64_t size = (a->size + DEVICE_GRANULARITY - 1) / DEVICE_GRANULARITY * DEVICE_GRANULARITY;
	struct mapping *m = NULL;
	cu_ptr base;
	cu_result r;

	(void)pthread_mutex_lock(&mutex);
	r = reserve(size, DEVICE_GRANULARITY, 0, true, &base);
	if (!r)
		m = add_mapping(base, a->size, a);
	if (m) {
		m->is_linear = true;
		m->is_import = is_import;
		m->n_opens = 1;
		protect(m, ADDRESS_ACCESS_WRITE);
		*ret = base;
	} else if (!r) {
		(void)unreserve(reservation_of(base, size, true));
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	(void)pthread_mutex_unlock(&mutex);
	return r;
}

cu_result address_remove(cu_ptr base, bool is_import)
{
	cu_result r = CUDA_ERROR_INVALID_VALUE;
	struct mapping *m;

	(void)pthread_mutex_lock(&mutex);
	m = mapping_at(base);
	if (m && m->base == base && m->is_linear && m->is_import == is_import) {
		r = CUDA_SUCCESS;
		if (!--m->n_opens) {
			remove_mapping(m);
			(void)unreserve(reservation_of(base, 1, true));
		}
	}
	(void)pthread_mutex_unlock(&mutex);
	return r;
}

cu_ptr address_open_again(const char *name)
{
	struct mapping *m;
	cu_ptr found = 0;

	(void)pthread_mutex_lock(&mutex);
	list_for_each(m, &mappings, link)
		if (m->is_import && !strcmp(m->allocation->name, name)) {
			m->n_opens++;
			found = m->base;
		}
	(void)pthread_mutex_unlock(&mutex);
	return found;
}

int address_name(cu_ptr p, char ret[ALLOCATION_NAME_SIZE])
{
	struct mapping *m;
	int r = -1;

	(void)pthread_mutex_lock(&mutex);
	m = mapping_at(p);
	if (m && m->is_linear && !m->is_import) {
		memcpy(ret, m->allocation->name, ALLOCATION_NAME_SIZE);
		r = 0;
	}
	(void)pthread_mutex_unlock(&mutex);
	return r;
}

bool address_is_made_here(const char *name)
{
	struct mapping *m;
	bool found = false;

	(void)pthread_mutex_lock(&mutex);
	list_for_each(m, &mappings, link)
		found |= m->is_linear && !m->is_import && !strcmp(m->allocation->name, name);
	(void)pthread_mutex_unlock(&mutex);
	return found;
}

void address_forget(int gpu)
{
	struct mapping *m, *tmp;

	(void)pthread_mutex_lock(&mutex);
	list_for_each_safe(m, tmp, &mappings, link) {
		cu_ptr base = m->base;

		if (!m->is_linear || m->allocation->gpu != gpu)
			continue;
		remove_mapping(m);
		(void)unreserve(reservation_of(base, 1, true));
	}
	(void)pthread_mutex_unlock(&mutex);
}

void address_enable_peer(int gpu, int peer)
{
	(void)pthread_mutex_lock(&mutex);
	peer_enabled[gpu][peer] = true;
	(void)pthread_mutex_unlock(&mutex);
}

static bool may_use(const struct mapping *m, int gpu, enum address_use use)
{
	bool writes = use == ADDRESS_COPY_TO || use == ADDRESS_KERNEL_WRITE;
	bool copies = use == ADDRESS_COPY_TO || use == ADDRESS_COPY_FROM;

	if (m->is_linear)
		return copies || gpu == m->allocation->gpu || peer_enabled[gpu][m->allocation->gpu];
	return m->access[gpu] == ADDRESS_ACCESS_WRITE ||
	       (m->access[gpu] == ADDRESS_ACCESS_READ && !writes);
}

char *address_hold(cu_ptr p, uint64_t size, int gpu, enum address_use use, uint64_t *ret_n,
		   struct allocation **ret_hold)
{
	struct mapping *m;
	char *at = NULL;

	(void)pthread_mutex_lock(&mutex);
	m = mapping_at(p);
	if (m && may_use(m, gpu, use)) {
		uint64_t rest = m->size - (p - m->base);

		*ret_n = size < rest ? size : rest;
		*ret_hold = allocation_ref(m->allocation);
		at = m->allocation->bytes + (p - m->base);
	}
	(void)pthread_mutex_unlock(&mutex);
	return at;
}

bool address_is_usable(cu_ptr p, uint64_t size, int gpu, enum address_use use)
{
	while (size > 0) {
		struct allocation *hold;
		uint64_t n;

		if (!address_hold(p, size, gpu, use, &n, &hold))
			return false;
		allocation_unref(hold);
		p += n;
		size -= n;
	}
	return true;
}

bool address_is_gpu(const void *p)
{
	bool found;

	(void)pthread_mutex_lock(&mutex);
	found = reservation_of((cu_ptr)p, 1, false) || reservation_of((cu_ptr)p, 1, true);
	(void)pthread_mutex_unlock(&mutex);
	return found;
}
