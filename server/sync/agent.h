/*
 * The agent
 *
 * What one node knows of the others and does with them: pushes versions to the members of a group, takes
 * versions that others push, and catches up with what it missed. A state machine: all that it needs of the
 * environment is struct env, all that happens comes through agent_on_...() there, and nothing here blocks.
 *
 * Events (env.event), each an object:
 *
 *	{"event":"phase", "sync", "kind":"push"|"repair"|"average"|"reshard", "buffer", "group",
 *	 "role":"publisher"|"member",
 *	 "node", "phase", "epoch", "done", "expected", "rate", "why"|null}
 *		a node of a sync that we coordinate, or we as a member of one, went a step on; phases are those of
 *		agent_status()
 *	{"event":"plan", "sync", "kind", "buffer", "group", "role":"publisher", "term", "number", "epoch",
 *	 "schedule":"chain"|"ring"|"all-to-all"|"shards", "engine", "by", "size", "changed", "total", "planned",
 *	 "takes_ns"|null, "n_links",
 *	 "links":[{"from", "to", "stripes", "bytes", "planned"}]}
 *		before an epoch, and once before those of a dry run: of the version's `size` bytes `changed` are missing
 *		somewhere, or a patch has as many, and go over each link;
 *		`total` over all of them, `planned` with what engines add, see byte_count.h; about how long, where rates were measured
 *		or limited. Several interfaces carry a stripe of a link's bytes each. Links of a chain come from this
 *		node on, in one event or, where they are many, in several. Of an average, `changed` is what has a mean,
 *		the links carry terms and results, and there is no `engine`, no `by` and no `stripes`. Of a reshard, `size`
 *		is that of all results, of which `changed` is written and `total` comes from other nodes; the same lack
 *	{"event":"end", "sync", "kind", "buffer", "group", "role", "state":"committed"|"failed"|"planned", "term", "number",
 *	 "size"|null, "changed"|null (bytes of leaves that somebody lacked), "by":"full"|"leaves"|"patch"|null,
 *	 "patch"|null (its bytes), "differ"|null (bytes of elements that it changes),
 *	 "phase"|null (in which it failed), "planned"|null, "payload"|null, "bytes"|null, "kernel"|null (see byte_count.h), "broken"
 *	 (epochs, whose bytes are in none of these), "traced"|null, "untraced" (see byte_count.h; both change later, too), "started_ns", "ended_ns",
 *	 "nodes":[{"node", "state", "version"|null, "why"|null}],
 *	 "error": a sentence, on failure}
 *		the last one of a sync; a node's state is "committed", "failed", "absent",
 *		"unknown" or "planned"
 *		on the control socket {"event":"nodes", "sync", "nodes":[...]} comes before, where there are many
 *	{"event":"log", "level":"error"|"warning"|"info"|"debug", "text"}
 *		a sentence for the journal; with "what", a kind of log_fields.h, and what it is about
 */
#pragma once

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/cleanup.h"
#include "server/sync/base/stripes.h"
#include "server/sync/state/env.h"
#include "server/sync/state/ownership.h"

#define NODE_MAX 63 /* bytes of a node's name */
#define GROUP_MAX 63 /* and of a group's */
#define SYNC_ID_SIZE 17 /* 16 hexadecimal digits and a NUL */
#define MEMBERS_MAX 1024 /* of a group */
#define AGENT_SELF UINT_MAX /* where a peer is asked for: this node */

enum policy {
	POLICY_ALL, /* every member has it, or none does */
	POLICY_QUORUM, /* more than half of the members, the publisher among them */
	POLICY_EACH, /* whoever verified it serves it */
};

#define GROUP_DEVICE_DEFAULT "host"

#define REPAIRS_SERVED_MAX 8 /* at a time: each has two processes */
#define REPAIR_RATE_MIN                                                                            \
	((uint64_t)REPAIRS_SERVED_MAX << 16) /* no share of it is too little for an engine */

struct transport;

struct group {
	const char *name;
	const char *const *members;
	unsigned n_members;
	const char *const *publishers; /* who may push */
	unsigned n_publishers;
	const char *buffers; /* a pattern of fnmatch() */
	enum policy policy;
	const char *device; /* where its buffers are on this node, as weightd.h names devices */
	struct ownership ownership; /* of what it receives */
};

/* Lives at least as long as the agent. */
struct agent_config {
	const char *name; /* of this node */
	const char *const *peers; /* names: the index is the peer's number in struct env */
	unsigned n_peers;
	const char *const *peer_addresses; /* as configured, for agent_status() and sentences */
	const struct group *groups;
	unsigned n_groups;
	const char *weightd_socket; /* NULL: where libweightd finds it */
	const char *data_addresses[STRIPES_MAX]; /* where our engines listen; one per interface */
	unsigned n_data_addresses;
	bool tls; /* of engines; the daemon adds the descriptors to what an engine's open has */
	const struct transport *
		transport; /* of what we push; what we repair goes over tcp, what others do, as they say */
	bool patches; /* what we pushed last is kept in memory, so that the next one travels as a patch of it */
	uint64_t prepare_ns; /* to answer PREPARE, and for any other answer that moves no bytes */
	uint64_t stall_ns; /* without a byte, or without an answer of a connected peer */
	uint64_t max_bytes; /* of one version; 0: as many as weightd admits */
	uint64_t repair_rate; /* bytes/s of all repairs that this node serves; 0: as many as there can be */
};

