/*
 * The commit log of a node is its replicas, with the documents. It is the fence: versions that are
 * not newer are refused. So it is written first, before anything of its content can be read:
 *
 * - A member writes it between COMMIT and the sink's publish. A crash there leaves a commit log that
 *   is ahead of the local weightd: the fence stands. After the restart, the bytes are checked,
 *   published or not, and fetched if they are missing. The other order could lose the fence of a
 *   served version, and accept an older one. Nothing uncommitted is ever served, since COMMIT
 *   precedes both.
 * - A publisher writes it between its decision and the first COMMIT, when it has the bytes. After a
 *   crash its replicas announce the version to all nodes, and a node that missed COMMIT fetches the
 *   version like one that is behind.
 *
 * A commit log contains the committed versions, not those of the local weightd: a restarted weightd
 * may have lost all of them and may reuse a number. Until a source job found the root in the bytes,
 * a replica is unverified and is not announced.
 *
 * After a sync nearly all nodes have the same version, and would announce it to all. So each
 * announces it to a few random nodes, and the coordinator sends all nodes the list of those that
 * still lack it: the others announce it to these. If that list does not arrive, because the
 * coordinator died, they announce it to all nodes that have not announced it themselves. A node
 * that announces an older version is notified.
 *
 * A peer's announcement of its replicas is a claim without proof. It causes a request, and it
 * raises the next number that this node assigns. To keep a peer from exhausting the numbers, a leap
 * is ignored; to keep it from filling the table with invented names, each peer has a share of it,
 * and announced buffers make room for signed ones.
 */
#include "server/sync/state/replica.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/state/agent_hooks.h"
#include "server/sync/state/ended_syncs.h"
#include "server/sync/state/group.h"
#include "server/sync/state/loan.h"
#include "server/sync/state/time_limit.h"

#define N_REPLICAS_MAX 4096
/* Among a thousand nodes, one in three thousand gets no random announcement of a version. */
#define FEW 8
#define SAVE_NS (5 * SECOND)
#define N_HEARD_MAX 1024 /* replicas without a committed version here, per claiming peer */
#define LEAP_MAX ((uint64_t)1 << 20)

struct replica *replica_find(struct agent *a, const char *buffer)
{
	struct replica *rep;

	list_for_each(rep, &a->replicas, link)
		if (strcmp(rep->buffer, buffer) == 0)
			return rep;
	return NULL;
}

static void drop_claims(struct agent *a, const struct replica *rep)
{
	for (unsigned i = 0; i < a->config->n_peers; i++) {
		struct claim *c = replica_claim(a, i, rep);

		if (c)
			*c = a->peers[i].claims[--a->peers[i].n_claims];
	}
}

/* Removes the one that was announced first. */
static void replica_make_room(struct agent *a)
{
	struct replica *rep, *next;

	list_for_each_safe(rep, next, &a->replicas, link) {
		if (rep->document || rep->pull.id[0] || a->hooks->is_in_sync(a, rep))
			continue;
		drop_claims(a, rep);
		replica_free(a, rep);
		return;
	}
}

struct replica *replica_get(struct agent *a, const char *buffer, const char *group)
{
	struct replica *rep = replica_find(a, buffer);

	if (rep)
		return rep;
	if (a->n_replicas == N_REPLICAS_MAX)
		replica_make_room(a);
	if (a->n_replicas == N_REPLICAS_MAX)
		return NULL;
	rep = calloc(1, sizeof(*rep));
	if (!rep)
		return NULL;
	snprintf(rep->buffer, sizeof(rep->buffer), "%s", buffer);
	snprintf(rep->group, sizeof(rep->group), "%s", group);
	rep->asked = NO_PEER;
	rep->base.leaves_fd = -1;
	list_append(&a->replicas, &rep->link);
	a->n_replicas++;
	return rep;
}

static void forget_base(struct replica *rep)
{
	(void)fd_close(rep->base.leaves_fd);
	rep->base = (struct base){.leaves_fd = -1};
}

void replica_free(struct agent *a, struct replica *rep)
{
	work_end(a, &rep->look);
	loan_forget(a, rep);
	patch_chain_deinit(&rep->patch_chain);
	replica_set_asked(a, rep, NO_PEER);
	list_remove(&rep->link);
	a->n_replicas--;
	document_free(rep->document);
	forget_base(rep);
	free(rep);
}

