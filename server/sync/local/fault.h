/*
 * Faults
 *
 * The reason why a task cannot continue: a code for the agent, from the errno or "superseded", and
 * a sentence for people.
 */
#pragma once

#include <weightd.h>

#define FAULT_WHY_SIZE 512

struct json_packet;

struct fault {
	const char *code;
	char why[FAULT_WHY_SIZE];
};

/* Sets the sentence, and the code of the errno `r`. Returns `r`. */
__attribute__((format(printf, 3, 4))) int fault_set(struct fault *f, int r, const char *format, ...);
/* The same, with libweightd's text of its last failure. */
int fault_set_weightd(struct fault *f, int r, const struct weightd *w);
/* -EBADMSG: a message of the agent is unknown, or not allowed at this time. */
int fault_set_message(struct fault *f, const struct json_packet *t, const char *what);
