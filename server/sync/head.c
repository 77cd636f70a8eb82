/*
 * The record of a node is its heads, with the documents. It is the fence: what is not newer than the record is
 * refused. So it is written first, before anything can be read that it speaks of:
 *
 * - A member writes it between COMMIT and the sink's publish. A crash there leaves a record that is ahead of the
 *   local weightd: the fence stands, and the bytes, published or not, are looked at after the restart and
 *   fetched if they are not there. The other order could forget the fence of a version that is served, and take
 *   an older one. Nothing that was not committed is ever served, as COMMIT came before both.
 * - A publisher writes it between its decision and the first COMMIT, having the bytes. After a crash it tells
 *   everybody by its heads, and whoever was not told fetches the version as one that is behind.
 *
 * A record says what was committed, never what is here: a weightd that was started anew may have lost all and
 * may use a number again. Until a source job found the root among the bytes, a head is unverified and nobody
 * is told that we have it.
 *
 * What peers say of their heads is a claim without proof. It makes us ask, and it makes the next number that
 * we mint; so that nobody exhausts the numbers, a leap is not believed, and so that nobody fills the table with names
 * that it invents, each peer has a share of it, and what was only heard of makes room for what was signed.
 */
#include "server/sync/head.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/sync/base/fields.h"
#include "server/sync/group.h"
#include "server/sync/history.h"
#include "server/sync/joint.h"
#include "server/sync/lender.h"
#include "server/sync/party.h"
#include "server/sync/transaction.h"

#define N_HEADS_MAX 4096
#define N_HEARD_MAX 1024 /* heads of which nothing was committed here, by what one peer claims */
#define LEAP_MAX ((uint64_t)1 << 20)
#define PAIR_MAX ((uint64_t)1 << 53)

struct head *head_find(struct agent *a, const char *buffer)
{
	struct head *h;

	list_for_each(h, &a->heads, link)
		if (strcmp(h->buffer, buffer) == 0)
			return h;
	return NULL;
}

static bool is_used(const struct agent *a, const struct head *h)
{
	struct transaction *t;
	struct party *p;
	struct joint *j;
	struct share *s;

	if (h->document)
		return true;
	list_for_each(j, &a->joints, link)
		if (j->head == h)
			return true;
	list_for_each(s, &a->shares, link)
		if (s->head == h)
			return true;
	list_for_each(t, &a->transactions, link)
		if (t->head == h)
			return true;
	list_for_each(p, &a->parties, link)
		if (p->head == h)
			return true;
	return false;
}

static void drop_claims(struct agent *a, const struct head *h)
{
	for (unsigned i = 0; i < a->config->n_peers; i++) {
		struct claim *c = head_claim(a, i, h);

		if (c)
			*c = a->peers[i].claims[--a->peers[i].n_claims];
	}
}

/* The one that was heard of first. */
static void make_room(struct agent *a)
{
	struct head *h, *next;

	list_for_each_safe(h, next, &a->heads, link) {
		if (is_used(a, h))
			continue;
		drop_claims(a, h);
		head_free(a, h);
		return;
	}
}

struct head *head_get(struct agent *a, const char *buffer, const char *group)
{
	struct head *h = head_find(a, buffer);

	if (h)
		return h;
	if (a->n_heads == N_HEADS_MAX)
		make_room(a);
	if (a->n_heads == N_HEADS_MAX)
		return NULL;
	h = calloc(1, sizeof(*h));
	if (!h)
		return NULL;
	snprintf(h->buffer, sizeof(h->buffer), "%s", buffer);
	snprintf(h->group, sizeof(h->group), "%s", group);
	h->asked = NO_PEER;
	h->base.leaves_fd = -1;
	list_append(&a->heads, &h->link);
	a->n_heads++;
	return h;
}

void head_free(struct agent *a, struct head *h)
{
	work_end(a, &h->look);
	lender_forget(a, h);
	patches_deinit(&h->patches);
	head_set_asked(a, h, NO_PEER);
	list_remove(&h->link);
	a->n_heads--;
	document_free(h->document);
	if (h->base.leaves_fd >= 0)
		close(h->base.leaves_fd);
	free(h);
}

struct pair head_committed(const struct head *h)
{
	return h->document ? h->document->pair : (struct pair){0};
}

