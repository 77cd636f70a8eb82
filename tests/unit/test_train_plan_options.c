/*
 * Options of plans: each makes another plan, with a sentence about the difference, and those that cannot be are refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "tests/unit/train_model.h"

/* --- Differences -------------------------------------------------------------------------------- */

static void set_ranks(struct model *m)
{
	weightd_mesh_free(m->mesh);
	m->options.mesh = m->mesh = mesh_of(2);
}

static void set_mesh_name(struct model *m)
{
	const struct weightd_mesh_dim dim = {"data", 3};

	weightd_mesh_free(m->mesh);
	assert_int_equal(weightd_mesh_new(&dim, 1, &m->mesh), 0);
	m->options.mesh = m->mesh;
}

static void set_nodes(struct model *m)
{
	m->options.n_nodes = 3;
}

static void set_sync_every(struct model *m)
{
	set_nodes(m);
	m->options.sync_every = 4;
}

static void set_strategy(struct model *m)
{
	m->options.strategy = "zero1";
	m->options.n_copies = 0;
}

static void set_optimizer(struct model *m)
{
	m->options.optimizer = WEIGHTD_ADAM;
}

static void set_form(struct model *m)
{
	m->options.form = WEIGHTD_STEP_TWO_PHASE;
}

static void set_bucket(struct model *m)
{
	m->options.bucket_bytes = 1000;
}

static void set_staleness(struct model *m)
{
	m->options.staleness = 2;
}

static void set_copies(struct model *m)
{
	m->options.n_copies = 3;
}

static void set_state(struct model *m)
{
	m->options.state_size = 100;
}

static void set_journal(struct model *m)
{
	m->options.without_journal = true;
}

static void set_n_groups(struct model *m)
{
	m->options.n_groups = 3;
}

static void set_decay(struct model *m)
{
	m->groups[1].weight_decay = 0.02;
}

static void set_beta1(struct model *m)
{
	m->groups[0].beta1 = 0.8;
}

static void set_beta2(struct model *m)
{
	m->groups[0].beta2 = 0.99;
}

static void set_eps(struct model *m)
{
	m->groups[0].eps = 1e-6;
}

static void set_shape(struct model *m)
{
	m->shapes[2][1] = 9;
}

static void set_rank_of_shape(struct model *m)
{
	m->tensors[2].n_dims = 1;
}

static void set_name(struct model *m)
{
	(void)strcpy(m->names[1], "h.0.offset");
}

static void set_order(struct model *m)
{
	struct weightd_train_tensor first = m->tensors[0];

	m->tensors[0] = m->tensors[1];
	m->tensors[1] = first;
}

static void set_fewer(struct model *m)
{
	m->n_tensors--;
}

static void set_more(struct model *m)
{
	model_add_param(m, "head", 2, 2);
}

static void set_group(struct model *m)
{
	m->tensors[0].group = 0;
}

static void set_role(struct model *m)
{
	m->tensors[1].role = WEIGHTD_BUFFER;
}

static void set_dtype(struct model *m)
{
	m->tensors[3].dtype = WEIGHTD_I32;
}

static void set_grads(struct model *m)
{
	m->tensors[0].dtype = m->tensors[1].dtype = m->tensors[2].dtype = WEIGHTD_BF16;
}

static void set_grad_dtype(struct model *m)
{
	set_grads(m);
	m->options.grad_dtype = WEIGHTD_F32;
}

static void set_frozen(struct model *m)
{
	m->tensors[1].frozen = true;
}

static void set_scaling(struct model *m)
{
	set_form(m);
	m->options.scaling = &m->scaling;
}

