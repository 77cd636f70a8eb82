#include "libclient/weightctl/output/service.h"

#include <stddef.h>
#include <stdlib.h>

#include "ipc/base/libsystemd.h"

/* NULL without a process or without libsystemd. */
static const struct libsystemd *library_for(uint32_t pid)
{
	const char *why;

	return pid != 0 ? libsystemd_open(&why) : NULL;
}

const char *service_unit(uint32_t pid)
{
	static char *name;
	const struct libsystemd *systemd = library_for(pid);

	free(name);
	name = NULL;
	return systemd && systemd->pid_get_unit((pid_t)pid, &name) >= 0 ? name : NULL;
}

const char *service_slice(uint32_t pid)
{
	static char *name;
	const struct libsystemd *systemd = library_for(pid);

	free(name);
	name = NULL;
	return systemd && systemd->pid_get_slice((pid_t)pid, &name) >= 0 ? name : NULL;
}
