/*
 * gradients: compares the model's backward pass with finite differences
 *
 * For each tensor, the derivative along random directions: the sum of gradient times direction, and the slope of the loss
 * between two points on it. Prints the largest relative difference of each tensor; ends with 1 if one is above TOLERANCE.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref/data.h"
#include "tests/ref/task.h"

#define DIRECTIONS 8
#define STEP 4e-3 /* along a direction of length 1: rounding and curvature cost about the same */
#define TOLERANCE 4e-3

struct point {
	float *params[MODEL_TENSORS_MAX];
	float *grads[MODEL_TENSORS_MAX];
};

static const struct task *task;
static struct model *model;
static struct point point;

/* Mean loss of the batch; gradients too, if asked for. */
static double loss(bool with_gradients)
{
	double sum = 0;

	for (uint32_t i = 0; i < task->batch; i++) {
		struct data data;
		struct model_sample s = {data.tokens, data.targets, i % 2 == 0};
		struct model_pass p = {
			.params = (const float *const *)point.params,
			.grads = with_gradients ? point.grads : NULL,
			.scale = 1 / (float)task->batch,
		};

		data_sample(&task->model, task->seed, i, &data);
		sum += model_run(model, &s, 1, &p);
	}
	return sum / task->batch;
}

/* Moves a tensor along a direction. */
static void move(uint32_t tensor, const float *from, const float *direction, double distance)
{
	for (uint64_t i = 0; i < model_tensor(model, tensor)->n; i++)
		point.params[tensor][i] = (float)((double)from[i] + distance * (double)direction[i]);
}

/* The part of the direction that the gradient has, and noise: any element may be wrong, and large ones weigh most. */
static double direction_init(uint32_t tensor, uint64_t *rng, float *ret)
{
	const struct model_tensor *t = model_tensor(model, tensor);
	const float *grad = point.grads[tensor];
	double length = 0, slope = 0, squares = 0;

	for (uint64_t i = 0; i < t->n; i++)
		squares += (double)grad[i] * (double)grad[i];
	for (uint64_t i = 0; i < t->n; i++) {
		ret[i] = (float)((double)grad[i] / (sqrt(squares) + 1e-12) * sqrt((double)t->n)) *
				 model_uniform(rng) +
			 0.5f * (2 * model_uniform(rng) - 1);
		length += (double)ret[i] * (double)ret[i];
	}
	for (uint64_t i = 0; i < t->n; i++) {
		ret[i] = (float)((double)ret[i] / sqrt(length));
		slope += (double)ret[i] * (double)grad[i];
	}
	return slope;
}

static double tensor_check(uint32_t tensor, uint64_t *rng)
{
	uint64_t n = model_tensor(model, tensor)->n;
	float *from = malloc(n * sizeof(float)), *direction = malloc(n * sizeof(float));
	double worst = 0;

	if (!from || !direction)
		exit(2);
	memcpy(from, point.params[tensor], n * sizeof(float));
	for (int i = 0; i < DIRECTIONS; i++) {
		double slope = direction_init(tensor, rng, direction), above, below, difference;

		move(tensor, from, direction, STEP);
		above = loss(false);
		move(tensor, from, direction, -STEP);
		below = loss(false);
		difference = fabs((above - below) / (2 * STEP) - slope);
		if (difference > 0)
			difference /= fabs(
				slope); /* infinite for a tensor that has no gradient and matters */
		worst = difference > worst || isnan(difference) ? difference : worst;
	}
	memcpy(point.params[tensor], from, n * sizeof(float));
	free(direction);
	free(from);
	return worst;
}

int main(int argc, char **argv)
{
	struct task t;
	uint64_t rng = 7;
	int r = 0;

	task_parse(argc, argv, "gradients", &t);
	task = &t;
	model = model_new(&t.model);
	for (uint32_t i = 0; i < model_n_tensors(model); i++) {
		uint64_t n = model_tensor(model, i)->n;

		if (model_tensor(model, i)->is_buffer)
			continue;
		point.params[i] = malloc(n * sizeof(float));
		point.grads[i] = calloc(n, sizeof(float));
		if (!point.params[i] || !point.grads[i])
			return 2;
		model_init(model, i, t.seed, point.params[i]);
		/* Biases and norms away from 0 and 1, where errors cancel. */
		for (uint64_t j = 0; j < n; j++)
			point.params[i][j] += 0.1f * (2 * model_uniform(&rng) - 1);
	}
	(void)loss(true);
	for (uint32_t i = 0; i < model_n_tensors(model); i++) {
		double worst;

		if (!point.params[i])
			continue;
		worst = tensor_check(i, &rng);
		printf("%-24s %.1e\n", model_tensor(model, i)->name, worst);
		if (!(worst < TOLERANCE))
			r = 1;
	}
	for (uint32_t i = 0; i < model_n_tensors(model); i++) {
		free(point.params[i]);
		free(point.grads[i]);
	}
	model_free(model);
	return r;
}