struct version_id replica_committed(const struct replica *rep)
{
	return rep->document ? rep->document->version_id : (struct version_id){0};
}

struct version_id replica_held(const struct replica *rep)
{
	return rep->state == REPLICA_SERVING ? replica_committed(rep) : (struct version_id){0};
}

struct version_id replica_done_with(const struct replica *rep)
{
	return rep->state == REPLICA_SUPERSEDED && !rep->pull.id[0] ? replica_committed(rep)
								    : replica_held(rep);
}

bool replica_is_pulled_from(const struct replica *rep, unsigned peer)
{
	return rep->pull.id[0] && rep->pull.peer == peer;
}

bool replica_is_version(const struct replica *rep)
{
	return rep->document || rep->seen.number;
}

int replica_next(const struct agent *a, const struct replica *rep, const struct group *g,
		 struct version_id *ret)
{
	struct version_id highest = replica_committed(rep);
	bool ours = rep->document && strcmp(rep->document->publisher, a->config->name) == 0;

	if (version_id_compare(rep->seen, highest) > 0) {
		highest = rep->seen;
		ours = false;
	}
	/*
	 * Two publishers that do not see each other must not assign one version_id to two versions.
	 */
	highest.term = group_term(g, a->config->name, ours ? highest.term : highest.term + 1);
	highest.number++;
	if (highest.term > VERSION_ID_MAX || highest.number > VERSION_ID_MAX)
		return -EOVERFLOW;
	*ret = highest;
	return 0;
}

int replica_commit(struct agent *a, struct replica *rep, const struct document *document,
		   uint64_t version, enum replica_state state)
{
	struct document *copy = document_copy(document), *before = rep->document;
	enum replica_state state_before = rep->state;
	uint64_t version_before = rep->version;
	int r;

	if (!copy)
		return -ENOMEM;
	rep->document = copy;
	rep->version = version;
	rep->state = state;
	r = replicas_save(a);
	if (r < 0) {
		rep->document = before;
		rep->version = version_before;
		rep->state = state_before;
		document_free(copy);
		return r;
	}
	document_free(before);
	patch_chain_keep_to(&rep->patch_chain, document->root);
	loan_keep_to(a, rep, document->root);
	if (strcmp(group_device(a->config, rep->group), group_device(a->config, document->group)) !=
	    0)
		forget_base(rep);
	snprintf(rep->group, sizeof(rep->group), "%s", document->group);
	work_end(a, &rep->look);
	rep->look_ns = 0;
	rep->look_is_vain = false;
	replica_ask_nobody(a, rep);
	return 0;
}

void replica_set_serving(struct agent *a, struct replica *rep, uint64_t version)
{
	bool changed = rep->version != version;

	rep->state = REPLICA_SERVING;
	rep->version = version;
	rep->n_retries = 0;
	rep->retry_ns = 0;
	replica_set_asked(a, rep, NO_PEER);
	/* Its number only saves reading another version after a restart. */
	if (changed)
		replicas_save_later(a);
	a->look_again = true;
}

void replica_set_lost(struct agent *a, struct replica *rep)
{
	if (rep->state == REPLICA_SUPERSEDED)
		return;
	rep->state = REPLICA_BEHIND;
	a->look_again = true;
	replica_tell_all(a, rep);
}

void replica_set_superseded(struct agent *a, struct replica *rep)
{
	if (rep->state == REPLICA_SUPERSEDED)
		return;
	work_end(a, &rep->look);
	rep->look_ns = rep->retry_ns = 0;
	replica_set_asked(a, rep, NO_PEER);
	a->look_again = true; /* other replicas wait for a look */
	rep->state = REPLICA_SUPERSEDED;
	loan_forget_idle(a, rep);
	/* After a restart, a look could not distinguish it from a lost version. */
	if (replicas_save(a) < 0)
		agent_log(a, "warning", "%s: the record could not be written", rep->buffer);
	replica_tell_all(a, rep);
}

