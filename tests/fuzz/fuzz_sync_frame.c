/*
 * Decodes any bytes as the stream of a peer, cut at any place: frames are within bounds, and
 * cutting changes nothing.
 */
#include <string.h>

#include "server/sync/net/frame.h"
#include "tests/fuzz/fuzz.h"

static uint64_t check_frame(const struct frame *f)
{
	uint64_t sum = f->kind;

	MUST(f->kind == FRAME_JSON || f->kind == FRAME_PART);
	MUST(f->size <= (f->kind == FRAME_JSON ? FRAME_JSON_MAX : FRAME_PART_MAX));
	if (f->kind == FRAME_PART)
		MUST(f->size > 0 && f->offset < f->blob_size && f->size <= f->blob_size - f->offset);
	for (size_t i = 0; i < f->size; i++)
		sum = sum * 31 + f->data[i];
	return sum;
}

/* The decoded stream as a number. */
static uint64_t decode(const uint8_t *data, size_t size, size_t step)
{
	struct frame_decoder d;
	uint64_t sum = 0;
	int r = 0;

	frame_decoder_init(&d);
	while (size > 0 && r == 0) {
		struct frame f;
		const char *why;
		size_t n;
		void *room;

		MUST(frame_decoder_room(&d, &room, &n) == 0 && n > 0);
		n = n < size ? n : size;
		n = n < step ? n : step;
		memcpy(room, data, n);
		frame_decoder_put(&d, n);
		data += n;
		size -= n;
		while ((r = frame_decoder_next(&d, &f, &why)) == 1)
			sum = sum * 33 + check_frame(&f);
	}
	frame_decoder_deinit(&d);
	return sum + (r < 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	MUST(decode(data + 1, size - 1, SIZE_MAX) == decode(data + 1, size - 1, 1u + data[0]));
	return 0;
}
