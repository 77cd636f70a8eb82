/*
 * ranges: one rank of a job with a hundred parameters, of which a step touches a few
 *
 * RANK N STRATEGY FORM STEPS TOUCHED...: numbers of the parameters that have a gradient; "4@1" has one on rank 1 alone. The
 * gradients of the others are NaNs, which would spread if they were read. Prints a line of JSON: parameters that changed,
 * bytes of those with a gradient, and the traffic.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weightd-train.h>

#define N_RANGES 100
#define SMALLEST 100 /* elements; each range has GROWTH more than the one before */
#define GROWTH 37

struct ranges {
	uint32_t rank, n;
	const char *strategy;
	enum weightd_step_form form;
	int n_steps;
	bool is_touched[N_RANGES]; /* some rank has a gradient */
	bool is_ours[N_RANGES];
	struct weightd *w;
	struct weightd_plan *plan;
	struct weightd_train *train;
	float *before[N_RANGES];
};

static void check(const char *call, int r)
{
	if (r >= 0)
		return;
	(void)fprintf(stderr, "ranges: %s: %s: %s\n", call, strerrorname_np(-r),
		      weightd_train_error());
	exit(1);
}

static uint64_t range_elements(uint32_t i)
{
	return SMALLEST + GROWTH * (uint64_t)i;
}

static void ranges_parse(struct ranges *s, int argc, char **argv)
{
	if (argc < 6) {
		(void)fprintf(stderr, "usage: ranges RANK N STRATEGY FORM STEPS TOUCHED...\n");
		exit(2);
	}
	s->rank = (uint32_t)strtoul(argv[1], NULL, 10);
	s->n = (uint32_t)strtoul(argv[2], NULL, 10);
	s->strategy = argv[3];
	s->form = strcmp(argv[4], "fused") == 0 ? WEIGHTD_STEP_FUSED : WEIGHTD_STEP_TWO_PHASE;
	s->n_steps = atoi(argv[5]);
	for (int i = 6; i < argc; i++) {
		char *at;
		unsigned long number = strtoul(argv[i], &at, 10) % N_RANGES;

		s->is_touched[number] = true;
		s->is_ours[number] = *at != '@' || strtoul(at + 1, NULL, 10) == s->rank;
	}
}

static void plan_make(struct ranges *s)
{
	static char names[N_RANGES][16];
	static uint64_t sizes[N_RANGES];
	struct weightd_train_tensor tensors[N_RANGES];
	struct weightd_group group = {
		.size = sizeof(group),
		.weight_decay = 0.1,
		.beta1 = 0.9,
		.beta2 = 0.999,
		.eps = 1e-8,
	};
	struct weightd_mesh_dim dim = {"dp", s->n};
	struct weightd_mesh *mesh;
	struct weightd_plan_options options = {
		.size = sizeof(options),
		.strategy = s->strategy,
		.optimizer = WEIGHTD_ADAMW,
		.groups = &group,
		.n_groups = 1,
		.form = s->form,
		.bucket_bytes = 1,
		.n_copies = strcmp(s->strategy, "shared") == 0,
	};

	for (uint32_t i = 0; i < N_RANGES; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "range.%" PRIu32, i);
		sizes[i] = range_elements(i);
		tensors[i] = (struct weightd_train_tensor){
			.size = sizeof(tensors[i]),
			.name = names[i],
			.shape = &sizes[i],
			.n_dims = 1,
			.dtype = WEIGHTD_F32,
			.role = WEIGHTD_PARAM,
		};
	}
	check("weightd_mesh_new", weightd_mesh_new(&dim, 1, &mesh));
	options.mesh = mesh;
	check("weightd_plan_new", weightd_plan_new(tensors, N_RANGES, &options, &s->plan));
	weightd_mesh_free(mesh);
}

static void ranges_open(struct ranges *s)
{
	struct weightd_train_options options = {.size = sizeof(options), .rank = s->rank};

	check("weightd_new", weightd_new(&s->w));
	check("weightd_connect", weightd_connect(s->w, NULL));
	plan_make(s);
	check("weightd_train_open", weightd_train_open(s->w, s->plan, &options, &s->train));
	for (uint32_t i = 0; i < N_RANGES; i++) {
		s->before[i] = calloc(range_elements(i), sizeof(float));
		if (!s->before[i])
			exit(2);
		for (uint64_t j = 0; j < range_elements(i); j++)
			s->before[i][j] = (float)(i + 1) + (float)j * 0x1p-10f;
		if (s->rank == 0)
			check("weightd_train_fill", weightd_train_fill(s->train, i, s->before[i]));
	}
	check("weightd_train_begin", weightd_train_begin(s->train));
}

static void step_run(struct ranges *s)
{
	double lr = 0.01;
	bool unused[N_RANGES];
	struct weightd_update u = {.size = sizeof(u), .lr = &lr, .unused = unused};

	for (uint32_t i = 0; i < N_RANGES; i++) {
		float *grad = weightd_train_grad(s->train, i);

		unused[i] = !s->is_ours[i];
		for (uint64_t j = 0; j < range_elements(i); j++)
			grad[j] = s->is_ours[i] ? (float)s->rank + 1 : s->is_touched[i] ? 0 : NAN;
		if (s->is_ours[i])
			check("weightd_train_ready", weightd_train_ready(s->train, i));
	}
	check("weightd_train_update", weightd_train_update(s->train, &u));
}

static void report(const struct ranges *s, const struct weightd_traffic *filled)
{
	struct weightd_traffic moved = {.size = sizeof(moved)};
	const char *separator = "";
	uint64_t size = 0;

	check("weightd_train_traffic", weightd_train_traffic(s->train, &moved));
	(void)printf("{\"changed\": [");
	for (uint32_t i = 0; i < N_RANGES; i++) {
		uint64_t n_bytes = range_elements(i) * sizeof(float);

		if (s->is_touched[i])
			size += (n_bytes + 63) / 64 * 64;
		if (memcmp(weightd_train_param(s->train, i), s->before[i], n_bytes) == 0)
			continue;
		(void)printf("%s%" PRIu32, separator, i);
		separator = ", ";
	}
	(void)printf("], \"size\": %" PRIu64 ", \"read\": %" PRIu64 ", \"written\": %" PRIu64
		     ", \"first\": %.17g}\n",
		     size, moved.read - filled->read, moved.written - filled->written,
		     (double)((const float *)weightd_train_param(s->train, 4))[0]);
}

int main(int argc, char **argv)
{
	struct ranges s = {0};
	struct weightd_traffic filled = {.size = sizeof(filled)};

	ranges_parse(&s, argc, argv);
	ranges_open(&s);
	check("weightd_train_traffic", weightd_train_traffic(s.train, &filled));
	for (int i = 0; i < s.n_steps; i++)
		step_run(&s);
	report(&s, &filled);
	check("weightd_train_close", weightd_train_close(s.train));
	weightd_train_free(s.train);
	weightd_plan_free(s.plan);
	for (uint32_t i = 0; i < N_RANGES; i++)
		free(s.before[i]);
	weightd_close(s.w);
	return 0;
}
