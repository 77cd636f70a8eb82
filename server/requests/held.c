#include "server/requests/held.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ipc/base/list.h"
#include "ipc/base/num.h"
#include "server/base/subordinate.h"
#include "server/buffers/buffer.h"
#include "server/buffers/held_charge.h"
#include "server/buffers/lease.h"
#include "server/buffers/reaper.h"
#include "server/buffers/version.h"
#include "server/memory/slot.h"
#include "server/state/access.h"
#include "server/state/server.h"
#include "server/state/session.h"
#include "server/state/share.h"

#define NAMED_MAX 3
#define DESCRIPTORS_EACH 4 /* of a buffer with one version */
#define VERSIONS_FEW 14 /* no share is used up: 14 + 14 + 32 + 2 make BUFFER_VERSIONS_MAX */

uint64_t held_by_user(const struct server *s, uid_t uid, unsigned *ret_n)
{
	uid_t payer = subordinate_payer(uid);
	const struct version *v;
	uint64_t size = 0;

	*ret_n = 0;
	list_for_each(v, &s->held, held_link) {
		if (v->holder != payer)
			continue;
		size += v->slot->charge.amount;
		++*ret_n;
	}
	return size;
}

bool held_is_over(const struct server *s, uid_t uid)
{
	uint64_t limit = quota_limit(&s->quota, uid, QUOTA_HELD);
	unsigned n;

	/* The charge has memory that is being freed too. */
	return quota_used(&s->quota, uid, QUOTA_HELD) > limit && held_by_user(s, uid, &n) > limit &&
	       n > 1;
}

struct version *held_oldest(const struct server *s, uid_t uid)
{
	uid_t payer = subordinate_payer(uid);
	struct version *v;

	list_for_each(v, &s->held, held_link)
		if (v->holder == payer)
			return v;
	return NULL;
}

const struct lease *held_lease(const struct version *v)
{
	const struct hold *h = version_hold(v, v->holder);

	return h ? list_first(&h->leases, struct lease, hold_link) : NULL;
}

/* --- Refusals --- */

#define OLDEST_MAX (WIRE_NAME_SIZE + WIRE_DEVICE_SIZE + 96)

/* "'m@3' on host (pid 77, since 2026-11-29T20:31:05Z)". Returns `text`. */
static const char *describe_oldest(const struct version *v, const struct lease *l,
				   char text[OLDEST_MAX])
{
	char since[32] = "";
	struct tm tm;
	time_t at;

	if (l) {
		at = (time_t)(l->since_ns / 1000000000);
		if (gmtime_r(&at, &tm))
			(void)strftime(since, sizeof(since), "%Y-%m-%dT%H:%M:%SZ", &tm);
		(void)snprintf(text, OLDEST_MAX, "'%s@%" PRIu64 "' on %s (pid %d, since %s)",
			       v->buffer->name, v->number, v->buffer->device, l->session->peer.pid,
			       since);
	} else {
		(void)snprintf(text, OLDEST_MAX, "'%s@%" PRIu64 "' on %s (mapped without a lease)",
			       v->buffer->name, v->number, v->buffer->device);
	}
	return text;
}

static void refuse_for_bytes(struct session *s)
{
	const struct quota *q = &s->server->quota;
	const struct version *oldest = held_oldest(s->server, s->peer.uid);
	char used[NUM_SIZE_MAX], limit[NUM_SIZE_MAX], text[OLDEST_MAX];
	unsigned n;

	session_fail(s, -EDQUOT,
		     "uid %u holds %s of versions that only its readers keep, more than its limit "
		     "of %s; the oldest is %s: detach it, end that process, or raise held= in "
		     "[limits] of weightd.conf",
		     s->peer.uid, num_format_size(used, held_by_user(s->server, s->peer.uid, &n)),
		     num_format_size(limit, quota_limit(q, s->peer.uid, QUOTA_HELD)),
		     describe_oldest(oldest, held_lease(oldest), text));
}

/* True when the user makes up a part of the versions of the buffer that there are. */
static bool has(const struct version *v, uid_t uid)
{
	return version_hold(v, uid) || (v->orphan && v->last_reader == uid);
}

static bool has_reader(const struct version *v)
{
	uid_t owner = subordinate_payer(v->buffer->access.uid);
	const struct hold *h;

	list_for_each(h, &v->holds, link)
		if (h->uid != owner)
			return true;
	return v->orphan && v->last_reader != HELD_NOBODY && v->last_reader != owner;
}

/*
 * True when the user holds more than a user's least share of the store, where nothing is left but what is reserved for
 * users within theirs: publishers could move all of it to their readers.
 */
static bool holds_of_reserve(const struct session *s)
{
	const struct quota *q = &s->server->quota;
	uint64_t whole = q->wholes[QUOTA_DESCRIPTORS];
	unsigned n;

	if (q->used[QUOTA_DESCRIPTORS] <= share_open_to(whole, access_is_admin(&s->peer), whole))
		return false;
	(void)held_by_user(s->server, s->peer.uid, &n);
	return n > share_least(whole) / DESCRIPTORS_EACH;
}

static void refuse_for_reserve(struct session *s)
{
	const struct version *oldest = held_oldest(s->server, s->peer.uid);
	char text[OLDEST_MAX];
	unsigned n;

	(void)held_by_user(s->server, s->peer.uid, &n);
	session_fail(s, -EDQUOT,
		     "uid %u holds %u versions that only its readers keep, and what is left of the "
		     "service manager's store is for users with less; the oldest is %s: detach it, "
		     "or end that process",
		     s->peer.uid, n, describe_oldest(oldest, held_lease(oldest), text));
}

