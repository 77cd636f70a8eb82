/*
 * What a node asks of a version before it takes any of it: that whoever brings it may, that its publisher signed it,
 * that it is newer than what is committed here, and that there is room and nothing more urgent. Nothing is kept
 * of what is refused.
 */
#include "server/sync/admission.h"

#include <stdio.h>
#include <string.h>

#include "server/sync/group.h"
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

/* Who may bring what, before a look at any signature. Returns the code of the refusal, or NULL. */
static const char *refuse_sender(struct agent *a, unsigned peer, const struct document *d,
				 char why[WHY_SIZE])
{
	const struct group *g = group_find(a->config, d->group);
	const char *sender = agent_peer_name(a, peer);

	if (!g || !group_has_buffer(g, d->buffer)) {
		snprintf(why, WHY_SIZE, "%s has no group '%s' with the buffer '%s'",
			 a->config->name, d->group, d->buffer);
		return "group";
	}
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

static const char *refuse_size_or_time(struct agent *a, const struct document *d, char why[WHY_SIZE])
{
	uint64_t now = a->edge->time_ns(a->world);
	uint64_t age = now > d->time_ns ? now - d->time_ns : d->time_ns - now;

	if (a->config->max_bytes && d->n_bytes > a->config->max_bytes) {
		snprintf(why, WHY_SIZE, "it has %ju bytes, and max-bytes of %s is %ju",
			 (uintmax_t)d->n_bytes, a->config->name, (uintmax_t)a->config->max_bytes);
		return "size";
	}
	if (admission_blobs_size(d) > admission_blobs_max(a)) {
		snprintf(why, WHY_SIZE,
			 "its layout has %ju bytes, and max-bytes of %s leaves %ju for those",
			 (uintmax_t)d->layout_bytes, a->config->name,
			 (uintmax_t)admission_blobs_max(a));
		return "size";
	}
	if (!d->decision && age > PUSH_AGE_MAX) {
		snprintf(why, WHY_SIZE, "the clock of %s and that of %s differ by %ju s",
			 d->publisher, a->config->name, (uintmax_t)(age / SECOND));
		return "clock";
	}
	return NULL;
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
	if (order > 0)
		return NULL;
	snprintf(why, WHY_SIZE, "%s has term %ju, number %ju of %s, which is not older",
		 a->config->name, (uintmax_t)committed.term, (uintmax_t)committed.number, h->buffer);
	return "fenced";
}

/*
 * A push is more urgent than a repair, and a coordinator that prepares again has forgotten what it prepared
 * before.
 */
static const char *refuse_busy(struct agent *a, unsigned peer, const struct head *h, bool is_repair,
			       char why[WHY_SIZE])
{
	struct party *p = party_find_of_buffer(a, h->buffer);
	struct transaction *t = transaction_find_of_buffer(a, h->buffer);

	if (p && p->state != PARTY_PUBLISHING &&
	    (p->coordinator == peer || (p->is_repair && !is_repair))) {
		party_give_way(a, p, peer);
		p = NULL;
	}
	if (t && t->is_repair && !is_repair) {
		transaction_fail(a, t, "a push of %s began", h->buffer);
		t = NULL;
	}
	if (!p && !t)
		return NULL;
	snprintf(why, WHY_SIZE, "%s is in sync %s of %s", a->config->name, p ? p->sync : t->sync,
		 h->buffer);
	return "busy";
}

static bool is_queue_full(const struct agent *a, unsigned coordinator)
{
	const struct party *p;
	unsigned n = 0;

	list_for_each(p, &a->parties, link)
		n += p->state == PARTY_QUEUED && p->coordinator == coordinator;
	return n >= QUEUED_MAX;
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
		code = refuse_busy(a, peer, h, d->decision, why);
	if (!code && is_queue_full(a, peer)) {
		snprintf(why, WHY_SIZE, "%u syncs of %s wait on %s", QUEUED_MAX,
			 agent_peer_name(a, peer), a->config->name);
		code = "busy";
	}
	return code;
}
