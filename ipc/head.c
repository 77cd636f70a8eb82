#include "ipc/head.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/num.h"

void head_init(struct head *h, uint64_t buffer)
{
	h->magic = HEAD_MAGIC;
	h->abi = HEAD_ABI;
	h->buffer = buffer;
	atomic_store(&h->current, HEAD_EMPTY);
}

bool head_ok(const struct head *h, uint64_t buffer)
{
	return h->magic == HEAD_MAGIC && h->abi == HEAD_ABI && h->buffer == buffer;
}

bool head_set(struct head *h, uint64_t version, enum head_state state)
{
	uint64_t word = version << 8 | state;

	if (head_current(h) == word)
		return false;
	atomic_store_explicit(&h->current, word, memory_order_release);
	atomic_fetch_add_explicit(&h->futex, 1, memory_order_release);
	return true;
}

bool head_publish(struct head *h, const struct head_record *record, enum head_state state)
{
	struct head_record *mine = &h->records[record->version % HEAD_RECORDS];

	/* A record that is there already is left alone: somebody may read it. */
	if (memcmp(mine, record, sizeof(*mine)))
		*mine = *record;
	return head_set(h, record->version, state);
}

void head_wake(struct head *h)
{
	/* Readers map the page in other processes: not FUTEX_PRIVATE. A failure to wake loses a hint. */
	(void)syscall(SYS_futex, &h->futex, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

uint64_t head_wait(const struct head *h, uint64_t seen, int timeout_ms)
{
	uint64_t deadline = num_now_ns() + (uint64_t)(timeout_ms < 0 ? 0 : timeout_ms) * 1000000;

	for (;;) {
		uint32_t hint = atomic_load_explicit(&((struct head *)h)->futex,
						     memory_order_acquire);
		uint64_t current = head_current(h);
		uint64_t left_ns = HEAD_RECHECK_MS * 1000000ull;
		uint64_t now;
		struct timespec ts;

		if (current != seen)
			return current;
		if (timeout_ms >= 0) {
			now = num_now_ns();
			if (now >= deadline)
				return current;
			if (deadline - now < left_ns)
				left_ns = deadline - now;
		}
		ts = (struct timespec){.tv_nsec = (long)left_ns};
		/* Woken, timed out, interrupted or changed already: each time the word decides. */
		(void)syscall(SYS_futex, &h->futex, FUTEX_WAIT, hint, &ts, NULL, 0);
	}
}
