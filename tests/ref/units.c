#include "tests/ref/units.h"

/* Levels of units behind the root: 1, 2, ..., and again. */
static uint32_t level_of(const struct units *u, uint32_t unit)
{
	return unit && u->n_levels > 1 ? 1 + (unit - 1) % (u->n_levels - 1) : 0;
}

void units_init(struct units *u, const struct task *task, const struct model *m)
{
	uint32_t n_modules = 0;

	u->n_levels = task->levels;
	for (uint32_t i = 0; i < MODEL_MODULES; i++)
		u->of_module[i] = UNITS_NONE;
	for (uint32_t i = 0; i < WEIGHTD_LEVELS_MAX; i++)
		u->open[i] = UNITS_NONE;
	for (uint32_t i = 0; i < model_n_tensors(m); i++) {
		const struct model_tensor *t = model_tensor(m, i);

		if (t->is_buffer || task_is_frozen(task, t) || u->of_module[t->module] != UNITS_NONE)
			continue;
		u->of_module[t->module] = n_modules++ / task->unit;
		u->n = u->of_module[t->module] + 1;
	}
	for (uint32_t i = 0; i < u->n; i++)
		u->levels[i] = level_of(u, i);
}

/* The unit of a level that has `unit` in it, or is it. */
static uint32_t around(const struct units *u, uint32_t unit, uint32_t level)
{
	if (unit == UNITS_NONE || u->levels[unit] < level)
		return UNITS_NONE;
	while (u->levels[unit] > level)
		unit--;
	return unit;
}

int units_move(struct units *u, struct weightd_train *t, uint32_t unit, enum weightd_pass pass)
{
	int r = 0;

	for (uint32_t level = u->n_levels; !r && level-- > 0;) {
		if (u->open[level] == UNITS_NONE || u->open[level] == around(u, unit, level))
			continue;
		r = weightd_train_unit_close(t, u->open[level]);
		u->open[level] = UNITS_NONE;
	}
	for (uint32_t level = 0; !r && level < u->n_levels; level++) {
		uint32_t next = around(u, unit, level);

		if (next == UNITS_NONE || u->open[level] == next)
			continue;
		r = weightd_train_unit_open(t, next, pass);
		u->open[level] = next;
		if (!r)
			u->opened(u->arg, next);
	}
	return r;
}
