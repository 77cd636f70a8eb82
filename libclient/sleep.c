/*
 * Sleep and wake. A sleeping buffer has no memory and no lease: the server may free its version, and no writer waits
 * for it. It keeps its addresses, its layout and its head page.
 */
#include <errno.h>
#include <string.h>

#include "libclient/buffer.h"

int weightd_buffer_release(struct weightd_buffer *b, void *stream)
{
	struct sentence *s = &b->w->sentence;
	int r = client_check_owner(b->w);

	if (r < 0 || b->is_asleep)
		return r;
	r = memory_synchronize(&b->memory, stream, s);
	if (r == 0)
		r = memory_let_go(&b->memory, s);
	if (r < 0)
		return sentence_set(s, r, "the memory of '%s' on %s cannot be released: %s",
				    b->name, b->device, s->text);
	b->is_asleep = true;
	client_end(b->w, WIRE_DETACH, b->lease);
	b->lease = 0;
	return 0;
}

static int check_is_there(struct weightd_buffer *b)
{
	uint64_t ignored;
	int r = weightd_buffer_latest(b, &ignored);

	return r < 0 ? sentence_set(&b->w->sentence, r, "'%s' on %s was removed", b->name, b->device)
		     : 0;
}

int weightd_buffer_reacquire(struct weightd_buffer *b)
{
	struct attaching a = {
		.over = b,
		.stream = WEIGHTD_ALL_STREAMS,
		.map_device = b->map_device,
	};
	int r;

	if (!b->is_asleep)
		return 0;
	r = check_is_there(b);
	if (r == 0)
		r = buffer_request_current(b, &a.attach);
	if (r < 0)
		return r;
	a.attach.version = b->version;
	a.attach.flags |= WIRE_ATTACH_CHECK_LAYOUT;
	memcpy(a.attach.layout_hash, b->layout_hash, HASH_SIZE);
	r = buffer_attach(b->w, &a, &b);
	if (r != -ENOENT)
		return r;
	a.attach.version = 0;
	r = buffer_attach(b->w, &a, &b);
	if (r == -ENOENT) /* no such name: removed before it had a head page to show that */
		return -ESTALE;
	return r < 0 ? r : 1;
}
