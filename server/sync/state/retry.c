#include "server/sync/state/retry.h"

#define RETRY_MIN (SECOND / 5)
#define RETRY_MAX (10 * SECOND)
#define VAIN_MAX (16 * RETRY_VAIN_STEP) /* above it, all peers that were asked for it are halved */

void retry_later(struct agent *a, struct replica *rep)
{
	uint64_t wait = RETRY_MIN << (rep->n_retries < 6 ? rep->n_retries : 6);
	uint32_t part;

	a->env->random(a->userdata, &part, sizeof(part));
	wait = wait > RETRY_MAX ? RETRY_MAX : wait;
	rep->n_retries++;
	replica_set_asked(a, rep, NO_PEER);
	rep->retry_ns = agent_now(a) + wait / 2 + wait / 2 * (part % 1024) / 1024;
}

void retry_note_vain(struct agent *a, struct replica *rep, unsigned peer, unsigned weight)
{
	struct claim *c = replica_claim(a, peer, rep);

	if (!c)
		return;
	c->n_vain += weight;
	if (c->n_vain <= VAIN_MAX)
		return;
	/*
	 * Our own trouble is blamed on all peers in turn: with a bound that each of them reaches,
	 * they would be equal.
	 */
	for (unsigned i = 0; i < a->config->n_peers; i++) {
		struct claim *each = replica_claim(a, i, rep);

		if (each)
			each->n_vain /= 2;
	}
}

void retry_in_vain(struct agent *a, struct replica *rep, unsigned peer)
{
	retry_note_vain(a, rep, peer, RETRY_VAIN_STEP);
}

void retry_kept_word(struct agent *a, struct replica *rep, unsigned peer)
{
	struct claim *c = replica_claim(a, peer, rep);

	if (c)
		c->n_vain = 0;
}

bool retry_take_invitation(struct agent *a, struct replica *rep, unsigned peer)
{
	struct claim *c = replica_claim(a, peer, rep);
	bool is_invited = c && c->is_invited;

	if (c)
		c->is_invited = false;
	return is_invited;
}

uint64_t retry_patience(const struct agent *a)
{
	return 3 * a->config->prepare_ns + 60 * SECOND;
}
