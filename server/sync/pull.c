/*
 * A pull has an id from its beginning. Its repair has another one, which the peer chooses later. A pull ends with the
 * repair, with a refusal, or once the version is served here, whichever node sent it.
 */
#include "server/sync/pull.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/utf8.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/coordinator/sync.h"

static void pull_forget(struct replica *rep)
{
	rep->pull = (struct pull){0};
}

static json_t *number_if(uint64_t n, bool is_known)
{
	return is_known ? json_integer((json_int_t)n) : json_null();
}

/* Without a repair, or with one that another reason began. */
static void pull_end(struct agent *a, struct replica *rep, const char *state, const char *why)
{
	const struct pull pull = rep->pull;
	struct version_id version_id = why ? pull.version_id : replica_committed(rep);
	json_t *node = json_pack("{s:s, s:s, s:o, s:s?}", "node", a->config->name, "state", state,
				 "version", number_if(rep->version, !why && rep->version), "why",
				 why);
	json_t *event = json_pack(
		"{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:o, s:o, s:I, s:I, s:[o], s:s?, "
		"s:s*}",
		"event", "end", "sync", pull.id, "kind", "pull", "buffer", rep->buffer, "group",
		rep->group, "role", "member", "state", state, "term", (json_int_t)version_id.term,
		"number", (json_int_t)version_id.number, "size",
		number_if(why ? 0 : rep->document->n_bytes, !why), "changed", number_if(0, !why),
		"started_ns", (json_int_t)pull.started_ns, "ended_ns",
		(json_int_t)a->env->time_ns(a->userdata), "nodes", node, "why", why, "error", why);

	pull_forget(rep);
	agent_event(a, event);
}

void pull_fail(struct agent *a, struct replica *rep, const char *format, ...)
{
	char cause[WHY_SIZE], why[2 * WHY_SIZE];
	va_list args;

	if (!rep->pull.id[0])
		return;
	va_start(args, format);
	utf8_vformat(cause, sizeof(cause), format, args);
	va_end(args);
	(void)snprintf(why, sizeof(why), "'%s' was not pulled from %s: %s", rep->buffer,
		       agent_peer_name(a, rep->pull.peer), cause);
	pull_end(a, rep, "failed", why);
}

void pull_on_refused(struct agent *a, struct replica *rep, unsigned peer, const char *why)
{
	if (!replica_is_pulled_from(rep, peer))
		return;
	replica_ask_nobody(a, rep);
	pull_fail(a, rep, "%s", why);
}

void pull_on_nobody(struct agent *a, struct replica *rep)
{
	if (!rep->pull.id[0])
		return;
	pull_fail(a, rep, "it %s",
		  a->peers[rep->pull.peer].up ? "does not have it any more"
					      : "is not connected any more");
}

void pull_on_participant_end(const struct participant *p)
{
	if (participant_is_repair(p) && replica_is_pulled_from(p->replica, p->coordinator))
		pull_forget(p->replica);
}

/* A repair, a push, or a look at the memory of the local weightd has delivered it. */
static void pull_step_replica(struct agent *a, struct replica *rep)
{
	int order = version_id_compare(replica_committed(rep), rep->pull.version_id);

	if (rep->pull.is_exact && order > 0)
		pull_fail(a, rep, "%s has committed a newer version meanwhile", a->config->name);
	else if (rep->state == REPLICA_SERVING && order >= 0)
		pull_end(a, rep, rep->pull.is_dry ? "planned" : "committed", NULL);
}

void pull_step(struct agent *a)
{
	struct replica *rep;

	list_for_each(rep, &a->replicas, link)
		if (rep->pull.id[0])
			pull_step_replica(a, rep);
}

static struct replica *pull_find(struct agent *a, const char *id)
{
	struct replica *rep;

	list_for_each(rep, &a->replicas, link)
		if (rep->pull.id[0] && strcmp(rep->pull.id, id) == 0)
			return rep;
	return NULL;
}

int pull_cancel(struct agent *a, const char *id, char why[WHY_SIZE])
{
	static const char CANCELLED[] = "it was cancelled";
	struct replica *rep = pull_find(a, id);
	struct participant *p = rep ? participant_find_of_buffer(a, rep->buffer) : NULL;

	if (!rep)
		return -ENOENT;
	if (!p || !participant_is_repair(p) || !replica_is_pulled_from(rep, p->coordinator)) {
		replica_ask_nobody(a, rep);
		pull_fail(a, rep, "%s", CANCELLED);
		return 0;
	}
	if (p->state >= PARTICIPANT_RECORDING) {
		(void)snprintf(why, WHY_SIZE, "pull %s is decided: its version is being published",
			       id);
		return -EALREADY;
	}
	participant_give_up(a, p, "cancelled", CANCELLED);
	return 0;
}

/* --- The beginning ------------------------------------------------------------------------------ */

