#include "server/buffers/held_charge.h"

#include <stdbool.h>
#include <stddef.h>

#include "ipc/base/num.h"

#include "server/buffers/buffer.h"
#include "server/buffers/version.h"
#include "server/memory/layout_table.h"
#include "server/memory/slot.h"
#include "server/memory/version_files.h"
#include "server/state/cost.h"
#include "server/state/server.h"

/* The reader to charge for a version that nothing but readers needs; HELD_NOBODY: its publisher. */
static uid_t reader_of(const struct version *v)
{
	const struct hold *first = list_first(&v->holds, struct hold, link);

	if (v->rewriting || v == v->buffer->spare || version_hold(v, v->slot->uid))
		return HELD_NOBODY;
	if (first)
		return first->uid;
	return v->orphan ? v->last_reader : HELD_NOBODY;
}

static void count_as_held(struct version *v, uid_t uid)
{
	held_forget(v);
	v->holder = uid;
	if (uid == HELD_NOBODY)
		return;
	list_append(&v->buffer->server->held, &v->held_link);
	v->held_cost = cost_ref(v->buffer->server, uid);
	v->held_cost->held_bytes += v->slot->charge.amount;
}

/* Out of memory, the charges stay where they are, until the next time. */
static void charge_reader(struct version *v, uid_t uid)
{
	bool is_held = uid != HELD_NOBODY;
	struct slot *s = v->slot;
	struct quota *q = &v->buffer->server->quota;
	uid_t payer = is_held ? uid : s->uid;

	if (v->holder == uid || !s->charge.account)
		return;
	if (quota_move(q, payer, is_held ? QUOTA_HELD : QUOTA_BYTES, &s->charge) < 0)
		return;
	(void)quota_move(q, payer, QUOTA_DESCRIPTORS, &s->descriptors);
	if (is_held)
		quota_refund(&v->charge);
	else if (!v->ended_ns && !v->charge.account)
		(void)quota_charge_anyway(q, v->uid, QUOTA_VERSIONS, 1, &v->charge);
	count_as_held(v, uid);
}

static struct kept_memfd *table_of(const struct version *v)
{
	return &v->table->memfd;
}

static struct kept_memfd *files_of(const struct version *v)
{
	return v->files ? &v->files->memfd : NULL;
}

typedef struct kept_memfd *(*part_fn)(const struct version *v);

/* The reader to charge for what versions share; HELD_NOBODY: something else than held versions has it. */
static uid_t reader_of_part(const struct buffer *b, const struct kept_memfd *m, part_fn part)
{
	const struct list *lists[] = {&b->leaving, &b->versions};
	uid_t reader = HELD_NOBODY;
	const struct version *v;
	unsigned n = 0;

	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		list_for_each(v, lists[i], link) {
			if (part(v) != m)
				continue;
			if (v->holder == HELD_NOBODY)
				return HELD_NOBODY;
			reader = n++ ? reader : v->holder;
		}
	return n == m->n_refs ? reader : HELD_NOBODY;
}

static void charge_part(struct version *v, part_fn part)
{
	struct kept_memfd *m = part(v);
	struct quota *q = &v->buffer->server->quota;
	uid_t reader, payer;

	if (!m || (v->holder == HELD_NOBODY && m->charge.kind != QUOTA_HELD))
		return;
	reader = reader_of_part(v->buffer, m, part);
	payer = reader == HELD_NOBODY ? m->uid : reader;
	(void)quota_move(q, payer, reader == HELD_NOBODY ? QUOTA_BYTES : QUOTA_HELD, &m->charge);
	(void)quota_move(q, payer, QUOTA_DESCRIPTORS, &m->descriptor);
}

/* Manifest and head of a buffer that was removed stay as long as its versions. */
static void charge_buffer(struct buffer *b)
{
	const struct version *v;
	uid_t payer = b->access.uid;

	list_for_each(v, &b->leaving, link)
		if (v->holder != HELD_NOBODY) {
			payer = v->holder;
			break;
		}
	(void)quota_move(&b->server->quota, payer, QUOTA_DESCRIPTORS, &b->descriptors);
}

static void charge_parts(struct buffer *b)
{
	struct list *lists[] = {&b->leaving, &b->versions};
	struct version *v;

	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		list_for_each(v, lists[i], link) {
			charge_part(v, table_of);
			charge_part(v, files_of);
		}
	if (b->removed)
		charge_buffer(b);
}

void held_settle(struct buffer *b)
{
	unsigned n_beyond = b->n_versions > b->keep ? b->n_versions - b->keep : 0;
	struct version *v;

	list_for_each(v, &b->leaving, link)
		charge_reader(v, reader_of(v));
	list_for_each(v, &b->versions, link) {
		bool is_beyond = n_beyond > 0 && v->number != b->current;

		n_beyond -= is_beyond;
		charge_reader(v, is_beyond ? reader_of(v) : HELD_NOBODY);
	}
	charge_parts(b);
	if (b->server->held_changed && !list_empty(&b->server->held))
		b->server->held_changed(b->server);
}

void held_forget(struct version *v)
{
	list_remove(&v->held_link);
	if (!v->held_cost)
		return;
	v->held_cost->held_bytes -= v->slot->charge.amount;
	v->held_cost = cost_unref(v->held_cost);
}
