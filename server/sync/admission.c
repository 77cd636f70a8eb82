/*
 * Admission of a version, before the node receives any of it. The sender must be allowed to send it, its publisher must
 * have signed it, it must be newer than the version that is committed here, and there must be room for it and nothing
 * more urgent. The node keeps nothing of a refused version.
 *
 * A version that was committed long ago may be signed with a certificate that has expired since. A thief of the key can
 * sign another version today and date it back: the document alone does not distinguish the two. The rest of the group
 * does. The version was committed before if our commit log has it, or if more than half of the other nodes in the group
 * have it.
 */
#include "server/sync/admission.h"

#include <stdio.h>
#include <string.h>

#include "server/sync/coordinator/sync.h"
#include "server/sync/repair.h"
#include "server/sync/state/group.h"
#include "server/sync/state/retry.h"

#define PUSH_AGE_MAX (15 * 60 * SECOND)
#define QUEUED_MAX 64 /* per coordinator: each holds a document */

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

/* Checks the sender, before any signature. Returns the code of the refusal, or NULL. */
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

/* A push that is not committed is not valid for long. */
static const char *refuse_time(struct agent *a, const char *sender, uint64_t time_ns,
			       char why[WHY_SIZE])
{
	uint64_t now = a->env->time_ns(a->userdata);
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
	if (document_blobs_bytes(d) > participant_blobs_max(a)) {
		snprintf(why, WHY_SIZE,
			 "its layout %s %ju bytes, and max-bytes of %s leaves %ju for those",
			 d->companions_bytes ? "and files have" : "has",
			 (uintmax_t)(d->layout_bytes + d->companions_bytes), a->config->name,
			 (uintmax_t)participant_blobs_max(a));
		return "size";
	}
	return d->decision ? NULL : refuse_time(a, d->publisher, d->time_ns, why);
}

/* Counts the other members that say they have it, each over its own connection. */
static unsigned n_that_have(struct agent *a, const struct group *g, const struct replica *rep,
			    const struct document *d, unsigned *ret_n_others)
{
	unsigned n = 0;

	*ret_n_others = 0;
	for (unsigned i = 0; i < a->config->n_peers; i++) {
		const struct claim *c;

		if (!group_has_member(g, a->config->peers[i]))
			continue;
		++*ret_n_others;
		c = a->peers[i].up ? replica_claim(a, i, rep) : NULL;
		n += c && c->group == g && version_id_compare(c->version_id, d->version_id) == 0 &&
		     memcmp(c->root, d->root, 32) == 0;
	}
	return n;
}

static bool was_committed_before(struct agent *a, const struct document *d, char why[WHY_SIZE])
{
	const struct group *g = group_find(a->config, d->group);
	const struct replica *rep = replica_find(a, d->buffer);
	unsigned n, n_others;

	if (!rep)
		return false;
	if (version_id_compare(d->version_id, replica_committed(rep)) == 0 &&
	    memcmp(d->root, rep->document->root, 32) == 0)
		return true;
	n = n_that_have(a, g, rep, d, &n_others);
	if (2 * n > n_others)
		return true;
	snprintf(why + strlen(why), WHY_SIZE - strlen(why),
		 "; what it signed before is taken once more than half of the others have it, and %u of "
		 "%u do: start those, or push it anew",
		 n, n_others);
	return false;
}

static const char *refuse_signature(struct agent *a, const struct document *d, char why[WHY_SIZE])
{
	char then[WHY_SIZE];

	if (document_check(a, d, why) == 0)
		return NULL;
	if (d->decision && document_check_then(a, d, then) == 0 && was_committed_before(a, d, why))
		return NULL;
	return "signature";
}

static const char *refuse_older(struct agent *a, const struct replica *rep, char why[WHY_SIZE])
{
	struct version_id committed = replica_committed(rep);

	snprintf(why, WHY_SIZE, "%s has term %ju, number %ju of %s, which is not older",
		 a->config->name, (uintmax_t)committed.term, (uintmax_t)committed.number,
		 rep->buffer);
	return "fenced";
}

