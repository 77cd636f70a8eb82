/*
 * The first process of a guest: mounts the host's root with writes in memory, runs one command, and switches the
 * guest off
 *
 * The command is /command of the initial file system, for sh. Its exit status is the last line on the console.
 * Modules are those in /modules, in the order of their names.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define COMMAND_SIZE 4096
#define HOST_OPTIONS "trans=virtio,version=9p2000.L,cache=loose,msize=524288"
#define ROOT_OPTIONS "lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work"

static _Noreturn void switch_off(void)
{
	(void)fflush(stdout);
	sync();
	(void)reboot(RB_POWER_OFF);
	exit(EXIT_FAILURE);
}

static void check(bool is_done, const char *what)
{
	if (is_done)
		return;
	(void)printf("guest: %s: %s\n", what, strerror(errno));
	switch_off();
}

static void load_modules(void)
{
	struct dirent **modules;
	int n = scandir("/modules", &modules, NULL, alphasort);

	check(n >= 0 && chdir("/modules") == 0, "modules");
	for (int i = 0; i < n; i++) {
		const char *name = modules[i]->d_name;
		int fd = *name == '.' ? -1 : open(name, O_RDONLY | O_CLOEXEC);

		if (*name != '.')
			check(syscall(SYS_finit_module, fd, "", 0) == 0, name);
	}
}

static void change_root(void)
{
	check(mount("root", "/host", "9p", MS_RDONLY, HOST_OPTIONS) == 0, "the host's root");
	check(mount("memory", "/memory", "tmpfs", 0, NULL) == 0 &&
		      mkdir("/memory/upper", 0755) == 0 && mkdir("/memory/work", 0755) == 0,
	      "/memory");
	check(mount("root", "/root", "overlay", 0, ROOT_OPTIONS) == 0 && chroot("/root") == 0 &&
		      chdir("/") == 0,
	      "its own root");
}

static void mount_all(void)
{
	static const struct {
		const char *type, *at;
	} mounts[] = {
		{"proc", "proc"},     {"sysfs", "sys"}, {"devtmpfs", "dev"},
		{"tmpfs", "dev/shm"}, {"tmpfs", "run"}, {"cgroup2", "sys/fs/cgroup"},
	};

	for (size_t i = 0; i < sizeof(mounts) / sizeof(*mounts); i++) {
		if (!strcmp(mounts[i].at, "dev/shm"))
			(void)mkdir("dev/shm", 01777);
		check(mount(mounts[i].type, mounts[i].at, mounts[i].type, 0, NULL) == 0,
		      mounts[i].at);
	}
}

static void set_loopback_up(void)
{
	struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	check(fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &request) == 0, "lo");
	(void)close(fd);
}

/* Orphans become our children, too. */
static int wait_for(pid_t pid)
{
	int status;
	pid_t gone;

	do
		gone = wait(&status);
	while (gone != pid && (gone > 0 || errno == EINTR));
	check(gone == pid, "wait");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(void)
{
	char command[COMMAND_SIZE] = "";
	int fd;
	pid_t pid;

	check(mount("dev", "/dev", "devtmpfs", 0, NULL) == 0, "/dev");
	for (int i = 0; i < 3; i++) {
		fd = open("/dev/console", O_RDWR);
		(void)dup2(fd, i);
	}
	fd = open("/command", O_RDONLY | O_CLOEXEC);
	check(read(fd, command, sizeof(command) - 1) > 0, "/command");
	load_modules();
	change_root();
	mount_all();
	set_loopback_up();
	(void)fflush(stdout);
	pid = fork();
	if (pid == 0) {
		(void)execl("/bin/sh", "sh", "-c", command, NULL);
		_exit(127);
	}
	(void)printf("\nguest: ended with %d\n", wait_for(pid));
	switch_off();
}
