#include "server/sync/net/outbox.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "server/sync/net/frame.h"

#define PART_HEAD (FRAME_HEAD_SIZE + FRAME_PART_HEAD_SIZE)

struct parcel {
	struct list link; /* outbox::parcels */
	bool urgent;
	bool begun; /* some bytes of the frame may be sent */
	uint8_t *bytes; /* the frame */
	size_t n, n_sent;
	int fd; /* a blob's; -1: a message */
	uint8_t hash[32];
	uint64_t size, offset; /* size of the blob, and offset of the bytes after the frame */
};

void outbox_init(struct outbox *o)
{
	*o = (struct outbox){0};
	list_init(&o->parcels);
}

static void parcel_free(struct outbox *o, struct parcel *p)
{
	list_remove(&p->link);
	if (p->fd < 0)
		o->n_bytes -= p->n;
	else
		o->n_blobs--;
	(void)fd_close(p->fd);
	free(p->bytes);
	free(p);
}

void outbox_deinit(struct outbox *o)
{
	struct parcel *p;

	while ((p = list_first(&o->parcels, struct parcel, link)))
		parcel_free(o, p);
}

static unsigned count_urgent(const struct outbox *o)
{
	struct parcel *p;
	unsigned n = 0;

	list_for_each(p, &o->parcels, link) {
		if (!p->urgent && !p->begun)
			break;
		n++;
	}
	return n;
}

/* Inserts behind other urgent messages, and behind the frame that is being sent. */
static void put_in_front(struct outbox *o, struct parcel *parcel)
{
	struct parcel *p;

	list_for_each(p, &o->parcels, link)
		if (!p->urgent && !p->begun)
			break;
	list_append(&p->link, &parcel->link); /* in front of p, or at the end */
}

int outbox_put(struct outbox *o, const json_t *message, bool urgent)
{
	size_t size = json_dumpb(message, NULL, 0, JSON_COMPACT);
	struct parcel *p;

	if (size == 0)
		return -ENOMEM;
	if (size > FRAME_JSON_MAX)
		return -EMSGSIZE;
	if (o->n_bytes + FRAME_HEAD_SIZE + size > OUTBOX_BYTES_MAX ||
	    (urgent && count_urgent(o) >= OUTBOX_URGENT_MAX))
		return -ENOBUFS;
	p = calloc(1, sizeof(*p));
	if (p)
		p->bytes = malloc(FRAME_HEAD_SIZE + size);
	if (!p || !p->bytes) {
		free(p);
		return -ENOMEM;
	}
	(void)json_dumpb(message, (char *)p->bytes + FRAME_HEAD_SIZE, size, JSON_COMPACT);
	frame_encode_json(p->bytes, size);
	p->urgent = urgent;
	p->fd = -1;
	p->n = FRAME_HEAD_SIZE + size;
	o->n_bytes += p->n;
	if (urgent)
		put_in_front(o, p);
	else
		list_append(&o->parcels, &p->link);
	return 0;
}

int outbox_put_blob(struct outbox *o, const uint8_t hash[32], int fd, uint64_t size)
{
	struct parcel *p;

	if (size == 0)
		return -EINVAL;
	if (o->n_blobs == OUTBOX_BLOBS_MAX)
		return -ENOBUFS;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (p->fd < 0) {
		free(p);
		return -errno;
	}
	memcpy(p->hash, hash, sizeof(p->hash));
	p->size = size;
	o->n_blobs++;
	list_append(&o->parcels, &p->link);
	return 0;
}

bool outbox_is_empty(const struct outbox *o)
{
	return list_empty(&o->parcels);
}

bool outbox_is_between(const struct outbox *o)
{
	const struct parcel *p = list_first(&o->parcels, struct parcel, link);

	return !p || !p->begun;
}

/* Reads the next part of a blob. */
static int parcel_fill(struct parcel *p)
{
	uint64_t left = p->size - p->offset;
	size_t size = left < FRAME_PART_MAX ? (size_t)left : FRAME_PART_MAX, got = 0;

	if (!p->bytes)
		p->bytes = malloc(PART_HEAD + FRAME_PART_MAX);
	if (!p->bytes)
		return -ENOMEM;
	while (got < size) {
		ssize_t n = pread(p->fd, p->bytes + PART_HEAD + got, size - got,
				  (off_t)(p->offset + got));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO; /* shorter than announced */
		got += (size_t)n;
	}
	frame_encode_part(p->bytes, size, p->hash, p->size, p->offset);
	p->n = PART_HEAD + size;
	p->n_sent = 0;
	p->offset += size;
	return 0;
}

int outbox_next(struct outbox *o, const void **ret, size_t *ret_size)
{
	struct parcel *p = list_first(&o->parcels, struct parcel, link);
	int r = 0;

	if (!p)
		return 0;
	if (p->fd >= 0 && !p->begun)
		r = parcel_fill(p);
	if (r < 0)
		return r;
	p->begun = true;
	*ret = p->bytes + p->n_sent;
	*ret_size = p->n - p->n_sent;
	return 1;
}

void outbox_sent(struct outbox *o, size_t n)
{
	struct parcel *p = list_first(&o->parcels, struct parcel, link);

	assert(p && p->begun && n <= p->n - p->n_sent);
	p->n_sent += n;
	if (p->n_sent < p->n)
		return;
	p->begun = false;
	if (p->fd < 0 || p->offset == p->size)
		parcel_free(o, p);
}
