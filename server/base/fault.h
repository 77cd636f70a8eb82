/*
 * Faults
 *
 * Named points where a test can kill the daemon, in builds for tests only (make faults). fault.c
 * lists the points.
 *
 *	WEIGHTD_FAULT=list		names the points, one a line, and ends
 *	WEIGHTD_FAULT=NAME:N		the N-th passage of that point is the end, by SIGKILL
 *	WEIGHTD_FAULT_STATE=PATH	where passages are counted, one uint64_t for each point in the order of
 *					the list: so that a restarted daemon continues to count, and lives
 */
#pragma once

#ifdef WEIGHTD_FAULTS
#define FAULTS_BUILT 1
void fault_point(const char *name);
#else
#define FAULTS_BUILT 0 /* 1: what is too slow for others is asserted as well */
static inline void fault_point(const char *name)
{
	(void)name;
}
#endif
