/*
 * A process as it was when somebody looked: it may be gone by now
 */
#pragma once

#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>

#define COMM_SIZE 16 /* with the NUL */

struct process {
	pid_t pid; /* 0: not known, or a whole group's */
	char comm[COMM_SIZE]; /* "": not known */
	char *cgroup; /* its path, NULL likewise */
};

/* What it is called: "" where that cannot be known. Everybody may ask, as long as it is there. */
void process_read_comm(pid_t pid, char ret[COMM_SIZE]);

/*
 * When it began, in ticks of the clock since the machine did: of two that had one number after each other, which is
 * which. 0: that cannot be known.
 */
uint64_t process_read_began(pid_t pid);
/* That of a time of CLOCK_BOOTTIME. */
uint64_t process_ticks(uint64_t ns);

/* All of it, as far as that can be known. */
void process_init(struct process *p, pid_t pid);
void process_deinit(struct process *p);

/* What is not known of it, or cannot be held by JSON, is null. */
json_t *process_json(const struct process *p);