void replica_set_asked(struct agent *a, struct replica *rep, unsigned peer)
{
	if (rep->asked != NO_PEER)
		a->peers[rep->asked].n_asked--;
	if (peer != NO_PEER)
		a->peers[peer].n_asked++;
	rep->asked = peer;
}

void replica_ask_nobody(struct agent *a, struct replica *rep)
{
	struct claim *c = rep->asked == NO_PEER ? NULL : replica_claim(a, rep->asked, rep);

	if (c)
		c->is_invited = false;
	replica_set_asked(a, rep, NO_PEER);
}

void replica_set_base(struct replica *rep, uint64_t version, uint64_t n_bytes,
		      const uint8_t root[32], int leaves_fd)
{
	forget_base(rep);
	rep->base.leaves_fd = fcntl(leaves_fd, F_DUPFD_CLOEXEC, 3);
	if (rep->base.leaves_fd < 0)
		return; /* all of the next version is sent */
	rep->base.version = version;
	rep->base.n_bytes = n_bytes;
	memcpy(rep->base.root, root, sizeof(rep->base.root));
}

/* --- Peers -------------------------------------------------------------------------------------- */

void replica_seen(struct agent *a, struct replica *rep, struct version_id version_id)
{
	struct version_id committed = replica_committed(rep);

	if (version_id_compare(version_id, committed) <= 0 ||
	    version_id_compare(version_id, rep->seen) <= 0)
		return;
	/*
	 * Counted from the signed version: from claims alone, many small leaps would reach as far.
	 */
	if (version_id.term > committed.term + LEAP_MAX ||
	    version_id.number > committed.number + LEAP_MAX) {
		agent_log(a, "warning", "%s: nobody is at term %ju, number %ju; not believed",
			  rep->buffer, (uintmax_t)version_id.term, (uintmax_t)version_id.number);
		return;
	}
	rep->seen = version_id;
}

struct claim *replica_claim(struct agent *a, unsigned peer, const struct replica *rep)
{
	struct peer *p = &a->peers[peer];

	for (unsigned i = 0; i < p->n_claims; i++)
		if (p->claims[i].replica == rep)
			return &p->claims[i];
	return NULL;
}

/* NULL: no memory. */
static struct claim *get_claim(struct agent *a, unsigned peer, struct replica *rep,
			       const struct group *g)
{
	struct claim *c = replica_claim(a, peer, rep), *more;
	struct peer *p = &a->peers[peer];

	if (c)
		return c;
	more = reallocarray(p->claims, p->n_claims + 1, sizeof(*more));
	if (!more)
		return NULL;
	p->claims = more;
	c = &more[p->n_claims++];
	*c = (struct claim){.replica = rep, .group = g};
	return c;
}

json_t *replica_about_fork(const struct replica *rep, const char *peer)
{
	struct version_id committed = replica_committed(rep);

	return json_pack("{s:s, s:s, s:I, s:I, s:s}", "what", "forked", "buffer", rep->buffer,
			 "term", (json_int_t)committed.term, "number", (json_int_t)committed.number,
			 "peer", peer);
}

/* There is no proof here, and both stay until the next version. */
static void warn_of_fork(struct agent *a, unsigned peer, const struct replica *rep)
{
	struct version_id committed = replica_committed(rep);
	const char *name = agent_peer_name(a, peer);

	agent_log_of(a, replica_about_fork(rep, name), "warning",
		     "%s says to have another version of %s with term %ju, number %ju than %s, which "
		     "has that of %s: push it anew, and see who signed two",
		     name, rep->buffer, (uintmax_t)committed.term, (uintmax_t)committed.number,
		     a->config->name, rep->document->publisher);
}

static void set_claim(struct agent *a, unsigned peer, struct replica *rep, const struct group *g,
		      struct version_id version_id, const uint8_t root[32])
{
	struct claim *c = get_claim(a, peer, rep, g);

	if (!c)
		return;
	/* Once per version, since a peer could alternate in each row to fill the journal. */
	if (version_id.number && version_id_compare(version_id, replica_committed(rep)) == 0 &&
	    memcmp(root, rep->document->root, 32) != 0 &&
	    version_id_compare(version_id, c->forked) != 0) {
		warn_of_fork(a, peer, rep);
		c->forked = version_id;
	}
	c->group = g;
	c->version_id = version_id;
	memcpy(c->root, root, 32);
}

