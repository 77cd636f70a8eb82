/*
 * Names of the codes in a plan, as its JSON and its sentences have them
 */
#pragma once

#include "libclient/train/plan/plan.h"

/* NULL: an unknown code. */
const char *optimizer_name(enum weightd_optimizer optimizer); /* "adamw", "adam", "sgd" */
const char *form_name(enum weightd_step_form form); /* "fused", "two-phase" */
const char *role_name(enum weightd_role role); /* "param", "buffer" */
const char *op_name(enum plan_op_type type); /* "compute", "agree", "reduce", ... */

/* The code of a name; 0: unknown. */
enum weightd_optimizer optimizer_find(const char *name);
enum weightd_step_form form_find(const char *name);
enum weightd_role role_find(const char *name);
