/*
 * What a node asks of a version before it takes any of it: that whoever brings it may, that its publisher signed it,
 * that it is newer than what is committed here, and that there is room and nothing more urgent. Nothing is kept
 * of what is refused.
 */
#include "server/sync/admission.h"

#include <stdio.h>
#include <string.h>

#include "server/sync/group.h"
#include "server/sync/joint.h"
#include "server/sync/party.h"
#include "server/sync/repair.h"
#include "server/sync/transaction.h"

#define PUSH_AGE_MAX (15 * 60 * SECOND)
#define BLOBS_SHARE                                                                                \
	8 /* of max-bytes, for what is taken before weightd admits anything: one part of so many */
#define QUEUED_MAX 64 /* of one coordinator: a document each */

uint64_t admission_blobs_size(const struct document *d)
{
	return d->layout_bytes + document_leaves_bytes(d);
}

uint64_t admission_blobs_max(const struct agent *a)
{
	return a->config->max_bytes ? a->config->max_bytes / BLOBS_SHARE : UINT64_MAX;
}

/* The group, if it has the buffer and this node is in it. */
static const struct group *find_group(const struct agent *a, const char *group, const char *buffer,
				      char why[WHY_SIZE])
{
	const struct group *g = group_find(a->config, group);

	if (g && group_has_buffer(g, buffer))
		return g;
	snprintf(why, WHY_SIZE, "%s has no group '%s' with the buffer '%s'", a->config->name, group,
		 buffer);
	return NULL;
}

/* Who may bring what, before a look at any signature. Returns the code of the refusal, or NULL. */
static const char *refuse_sender(struct agent *a, unsigned peer, const struct document *d,
				 char why[WHY_SIZE])
{
	const struct group *g = find_group(a, d->group, d->buffer, why);
	const char *sender = agent_peer_name(a, peer);

	if (!g)
		return "group";
	if (!group_has_member(g, a->config->name) &&
	    !(d->decision && agent_knows(a, g, AGENT_SELF))) {
		snprintf(why, WHY_SIZE, "%s is no member of the group '%s'", a->config->name,
			 g->name);
		return "group";
	}
	if (!group_has_publisher(g, d->publisher)) {
		snprintf(why, WHY_SIZE, "%s may not push to the group '%s', says %s", d->publisher,
			 g->name, a->config->name);
		return "publisher";
	}
	if (d->decision ? !agent_knows(a, g, peer) : strcmp(sender, d->publisher) != 0) {
		snprintf(why, WHY_SIZE, "%s brings what %s pushed to the group '%s'", sender,
			 d->publisher, g->name);
		return "publisher";
	}
	return NULL;
}

static const char *refuse_size(const struct agent *a, uint64_t n_bytes, char why[WHY_SIZE])
{
	if (!a->config->max_bytes || n_bytes <= a->config->max_bytes)
		return NULL;
	snprintf(why, WHY_SIZE, "it has %ju bytes, and max-bytes of %s is %ju", (uintmax_t)n_bytes,
		 a->config->name, (uintmax_t)a->config->max_bytes);
	return "size";
}

/* What is not committed is not pushed for long. */
static const char *refuse_time(struct agent *a, const char *sender, uint64_t time_ns,
			       char why[WHY_SIZE])
{
	uint64_t now = a->edge->time_ns(a->world);
	uint64_t age = now > time_ns ? now - time_ns : time_ns - now;

	if (age <= PUSH_AGE_MAX)
		return NULL;
	snprintf(why, WHY_SIZE, "the clock of %s and that of %s differ by %ju s", sender,
		 a->config->name, (uintmax_t)(age / SECOND));
	return "clock";
}

static const char *refuse_size_or_time(struct agent *a, const struct document *d, char why[WHY_SIZE])
{
	const char *code = refuse_size(a, d->n_bytes, why);

	if (code)
		return code;
	if (admission_blobs_size(d) > admission_blobs_max(a)) {
		snprintf(why, WHY_SIZE,
			 "its layout has %ju bytes, and max-bytes of %s leaves %ju for those",
			 (uintmax_t)d->layout_bytes, a->config->name,
			 (uintmax_t)admission_blobs_max(a));
		return "size";
	}
	return d->decision ? NULL : refuse_time(a, d->publisher, d->time_ns, why);
}

static const char *refuse_older(struct agent *a, const struct head *h, char why[WHY_SIZE])
{
	struct pair committed = head_committed(h);

	snprintf(why, WHY_SIZE, "%s has term %ju, number %ju of %s, which is not older",
		 a->config->name, (uintmax_t)committed.term, (uintmax_t)committed.number, h->buffer);
	return "fenced";
}

static const char *refuse_order(struct agent *a, const struct head *h, const struct document *d,
				char why[WHY_SIZE])
{
	struct pair committed = head_committed(h);
	int order = pair_compare(d->pair, committed);

	if (order == 0 && memcmp(d->root, h->document->root, 32) == 0) {
		if (!head_done_with(h).number)
			return NULL;
		snprintf(why, WHY_SIZE, "%s %s", a->config->name,
			 h->state == HEAD_SERVING ? "serves it already"
						  : "had it, and let go of it");
		return "there";
	}
	return order > 0 ? NULL : refuse_older(a, h, why);
}

/* Of syncs of all kinds: NULL, where none of a buffer is under way that `except`, one of ours, is not. */
static const char *sync_under_way(struct agent *a, const char *buffer, const char *except)
{
	const struct party *p = party_find_of_buffer(a, buffer);
	const struct transaction *t = transaction_find_of_buffer(a, buffer);
	const struct share *s = share_find_of_buffer(a, buffer);
	const struct joint *j = joint_find_of_buffer(a, buffer);

	if (p)
		return p->sync;
	if (t)
		return t->sync;
	if (s)
		return s->invitation.sync;
	return j && strcmp(j->sync, except) != 0 ? j->sync : NULL;
}

