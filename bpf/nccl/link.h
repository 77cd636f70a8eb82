/*
 * The connection to weightd-trace: one request at a time, and no call that blocks
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "bpf/nccl/text.h"

enum answer {
	ANSWER_NONE, /* not yet */
	ANSWER_DONE,
	ANSWER_REFUSED,
	ANSWER_LOST, /* the connection is closed */
};

struct link {
	char path[108]; /* path of the socket; "": it is too long */
	bool is_verbose;
	int fd; /* -1: there is none */
	uint64_t number; /* number of connections: each tracer needs a report of all communicators */
	uint64_t asked_ns; /* 0: nothing is asked */
	uint64_t try_ns; /* not before */
	uint64_t pause_ns;
	bool has_complained;
};

/* Reads the environment: in a thread of NCCL's, which does so itself then. */
void link_init(struct link *l);
void link_close(struct link *l);
/* If it is time to try. */
void link_open(struct link *l, uint64_t now_ns);
/* With a descriptor, or -1. False: the connection is closed. */
bool link_ask(struct link *l, const struct text *t, int fd);
/* Waits so long for the answer. */
enum answer link_hear(struct link *l, int timeout_ms);
/* In a child of the process: the descriptor is the parent's. */
void link_forget(void);
