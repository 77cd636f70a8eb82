#include "server/cuda/protocol.h"

#include <string.h>

static bool text_ok(const char *s, size_t size)
{
	return memchr(s, '\0', size);
}

bool allocator_request_ok(const void *data, size_t size, unsigned n_fds)
{
	struct allocator_request q;

	if (size != sizeof(q) || n_fds > 0)
		return false;
	memcpy(&q, data, sizeof(q));
	return q.protocol == ALLOCATOR_PROTOCOL && q.op > 0 && q.op < ALLOCATOR_OP_END;
}

bool allocator_reply_ok(const void *data, size_t size, unsigned n_fds)
{
	struct allocator_reply a;
	bool has_memory;

	if (size != sizeof(a))
		return false;
	memcpy(&a, data, sizeof(a));
	has_memory = (a.op == ALLOCATOR_ALLOCATE || a.op == ALLOCATOR_HOLD) && a.error == 0;
	return a.protocol == ALLOCATOR_PROTOCOL && a.op > 0 && a.op < ALLOCATOR_OP_END && !a.pad &&
	       a.error <= 0 && n_fds == has_memory && text_ok(a.name, sizeof(a.name)) &&
	       text_ok(a.why, sizeof(a.why)) && text_ok(a.device.device, sizeof(a.device.device)) &&
	       text_ok(a.device.name, sizeof(a.device.name)) &&
	       text_ok(a.device.why, sizeof(a.device.why));
}
