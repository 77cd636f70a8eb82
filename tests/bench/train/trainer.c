#include "tests/bench/train/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/connection.h"
#include "tests/bench/stopwatch.h"

#define N_MATRICES 74
#define N_TENSORS (2 * N_MATRICES)
#define VECTOR 385 /* elements */
#define NAME_SIZE 16

static void check(int r)
{
	if (r < 0)
		stopwatch_fail("%s", weightd_train_error());
}

/* As in a model: matrices, each with a vector that does not fill its last cache line. */
static void tensors_describe(struct weightd_train_tensor tensors[N_TENSORS],
			     uint64_t shapes[N_TENSORS], char names[N_TENSORS][NAME_SIZE],
			     const struct trainer_options *o)
{
	uint64_t each = o->n_elements / N_MATRICES;

	for (uint32_t i = 0; i < N_TENSORS; i++) {
		bool is_vector = i % 2;

		shapes[i] = is_vector ? VECTOR : each - VECTOR;
		if (i == 0)
			shapes[i] += o->n_elements % N_MATRICES;
		(void)snprintf(names[i], NAME_SIZE, "%u.%s", i / 2, is_vector ? "bias" : "weight");
		tensors[i] = (struct weightd_train_tensor){.size = sizeof(tensors[i]),
							   .name = names[i],
							   .shape = &shapes[i],
							   .n_dims = 1,
							   .dtype = o->is_bf16 ? WEIGHTD_BF16
									       : WEIGHTD_F32,
							   .role = WEIGHTD_PARAM};
	}
}

struct weightd_plan *trainer_plan(const struct trainer_options *o)
{
	const struct weightd_mesh_dim dim = {.name = "data", .size = o->n_ranks};
	const struct weightd_group group = {.size = sizeof(group),
					    .weight_decay = 0.01,
					    .beta1 = 0.9,
					    .beta2 = 0.999,
					    .eps = 1e-8};
	struct weightd_plan_options options = {.size = sizeof(options),
					       .strategy = "shared",
					       .optimizer = WEIGHTD_ADAMW,
					       .groups = &group,
					       .n_groups = 1,
					       .form = WEIGHTD_STEP_FUSED,
					       .without_journal = o->without_journal};
	struct weightd_train_tensor tensors[N_TENSORS];
	uint64_t shapes[N_TENSORS];
	char names[N_TENSORS][NAME_SIZE];
	struct weightd_mesh *mesh;
	struct weightd_plan *plan;

	tensors_describe(tensors, shapes, names, o);
	check(weightd_mesh_new(&dim, 1, &mesh));
	options.mesh = mesh;
	check(weightd_plan_new(tensors, N_TENSORS, &options, &plan));
	weightd_mesh_free(mesh);
	return plan;
}

/* BF16 is the upper half of a float. */
static void grad_set(void *grad, bool is_bf16, uint64_t i, float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	if (is_bf16)
		((uint16_t *)grad)[i] = (uint16_t)(bits >> 16);
	else
		((float *)grad)[i] = value;
}

/* First values of parameters, by rank 0, and of gradients, which stay in the job as all else does. */
static void values_set(struct trainer *t, const struct trainer_options *o, float *values)
{
	for (uint32_t tensor = 0; tensor < N_TENSORS; tensor++) {
		struct weightd_train_tensor row = {.size = sizeof(row)};
		void *grad = weightd_train_grad(t->train, tensor);

		check(weightd_plan_tensor(t->plan, tensor, &row));
		for (uint64_t i = 0; i < row.shape[0]; i++) {
			grad_set(grad, o->is_bf16, i, (float)((i + o->rank) % 777) * 1e-3f - 0.4f);
			values[i] = (float)(i % 1000) * 1e-3f;
		}
		if (o->rank == 0)
			check(weightd_train_fill(t->train, tensor, values));
	}
}

struct trainer trainer_open(const struct trainer_options *o)
{
	const struct weightd_train_options options = {.size = sizeof(options),
						      .rank = o->rank,
						      .deadline_ms = 60000};
	struct trainer t = {.w = connect_anew(), .plan = trainer_plan(o)};
	float *values;

	check(weightd_train_open(t.w, t.plan, &options, &t.train));
	if (weightd_train_step(t.train) == 0) {
		values = malloc(o->n_elements * sizeof(float));
		if (!values)
			stopwatch_fail("out of memory");
		values_set(&t, o, values);
		free(values);
	}
	check(weightd_train_begin(t.train));
	return t;
}

void trainer_step(const struct trainer *t)
{
	const double lr = 1e-3;
	const struct weightd_update update = {.size = sizeof(update), .lr = &lr};

	check(weightd_train_update(t->train, &update));
}
