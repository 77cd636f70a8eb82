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

bool cuda_arrival_init(struct arrival *a, const struct memory *m, uint64_t data_size)
{
	struct cuda_state *state = m->state;
	cleanup(place_leave) struct visit visit = {0};
	struct sentence ignored; /* digests at the end fail the same way, or do without the GPU */
	struct digester *g;

	*a = (struct arrival){.data_size = data_size};
	if (!data_size || place_enter_primary(&state->place, &visit, &ignored) < 0)
		return false;
	(void)pthread_mutex_lock(&state->lock);
	g = digester_of(state);
	if (g && digester_new_table(g, digest_n_leaves(data_size), &a->table, &ignored) == 0)
		a->m = m;
	(void)pthread_mutex_unlock(&state->lock);
	return a->m;
}

int cuda_arrival_queue(struct arrival *a, uint64_t first, uint64_t n, cu_event after,
		       struct sentence *s)
{
	struct cuda_state *state = a->m->state;
	int r;

	(void)pthread_mutex_lock(&state->lock);
	r = digester_queue(state->digester, a->table, (cu_ptr)(uintptr_t)a->m->data, a->data_size,
			   first, n, after, s);
	(void)pthread_mutex_unlock(&state->lock);
	return r;
}

int cuda_arrival_take(struct arrival *a, uint64_t n, uint8_t (*ret)[HASH_SIZE], struct sentence *s)
{
	struct cuda_state *state = a->m->state;
	cleanup(place_leave) struct visit visit = {0};
	int r = place_enter_primary(&state->place, &visit, s);

	if (r < 0)
		return r;
	(void)pthread_mutex_lock(&state->lock);
	r = digester_take(state->digester, a->table, n, ret, s);
	(void)pthread_mutex_unlock(&state->lock);
	return r;
}

void cuda_arrival_deinit(struct arrival *a)
{
	const struct cuda_state *state = a->m ? a->m->state : NULL;
	struct visit visit = {0};
	struct sentence ignored; /* without the context nothing of it is left */

	if (state && place_enter_primary(&state->place, &visit, &ignored) == 0)
		digester_free_table(state->digester, a->table);
	place_leave(&visit);
	*a = (struct arrival){0};
}