void replica_note_held(struct agent *a, unsigned peer, struct replica *rep, const struct group *g,
		       const struct document *d)
{
	set_claim(a, peer, rep, g, d->version_id, d->root);
}

void replicas_forget_claims(struct agent *a, unsigned peer)
{
	struct peer *p = &a->peers[peer];

	for (unsigned i = 0; i < p->n_claims; i++)
		p->claims[i].version_id = p->claims[i].told = (struct version_id){0};
}

/* --- Announcing -------------------------------------------------------------------------------- */

/* The version that it has the bytes of, and the fence. */
json_t *replica_to_json(const struct replica *rep)
{
	static const uint8_t NOTHING[32];
	struct version_id held = replica_held(rep), fence = replica_committed(rep);
	char root[65];

	return json_pack("{s:s, s:s, s:I, s:I, s:s, s:I, s:I}", "buffer", rep->buffer, "group",
			 rep->group, "term", (json_int_t)held.term, "number",
			 (json_int_t)held.number, "root",
			 field_hex(held.number ? rep->document->root : NOTHING, 32, root),
			 "fence_term", (json_int_t)fence.term, "fence_number",
			 (json_int_t)fence.number);
}

static bool concerns(const struct agent *a, const struct replica *rep, unsigned peer)
{
	const struct group *g = group_find(a->config, rep->group);

	return g && agent_knows(a, g, peer) && agent_knows(a, g, AGENT_SELF);
}

static void note_told(struct agent *a, unsigned peer, struct replica *rep)
{
	struct claim *c = get_claim(a, peer, rep, group_find(a->config, rep->group));

	if (c)
		c->told = replica_held(rep);
}

static bool was_told(struct agent *a, unsigned peer, const struct replica *rep)
{
	const struct claim *c = replica_claim(a, peer, rep);

	return c && version_id_compare(c->told, replica_held(rep)) == 0;
}

/* The peer announced it, or the version's publisher did. */
static bool is_known_to_have(struct agent *a, unsigned peer, const struct replica *rep)
{
	const struct claim *c = replica_claim(a, peer, rep);

	return c && version_id_compare(c->version_id, replica_held(rep)) >= 0;
}

static bool is_there(struct agent *a, unsigned peer, const struct replica *rep)
{
	return a->peers[peer].up && concerns(a, rep, peer);
}

static bool is_untold(struct agent *a, unsigned peer, const struct replica *rep)
{
	return is_there(a, peer, rep) && !was_told(a, peer, rep);
}

static bool could_lack(struct agent *a, unsigned peer, const struct replica *rep)
{
	return is_untold(a, peer, rep) && !is_known_to_have(a, peer, rep);
}

static void put_row(struct agent *a, unsigned peer, struct replica *rep, json_t *rows)
{
	if (!concerns(a, rep, peer))
		return;
	json_array_append_new(rows, replica_to_json(rep));
	note_told(a, peer, rep);
}

/* Steals `rows`. */
static void tell_rows(struct agent *a, unsigned peer, json_t *rows)
{
	if (json_array_size(rows))
		agent_send(a, peer, json_pack("{s:s, s:o}", "type", "heads", "heads", rows));
	else
		json_decref(rows);
}

void replicas_tell(struct agent *a, unsigned peer)
{
	json_t *rows = json_array();
	struct replica *rep;

	list_for_each(rep, &a->replicas, link) {
		if (!rep->document)
			continue;
		if (json_array_size(rows) == REPLICAS_MAX) {
			tell_rows(a, peer, rows);
			rows = json_array();
		}
		put_row(a, peer, rep, rows);
	}
	tell_rows(a, peer, rows);
}

/* Sends it to each peer for which `is_to_hear` is true. Steals `row`. */
static void replica_tell(struct agent *a, struct replica *rep, json_t *row,
			 bool (*is_to_hear)(struct agent *a, unsigned peer,
					    const struct replica *rep))
{
	cleanup(json_freep)
		json_t *message = json_pack("{s:s, s:[o]}", "type", "heads", "heads", row);

	rep->tell_ns = 0;
	for (unsigned i = 0; i < a->config->n_peers; i++) {
		if (!is_to_hear(a, i, rep))
			continue;
		agent_send(a, i, json_incref(message));
		note_told(a, i, rep);
	}
}

