/*
 * Parses arbitrary headers of pieces: an accepted piece lies in the stream, is accepted once, and
 * has the right bytes in memory. The first bytes are the length of the stream, and of a piece.
 */
#include <string.h>

#include "server/sync/base/stripes.h"
#include "tests/fuzz/fuzz.h"

static void look(struct stripes *s, uint64_t piece)
{
	uint64_t size = stripes_size(s, piece), offset = 0, done = stripes_done(s);
	uint8_t header[STRIPES_HEADER_SIZE];
	struct cursor c = stripes_cursor(s, piece);
	uint64_t again;

	MUST(c.at == piece * s->piece && size > 0 && c.at + size <= s->total);
	MUST(cursor_piece(&c, size, &offset) > 0 && offset >= c.at);
	stripes_encode(s, piece, header);
	MUST(stripes_decode(s, header, &again) == 0 && again == piece);
	if (!stripes_begin(s, piece))
		return;
	MUST(!stripes_begin(s, piece) && stripes_came(s, piece) == 0);
	stripes_add(s, piece, size - 1);
	stripes_add(s, piece, 1);
	MUST(stripes_came(s, piece) == size && stripes_done(s) >= done);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct range range[2] = {{3, 0}, {5000, 7}}; /* the gap between them */
	struct ranges ranges = {range, 2};
	struct stripes s;
	uint64_t piece, taken, n = 0;

	if (size < 2)
		return 0;
	range[0].size = 1 + data[0] * 16u;
	MUST(stripes_init(&s, &ranges, 1 + data[1] * 4u, false) == 0);
	for (data += 2, size -= 2; size >= STRIPES_HEADER_SIZE;
	     data += STRIPES_HEADER_SIZE, size -= STRIPES_HEADER_SIZE)
		if (stripes_decode(&s, data, &piece) == 0 && piece < s.n)
			look(&s, piece);
	while (stripes_take(&s, false, &taken)) {
		MUST(stripes_came(&s, taken) == stripes_size(&s, taken));
		n++;
	}
	MUST(n == s.n_begun && stripes_all_taken(&s) == (n == s.n));
	MUST((stripes_done(&s) == s.total) == (n == s.n));
	stripes_deinit(&s);
	return 0;
}
