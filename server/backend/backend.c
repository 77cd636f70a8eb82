#include "server/backend/backend.h"

#include <errno.h>
#include <stddef.h>

#include "ipc/base/num.h"

static const struct backend *const backends[] = {
	&backend_host,
	&backend_cuda,
	&backend_cuda_ipc,
};

int backend_find(const char *device, bool is_ipc, const struct backend **ret)
{
	int r = -ENODEV;

	for (size_t i = 0; i < ARRAY_LEN(backends); i++) {
		if (!backends[i]->has_device(device))
			continue;
		if ((backends[i]->memory == WIRE_MEMORY_CUDA_IPC) == is_ipc) {
			*ret = backends[i];
			return 0;
		}
		r = -EOPNOTSUPP;
	}
	return r;
}