void replica_tell_all(struct agent *a, struct replica *rep)
{
	replica_tell(a, rep, replica_to_json(rep), is_there);
}

void replica_tell_few(struct agent *a, struct replica *rep, unsigned coordinator)
{
	unsigned n = 0, n_peers = a->config->n_peers;
	cleanup(json_freep) json_t *message = NULL;

	/* The coordinator ended the sync without us; or there are few peers. */
	if (is_known_to_have(a, coordinator, rep) || n_peers <= FEW) {
		replica_tell_all(a, rep);
		return;
	}
	message = json_pack("{s:s, s:[o]}", "type", "heads", "heads", replica_to_json(rep));
	for (unsigned tries = 0; n < FEW && tries < 4 * FEW; tries++) {
		uint32_t random;
		unsigned peer;

		a->env->random(a->userdata, &random, sizeof(random));
		peer = random % n_peers;
		if (!could_lack(a, peer, rep))
			continue;
		agent_send(a, peer, json_incref(message));
		note_told(a, peer, rep);
		n++;
	}
	rep->tell_ns = agent_now(a) + time_limit_for(a, rep->document->n_bytes) +
		       2 * a->config->stall_ns;
}

/* All nodes of the group, as far as this node knows them. */
static unsigned n_knowing(const struct agent *a, const struct group *g)
{
	unsigned n = agent_knows(a, g, AGENT_SELF);

	for (unsigned i = 0; i < a->config->n_peers; i++)
		n += agent_knows(a, g, i);
	return n;
}

void replica_tell_who_has_it(struct agent *a, struct replica *rep)
{
	json_t *row = replica_to_json(rep), *lacks = json_array();

	for (unsigned i = 0; i < a->config->n_peers; i++)
		if (concerns(a, rep, i) && !is_known_to_have(a, i, rep))
			json_array_append_new(lacks, json_string(a->config->peers[i]));
	json_object_set_new(row, "lacks", lacks);
	json_object_set_new(row, "of",
			    json_integer(n_knowing(a, group_find(a->config, rep->group))));
	replica_tell(a, rep, row, is_there);
}

uint64_t replicas_step(struct agent *a, uint64_t now)
{
	uint64_t next = 0;
	struct replica *rep;

	list_for_each(rep, &a->replicas, link) {
		if (rep->tell_ns && now >= rep->tell_ns)
			replica_tell(a, rep, replica_to_json(rep), could_lack);
		if (rep->tell_ns && (!next || rep->tell_ns < next))
			next = rep->tell_ns;
	}
	return next;
}

/* --- Claims ------------------------------------------------------------------------------------ */

static unsigned n_heard(const struct peer *p)
{
	unsigned n = 0;

	for (unsigned i = 0; i < p->n_claims; i++)
		n += !p->claims[i].replica->document;
	return n;
}

/* An empty claim, or one beyond the share, makes no replica. */
static struct replica *replica_of_claim(struct agent *a, unsigned peer, const char *buffer,
					const char *group, bool is_of_none)
{
	struct replica *rep = replica_find(a, buffer);

	if (rep && !rep->document && !replica_claim(a, peer, rep) &&
	    n_heard(&a->peers[peer]) >= N_HEARD_MAX)
		return NULL;
	if (rep || is_of_none)
		return rep;
	if (a->n_replicas < N_REPLICAS_MAX && n_heard(&a->peers[peer]) < N_HEARD_MAX)
		return replica_get(a, buffer, group);
	agent_log(a, "debug", "%s tells of more buffers than are listened to; the first is %s",
		  agent_peer_name(a, peer), buffer);
	return NULL;
}

static bool is_listed(const json_t *names, const char *name)
{
	json_t *each;
	size_t i;

	json_array_foreach(names, i, each)
	{
		const char *text = json_string_value(each);

		if (text && strcmp(text, name) == 0)
			return true;
	}
	return false;
}

