#include "bpf/event/event_log.h"

#include <stdlib.h>

#include "bpf/client.h"
#include "ipc/base/cleanup.h"

/* There while it has a line. */
struct owner {
	struct list link; /* kept::owners */
	struct list lines; /* struct line */
	json_int_t uid; /* -1: not known */
	unsigned n;
};

/* As text, which takes a tenth of what an object does. */
struct line {
	struct list link; /* kept::lines */
	struct list own_link; /* owner::lines */
	struct owner *owner;
	char *text;
};

static void line_free(struct kept *k, struct line *line)
{
	struct owner *o = line->owner;

	list_remove(&line->link);
	list_remove(&line->own_link);
	k->n--;
	if (--o->n == 0) {
		list_remove(&o->link);
		free(o);
	}
	free(line->text);
	free(line);
}

void kept_init(struct kept *k, unsigned n_max)
{
	list_init(&k->lines);
	list_init(&k->owners);
	k->n = 0;
	k->n_max = n_max;
}

void kept_deinit(struct kept *k)
{
	struct line *line, *next;

	list_for_each_safe(line, next, &k->lines, link)
		line_free(k, line);
}

/* New where it has none; NULL without memory. */
static struct owner *take_owner(struct kept *k, json_int_t uid)
{
	struct owner *o;

	list_for_each(o, &k->owners, link)
		if (o->uid == uid)
			return o;
	o = calloc(1, sizeof(*o));
	if (!o)
		return NULL;
	o->uid = uid;
	list_init(&o->lines);
	list_append(&k->owners, &o->link);
	return o;
}

static void make_room(struct kept *k)
{
	struct owner *o, *most = list_first(&k->owners, struct owner, link);

	list_for_each(o, &k->owners, link)
		if (o->n > most->n)
			most = o;
	line_free(k, list_first(&most->lines, struct line, own_link));
}

void kept_add(struct kept *k, const json_t *uid, const json_t *o)
{
	cleanup(freep) char *text = json_dumps(o, JSON_COMPACT);
	cleanup(freep) struct line *line = calloc(1, sizeof(*line));
	struct owner *owner;

	if (!text || !line)
		return;
	if (k->n == k->n_max)
		make_room(k);
	owner = take_owner(k, json_is_integer(uid) ? json_integer_value(uid) : -1);
	if (!owner)
		return;
	line->owner = owner;
	line->text = take_ptr(text);
	list_append(&k->lines, &line->link);
	list_append(&owner->lines, &line->own_link);
	owner->n++;
	k->n++;
	(void)take_ptr(line);
}

void kept_answer(const struct kept *k, struct client *c, const char *kind)
{
	const struct line *line;
	json_t *o;

	list_for_each(line, &k->lines, link) {
		o = json_loads(line->text, 0, NULL);
		(void)json_object_set_new(o, "kind", json_string(kind));
		client_answer(c, o);
	}
}
