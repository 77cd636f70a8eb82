/*
 * CPUs
 *
 * Decides if a rank may spin: only where each rank that shares its CPUs can have one for itself. Otherwise it would keep
 * the rank that it waits for from running.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <weightd.h>

/*
 * True if the CPUs that this process may use are as many as the ranks that are bound to them (or to some of them). Ranks
 * that have no process yet count like this one: ask again when all are there. `job` NULL: all ranks are like this one.
 */
bool cpus_suffice(const struct weightd_job *job, uint32_t rank, uint32_t n_ranks);

/*
 * Whole CPUs that the cgroups of a process allow by cpu.max (version 2 of cgroups), UINT32_MAX without a limit. `cgroup` is
 * /proc/PID/cgroup, `mount` the mount point of the hierarchy.
 */
uint32_t cpus_quota(const char *cgroup, const char *mount);