/* The list of a version's publisher: `lacks` are those of `of` nodes without the version. */
static void take_word(struct agent *a, unsigned peer, struct replica *rep, const struct group *g,
		      const json_t *lacks, uint64_t of)
{
	struct version_id version_id = replica_committed(rep);

	if (of != n_knowing(a, g))
		return; /* it has another list of them */
	for (unsigned i = 0; i < a->config->n_peers; i++) {
		const struct claim *c = replica_claim(a, i, rep);

		if (i != peer && a->peers[i].up && agent_knows(a, g, i) &&
		    (!c || version_id_compare(c->version_id, version_id) < 0) &&
		    !is_listed(lacks, a->config->peers[i]))
			replica_note_held(a, i, rep, g, rep->document);
	}
	if (!replica_held(rep).number)
		return;
	/* The coordinator got no announcement of ours, and lists us: announce it again. */
	if (is_listed(lacks, a->config->name))
		replica_tell(a, rep, replica_to_json(rep), is_untold);
	else if (rep->tell_ns)
		replica_tell(a, rep, replica_to_json(rep), could_lack);
}

static bool is_its_own(const struct agent *a, unsigned peer, const struct replica *rep,
		       struct version_id version_id, const uint8_t root[32])
{
	return rep->document && version_id_compare(version_id, rep->document->version_id) == 0 &&
	       memcmp(root, rep->document->root, 32) == 0 &&
	       strcmp(rep->document->publisher, agent_peer_name(a, peer)) == 0;
}

/* Adds the answers to `answers`. */
static int read_row(struct agent *a, unsigned peer, const json_t *row, json_t *answers)
{
	json_t *lacks;
	uint64_t of;
	const char *buffer, *group_name;
	const struct group *g;
	uint8_t root[32];
	struct version_id version_id, fence;
	struct replica *rep;

	if (field_string(row, "buffer", BUFFER_MAX, &buffer) < 0 ||
	    field_string(row, "group", GROUP_MAX, &group_name) < 0 ||
	    field_number(row, "term", VERSION_ID_MAX, &version_id.term) < 0 ||
	    field_number(row, "number", VERSION_ID_MAX, &version_id.number) < 0 ||
	    field_number_or(row, "fence_term", VERSION_ID_MAX, version_id.term, &fence.term) < 0 ||
	    field_number_or(row, "fence_number", VERSION_ID_MAX, version_id.number, &fence.number) <
		    0 ||
	    field_bytes(row, "root", root, 32) < 0)
		return -EBADMSG;
	g = group_find(a->config, group_name);
	if (!g || !group_has_buffer(g, buffer) || !agent_knows(a, g, peer) ||
	    !agent_knows(a, g, AGENT_SELF))
		return 0; /* not a group of this node */
	rep = replica_of_claim(a, peer, buffer, group_name, !version_id.number && !fence.number);
	if (!rep)
		return 0;
	set_claim(a, peer, rep, g, version_id, root);
	replica_seen(a, rep, fence);
	if (version_id_compare(version_id, replica_held(rep)) > 0)
		a->look_again = true;
	else if (version_id_compare(version_id, replica_held(rep)) < 0 && !was_told(a, peer, rep))
		put_row(a, peer, rep, answers);
	if (is_its_own(a, peer, rep, version_id, root) &&
	    field_array(row, "lacks", MEMBERS_MAX, &lacks) == 0 &&
	    field_number(row, "of", INT64_MAX, &of) == 0)
		take_word(a, peer, rep, g, lacks, of);
	return 0;
}

void replica_on_message(struct agent *a, unsigned peer, const json_t *message)
{
	json_t *rows, *row, *answers;
	size_t i;

	if (field_array(message, "heads", REPLICAS_MAX, &rows) < 0) {
		agent_hang_up(a, peer, "heads without its rows");
		return;
	}
	answers = json_array();
	json_array_foreach(rows, i, row)
	{
		if (read_row(a, peer, row, answers) < 0) {
			agent_hang_up(a, peer, "heads with a row of another form");
			break;
		}
	}
	tell_rows(a, peer, answers);
}

/* --- The commit log --------------------------------------------------------------------------------- */

