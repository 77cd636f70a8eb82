/*
 * Costs in `weightctl stat`: requests of each user, and the time that they took.
 */
#pragma once

#include "libclient/include/weightd.h"
#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/output/json.h"

/* Prints a table, in JSON the list "costs". A list of an earlier server is empty, and left out as a table. */
int stat_costs_print(const struct cli *cli, struct json *json, const struct weightd_list *list);
