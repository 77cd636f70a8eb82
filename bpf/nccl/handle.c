#include "bpf/nccl/handle.h"

#include <sys/random.h>
#include <unistd.h>

#include "ipc/base/num.h"

uint32_t handle_draw(void)
{
	uint32_t number;

	if (getrandom(&number, sizeof(number), GRND_NONBLOCK) != sizeof(number))
		number = (uint32_t)num_now_ns() ^ (uint32_t)getpid() << 8;
	number &= HANDLE_TURNS;
	return number ? number : 1;
}
