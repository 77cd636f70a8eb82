/*
 * Frames
 *
 * The messages on a connection of two agents: a length, a kind, and a JSON object or a part of a
 * blob. This module handles bytes only, no socket. The decoder holds at most one frame, and refuses
 * a longer one by its length alone.
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
	const uint8_t *data; /* the text or the part; valid until the next call of the decoder */
	size_t size;
	/* A part's: */
	uint8_t hash[32];
	uint64_t blob_size; /* 1 at least; the part lies within it */
	uint64_t offset;
};

struct frame_decoder {
	uint8_t *room;
	size_t size; /* the room's */
	size_t n; /* bytes in it */
	size_t used; /* bytes of the last returned frame */
};

void frame_decoder_init(struct frame_decoder *d);
void frame_decoder_deinit(struct frame_decoder *d);

/*
 * Returns the room for the next bytes of the stream, and its size; frame_decoder_put() adds them.
 * -ENOMEM.
 */
int frame_decoder_room(struct frame_decoder *d, void **ret, size_t *ret_size);
void frame_decoder_put(struct frame_decoder *d, size_t n);

/*
 * 1: a frame. 0: it is incomplete. -EBADMSG: invalid, with the reason in `why`; the stream is
 * unusable then.
 */
int frame_decoder_next(struct frame_decoder *d, struct frame *ret, const char **why);

/*
 * Completes the frame of `size` bytes of JSON text, which follow FRAME_HEAD_SIZE bytes of room at
 * `room`.
 */
void frame_encode_json(void *room, size_t size);

/* The same for a part; its bytes follow FRAME_HEAD_SIZE + FRAME_PART_HEAD_SIZE. */
void frame_encode_part(void *room, size_t size, const uint8_t hash[32], uint64_t blob_size,
		       uint64_t offset);
