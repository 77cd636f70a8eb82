#include "libclient/load/folder/configuration.h"

#include <stdio.h>
#include <stdlib.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "libclient/image/file.h"

#define CONFIG_SIZE_MAX (16 * MIB)

json_t *configuration_read(const char *directory)
{
	cleanup(file_deinit) struct file f = FILE_INIT;
	cleanup(freep) char *path = NULL;
	struct sentence ignored;

	if (asprintf(&path, "%s/config.json", directory) < 0)
		path = NULL;
	if (!path || file_open(path, &f, &ignored) < 0 || f.identity.size > CONFIG_SIZE_MAX)
		return NULL;
	return json_loadfd(f.fd, 0, NULL);
}
