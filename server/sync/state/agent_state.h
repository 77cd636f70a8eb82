/* The state of an agent, for its own files. The opening of agent.c says how they work together. */
#pragma once

#include "ipc/base/list.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/state/agent_config.h"
#include "server/sync/state/env.h"
#include "server/sync/state/metrics.h"
#include "server/sync/state/version_id.h"
#include "server/sync/state/work.h"

#define BUFFER_MAX 255 /* bytes of a buffer's name */
#define DEVICE_MAX 63 /* and of a device's */
#define MEMORY_NAME_MAX 15 /* and of a kind of memory: "host" */
#define REPLICAS_MAX 1024 /* rows in one message */
#define NO_PEER UINT_MAX

#define SECOND ((uint64_t)1000000000)

/* A version that a peer says it holds. */
struct claim {
	struct replica *replica; /* ours of the same buffer; a replica that is freed takes its claims along */
	const struct group *group; /* to which that was pushed: it may be in several with this one */
	struct version_id version_id; /* 0, 0 once it is down, or has lost it */
	struct version_id told; /* what we said that we hold; 0, 0: nothing, since it is up */
	struct version_id forked; /* of which the journal has that it says to have another version than we */
	uint8_t root[32];
	bool is_invited; /* was asked for it, and did neither bring it nor say that it cannot */
	unsigned n_vain; /* attempts to get it from there that came to nothing, weighed; kept while it is down */
};

struct peer {
	bool up;
	uint64_t since_ns;
	uint64_t rate; /* bytes/s into it, as last measured; 0: never */
	struct claim *claims;
	unsigned n_claims;
	unsigned n_asked; /* replicas that it is to bring */
};

struct agent_hooks;

struct agent {
	const struct agent_hooks *hooks;
	const struct env *env;
	void *userdata;
	const struct agent_config *config;
	struct peer *peers;
	bool *knows; /* per group and peer, this node as the last: see agent_knows() */
	struct list replicas;
	unsigned n_replicas;
	struct list syncs;
	struct list participants;
	struct list trace_spans; /* struct work: engines that weightd-trace is told of */
	struct list loopback; /* struct loopback of agent.c: what this node says to itself */
	struct list catch_ups; /* struct catch_up of repair.c: who waits for a repair */
	struct list idle_loans; /* struct loan: kept for the next repair, oldest first */
	uint64_t timer_ns; /* as the daemon has it; 0: none */
	struct work watch; /* of the local weightd */
	uint64_t watch_ns; /* when to start it again */
	unsigned n_watches; /* that came to nothing, in a row */
	bool look_again; /* somebody may have what we lack */
	struct metrics metrics;
	json_t *history; /* of what ended, oldest first: {"row":, "nodes":[rows]} */
	unsigned n_unsaved; /* of the last of them, that the commit log has not yet */
	uint64_t save_ns; /* when the commit log has to have all of this; 0: it has */
};

static inline uint64_t agent_now(const struct agent *a)
{
	return a->env->now_ns(a->userdata);
}

/*
 * Steals `message`, which may be NULL where memory ran out. What is for AGENT_SELF comes at the end of what happens now,
 * as if from a peer.
 */
int agent_send(struct agent *a, unsigned peer, json_t *message);
/* The same of a blob, behind the message that announces it; `fd` is borrowed. */
int agent_send_blob(struct agent *a, unsigned peer, const uint8_t hash[32], int fd, uint64_t size);
/* Steals `event`. */
void agent_event(struct agent *a, json_t *event);
void agent_log(struct agent *a, const char *level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/*
 * The same of something in particular, which the journal has in fields: {what, sync, buffer, term, number, peer, phase}, of
 * which each may be missing; log_fields.h has what "what" may be. Steals `about`.
 */
void agent_log_of(struct agent *a, json_t *about, const char *level, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
void agent_hang_up(struct agent *a, unsigned peer, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void agent_new_id(struct agent *a, char ret[SYNC_ID_SIZE]);
const char *agent_peer_name(const struct agent *a, unsigned peer_or_self);
/* NO_PEER: not configured; AGENT_SELF is NO_PEER, too, which callers tell apart by the name. */
unsigned agent_peer_number(const struct agent *a, const char *name);

/*
 * Returns whether it is a member or a publisher of the group: who may know what the group has, and
 * bring it.
 */
bool agent_knows(const struct agent *a, const struct group *g, unsigned peer_or_self);