static const struct change {
	void (*change)(struct model *m);
	const char *sentence; /* of the changed one */
} changes[] = {
	{set_ranks, "this rank's mesh is (dp=2), the job's is (dp=3)"},
	{set_mesh_name, "this rank's mesh is (data=3), the job's is (dp=3)"},
	{set_nodes, "this rank's plan has n_nodes 3, the job's has 1"},
	{set_sync_every, "this rank's plan has n_nodes 3, the job's has 1"},
	{set_strategy, "this rank's strategy is 'zero1', the job's is 'shared'"},
	{set_optimizer, "this rank's optimizer is 'adam', the job's is 'adamw'"},
	{set_form, "this rank's step form is 'two-phase', the job's is 'fused'"},
	{set_bucket, "this rank's plan has bucket_bytes 1000, the job's has 26214400"},
	{set_staleness, "this rank's plan has staleness 2, the job's has 0"},
	{set_copies, "this rank's plan has n_copies 3, the job's has 1"},
	{set_state, "this rank's plan has state_size 100, the job's has 4096"},
	{set_journal, "this rank's plan is without a journal, the job's is with"},
	{set_n_groups, "this rank's plan has parameter groups: 3, the job's has 2"},
	{set_decay, "this rank's parameter group 1 has weight_decay 0.02, the job's has 0.01"},
	{set_beta1, "this rank's parameter group 0 has beta1 0.8"},
	{set_beta2, "this rank's parameter group 0 has beta2 0.99"},
	{set_eps, "this rank's parameter group 0 has eps 1e-06, the job's has 1e-08"},
	{set_shape, "this rank's model has 'h.1.weight' F32 [4, 9], the job's has [4, 8]"},
	{set_rank_of_shape, "this rank's model has 'h.1.weight' F32 [4], the job's has [4, 8]"},
	{set_name, "this rank's model has 'h.0.offset', which the job's lacks"},
	{set_order,
	 "tensor 0 of this rank's model is 'h.0.bias', of the job's 'h.0.weight': their order differs"},
	{set_fewer, "the job's model has 'steps', which this rank's lacks"},
	{set_more, "this rank's model has 'head', which the job's lacks"},
	{set_group, "this rank's model has 'h.0.weight' in parameter group 0, the job's in 1"},
	{set_role, "this rank's model has 'h.0.bias' as a buffer, the job's as a param"},
	{set_dtype, "this rank's model has 'steps' I32 [1, 1], the job's has it I64 [1, 1]"},
	{set_grads,
	 "this rank's model has 'h.0.weight' BF16 [24, 16], the job's has it F32 [24, 16]"},
	{set_grad_dtype,
	 "this rank's model has 'h.0.weight' BF16 [24, 16], the job's has it F32 [24, 16]"},
	{set_frozen, "this rank's model has 'h.0.bias' frozen, the job's has it trained"},
	{set_scaling, "this rank's step form is 'two-phase', the job's is 'fused'"},
};

static void each_option_changes_the_hash_and_is_named(void **state)
{
	uint8_t hashes[ARRAY_LEN(changes) + 1][16];
	struct weightd_plan *p;
	struct model m;

	(void)state;
	model_init_small(&m, "shared");
	p = model_plan(&m);
	weightd_plan_hash(p, hashes[ARRAY_LEN(changes)]);
	for (size_t i = 0; i < ARRAY_LEN(changes); i++) {
		char difference[512], reverse[512];
		struct weightd_plan *other;
		struct model changed;

		model_init_small(&changed, "shared");
		changes[i].change(&changed);
		other = model_plan(&changed);
		weightd_plan_hash(other, hashes[i]);
		for (size_t k = 0; k < ARRAY_LEN(changes) + 1; k++)
			assert_true(k == i || (k > i && k < ARRAY_LEN(changes)) ||
				    memcmp(hashes[k], hashes[i], 16));
		assert_int_equal(weightd_plan_compare(other, p, difference, sizeof(difference)), 1);
		if (strncmp(difference, changes[i].sentence, strlen(changes[i].sentence)))
			fail_msg("'%s' is not '%s'", difference, changes[i].sentence);
		assert_int_equal(weightd_plan_compare(p, other, reverse, sizeof(reverse)), 1);
		assert_string_not_equal(reverse, difference);
		/* A small buffer ends the sentence, and nothing else. */
		assert_int_equal(weightd_plan_compare(other, p, reverse, 10), 1);
		assert_int_equal(strlen(reverse), 9);
		weightd_plan_free(other);
		model_deinit(&changed);
	}
	weightd_plan_free(p);
	model_deinit(&m);
}

static void set_init(struct model *m)
{
	m->scaling.init = 1024;
}

static void set_growth(struct model *m)
{
	m->scaling.growth = 1.5;
}

static void set_backoff(struct model *m)
{
	m->scaling.backoff = 0.25;
}

static void set_interval(struct model *m)
{
	m->scaling.interval = 100;
}

static void set_no_scaling(struct model *m)
{
	m->options.scaling = NULL;
}

static void set_wide_grads(struct model *m)
{
	m->options.grad_dtype = WEIGHTD_F32;
}

