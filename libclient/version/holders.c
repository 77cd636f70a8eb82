/*
 * Processes that prevent a publish. Only the client can find them: it may read /proc/PID/maps of its own processes,
 * which the server may not.
 */
#include "libclient/version/holders.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* One line of maps: "start-end perms offset major:minor inode path". */
static bool maps_writable(const char *line, const struct stat *st)
{
	char perms[5];
	unsigned major_no, minor_no;
	uint64_t inode;

	return sscanf(line, "%*x-%*x %4s %*x %x:%x %" SCNu64, perms, &major_no, &minor_no,
		      &inode) == 4 &&
	       inode == st->st_ino && major_no == major(st->st_dev) &&
	       minor_no == minor(st->st_dev) && perms[1] == 'w' && perms[3] == 's';
}

static bool process_maps_writable(const char *pid, const struct stat *st)
{
	char path[300], line[512];
	bool found = false;
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%s/maps", pid);
	f = fopen(path, "re");
	if (!f)
		return false; /* it has exited, or belongs to another user */
	while (!found && fgets(line, sizeof(line), f))
		found = maps_writable(line, st);
	(void)fclose(f);
	return found;
}

static void process_name(const char *pid, char *buf, size_t size)
{
	char path[300];
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%s/comm", pid);
	f = fopen(path, "re");
	if (!f || !fgets(buf, (int)size, f))
		(void)snprintf(buf, size, "?");
	if (f)
		(void)fclose(f);
	for (char *p = buf; *p; p++) {
		if (*p == '\n')
			*p = '\0';
		else if (iscntrl((unsigned char)*p))
			*p = '?';
	}
}

void holders_of(int fd, char *buf, size_t size)
{
	struct dirent *entry;
	struct stat st;
	size_t used = 0;
	DIR *proc;

	buf[0] = '\0';
	if (fstat(fd, &st) < 0)
		return;
	proc = opendir("/proc");
	if (!proc) {
		(void)snprintf(buf, size, "a process that cannot be named without /proc");
		return;
	}
	while ((entry = readdir(proc)) && used < size) {
		char name[32];
		int n;

		if (!isdigit((unsigned char)entry->d_name[0]) ||
		    !process_maps_writable(entry->d_name, &st))
			continue;
		process_name(entry->d_name, name, sizeof(name));
		n = snprintf(buf + used, size - used, "%spid %s (%s)", used ? ", " : "",
			     entry->d_name, name);
		used += n > 0 ? (size_t)n : 0;
	}
	(void)closedir(proc);
}
