/*
 * libbpf 1.1 reads on while there are records, unless the callback fails: libbpf has consumed that record
 * nevertheless, and continues with the next one later.
 */
#include "bpf/base/ring.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>

#define HEAD_SIZE 8u /* bytes before each record, which begins at a multiple of that */

static int record_take(void *context, void *data, size_t size)
{
	struct ring *r = context;
	size_t in_ring = HEAD_SIZE + (size + HEAD_SIZE - 1) / HEAD_SIZE * HEAD_SIZE;

	r->take(r->context, data, size);
	if (--r->n_left == 0 || r->size_left <= in_ring)
		return -ECANCELED;
	r->size_left -= in_ring;
	return 0;
}

int ring_open(struct ring *r, const struct bpf_map *map,
	      void (*take)(void *context, const void *data, size_t size), void *context)
{
	*r = (struct ring){.take = take, .context = context, .size = bpf_map__max_entries(map)};
	r->buffer = ring_buffer__new(bpf_map__fd(map), record_take, r, NULL);
	return r->buffer ? 0 : -errno;
}

void ring_close(struct ring *r)
{
	ring_buffer__free(r->buffer);
	r->buffer = NULL;
}

int ring_fd(const struct ring *r)
{
	return ring_buffer__epoll_fd(r->buffer);
}

static void ring_consume(struct ring *r, size_t n)
{
	r->n_left = n;
	r->size_left = r->size;
	(void)ring_buffer__consume(r->buffer); /* no record fails */
}

void ring_take(struct ring *r)
{
	ring_consume(r, RING_TURN);
}

/* No more than fills it was there. */
void ring_take_all(struct ring *r)
{
	ring_consume(r, SIZE_MAX);
}
