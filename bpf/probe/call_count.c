/*
 * The kernel's counts only grow; the difference to the last take is reported.
 */
#include "bpf/probe/call_count.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct taken_count {
	struct list link; /* call_counts::taken */
	struct call_count_key key;
	struct call_count count;
};

void call_counts_init(struct call_counts *t, int map_fd)
{
	list_init(&t->taken);
	t->map_fd = map_fd;
}

static void taken_count_drop(struct taken_count *taken)
{
	list_remove(&taken->link);
	free(taken);
}

void call_counts_deinit(struct call_counts *t)
{
	struct taken_count *taken, *next;

	list_for_each_safe(taken, next, &t->taken, link)
		taken_count_drop(taken);
}

/* NULL: memory ran out, and the count is taken later. */
static struct taken_count *taken_count_of(struct call_counts *t, const struct call_count_key *key)
{
	struct taken_count *taken;

	list_for_each(taken, &t->taken, link)
		if (!memcmp(&taken->key, key, sizeof(*key)))
			return taken;
	taken = calloc(1, sizeof(*taken));
	if (taken) {
		taken->key = *key;
		list_append(&t->taken, &taken->link);
	}
	return taken;
}

static struct call_count call_count_since(const struct call_count *now,
					  const struct call_count *before)
{
	struct call_count d = *now;

	d.calls -= before->calls;
	d.errors -= before->errors;
	d.bytes -= before->bytes;
	d.calling_ns -= before->calling_ns;
	return d;
}

static void call_count_take(struct call_counts *t, const struct call_count_key *key,
			    void (*fn)(void *context, const struct call_count_key *key,
				       const struct call_count *since),
			    void *context)
{
	struct taken_count *taken = taken_count_of(t, key);
	struct call_count now, since;

	if (!taken || bpf_map_lookup_elem(t->map_fd, key, &now) < 0)
		return;
	since = call_count_since(&now, &taken->count);
	taken->count = now;
	if (since.calls > 0) {
		fn(context, key, &since);
	} else if (kill((pid_t)key->tgid, 0) < 0 && errno == ESRCH) {
		taken_count_drop(taken);
		(void)bpf_map_delete_elem(t->map_fd, key); /* is there */
	}
}

void call_counts_take(struct call_counts *t,
		      void (*fn)(void *context, const struct call_count_key *key,
				 const struct call_count *since),
		      void *context)
{
	struct call_count_key key, next;
	bool has = bpf_map_get_next_key(t->map_fd, NULL, &next) == 0;

	while (has) {
		key = next;
		has = bpf_map_get_next_key(t->map_fd, &key, &next) == 0;
		call_count_take(t, &key, fn, context);
	}
}
