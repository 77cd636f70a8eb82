#include "server/sync/engine/nodes.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "server/sync/base/json_fields.h"

static bool has_name(const struct nodes *n, const char *name)
{
	for (unsigned i = 0; i < n->n; i++)
		if (!strcmp(n->at[i].name, name))
			return true;
	return false;
}

int nodes_read(struct nodes *ret, const struct engine_order *o, const json_t *order,
	       char why[ENGINE_ORDER_WHY_SIZE])
{
	json_t *nodes, *node;
	size_t rank;

	if (o->address.size == 0)
		return engine_order_wrong(why, "`address` is missing");
	if (field_array(order, "nodes", ENGINE_NODES_MAX, &nodes) < 0)
		return engine_order_wrong(why, "`nodes` must be an array of at most 64");
	ret->n = 0;
	ret->rank = ENGINE_NODES_MAX;
	json_array_foreach(nodes, rank, node)
	{
		struct node *one = &ret->at[rank];
		const char *name;

		if (field_string(node, "node", PREAMBLE_NAME_SIZE - 1, &name) < 0 ||
		    !preamble_is_name(name) ||
		    engine_order_read_address(node, "address", 0, &one->address) < 0)
			return engine_order_wrong(
				why, "each of `nodes` must have a `node` and an `address`");
		if (has_name(ret, name))
			return engine_order_wrong(why, "one of `nodes` is there twice");
		(void)snprintf(one->name, sizeof(one->name), "%s", name);
		if (!strcmp(name, o->node))
			ret->rank = ret->n;
		ret->n++;
	}
	return ret->rank < ret->n ? 0 : engine_order_wrong(why, "`node` must be one of `nodes`");
}
