/*
 * A job in words: what the time of its last step went to, and which rank the others wait for
 */
#pragma once

#include "libclient/weightctl/cli.h"

/* Prints it, or JSON. 0, or EXIT_FAILED after printing why. */
int train_explain_job(struct cli *cli, char *job);
