#include "server/sync/local/transfer.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "server/sync/local/direct.h"

struct transfer {
	struct task *e;
	uint8_t (*hashes)[MERKLE_HASH_SIZE];
	struct fault *fault;
	pthread_mutex_t lock; /* protects the connection of the task, and the members below */
	int result; /* the first copy that failed */
};

static uint64_t size_of(const struct transfer *t, uint64_t leaf)
{
	uint64_t left = t->e->n_bytes - leaf * MERKLE_LEAF_SIZE;

	return left < MERKLE_LEAF_SIZE ? left : MERKLE_LEAF_SIZE;
}

static void transfer_note(struct transfer *t, int r)
{
	if (r < 0)
		t->result = fault_set_weightd(t->fault, r, t->e->w);
}

/* False: this read, or one before, has failed. */
static bool read_leaf(struct transfer *t, uint64_t leaf, void *to)
{
	bool is_there;

	(void)pthread_mutex_lock(&t->lock);
	if (t->result == 0)
		transfer_note(t, task_read(t->e, leaf * MERKLE_LEAF_SIZE, to, size_of(t, leaf)));
	is_there = t->result == 0;
	(void)pthread_mutex_unlock(&t->lock);
	return is_there;
}

static void read_and_hash(void *userdata, uint64_t leaf)
{
	struct transfer *t = userdata;
	const struct task *e = t->e;
	const bool is_staged = direct_is_staged(e, leaf);
	cleanup(freep) void *window = is_staged ? NULL : malloc(MERKLE_LEAF_SIZE);
	void *to = is_staged ? e->staging.data + leaf * MERKLE_LEAF_SIZE : window;

	if (!to) {
		(void)pthread_mutex_lock(&t->lock);
		t->result = fault_set(t->fault, -ENOMEM, "out of memory");
		(void)pthread_mutex_unlock(&t->lock);
	} else if (read_leaf(t, leaf, to)) {
		merkle_leaf(to, size_of(t, leaf), 0, t->hashes[leaf]);
		if (e->writer)
			weightd_writer_digest_bytes(e->writer, leaf, to);
	}
}

static void hash_and_write(void *userdata, uint64_t leaf)
{
	struct transfer *t = userdata;
	const struct task *e = t->e;
	const char *from = e->staging.data + leaf * MERKLE_LEAF_SIZE;
	const uint8_t(*wanted)[MERKLE_HASH_SIZE] = e->leaves.data;

	if (!direct_is_staged(e, leaf)) {
		read_and_hash(t, leaf);
		return;
	}
	merkle_leaf(from, size_of(t, leaf), 0, t->hashes[leaf]);
	if (!e->is_computed && memcmp(t->hashes[leaf], wanted[leaf], MERKLE_HASH_SIZE) != 0)
		return;
	weightd_writer_digest_bytes(e->writer, leaf, from);
	(void)pthread_mutex_lock(&t->lock);
	if (t->result == 0)
		transfer_note(t, weightd_writer_write(e->writer, leaf * MERKLE_LEAF_SIZE, from,
						      size_of(t, leaf)));
	(void)pthread_mutex_unlock(&t->lock);
}

static int transfer_run(struct task *e, void (*each)(void *userdata, uint64_t leaf),
			uint8_t (*ret)[MERKLE_HASH_SIZE], struct fault *f)
{
	struct transfer t = {.e = e, .hashes = ret, .fault = f};

	(void)pthread_mutex_init(&t.lock, NULL);
	merkle_each_leaf(e->n_bytes, each, &t);
	(void)pthread_mutex_destroy(&t.lock);
	return t.result;
}

int transfer_read(struct task *e, uint8_t (*ret)[MERKLE_HASH_SIZE], struct fault *f)
{
	return transfer_run(e, read_and_hash, ret, f);
}

int transfer_write(struct task *e, uint8_t (*ret)[MERKLE_HASH_SIZE], struct fault *f)
{
	return transfer_run(e, hash_and_write, ret, f);
}
