/*
 * Units and slices of systemd, by the processes that run in them
 *
 * By libsystemd, from the control group of the process. The command asks, and not weightd, which runs under
 * ProtectProc=invisible: there /proc has no control groups of other users' processes.
 */
#pragma once

#include <stdint.h>

/* The unit of a process; NULL where the process has none or is gone, or without libsystemd. Valid until the next call. */
const char *service_unit(uint32_t pid);

/* Likewise its slice. */
const char *service_slice(uint32_t pid);