struct pair head_held(const struct head *h)
{
	return h->state == HEAD_SERVING ? head_committed(h) : (struct pair){0};
}

struct pair head_done_with(const struct head *h)
{
	return h->state == HEAD_SUPERSEDED ? head_committed(h) : head_held(h);
}

int head_next(const struct agent *a, const struct head *h, const struct group *g, struct pair *ret)
{
	struct pair highest = head_committed(h);
	bool ours = h->document && strcmp(h->document->publisher, a->config->name) == 0;

	if (pair_compare(h->seen, highest) > 0) {
		highest = h->seen;
		ours = false;
	}
	/* Two publishers that do not see each other must not mint one pair for two versions. */
	highest.term = group_term(g, a->config->name, ours ? highest.term : highest.term + 1);
	highest.number++;
	if (highest.term > PAIR_MAX || highest.number > PAIR_MAX)
		return -EOVERFLOW;
	*ret = highest;
	return 0;
}

int head_commit(struct agent *a, struct head *h, const struct document *document, uint64_t version,
		enum head_state state)
{
	struct document *copy = document_copy(document), *before = h->document;
	enum head_state state_before = h->state;
	uint64_t version_before = h->version;
	int r;

	if (!copy)
		return -ENOMEM;
	h->document = copy;
	h->version = version;
	h->state = state;
	r = heads_save(a);
	if (r < 0) {
		h->document = before;
		h->version = version_before;
		h->state = state_before;
		document_free(copy);
		return r;
	}
	document_free(before);
	patches_keep_to(&h->patches, document->root);
	lender_keep_to(a, h, document->root);
	snprintf(h->group, sizeof(h->group), "%s", document->group);
	work_end(a, &h->look);
	h->look_ns = 0;
	h->look_is_vain = false;
	return 0;
}

void head_set_serving(struct agent *a, struct head *h, uint64_t version)
{
	bool changed = h->version != version;

	h->state = HEAD_SERVING;
	h->version = version;
	h->n_retries = 0;
	h->retry_ns = 0;
	head_set_asked(a, h, NO_PEER);
	/* Its number only saves us from looking at another version after a restart. */
	if (changed && heads_save(a) < 0)
		agent_log(a, "warning", "%s: the record could not be written", h->buffer);
	a->look_again = true;
	head_tell_all(a, h);
}

void head_set_lost(struct agent *a, struct head *h)
{
	if (h->state == HEAD_SUPERSEDED)
		return;
	h->state = HEAD_BEHIND;
	a->look_again = true;
	head_tell_all(a, h);
}

void head_set_superseded(struct agent *a, struct head *h)
{
	if (h->state == HEAD_SUPERSEDED)
		return;
	work_end(a, &h->look);
	h->look_ns = h->retry_ns = 0;
	head_set_asked(a, h, NO_PEER);
	a->look_again = true; /* others wait for a look */
	h->state = HEAD_SUPERSEDED;
	/* After a start of ours a look would not tell it from a version that was lost. */
	if (heads_save(a) < 0)
		agent_log(a, "warning", "%s: the record could not be written", h->buffer);
	head_tell_all(a, h);
}

void head_set_asked(struct agent *a, struct head *h, unsigned peer)
{
	if (h->asked != NO_PEER)
		a->peers[h->asked].n_asked--;
	if (peer != NO_PEER)
		a->peers[peer].n_asked++;
	h->asked = peer;
}

void head_set_base(struct head *h, uint64_t version, uint64_t n_bytes, const uint8_t root[32],
		   int leaves_fd)
{
	if (h->base.leaves_fd >= 0)
		close(h->base.leaves_fd);
	h->base = (struct base){.leaves_fd = fcntl(leaves_fd, F_DUPFD_CLOEXEC, 3)};
	if (h->base.leaves_fd < 0)
		return; /* all of the next version travels */
	h->base.version = version;
	h->base.n_bytes = n_bytes;
	memcpy(h->base.root, root, sizeof(h->base.root));
}

/* --- Peers -------------------------------------------------------------------------------------- */

