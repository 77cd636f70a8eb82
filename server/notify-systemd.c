#include "server/notify.h"

#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

void notify_ready(void)
{
	(void)sd_notify(0, "READY=1\nSTATUS=serving"); /* nobody to tell that nobody listens */
}

void notify_stopping(void)
{
	(void)sd_notify(0, "STOPPING=1");
}

int notify_listen_fd(int *ret_fd)
{
	int n = sd_listen_fds(1);

	if (n < 0)
		return n;
	if (n == 0)
		return -ENOENT;
	if (n > 1 || sd_is_socket_unix(SD_LISTEN_FDS_START, SOCK_SEQPACKET, 1, NULL, 0) <= 0)
		return -EINVAL;
	*ret_fd = SD_LISTEN_FDS_START;
	return 0;
}
