#include "server/sync/state/transport.h"

#include <string.h>

#include "ipc/base/num.h"
#include "server/sync/base/planned_bytes.h"
#include "server/sync/state/agent_state.h"
#include "server/sync/state/gpu_memory.h"

static uint64_t planned_tcp(const struct ranges *ranges, unsigned n_stripes)
{
	return tcp_planned_striped(ranges_total(ranges), TRANSPORT_CHUNK, n_stripes);
}

static uint64_t planned_gloo(const struct ranges *ranges, unsigned n_stripes)
{
	(void)n_stripes;
	return gloo_planned_stream(ranges, TRANSPORT_CHUNK);
}

/* NCCL's own overhead is unknown. */
static uint64_t planned_nccl(const struct ranges *ranges, unsigned n_stripes)
{
	(void)n_stripes;
	return ranges_total(ranges);
}

const struct transport transport_tcp = {
	.name = "tcp",
	.job = JOB_TCP,
	.has_tls = true,
	.has_stripes = true,
	.n_stalls = 2,
	.planned = planned_tcp,
};

const struct transport transport_gloo = {
	.name = "gloo",
	.job = JOB_GLOO,
	.has_hello = true,
	.n_stalls = 2,
	.planned = planned_gloo,
};

/* It forms its communicator, greets, and fills the ring: each may take as long as a byte. */
const struct transport transport_nccl = {
	.name = "nccl",
	.job = JOB_NCCL,
	.is_nccl = true,
	.n_stalls = 4,
	.planned = planned_nccl,
};

const struct transport *transport_find(const char *name)
{
	static const struct transport *const all[] = {&transport_tcp, &transport_gloo,
						      &transport_nccl};

	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (strcmp(all[i]->name, name) == 0)
			return all[i];
	return NULL;
}

json_t *transport_open(const struct agent *a, const struct carriage *c)
{
	const struct agent_config *config = a->config;
	json_t *addresses = config->n_data_addresses > 1 ? json_array() : NULL, *order;

	for (unsigned i = 0; addresses && i < config->n_data_addresses; i++)
		json_array_append_new(addresses, json_string(config->data_addresses[i]));
	order = json_pack("{s:s, s:s, s:s?, s:s, s:I, s:s, s:o*, s:s?, s:I, s:o, s:I, s:I, s:s}",
			  "op", "open", "node", config->name, "from", c->from, "sync", c->sync,
			  "epoch", (json_int_t)c->epoch, "address", config->data_addresses[0],
			  "addresses", addresses, "token", c->token, "n_bytes",
			  (json_int_t)c->n_bytes, "ranges", ranges_to_json(c->ranges), "chunk",
			  (json_int_t)(c->transport->is_nccl ? c->chunk : TRANSPORT_CHUNK),
			  "stall_ms", (json_int_t)(config->stall_ns / 1000000), "security",
			  config->tls ? "tls" : "none");
	if (c->data_offset)
		json_object_set_new(order, "data_offset", json_integer((json_int_t)c->data_offset));
	if (c->transport->is_nccl)
		gpu_memory_tell(c->memory, order);
	return order;
}

uint64_t transport_time_to_open(const struct agent *a, const struct transport *t)
{
	/* A driver and NCCL may take as long as their engine allows. */
	return a->config->prepare_ns + (t->is_nccl ? 5 * a->config->stall_ns : 0);
}

uint64_t transport_patience(const struct agent *a, const struct transport *t)
{
	return t->n_stalls * a->config->stall_ns;
}
