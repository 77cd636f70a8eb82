/*
 * Frames
 *
 * What goes over the connection of two agents: a length, a kind, and a JSON object or a part of a blob. Only
 * bytes here, no socket; the decoder holds one frame at most, and says no to a longer one by its length alone.
 *
 *	u32 big-endian	bytes that follow
 *	u8		kind
 *	1: JSON		the object's text
 *	2: part		SHA-256 of the blob (32), its size (u64 big-endian), offset of the part (u64), bytes
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define FRAME_JSON_MAX ((size_t)1 << 20)
#define FRAME_PART_MAX ((size_t)256 << 10)
#define FRAME_HEAD_SIZE 5 /* length and kind */
#define FRAME_PART_HEAD_SIZE 48 /* hash, size and offset */

enum frame_kind {
	FRAME_JSON = 1,
	FRAME_PART = 2,
};

struct frame {
	enum frame_kind kind;
	const uint8_t *data; /* of the text or of the part; the decoder's until it is asked again */
	size_t size;
	/* Fields of a part: */
	uint8_t hash[32];
	uint64_t blob_size; /* 1 at least; the part lies within it */
	uint64_t offset;
};

struct frame_decoder {
	uint8_t *room;
	size_t size; /* of the room */
	size_t n; /* bytes in it */
	size_t used; /* of those, by the frame that was returned last */
};

void frame_decoder_init(struct frame_decoder *d);
void frame_decoder_deinit(struct frame_decoder *d);

/*
 * Returns the room for the next bytes of the stream; frame_decoder_put() says how many went.
 * -ENOMEM.
 */
int frame_decoder_room(struct frame_decoder *d, void **ret, size_t *ret_size);
void frame_decoder_put(struct frame_decoder *d, size_t n);

/* 1: a frame. 0: it is not there whole. -EBADMSG: none that there is, and `why` says so; nothing helps then. */
int frame_decoder_next(struct frame_decoder *d, struct frame *ret, const char **why);

/* The frame around `size` bytes of JSON text, which stand behind FRAME_HEAD_SIZE bytes of room at `room`. */
void frame_encode_json(void *room, size_t size);

/* Likewise of a part; its bytes stand behind FRAME_HEAD_SIZE + FRAME_PART_HEAD_SIZE. */
void frame_encode_part(void *room, size_t size, const uint8_t hash[32], uint64_t blob_size,
		       uint64_t offset);
