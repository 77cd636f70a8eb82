/*
 * A process as it was when it was looked at: it may have ended since
 */
#pragma once

#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>

#define COMM_SIZE 16 /* with the NUL */

struct process {
	pid_t pid; /* 0: unknown, or a whole group */
	char comm[COMM_SIZE]; /* "": unknown */
	char *cgroup; /* its path; NULL: unknown */
};

/* Reads its name: "" if unknown. Any process may ask while it lives. */
void process_read_comm(pid_t pid, char ret[COMM_SIZE]);

/*
 * Returns when it began, in clock ticks since boot, which distinguishes processes that had one pid after each other. 0:
 * unknown.
 */
uint64_t process_read_began(pid_t pid);
/* Converts a time of CLOCK_BOOTTIME. */
uint64_t process_ticks(uint64_t ns);

/* Reads all of it, as far as possible. */
void process_init(struct process *p, pid_t pid);
void process_deinit(struct process *p);

/* Unknown values are null, and text that JSON cannot hold. */
json_t *process_json(const struct process *p);
