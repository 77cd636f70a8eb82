/*
 * Parses any bytes as sync.conf: accepted values are within their bounds, and every named node
 * exists.
 */
#include <string.h>

#include "server/sync/config.h"
#include "tests/fuzz/fuzz.h"

static bool is_node(const struct config *c, const char *name)
{
	bool is = !strcmp(c->name, name);

	for (unsigned i = 0; i < c->n_peers; i++)
		is |= !strcmp(c->peers[i].name, name);
	return is;
}

static void check_group(const struct config *c, const struct group *g)
{
	MUST(strlen(g->name) <= CONFIG_NAME_MAX && g->buffers[0] && g->device[0]);
	MUST(g->n_members > 0 && g->n_members <= MEMBERS_MAX && g->n_publishers > 0);
	MUST(g->policy <= POLICY_EACH && g->ownership.mode <= 0666);
	for (unsigned i = 0; i < g->n_members; i++)
		MUST(is_node(c, g->members[i]));
	for (unsigned i = 0; i < g->n_publishers; i++)
		MUST(is_node(c, g->publishers[i]));
}

static void check_accepted(const struct config *c)
{
	MUST(c->name && c->listen && c->state && c->socket && c->ca && c->certificate && c->key);
	MUST(c->n_data_addresses >= 1 && c->n_data_addresses <= STRIPES_MAX);
	MUST(c->prepare_ns >= 100000000 && c->stall_ns >= 100000000 && c->heartbeat_ns >= 100000000);
	MUST(c->max_bytes <= INT64_MAX);
	for (unsigned i = 0; i < c->n_peers; i++)
		MUST(strcmp(c->peers[i].name, c->name) != 0 && c->peers[i].address);
	for (unsigned i = 0; i < c->n_groups; i++)
		check_group(c, &c->groups[i]);
}

FUZZ_CONFIG(check_accepted)
