#include "server/sync/engine/mean_type.h"

#include <string.h>

static const struct {
	const char *name;
	size_t size;
} types[MEAN_TYPES] = {
	[MEAN_F32] = {"F32", 4},
	[MEAN_BF16] = {"BF16", 2},
	[MEAN_F16] = {"F16", 2},
};

enum mean_type mean_type_find(const char *name)
{
	enum mean_type type = 0;

	while (type < MEAN_TYPES && strcmp(types[type].name, name) != 0)
		type++;
	return type;
}

const char *mean_type_name(enum mean_type type)
{
	return types[type].name;
}

size_t mean_size(enum mean_type type)
{
	return types[type].size;
}
