#include "server/buffers/tally.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/base/fault.h"
#include "server/buffers/buffer.h"
#include "server/buffers/version.h"
#include "server/buffers/writer.h"
#include "server/memory/gpu_free.h"
#include "server/memory/slot.h"
#include "server/state/server.h"

static uint64_t bytes_of(const struct slot *s, bool being_freed)
{
	if (!s || gpu_free_is_over(&s->gpu_free) || gpu_free_has_begun(&s->gpu_free) != being_freed)
		return 0;
	/* On a GPU nothing before there is memory, and then what it takes there. */
	return s->backend->opaque ? s->memory.location.map_size : s->size;
}

uint64_t buffer_bytes(const struct buffer *b)
{
	const struct version *v;
	uint64_t size = 0;

	list_for_each(v, &b->versions, link)
		size += bytes_of(v->slot, false);
	list_for_each(v, &b->leaving, link)
		size += bytes_of(v->slot, false);
	return size;
}

/* Readers may be charged for it instead. */
static void add_charged(const struct slot *s, uid_t uid, struct charged *sum)
{
	if (!s || s->uid != uid || s->charge.kind != QUOTA_BYTES)
		return;
	sum->bytes += s->charge.amount;
	sum->descriptors += s->descriptors.amount;
}

struct charged buffer_charged(const struct buffer *b, uid_t uid)
{
	struct charged sum = {0};
	const struct version *v;

	list_for_each(v, &b->versions, link)
		add_charged(v->slot, uid, &sum);
	list_for_each(v, &b->leaving, link)
		add_charged(v->slot, uid, &sum);
	return sum;
}

static uint64_t bytes_in(const struct list *buffers, const char *device, bool being_freed)
{
	const struct version *v;
	const struct buffer *b;
	uint64_t size = 0;

	list_for_each(b, buffers, link) {
		if (!buffer_is_on(b, device))
			continue;
		list_for_each(v, &b->versions, link)
			size += bytes_of(v->slot, being_freed);
		list_for_each(v, &b->leaving, link)
			size += bytes_of(v->slot, being_freed);
		if (b->writer && !b->writer->target && b->writer->kept)
			size += bytes_of(b->writer->slot, being_freed);
	}
	return size;
}

uint64_t buffers_bytes(const struct server *server, const char *device)
{
	return bytes_in(&server->buffers, device, false) + bytes_in(&server->removed, device, false);
}

uint64_t buffers_bytes_being_freed(const struct server *server, const char *device)
{
	return bytes_in(&server->buffers, device, true) + bytes_in(&server->removed, device, true);
}

/* --- sums that are kept --- */

void tally_change(struct buffer *b)
{
	if (list_empty(&b->tally_link))
		list_append(&b->server->untallied, &b->tally_link);
}

static void count_kept(const struct buffer *b, struct tally *t)
{
	const struct version *v;

	if (!buffer_has_name(b))
		return;
	list_for_each(v, &b->versions, link)
		if (buffer_only_keeps(b, v))
			t->kept += v->slot->size;
	if (b->spare)
		t->kept += b->spare->slot->size;
}

/* Returns true when it may change without tally_change(): by what a GPU has free. */
static bool count_leaving(const struct buffer *b, struct tally *t)
{
	const struct version *v;
	bool wavers = false;

	list_for_each(v, &b->leaving, link) {
		if (v == b->spare)
			continue;
		wavers |= v->slot->backend->await_free != NULL;
		if (v->n_leases > 0 || !gpu_free_is_orphan(v->slot))
			t->leaving += v->slot->size;
		else
			t->orphan += v->slot->size;
	}
	return wavers;
}

static void tally_replace(struct buffer *b, const struct tally *now)
{
	struct tally *sum = &b->server->tally;

	sum->kept += now->kept - b->tally.kept;
	sum->leaving += now->leaving - b->tally.leaving;
	sum->orphan += now->orphan - b->tally.orphan;
	b->tally = *now;
}

void tally_forget(struct buffer *b)
{
	const struct tally nothing = {0};

	list_remove(&b->tally_link);
	tally_replace(b, &nothing);
}

/* In builds for tests: a change that was not announced shows here. */
static void tally_check(const struct server *server)
{
	const struct list *lists[] = {&server->buffers, &server->removed};
	struct tally sum = {0};
	const struct buffer *b;

	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		list_for_each(b, lists[i], link) {
			count_kept(b, &sum);
			(void)count_leaving(b, &sum);
		}
	assert(!memcmp(&sum, &server->tally, sizeof(sum)));
}

struct tally tally_read(struct server *server)
{
	struct buffer *b, *tmp;

	list_for_each_safe(b, tmp, &server->untallied, tally_link) {
		struct tally now = {0};

		count_kept(b, &now);
		if (!count_leaving(b, &now))
			list_remove(&b->tally_link);
		tally_replace(b, &now);
	}
	if (FAULTS_BUILT)
		tally_check(server);
	return server->tally;
}