static int refuse_version(const struct agent *a, const struct replica *rep, unsigned peer,
			  const struct claim *c, const struct pull *pull, char why[WHY_SIZE])
{
	const char *node = agent_peer_name(a, peer), *us = a->config->name;
	struct version_id committed = replica_committed(rep);
	int order = version_id_compare(c->version_id, committed);

	if (pull->is_exact && version_id_compare(c->version_id, pull->version_id) != 0) {
		(void)snprintf(why, WHY_SIZE,
			       "%s has %ju.%ju of '%s', and not %ju.%ju; a node has the newest "
			       "version only",
			       node, (uintmax_t)c->version_id.term, (uintmax_t)c->version_id.number,
			       rep->buffer, (uintmax_t)pull->version_id.term,
			       (uintmax_t)pull->version_id.number);
		return -ENOENT;
	}
	if (order < 0) {
		(void)snprintf(why, WHY_SIZE,
			       "%s has %ju.%ju of '%s', which is older than %ju.%ju, which %s has "
			       "committed; pull from a node that has that one",
			       node, (uintmax_t)c->version_id.term, (uintmax_t)c->version_id.number,
			       rep->buffer, (uintmax_t)committed.term, (uintmax_t)committed.number,
			       us);
		return -ESTALE;
	}
	if (order == 0 && memcmp(c->root, rep->document->root, sizeof(c->root)) != 0) {
		(void)snprintf(why, WHY_SIZE,
			       "%s has another version of '%s' with term %ju, number %ju than %s; "
			       "push it again",
			       node, rep->buffer, (uintmax_t)committed.term,
			       (uintmax_t)committed.number, us);
		return -ESTALE;
	}
	return 0;
}

static int refuse_sync(struct agent *a, const struct replica *rep, char why[WHY_SIZE])
{
	const struct participant *p = participant_find_of_buffer(a, rep->buffer);
	const struct sync *s = sync_find_of_buffer(a, rep->buffer);

	if (!p && !s && !rep->pull.id[0])
		return 0;
	(void)snprintf(why, WHY_SIZE, "sync %s of %s is under way",
		       p   ? p->sync
		       : s ? s->id
			   : rep->pull.id,
		       rep->buffer);
	return -EBUSY;
}

static int find_peer(const struct agent *a, const char *node, unsigned *ret, char why[WHY_SIZE])
{
	unsigned peer = agent_peer_number(a, node);

	if (strcmp(node, a->config->name) == 0) {
		(void)snprintf(why, WHY_SIZE, "%s is this node; name another one", node);
		return -EBADMSG;
	}
	if (peer == NO_PEER) {
		(void)snprintf(why, WHY_SIZE,
			       "sync.conf of %s has no peer '%s'; 'weightctl nodes' lists those that "
			       "it has",
			       a->config->name, node);
		return -ENOENT;
	}
	if (!a->peers[peer].up) {
		(void)snprintf(why, WHY_SIZE,
			       "%s is not connected to %s; 'weightctl nodes' shows why", node,
			       a->config->name);
		return -EHOSTDOWN;
	}
	*ret = peer;
	return 0;
}

int pull_begin(struct agent *a, const json_t *request, char ret_id[SYNC_ID_SIZE], char why[WHY_SIZE])
{
	const char *buffer, *node;
	struct pull pull = {0};
	struct claim *c;
	struct replica *rep;
	int r;

	if (field_string(request, "buffer", BUFFER_MAX, &buffer) < 0 ||
	    field_string(request, "node", NODE_MAX, &node) < 0 ||
	    field_number_or(request, "term", VERSION_ID_MAX, 0, &pull.version_id.term) < 0 ||
	    field_number_or(request, "number", VERSION_ID_MAX, 0, &pull.version_id.number) < 0 ||
	    field_bool_or(request, "dry", false, &pull.is_dry) < 0) {
		(void)snprintf(why, WHY_SIZE, "a pull has buffer, node, term, number and dry");
		return -EBADMSG;
	}
	r = find_peer(a, node, &pull.peer, why);
	if (r < 0)
		return r;
	rep = replica_find(a, buffer);
	c = rep ? replica_claim(a, pull.peer, rep) : NULL;
	if (!c || !c->version_id.number) {
		(void)snprintf(why, WHY_SIZE,
			       "%s has no version of '%s' that was pushed to a group of %s; "
			       "'weightctl nodes --buffers' lists those that nodes have",
			       node, buffer, a->config->name);
		return -ENOENT;
	}
	pull.is_exact = pull.version_id.number != 0;
	r = refuse_version(a, rep, pull.peer, c, &pull, why);
	if (r == 0)
		r = refuse_sync(a, rep, why);
	if (r < 0)
		return r;
	pull.version_id = c->version_id;
	pull.started_ns = a->env->time_ns(a->userdata);
	agent_new_id(a, pull.id);
	replica_ask_nobody(a, rep);
	rep->pull = pull;
	rep->retry_ns = 0;
	rep->n_retries = 0;
	a->look_again = true;
	memcpy(ret_id, pull.id, sizeof(pull.id));
	return 0;
}
