/*
 * Reading a buffer that is updated in place. Its head has the state UPDATING for as long as the bytes may change. A
 * reader either stops and reports that, or continues and checks the head afterwards.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "ipc/base/num.h"
#include "libclient/buffer.h"

static_assert((int)WEIGHTD_EMPTY == (int)HEAD_EMPTY && (int)WEIGHTD_READY == (int)HEAD_READY &&
		      (int)WEIGHTD_UPDATING == (int)HEAD_UPDATING &&
		      (int)WEIGHTD_TORN == (int)HEAD_TORN && (int)WEIGHTD_GONE == (int)HEAD_GONE,
	      "states are ABI");

enum weightd_state weightd_buffer_state(const struct weightd_buffer *b, uint64_t *ret_version)
{
	uint64_t current = head_current(b->head);

	if (ret_version)
		*ret_version = head_version(current);
	return (enum weightd_state)head_state(current);
}

bool weightd_buffer_is_mutable(const struct weightd_buffer *b)
{
	return b->is_mutable;
}

/* The error for reading in that state; 0 for READY. */
static int state_error(enum head_state state)
{
	switch (state) {
	case HEAD_READY:
		return 0;
	case HEAD_TORN:
		return -EUCLEAN;
	case HEAD_GONE:
		return -ESTALE;
	case HEAD_EMPTY:
	case HEAD_UPDATING:
	default:
		return -EAGAIN;
	}
}

int weightd_read_begin(const struct weightd_buffer *b, uint64_t *ret_ticket)
{
	uint64_t current = head_current(b->head); /* acquire: the bytes are read after it */
	int r = 0;

	if (!b->memory.is_mapped)
		return -EADDRNOTAVAIL;
	if (b->was_evicted)
		return -EUCLEAN;
	if (b->is_mutable) /* sealed versions are whole in every state */
		r = state_error(head_state(current));
	if (r == 0)
		*ret_ticket = current;
	return r;
}

bool weightd_read_retry(const struct weightd_buffer *b, uint64_t ticket)
{
	if (!b->is_mutable)
		return false;
	/* The bytes were read before it. */
	atomic_thread_fence(memory_order_acquire);
	return atomic_load_explicit(&((struct head *)b->head)->current, memory_order_relaxed) !=
	       ticket;
}

static int evicted(struct weightd_buffer *b)
{
	b->was_evicted = true;
	return sentence_set(
		&b->w->sentence, -EUCLEAN,
		"'%s' on %s was updated in place without waiting for this reader, and its reads "
		"may be torn; attach anew",
		b->name, b->device);
}

/* After a restart the lease is another one, or none. */
static int pause_again(struct weightd *w, struct client_call *call)
{
	const struct weightd_buffer *b = call->subject;

	(void)w;
	call->request.pause.lease = b->lease;
	return b->lease ? 0 : -ENOENT;
}

static int pause_mutable(struct weightd_buffer *b, int timeout_ms)
{
	struct client_call call = {
		.op = WIRE_PAUSE,
		.timeout_ms = timeout_ms,
		.again = pause_again,
		.subject = b,
		.request.pause.lease = b->lease,
	};
	const struct wire_pause_reply *reply = &call.reply.pause;
	struct sentence *s = &b->w->sentence;
	/* Work queued on a GPU reads it too. */
	int r = memory_synchronize(&b->memory, WEIGHTD_ALL_STREAMS, s);

	if (r < 0)
		return sentence_set(s, r, "'%s' on %s cannot pause: %s", b->name, b->device,
				    s->text);
	r = b->lease ? client_call_run(b->w, &call) : -ENOENT;

	/* The server returns it for a torn buffer, and for an evicted reader: the lease of that reader is then void. */
	if (r == -EUCLEAN && head_state(head_current(b->head)) != HEAD_TORN)
		b->was_evicted = true;
	if (r == -ENOENT)
		return evicted(b);
	if (r < 0)
		return r;
	if (memcmp(reply->layout_hash, b->layout_hash, HASH_SIZE))
		return sentence_set(&b->w->sentence, -EPROTOTYPE,
				    "'%s@%" PRIu64 "' on %s has another layout; attach anew",
				    b->name, reply->version, b->device);
	b->version = reply->version;
	b->has_digest = reply->flags & WIRE_VERSION_DIGEST;
	memcpy(b->digest, reply->digest, HASH_SIZE);
	return 1;
}

/* Gives the memory back and keeps the addresses. */
static int let_go(struct weightd_buffer *b)
{
	struct sentence *s = &b->w->sentence;
	int r = memory_synchronize(&b->memory, WEIGHTD_ALL_STREAMS, s);

	if (r == 0)
		r = memory_let_go(&b->memory, s);
	if (r < 0)
		return sentence_set(s, r, "the memory of '%s' on %s cannot be released: %s",
				    b->name, b->device, s->text);
	client_end(b->w, WIRE_DETACH, b->lease);
	b->lease = 0;
	return 0;
}

/* Until there is a version to attach; on the head page, without the server. */
static int wait_for_version(struct weightd_buffer *b, uint64_t deadline_ns)
{
	for (;;) {
		uint64_t current = head_current(b->head);
		int r = state_error(head_state(current));
		uint64_t now = num_now_ns();

		if (r == -ESTALE)
			return sentence_set(&b->w->sentence, r, "'%s' on %s was removed", b->name,
					    b->device);
		if (r != -EAGAIN)
			return 0; /* the attach returns its state */
		if (now >= deadline_ns)
			return sentence_set(&b->w->sentence, -ETIMEDOUT,
					    "'%s' on %s is still being replaced", b->name,
					    b->device);
		(void)head_wait(b->head, current,
				deadline_ns == UINT64_MAX
					? -1
					: (int)((deadline_ns - now + 999999) / 1000000));
	}
}

static int pause_replaced(struct weightd_buffer *b, int timeout_ms)
{
	uint64_t deadline_ns = UINT64_MAX;
	int r = 0;

	if (timeout_ms >= 0)
		deadline_ns = num_now_ns() + (uint64_t)timeout_ms * 1000000;
	if (b->memory.is_mapped)
		r = let_go(b);
	while (r == 0) {
		r = wait_for_version(b, deadline_ns);
		if (r < 0)
			break;
		r = buffer_swap_until(b, WEIGHTD_ALL_STREAMS, deadline_ns);
		/* Replaced once more before it was attached. */
		if (r == -EAGAIN || r == -ENODATA)
			r = 0;
	}
	return r;
}

int weightd_buffer_pause(struct weightd_buffer *b, int timeout_ms)
{
	uint64_t current = head_current(b->head);
	enum head_state state = head_state(current);

	if (b->is_asleep)
		return sentence_set(&b->w->sentence, -EADDRNOTAVAIL,
				    "'%s' on %s is asleep, and no writer waits for it", b->name,
				    b->device);
	if (b->was_evicted)
		return evicted(b);
	if (state == HEAD_GONE || (b->is_mutable && state == HEAD_TORN))
		return sentence_set(&b->w->sentence, state_error(state), "'%s' on %s %s", b->name,
				    b->device, state == HEAD_GONE ? "was removed" : "is torn");
	if (b->is_mutable)
		return state == HEAD_READY && head_version(current) == b->version
			       ? 0
			       : pause_mutable(b, timeout_ms);
	return state == HEAD_READY && b->memory.is_mapped ? 0 : pause_replaced(b, timeout_ms);
}
