#include "server/notify.h"

#include <errno.h>

void notify_ready(void)
{
}

void notify_stopping(void)
{
}

int notify_listen_fd(int *ret_fd)
{
	(void)ret_fd;
	return -ENOENT;
}
