/*
 * The state of an agent, for its own files. The opening of agent.c explains how they work together.
 */
#pragma once

#include "ipc/base/list.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/state/agent_config.h"
#include "server/sync/state/env.h"
#include "server/sync/state/metrics.h"
#include "server/sync/state/version_id.h"
#include "server/sync/state/work.h"

#define BUFFER_MAX 255 /* bytes of a buffer's name */
#define DEVICE_MAX 63 /* bytes of a device's name */
#define MEMORY_NAME_MAX 15 /* bytes of the name of a kind of memory: "host" */
#define REPLICAS_MAX 1024 /* rows in one message */
#define NO_PEER UINT_MAX

#define SECOND ((uint64_t)1000000000)

/* An announcement of a replica by a peer. */
struct claim {
	/* Our replica of the same buffer; freeing a replica removes its claims. */
	struct replica *replica;
	/* The group that it was pushed to: the peer may share several with this node. */
	const struct group *group;
	struct version_id version_id; /* 0, 0 once it is down, or has lost it */
	struct version_id told; /* our version, as sent to it; 0, 0: none since it is up */
	struct version_id forked; /* the version for which the journal has a fork with this peer */
	uint8_t root[32];
	/* It was asked for the version, and has neither delivered nor refused it. */
	bool is_invited;
	unsigned n_vain; /* failed attempts to get it from there, weighted; kept while it is down */
};

struct peer {
	bool up;
	uint64_t since_ns;
	uint64_t rate; /* bytes/s into it, as last measured; 0: never */
	struct claim *claims;
	unsigned n_claims;
	unsigned n_asked; /* replicas that it is to deliver */
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
	struct list trace_spans; /* struct work: engines registered with weightd-trace */
	struct list loopback; /* struct loopback: messages of this node to itself */
	struct list catch_ups; /* struct catch_up of repair.c: nodes that wait for a repair */
	struct list idle_loans; /* struct loan: kept for the next repair, oldest first */
	uint64_t timer_ns; /* as the daemon has it; 0: none */
	struct work watch; /* the local weightd's */
	uint64_t watch_ns; /* time of the next start */
	unsigned n_watches; /* consecutive failures */
	bool look_again; /* a peer may have a version that this node lacks */
	struct metrics metrics;
	json_t *history; /* ended syncs, oldest first: {"row":, "nodes":[rows]} */
	unsigned n_unsaved; /* the last rows, which are not in the commit log yet */
	uint64_t save_ns; /* deadline to write all of this to the commit log; 0: it is written */
};

static inline uint64_t agent_now(const struct agent *a)
{
	return a->env->now_ns(a->userdata);
}

/*
 * Steals `message`, which may be NULL if memory ran out. A message for AGENT_SELF is delivered at
 * the end of the current event, as if from a peer.
 */
int agent_send(struct agent *a, unsigned peer, json_t *message);
/* The same for a blob, after the message that announces it; `fd` is borrowed. */
int agent_send_blob(struct agent *a, unsigned peer, const uint8_t hash[32], int fd, uint64_t size);
/* Steals `event`. */
void agent_event(struct agent *a, json_t *event);
void agent_log(struct agent *a, const char *level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/*
 * The same with journal fields: {what, sync, buffer, term, number, peer, phase}, each optional;
 * log_fields.h has the values of "what". Steals `about`.
 */
void agent_log_of(struct agent *a, json_t *about, const char *level, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
void agent_hang_up(struct agent *a, unsigned peer, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void agent_new_id(struct agent *a, char ret[SYNC_ID_SIZE]);
const char *agent_peer_name(const struct agent *a, unsigned peer_or_self);
/* NO_PEER: not configured. AGENT_SELF is NO_PEER, too; callers distinguish them by the name. */
unsigned agent_peer_number(const struct agent *a, const char *name);

/* It is a member or a publisher of the group: it may get the group's versions, and deliver them. */
bool agent_knows(const struct agent *a, const struct group *g, unsigned peer_or_self);