/* -ENOMEM. */
int agent_new(const struct env *env, void *userdata, const struct agent_config *config,
	      struct agent **ret);
/* Ends its jobs. NULL is fine. */
struct agent *agent_free(struct agent *a);
CLEANUP_POINTER(struct agent, agent_free);

/*
 * Once, before anything else happens: an array of what env.save() was given since all of it, or NULL where there is no
 * record yet.
 * -EBADMSG with a sentence: it is none of ours, and whoever repairs it by hand should look at it first.
 */
int agent_load(struct agent *a, const json_t *commit_log, char why[WHY_SIZE]);

/* Writes what may be written late, what the last seconds were, now: before the end. -errno of env.save(). */
int agent_flush(struct agent *a);

/* --- What operators ask ------------------------------------------------------------------------- */

/*
 * The group of a buffer: the one of that name, or, where `name` is NULL, the only one whose pattern fits.
 * NULL with a sentence.
 */
const struct group *agent_group(const struct agent *a, const char *buffer, const char *name,
				char why[WHY_SIZE]);

/*
 * Pushes {buffer, group|null, version, policy|null, max_rate} and returns at once: the outcome is the event
 * "end" of the sync. With a sentence: -EBADMSG a field is wrong, -ENOENT no such group, -EPERM this node is no
 * publisher of the group, -EBUSY there is a sync of the buffer already, or too many of others, -ENOSPC this node
 * could not write what it commits, -ENOMEM, or what starting a job gave.
 */
int agent_push(struct agent *a, const json_t *request, char ret_sync[SYNC_ID_SIZE],
	       char why[WHY_SIZE]);

/*
 * The same up to PREPARE, which is for real, and the event "plan"; then all is given back, and it ends as
 * "planned". It fails as the push would, and where that would end another sync: it ends none.
 */
int agent_plan(struct agent *a, const json_t *request, char ret_sync[SYNC_ID_SIZE],
	       char why[WHY_SIZE]);

/*
 * Averages {buffer, group|null, policy|null, max_rate, dry}: the mean of the newest version of each member, with the same
 * outcome as a push, at all of them. `dry`: up to the links between them, and the event "plan". With a sentence, as
 * agent_push(), and -EINVAL for a group that is too small or too large.
 */
int agent_average(struct agent *a, const json_t *request, char ret_sync[SYNC_ID_SIZE],
		  char why[WHY_SIZE]);

/*
 * Makes shards {buffer, group|null, max_rate, dry, sources, targets, split} of others, as reshard_new() has the last
 * three: at all targets or at none. With a sentence, as agent_push(), and -EEXIST for a buffer that is a version of the group.
 */
int agent_reshard(struct agent *a, const json_t *request, char ret_sync[SYNC_ID_SIZE],
		  char why[WHY_SIZE]);

/* -ENOENT: we coordinate no such sync; -EALREADY: its commit was decided. With a sentence. */
int agent_cancel(struct agent *a, const char *sync, char why[WHY_SIZE]);

/* Whether no sync is under way here, whoever coordinates it. */
bool agent_is_idle(const struct agent *a);

/* The group of a sync that is under way here, or NULL. */
const char *agent_sync_group(const struct agent *a, const char *sync);

/* --- What they see; arrays of rows, the caller's ------------------------------------------------- */

/*
 * A row per (sync, node) of what is under way, and of the last syncs that ended; all of them where `sync` is
 * NULL. {sync, kind, buffer, group, term, number, role, size, changed, by, patch, differ, node, phase, done, expected, rate, epoch, why, from,
 * slow}. Phases: "attach", "prepare", "ready", "open", "bytes", "moved", "verify", "verified", "commit",
 * "committed", "failed", "absent", "unknown", "planned".
 */
json_t *agent_status(const struct agent *a, const char *sync);

/* The last `n` syncs, youngest first: {sync, kind, buffer, group, term, number, started_ns, ended_ns, state,
 * nodes, planned, payload, bytes, kernel, traced (each |null, see byte_count.h), untraced, phase|null, why}. */
json_t *agent_history(const struct agent *a, unsigned n);

/*
 * What was counted since it began, and what can be measured now, as families of OpenMetrics: {metric, type:"counter"|
 * "gauge", unit|null, help, samples:[{labels:{}, value | value_ns}]}. A long family comes in several rows, one
 * behind the other.
 */
json_t *agent_metrics(const struct agent *a);

/*
 * The newest committed version of each buffer that a node told of: {buffer, group, term, number, root}; ours
 * also {version, state:"serving"|"behind"|"unverified"|"superseded"}.
 */
json_t *agent_replicas(const struct agent *a, unsigned peer_or_self);
