#include "libclient/train/engine/cpus.h"

#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

#include "ipc/base/cleanup.h"

#define CPUS_MAX 8192

struct cpus {
	unsigned long bits[CPUS_MAX / (8 * sizeof(unsigned long))];
};

static bool cpus_read(pid_t pid, struct cpus *ret)
{
	memset(ret, 0, sizeof(*ret));
	return sched_getaffinity(pid, sizeof(*ret), (cpu_set_t *)ret) == 0;
}

static uint32_t cpus_count(const struct cpus *c)
{
	return (uint32_t)CPU_COUNT_S(sizeof(*c), (const cpu_set_t *)c);
}

static bool cpus_contain(const struct cpus *c, const struct cpus *part)
{
	for (size_t i = 0; i < sizeof(c->bits) / sizeof(c->bits[0]); i++)
		if (part->bits[i] & ~c->bits[i])
			return false;
	return true;
}

static void fclosep(FILE **f)
{
	if (*f)
		(void)fclose(*f);
}

/* "MAX PERIOD" in microseconds; MAX is "max" where there is no limit. */
static uint32_t quota_read(const char *folder)
{
	char path[PATH_MAX + sizeof("/cpu.max")];
	cleanup(fclosep) FILE *f = NULL;
	uint64_t quota, period;

	(void)snprintf(path, sizeof(path), "%s/cpu.max", folder);
	f = fopen(path, "re");
	if (!f || fscanf(f, "%" SCNu64 " %" SCNu64, &quota, &period) != 2 || period == 0)
		return UINT32_MAX;
	quota /= period;
	return quota < UINT32_MAX ? (uint32_t)quota : UINT32_MAX;
}

/* The path of version 2 in /proc/PID/cgroup: its line begins with "0::". */
static bool cgroup_read(const char *cgroup, char *ret, size_t size)
{
	cleanup(fclosep) FILE *f = fopen(cgroup, "re");
	cleanup(freep) char *line = NULL;
	size_t room = 0;

	while (f && getline(&line, &room, f) > 0)
		if (strncmp(line, "0::/", 4) == 0) {
			line[strcspn(line, "\n")] = '\0';
			return (size_t)snprintf(ret, size, "%s", line + 3) < size;
		}
	return false;
}

uint32_t cpus_quota(const char *cgroup, const char *mount)
{
	char path[PATH_MAX], folder[PATH_MAX];
	uint32_t least;

	if (!cgroup_read(cgroup, path, sizeof(path)))
		return UINT32_MAX;
	least = quota_read(mount);
	/* A path above the root of our namespace begins with "/..": there is nothing to read. */
	while (path[1] && strncmp(path, "/..", 3) != 0) {
		if ((size_t)snprintf(folder, sizeof(folder), "%s%s", mount, path) < sizeof(folder)) {
			uint32_t quota = quota_read(folder);

			least = quota < least ? quota : least;
		}
		*(strrchr(path, '/') == path ? path + 1 : strrchr(path, '/')) = '\0';
	}
	return least;
}

bool cpus_suffice(const struct weightd_job *job, uint32_t rank, uint32_t n_ranks)
{
	uint32_t n_sharing = n_ranks, n_cpus;
	struct cpus ours;

	if (!cpus_read(0, &ours))
		return false;
	/* mpirun binds each rank to a core of its own: such a rank does not count. */
	for (uint32_t i = 0; job && i < n_ranks; i++) {
		int pid = i == rank ? 0 : weightd_job_holder(job, i);
		struct cpus theirs;

		if (pid > 0 && cpus_read(pid, &theirs) && !cpus_contain(&ours, &theirs))
			n_sharing--;
	}
	n_cpus = cpus_count(&ours);
	return n_sharing <= n_cpus && n_ranks <= cpus_quota("/proc/self/cgroup", "/sys/fs/cgroup");
}
