/*
 * Digests of a GPU's memory: by the GPU itself. Where it cannot (a context that the caller has made for
 * itself, a driver that neither loads nor compiles our kernel), leaf by leaf through host memory, with the same result.
 */
#include <errno.h>
#include <stdlib.h>

#include "ipc/base/cleanup.h"
#include "ipc/digest.h"
#include "libclient/cuda/cuda.h"
#include "libclient/cuda/digester.h"

static int digest_copies(const struct memory *m, uint64_t data_size, uint64_t first, uint64_t n,
			 uint8_t (*ret)[HASH_SIZE], struct sentence *s)
{
	cleanup(freep) void *leaf = malloc(DIGEST_LEAF_SIZE);
	int r = 0;

	if (!leaf)
		return sentence_set(s, -ENOMEM, "out of memory");
	for (uint64_t i = 0; r == 0 && i < n; i++) {
		uint64_t offset = (first + i) * DIGEST_LEAF_SIZE;
		uint64_t size = data_size - offset;

		if (size > DIGEST_LEAF_SIZE)
			size = DIGEST_LEAF_SIZE;
		r = cuda_read(m, offset, leaf, size, s);
		if (r == 0)
			hash128(leaf, size, ret[i]);
	}
	return r;
}

/* Made once for a mapping, or found to be impossible. With the lock. */
static struct digester *digester_of(struct cuda_state *state)
{
	if (!state->has_digester) {
		state->digester = digester_new(&state->place);
		state->has_digester = true;
	}
	return state->digester;
}

static bool is_in_primary(const struct place *p)
{
	cu_context current;

	return p->driver->ctx_current(&current) == CU_OK && current == p->primary;
}

int cuda_digest(const struct memory *m, uint64_t data_size, uint64_t first, uint64_t n,
		uint8_t (*ret)[HASH_SIZE], struct sentence *s)
{
	struct cuda_state *state = m->state;
	cleanup(place_leave) struct visit visit = {0};
	struct digester *g;
	int r = place_enter(&state->place, &visit, s);

	if (r < 0)
		return r;
	if (!is_in_primary(&state->place))
		return digest_copies(m, data_size, first, n, ret, s);
	(void)pthread_mutex_lock(&state->lock);
	g = digester_of(state);
	r = g ? digester_run(g, (cu_ptr)(uintptr_t)m->data, data_size, first, n, ret, s)
	      : digest_copies(m, data_size, first, n, ret, s);
	(void)pthread_mutex_unlock(&state->lock);
	return r;
}
