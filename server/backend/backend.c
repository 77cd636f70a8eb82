#include "server/backend/backend.h"

#include <errno.h>
#include <stddef.h>

#include "ipc/base/num.h"

static const struct backend *const backends[] = {
	&backend_host,
};

int backend_find(const char *device, const struct backend **ret)
{
	for (size_t i = 0; i < ARRAY_LEN(backends); i++) {
		if (backends[i]->has_device(device)) {
			*ret = backends[i];
			return 0;
		}
	}
	return -ENODEV;
}