/* The versions that readers have, and those of one user, the oldest of them first. */
struct share {
	uid_t uid;
	unsigned n_all;
	unsigned n_own;
	const struct version *oldest;
};

static void count_share(struct share *share, const struct list *versions)
{
	const struct version *v;

	list_for_each(v, versions, link) {
		share->n_all += has_reader(v);
		if (!has(v, share->uid))
			continue;
		share->n_own++;
		if (!share->oldest || v->number < share->oldest->number)
			share->oldest = v;
	}
}

static void refuse_for_share(struct session *s, const struct share *share)
{
	const struct version *oldest = share->oldest;
	const struct hold *h = oldest ? version_hold(oldest, share->uid) : NULL;
	char text[OLDEST_MAX];

	if (!oldest) {
		session_fail(s, -EDQUOT,
			     "readers of other users hold all versions that a buffer can have beside "
			     "those that it keeps; try again when they let some go");
		return;
	}
	(void)describe_oldest(oldest, h ? list_first(&h->leases, struct lease, hold_link) : NULL,
			      text);
	session_fail(s, -EDQUOT,
		     "uid %u holds %u versions of '%s', its share of those that a buffer can have; "
		     "the oldest is %s: detach it, or end that process",
		     share->uid, share->n_own, oldest->buffer->name, text);
}

/* Memory that no process maps any more counts until the reaper looks. */
static bool is_over_in_fact(struct session *s)
{
	if (!held_is_over(s->server, s->peer.uid))
		return false;
	(void)reaper_look(s->server->reaper);
	return held_is_over(s->server, s->peer.uid);
}

static bool has_share_left(struct share *share, const struct buffer *b)
{
	unsigned n_kept = b->keep + 2; /* with the one in the making, and the next one */

	*share = (struct share){.uid = share->uid};
	count_share(share, &b->versions);
	count_share(share, &b->leaving);
	return share->n_own + share->n_all + n_kept < BUFFER_VERSIONS_MAX;
}

static bool is_allowed(struct session *s, const struct version *v)
{
	struct share share = {.uid = subordinate_payer(s->peer.uid)};
	struct buffer *b = v->buffer;

	if (is_over_in_fact(s)) {
		refuse_for_bytes(s);
		return false;
	}
	if (s->peer.uid != b->access.uid && holds_of_reserve(s)) {
		refuse_for_reserve(s);
		return false;
	}
	/* Most buffers have few versions. */
	if (b->n_versions + b->n_leaving < VERSIONS_FEW || s->peer.uid == b->access.uid ||
	    version_hold(v, s->peer.uid) || has_share_left(&share, b))
		return true;
	reaper_reap(b);
	if (has_share_left(&share, b))
		return true;
	refuse_for_share(s, &share);
	return false;
}

bool held_allows(struct session *s, struct version *v)
{
	bool allowed;

	/* One that has ended, and that nobody maps by now, stays while others are freed. */
	v->n_leases++;
	allowed = is_allowed(s, v);
	v->n_leases--;
	return allowed;
}

/* --- Sentences for writers --- */

struct holder {
	uid_t uid;
	uint64_t n;
};

/* The largest first; those that have no room are the smaller ones, unless there are very many. */
struct holders {
	struct holder all[64];
	unsigned n;
};

static void add_holder(struct holders *h, uid_t uid, uint64_t n)
{
	unsigned i = 0;

	while (i < h->n && h->all[i].uid != uid)
		i++;
	if (i == ARRAY_LEN(h->all))
		return;
	if (i == h->n)
		h->all[h->n++] = (struct holder){.uid = uid};
	h->all[i].n += n;
	for (; i > 0 && h->all[i].n > h->all[i - 1].n; i--) {
		struct holder lower = h->all[i - 1];

		h->all[i - 1] = h->all[i];
		h->all[i] = lower;
	}
}

static const char *describe_holders(const struct holders *h, bool are_bytes, const char *before,
				    char text[HELD_TEXT_MAX])
{
	int n = 0;

	text[0] = '\0';
	for (unsigned i = 0; i < h->n && i < NAMED_MAX; i++) {
		char amount[NUM_SIZE_MAX];

		if (are_bytes)
			(void)num_format_size(amount, h->all[i].n);
		else
			(void)snprintf(amount, sizeof(amount), "%" PRIu64, h->all[i].n);
		n += snprintf(text + n, HELD_TEXT_MAX - (size_t)n, "%suid %u holds %s",
			      i ? ", " : before, h->all[i].uid, amount);
	}
	return text;
}

const char *held_describe(const struct server *s, const char *device, const char *before,
			  char text[HELD_TEXT_MAX])
{
	struct holders holders = {.n = 0};
	const struct version *v;

	list_for_each(v, &s->held, held_link)
		if (buffer_is_on(v->buffer, device))
			add_holder(&holders, v->holder, v->slot->charge.amount);
	return describe_holders(&holders, true, before, text);
}

static void add_holders_of(struct holders *ret, const struct list *versions)
{
	const struct version *v;
	const struct hold *h;

	list_for_each(v, versions, link) {
		list_for_each(h, &v->holds, link)
			add_holder(ret, h->uid, 1);
		if (v->orphan && list_empty(&v->holds) && v->last_reader != HELD_NOBODY)
			add_holder(ret, v->last_reader, 1);
	}
}

const char *held_describe_versions(const struct buffer *b, const char *before,
				   char text[HELD_TEXT_MAX])
{
	struct holders holders = {.n = 0};

	add_holders_of(&holders, &b->versions);
	add_holders_of(&holders, &b->leaving);
	return describe_holders(&holders, false, before, text);
}
