/*
 * The JSON of a plan
 */
#pragma once

#include <jansson.h>

#include "libclient/train/plan/plan.h"

#define PLAN_JSON_FORMAT "weightd-plan 4"

/* NULL: there is not enough memory. */
json_t *plan_json(const struct weightd_plan *p);

static inline void plan_json_decref(json_t **o)
{
	json_decref(*o);
}
