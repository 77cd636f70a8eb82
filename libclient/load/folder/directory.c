/*
 * The names in a directory and what they mean: which of them are indexes, and which are parts of one whole.
 */
#include "libclient/load/folder/directory.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "libclient/image/array.h"

#define SUFFIX ".safetensors"
#define PART_DIGITS_MAX 9

#define QUOTE_PATH(path) file_quote(&(struct quote){0}, path)

/* --- Names -------------------------------------------------------------------------------------- */

static bool take_suffix(const char *text, size_t *n, const char *suffix)
{
	size_t n_suffix = strlen(suffix);

	if (*n < n_suffix || memcmp(text + *n - n_suffix, suffix, n_suffix) != 0)
		return false;
	*n -= n_suffix;
	return true;
}

/* The last occurrence of `word` in the first `n` bytes; NULL: none. */
static const char *find_last(const char *text, size_t n, const char *word)
{
	size_t n_word = strlen(word);

	for (size_t at = n; at >= n_word; at--)
		if (!memcmp(text + at - n_word, word, n_word))
			return text + at - n_word;
	return NULL;
}

/*
 * An index without its ".json": "X.safetensors.index", with ".V" behind or before the ".index". The
 * length of X, and where ".V" is; 0 for no index.
 */
static size_t parse_index(const char *name, const char **ret_variant, size_t *ret_n_variant)
{
	size_t n = strlen(name), n_rest;
	const char *suffix, *rest;

	if (!take_suffix(name, &n, ".json"))
		return 0;
	suffix = find_last(name, n, SUFFIX ".");
	if (!suffix)
		return 0;
	rest = suffix + strlen(SUFFIX);
	n_rest = (size_t)(name + n - rest);
	if (n_rest > strlen(".index.") && !memcmp(rest, ".index.", strlen(".index."))) {
		rest += strlen(".index");
		n_rest -= strlen(".index");
	} else if (!take_suffix(rest, &n_rest, ".index") || n_rest == 1) {
		return 0;
	}
	*ret_variant = rest;
	*ret_n_variant = n_rest;
	return (size_t)(suffix - name);
}

bool directory_is_index(const char *path)
{
	const char *slash = strrchr(path, '/'), *variant;
	size_t n_variant;

	return parse_index(slash ? slash + 1 : path, &variant, &n_variant) > 0;
}

/* The digits that end at `end`; their number, 0 for none or too many. */
static size_t digits_before(const char *text, const char *end, uint32_t *ret)
{
	const char *p = end;

	while (p > text && isdigit((unsigned char)p[-1]))
		p--;
	if (p == end || end - p > PART_DIGITS_MAX)
		return 0;
	*ret = (uint32_t)strtoul(p, NULL, 10);
	return (size_t)(end - p);
}

/*
 * "X-00001-of-00002", with ".V" behind it or not: the length of X, and where ".V" is. Without such a number
 * all of it is X.
 */
static size_t parse_part(struct directory_entry *e, size_t n, const char **ret_rest)
{
	const char *name = e->name, *of = find_last(name, n, "-of-"), *end;
	uint32_t part = 0, n_parts = 0;
	size_t n_digits;

	*ret_rest = name + n;
	if (!of)
		return n;
	end = of + strlen("-of-");
	while (end < name + n && isdigit((unsigned char)*end))
		end++;
	n_digits = digits_before(name, of, &part);
	if (n_digits == 0 || of == name + n_digits || of[-(ptrdiff_t)n_digits - 1] != '-' ||
	    digits_before(of + strlen("-of-"), end, &n_parts) == 0 || n_parts == 0 ||
	    (end < name + n && *end != '.'))
		return n;
	e->part = part;
	e->n_parts = n_parts;
	*ret_rest = end;
	return (size_t)(of - name) - n_digits - 1;
}

