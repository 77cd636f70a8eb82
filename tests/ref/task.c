#include "tests/ref/task.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weightd-train.h>

#include "tests/ref/data.h"

#define WARM_UP 10 /* steps */

enum type {
	FLAG,
	U32,
	U64,
	INT,
	REAL,
	TEXT
};

static const struct option {
	const char *name;
	enum type type;
	size_t at;
} options[] = {
#define OPTION(name, type, member)                                                                 \
	{                                                                                          \
		name, type, offsetof(struct task, member)                                          \
	}
	OPTION("mlp", FLAG, model.without_attention),
	OPTION("rms-norm", FLAG, model.rms_norm),
	OPTION("vocab", U32, model.vocab),
	OPTION("length", U32, model.length),
	OPTION("width", U32, model.width),
	OPTION("heads", U32, model.heads),
	OPTION("hidden", U32, model.hidden),
	OPTION("classes", U32, model.classes),
	OPTION("ballast", U32, model.ballast),
	OPTION("dropout", REAL, model.dropout),
	OPTION("seed", U64, seed),
	OPTION("steps", U64, steps),
	OPTION("n", U32, n),
	OPTION("batch", U32, batch),
	OPTION("last-batch", U32, last_batch),
	OPTION("no-sync", U32, no_sync),
	OPTION("by-sample", FLAG, by_sample),
	OPTION("groups", U32, groups),
	OPTION("optimizer", TEXT, optimizer),
	OPTION("lr", REAL, lr),
	OPTION("weight-decay", REAL, weight_decay),
	OPTION("beta1", REAL, beta1),
	OPTION("beta2", REAL, beta2),
	OPTION("eps", REAL, eps),
	OPTION("momentum", REAL, momentum),
	OPTION("nesterov", FLAG, nesterov),
	OPTION("max-norm", REAL, max_norm),
	OPTION("nan-at", TEXT, nan_at),
	OPTION("unused-layer", FLAG, unused_layer),
	OPTION("frozen", TEXT, frozen),
	OPTION("rest", FLAG, rest),
	OPTION("losses", TEXT, losses),
	OPTION("dump", TEXT, dump),
	OPTION("create", TEXT, create),
	OPTION("linger", U64, linger_ms),
	OPTION("strategy", TEXT, strategy),
	OPTION("form", TEXT, form),
	OPTION("on-death", TEXT, on_death),
	OPTION("rank", U32, rank),
	OPTION("nodes", U32, nodes),
	OPTION("node", U32, node),
	OPTION("master", TEXT, master),
	OPTION("port", U32, port),
	OPTION("replicas", U32, replicas),
	OPTION("sync-every", U32, sync_every),
	OPTION("bucket-bytes", U64, bucket_bytes),
	OPTION("staleness", U32, staleness),
	OPTION("copies", U32, copies),
	OPTION("state-size", U32, state_size),
	OPTION("overlap", FLAG, overlap),
	OPTION("without-journal", FLAG, without_journal),
	OPTION("weights", FLAG, weights),
	OPTION("unit", U32, unit),
	OPTION("levels", U32, levels),
	OPTION("keeps-units", FLAG, keeps_units),
	OPTION("without-prefetch", FLAG, without_prefetch),
	OPTION("evaluate-every", U64, evaluate_every),
	OPTION("evaluate-behind", FLAG, evaluate_behind),
	OPTION("disorder", TEXT, disorder),
	OPTION("deadline", INT, deadline_ms),
	OPTION("keep-on", FLAG, keep_on),
	OPTION("begins-late", FLAG, begins_late),
	OPTION("stop-after", U64, stop_after),
	OPTION("hold-at", U64, hold_at),
	OPTION("hold-within", TEXT, hold_within),
	OPTION("hold-before", TEXT, hold_before),
	OPTION("dtype", TEXT, dtype),
	OPTION("grad-dtype", TEXT, grad_dtype),
	OPTION("scale", REAL, scale),
	OPTION("scale-interval", U32, scale_interval),
	OPTION("small", REAL, small),
	OPTION("inf-at", TEXT, inf_at),
	OPTION("publish", TEXT, publish),
	OPTION("release", TEXT, release),
	OPTION("progress", TEXT, progress),
	OPTION("report", TEXT, report),
	OPTION("save", TEXT, save),
	OPTION("save-every", U64, save_every),
	OPTION("save-from", U64, save_from),
	OPTION("hold-save", U64, hold_save),
	OPTION("save-wait", FLAG, save_wait),
	OPTION("keep", U32, keep),
	OPTION("load", TEXT, load),
#undef OPTION
};