void head_seen(struct agent *a, struct head *h, struct pair pair)
{
	struct pair highest = head_committed(h);

	if (pair_compare(h->seen, highest) > 0)
		highest = h->seen;
	if (pair_compare(pair, highest) <= 0)
		return;
	if (pair.term > highest.term + LEAP_MAX || pair.number > highest.number + LEAP_MAX) {
		agent_log(a, "warning", "%s: nobody is at term %ju, number %ju; not believed",
			  h->buffer, (uintmax_t)pair.term, (uintmax_t)pair.number);
		return;
	}
	h->seen = pair;
}

struct claim *head_claim(struct agent *a, unsigned peer, const struct head *h)
{
	struct peer *p = &a->peers[peer];

	for (unsigned i = 0; i < p->n_claims; i++)
		if (p->claims[i].head == h)
			return &p->claims[i];
	return NULL;
}

static void set_claim(struct agent *a, unsigned peer, struct head *h, const struct group *g,
		      struct pair pair, const uint8_t root[32])
{
	struct claim *c = head_claim(a, peer, h);
	struct peer *p = &a->peers[peer];

	if (!c) {
		struct claim *more = reallocarray(p->claims, p->n_claims + 1, sizeof(*more));

		if (!more)
			return;
		p->claims = more;
		c = &more[p->n_claims++];
		*c = (struct claim){.head = h};
	}
	c->group = g;
	c->pair = pair;
	memcpy(c->root, root, 32);
}

void heads_forget_claims(struct agent *a, unsigned peer)
{
	struct peer *p = &a->peers[peer];

	for (unsigned i = 0; i < p->n_claims; i++)
		p->claims[i].pair = (struct pair){0};
}

static unsigned n_heard(const struct peer *p)
{
	unsigned n = 0;

	for (unsigned i = 0; i < p->n_claims; i++)
		n += !p->claims[i].head->document;
	return n;
}

/* What says nothing, or too much, makes no head. */
static struct head *head_of_claim(struct agent *a, unsigned peer, const char *buffer,
				  const char *group, bool is_of_none)
{
	struct head *h = head_find(a, buffer);

	if (h && !h->document && !head_claim(a, peer, h) && n_heard(&a->peers[peer]) >= N_HEARD_MAX)
		return NULL;
	if (h || is_of_none)
		return h;
	if (a->n_heads < N_HEADS_MAX && n_heard(&a->peers[peer]) < N_HEARD_MAX)
		return head_get(a, buffer, group);
	agent_log(a, "debug", "%s tells of more buffers than are listened to; the first is %s",
		  agent_peer_name(a, peer), buffer);
	return NULL;
}

static int read_row(struct agent *a, unsigned peer, const json_t *row)
{
	const char *buffer, *group_name;
	const struct group *g;
	uint8_t root[32];
	struct pair pair, fence;
	struct head *h;

	if (field_string(row, "buffer", BUFFER_MAX, &buffer) < 0 ||
	    field_string(row, "group", GROUP_MAX, &group_name) < 0 ||
	    field_number(row, "term", PAIR_MAX, &pair.term) < 0 ||
	    field_number(row, "number", PAIR_MAX, &pair.number) < 0 ||
	    field_number_or(row, "fence_term", PAIR_MAX, pair.term, &fence.term) < 0 ||
	    field_number_or(row, "fence_number", PAIR_MAX, pair.number, &fence.number) < 0 ||
	    field_bytes(row, "root", root, 32) < 0)
		return -EBADMSG;
	g = group_find(a->config, group_name);
	if (!g || !group_has_buffer(g, buffer) || !agent_knows(a, g, peer) ||
	    !agent_knows(a, g, AGENT_SELF))
		return 0; /* no business of ours */
	h = head_of_claim(a, peer, buffer, group_name, !pair.number && !fence.number);
	if (!h)
		return 0;
	set_claim(a, peer, h, g, pair, root);
	head_seen(a, h, fence);
	if (pair_compare(pair, head_held(h)) > 0)
		a->look_again = true;
	return 0;
}

void head_on_message(struct agent *a, unsigned peer, const json_t *message)
{
	json_t *rows, *row;
	size_t i;

	if (field_array(message, "heads", HEADS_MAX, &rows) < 0) {
		agent_hang_up(a, peer, "heads without its rows");
		return;
	}
	json_array_foreach(rows, i, row)
	{
		if (read_row(a, peer, row) < 0) {
			agent_hang_up(a, peer, "heads with a row of another form");
			return;
		}
	}
}

