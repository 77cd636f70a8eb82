/*
 * oracle: the curve of a single process, without weightd
 *
 * The plainest loop: whole batches, one copy of everything, an optimizer that visits one number after the other. It takes
 * the trainer's options; --n only selects the samples that use the side layer.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref/data.h"
#include "tests/ref/task.h"

struct oracle {
	struct task task;
	struct model *model;
	float *params[MODEL_TENSORS_MAX], *grads[MODEL_TENSORS_MAX];
	float *m[MODEL_TENSORS_MAX], *v[MODEL_TENSORS_MAX];
	void *buffers[MODEL_TENSORS_MAX];
	uint64_t position, rng;
	uint64_t n_updates; /* steps that were not skipped: bias correction counts these */
};

static void *zeros(uint64_t n, size_t size)
{
	void *p = calloc(n, size);

	if (!p)
		exit(2);
	return p;
}

static void oracle_init(struct oracle *o)
{
	o->model = model_new(&o->task.model);
	if (!o->model)
		exit(2);
	for (uint32_t i = 0; i < model_n_tensors(o->model); i++) {
		const struct model_tensor *t = model_tensor(o->model, i);

		if (t->is_buffer) {
			o->buffers[i] = zeros(t->n, sizeof(uint64_t));
			continue;
		}
		o->params[i] = zeros(t->n, sizeof(float));
		o->grads[i] = zeros(t->n, sizeof(float));
		o->m[i] = zeros(t->n, sizeof(float));
		o->v[i] = zeros(t->n, sizeof(float));
		model_init(o->model, i, o->task.seed, o->params[i]);
	}
}

static void oracle_deinit(struct oracle *o)
{
	for (uint32_t i = 0; i < model_n_tensors(o->model); i++) {
		free(o->params[i]);
		free(o->grads[i]);
		free(o->m[i]);
		free(o->v[i]);
		free(o->buffers[i]);
	}
	model_free(o->model);
}

/* Mean loss and gradients of `n` samples from the position on. */
static double batch_run(struct oracle *o, uint32_t n)
{
	double loss = 0;

	for (uint32_t i = 0; i < model_n_tensors(o->model); i++)
		if (o->grads[i])
			memset(o->grads[i], 0, model_tensor(o->model, i)->n * sizeof(float));
	for (uint32_t i = 0; i < n; i++) {
		struct data data;
		struct model_sample s = {data.tokens, data.targets,
					 i % o->task.batch % o->task.n == 0};
		struct model_pass p = {
			.params = (const float *const *)o->params,
			.grads = o->grads,
			.buffers = o->buffers,
			.scale = 1 / (float)n,
			.rng = &o->rng,
		};

		data_sample(&o->task.model, o->task.seed, o->position + i, &data);
		loss += model_run(o->model, &s, 1, &p);
	}
	o->position += n;
	return loss / n;
}

/* torch's clip_grad_norm_. */
static void clip(struct oracle *o)
{
	double squares = 0;
	float scale;

	for (uint32_t i = 0; i < model_n_tensors(o->model); i++)
		for (uint64_t j = 0; o->grads[i] && j < model_tensor(o->model, i)->n; j++)
			squares += (double)o->grads[i][j] * (double)o->grads[i][j];
	scale = (float)(o->task.max_norm / (sqrt(squares) + 1e-6));
	for (uint32_t i = 0; scale < 1 && i < model_n_tensors(o->model); i++)
		for (uint64_t j = 0; o->grads[i] && j < model_tensor(o->model, i)->n; j++)
			o->grads[i][j] *= scale;
}

static void adam(struct oracle *o, uint32_t tensor, double lr, double weight_decay)
{
	const struct task *t = &o->task;
	bool decoupled = strcmp(t->optimizer, "adamw") == 0;
	float beta1_rest = (float)(1 - t->beta1), beta2 = (float)t->beta2;
	float beta2_rest = (float)(1 - t->beta2), eps = (float)t->eps;
	float bias2_sqrt = (float)sqrt(1 - pow(t->beta2, (double)o->n_updates));
	float step_size = (float)(-lr / (1 - pow(t->beta1, (double)o->n_updates)));
	float decay = (float)(decoupled ? 1 - lr * weight_decay : weight_decay);

	for (uint64_t i = 0; i < model_tensor(o->model, tensor)->n; i++) {
		float p = o->params[tensor][i], g = o->grads[tensor][i];
		float m = o->m[tensor][i], v = o->v[tensor][i];

		if (decoupled)
			p *= decay;
		else if (decay != 0)
			g = fmaf(p, decay, g);
		m = fmaf(beta1_rest, g - m, m);
		v = fmaf(beta2_rest * g, g, v * beta2);
		o->params[tensor][i] = p + step_size * m / (sqrtf(v) / bias2_sqrt + eps);
		o->m[tensor][i] = m;
		o->v[tensor][i] = v;
	}
}

static void sgd(struct oracle *o, uint32_t tensor, double lr, double weight_decay)
{
	float momentum = (float)o->task.momentum;

	for (uint64_t i = 0; i < model_tensor(o->model, tensor)->n; i++) {
		float *p = &o->params[tensor][i], *m = &o->m[tensor][i];
		float g = o->grads[tensor][i] + (float)weight_decay * *p;

		*m = o->n_updates == 1 ? g : momentum * *m + g;
		*p -= (float)lr * (o->task.nesterov ? g + momentum * *m : *m);
	}
}

static void update(struct oracle *o, uint64_t step)
{
	double rates[TASK_GROUPS];

	o->n_updates++;
	task_rates(&o->task, step, rates);
	if (o->task.max_norm > 0)
		clip(o);
	for (uint32_t i = 0; i < model_n_tensors(o->model); i++) {
		uint32_t group = task_group(&o->task, model_tensor(o->model, i));
		double weight_decay = group ? 0 : o->task.weight_decay;

		if (!o->params[i] || task_rests(&o->task, model_tensor(o->model, i), step) ||
		    task_is_frozen(&o->task, model_tensor(o->model, i)))
			continue;
		if (o->task.optimizer[0] == 'a')
			adam(o, i, rates[group], weight_decay);
		else
			sgd(o, i, rates[group], weight_decay);
	}
}

/* Parameters, without padding, tensor by tensor. */
static void dump(const struct oracle *o)
{
	char path[4096];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s.PARAM", o->task.dump);
	f = fopen(path, "w");
	for (uint32_t i = 0; f && i < model_n_tensors(o->model); i++)
		if (o->params[i])
			(void)fwrite(o->params[i], sizeof(float), model_tensor(o->model, i)->n, f);
	if (!f || fclose(f))
		exit(2);
}

int main(int argc, char **argv)
{
	struct oracle o = {0};
	FILE *losses = stdout;

	task_parse(argc, argv, "oracle", &o.task);
	oracle_init(&o);
	if (o.task.losses)
		losses = fopen(o.task.losses, "w");
	if (!losses)
		return 2;
	for (uint64_t step = 1; step <= o.task.steps; step++) {
		double loss = batch_run(&o, task_batch(&o.task, step) * o.task.no_sync);

		(void)fprintf(losses, "{\"step\": %llu, \"loss\": %.9g}\n",
			      (unsigned long long)step, loss);
		if (!task_is_at(o.task.nan_at, step, UINT32_MAX))
			update(&o, step);
	}
	if (fflush(losses))
		return 2;
	if (losses != stdout)
		(void)fclose(losses);
	if (o.task.dump)
		dump(&o);
	oracle_deinit(&o);
	return 0;
}