/*
 * A publisher uses the number of a failed version again. It never does so with the number of a committed one, as long as
 * it has its own key and its commit log.
 */
static const char *refuse_twin(struct agent *a, unsigned peer, const struct replica *rep,
			       const struct document *d, char why[WHY_SIZE])
{
	snprintf(why, WHY_SIZE,
		 "%s has term %ju, number %ju of %s as %s signed it, and %s signed another version "
		 "with these",
		 a->config->name, (uintmax_t)d->version_id.term, (uintmax_t)d->version_id.number,
		 rep->buffer, rep->document->publisher, d->publisher);
	agent_log_of(a, replica_about_fork(rep, agent_peer_name(a, peer)), "warning",
		     "%s, which %s brought and which is refused", why, agent_peer_name(a, peer));
	return "fenced";
}

static const char *refuse_order(struct agent *a, unsigned peer, const struct replica *rep,
				const struct document *d, char why[WHY_SIZE])
{
	struct version_id committed = replica_committed(rep);
	int order = version_id_compare(d->version_id, committed);

	if (order == 0 && memcmp(d->root, rep->document->root, 32) == 0) {
		if (!replica_done_with(rep).number)
			return NULL;
		snprintf(why, WHY_SIZE, "%s %s", a->config->name,
			 rep->state == REPLICA_SERVING ? "serves it already"
						       : "had it, and let go of it");
		return "there";
	}
	if (order == 0)
		return refuse_twin(a, peer, rep, d, why);
	return order > 0 ? NULL : refuse_older(a, rep, why);
}

/* Returns the id of a sync of the buffer that is under way, of any kind but `except`, or NULL. */
static const char *sync_under_way(struct agent *a, const char *buffer, const char *except)
{
	const struct participant *p = participant_find_of_buffer(a, buffer);
	const struct sync *s = sync_find_of_buffer(a, buffer);

	if (p)
		return p->sync;
	return s && strcmp(s->id, except) != 0 ? s->id : NULL;
}

/*
 * A push is more urgent than a repair, and only what is no more than a plan ends none. A coordinator that prepares again
 * has forgotten what it prepared before.
 */
static const char *refuse_busy(struct agent *a, unsigned peer, const struct replica *rep,
			       bool is_urgent, const char *sync, char why[WHY_SIZE])
{
	struct participant *p = participant_find_of_buffer(a, rep->buffer);
	struct sync *s = sync_find_of_buffer(a, rep->buffer);
	const char *other;

	if (p && p->state != PARTICIPANT_PUBLISHING &&
	    (p->coordinator == peer || (participant_is_repair(p) && is_urgent)))
		participant_give_way(a, p, peer);
	if (s && (sync_is_repair(s) || sync_is_only_slow(s)) && is_urgent)
		sync_fail(a, s, "a push of %s began", rep->buffer);
	other = sync_under_way(a, rep->buffer, sync);
	if (!other)
		return NULL;
	snprintf(why, WHY_SIZE, "%s is in sync %s of %s", a->config->name, other, rep->buffer);
	return "busy";
}

/* A version that could not be committed is not fetched. */
static const char *refuse_disk(const struct agent *a, char why[WHY_SIZE])
{
	return a->env->may_save(a->userdata, why) < 0 ? "disk" : NULL;
}

