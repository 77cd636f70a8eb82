#include "tests/bench/train/trainer.h"

#include <stdlib.h>

#include "tests/bench/connection.h"
#include "tests/bench/stopwatch.h"

static void check(int r)
{
	if (r < 0)
		stopwatch_fail("%s", weightd_train_error());
}

struct weightd_plan *trainer_plan(const struct trainer_options *o)
{
	const struct weightd_mesh_dim dim = {.name = "data", .size = o->n_ranks};
	const struct weightd_group group = {.size = sizeof(group),
					    .weight_decay = 0.01,
					    .beta1 = 0.9,
					    .beta2 = 0.999,
					    .eps = 1e-8};
	const struct weightd_train_tensor tensor = {.size = sizeof(tensor),
						    .name = "flat",
						    .shape = &o->n_elements,
						    .n_dims = 1,
						    .dtype = WEIGHTD_F32,
						    .role = WEIGHTD_PARAM};
	struct weightd_plan_options options = {.size = sizeof(options),
					       .strategy = "shared",
					       .optimizer = WEIGHTD_ADAMW,
					       .groups = &group,
					       .n_groups = 1,
					       .form = WEIGHTD_STEP_FUSED,
					       .without_journal = o->without_journal};
	struct weightd_mesh *mesh;
	struct weightd_plan *plan;

	check(weightd_mesh_new(&dim, 1, &mesh));
	options.mesh = mesh;
	check(weightd_plan_new(&tensor, 1, &options, &plan));
	weightd_mesh_free(mesh);
	return plan;
}

/* First values of parameters, by rank 0, and of gradients, which stay in the job as all else does. */
static void values_set(struct trainer *t, uint32_t rank)
{
	float *grad = weightd_train_grad(t->train, 0), *param;

	for (uint64_t i = 0; i < t->n_elements; i++)
		grad[i] = (float)((i + rank) % 777) * 1e-3f - 0.4f;
	if (rank != 0)
		return;
	param = malloc(t->n_elements * sizeof(float));
	if (!param)
		stopwatch_fail("out of memory");
	for (uint64_t i = 0; i < t->n_elements; i++)
		param[i] = (float)(i % 1000) * 1e-3f;
	check(weightd_train_fill(t->train, 0, param));
	free(param);
}

struct trainer trainer_open(const struct trainer_options *o)
{
	const struct weightd_train_options options = {.size = sizeof(options),
						      .rank = o->rank,
						      .deadline_ms = 60000};
	struct trainer t = {.w = connect_anew(),
			    .plan = trainer_plan(o),
			    .n_elements = o->n_elements};

	check(weightd_train_open(t.w, t.plan, &options, &t.train));
	if (weightd_train_step(t.train) == 0)
		values_set(&t, o->rank);
	check(weightd_train_begin(t.train));
	return t;
}

void trainer_step(const struct trainer *t)
{
	const double lr = 1e-3;
	const struct weightd_update update = {.size = sizeof(update), .lr = &lr};

	check(weightd_train_update(t->train, &update));
}