/* 0, 1: a name that has no meaning here; -ENOMEM. */
static int parse_name(const char *name, struct directory_entry *e)
{
	size_t n = strlen(name), n_stem, n_rest = 0;
	const char *rest = "";

	*e = (struct directory_entry){0};
	n_stem = parse_index(name, &rest, &n_rest);
	if (n_stem == 0 && !take_suffix(name, &n, SUFFIX))
		return 1;
	e->name = strdup(name);
	if (!e->name)
		return -ENOMEM;
	e->is_index = n_stem > 0;
	e->is_variant = e->is_index && n_rest > 0;
	if (!e->is_index) {
		n_stem = parse_part(e, n, &rest);
		n_rest = (size_t)(e->name + n - rest);
	}
	if (asprintf(&e->stem, "%.*s%.*s", (int)n_stem, name, (int)n_rest, rest) < 0) {
		free(e->name);
		return -ENOMEM;
	}
	return 0;
}

/* --- Sets --------------------------------------------------------------------------------------- */

static int compare_sets(const struct directory_entry *a, const struct directory_entry *b)
{
	int r;

	if (a->is_index != b->is_index)
		return a->is_index ? -1 : 1;
	r = strcmp(a->stem, b->stem);
	if (r == 0 && a->n_parts != b->n_parts)
		r = a->n_parts < b->n_parts ? -1 : 1;
	return r;
}

static int compare_entries(const void *va, const void *vb)
{
	const struct directory_entry *a = va, *b = vb;
	int r = compare_sets(a, b);

	if (r == 0 && a->part != b->part)
		r = a->part < b->part ? -1 : 1;
	return r ? r : strcmp(a->name, b->name);
}

const struct directory_set *directory_find(const struct directory *d, const char *stem,
					   bool is_index)
{
	for (size_t i = 0; i < d->n_sets; i++) {
		const struct directory_entry *e = d->sets[i].entries;

		if (e->is_index == is_index && e->n_parts == 0 && !strcmp(e->stem, stem))
			return &d->sets[i];
	}
	return NULL;
}

/* Two spellings of one index are two sets. */
static int make_sets(struct directory *d)
{
	struct directory_set *set = NULL;

	if (d->n == 0)
		return 0;
	qsort(d->entries, d->n, sizeof(*d->entries), compare_entries);
	d->sets = calloc(d->n, sizeof(*d->sets));
	if (!d->sets)
		return -ENOMEM;
	for (size_t i = 0; i < d->n; i++) {
		struct directory_entry *e = &d->entries[i];

		if (set && e->n_parts > 0 && compare_sets(set->entries, e) == 0) {
			set->n++;
			continue;
		}
		set = &d->sets[d->n_sets++];
		*set = (struct directory_set){.entries = e, .n = 1};
		set->has_index = e->n_parts > 0 && directory_find(d, e->stem, true);
	}
	return 0;
}

static int directory_list(const struct file *f, struct directory *d)
{
	const struct dirent *entry;
	DIR *dir = opendir(f->path);
	int r = 0;

	if (!dir)
		return -errno;
	while (r >= 0) {
		errno = 0;
		entry = readdir(dir);
		if (!entry) {
			r = -errno;
			break;
		}
		if (entry->d_name[0] == '.')
			continue;
		r = array_reserve(d->entries, d->n, d->max) ? 0 : -ENOMEM;
		if (r == 0)
			r = parse_name(entry->d_name, &d->entries[d->n]);
		d->n += r == 0;
	}
	(void)closedir(dir);
	return r < 0 ? r : make_sets(d);
}

int directory_read(const struct file *f, struct directory *ret, struct sentence *s)
{
	struct directory d = {0};
	int r = directory_list(f, &d);

	if (r == 0) {
		*ret = d;
		return 0;
	}
	directory_deinit(&d);
	if (r == -ENOMEM)
		return sentence_set(s, r, "there is not enough memory for the list of files");
	return sentence_set(s, r, "cannot list the directory %s: %s", QUOTE_PATH(f->path),
			    strerror(-r));
}

void directory_take(struct directory *d, const char *name)
{
	for (size_t i = 0; i < d->n; i++)
		if (!strcmp(d->entries[i].name, name))
			d->entries[i].is_taken = true;
}

void directory_deinit(struct directory *d)
{
	for (size_t i = 0; i < d->n; i++) {
		free(d->entries[i].name);
		free(d->entries[i].stem);
	}
	free(d->entries);
	free(d->sets);
	*d = (struct directory){0};
}