static bool is_queue_full(const struct agent *a, unsigned coordinator)
{
	const struct participant *p;
	unsigned n = 0;

	list_for_each(p, &a->participants, link)
		n += p->state == PARTICIPANT_QUEUED && p->coordinator == coordinator;
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

/* The version and the kind of a repair are those that the user asked for. */
static const char *refuse_pull(const struct agent *a, unsigned peer, const struct replica *rep,
			       const struct document *d, bool is_dry, char why[WHY_SIZE])
{
	const struct pull *pull = &rep->pull;

	if (!d->decision || !replica_is_pulled_from(rep, peer))
		return NULL;
	if (pull->is_exact && version_id_compare(d->version_id, pull->version_id) != 0) {
		snprintf(why, WHY_SIZE, "%s has %ju.%ju of it by now, and %ju.%ju is asked for",
			 agent_peer_name(a, peer), (uintmax_t)d->version_id.term,
			 (uintmax_t)d->version_id.number, (uintmax_t)pull->version_id.term,
			 (uintmax_t)pull->version_id.number);
		return "version";
	}
	if (pull->is_dry == is_dry)
		return NULL;
	snprintf(why, WHY_SIZE, "%s %s", agent_peer_name(a, peer),
		 is_dry ? "only plans it" : "has an earlier release, which cannot plan it");
	return "dry";
}

const char *admission_refusal(struct agent *a, unsigned peer, const struct document *d, bool is_dry,
			      struct replica **ret_replica, char why[WHY_SIZE])
{
	const char *code = refuse_sender(a, peer, d, why);
	struct replica *rep;

	if (!code)
		code = refuse_size_or_time(a, d, why);
	if (code)
		return code;
	code = refuse_signature(a, d, why);
	if (code) {
		repair_on_worthless(a, peer, d->buffer);
		return code;
	}
	rep = *ret_replica = replica_get(a, d->buffer, d->group);
	snprintf(why, WHY_SIZE, "there are too many buffers on %s", a->config->name);
	code = rep ? refuse_order(a, peer, rep, d, why) : "buffers";
	if (!code && d->decision && !retry_take_invitation(a, rep, peer)) {
		snprintf(why, WHY_SIZE, "%s did not ask %s for it", a->config->name,
			 agent_peer_name(a, peer));
		code = "unasked";
	}
	if (!code)
		code = refuse_pull(a, peer, rep, d, is_dry, why);
	if (!code)
		code = refuse_disk(a, why);
	if (!code)
		code = refuse_busy(a, peer, rep, !d->decision && !is_dry, "", why);
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
	if (!i->op) {
		snprintf(why, WHY_SIZE, "%s knows nothing of what it was asked to take part in", us);
		return "operation";
	}
	if (i->shard.gives && !find_group(a, i->group, i->shard.source, why))
		return "group"; /* or a publisher could read what is none of the group's */
	if (a->config->tls && i->op->transport->is_nccl) {
		snprintf(why, WHY_SIZE,
			 "%s goes over %s, which carries weights in the clear, and %s has "
			 "security = tls under [data] in sync.conf",
			 i->op->an, i->op->over, us);
		return "security";
	}
	return NULL;
}

const char *admission_refusal_of_contributor(struct agent *a, unsigned peer,
					     const struct invitation *i,
					     struct replica **ret_replica, char why[WHY_SIZE])
{
	const char *code = refuse_coordinator(a, peer, i, why);
	struct replica *rep;

	if (!code)
		code = refuse_size(a, i->n_bytes, why);
	if (!code)
		code = refuse_time(a, agent_peer_name(a, peer), i->time_ns, why);
	if (code)
		return code;
	rep = *ret_replica = replica_get(a, i->buffer, i->group);
	if (!rep) {
		snprintf(why, WHY_SIZE, "there are too many buffers on %s", a->config->name);
		return "buffers";
	}
	if (!i->op->is_version && replica_is_version(rep)) {
		snprintf(why, WHY_SIZE, "'%s' is a version of the group '%s' on %s", i->buffer,
			 rep->group, a->config->name);
		return "version";
	}
	if (i->op->is_version && version_id_compare(i->version_id, replica_committed(rep)) <= 0)
		return refuse_older(a, rep, why);
	code = refuse_disk(a, why);
	if (!code)
		code = refuse_busy(a, peer, rep, !i->is_dry, peer == AGENT_SELF ? i->sync : "", why);
	return code ? code : refuse_queue(a, peer, why);
}
