/*
 * Checks of a machine, each with its severity, the finding, and the way out
 */
#pragma once

#include <stddef.h>

#include "libclient/weightctl/cli.h"

enum check_state {
	CHECK_OK,
	CHECK_NOTE, /* works, with a restriction that may be intended */
	CHECK_WARNING, /* works, and will fail or lose something */
	CHECK_ERROR, /* does not work */
};

struct check {
	const char *name;
	enum check_state state;
	char *found; /* short: it stands in a table */
	char *way; /* a sentence; NULL: nothing to do */
};

struct checks {
	struct check *list;
	size_t n;
};

/* Appends a check. `way` may be NULL, and is copied. */
__attribute__((format(printf, 5, 6))) void checks_add(struct checks *c, const char *name,
						      enum check_state state, const char *way,
						      const char *found, ...);
void checks_deinit(struct checks *c);

/* "ok", "note", "warning" or "error". */
const char *check_state_name(enum check_state state);
/* The worst of all. */
enum check_state checks_worst(const struct checks *c);

/* The parts of the doctor: weightd and what it depends on, services beside it, and this machine. */
void doctor_check_server(struct cli *cli, struct checks *c);
void doctor_check_services(const struct cli *cli, struct checks *c);
void doctor_check_machine(struct checks *c);
