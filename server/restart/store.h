/*
 * The store
 *
 * The service manager's store of file descriptors, which holds everything that must outlive
 * weightd. A descriptor there has a name of one letter and an id. The manager does not report what
 * it keeps nor how much it accepts, so weightd counts. A descriptor is safe once a barrier that was
 * sent after it has returned.
 *
 * Messages wait in turns of users (notify.h), and are in order for one user only. All about one buffer or job therefore
 * counts for one user: the owner that made it, whoever writes or owns it later.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/base/loop.h"

struct notify;

enum store_kind {
	STORE_MANIFEST = 'm',
	STORE_HEAD = 'h',
	STORE_SLOT = 's',
	STORE_TABLE = 't',
	STORE_DIGESTS = 'd', /* of an image, under the id of its slot */
	STORE_FILES = 'f',
	STORE_GROUP = 'g', /* manifest of a job */
	STORE_PART = 'p', /* of its memory */
	STORE_DESCRIPTION = 'n',
	STORE_SOCKET = 'w', /* the listening socket that we made ourselves */
	STORE_LOCK = 'k', /* ... and the lock on its path */
};

#define STORE_NAME_MAX 20 /* bytes: LISTEN_FDNAMES of 6,000 must be one string of 128 KiB */

struct store {
	struct notify *notify;
	struct loop *loop;
	unsigned n_kept;
	unsigned n_reserved; /* for what is being made, and not put yet */
	unsigned n_promised; /* likewise, and still in use by what goes then */
	unsigned max; /* 0: there is no store */
};

/* Room for descriptors that are being made. */
struct store_reservation {
	struct store *store; /* NULL: nothing is reserved */
	unsigned n;
	unsigned n_promised; /* of these, or what else has to go for them */
	unsigned max; /* how full the store may be with them */
};

void store_init(struct store *s, struct loop *l, struct notify *notify, unsigned max);

/* True while what is handed over survives us. */
bool store_works(const struct store *s);
/* True where that was so at the start: what cannot be kept any more must not be made. */
bool store_is_expected(const struct store *s);

/* True while a descriptor was sent or removed and the manager has not received it yet. */
bool store_is_behind(const struct store *s);

/*
 * Reserves room until the descriptors are put or given up: for `n`, of which as many as `n_promised` must go first.
 * `ret` must hold nothing.
 */
void store_reserve(struct store *s, unsigned n, unsigned n_promised, unsigned max,
		   struct store_reservation *ret);
void store_release(struct store_reservation *r);
/* The part of it that nothing has to go for. */
unsigned store_n_solid(const struct store_reservation *r);

/* Hands over a descriptor, which stays the caller's as well. Counts also if it fails. */
int store_put(struct store *s, uid_t uid, enum store_kind kind, uint64_t id, int fd);
/* Counts a descriptor that the store returned at our start. */
void store_adopt(struct store *s);
/* Counts one less, which stays there: it was adopted, and is of no use. */
void store_disown(struct store *s);
void store_remove(struct store *s, uid_t uid, enum store_kind kind, uint64_t id);

/* Writes "s0123456789abcdef". */
void store_name(enum store_kind kind, uint64_t id, char ret[STORE_NAME_MAX + 1]);
/* True for such a name, also of a kind that only a later weightd has. */
bool store_is_name(const char *name);
/* True for such a name of a kind that we have. */
bool store_parse_name(const char *name, enum store_kind *ret_kind, uint64_t *ret_id);

/* Calls back when the manager keeps all that was sent before for the same user. */
struct barrier {
	struct source source; /* the reading end of a pipe */
	struct timer timer;
	struct store *store; /* NULL while it is not running */
	void (*fn)(struct barrier *b,
		   int r); /* 0; -ETIMEDOUT, -ENOTCONN: the manager does not answer */
};

/* Calls fn later, never at once; without a store in the next round. Negative: it will not be called. */
int barrier_start(struct barrier *b, struct store *s, uid_t uid, void (*fn)(struct barrier *, int));
/* True when it was running; one that is zeroed or over was not. */
bool barrier_stop(struct barrier *b);
