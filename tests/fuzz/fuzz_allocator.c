/* Any bytes as packets between weightd and weightd-cuda: accepted fields are within their bounds. */
#include <string.h>

#include "server/cuda/protocol.h"
#include "tests/fuzz/fuzz.h"

static void check_request(const uint8_t *data, size_t size, unsigned n_fds)
{
	struct allocator_request q;

	if (!allocator_request_ok(data, size, n_fds))
		return;
	MUST(size == sizeof(q) && n_fds == 0);
	memcpy(&q, data, sizeof(q));
	MUST(q.op >= ALLOCATOR_DEVICE && q.op < ALLOCATOR_OP_END);
}

static void check_reply(const uint8_t *data, size_t size, unsigned n_fds)
{
	struct allocator_reply a;

	if (!allocator_reply_ok(data, size, n_fds))
		return;
	MUST(size == sizeof(a) && n_fds <= 1);
	memcpy(&a, data, sizeof(a));
	MUST(a.error <= 0 && (n_fds == 0 || a.error == 0));
	MUST(strlen(a.name) < sizeof(a.name) && strlen(a.why) < sizeof(a.why));
	MUST(strlen(a.device.device) < sizeof(a.device.device));
	MUST(strlen(a.device.name) < sizeof(a.device.name));
	MUST(strlen(a.device.why) < sizeof(a.device.why));
}

/* The first byte is the number of descriptors with the packet. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	check_request(data + 1, size - 1, data[0]);
	check_reply(data + 1, size - 1, data[0]);
	return 0;
}
