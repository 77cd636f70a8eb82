/*
 * Questions: one kind for each thing that the collector observes
 *
 * A kind is a const table in its room and a row in tracer.c. An operation that a kind lacks is NULL.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "bpf/base/collector.h"
#include "bpf/base/programs.h"
#include "bpf/base/support.h"

/* The answer to a client's request. */
struct answer {
	const json_t *request;
	bool may_observe; /* the client may see what others did */
	void (*add)(struct answer *a, json_t *row); /* takes `row` */
	char *why; /* reason for a refusal */
	size_t why_size;
};

struct question {
	const struct question_kind *kind;
	struct collector *collector;
	char why[WHY_SIZE]; /* it is not open; "": it is */
	bool is_refused; /* the kernel refuses it */
};

struct question_kind {
	const char *unseen; /* logged: the part that stays unseen while it is refused */
	/*
	 * Returns a question in any case, unless memory runs out: one that is not open has the
	 * reason in `why`. `off` is "", or the reason why it must not be opened.
	 */
	struct question *(*open)(struct collector *c, const char *off);
	void (*close)(struct question *q);
	/* An operation of clients. Returns 0, or negative errno and why. */
	int (*answer)(struct question *q, struct answer *a);
	/* Adds what works of it, and why the rest does not. */
	void (*doctor)(struct question *q, struct answer *a);
	/* Adds what the kernel counts of its programs. Returns how many there are then. While it is open, as the next two. */
	size_t (*metrics)(const struct question *q, struct program ret[PROGRAMS_MAX], size_t n);
	/* Emits all events that are there, for a client that asks. */
	void (*take)(struct question *q);
	/* Counts the events that were lost since it did so last. */
	void (*count_missed)(struct question *q);
};

/* A row of the doctor; why is "" for what is on. */
json_t *question_hook_json(const char *hook, const char *why, const char *lost);
