/*
 * Heads
 *
 * One per buffer that this node ever heard of: the newest version that it knows to be committed, whether the
 * local weightd has its bytes, and how new the versions are that others have.
 */
#pragma once

#include "server/sync/document.h"
#include "server/sync/patches.h"

enum head_state {
	HEAD_BEHIND, /* the local weightd has not the bytes, or nothing was ever committed here */
	HEAD_UNVERIFIED, /* the record says that it has them: they are looked at */
	HEAD_SERVING,
	HEAD_SUPERSEDED, /* it let go of them, for a newer version or for whoever said so: nobody wants them back */
};

/*
 * A version of the local weightd, and the leaves that it has: equal ones of the next version need not travel. The
 * table is what came when the version was fetched, or what the source job found that read it for a push or a look
 * after a start of ours; so it is nowhere stored, and until that look is over there is none. Reading is what takes
 * the time of it, and the bytes are read then anyway.
 */
struct base {
	uint64_t version; /* 0: there is none */
	uint64_t n_bytes;
	uint8_t root[32];
	int leaves_fd;
};

struct head {
	struct list link; /* agent::heads */
	char buffer[BUFFER_MAX + 1];
	char group[GROUP_MAX + 1];
	enum head_state state;
	struct document *document; /* what is committed; NULL: nothing is known to be */
	uint64_t version; /* of the local weightd; 0: not known, the one it serves */
	struct base base;
	struct loan *kept; /* what was pushed last, while it is committed: the next one is compared with it; or NULL */
	struct patches patches;
	struct pair seen; /* the newest that anybody told of */

	struct work look; /* source: whether the bytes are there */
	uint64_t look_ns; /* its deadline, 0: none runs */
	uint64_t look_version; /* what it attached */
	bool look_is_vain; /* bytes of another root are there: looking again would show the same */

	unsigned asked; /* the peer that should bring it; NO_PEER: nobody */
	uint64_t asked_ns; /* until when it is waited for */
	uint64_t retry_ns; /* when to look or to ask again; 0: as soon as there is a reason */
	unsigned n_retries;
};

struct head *head_find(struct agent *a, const char *buffer);
/*
 * Finds or makes it, in the place of one that was only heard of where there are too many. NULL: no memory, or
 * too many that are more than that.
 */
struct head *head_get(struct agent *a, const char *buffer, const char *group);
void head_free(struct agent *a, struct head *h);

/* What was committed here, what of that is here, and what of that is here or was, and is not to be brought again. */
struct pair head_committed(const struct head *h);
struct pair head_held(const struct head *h);
struct pair head_done_with(const struct head *h);

/* The pair of the next version that this node, a publisher of the group, pushes to it. -EOVERFLOW */
int head_next(const struct agent *a, const struct head *h, const struct group *g, struct pair *ret);

/*
 * A version is committed, and the record says so, durably, once this returned. Of `document` a copy is kept.
 * After a failure all is as before.
 */
int head_commit(struct agent *a, struct head *h, const struct document *document, uint64_t version,
		enum head_state state);

/* The local weightd has the bytes, has lost them, or let go of them. Everybody hears of it. */
void head_set_serving(struct agent *a, struct head *h, uint64_t version);
void head_set_lost(struct agent *a, struct head *h);
void head_set_superseded(struct agent *a, struct head *h);

/* From now on this peer is waited for; NO_PEER: nobody. */
void head_set_asked(struct agent *a, struct head *h, unsigned peer);

/* The local weightd has this version, with the leaves of this table, which is duplicated. */
void head_set_base(struct head *h, uint64_t version, uint64_t n_bytes, const uint8_t root[32],
		   int leaves_fd);

/* What a peer claims. */
void head_seen(struct agent *a, struct head *h, struct pair pair);
struct claim *head_claim(struct agent *a, unsigned peer, const struct head *h);
/* The peer is down. */
void heads_forget_claims(struct agent *a, unsigned peer);

void head_on_message(struct agent *a, unsigned peer, const json_t *message);
/* Tells one peer of all heads, or all peers of one. */
void heads_tell(struct agent *a, unsigned peer);
void head_tell_all(struct agent *a, const struct head *h);
/* A row of the message. */
json_t *head_to_json(const struct head *h);

int heads_save(struct agent *a);
int heads_load(struct agent *a, const json_t *record, char why[WHY_SIZE]);
