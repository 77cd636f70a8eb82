/*
 * The plan of a push by the agent: the events "plan" of a sync
 */
#pragma once

#include <jansson.h>

#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/output/json.h"

struct push_plan {
	json_t *links; /* links of the last plan; NULL: none yet */
	json_t *sums; /* the event it began with */
};

void push_plan_deinit(struct push_plan *p);

/* A plan arrives in parts; a plan of another epoch replaces the previous one. */
void push_plan_take(struct push_plan *p, json_t *event);

/* A table of links and a line below it. 0, or EXIT_FAILED after printing why. */
int push_plan_print(const struct push_plan *p, const struct cli *cli, const char *buffer);
/* The same as members of the object that is open. */
void push_plan_json(const struct push_plan *p, struct json *j);
