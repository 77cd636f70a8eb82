/*
 * A patch has to be worth its trouble: it takes reading and writing at both ends, and what it replaces would be right
 * by itself. Whoever cannot do with it, for want of the version that it begins with or of memory, gets leaves.
 */
#include "server/sync/coordinator/patch_policy.h"

#include <fcntl.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/coordinator/broadcast_source.h"

static bool is_from(const struct member *m, const struct broadcast *t, unsigned first)
{
	return m->state == MEMBER_READY && m->missing.n && m->base >= first &&
	       m->base < t->patch_policy.patch_chain.n;
}

/* Bytes that those lack who get a patch that begins there. */
static uint64_t lacked_from(const struct broadcast *t, unsigned first)
{
	struct ranges all;
	uint64_t n_bytes;

	ranges_init(&all);
	for (unsigned i = 0; i < t->sync.n_members; i++)
		if (is_from(&t->sync.members[i], t, first) &&
		    ranges_add_all(&all, &t->sync.members[i].missing) < 0)
			break; /* fewer: then it is not worth it */
	n_bytes = ranges_total(&all);
	ranges_deinit(&all);
	return n_bytes;
}

/* The oldest one is for most members, and takes the most bytes. */
static unsigned patch_policy_choose(const struct broadcast *t)
{
	const struct patch_chain *p = &t->patch_policy.patch_chain;
	unsigned first = 0;

	while (first < p->n && patch_chain_size(p, first) > lacked_from(t, first) / PATCH_CHAIN_WORTH)
		first++;
	return first;
}

/* Nobody needs what is older than the oldest version that any of them has. */
static unsigned oldest(const struct broadcast *t, unsigned first)
{
	unsigned found = t->patch_policy.patch_chain.n;

	for (unsigned i = 0; i < t->sync.n_members; i++)
		if (is_from(&t->sync.members[i], t, first) && t->sync.members[i].base < found)
			found = t->sync.members[i].base;
	return found;
}

static void patch_policy_take(struct broadcast *t, int fd, uint64_t size, uint64_t changed)
{
	struct patch_policy *d = &t->patch_policy;

	d->fd = fd;
	d->size = size;
	d->changed = changed;
	for (unsigned i = 0; i < t->sync.n_members; i++) {
		struct member *m = &t->sync.members[i];

		if (is_from(m, t, d->first))
			m->by_patch = ranges_add(&m->patch_missing, 0, size) == 0;
	}
}

static void patch_policy_compose(struct agent *a, struct broadcast *t)
{
	const struct patch_chain *p = &t->patch_policy.patch_chain;
	int fds[PATCH_CHAIN_MAX];
	unsigned n = 0;

	for (unsigned i = t->patch_policy.first; i < p->n; i++)
		fds[n++] = p->at[i].fd;
	t->patch_policy.is_composing = true;
	broadcast_source_compose(a, t, fds, n);
}

bool patch_policy_begin(struct agent *a, struct broadcast *t)
{
	struct patch_policy *d = &t->patch_policy;
	const struct kept_patch *last;
	int fd;

	d->first = oldest(t, patch_policy_choose(t));
	if (d->first >= d->patch_chain.n)
		return false;
	if (d->first + 1 < d->patch_chain.n) {
		patch_policy_compose(a, t);
		return true;
	}
	last = &d->patch_chain.at[d->first];
	fd = fcntl(last->fd, F_DUPFD_CLOEXEC, 3);
	if (fd >= 0)
		patch_policy_take(t, fd, last->size, last->changed);
	return false;
}

void patch_policy_on_composed(struct agent *a, struct broadcast *t, const json_t *message, int *fds,
			      unsigned n_fds)
{
	const char *why = "it would be too long";
	uint64_t size, changed;

	if (!t->patch_policy.is_composing)
		return; /* for too long */
	t->patch_policy.is_composing = false;
	/* One that is as long as its parts together, or longer, may be more than members make room for. */
	if (n_fds == 1 &&
	    field_number(message, "size", t->sync.document->n_bytes / PATCH_CHAIN_WORTH, &size) == 0 &&
	    size && field_number(message, "changed", INT64_MAX, &changed) == 0) {
		patch_policy_take(t, take_fd(fds[0]), size, changed);
	} else {
		(void)field_string(message, "why", WHY_SIZE - 1, &why);
		agent_log(a, "warning", "sync %s: %s goes without a patch: %s", t->sync.id,
			  t->sync.replica->buffer, why);
	}
	sync_step(a, &t->sync);
}

void patch_policy_give_up(struct broadcast *t)
{
	t->patch_policy.is_composing = false;
	for (unsigned i = 0; i < t->sync.n_members; i++)
		patch_policy_leave(&t->sync.members[i]);
}

void patch_policy_deinit(struct patch_policy *d)
{
	patch_chain_deinit(&d->patch_chain);
	d->fd = fd_close(d->fd);
}

bool patch_policy_is_wanted(const struct broadcast *t)
{
	for (unsigned i = 0; i < t->sync.n_members; i++)
		if (t->sync.members[i].state == MEMBER_READY && t->sync.members[i].patch_missing.n)
			return true;
	return false;
}

void patch_policy_settle(const struct broadcast *t, struct member *m)
{
	if (!t->by_patch || m->patch_missing.n)
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
