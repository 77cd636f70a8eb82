#include "server/restart/store.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/fault.h"
#include "server/base/log.h"
#include "server/base/notify.h"

#define BARRIER_NS 10000000000u

/* Newer managers, and the keeper, report how much they keep. */
static unsigned long managers_max(void)
{
	const char *max = getenv("FDSTORE");

	return max && isdigit((unsigned char)max[0]) ? strtoul(max, NULL, 10) : ULONG_MAX;
}

static void count(struct store *s, int change)
{
	s->n_kept += (unsigned)change;
	s->notify->room = s->max > s->n_kept ? s->max - s->n_kept : 0;
}

void store_init(struct store *s, struct loop *l, struct notify *notify, unsigned max)
{
	unsigned long theirs = managers_max();

	*s = (struct store){.loop = l, .notify = notify};
	if (!notify_works(notify))
		return;
	s->max = theirs < max ? (unsigned)theirs : max;
	count(s, 0);
	if (s->max < max)
		log_warning("the service manager keeps %lu descriptors, not the %u of [store] max",
			    theirs, max);
}

bool store_works(const struct store *s)
{
	return s->max > 0 && notify_works(s->notify);
}

bool store_is_expected(const struct store *s)
{
	return s->max > 0;
}

bool store_is_behind(const struct store *s)
{
	return s->max > 0 && !list_empty(&s->notify->lanes);
}

unsigned store_n_solid(const struct store_reservation *r)
{
	return r->n > r->n_promised ? r->n - r->n_promised : 0;
}

void store_reserve(struct store *s, unsigned n, unsigned n_promised, unsigned max,
		   struct store_reservation *ret)
{
	assert(!ret->store);
	*ret = (struct store_reservation){.store = s, .n = n, .n_promised = n_promised, .max = max};
	s->n_reserved += store_n_solid(ret);
	s->n_promised += n_promised;
}

void store_release(struct store_reservation *r)
{
	if (r->store) {
		r->store->n_reserved -= store_n_solid(r);
		r->store->n_promised -= r->n_promised;
	}
	*r = (struct store_reservation){0};
}

void store_name(enum store_kind kind, uint64_t id, char ret[STORE_NAME_MAX + 1])
{
	(void)snprintf(ret, STORE_NAME_MAX + 1, "%c%016" PRIx64, (char)kind, id);
}

bool store_is_name(const char *name)
{
	if (strlen(name) != 17 || name[0] < 'a' || name[0] > 'z')
		return false;
	for (const char *p = name + 1; *p; p++)
		if (!isdigit((unsigned char)*p) && (*p < 'a' || *p > 'f'))
			return false;
	return true;
}

bool store_parse_name(const char *name, enum store_kind *ret_kind, uint64_t *ret_id)
{
	static const char kinds[] = {STORE_MANIFEST,    STORE_HEAD,   STORE_SLOT,  STORE_TABLE,
				     STORE_DIGESTS,     STORE_FILES,  STORE_GROUP, STORE_PART,
				     STORE_DESCRIPTION, STORE_SOCKET, STORE_LOCK};

	if (!store_is_name(name) || !memchr(kinds, name[0], sizeof(kinds)))
		return false;
	*ret_kind = (enum store_kind)name[0];
	*ret_id = strtoull(name + 1, NULL, 16);
	return true;
}

int store_put(struct store *s, uid_t uid, enum store_kind kind, uint64_t id, int fd)
{
	char name[STORE_NAME_MAX + 1], text[128];
	int r;

	if (s->max == 0)
		return 0;
	count(s, 1);
	store_name(kind, id, name);
	/* FDPOLL=0: else the store removes a descriptor after its peer hung up. */
	(void)snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s\nFDPOLL=0", name);
	r = notify_send(s->notify, uid, text, fd);
	fault_point("store-put");
	return r;
}

void store_adopt(struct store *s)
{
	count(s, 1);
}

void store_disown(struct store *s)
{
	count(s, -1);
}

void store_remove(struct store *s, uid_t uid, enum store_kind kind, uint64_t id)
{
	char name[STORE_NAME_MAX + 1], text[128];

	if (s->max == 0)
		return;
	count(s, -1);
	store_name(kind, id, name);
	(void)snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", name);
	/* Without a manager there is nothing to remove. */
	(void)notify_send_removal(s->notify, uid, text);
	fault_point("store-removed");
}

static void barrier_end(struct barrier *b, int r)
{
	(void)barrier_stop(b);
	b->fn(b, r);
}

static void barrier_on_through(struct source *source, uint32_t events)
{
	(void)events; /* the manager has closed its end: nothing is ever written */
	barrier_end(container_of(source, struct barrier, source), 0);
}

static void barrier_on_timeout(struct timer *timer)
{
	struct barrier *b = container_of(timer, struct barrier, timer);

	if (b->store->max == 0)
		barrier_end(b, 0);
	else
		barrier_end(b, store_works(b->store) ? -ETIMEDOUT : -ENOTCONN);
}

int barrier_start(struct barrier *b, struct store *s, uid_t uid, void (*fn)(struct barrier *, int))
{
	int ends[2];
	int r;

	*b = (struct barrier){.source.fd = -1, .fn = fn};
	timer_init(&b->timer, barrier_on_timeout);
	if (s->max == 0) {
		b->store = s;
		timer_start(s->loop, &b->timer, 0);
		return 0;
	}
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	r = notify_send(s->notify, uid, "BARRIER=1", ends[1]);
	(void)fd_close(ends[1]);
	if (r == 0)
		r = loop_add(s->loop, &b->source, ends[0], EPOLLIN, barrier_on_through);
	if (r < 0) {
		(void)fd_close(ends[0]);
		return r;
	}
	b->store = s;
	fault_point("store-barrier");
	timer_start(s->loop, &b->timer, num_now_ns() + BARRIER_NS);
	return 0;
}

bool barrier_stop(struct barrier *b)
{
	if (!b->store)
		return false;
	b->store = NULL;
	timer_stop(&b->timer);
	loop_remove(&b->source);
	b->source.fd = fd_close(b->source.fd);
	return true;
}
