/*
 * Holders in `weightctl stat`: users charged for memory that only readers keep.
 */
#pragma once

#include "libclient/include/weightd.h"
#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/output/json.h"

/* Prints those above their limit, or all of them; in JSON always all, as "holders". An empty table is left out. */
int stat_holders_print(const struct cli *cli, struct json *json, const struct weightd_list *list,
		       bool all);
