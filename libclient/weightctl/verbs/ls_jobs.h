/*
 * Jobs in the output of ls
 */
#pragma once

#include "libclient/weightctl/cli.h"

/* All jobs that the caller may see; NULL from a server that has none. 0, or EXIT_FAILED after printing why. */
int ls_jobs_fetch(struct cli *cli, struct weightd_list **ret);

/* The number of jobs that are printed: with --owner, those of that user. */
size_t ls_jobs_count(const struct cli *cli, const struct weightd_list *list);

/*
 * Prints the jobs as a table, or as the list "jobs" of the object open in `json`. `list` NULL: no jobs. 0, or EXIT_FAILED
 * after printing why.
 */
int ls_jobs_print(const struct cli *cli, struct json *json, const struct weightd_list *list);
