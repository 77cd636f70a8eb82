/*
 * Lines are kept as text, in one list by age and one for each user.
 */
#include "bpf/event/event_log.h"

#include <stdlib.h>

#include "ipc/base/cleanup.h"

/* There while it has a line. */
struct owner {
	struct list link; /* event_log::owners */
	struct list lines; /* struct line */
	json_int_t uid; /* -1: unknown */
	unsigned n;
};

/* As text, which takes a tenth of what an object does. */
struct line {
	struct list link; /* event_log::lines */
	struct list own_link; /* owner::lines */
	struct owner *owner;
	char *text;
};

static void line_free(struct event_log *log, struct line *line)
{
	struct owner *o = line->owner;

	list_remove(&line->link);
	list_remove(&line->own_link);
	log->n--;
	if (--o->n == 0) {
		list_remove(&o->link);
		free(o);
	}
	free(line->text);
	free(line);
}

void event_log_init(struct event_log *log, unsigned n_max)
{
	list_init(&log->lines);
	list_init(&log->owners);
	log->n = 0;
	log->n_max = n_max;
}

void event_log_deinit(struct event_log *log)
{
	struct line *line, *next;

	list_for_each_safe(line, next, &log->lines, link)
		line_free(log, line);
}

/* New where it has none; NULL without memory. */
static struct owner *take_owner(struct event_log *log, json_int_t uid)
{
	struct owner *o;

	list_for_each(o, &log->owners, link)
		if (o->uid == uid)
			return o;
	o = calloc(1, sizeof(*o));
	if (!o)
		return NULL;
	o->uid = uid;
	list_init(&o->lines);
	list_append(&log->owners, &o->link);
	return o;
}

static void event_log_make_room(struct event_log *log)
{
	struct owner *o, *most = list_first(&log->owners, struct owner, link);

	list_for_each(o, &log->owners, link)
		if (o->n > most->n)
			most = o;
	line_free(log, list_first(&most->lines, struct line, own_link));
}

void event_log_add(struct event_log *log, const json_t *uid, const json_t *o)
{
	cleanup(freep) char *text = json_dumps(o, JSON_COMPACT);
	cleanup(freep) struct line *line = calloc(1, sizeof(*line));
	struct owner *owner;

	if (!text || !line)
		return;
	if (log->n == log->n_max)
		event_log_make_room(log);
	owner = take_owner(log, json_is_integer(uid) ? json_integer_value(uid) : -1);
	if (!owner)
		return;
	line->owner = owner;
	line->text = take_ptr(text);
	list_append(&log->lines, &line->link);
	list_append(&owner->lines, &line->own_link);
	owner->n++;
	log->n++;
	(void)take_ptr(line);
}

void event_log_answer(const struct event_log *log, struct answer *a, const char *kind)
{
	const struct line *line;
	json_t *o;

	list_for_each(line, &log->lines, link) {
		o = json_loads(line->text, 0, NULL);
		(void)json_object_set_new(o, "kind", json_string(kind));
		a->add(a, o);
	}
}
