/*
 * Waiting for versions: on the head page of an attached buffer, without the server; or by asking the
 * server, for a buffer that need not exist yet.
 */
#include <errno.h>

#include "ipc/base/num.h"
#include "libclient/buffer.h"
#include "libclient/target.h"

int weightd_buffer_latest(const struct weightd_buffer *b, uint64_t *ret_version)
{
	uint64_t current = head_current(b->head);

	if (head_state(current) == HEAD_GONE)
		return -ESTALE;
	*ret_version = head_version(current);
	return 0;
}

int weightd_buffer_wait(const struct weightd_buffer *b, uint64_t version, int timeout_ms,
			uint64_t *ret_version)
{
	uint64_t deadline = num_now_ns() + (uint64_t)(timeout_ms < 0 ? 0 : timeout_ms) * 1000000;
	uint64_t current = head_current(b->head);

	for (;;) {
		uint64_t now;
		int left_ms = -1;

		if (head_state(current) == HEAD_GONE)
			return -ESTALE;
		if (head_version(current) > version)
			break;
		if (timeout_ms >= 0) {
			now = num_now_ns();
			if (now >= deadline)
				return -ETIMEDOUT;
			left_ms = (int)((deadline - now + 999999) / 1000000);
		}
		current = head_wait(b->head, current, left_ms);
	}
	if (ret_version)
		*ret_version = head_version(current);
	return 0;
}

int weightd_wait(struct weightd *w, const char *name, const char *device, uint64_t version,
		 int timeout_ms, uint64_t *ret_version)
{
	struct client_call call = {.op = WIRE_WAIT, .timeout_ms = timeout_ms};
	struct wire_wait *wait = &call.request.wait;
	int r = client_put_target(w, name, device, wait->name, wait->device);

	if (r < 0)
		return r;
	wait->version = version;
	r = client_call_run(w, &call);
	if (r == 0 && ret_version)
		*ret_version = call.reply.wait.version;
	return r;
}
