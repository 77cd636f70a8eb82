/*
 * A hash table by lease, bounded for each user. An attachment without its detach is dropped when its process or
 * its weightd has ended.
 */
#include "bpf/probe/attached.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

/* Between two looks for what is over, which ask the kernel for every process. */
#define SWEEP_NS 10000000000u

void attached_init(struct attached *a)
{
	*a = (struct attached){};
	for (unsigned i = 0; i < ATTACHED_BUCKETS; i++)
		list_init(&a->buckets[i]);
}

void attached_deinit(struct attached *a)
{
	struct attachment *one, *next;

	for (unsigned i = 0; i < ATTACHED_BUCKETS; i++)
		list_for_each_safe(one, next, &a->buckets[i], link)
			attached_remove(a, one);
}

/* Leases are numbered one by one. */
static struct list *bucket_of(const struct attached *a, uint64_t lease)
{
	return (struct list *)&a->buckets[lease % ATTACHED_BUCKETS];
}

struct attachment *attached_find(const struct attached *a, uint32_t weightd, uint64_t lease)
{
	struct attachment *one;

	list_for_each(one, bucket_of(a, lease), link)
		if (one->lease == lease && one->weightd == weightd)
			return one;
	return NULL;
}

void attached_remove(struct attached *a, struct attachment *one)
{
	list_remove(&one->link);
	a->n--;
	free(one);
}

/*
 * When a weightd ends, its readers do not detach: they wait for the next weightd, which reports them anew.
 */
static bool is_over(const struct attachment *one)
{
	return (kill((pid_t)one->weightd, 0) < 0 && errno == ESRCH) ||
	       (one->pid && kill(one->pid, 0) < 0 && errno == ESRCH);
}

void attached_each(struct attached *a, void (*fn)(void *context, const struct attachment *one),
		   void *context)
{
	struct attachment *one, *next;

	for (unsigned i = 0; i < ATTACHED_BUCKETS; i++)
		list_for_each_safe(one, next, &a->buckets[i], link)
			if (is_over(one))
				attached_remove(a, one);
			else if (fn)
				fn(context, one);
}

static void attached_sweep(struct attached *a, uint64_t now_ns)
{
	if (now_ns - a->swept_ns < SWEEP_NS)
		return;
	attached_each(a, NULL, NULL);
	a->swept_ns = now_ns;
}

static bool attached_has_room(const struct attached *a, uint32_t uid)
{
	const struct attachment *one;
	unsigned n = 0;

	if (uid == 0 || a->n < ATTACHED_OF_USER_MAX)
		return a->n < ATTACHED_MAX;
	for (unsigned i = 0; i < ATTACHED_BUCKETS; i++)
		list_for_each(one, &a->buckets[i], link)
			n += one->weightd_uid == uid;
	return a->n < ATTACHED_MAX && n < ATTACHED_OF_USER_MAX;
}

void attached_add(struct attached *a, const struct attachment *one)
{
	struct attachment *copy;

	if (!attached_has_room(a, one->weightd_uid))
		attached_sweep(a, one->ns);
	copy = attached_has_room(a, one->weightd_uid) ? malloc(sizeof(*copy)) : NULL;
	if (!copy) {
		a->n_lost++;
		return;
	}
	*copy = *one;
	list_append(bucket_of(a, one->lease), &copy->link);
	a->n++;
}