/* What it has the bytes of, and, behind it, what it refuses to take anything older than. */
json_t *head_to_json(const struct head *h)
{
	static const uint8_t NOTHING[32];
	struct pair held = head_held(h), fence = head_committed(h);
	char root[65];

	return json_pack("{s:s, s:s, s:I, s:I, s:s, s:I, s:I}", "buffer", h->buffer, "group",
			 h->group, "term", (json_int_t)held.term, "number", (json_int_t)held.number,
			 "root", field_hex(held.number ? h->document->root : NOTHING, 32, root),
			 "fence_term", (json_int_t)fence.term, "fence_number",
			 (json_int_t)fence.number);
}

static bool concerns(const struct agent *a, const struct head *h, unsigned peer)
{
	const struct group *g = group_find(a->config, h->group);

	return g && agent_knows(a, g, peer) && agent_knows(a, g, AGENT_SELF);
}

static void tell_rows(struct agent *a, unsigned peer, json_t *rows)
{
	if (json_array_size(rows))
		agent_send(a, peer, json_pack("{s:s, s:o}", "type", "heads", "heads", rows));
	else
		json_decref(rows);
}

void heads_tell(struct agent *a, unsigned peer)
{
	json_t *rows = json_array();
	struct head *h;

	list_for_each(h, &a->heads, link) {
		if (!h->document || !concerns(a, h, peer))
			continue;
		if (json_array_size(rows) == HEADS_MAX) {
			tell_rows(a, peer, rows);
			rows = json_array();
		}
		json_array_append_new(rows, head_to_json(h));
	}
	tell_rows(a, peer, rows);
}

void head_tell_all(struct agent *a, const struct head *h)
{
	cleanup(json_freep) json_t *message = json_pack("{s:s, s:[o]}", "type", "heads", "heads",
							head_to_json(h));

	for (unsigned i = 0; i < a->config->n_peers; i++)
		if (a->peers[i].up && concerns(a, h, i))
			agent_send(a, i, json_incref(message));
}

/* --- The record --------------------------------------------------------------------------------- */

int heads_save(struct agent *a)
{
	cleanup(json_freep)
		json_t *record = json_pack("{s:i, s:s, s:[], s:o}", "protocol", 1, "node",
					   a->config->name, "heads", "history", history_to_json(a));
	json_t *rows = json_object_get(record, "heads");
	struct head *h;
	int r;

	list_for_each(h, &a->heads, link) {
		json_t *row = h->document ? document_to_json(h->document) : NULL;

		if (!h->document)
			continue;
		if (json_object_set_new(row, "version", json_integer((json_int_t)h->version)) < 0 ||
		    json_object_set_new(row, "superseded",
					json_boolean(h->state == HEAD_SUPERSEDED)) < 0 ||
		    json_array_append_new(rows, row) < 0)
			return -ENOMEM;
	}
	r = record ? a->edge->save(a->world, record) : -ENOMEM;
	if (r == 0)
		a->history_ns = 0;
	return r;
}

static int load_row(struct agent *a, const json_t *row)
{
	cleanup(document_freep) struct document *d = NULL;
	bool is_superseded;
	uint64_t version;
	struct head *h;

	if (field_number(row, "version", INT64_MAX, &version) < 0 ||
	    field_bool_or(row, "superseded", false, &is_superseded) < 0 ||
	    document_parse(row, &d) < 0 || !d->decision || head_find(a, d->buffer))
		return -EBADMSG;
	h = head_get(a, d->buffer, d->group);
	if (!h)
		return -ENOMEM;
	h->document = take_ptr(d);
	h->version = version;
	h->state = is_superseded ? HEAD_SUPERSEDED : HEAD_UNVERIFIED;
	return 0;
}

int heads_load(struct agent *a, const json_t *record, char why[WHY_SIZE])
{
	const char *node;
	uint64_t protocol;
	json_t *rows, *row;
	size_t i;

	if (field_number(record, "protocol", 1, &protocol) < 0 || protocol != 1 ||
	    field_string(record, "node", NODE_MAX, &node) < 0 ||
	    field_array(record, "heads", N_HEADS_MAX, &rows) < 0) {
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
	history_load(a, json_object_get(record, "history"));
	return 0;
}
