#include "libclient/load/folder/index.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "libclient/image/array.h"
#include "libclient/image/magic.h"
#include "libclient/image/members.h"
#include "libclient/image/plain.h"
#include "weightd.h"

struct parser {
	struct index ix; /* the index so far; files in the order of their first mention */
	struct names files;
	size_t text_used;
	size_t entries_max, files_max; /* allocated */
	struct sentence *s;
};

#define QUOTE(p, n) quote_bytes(&(struct quote){0}, p, n)

static int out_of_memory(struct parser *p)
{
	return sentence_set(p->s, -ENOMEM, "there is not enough memory for the index");
}

static int refuse_json(struct parser *p, const struct members *m, int r)
{
	if (r == -ENOMEM)
		return out_of_memory(p);
	return sentence_set(p->s, -EBADMSG, "it is broken at byte %" PRIu64 ": %s", m->at, m->why);
}

/* Keeps a copy of a string of the text: room for all of them was made before. */
static const char *parser_keep(struct parser *p, struct span string)
{
	char *copy = memcpy(p->ix.text + p->text_used, string.p, string.n);

	copy[string.n] = '\0';
	p->text_used += string.n + 1;
	return copy;
}

/*
 * A path below the directory of the index, where it is opened: it must not lead anywhere else.
 * Components that mean nothing ("." and empty ones) are taken out, so that a file has one spelling.
 * Writes at most n + 1 bytes and returns their number without the NUL, 0 for a path that is none.
 */
static size_t path_normalize(struct span text, char *ret)
{
	const char *path = text.p, *end = path + text.n;
	size_t used = 0;

	if (text.n == 0 || text.n >= PATH_MAX || memchr(path, '\0', text.n) || *path == '/' ||
	    end[-1] == '/')
		return 0;
	while (path < end) {
		const char *slash = memchr(path, '/', (size_t)(end - path));
		size_t size = (size_t)((slash ? slash : end) - path);

		if (size > NAME_MAX || (size == 2 && !memcmp(path, "..", 2)))
			return 0;
		if (size > 0 && !(size == 1 && *path == '.')) {
			if (used > 0)
				ret[used++] = '/';
			memcpy(ret + used, path, size);
			used += size;
		}
		path += size + (slash != NULL);
	}
	ret[used] = '\0';
	return used;
}

static int file_number(struct parser *p, struct span path, uint32_t *ret)
{
	char *name = p->ix.text + p->text_used; /* kept if it is a new one */
	size_t n = path_normalize(path, name);

	if (n == 0)
		return sentence_set(p->s, -EBADMSG,
				    "it maps to %s, which is not a file in the folder of the index or "
				    "below it",
				    QUOTE(path.p, path.n));
	if (names_find(&p->files, name, n, ret))
		return 0;
	if (!array_reserve(p->ix.files, p->ix.n_files, p->files_max))
		return out_of_memory(p);
	*ret = (uint32_t)p->ix.n_files;
	p->ix.files[*ret] = name;
	p->text_used += n + 1;
	if (names_add(&p->files, name, n, *ret) < 0)
		return out_of_memory(p);
	p->ix.n_files++;
	return 0;
}

/* `file` has no text if it is no string. */
static int add_entry(struct parser *p, struct span tensor, struct span file)
{
	size_t n = tensor.n;
	struct index_entry *entry;
	int r;

	if (!file.p)
		return sentence_set(p->s, -EBADMSG,
				    "it maps tensor %s to something that is not a file name",
				    QUOTE(tensor.p, n));
	if (p->ix.n_entries == WEIGHTD_TENSORS_MAX)
		return sentence_set(p->s, -EBADMSG, "it has more than %d tensors",
				    WEIGHTD_TENSORS_MAX);
	if (!array_reserve(p->ix.entries, p->ix.n_entries, p->entries_max))
		return out_of_memory(p);
	entry = &p->ix.entries[p->ix.n_entries];
	*entry = (struct index_entry){.tensor = parser_keep(p, tensor), .tensor_size = (uint32_t)n};
	r = names_add(&p->ix.tensors, entry->tensor, n, (uint32_t)p->ix.n_entries);
	if (r == -EEXIST)
		return sentence_set(p->s, -EBADMSG, "it maps tensor %s twice",
				    QUOTE(entry->tensor, n));
	if (r < 0)
		return out_of_memory(p);
	r = file_number(p, file, &entry->file);
	if (r < 0)
		return r;
	p->ix.n_entries++;
	return 0;
}

/* The content of a string; no text if it is another value. What `parsed` gets has to live as long. */
static int parse_string(struct members *m, struct span text, json_t **parsed, struct span *ret)
{
	int r;

	if (plain_string(text, ret))
		return 0;
	r = members_parse(m, text, parsed);
	if (r == 0)
		*ret = (struct span){json_string_value(*parsed), json_string_length(*parsed)};
	return r;
}

