/*
 * weightd-sync-nccl
 *
 * Carries the bytes of one epoch between GPUs over NCCL, and ends with it. weightd-sync starts it,
 * sends its orders over descriptor 3, and may kill it at any time. Only its worker can hang: so
 * when the agent hangs up, the process ends without waiting for it.
 */
#include <unistd.h>

#include "server/sync/nccl/average.h"
#include "server/sync/nccl/broadcast.h"
#include "server/sync/nccl/exchange.h"

int main(void)
{
	static const struct operation *const operations[] = {
		[ENGINE_ORDER_BROADCAST] = &broadcast_operation,
		[ENGINE_ORDER_AVERAGE] = &average_operation,
		[ENGINE_ORDER_EXCHANGE] = &exchange_operation,
	};
	static struct engine e;

	_exit(engine_init(&e, operations) < 0 || loop_run(&e.engine_loop.loop) < 0);
}
