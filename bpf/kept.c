#include "bpf/kept.h"

#include <stdlib.h>

#include "bpf/client.h"

/* As text, which takes a tenth of what an object does. */
struct line {
	struct list link; /* kept::lines */
	char *text;
};

static void line_free(struct kept *k, struct line *line)
{
	list_remove(&line->link);
	k->n--;
	free(line->text);
	free(line);
}

void kept_init(struct kept *k, unsigned n_max)
{
	list_init(&k->lines);
	k->n = 0;
	k->n_max = n_max;
}

void kept_deinit(struct kept *k)
{
	struct line *line, *next;

	list_for_each_safe(line, next, &k->lines, link)
		line_free(k, line);
}

void kept_add(struct kept *k, const json_t *o)
{
	struct line *line = calloc(1, sizeof(*line));

	if (line)
		line->text = json_dumps(o, JSON_COMPACT);
	if (!line || !line->text) {
		free(line);
		return;
	}
	if (k->n == k->n_max)
		line_free(k, container_of(k->lines.next, struct line, link));
	list_append(&k->lines, &line->link);
	k->n++;
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
