/*
 * Parses any bytes as the plan of an exchange: an accepted one stays in its memory, and is written
 * back unchanged.
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/reshard/moves.h"
#include "tests/fuzz/fuzz.h"

#define MEMORY_MAX ((uint64_t)1 << 16)

/* In buffers of exact size, so that the sanitizer detects every byte outside. */
static void carry(const struct moves *m, const struct moves_link *l)
{
	uint64_t from_size = m->nodes[l->from].size[MOVES_FROM];
	uint64_t to_size = m->nodes[l->to].size[MOVES_TO], left = l->n_bytes;
	uint8_t *from, *to, piece[61];
	struct stream in, out;

	MUST(left <= to_size);
	if (from_size > MEMORY_MAX || to_size > MEMORY_MAX)
		return;
	from = calloc(1, from_size);
	to = calloc(1, to_size);
	MUST(from && to);
	stream_init(&in, m, l);
	stream_init(&out, m, l);
	while (left > 0) {
		size_t n = left < sizeof(piece) ? left : sizeof(piece);

		stream_read(&in, MOVES_FROM, from, piece, n);
		stream_write(&out, piece, to, n);
		left -= n;
	}
	MUST(in.move == in.end && out.move == out.end);
	free(from);
	free(to);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char why[MOVES_WHY_SIZE];
	struct moves m, links;
	size_t out_size;
	void *out;
	int r = moves_decode_links(data, size, &links, why);

	if (moves_decode(data, size, &m, why) < 0) {
		if (r == 0)
			moves_deinit(&links);
		return 0;
	}
	MUST(r == 0 && m.n_links == links.n_links && !links.moves);
	MUST(!memcmp(m.links, links.links, m.n_links * sizeof(*m.links)));
	moves_deinit(&links);
	for (size_t i = 0; i < m.n_links; i++)
		carry(&m, &m.links[i]);
	MUST(moves_encode(&m, &out, &out_size) == 0);
	MUST(out_size == size && !memcmp(out, data, size));
	free(out);
	moves_deinit(&m);
	return 0;
}