/*
 * A push is more urgent than a repair, and a coordinator that prepares again has forgotten what it prepared
 * before.
 */
static const char *refuse_busy(struct agent *a, unsigned peer, const struct head *h, bool is_repair,
			       const char *sync, char why[WHY_SIZE])
{
	struct party *p = party_find_of_buffer(a, h->buffer);
	struct transaction *t = transaction_find_of_buffer(a, h->buffer);
	struct share *s = share_find_of_buffer(a, h->buffer);
	const char *other;

	if (p && p->state != PARTY_PUBLISHING &&
	    (p->coordinator == peer || (p->is_repair && !is_repair))) {
		party_give_way(a, p, peer);
	}
	if (s && s->state != SHARE_PUBLISHING && s->coordinator == peer)
		share_give_way(a, s, peer);
	if (t && t->is_repair && !is_repair)
		transaction_fail(a, t, "a push of %s began", h->buffer);
	other = sync_under_way(a, h->buffer, sync);
	if (!other)
		return NULL;
	snprintf(why, WHY_SIZE, "%s is in sync %s of %s", a->config->name, other, h->buffer);
	return "busy";
}

static bool is_queue_full(const struct agent *a, unsigned coordinator)
{
	const struct party *p;
	const struct share *s;
	unsigned n = 0;

	list_for_each(p, &a->parties, link)
		n += p->state == PARTY_QUEUED && p->coordinator == coordinator;
	list_for_each(s, &a->shares, link)
		n += s->state == SHARE_QUEUED && s->coordinator == coordinator;
	return n >= QUEUED_MAX;
}

static const char *refuse_queue(const struct agent *a, unsigned peer, char why[WHY_SIZE])
{
	if (!is_queue_full(a, peer))
		return NULL;
	snprintf(why, WHY_SIZE, "%u syncs of %s wait on %s", QUEUED_MAX, agent_peer_name(a, peer),
		 a->config->name);
	return "busy";
}

const char *admission_refusal(struct agent *a, unsigned peer, const struct document *d,
			      struct head **ret_head, char why[WHY_SIZE])
{
	const char *code = refuse_sender(a, peer, d, why);
	struct head *h;

	if (!code)
		code = refuse_size_or_time(a, d, why);
	if (!code && document_check(a, d, why) < 0)
		code = "signature";
	if (code)
		return code;
	h = *ret_head = head_get(a, d->buffer, d->group);
	snprintf(why, WHY_SIZE, "there are too many buffers on %s", a->config->name);
	code = h ? refuse_order(a, h, d, why) : "buffers";
	if (!code && d->decision && !repair_take_invitation(a, h, peer)) {
		snprintf(why, WHY_SIZE, "%s did not ask %s for it", a->config->name,
			 agent_peer_name(a, peer));
		code = "unasked";
	}
	if (!code)
		code = refuse_busy(a, peer, h, d->decision, "", why);
	return code ? code : refuse_queue(a, peer, why);
}

/* --- Shares ------------------------------------------------------------------------------------- */

static const char *refuse_coordinator(struct agent *a, unsigned peer, const struct invitation *i,
				      char why[WHY_SIZE])
{
	const char *sender = agent_peer_name(a, peer), *us = a->config->name;
	const struct group *g = find_group(a, i->group, i->buffer, why);

	if (!g)
		return "group";
	if (!group_has_member(g, us)) {
		snprintf(why, WHY_SIZE, "%s is no member of the group '%s'", us, g->name);
		return "group";
	}
	if (!group_has_publisher(g, sender)) {
		snprintf(why, WHY_SIZE, "%s may not push to the group '%s', says %s", sender,
			 g->name, us);
		return "publisher";
	}
	if (!i->operation) {
		snprintf(why, WHY_SIZE, "%s knows nothing of what it was asked to take part in", us);
		return "operation";
	}
	if (strcmp(g->device, GROUP_DEVICE_DEFAULT) != 0) {
		snprintf(why, WHY_SIZE,
			 "nodes compute in host memory only, and %s has the group '%s' on %s", us,
			 g->name, g->device);
		return "device";
	}
	if (a->config->tls) {
		snprintf(why, WHY_SIZE,
			 "an %s goes over Gloo, which carries weights in the clear, and %s has "
			 "security = tls under [data] in sync.conf",
			 i->operation->name, us);
		return "security";
	}
	return NULL;
}

const char *admission_refusal_of_share(struct agent *a, unsigned peer, const struct invitation *i,
				       struct head **ret_head, char why[WHY_SIZE])
{
	const char *code = refuse_coordinator(a, peer, i, why);
	struct head *h;

	if (!code)
		code = refuse_size(a, i->n_bytes, why);
	if (!code)
		code = refuse_time(a, agent_peer_name(a, peer), i->time_ns, why);
	if (code)
		return code;
	h = *ret_head = head_get(a, i->buffer, i->group);
	if (!h) {
		snprintf(why, WHY_SIZE, "there are too many buffers on %s", a->config->name);
		return "buffers";
	}
	if (pair_compare(i->pair, head_committed(h)) <= 0)
		return refuse_older(a, h, why);
	code = refuse_busy(a, peer, h, false, peer == AGENT_SELF ? i->sync : "", why);
	return code ? code : refuse_queue(a, peer, why);
}