/* Differences that only plans of 16 bits, or of two phases, can have. */
static void precision_is_named(void **state)
{
	static const struct change precisions[] = {
		{set_init, "this rank's plan has scaling with init 1024, the job's with 65536"},
		{set_growth, "this rank's plan has scaling with growth 1.5, the job's with 2"},
		{set_backoff, "this rank's plan has scaling with backoff 0.25, the job's with 0.5"},
		{set_interval, "this rank's plan has scaling interval 100, the job's has 2000"},
		{set_no_scaling, "this rank's plan is without scaling, the job's is with"},
		{set_wide_grads, "this rank's type of gradients is 'F32', the job's is 'BF16'"},
	};
	struct weightd_plan *p, *other;
	char difference[512];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(precisions); i++) {
		struct model m, changed;

		model_init_small(&m, "shared");
		set_scaling(&m);
		set_grads(&m);
		p = model_plan(&m);
		model_init_small(&changed, "shared");
		set_scaling(&changed);
		set_grads(&changed);
		precisions[i].change(&changed);
		other = model_plan(&changed);
		assert_int_equal(weightd_plan_compare(other, p, difference, sizeof(difference)), 1);
		assert_string_equal(difference, precisions[i].sentence);
		weightd_plan_free(other);
		weightd_plan_free(p);
		model_deinit(&m);
		model_deinit(&changed);
	}
}

/* A plan of another release parses, so that the difference has a name. */
static void another_release_is_the_first_difference(void **state)
{
	struct weightd_plan *p, *other;
	char difference[256];
	struct model m;

	(void)state;
	model_init_small(&m, "shared");
	p = model_plan(&m);
	other = model_plan_of_release(&m, "9.8.7");
	assert_int_equal(weightd_plan_compare(p, other, difference, sizeof(difference)), 1);
	assert_non_null(strstr(difference, "this rank's release of weightd is '"));
	assert_non_null(strstr(difference, "the job's is '9.8.7'"));
	weightd_plan_free(other);
	weightd_plan_free(p);
	model_deinit(&m);
}

/* Values that another optimizer would use do not make two plans differ. */
static void fields_that_the_optimizer_lacks_are_left_out(void **state)
{
	struct weightd_plan *a, *b;
	char difference[256];
	struct model m;

	(void)state;
	model_init_small(&m, "shared");
	a = model_plan(&m);
	m.groups[0].momentum = 0.5;
	m.groups[1].nesterov = true;
	b = model_plan(&m);
	assert_int_equal(weightd_plan_compare(a, b, difference, sizeof(difference)), 0);
	weightd_plan_free(a);
	weightd_plan_free(b);
	model_deinit(&m);
}

/* --- Bad input ---------------------------------------------------------------------------------- */

static void bad_no_tensors(struct model *m)
{
	m->n_tensors = 0;
}

static void bad_no_params(struct model *m)
{
	for (uint32_t i = 0; i < m->n_tensors; i++)
		m->tensors[i].role = WEIGHTD_BUFFER;
}

static void bad_empty_params(struct model *m)
{
	for (uint32_t i = 0; i < m->n_tensors; i++)
		m->shapes[i][0] = 0;
}

static void bad_strategy(struct model *m)
{
	m->options.strategy = "zero4";
}

static void bad_no_strategy(struct model *m)
{
	m->options.strategy = NULL;
}

static void bad_mesh(struct model *m)
{
	const struct weightd_mesh_dim dims[] = {{"replicate", 1}, {"shard", 3}, {"tp", 1}};

	weightd_mesh_free(m->mesh);
	assert_int_equal(weightd_mesh_new(dims, ARRAY_LEN(dims), &m->mesh), 0);
	m->options.mesh = m->mesh;
}

static void bad_no_mesh(struct model *m)
{
	m->options.mesh = NULL;
}

static void bad_optimizer(struct model *m)
{
	m->options.optimizer = 4;
}

static void bad_no_groups(struct model *m)
{
	m->options.n_groups = 0;
}

static void bad_many_groups(struct model *m)
{
	m->options.n_groups = UINT32_MAX;
}

static void bad_beta(struct model *m)
{
	m->groups[1].beta2 = 1;
}

static void bad_eps(struct model *m)
{
	m->groups[1].eps = -1e-8;
}

static void bad_decay(struct model *m)
{
	m->groups[0].weight_decay = __builtin_nan("");
}

static void bad_momentum(struct model *m)
{
	m->options.optimizer = WEIGHTD_SGD;
	m->groups[1].momentum = __builtin_inf();
}

static void bad_nesterov(struct model *m)
{
	m->options.optimizer = WEIGHTD_SGD;
	m->groups[1].momentum = 0;
	m->groups[1].nesterov = true;
}

