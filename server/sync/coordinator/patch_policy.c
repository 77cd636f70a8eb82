/*
 * A patch has to be worth its trouble: it takes reading and writing at both ends, and what it replaces would be right
 * by itself. Whoever cannot do with it, for want of the version that it begins with or of memory, gets leaves.
 */
#include "server/sync/coordinator/patch_policy.h"

#include <fcntl.h>

#include "ipc/base/fd.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/coordinator/broadcast_source.h"

static bool is_from(const struct member *m, const struct broadcast *b, unsigned first)
{
	return m->state == MEMBER_READY && m->missing.n && m->base >= first &&
	       m->base < b->patch_policy.patch_chain.n;
}

/* Bytes that are missing at the members that would get a patch that begins there. */
static uint64_t lacked_from(const struct broadcast *b, unsigned first)
{
	struct ranges all;
	uint64_t n_bytes;

	ranges_init(&all);
	for (unsigned i = 0; i < b->sync.n_members; i++)
		if (is_from(&b->sync.members[i], b, first) &&
		    ranges_add_all(&all, &b->sync.members[i].missing) < 0)
			break; /* fewer: then it is not worth it */
	n_bytes = ranges_total(&all);
	ranges_deinit(&all);
	return n_bytes;
}

/* The oldest one is for most members, and takes the most bytes. */
static unsigned patch_policy_choose(const struct broadcast *b)
{
	const struct patch_chain *p = &b->patch_policy.patch_chain;
	unsigned first = 0;

	while (first < p->n && patch_chain_size(p, first) > lacked_from(b, first) / PATCH_CHAIN_WORTH)
		first++;
	return first;
}

/* Nobody needs what is older than the oldest version that any of them has. */
static unsigned oldest(const struct broadcast *b, unsigned first)
{
	unsigned found = b->patch_policy.patch_chain.n;

	for (unsigned i = 0; i < b->sync.n_members; i++)
		if (is_from(&b->sync.members[i], b, first) && b->sync.members[i].base < found)
			found = b->sync.members[i].base;
	return found;
}

static void patch_policy_take(struct broadcast *b, int fd, uint64_t size, uint64_t changed)
{
	struct patch_policy *d = &b->patch_policy;

	d->fd = fd;
	d->size = size;
	d->changed = changed;
	for (unsigned i = 0; i < b->sync.n_members; i++) {
		struct member *m = &b->sync.members[i];

		if (is_from(m, b, d->first))
			m->by_patch = ranges_add(&m->patch_missing, 0, size) == 0;
	}
}

static void patch_policy_compose(struct agent *a, struct broadcast *b)
{
	const struct patch_chain *p = &b->patch_policy.patch_chain;
	int fds[PATCH_CHAIN_MAX];
	unsigned n = 0;

	for (unsigned i = b->patch_policy.first; i < p->n; i++)
		fds[n++] = p->at[i].fd;
	b->patch_policy.is_composing = true;
	broadcast_source_compose(a, b, fds, n);
}

bool patch_policy_begin(struct agent *a, struct broadcast *b)
{
	struct patch_policy *d = &b->patch_policy;
	const struct kept_patch *last;
	int fd;

	d->first = oldest(b, patch_policy_choose(b));
	if (d->first >= d->patch_chain.n)
		return false;
	if (d->first + 1 < d->patch_chain.n) {
		patch_policy_compose(a, b);
		return true;
	}
	last = &d->patch_chain.at[d->first];
	fd = fcntl(last->fd, F_DUPFD_CLOEXEC, 3);
	if (fd >= 0)
		patch_policy_take(b, fd, last->size, last->changed);
	return false;
}

void patch_policy_on_composed(struct agent *a, struct broadcast *b, const json_t *message, int *fds,
			      unsigned n_fds)
{
	const char *why = "it would be too long";
	uint64_t size, changed;

	if (!b->patch_policy.is_composing)
		return; /* it took too long */
	b->patch_policy.is_composing = false;
	/* One that is as long as its parts together, or longer, may be more than members make room for. */
	if (n_fds == 1 &&
	    field_number(message, "size", b->sync.document->n_bytes / PATCH_CHAIN_WORTH, &size) == 0 &&
	    size && field_number(message, "changed", INT64_MAX, &changed) == 0) {
		patch_policy_take(b, take_fd(fds[0]), size, changed);
	} else {
		(void)field_string(message, "why", WHY_SIZE - 1, &why);
		agent_log(a, "warning", "sync %s: %s goes without a patch: %s", b->sync.id,
			  b->sync.replica->buffer, why);
	}
	sync_step(a, &b->sync);
}

void patch_policy_give_up(struct broadcast *b)
{
	b->patch_policy.is_composing = false;
	for (unsigned i = 0; i < b->sync.n_members; i++)
		patch_policy_leave(&b->sync.members[i]);
}

void patch_policy_deinit(struct patch_policy *d)
{
	patch_chain_deinit(&d->patch_chain);
	d->fd = fd_close(d->fd);
}

bool patch_policy_is_wanted(const struct broadcast *b)
{
	for (unsigned i = 0; i < b->sync.n_members; i++)
		if (b->sync.members[i].state == MEMBER_READY && b->sync.members[i].patch_missing.n)
			return true;
	return false;
}

void patch_policy_settle(const struct broadcast *b, struct member *m)
{
	if (!b->by_patch || m->patch_missing.n)
		return;
	ranges_deinit(&m->missing);
	ranges_init(&m->missing);
}

void patch_policy_leave(struct member *m)
{
	ranges_deinit(&m->patch_missing);
	ranges_init(&m->patch_missing);
	m->by_patch = false;
}
