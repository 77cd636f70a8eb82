#include "server/sync/local/tensors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

#define TABLE_MAX ((size_t)64 << 20) /* the engine's own limit */

static json_t *row_of(const struct weightd_tensor *t)
{
	return json_pack("[s, s, I, I]", t->name, weightd_dtype_name(t->dtype),
			 (json_int_t)t->offset, (json_int_t)t->n_bytes);
}

int tensors_table(const struct weightd_buffer *b, int *ret_fd, struct fault *f)
{
	struct weightd_tensor t = {.size = sizeof(t)};
	cleanup(json_freep) json_t *table = json_array();
	cleanup(freep) char *text = NULL;
	int r;

	for (uint32_t i = 0; weightd_buffer_tensor(b, i, &t) == 0; i++)
		if (t.tied_to == WEIGHTD_NOT_TIED && json_array_append_new(table, row_of(&t)) < 0)
			return fault_set(f, -ENOMEM, "out of memory");
	text = table ? json_dumps(table, JSON_COMPACT) : NULL;
	if (!text)
		return fault_set(f, -ENOMEM, "out of memory");
	if (strlen(text) > TABLE_MAX)
		return fault_set(f, -EOPNOTSUPP,
				 "it has too many tensors to compute with: their table has %zu bytes, "
				 "and engines take 64 MiB",
				 strlen(text));
	r = fd_sealed_copy("weightd-sync-tensors", text, strlen(text), ret_fd);
	return r < 0 ? fault_set(f, r, "the table of tensors cannot be made: %s", strerror(-r)) : 0;
}

/* On a GPU, by calls. */
static int tensors_clear(struct weightd_writer *w, uint64_t at, uint64_t end)
{
	static const uint8_t zeroes[65536];
	int r = 0;

	for (uint64_t n; r == 0 && at < end; at += n) {
		n = end - at < sizeof(zeroes) ? end - at : sizeof(zeroes);
		r = weightd_writer_write(w, at, zeroes, n);
	}
	return r;
}

int tensors_clear_gaps(struct weightd_writer *w)
{
	struct weightd_tensor t = {.size = sizeof(t)};
	uint64_t n_bytes, end = 0;
	int r = 0;

	(void)weightd_writer_data(w, &n_bytes);
	for (uint32_t i = 0; r == 0 && weightd_writer_tensor(w, i, &t) == 0; i++) {
		if (t.tied_to != WEIGHTD_NOT_TIED)
			continue;
		r = tensors_clear(w, end, t.offset);
		end = t.offset + t.n_bytes;
	}
	return r == 0 ? tensors_clear(w, end, n_bytes) : r;
}
