#include "server/sync/state/data_way.h"

#include <errno.h>
#include <stdio.h>

#include "server/sync/base/json_fields.h"

int data_way_read(const json_t *from, struct data_way *ret)
{
	const char *address;

	if (field_string(from, "address", sizeof(ret->address) - 1, &address) < 0 ||
	    field_number(from, "port", UINT16_MAX, &ret->port) < 0 || !ret->port)
		return -EBADMSG;
	(void)snprintf(ret->address, sizeof(ret->address), "%s", address);
	return 0;
}

bool data_ways_are_sound(const struct agent *a, const json_t *next)
{
	json_t *all;
	const json_t *way;
	size_t i;
	struct data_way ignored;
	uint64_t from;

	if (!json_object_get(next, "stripes"))
		return true;
	if (field_array(next, "stripes", STRIPES_MAX, &all) < 0 || !json_array_size(all))
		return false;
	json_array_foreach(all, i,
			   way) if (data_way_read(way, &ignored) < 0 ||
				    field_number(way, "from", a->config->n_data_addresses - 1,
						 &from) < 0) return false;
	return true;
}
