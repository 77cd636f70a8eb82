#include "libclient/train/plan/names.h"

#include <stddef.h>
#include <string.h>

#include "ipc/base/num.h"

static const char *const kinds[WEIGHTD_KINDS] = {
	[WEIGHTD_KIND_JOURNAL] = "JOURNAL",   [WEIGHTD_KIND_PARAM] = "PARAM",
	[WEIGHTD_KIND_GRAD] = "GRAD",         [WEIGHTD_KIND_REDUCED] = "REDUCED",
	[WEIGHTD_KIND_RECEIVED] = "RECEIVED", [WEIGHTD_KIND_MASTER] = "MASTER",
	[WEIGHTD_KIND_MOMENTS] = "MOMENTS",   [WEIGHTD_KIND_BUFFER] = "BUFFER",
	[WEIGHTD_KIND_FROZEN] = "FROZEN",     [WEIGHTD_KIND_STAGED] = "STAGED",
	[WEIGHTD_KIND_GATHERED] = "GATHERED",
};

static const char *const optimizers[] = {
	[WEIGHTD_ADAMW] = "adamw", [WEIGHTD_ADAM] = "adam", [WEIGHTD_SGD] = "sgd"};

static const char *const forms[] = {
	[WEIGHTD_STEP_FUSED] = "fused", [WEIGHTD_STEP_TWO_PHASE] = "two-phase"};

static const char *const roles[] = {[WEIGHTD_PARAM] = "param", [WEIGHTD_BUFFER] = "buffer"};

static const char *const ops[] = {[PLAN_COMPUTE] = "compute",
				  [PLAN_AGREE] = "agree",
				  [PLAN_REDUCE] = "reduce",
				  [PLAN_SCATTER] = "scatter",
				  [PLAN_SUM] = "sum",
				  [PLAN_DECIDE] = "decide",
				  [PLAN_UPDATE] = "update",
				  [PLAN_GATHER] = "gather",
				  [PLAN_COMMIT] = "commit",
				  [PLAN_SCATTER_REPLICAS] = "scatter-replicas",
				  [PLAN_GATHER_REPLICAS] = "gather-replicas",
				  [PLAN_FETCH] = "fetch"};

static const char *name_of(const char *const *names, size_t n, unsigned code)
{
	return code < n ? names[code] : NULL;
}

static unsigned find(const char *const *names, size_t n, const char *name)
{
	for (unsigned i = 0; i < n; i++)
		if (names[i] && !strcmp(names[i], name))
			return i;
	return 0;
}

const char *weightd_kind_name(enum weightd_kind kind)
{
	return name_of(kinds, ARRAY_LEN(kinds), kind);
}

const char *optimizer_name(enum weightd_optimizer optimizer)
{
	return name_of(optimizers, ARRAY_LEN(optimizers), optimizer);
}

const char *form_name(enum weightd_step_form form)
{
	return name_of(forms, ARRAY_LEN(forms), form);
}

const char *role_name(enum weightd_role role)
{
	return name_of(roles, ARRAY_LEN(roles), role);
}

const char *op_name(enum plan_op_type type)
{
	return name_of(ops, ARRAY_LEN(ops), type);
}

enum weightd_optimizer optimizer_find(const char *name)
{
	return find(optimizers, ARRAY_LEN(optimizers), name);
}

enum weightd_step_form form_find(const char *name)
{
	return find(forms, ARRAY_LEN(forms), name);
}

enum weightd_role role_find(const char *name)
{
	return find(roles, ARRAY_LEN(roles), name);
}
