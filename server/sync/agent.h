/*
 * The agent
 *
 * What one node knows of the others and does with them: pushes versions to the members of a group, takes
 * versions that others push, and catches up with what it missed. A state machine: all that it needs of the
 * environment is struct env, all that happens comes through agent_on_...() below, and nothing here blocks.
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
 *	 (epochs; their bytes are in none of these), "traced"|null, "untraced" (see byte_count.h; both change later, too), "started_ns", "ended_ns",
 *	 "nodes":[{"node", "state", "version"|null, "why"|null}],
 *	 "error": a sentence, on failure}
 *		the last one of a sync; a node's state is "committed", "failed", "absent",
 *		"unknown" or "planned"
 *		on the control socket {"event":"nodes", "sync", "nodes":[...]} comes before, where there are many
 *		in a repair of this node that a pull waits for, "phase" and "end" have the "pull", the id that agent_pull()
 *		gave; a pull that ends without a repair has an "end" of its own, of the kind "pull" with that id as "sync"
 *	{"event":"log", "level":"error"|"warning"|"info"|"debug", "text"}
 *		a sentence for the journal; with "what", a kind of log_fields.h, and what it is about
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/cleanup.h"
#include "server/sync/state/agent_config.h"
#include "server/sync/state/env.h"

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

/* --- Requests of operators --------------------------------------------------------------------- */

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

/*
 * Pulls {buffer, node, term, number, dry}: the committed version of that node, by a repair; term 0 is whichever it has.
 * `dry`: up to PREPARE. The version that is served here already is no failure. With a sentence: -EBADMSG, -ENOENT no
 * such node, or it has no such version, -EHOSTDOWN it is not connected, -ESTALE its version is older or is not the one
 * of this node, -EBUSY there is a sync of the buffer already.
 */
int agent_pull(struct agent *a, const json_t *request, char ret_sync[SYNC_ID_SIZE],
	       char why[WHY_SIZE]);

/* -ENOENT: we coordinate no such sync; -EALREADY: its commit was decided. With a sentence. */
int agent_cancel(struct agent *a, const char *sync_or_pull, char why[WHY_SIZE]);

/* Returns whether no sync is under way here, whoever coordinates it. */
bool agent_is_idle(const struct agent *a);

/* The group of a sync that is under way here, or NULL. */
const char *agent_sync_group(const struct agent *a, const char *sync);

/* --- Rows for operators; the caller owns the arrays -------------------------------------------- */

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
 * Returns counters since the agent began, and gauges, as families of OpenMetrics: {metric,
 * type:"counter"|"gauge", unit|null, help, samples:[{labels:{}, value | value_ns}]}. A long family
 * comes in several rows, one behind the other.
 */
json_t *agent_metrics(const struct agent *a);
/* The end of this node's certificate, CLOCK_REALTIME, for the metrics. */
void agent_set_certificate_end(struct agent *a, uint64_t end_ns);

/*
 * The newest committed version of each buffer that a node told of: {buffer, group, term, number, root}; ours
 * also {version, state:"serving"|"behind"|"unverified"|"superseded"}.
 */
json_t *agent_replicas(const struct agent *a, unsigned peer_or_self);

/* --- Called by the daemon ---------------------------------------------------------------------- */

/* The peer's name is authenticated; no messages of an earlier connection follow. */
void agent_on_peer_up(struct agent *a, unsigned peer);
void agent_on_peer_down(struct agent *a, unsigned peer, const char *why);
void agent_on_message(struct agent *a, unsigned peer, const json_t *message);
/* A complete blob with a correct hash; `fd` is a sealed memfd, borrowed. */
void agent_on_blob(struct agent *a, unsigned peer, const uint8_t hash[32], int fd, uint64_t size);
/*
 * Returns the largest size of a blob with this hash that the peer may send; 0: none is expected,
 * and it is discarded.
 */
uint64_t agent_blob_limit(const struct agent *a, unsigned peer, const uint8_t hash[32]);
void agent_on_timer(struct agent *a);
/* A message of a job; the agent sets the descriptors that it takes to -1. */
void agent_on_job(struct agent *a, void *owner, const json_t *message, int *fds, unsigned n_fds);
/* A job ended by itself, or could not receive a message; `how`: "signal 9". The handle is freed. */
void agent_on_job_end(struct agent *a, void *owner, const char *how);
/* weightd-trace is available again, and has lost this sync. */
void agent_on_untraced(struct agent *a, const char *sync);
/* weightd-trace's answer to an "end"; both are borrowed. */
void agent_on_traced(struct agent *a, const json_t *request, const json_t *rows);
