#include "bpf/probe/gpu_handle.h"

#include <stdlib.h>
#include <string.h>

void exports_init(struct exports *e)
{
	list_init(&e->all);
	e->n = 0;
}

static void drop(struct exports *e, struct export *export)
{
	list_remove(&export->link);
	e->n--;
	free(export);
}

void exports_deinit(struct exports *e)
{
	struct export *export, *next;

	list_for_each_safe(export, next, &e->all, link)
		drop(e, export);
}

static struct export *find(const struct exports *e, const struct export_key *key)
{
	struct export *export;

	list_for_each(export, &e->all, link)
		if (!memcmp(&export->key, key, sizeof(*key)))
			return export;
	return NULL;
}

const struct export *exports_find(const struct exports *e, const struct export_key *key)
{
	return find(e, key);
}

void exports_remove(struct exports *e, const struct export_key *key)
{
	struct export *export = find(e, key);

	if (export)
		drop(e, export);
}

/* The oldest of that user where he has as many as he may, else the oldest of all where there is no room. */
static void make_room(struct exports *e, uid_t uid)
{
	struct export *export, *oldest_of_user = NULL;
	unsigned n_of_user = 0;

	list_for_each(export, &e->all, link)
		if (export->uid == uid && n_of_user++ == 0)
			oldest_of_user = export;
	if (n_of_user >= EXPORTS_OF_USER_MAX)
		drop(e, oldest_of_user);
	else if (e->n >= EXPORTS_MAX)
		drop(e, list_first(&e->all, struct export, link));
}

void exports_add(struct exports *e, const struct export *export)
{
	struct export *copy = malloc(sizeof(*copy));

	if (!copy)
		return;
	exports_remove(e, &export->key);
	make_room(e, export->uid);
	*copy = *export;
	list_append(&e->all, &copy->link);
	e->n++;
}
