/*
 * Replicas
 *
 * One per buffer that this node ever heard of: the newest version that it knows to be committed, whether the
 * local weightd has its bytes, and how new the versions are that others have.
 */
#pragma once

#include "server/sync/state/document.h"
#include "server/sync/state/patch_chain.h"

enum replica_state {
	REPLICA_BEHIND, /* the local weightd has not the bytes, or nothing was ever committed here */
	REPLICA_UNVERIFIED, /* the commit log says that it has them: they are looked at */
	REPLICA_SERVING,
	REPLICA_SUPERSEDED, /* it let go of them, for a newer version or for whoever said so: nobody wants them back */
};

/*
 * A version of the local weightd, on the device of the replica's group, and the leaves that it has: equal ones of the next
 * version need not travel, if that comes to the same device. The table is what came when the version was fetched, or
 * what the source job found that read it for a push or a look after a start of ours; so it is nowhere stored, and until
 * that look is over there is none. Reading is what takes the time of it, and the bytes are read then anyway.
 */
struct base {
	uint64_t version; /* 0: there is none */
	uint64_t n_bytes;
	uint8_t root[32];
	int leaves_fd;
};

struct replica {
	struct list link; /* agent::replicas */
	char buffer[BUFFER_MAX + 1];
	char group[GROUP_MAX + 1];
	enum replica_state state;
	struct document *document; /* what is committed; NULL: nothing is known to be */
	uint64_t version; /* of the local weightd; 0: not known, the one it serves */
	struct base base;
	struct loan *kept; /* of what is committed: what the next push is compared with, or repairs begin with; or NULL */
	struct patch_chain patch_chain;
	struct version_id seen; /* the newest that anybody told of */
	uint64_t tell_ns; /* when those hear of it who are not known to have it; 0: they did */
	struct {
		struct version_id version_id;
		uint64_t version;
		bool is_superseded;
	} saved; /* what the commit log has of it */

	struct work look; /* source: whether the bytes are there */
	uint64_t look_ns; /* its deadline, 0: none runs */
	uint64_t look_version; /* what it attached */
	bool look_is_vain; /* bytes of another root are there: looking again would show the same */

	unsigned asked; /* the peer that should bring it; NO_PEER: nobody */
	uint64_t asked_ns; /* until when it is waited for */
	uint64_t retry_ns; /* when to look or to ask again; 0: as soon as there is a reason */
	unsigned n_retries;
};

struct replica *replica_find(struct agent *a, const char *buffer);
/*
 * Finds or makes it, in the place of one that was only heard of where there are too many. NULL: no memory, or
 * too many that are more than that.
 */
struct replica *replica_get(struct agent *a, const char *buffer, const char *group);
void replica_free(struct agent *a, struct replica *rep);

/*
 * The version committed here; the one of them that is here; and the newest that is or was here and
 * is not to be fetched again.
 */
struct version_id replica_committed(const struct replica *rep);
struct version_id replica_held(const struct replica *rep);
struct version_id replica_done_with(const struct replica *rep);

/*
 * Returns whether there is any version of it, as far as this node knows or was told: it is the
 * group's, then.
 */
bool replica_is_version(const struct replica *rep);

/* The version_id of the next version that this node, a publisher of the group, pushes to it. -EOVERFLOW */
int replica_next(const struct agent *a, const struct replica *rep, const struct group *g,
		 struct version_id *ret);

/*
 * A version is committed, and the commit log says so, durably, once this returned. Of `document` a copy is kept.
 * After a failure all is as before.
 */
int replica_commit(struct agent *a, struct replica *rep, const struct document *document,
		   uint64_t version, enum replica_state state);

/* The local weightd has the bytes; who hears of it, the caller says. */
void replica_set_serving(struct agent *a, struct replica *rep, uint64_t version);
/* It has lost them, or let go of them. Everybody hears of it. */
void replica_set_lost(struct agent *a, struct replica *rep);
void replica_set_superseded(struct agent *a, struct replica *rep);

/* From now on this peer is waited for; NO_PEER: nobody. */
void replica_set_asked(struct agent *a, struct replica *rep, unsigned peer);
/* Withdraws the request to the peer that was asked. */
void replica_ask_nobody(struct agent *a, struct replica *rep);

/* The local weightd has this version, with the leaves of this table, which is duplicated. */
void replica_set_base(struct replica *rep, uint64_t version, uint64_t n_bytes,
		      const uint8_t root[32], int leaves_fd);

/*
 * Fields for the journal about two versions with the version_id of this replica's, of which `peer`
 * brings or claims the other.
 */
json_t *replica_about_fork(const struct replica *rep, const char *peer);

/* A peer claims this version. */
void replica_seen(struct agent *a, struct replica *rep, struct version_id version_id);
struct claim *replica_claim(struct agent *a, unsigned peer, const struct replica *rep);
/* The peer is down. */
void replicas_forget_claims(struct agent *a, unsigned peer);

void replica_on_message(struct agent *a, unsigned peer, const json_t *message);
/* Tells one peer of all replicas, or all peers of one. */
void replicas_tell(struct agent *a, unsigned peer);
void replica_tell_all(struct agent *a, struct replica *rep);
/* A sync that this peer coordinates brought it: a few are told, and the others if its word of it does not come. */
void replica_tell_few(struct agent *a, struct replica *rep, unsigned coordinator);
/* A sync that this node coordinates did: tells all peers which of them have it, as far as they answered. */
void replica_tell_who_has_it(struct agent *a, struct replica *rep);
/* A peer has published this version of it. */
void replica_note_held(struct agent *a, unsigned peer, struct replica *rep, const struct group *g,
		       const struct document *d);
/* Tells whom it is time to. Returns when it is again; 0: never. */
uint64_t replicas_step(struct agent *a, uint64_t now);
/* A row of the message. */
json_t *replica_to_json(const struct replica *rep);

/* Saves changes, durably. -errno of env.save(). */
int replicas_save(struct agent *a);
/*
 * Saves within 5 seconds what a crash may lose, so that a peer that makes syncs fail cannot keep
 * the disk busy.
 */
void replicas_save_later(struct agent *a);
int replicas_load(struct agent *a, const json_t *commit_log, char why[WHY_SIZE]);
