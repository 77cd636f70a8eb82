#include "server/sync/state/metrics.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/sync/state/agent_state.h"

static const char *const ROLES[N_ROLES] = {
	[ROLE_PUBLISHER] = "publisher",
	[ROLE_MEMBER] = "member",
};

static const char *const KINDS[N_KINDS] = {
	[KIND_PUSH] = "push",
	[KIND_REPAIR] = "repair",
	[KIND_AVERAGE] = "average",
	[KIND_RESHARD] = "reshard",
};
static const char *const RESULTS[N_RESULTS] = {
	[RESULT_COMMITTED] = "committed",
	[RESULT_FAILED] = "failed",
	[RESULT_PLANNED] = "planned",
};

int metrics_init(struct agent *a)
{
	a->metrics.started_ns = a->env->time_ns(a->userdata);
	a->metrics.links = calloc(a->config->n_peers + 1, sizeof(*a->metrics.links));
	for (unsigned i = 0; a->metrics.links && i <= a->config->n_peers; i++)
		a->metrics.links[i].sent_traced = a->metrics.links[i].received_traced =
			BYTE_COUNT_UNKNOWN;
	return a->metrics.links ? 0 : -ENOMEM;
}

void metrics_deinit(struct agent *a)
{
	free(a->metrics.links);
}

void metrics_on_end(struct agent *a, enum metrics_role role, enum sync_kind kind, const char *state)
{
	unsigned result = RESULT_COMMITTED;

	while (result < N_RESULTS - 1 && strcmp(RESULTS[result], state) != 0)
		result++;
	a->metrics.n_ended[role][kind][result]++;
}

const char *metrics_role(enum metrics_role role)
{
	return ROLES[role];
}

const char *metrics_kind(enum sync_kind kind)
{
	return KINDS[kind];
}

const char *metrics_result(enum metrics_result result)
{
	return RESULTS[result];
}

/* A chain may contain members that are no peers of this node. */
static struct metrics_links *links_of(struct agent *a, const char *name)
{
	unsigned peer = agent_peer_number(a, name);

	return &a->metrics.links[peer == NO_PEER ? a->config->n_peers : peer];
}

void metrics_on_sent(struct agent *a, const char *to, uint64_t planned, const json_t *out)
{
	byte_count_add(&links_of(a, to)->sent, planned, out);
}

void metrics_on_received(struct agent *a, const char *from, uint64_t planned, const json_t *in)
{
	byte_count_add(&links_of(a, from)->received, planned, in);
}

static void add_traced(uint64_t *sum, uint64_t n)
{
	*sum = *sum == BYTE_COUNT_UNKNOWN ? n : *sum + n;
}

void metrics_on_sent_traced(struct agent *a, const char *to, uint64_t n_bytes)
{
	add_traced(&links_of(a, to)->sent_traced, n_bytes);
}

void metrics_on_received_traced(struct agent *a, const char *from, uint64_t n_bytes)
{
	add_traced(&links_of(a, from)->received_traced, n_bytes);
}
