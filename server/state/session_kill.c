#include "server/state/session_kill.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "server/state/session.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

/* struct pidfd_info of Linux 6.13, in its first size. */
struct process_info {
	uint64_t mask;
	uint64_t cgroup;
	uint32_t pid, tgid, ppid;
	uint32_t ruid, rgid, euid, egid, suid, sgid, fsuid, fsgid;
	int32_t exit_code;
};
#define PROCESS_GET_INFO _IOWR(0xff, 11, struct process_info)
#define PROCESS_INFO_CREDS 2u

static int send_signal(int pidfd, int sig)
{
	return syscall(SYS_pidfd_send_signal, pidfd, sig, NULL, 0) < 0 ? -errno : 0;
}

/* Earlier kernels: the owner of its folder is its effective user. */
static int check_folder(int pidfd, const struct channel_peer *peer)
{
	char path[32];
	struct stat st;

	(void)snprintf(path, sizeof(path), "/proc/%d", peer->pid);
	if (stat(path, &st) < 0)
		return -EPERM;
	if (st.st_uid != peer->uid)
		return -EPERM;
	return send_signal(pidfd, 0); /* alive: so the folder was its own */
}

static int check_user(int pidfd, const struct channel_peer *peer)
{
	struct process_info info = {.mask = PROCESS_INFO_CREDS};

	if (ioctl(pidfd, PROCESS_GET_INFO, &info) < 0)
		return errno == ESRCH ? -ESRCH : check_folder(pidfd, peer);
	return info.ruid == peer->uid && info.euid == peer->uid ? 0 : -EPERM;
}

int session_kill(const struct session *s)
{
	cleanup(fd_closep) int pidfd = -1;
	socklen_t size = sizeof(pidfd);
	int r;

	if (getsockopt(s->source.fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) < 0)
		return -errno;
	r = check_user(pidfd, &s->peer);
	return r < 0 ? r : send_signal(pidfd, SIGKILL);
}
