/*
 * The optimizer: scalars of a step
 */
#include "libclient/train/optimizer.h"

#include <math.h>

enum kernel_type optimizer_type(enum weightd_dtype dtype)
{
	switch (dtype) {
	case WEIGHTD_BF16:
		return KERNEL_BF16;
	case WEIGHTD_F16:
		return KERNEL_F16;
	default:
		return KERNEL_F32;
	}
}

static struct kernel_adam adam_scalars(const struct weightd_group *g, bool decoupled, double lr,
				       double n_updates)
{
	double bias1 = 1 - pow(g->beta1, n_updates), bias2 = 1 - pow(g->beta2, n_updates);

	return (struct kernel_adam){
		.decay = (float)(decoupled ? 1 - lr * g->weight_decay : g->weight_decay),
		.beta1_rest = (float)(1 - g->beta1),
		.beta2 = (float)g->beta2,
		.beta2_rest = (float)(1 - g->beta2),
		.bias2_sqrt = (float)sqrt(bias2),
		.eps = (float)g->eps,
		.minus_step_size = (float)(-lr / bias1),
		.decoupled = decoupled,
	};
}

static struct kernel_sgd sgd_scalars(const struct weightd_group *g, double lr)
{
	return (struct kernel_sgd){
		.weight_decay = (float)g->weight_decay,
		.momentum = (float)g->momentum,
		.minus_lr = (float)-lr,
		.nesterov = g->nesterov,
		.has_momentum = g->momentum != 0,
	};
}

void optimizer_begin(struct journal_step *s, const struct weightd_plan *plan, const double *lr,
		     uint64_t n_updates)
{
	s->kernels = kernels_get();
	s->touched = NULL;
	s->is_sgd = plan->optimizer == WEIGHTD_SGD;
	for (uint32_t i = 0; i < plan->n_groups; i++) {
		const struct weightd_group *g = &plan->groups[i];

		if (s->is_sgd)
			s->groups[i].sgd = sgd_scalars(g, lr[i]);
		else
			s->groups[i].adam = adam_scalars(g, plan->optimizer == WEIGHTD_ADAMW, lr[i],
							 (double)n_updates);
	}
}

void optimizer_weigh(struct journal_step *s, const double *weights, uint32_t n_all, uint32_t first,
		     uint32_t n)
{
	double sum = 0;

	s->n_grads = n;
	s->is_weighted = false;
	for (uint32_t i = 0; i < n_all; i++) {
		sum += weights[i];
		s->is_weighted |= weights[i] != weights[0];
	}
	s->scale = s->is_weighted ? 1 : 1 / (float)n_all;
	for (uint32_t i = 0; s->is_weighted && i < n; i++)
		s->weights[i] = (float)(weights[first + i] / sum);
}

void optimizer_run(const struct journal_step *s, uint32_t group, uint64_t first,
		   const struct kernel_state *state, size_t n)
{
	const void *grads[KERNEL_RANKS_MAX];
	struct kernel_grads g = {
		.grads = grads,
		.weights = s->is_weighted ? s->weights : NULL,
		.n = s->n_grads,
		.scale = s->scale,
		.type = s->grad_type,
	};

	for (uint32_t i = 0; i < s->n_grads; i++)
		grads[i] = kernel_element(s->grads[i], s->grad_type, first);
	if (s->is_sgd)
		s->kernels->sgd(&s->groups[group].sgd, &g, state, n);
	else
		s->kernels->adam(&s->groups[group].adam, &g, state, n);
}
