/*
 * Replicas
 *
 * One per buffer that was ever announced to this node: the newest version that is known to be
 * committed, the state of its bytes in the local weightd, and the newest version of other nodes.
 */
#pragma once

#include "server/sync/state/document.h"
#include "server/sync/state/patch_chain.h"

enum replica_state {
	REPLICA_BEHIND, /* the local weightd lacks the bytes, or nothing was ever committed here */
	REPLICA_UNVERIFIED, /* the commit log has it, and the bytes must be checked */
	REPLICA_SERVING,
	REPLICA_SUPERSEDED, /* dropped for a newer version or on request: it is not fetched again */
};

/*
 * A version of the local weightd, on the device of the replica's group, and its leaves: equal
 * leaves of the next version need not be sent, if that is on the same device. The table is that of
 * the fetch, or of the source job that read the version for a push or for a look after a restart.
 * It is not stored, so there is none until that look is over: reading the bytes is what takes the
 * time, and they are read anyway.
 */
struct base {
	uint64_t version; /* 0: no base */
	uint64_t n_bytes;
	uint8_t root[32];
	int leaves_fd;
};

struct replica {
	struct list link; /* agent::replicas */
	char buffer[BUFFER_MAX + 1];
	char group[GROUP_MAX + 1];
	enum replica_state state;
	struct document *document; /* the committed version's; NULL: none is known */
	uint64_t version; /* the local weightd's; 0: unknown, the one that it serves */
	struct base base;
	/*
	 * The memory of the committed version: the next push is compared with it, and repairs begin
	 * with it; or NULL
	 */
	struct loan *kept;
	struct patch_chain patch_chain;
	struct version_id seen; /* the newest announced */
	/* Time to announce it to all nodes that are not known to have it; 0: done. */
	uint64_t tell_ns;
	struct {
		struct version_id version_id;
		uint64_t version;
		bool is_superseded;
	} saved; /* its state in the commit log */

	struct work look; /* source: checks the bytes */
	uint64_t look_ns; /* its deadline, 0: none runs */
	uint64_t look_version; /* the version that it attached */
	bool look_is_vain; /* the bytes have another root: a repeated look would find the same */

	unsigned asked; /* the peer that should deliver it; NO_PEER: none */
	uint64_t asked_ns; /* deadline of that request */
	uint64_t retry_ns; /* time of the next look or request; 0: as soon as there is a reason */
	unsigned n_retries;
	struct pull {
		char id[SYNC_ID_SIZE]; /* "": none */
		unsigned peer; /* the only peer that is asked */
		struct version_id version_id; /* of that peer when the pull began */
		bool is_exact; /* and a newer one is refused */
		bool is_dry;
		uint64_t started_ns; /* CLOCK_REALTIME */
	} pull; /* a user waits for it */
};

struct replica *replica_find(struct agent *a, const char *buffer);
/*
 * Finds or makes it; replaces an announced one if there are too many. NULL: no memory, or too many
 * committed ones.
 */
struct replica *replica_get(struct agent *a, const char *buffer, const char *group);
void replica_free(struct agent *a, struct replica *rep);

/*
 * The committed version, the held one, and the held or superseded one, which is not fetched again
 * unless a user pulls it.
 */
struct version_id replica_committed(const struct replica *rep);
struct version_id replica_held(const struct replica *rep);
struct version_id replica_done_with(const struct replica *rep);

/* A user waits for the version that this peer has. */
bool replica_is_pulled_from(const struct replica *rep, unsigned peer);

/* This node knows a version of it, committed or announced: it is the group's, then. */
bool replica_is_version(const struct replica *rep);

/* The version_id of the next version that this node, a publisher of the group, pushes to it. -EOVERFLOW */
int replica_next(const struct agent *a, const struct replica *rep, const struct group *g,
		 struct version_id *ret);

/*
 * Commits a version: it is in the commit log, durably, on return. Keeps a copy of `document`. A
 * failure changes nothing.
 */
int replica_commit(struct agent *a, struct replica *rep, const struct document *document,
		   uint64_t version, enum replica_state state);

/* The local weightd has the bytes; the caller announces it. */
void replica_set_serving(struct agent *a, struct replica *rep, uint64_t version);
/* The local weightd has lost or dropped the bytes. Announces that to all peers. */
void replica_set_lost(struct agent *a, struct replica *rep);
void replica_set_superseded(struct agent *a, struct replica *rep);

/* Waits for this peer from now on; NO_PEER: none. */
void replica_set_asked(struct agent *a, struct replica *rep, unsigned peer);
/* The peer that was asked can no longer deliver it. */
void replica_ask_nobody(struct agent *a, struct replica *rep);

/* The local weightd has this version, with the leaves of this table, which is duplicated. */
void replica_set_base(struct replica *rep, uint64_t version, uint64_t n_bytes,
		      const uint8_t root[32], int leaves_fd);

/*
 * The journal fields of a fork: two versions with this replica's version_id. `peer` delivers or
 * claims the other one.
 */
json_t *replica_about_fork(const struct replica *rep, const char *peer);

/* Claims of peers. */
void replica_seen(struct agent *a, struct replica *rep, struct version_id version_id);
struct claim *replica_claim(struct agent *a, unsigned peer, const struct replica *rep);
/* The peer is down. */
void replicas_forget_claims(struct agent *a, unsigned peer);

void replica_on_message(struct agent *a, unsigned peer, const json_t *message);
/* Announces all replicas to one peer, or one to all peers. */
void replicas_tell(struct agent *a, unsigned peer);
void replica_tell_all(struct agent *a, struct replica *rep);
/*
 * A sync of this coordinator delivered it: announces it to a few nodes, and to the others if the
 * coordinator's list does not arrive.
 */
void replica_tell_few(struct agent *a, struct replica *rep, unsigned coordinator);
/*
 * The same for a sync of this node: sends all peers the list of nodes that lack it, by their
 * answers.
 */
void replica_tell_who_has_it(struct agent *a, struct replica *rep);
/* A peer has published this version of it. */
void replica_note_held(struct agent *a, unsigned peer, struct replica *rep, const struct group *g,
		       const struct document *d);
/* Sends the announcements that are due. Returns the time of the next; 0: none. */
uint64_t replicas_step(struct agent *a, uint64_t now);
/* A row of the message. */
json_t *replica_to_json(const struct replica *rep);

/* Writes the changes, durably; -errno of env.save(). */
int replicas_save(struct agent *a);
/*
 * Writes changes that a crash may lose within 5 seconds, so that failing syncs do not keep the disk
 * busy.
 */
void replicas_save_later(struct agent *a);
int replicas_load(struct agent *a, const json_t *commit_log, char why[WHY_SIZE]);