static int parse_map(struct parser *p, struct span map)
{
	struct span key, value;
	struct members m;
	int r;

	members_init(&m, map.p, map.n);
	while ((r = members_next(&m, &key, &value)) > 0) {
		cleanup(json_decrefp) json_t *tensor = NULL, *file = NULL;
		struct span name, path;

		r = parse_string(&m, key, &tensor, &name);
		if (r == 0)
			r = parse_string(&m, value, &file, &path);
		if (r < 0)
			break;
		r = add_entry(p, name, path);
		if (r < 0)
			return r;
	}
	return r < 0 ? refuse_json(p, &m, r) : 0;
}

/* Finds the map. Also what is not used has to be JSON: half a file is no index. */
static int find_map(struct parser *p, const char *text, uint64_t size, struct span *ret)
{
	static const char weight_map[] = "weight_map";
	struct span key, value, map = {0};
	struct members m;
	int r;

	members_init(&m, text, size);
	while ((r = members_next(&m, &key, &value)) > 0) {
		cleanup(json_decrefp) json_t *name = NULL, *ignored = NULL;

		r = members_parse(&m, key, &name);
		if (r < 0)
			break;
		if (json_string_length(name) == sizeof(weight_map) - 1 &&
		    !strcmp(json_string_value(name), weight_map)) {
			if (map.p)
				return sentence_set(p->s, -EBADMSG, "it has two weight_maps");
			map = value;
			continue;
		}
		r = members_parse(&m, value, &ignored);
		if (r < 0)
			break;
	}
	if (r < 0)
		return refuse_json(p, &m, r);
	if (!map.p || *map.p != '{')
		return sentence_set(p->s, -EBADMSG, "it has no weight_map");
	*ret = map;
	return 0;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorts the files, so that a checkpoint has one layout however its index is written. */
static int sort_files(struct parser *p)
{
	struct index *ix = &p->ix;
	cleanup(freep) uint32_t *moved = calloc(ix->n_files, sizeof(*moved));

	if (!moved)
		return out_of_memory(p);
	qsort(ix->files, ix->n_files, sizeof(*ix->files), compare_names);
	for (size_t i = 0; i < ix->n_files; i++) {
		uint32_t was = 0;

		(void)names_find(&p->files, ix->files[i], strlen(ix->files[i]), &was);
		moved[was] = (uint32_t)i;
	}
	for (size_t i = 0; i < ix->n_entries; i++)
		ix->entries[i].file = moved[ix->entries[i].file];
	return 0;
}

static int parse_text(struct parser *p, const char *text, uint64_t size)
{
	struct span map = {0};
	int r;

	if (magic_mark_size(text, size) > 0)
		return sentence_set(p->s, -EBADMSG,
				    "it begins with a byte-order mark, which JSON does not allow: "
				    "save it as UTF-8 without one");
	p->ix.text = malloc(size + 1); /* strings lose their quotes, which leaves room for their NUL */
	if (!p->ix.text)
		return out_of_memory(p);
	r = find_map(p, text, size, &map);
	if (r < 0)
		return r;
	r = parse_map(p, map);
	if (r < 0)
		return r;
	if (p->ix.n_entries == 0)
		return sentence_set(p->s, -EBADMSG, "its weight_map is empty");
	return sort_files(p);
}

int index_parse(const char *text, uint64_t size, struct index *ret, struct sentence *s)
{
	struct parser p = {.s = s};
	int r;

	r = parse_text(&p, text, size);
	names_deinit(&p.files);
	if (r < 0) {
		index_deinit(&p.ix);
		return r;
	}
	*ret = p.ix;
	return 0;
}

static int read_index(const struct file *f, struct index *ret, struct sentence *s)
{
	cleanup(freep) char *text = NULL;
	int r;

	if (f->identity.size > INDEX_SIZE_MAX)
		return sentence_set(s, -EBADMSG, "it has %" PRIu64 " bytes, %u is the most",
				    f->identity.size, INDEX_SIZE_MAX);
	text = malloc(f->identity.size + 1);
	if (!text)
		return sentence_set(s, -ENOMEM, "there is not enough memory for the index");
	r = file_read(f, text, f->identity.size, 0, s);
	if (r < 0)
		return r;
	return index_parse(text, f->identity.size, ret, s);
}

/* A file that begins as JSON may be meant as an index. */
static bool looks_like_index(const struct file *f)
{
	struct sentence ignored; /* there is another one already */
	char start[MAGIC_SIZE + 1] = "";
	size_t n = f->identity.size < MAGIC_SIZE ? (size_t)f->identity.size : MAGIC_SIZE;
	const char *text;

	if (file_read(f, start, n, 0, &ignored) < 0)
		return false;
	text = start + magic_mark_size(start, n);
	return text[strspn(text, " \t\r\n")] == '{';
}

int index_read(const struct file *f, struct index *ret, struct sentence *s)
{
	int r = read_index(f, ret, s);

	if (r == -EBADMSG && !looks_like_index(f))
		(void)magic_explain_file(f, s); /* else the parser's sentence stays */
	if (r == -EBADMSG)
		return sentence_set(s, r, "the index %s cannot be used: %s",
				    file_quote(&(struct quote){0}, f->path), s->text);
	return r;
}

void index_deinit(struct index *ix)
{
	names_deinit(&ix->tensors);
	free(ix->entries);
	free(ix->files);
	free(ix->text);
	*ix = (struct index){0};
}
