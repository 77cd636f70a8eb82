/*
 * Detaching. What a GPU still reads must stay where it is: it is waited for, here and now, or behind a mark in
 * the caller's stream, which later calls on the connection look at.
 */
#include "libclient/buffer.h"

void weightd_detach(struct weightd_buffer *b)
{
	/* After a failure nothing runs any more; but for one in a capture, where weightd.h forbids the call. */
	struct sentence ignored;

	if (!b)
		return;
	(void)memory_synchronize(&b->memory, WEIGHTD_ALL_STREAMS, &ignored);
	buffer_end(b);
}

void weightd_detach_on(struct weightd_buffer *b, void *stream)
{
	struct sentence ignored;

	if (!b)
		return;
	if (stream == WEIGHTD_ALL_STREAMS || memory_mark(&b->memory, stream, &ignored) < 0) {
		weightd_detach(b);
	} else if (b->w->is_closed || memory_has_passed(&b->memory, false)) {
		/* After weightd_close() no later call would reap it. */
		(void)memory_has_passed(&b->memory, true);
		buffer_end(b);
	} else {
		b->is_leaving = true;
		b->w->n_leaving++;
	}
}

int weightd_reap(struct weightd *w)
{
	return client_reap(w, false);
}
