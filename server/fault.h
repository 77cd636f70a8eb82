/*
 * Faults
 *
 * Named points where a test can kill the daemon, in builds for tests only (-DWEIGHTD_FAULTS). With
 * WEIGHTD_FAULT=NAME:N the N-th passage of the point is the end, by SIGKILL. Every point is named in
 * points[] of fault.c, which is what tests go through, and which asserts that it is.
 */
#pragma once

#ifdef WEIGHTD_FAULTS
void fault_point(const char *name);
#else
static inline void fault_point(const char *name)
{
	(void)name;
}
#endif