static void bad_fused(struct model *m)
{
	m->options.strategy = "replicated";
	m->options.n_copies = 0;
	m->options.form = WEIGHTD_STEP_FUSED;
}

static void bad_form(struct model *m)
{
	m->options.form = 3;
}

static void bad_overlap(struct model *m)
{
	m->options.form = WEIGHTD_STEP_FUSED;
	m->options.overlap = true;
}

static void bad_stale_zero1(struct model *m)
{
	set_strategy(m);
	m->options.staleness = 1;
}

static void bad_stale_two_phase(struct model *m)
{
	m->options.form = WEIGHTD_STEP_TWO_PHASE;
	m->options.staleness = 1;
}

static void bad_staleness(struct model *m)
{
	m->options.staleness = UINT32_MAX;
}

static void bad_copies(struct model *m)
{
	m->options.n_copies = 4;
}

static void bad_copies_of_zero1(struct model *m)
{
	m->options.strategy = "zero1";
	m->options.n_copies = 1;
}

static void bad_bucket(struct model *m)
{
	m->options.bucket_bytes = UINT64_MAX;
}

static void bad_state(struct model *m)
{
	m->options.state_size = PLAN_STATE_MAX + 1;
}

static void bad_repeated(struct model *m)
{
	(void)strcpy(m->names[2], m->names[0]);
}

static void bad_no_name(struct model *m)
{
	m->tensors[1].name = NULL;
}

static void bad_name(struct model *m)
{
	(void)strcpy(m->names[1], "\xff\033");
}

static void bad_dtype(struct model *m)
{
	m->tensors[0].dtype = WEIGHTD_F64;
}

static void bad_mixture(struct model *m)
{
	m->tensors[2].dtype = WEIGHTD_BF16;
}

static void bad_grad_dtype(struct model *m)
{
	m->options.grad_dtype = WEIGHTD_BF16;
}

static void bad_other_grad_dtype(struct model *m)
{
	set_grads(m);
	m->options.grad_dtype = WEIGHTD_F16;
}

static void bad_unknown_grad_dtype(struct model *m)
{
	m->options.grad_dtype = 200;
}

static void bad_frozen_buffer(struct model *m)
{
	m->tensors[3].frozen = true;
}

static void bad_frozen_dtype(struct model *m)
{
	m->tensors[0].frozen = true;
	m->tensors[0].dtype = WEIGHTD_F4;
}

static void bad_all_frozen(struct model *m)
{
	for (uint32_t i = 0; i < 3; i++)
		m->tensors[i].frozen = true;
}

static void bad_fused_scaling(struct model *m)
{
	m->options.form = WEIGHTD_STEP_FUSED;
	m->options.scaling = &m->scaling;
}

static void bad_scale(struct model *m)
{
	set_scaling(m);
	m->scaling.init = 1e39;
}

static void bad_growth(struct model *m)
{
	set_scaling(m);
	m->scaling.growth = 0.5;
}

static void bad_backoff(struct model *m)
{
	set_scaling(m);
	m->scaling.backoff = __builtin_nan("");
}

static void bad_interval(struct model *m)
{
	set_scaling(m);
	m->scaling.interval = 0;
}

static void bad_size_of_scaling(struct model *m)
{
	set_scaling(m);
	m->scaling.size = 0;
}

static void bad_code(struct model *m)
{
	m->tensors[0].dtype = 200;
}

static void bad_buffer(struct model *m)
{
	m->tensors[3].dtype = WEIGHTD_F4;
}

static void bad_role(struct model *m)
{
	m->tensors[3].role = 0;
}

static void bad_group(struct model *m)
{
	m->tensors[0].group = 2;
}

static void bad_size(struct model *m)
{
	m->shapes[2][0] = 1ull << 60;
}

static void bad_product(struct model *m)
{
	m->shapes[2][0] = m->shapes[2][1] = 1ull << 40;
}

static void bad_sum(struct model *m)
{
	m->shapes[0][0] = m->shapes[2][0] = 1ull << 20;
	m->shapes[0][1] = m->shapes[2][1] = 1ull << 20;
}

static void bad_dims(struct model *m)
{
	m->tensors[0].n_dims = 33;
}

static void bad_no_shape(struct model *m)
{
	m->tensors[0].shape = NULL;
}

static void bad_many_tensors(struct model *m)
{
	m->n_tensors = UINT32_MAX;
}

static void bad_wild_size(struct model *m)
{
	m->options.size = SIZE_MAX;
}