static void note_saved(struct replica *rep)
{
	rep->saved.version_id = replica_committed(rep);
	rep->saved.version = rep->version;
	rep->saved.is_superseded = rep->state == REPLICA_SUPERSEDED;
}

static bool is_saved(const struct replica *rep)
{
	return version_id_compare(rep->saved.version_id, replica_committed(rep)) == 0 &&
	       rep->saved.version == rep->version &&
	       rep->saved.is_superseded == (rep->state == REPLICA_SUPERSEDED);
}

static int replica_save(struct agent *a, bool is_all)
{
	cleanup(json_freep) json_t *piece = json_pack(
		"{s:i, s:s, s:[], s:o}", "protocol", 1, "node", a->config->name, "heads", "history",
		ended_syncs_to_json(a, is_all ? ENDED_SYNCS_MAX : a->n_unsaved));
	json_t *rows = json_object_get(piece, "heads");
	struct replica *rep;

	list_for_each(rep, &a->replicas, link) {
		json_t *row;

		if (!rep->document || (is_saved(rep) && !is_all))
			continue;
		row = document_to_json(rep->document);
		if (json_object_set_new(row, "version", json_integer((json_int_t)rep->version)) < 0 ||
		    json_object_set_new(row, "superseded",
					json_boolean(rep->state == REPLICA_SUPERSEDED)) < 0 ||
		    json_array_append_new(rows, row) < 0)
			return -ENOMEM;
	}
	return piece ? a->env->save(a->userdata, piece, is_all) : -ENOMEM;
}

int replicas_save(struct agent *a)
{
	struct replica *rep;
	int r = replica_save(a, false);

	if (r == SAVE_ALL)
		r = replica_save(a, true);
	if (r < 0)
		return r;
	list_for_each(rep, &a->replicas, link)
		note_saved(rep);
	a->n_unsaved = 0;
	a->save_ns = 0;
	return 0;
}

void replicas_save_later(struct agent *a)
{
	if (!a->save_ns)
		a->save_ns = agent_now(a) + SAVE_NS;
}

static int load_row(struct agent *a, const json_t *row)
{
	cleanup(document_freep) struct document *d = NULL;
	bool is_superseded;
	uint64_t version;
	struct replica *rep;

	if (field_number(row, "version", INT64_MAX, &version) < 0 ||
	    field_bool_or(row, "superseded", false, &is_superseded) < 0 ||
	    document_parse(row, &d) < 0 || !d->decision)
		return -EBADMSG;
	rep = replica_get(a, d->buffer, d->group);
	if (!rep)
		return -ENOMEM;
	document_free(rep->document);
	rep->document = take_ptr(d);
	snprintf(rep->group, sizeof(rep->group), "%s", rep->document->group);
	rep->version = version;
	rep->state = is_superseded ? REPLICA_SUPERSEDED : REPLICA_UNVERIFIED;
	note_saved(rep);
	return 0;
}

static int load_piece(struct agent *a, const json_t *piece, char why[WHY_SIZE])
{
	const char *node;
	uint64_t protocol;
	json_t *rows, *row;
	size_t i;

	if (field_number(piece, "protocol", 1, &protocol) < 0 || protocol != 1 ||
	    field_string(piece, "node", NODE_MAX, &node) < 0 ||
	    field_array(piece, "heads", N_REPLICAS_MAX, &rows) < 0) {
		snprintf(why, WHY_SIZE, "it is no record of weightd-sync");
		return -EBADMSG;
	}
	if (strcmp(node, a->config->name) != 0) {
		snprintf(why, WHY_SIZE, "it is the record of '%s', and this node is '%s'", node,
			 a->config->name);
		return -EBADMSG;
	}
	json_array_foreach(rows, i, row)
	{
		int r = load_row(a, row);

		if (r < 0) {
			snprintf(why, WHY_SIZE, "head %zu of the record is damaged", i);
			return r;
		}
	}
	ended_syncs_load(a, json_object_get(piece, "history"));
	return 0;
}

int replicas_load(struct agent *a, const json_t *commit_log, char why[WHY_SIZE])
{
	json_t *piece;
	size_t i;

	json_array_foreach(commit_log, i, piece)
	{
		int r = load_piece(a, piece, why);

		if (r < 0)
			return r;
	}
	return 0;
}
