/*
 * Makes versions of buffers of LEDGER_WORDS words, and enters them in the ledger
 */
#pragma once

#include <weightd.h>

#include "tests/soak/ledger.h"

struct maker {
	struct ledger *ledger;
	struct weightd *w;
	struct weightd_layout *layout;
};

/* Waits for a server to connect to, which may just be started again. Ends the program on failure. */
void maker_init(struct maker *m, const char *ledger);

/* 0, or what went wrong. `options` may be NULL. */
int maker_publish(struct maker *m, const char *name, const struct weightd_create_options *options);
