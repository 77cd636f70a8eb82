#include "server/sync/coordinator/nccl_epoch.h"

#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/sync/coordinator/broadcast_source.h"
#include "server/sync/coordinator/chain_epoch.h"
#include "server/sync/state/time_limit.h"
#include "server/sync/state/transport.h"

#define CHUNK_MAX (64 * MIB)
#define CHUNKS_OF_STALL                                                                            \
	8 /* at the rate that is allowed: a chunk on its way does not look like a stall */
#define BROKEN_MAX 2 /* rings that may break */

bool nccl_epoch_is_wanted(const struct agent *a, const struct group *g)
{
	return a->config->transport->is_nccl && strcmp(g->device, GROUP_DEVICE_DEFAULT) != 0;
}

uint64_t nccl_epoch_chunk(const struct agent *a, const struct broadcast *b)
{
	const double of_stall = (double)b->sync.max_rate * (double)a->config->stall_ns / 1e9;
	const double chunk = of_stall / CHUNKS_OF_STALL;

	if (!b->sync.max_rate || chunk >= (double)CHUNK_MAX)
		return CHUNK_MAX;
	return (uint64_t)chunk / TRANSPORT_CHUNK * TRANSPORT_CHUNK;
}

static bool is_any_corrupt(const struct sync *s)
{
	for (unsigned i = 0; i < s->n_members; i++)
		if (s->members[i].n_corrupt)
			return true;
	return false;
}

const struct transport *nccl_epoch_choose(const struct agent *a, const struct broadcast *b)
{
	if (sync_is_repair(&b->sync) || (!b->nccl.is_wanted && a->config->transport->is_nccl))
		return &transport_tcp;
	if (!b->nccl.is_wanted)
		return a->config->transport;
	if (b->nccl.n_broken >= BROKEN_MAX || is_any_corrupt(&b->sync) || !nccl_epoch_chunk(a, b))
		return &transport_tcp;
	return &transport_nccl;
}

/* Any of them may dial any other. */
static json_t *addresses_of(const struct agent *a, const struct broadcast *b)
{
	json_t *all = json_array();

	json_array_append_new(all, json_string(a->config->data_addresses[0]));
	for (const struct member *m = b->first; m; m = m->next)
		json_array_append_new(all, json_string(m->address));
	return all;
}

static json_t *nccl_epoch_place(const struct broadcast *b, unsigned rank, unsigned n,
				json_t *addresses)
{
	return json_pack("{s:i, s:i, s:s, s:I, s:O}", "rank", (int)rank, "n_ranks", (int)n, "hello",
			 b->engine_hello, "max_rate", (json_int_t)b->sync.max_rate, "addresses",
			 addresses);
}

void nccl_epoch_start(struct agent *a, struct broadcast *b)
{
	cleanup(json_freep) json_t *addresses = addresses_of(a, b);
	const unsigned n = (unsigned)json_array_size(addresses);
	json_t *ours = nccl_epoch_place(b, 0, n, addresses);
	unsigned rank = 0;

	for (struct member *m = b->first; m; m = m->next) {
		json_t *theirs = nccl_epoch_place(b, ++rank, n, addresses);

		json_object_set_new(theirs, "epoch", json_integer((json_int_t)b->sync.epoch));
		member_tell(a, &b->sync, m, "start", theirs);
	}
	json_object_set_new(ours, "op", json_string("start"));
	work_tell(a, &b->engine, ours, NULL, 0);
}

/* A member has its time for the engine; what it says of that has to arrive, too. */
uint64_t nccl_epoch_time_to_open(const struct agent *a, const struct broadcast *b)
{
	return transport_time_to_open(a, b->transport) + a->config->stall_ns +
	       (nccl_epoch_is_staged(b) ? time_limit_for(a, b->expected) : 0);
}

uint64_t nccl_epoch_patience(const struct agent *a, const struct broadcast *b)
{
	return transport_patience(a, b->transport) + a->config->stall_ns;
}

void nccl_epoch_stage(struct agent *a, struct broadcast *b)
{
	b->nccl.n_staging++;
	broadcast_source_stage(a, b, &b->ranges);
}

void nccl_epoch_on_staged(struct agent *a, struct broadcast *b, int *fds, unsigned n_fds)
{
	if (!b->nccl.n_staging || n_fds != 1) {
		broadcast_source_failed(a, b,
					"the source job answered something else than was asked");
		return;
	}
	(void)fd_close(b->nccl.staged_fd);
	b->nccl.staged_fd = take_fd(fds[0]);
	/* An epoch that was stopped meanwhile may have asked before this one. */
	if (--b->nccl.n_staging == 0 && b->sync.phase == PHASE_OPEN && !b->transport->is_nccl)
		chain_epoch_open_ours(a, b);
}
