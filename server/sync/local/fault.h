/*
 * Faults
 *
 * Why a task cannot go on: a word for the agent, of the errno or "superseded", and a sentence for people.
 */
#pragma once

#include <weightd.h>

#define FAULT_WHY_SIZE 512

struct json_packet;

struct fault {
	const char *code;
	char why[FAULT_WHY_SIZE];
};

/* Sets the sentence, and the code that belongs to the errno `r`. Returns `r`. */
__attribute__((format(printf, 3, 4))) int fault_set(struct fault *f, int r, const char *format, ...);
/* With what libweightd says of its last failure. */
int fault_set_weightd(struct fault *f, int r, const struct weightd *w);
/* -EBADMSG: the agent has sent something that this process does not understand, or not now. */
int fault_set_message(struct fault *f, const struct json_packet *t, const char *what);
