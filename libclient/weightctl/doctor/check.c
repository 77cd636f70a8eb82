#include "libclient/weightctl/doctor/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void checks_add(struct checks *c, const char *name, enum check_state state, const char *way,
		const char *found, ...)
{
	struct check *check;
	va_list args;

	c->list = cli_grown(c->list, c->n, sizeof(*c->list));
	check = &c->list[c->n++];
	*check = (struct check){.name = name, .state = state};
	va_start(args, found);
	if (vasprintf(&check->found, found, args) < 0)
		cli_out_of_memory();
	va_end(args);
	if (way && !(check->way = strdup(way)))
		cli_out_of_memory();
}

void checks_deinit(struct checks *c)
{
	for (size_t i = 0; i < c->n; i++) {
		free(c->list[i].found);
		free(c->list[i].way);
	}
	free(c->list);
	*c = (struct checks){};
}

const char *check_state_name(enum check_state state)
{
	static const char *const names[] = {
		[CHECK_OK] = "ok",
		[CHECK_NOTE] = "note",
		[CHECK_WARNING] = "warning",
		[CHECK_ERROR] = "error",
	};

	return names[state];
}

enum check_state checks_worst(const struct checks *c)
{
	enum check_state worst = CHECK_OK;

	for (size_t i = 0; i < c->n; i++)
		if (c->list[i].state > worst)
			worst = c->list[i].state;
	return worst;
}