static void bad_size_of_options(struct model *m)
{
	m->options.size = 0;
}

static void bad_size_of_group(struct model *m)
{
	m->groups[0].size = 8;
}

static void bad_size_of_tensor(struct model *m)
{
	m->tensors[1].size = 0;
}

static void bad_plans_are_refused_with_a_reason(void **state)
{
	static const struct {
		void (*change)(struct model *m);
		int r;
		const char *sentence;
	} cases[] = {
		{bad_no_tensors, -EINVAL, "there are no parameters to train"},
		{bad_no_params, -EINVAL, "there are no parameters to train"},
		{bad_empty_params, -EINVAL, "there are no parameters to train"},
		{bad_strategy, -EINVAL,
		 "the strategy 'zero4' is unknown; there are 'shared', 'zero1', 'zero2', 'zero3' or "
		 "'replicated'"},
		{bad_no_strategy, -EINVAL, "the strategy NULL is unknown"},
		{bad_mesh, -EINVAL, "a plan has one mesh dimension"},
		{bad_no_mesh, -EINVAL, "the plan has no mesh"},
		{bad_optimizer, -EINVAL, "the optimizer 4 is unknown"},
		{bad_no_groups, -EINVAL, "1 to 64 parameter groups"},
		{bad_many_groups, -EINVAL, "1 to 64 parameter groups"},
		{bad_beta, -EINVAL, "parameter group 1 has betas 0.9 and 1"},
		{bad_eps, -EINVAL, "parameter group 1 has eps -1e-08"},
		{bad_decay, -EINVAL, "parameter group 0 has weight_decay nan"},
		{bad_momentum, -EINVAL, "parameter group 1 has momentum inf"},
		{bad_nesterov, -EINVAL, "parameter group 1 is nesterov, and has no momentum"},
		{bad_fused, -EINVAL,
		 "the strategy 'replicated' has no fused step; use the form 'two-phase'"},
		{bad_form, -EINVAL, "the step form 3 is unknown"},
		{bad_overlap, -EINVAL, "overlap needs buckets"},
		{bad_stale_zero1, -EINVAL, "the strategy 'zero1' has no staleness"},
		{bad_stale_two_phase, -EINVAL,
		 "staleness needs the fused step; use the form 'fused'"},
		{bad_staleness, -EINVAL, "a staleness of 4294967295 is too large; 63"},
		{bad_copies, -EINVAL, "4 copies are too many for 3 ranks"},
		{bad_copies_of_zero1, -EINVAL, "n_copies cannot be 1"},
		{bad_bucket, -EINVAL, "a bucket of 18446744073709551615 bytes is too large"},
		{bad_state, -EINVAL, "a state of 1048577 bytes is too large; 1048576"},
		{bad_repeated, -EINVAL, "two tensors are named 'h.0.weight'"},
		{bad_no_name, -EINVAL, "the name of tensor 1 has no bytes"},
		{bad_name, -EINVAL, "the name '\\xff\\x1b' of tensor 1 is not UTF-8"},
		{bad_dtype, -EOPNOTSUPP,
		 "the parameter 'h.0.weight' is F64; trained parameters are F32, BF16 or F16"},
		{bad_mixture, -EOPNOTSUPP,
		 "the parameter 'h.1.weight' is BF16, and 'h.0.weight' is F32; all trained parameters "
		 "have one element type"},
		{bad_grad_dtype, -EOPNOTSUPP,
		 "grad_dtype is BF16 and the parameters are F32; it is F32"},
		{bad_other_grad_dtype, -EOPNOTSUPP,
		 "grad_dtype is F16 and the parameters are BF16; it is BF16 or F32"},
		{bad_unknown_grad_dtype, -EINVAL, "the element type 200 of gradients is unknown"},
		{bad_frozen_buffer, -EINVAL, "the buffer 'steps' is frozen; only parameters can be"},
		{bad_frozen_dtype, -EOPNOTSUPP, "the frozen parameter 'h.0.weight' is F4"},
		{bad_all_frozen, -EINVAL, "there are no parameters to train"},
		{bad_fused_scaling, -EINVAL,
		 "scaling needs to know whether all gradients are finite"},
		{bad_scale, -EINVAL, "the first scale of the loss is 1e+39"},
		{bad_growth, -EINVAL, "the scale grows by 0.5; give a factor of 1 or more"},
		{bad_backoff, -EINVAL, "the scale backs off by nan"},
		{bad_interval, -EINVAL, "the scale grows every 0 steps"},
		{bad_size_of_scaling, -EINVAL, "the size of struct weightd_scaling was not set"},
		{bad_code, -EINVAL, "the element type 200 of 'h.0.weight' is unknown"},
		{bad_buffer, -EOPNOTSUPP, "the buffer 'steps' is F4"},
		{bad_role, -EINVAL, "'steps' is neither WEIGHTD_PARAM nor WEIGHTD_BUFFER"},
		{bad_group, -EINVAL, "'h.0.weight' is in parameter group 2, and there are 2"},
		{bad_size, -EINVAL, "'h.1.weight' has 1152921504606846976 elements in dimension 0"},
		{bad_product, -EINVAL, "'h.1.weight' has too many elements"},
		{bad_sum, -EINVAL, "'h.1.weight' has 4398046511104 bytes at offset"},
		{bad_dims, -EINVAL, "'h.0.weight' has 33 dimensions"},
		{bad_no_shape, -EINVAL, "'h.0.weight' has 2 dimensions and no shape"},
		{bad_many_tensors, -EINVAL, "4294967295 tensors are too many; 4194304"},
		{bad_wild_size, -EINVAL, "the size of struct weightd_plan_options was not set"},
		{bad_size_of_options, -EINVAL, "the size of struct weightd_plan_options was not set"},
		{bad_size_of_group, -EINVAL, "the size of struct weightd_group was not set"},
		{bad_size_of_tensor, -EINVAL, "the size of struct weightd_train_tensor was not set"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct weightd_plan *p = NULL;
		struct model m;
		int r;

		model_init_small(&m, "shared");
		cases[i].change(&m);
		r = weightd_plan_new(m.tensors, m.n_tensors, &m.options, &p);
		if (r != cases[i].r || !strstr(weightd_train_error(), cases[i].sentence))
			fail_msg("%d '%s', expected %d '%s'", r, weightd_train_error(), cases[i].r,
				 cases[i].sentence);
		assert_null(p);
		model_deinit(&m);
	}
}

/* An option of a newer release is refused where it is used, and ignored where it is zero. */
static void options_of_newer_releases_are_refused(void **state)
{
	struct {
		struct weightd_plan_options o;
		uint64_t next;
	} newer = {.next = 0};
	struct weightd_plan *p = NULL;
	struct model m;

	(void)state;
	model_init_small(&m, "shared");
	newer.o = m.options;
	newer.o.size = sizeof(newer);
	assert_int_equal(weightd_plan_new(m.tensors, m.n_tensors, &newer.o, &p), 0);
	weightd_plan_free(p);
	p = NULL;
	newer.next = 1;
	assert_int_equal(weightd_plan_new(m.tensors, m.n_tensors, &newer.o, &p), -E2BIG);
	assert_null(p);
	model_deinit(&m);
}

static void questions_about_what_a_plan_lacks_fail(void **state)
{
	struct weightd_train_tensor t = {.size = sizeof(t)}, unset = {0};
	struct weightd_traffic traffic = {.size = sizeof(traffic)};
	struct weightd_plan *p;
	struct model m;
	uint64_t begin, end;
	uint32_t i;

	(void)state;
	model_init_small(&m, "shared");
	p = model_plan(&m);
	assert_int_equal(weightd_plan_tensor(p, 4, &t), -ENOENT);
	assert_int_equal(weightd_plan_tensor(p, 0, &unset), -EINVAL);
	assert_int_equal(weightd_plan_find(p, "h.2.weight", &i), -ENOENT);
	assert_string_equal(weightd_train_error(), "the plan has no tensor 'h.2.weight'");
	assert_int_equal(weightd_plan_shard(p, 3, &begin, &end), -ENOENT);
	assert_int_equal(weightd_plan_traffic(p, 3, &traffic), -ENOENT);
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KINDS), 0);
	assert_null(weightd_kind_name(WEIGHTD_KINDS));
	assert_string_equal(weightd_kind_name(WEIGHTD_KIND_MOMENTS), "MOMENTS");
	weightd_plan_free(p);
	model_deinit(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_option_changes_the_hash_and_is_named),
		cmocka_unit_test(precision_is_named),
		cmocka_unit_test(another_release_is_the_first_difference),
		cmocka_unit_test(fields_that_the_optimizer_lacks_are_left_out),
		cmocka_unit_test(bad_plans_are_refused_with_a_reason),
		cmocka_unit_test(options_of_newer_releases_are_refused),
		cmocka_unit_test(questions_about_what_a_plan_lacks_fail),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
