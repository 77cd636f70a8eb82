#include "server/sync/net/frame.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"

#define ROOM_MIN ((size_t)16 << 10) /* the payload of one TLS record */

void frame_decoder_init(struct frame_decoder *d)
{
	*d = (struct frame_decoder){0};
}

void frame_decoder_deinit(struct frame_decoder *d)
{
	free(take_ptr(d->room));
	frame_decoder_init(d);
}

static uint32_t get_u32(const uint8_t *at)
{
	uint32_t v;

	memcpy(&v, at, sizeof(v));
	return be32toh(v);
}

static uint64_t get_u64(const uint8_t *at)
{
	uint64_t v;

	memcpy(&v, at, sizeof(v));
	return be64toh(v);
}

static void put_u32(uint8_t *at, uint32_t v)
{
	v = htobe32(v);
	memcpy(at, &v, sizeof(v));
}

static void put_u64(uint8_t *at, uint64_t v)
{
	v = htobe64(v);
	memcpy(at, &v, sizeof(v));
}

/* Removes the frame that was returned. */
static void drop_used(struct frame_decoder *d)
{
	d->n -= d->used;
	memmove(d->room, d->room + d->used, d->n);
	d->used = 0;
}

/*
 * Returns the size of the first frame, including its head, as far as it is known: FRAME_HEAD_SIZE
 * before its head has arrived. -EBADMSG.
 */
static int look_ahead(const struct frame_decoder *d, size_t *ret, const char **why)
{
	const uint8_t *head = d->room;
	size_t size;

	*ret = FRAME_HEAD_SIZE;
	if (d->n < FRAME_HEAD_SIZE)
		return 0;
	size = get_u32(head);
	if (head[4] != FRAME_JSON && head[4] != FRAME_PART) {
		*why = "a frame of a kind that there is not";
		return -EBADMSG;
	}
	if (size == 0 || (head[4] == FRAME_PART && size <= 1 + FRAME_PART_HEAD_SIZE)) {
		*why = "a frame that is too short";
		return -EBADMSG;
	}
	if (size >
	    1 + (head[4] == FRAME_JSON ? FRAME_JSON_MAX : FRAME_PART_HEAD_SIZE + FRAME_PART_MAX)) {
		*why = "a frame that is too long";
		return -EBADMSG;
	}
	*ret = sizeof(uint32_t) + size;
	return 0;
}

int frame_decoder_room(struct frame_decoder *d, void **ret, size_t *ret_size)
{
	size_t size = ROOM_MIN, whole;
	const char *why;
	uint8_t *more;

	if (d->used > 0)
		drop_used(d);
	if (look_ahead(d, &whole, &why) == 0 && whole > size)
		size = whole;
	if (d->n >= size)
		size = d->n + ROOM_MIN; /* the caller did not take a complete frame */
	if (size > d->size || (d->n == 0 && d->size > ROOM_MIN)) {
		more = realloc(d->room, size);
		if (!more)
			return -ENOMEM;
		d->room = more;
		d->size = size;
	}
	*ret = d->room + d->n;
	*ret_size = d->size - d->n;
	return 0;
}

void frame_decoder_put(struct frame_decoder *d, size_t n)
{
	assert(n <= d->size - d->n);
	d->n += n;
}

static int decode_part(const uint8_t *at, size_t size, struct frame *ret, const char **why)
{
	ret->data = at + FRAME_PART_HEAD_SIZE;
	ret->size = size - FRAME_PART_HEAD_SIZE;
	memcpy(ret->hash, at, sizeof(ret->hash));
	ret->blob_size = get_u64(at + 32);
	ret->offset = get_u64(at + 40);
	if (ret->size <= ret->blob_size && ret->offset <= ret->blob_size - ret->size)
		return 1;
	*why = "a part that lies beyond its blob";
	return -EBADMSG;
}

int frame_decoder_next(struct frame_decoder *d, struct frame *ret, const char **why)
{
	struct frame frame = {.kind = FRAME_JSON};
	size_t whole;
	int r;

	if (d->used > 0)
		drop_used(d);
	r = look_ahead(d, &whole, why);
	if (r < 0)
		return r;
	if (d->n <= FRAME_HEAD_SIZE || d->n < whole)
		return 0;
	frame.kind = d->room[4];
	frame.data = d->room + FRAME_HEAD_SIZE;
	frame.size = whole - FRAME_HEAD_SIZE;
	if (frame.kind == FRAME_PART && decode_part(frame.data, frame.size, &frame, why) < 0)
		return -EBADMSG;
	d->used = whole;
	*ret = frame;
	return 1;
}

static void encode_head(uint8_t *room, enum frame_kind kind, size_t size)
{
	put_u32(room, (uint32_t)(1 + size));
	room[4] = (uint8_t)kind;
}

void frame_encode_json(void *room, size_t size)
{
	assert(size > 0 && size <= FRAME_JSON_MAX);
	encode_head(room, FRAME_JSON, size);
}

void frame_encode_part(void *room, size_t size, const uint8_t hash[32], uint64_t blob_size,
		       uint64_t offset)
{
	uint8_t *at = (uint8_t *)room + FRAME_HEAD_SIZE;

	assert(size > 0 && size <= FRAME_PART_MAX);
	encode_head(room, FRAME_PART, FRAME_PART_HEAD_SIZE + size);
	memcpy(at, hash, 32);
	put_u64(at + 32, blob_size);
	put_u64(at + 40, offset);
}
