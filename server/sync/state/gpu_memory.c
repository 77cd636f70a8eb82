#include "server/sync/state/gpu_memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "server/sync/base/json_fields.h"

int gpu_memory_read(const json_t *said, struct gpu_memory *ret)
{
	struct gpu_memory g = {.gpu = ""};
	const char *memory, *gpu;

	if (field_string(said, "memory", MEMORY_NAME_MAX, &memory) < 0)
		return -EBADMSG;
	if (strcmp(memory, "host") == 0) {
		*ret = g;
		return 0;
	}
	if (strcmp(memory, "cuda") != 0 || field_string(said, "gpu", DEVICE_MAX, &gpu) < 0 ||
	    !gpu[0] || field_number(said, "map_size", INT64_MAX, &g.map_size) < 0 ||
	    field_number(said, "nccl", INT32_MAX, &g.nccl) < 0)
		return -EBADMSG;
	(void)snprintf(g.gpu, sizeof(g.gpu), "%s", gpu);
	*ret = g;
	return 0;
}

void gpu_memory_tell(const struct gpu_memory *g, json_t *order)
{
	if (!g->gpu[0])
		return;
	/* If memory ran out here, the engine refuses the incomplete order. */
	(void)json_object_set_new(order, "memory", json_string("cuda"));
	(void)json_object_set_new(order, "gpu", json_string(g->gpu));
	(void)json_object_set_new(order, "map_size", json_integer((json_int_t)g->map_size));
}
