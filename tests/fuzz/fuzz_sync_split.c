/*
 * Parses an arbitrary split, a byte of 0 and arbitrary layouts: if they fit, an engine accepts the
 * moves, and every byte of a target is written once.
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/reshard/reshard.h"
#include "tests/fuzz/fuzz.h"

#define RANKS 4
#define TENSORS 3
#define DIMS 4
#define BYTES_MAX ((uint64_t)1 << 16)

struct input {
	const uint8_t *at;
	const uint8_t *end;
};

static unsigned draw(struct input *in)
{
	return in->at < in->end ? *in->at++ : 0;
}

/* Small or huge. */
static uint64_t draw_size(struct input *in)
{
	unsigned n = draw(in);

	return n < 250 ? n % 17 : UINT64_MAX >> (n % 8 * 9);
}

static void look(const struct reshard *r, const struct moves *m)
{
	char why[MOVES_WHY_SIZE];
	struct moves decoded;
	uint64_t written = 0, all = 0;
	size_t size;
	void *text;

	for (size_t i = 0; i < m->n_links; i++)
		written += m->links[i].n_bytes;
	for (unsigned target = 0; target < r->n_targets; target++) {
		if (r->target_bytes[target] > BYTES_MAX)
			return;
		for (uint32_t i = 0; i < r->sources[0].n_tensors; i++) {
			const struct reshard_tensor *t = &r->sources[0].tensors[i];
			uint64_t shape[RESHARD_DIMS_MAX], bits = t->bits;

			reshard_shape(r, target, i, shape);
			for (uint32_t k = 0; k < t->n_dims && t->tied_to == RESHARD_NOT_TIED; k++)
				bits *= shape[k];
			all += t->tied_to == RESHARD_NOT_TIED ? bits / 8 : 0;
		}
	}
	MUST(written == all);
	MUST(moves_encode(m, &text, &size) == 0);
	MUST(moves_decode(text, size, &decoded, why) == 0);
	moves_deinit(&decoded);
	free(text);
}

static void plan(const struct split *split, struct input *in)
{
	static const char *const names[] = {"a.weight", "b", "c.bias"};
	static const unsigned nodes[][RANKS] = {{0, 1, 2, 3}, {2, 3, 4, 5}};
	static const unsigned bits[] = {4, 8, 16, 32};
	struct reshard_tensor tensors[RANKS][TENSORS] = {0};
	uint64_t shapes[RANKS][TENSORS][DIMS];
	struct reshard_layout sources[RANKS];
	unsigned n_sources = 1 + draw(in) % RANKS, n_targets = 1 + draw(in) % RANKS;
	uint32_t n_tensors = 1 + draw(in) % TENSORS;
	char why[RESHARD_WHY_SIZE];
	struct reshard r;
	struct moves m;

	for (uint32_t i = 0; i < n_tensors; i++) {
		unsigned kind = draw(in), ranks_alike = draw(in);

		for (unsigned rank = 0; rank < n_sources; rank++) {
			tensors[rank][i] = (struct reshard_tensor){
				.name = names[i],
				.dtype = "T",
				.bits = bits[kind % 4],
				.tied_to = i && kind >= 240 ? 0 : RESHARD_NOT_TIED,
				.n_dims = kind / 4 % (DIMS + 1),
				.shape = shapes[rank][i],
				.offset = i * (BYTES_MAX << 8)};
			for (unsigned k = 0; k < DIMS; k++)
				shapes[rank][i][k] = rank && ranks_alike % 2 ? shapes[0][i][k]
									     : draw_size(in);
		}
	}
	for (unsigned rank = 0; rank < n_sources; rank++)
		sources[rank] = (struct reshard_layout){.tensors = tensors[rank],
							.n_tensors = n_tensors,
							.n_bytes = BYTES_MAX << 10};
	if (reshard_init(&r, split, sources, n_sources, n_targets, why) < 0)
		return;
	if (reshard_moves(&r, nodes[0], nodes[1], 6, &m, why) == 0) {
		look(&r, &m);
		moves_deinit(&m);
	}
	reshard_deinit(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *end = size ? memchr(data, '\0', size) : NULL;
	struct input in = {.at = end ? end + 1 : data + size, .end = data + size};
	char why[SPLIT_WHY_SIZE];
	struct split split;

	if (split_read((const char *)data, (size_t)((end ? end : data + size) - data), &split,
		       why) < 0)
		return 0;
	plan(&split, &in);
	split_deinit(&split);
	return 0;
}
