#include "bpf/probe/call_count.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct told_tally {
	struct list link; /* tallies::told */
	struct tally_key key;
	struct tally tally;
};

void tallies_init(struct tallies *t, int map_fd)
{
	list_init(&t->told);
	t->map_fd = map_fd;
}

static void drop(struct told_tally *told)
{
	list_remove(&told->link);
	free(told);
}

void tallies_deinit(struct tallies *t)
{
	struct told_tally *told, *next;

	list_for_each_safe(told, next, &t->told, link)
		drop(told);
}

/* NULL where memory ran out: then it is told later. */
static struct told_tally *told_of(struct tallies *t, const struct tally_key *key)
{
	struct told_tally *told;

	list_for_each(told, &t->told, link)
		if (!memcmp(&told->key, key, sizeof(*key)))
			return told;
	told = calloc(1, sizeof(*told));
	if (told) {
		told->key = *key;
		list_append(&t->told, &told->link);
	}
	return told;
}

static struct tally difference(const struct tally *now, const struct tally *before)
{
	struct tally d = *now;

	d.calls -= before->calls;
	d.errors -= before->errors;
	d.bytes -= before->bytes;
	d.calling_ns -= before->calling_ns;
	return d;
}

static void take(struct tallies *t, const struct tally_key *key,
		 void (*fn)(void *context, const struct tally_key *key, const struct tally *since),
		 void *context)
{
	struct told_tally *told = told_of(t, key);
	struct tally now, since;

	if (!told || bpf_map_lookup_elem(t->map_fd, key, &now) < 0)
		return;
	since = difference(&now, &told->tally);
	told->tally = now;
	if (since.calls > 0) {
		fn(context, key, &since);
	} else if (kill((pid_t)key->tgid, 0) < 0 && errno == ESRCH) {
		drop(told);
		(void)bpf_map_delete_elem(t->map_fd, key); /* is there */
	}
}

void tallies_take(struct tallies *t,
		  void (*fn)(void *context, const struct tally_key *key, const struct tally *since),
		  void *context)
{
	struct tally_key key, next;
	bool has = bpf_map_get_next_key(t->map_fd, NULL, &next) == 0;

	while (has) {
		key = next;
		has = bpf_map_get_next_key(t->map_fd, &key, &next) == 0;
		take(t, &key, fn, context);
	}
}
