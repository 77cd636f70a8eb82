/* Frames: decoding of a stream cut at any place, and early refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "server/sync/net/frame.h"

#define PART_HEAD (FRAME_HEAD_SIZE + FRAME_PART_HEAD_SIZE)

static const uint8_t hash[32] = {1, 2, 3, [31] = 32};
static const char json[] = "{\"type\":\"ping\",\"n\":7}";

/* Puts as much as there is room for, at most `n`. Returns the number of bytes. */
static size_t put(struct frame_decoder *d, const uint8_t *bytes, size_t n)
{
	size_t size;
	void *room;

	assert_int_equal(frame_decoder_room(d, &room, &size), 0);
	assert_true(size > 0);
	n = n < size ? n : size;
	memcpy(room, bytes, n);
	frame_decoder_put(d, n);
	return n;
}

static size_t encode_json(uint8_t *room, const char *text)
{
	memcpy(room + FRAME_HEAD_SIZE, text, strlen(text));
	frame_encode_json(room, strlen(text));
	return FRAME_HEAD_SIZE + strlen(text);
}

static size_t encode_part(uint8_t *room, size_t size, uint64_t blob_size, uint64_t offset)
{
	memset(room + PART_HEAD, 'x', size);
	frame_encode_part(room, size, hash, blob_size, offset);
	return PART_HEAD + size;
}

static void check_json(const struct frame *f, const char *text)
{
	assert_int_equal(f->kind, FRAME_JSON);
	assert_int_equal(f->size, strlen(text));
	assert_memory_equal(f->data, text, f->size);
}

/* A message, a part and a message, in steps of `step` bytes. */
static void check_stream(size_t step)
{
	cleanup(freep) uint8_t *stream = malloc(FRAME_PART_MAX + 1000);
	size_t n = 0, at = 0, n_frames = 0;
	struct frame_decoder d;
	const char *why = NULL;
	struct frame f;

	assert_non_null(stream);
	n += encode_json(stream, json);
	n += encode_part(stream + n, FRAME_PART_MAX, 2 * FRAME_PART_MAX, 17);
	n += encode_json(stream + n, "{}");
	frame_decoder_init(&d);
	while (at < n) {
		at += put(&d, stream + at, step < n - at ? step : n - at);
		while (frame_decoder_next(&d, &f, &why) == 1) {
			if (n_frames == 0)
				check_json(&f, json);
			else if (n_frames == 2)
				check_json(&f, "{}");
			else {
				assert_int_equal(f.kind, FRAME_PART);
				assert_int_equal(f.size, FRAME_PART_MAX);
				assert_int_equal(f.blob_size, 2 * FRAME_PART_MAX);
				assert_int_equal(f.offset, 17);
				assert_memory_equal(f.hash, hash, sizeof(hash));
				assert_int_equal(f.data[FRAME_PART_MAX - 1], 'x');
			}
			n_frames++;
		}
		assert_null(why);
	}
	assert_int_equal(n_frames, 3);
	frame_decoder_deinit(&d);
}

static void frames_come_however_the_stream_is_cut(void **state)
{
	static const size_t steps[] = {1, 2, 5, 52, 53, 54, 4096, 16384, 1 << 20};

	(void)state;
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
		check_stream(steps[i]);
}

static void what_is_not_taken_stays(void **state)
{
	uint8_t stream[64];
	size_t n = encode_json(stream, json);
	struct frame_decoder d;
	const char *why;
	struct frame f;

	(void)state;
	frame_decoder_init(&d);
	for (int i = 0; i < 2000; i++)
		for (size_t at = 0; at < n;)
			at += put(&d, stream + at, n - at);
	for (int i = 0; i < 2000; i++) {
		assert_int_equal(frame_decoder_next(&d, &f, &why), 1);
		check_json(&f, json);
	}
	assert_int_equal(frame_decoder_next(&d, &f, &why), 0);
	frame_decoder_deinit(&d);
}

static void check_refused(const uint8_t *bytes, size_t n, const char *expected)
{
	struct frame_decoder d;
	const char *why = "nothing";
	struct frame f;

	frame_decoder_init(&d);
	assert_int_equal(put(&d, bytes, n), n);
	assert_int_equal(frame_decoder_next(&d, &f, &why), -EBADMSG);
	assert_string_equal(why, expected);
	assert_int_equal(frame_decoder_next(&d, &f, &why), -EBADMSG);
	frame_decoder_deinit(&d);
}

static void a_head_alone_is_enough_to_be_refused(void **state)
{
	static const uint8_t no_kind[] = {0, 0, 0, 9, 3}, empty[] = {0, 0, 0, 0, 1};
	static const uint8_t long_json[] = {0, 0x10, 0, 2, 1}, long_part[] = {0, 4, 0, 0x32, 2};
	static const uint8_t longest[] = {0xff, 0xff, 0xff, 0xff, 1};
	static const uint8_t short_part[] = {0, 0, 0, 49, 2};

	(void)state;
	check_refused(no_kind, sizeof(no_kind), "a frame of a kind that there is not");
	check_refused(empty, sizeof(empty), "a frame that is too short");
	check_refused(short_part, sizeof(short_part), "a frame that is too short");
	check_refused(long_json, sizeof(long_json), "a frame that is too long");
	check_refused(long_part, sizeof(long_part), "a frame that is too long");
	check_refused(longest, sizeof(longest), "a frame that is too long");
}

static void the_longest_frames_are_taken(void **state)
{
	static const uint8_t json_head[] = {0, 0x10, 0, 1, 1}, part_head[] = {0, 4, 0, 0x31, 2};
	const uint8_t *const heads[] = {json_head, part_head};

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct frame_decoder d;
		const char *why;
		struct frame f;

		frame_decoder_init(&d);
		assert_int_equal(put(&d, heads[i], FRAME_HEAD_SIZE), FRAME_HEAD_SIZE);
		assert_int_equal(frame_decoder_next(&d, &f, &why), 0);
		frame_decoder_deinit(&d);
	}
}

static void a_part_lies_within_its_blob(void **state)
{
	uint8_t bytes[PART_HEAD + 10];

	(void)state;
	check_refused(bytes, encode_part(bytes, 10, 9, 0), "a part that lies beyond its blob");
	check_refused(bytes, encode_part(bytes, 10, 100, 91), "a part that lies beyond its blob");
	check_refused(bytes, encode_part(bytes, 10, 100, UINT64_MAX),
		      "a part that lies beyond its blob");
	check_refused(bytes, encode_part(bytes, 10, 0, 0), "a part that lies beyond its blob");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(frames_come_however_the_stream_is_cut),
		cmocka_unit_test(what_is_not_taken_stays),
		cmocka_unit_test(a_head_alone_is_enough_to_be_refused),
		cmocka_unit_test(the_longest_frames_are_taken),
		cmocka_unit_test(a_part_lies_within_its_blob),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