/* Returns false for a value that is not of the option's type. */
static bool set(const struct option *o, struct task *t, const char *value)
{
	void *to = (char *)t + o->at;
	unsigned long long number;
	char *end = NULL;

	if (o->type == FLAG) {
		*(bool *)to = true;
		return true;
	}
	if (o->type == TEXT) {
		*(const char **)to = value;
		return true;
	}
	errno = 0;
	if (o->type == REAL) {
		*(double *)to = strtod(value, &end);
		return !errno && end != value && !*end;
	}
	if (o->type == INT) {
		*(int *)to = (int)strtol(value, &end, 10);
		return !errno && end != value && !*end;
	}
	number = strtoull(value, &end, 10);
	if (errno || end == value || *end || (o->type == U32 && number > UINT32_MAX))
		return false;
	if (o->type == U32)
		*(uint32_t *)to = (uint32_t)number;
	else
		*(uint64_t *)to = number;
	return true;
}

__attribute__((noreturn)) static void refuse(const char *program, const char *what, const char *word)
{
	(void)fprintf(stderr, "%s: %s '%s'\n", program, what, word);
	exit(2);
}

static const struct option *find(const char *word)
{
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		if (strncmp(word, "--", 2) == 0 && strcmp(word + 2, options[i].name) == 0)
			return &options[i];
	return NULL;
}

void task_parse(int argc, char **argv, const char *program, struct task *ret)
{
	struct task t = {
		.model = {.vocab = 37, .length = 7, .width = 12, .heads = 3, .hidden = 29, .classes = 11},
		.seed = 1,
		.steps = 60,
		.n = 1,
		.batch = 12,
		.no_sync = 1,
		.groups = TASK_GROUPS,
		.optimizer = "adamw",
		.lr = 1e-2,
		.weight_decay = 0.1,
		.beta1 = 0.9,
		.beta2 = 0.999,
		.eps = 1e-8,
		.momentum = 0.9,
		.strategy = "shared",
		.form = "auto",
		.on_death = "wait",
		.dtype = "f32",
		.scale_interval = 2000,
		.small = 1,
		.rank = UINT32_MAX,
		.nodes = 1,
		.node = UINT32_MAX,
		.save_every = 1,
		.unit = 3,
		.levels = 2,
	};

	for (int i = 1; i < argc; i++) {
		const struct option *o = find(argv[i]);

		if (!o)
			refuse(program, "unknown option", argv[i]);
		if (o->type != FLAG && i + 1 == argc)
			refuse(program, "no value for", argv[i]);
		if (!set(o, &t, o->type == FLAG ? NULL : argv[++i]))
			refuse(program, "bad value", argv[i]);
	}
	t.model.has_side = t.unused_layer;
	if (!t.n || !t.nodes || t.n % t.nodes || t.port > UINT16_MAX || !t.save_every ||
	    !t.no_sync || !t.groups || t.groups > TASK_GROUPS || t.model.length > DATA_LENGTH_MAX ||
	    (t.replicas && t.n % t.replicas) || !t.unit || !t.levels ||
	    t.levels > WEIGHTD_LEVELS_MAX || !t.model.heads || t.model.width % t.model.heads)
		refuse(program, "impossible combination of", "options");
	*ret = t;
}

void task_rates(const struct task *t, uint64_t step, double ret[TASK_GROUPS])
{
	double warm = step < WARM_UP ? (double)step / WARM_UP : 1;

	ret[0] = t->lr * warm;
	ret[1] = t->lr * warm / 2;
}

uint32_t task_local(const struct task *t)
{
	return t->n / t->nodes;
}

uint32_t task_group(const struct task *t, const struct model_tensor *tensor)
{
	return tensor->decays ? 0 : t->groups - 1;
}

uint32_t task_batch(const struct task *t, uint64_t step)
{
	return step == t->steps && t->last_batch ? t->last_batch : t->batch;
}

bool task_rests(const struct task *t, const struct model_tensor *tensor, uint64_t step)
{
	return t->rest && step % 2 && strcmp(tensor->name, "ballast.weight") == 0;
}

bool task_is_at(const char *at, uint64_t step, uint32_t rank)
{
	unsigned long long at_step;
	unsigned int at_rank;

	return at && sscanf(at, "%llu:%u", &at_step, &at_rank) == 2 && at_step == step &&
	       (rank == UINT32_MAX || at_rank == rank);
}

bool task_holds(const struct task *t, uint64_t step)
{
	const char *at = t->hold_before;

	while (at && strtoull(at, NULL, 10) != step)
		at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL;
	return at;
}

bool task_is_frozen(const struct task *t, const struct model_tensor *tensor)
{
	return t->frozen && strcmp(t->frozen, tensor->name) == 0;
}
