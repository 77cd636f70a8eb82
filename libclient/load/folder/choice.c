/*
 * Follows existing conventions: the files that transformers and diffusers load from a folder are those its user
 * means. If neither applies and the folder has several sets, the user must choose.
 */
#include "libclient/load/folder/choice.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "libclient/load/folder/configuration.h"

#define QUOTE(text) quote_bytes(&(struct quote){0}, text, strlen(text))
#define QUOTE_PATH(path) file_quote(&(struct quote){0}, path)

/* The names that libraries give to the weights of a model, and their rules. */
static const struct well_known {
	const char *stem;
	bool index_first; /* the index wins over a single file of that name */
	const char *rule;
} well_known[] = {
	{"model", false, "as transformers does, the file before the index"},
	{"diffusion_pytorch_model", true, "as diffusers does, the index before the file"},
};

/* --- Lists for a person ------------------------------------------------------------------------- */

#define LIST_MAX 288 /* bytes of a list in a sentence that also has a path */

struct list {
	char text[LIST_MAX];
	size_t used, n_more;
};

static void list_add(struct list *l, const char *name, size_t n_others)
{
	const size_t room = sizeof(l->text) - sizeof(" and 4294967295 more");
	char item[QUOTE_MAX + 32];
	int n;

	if (n_others > 0)
		n = snprintf(item, sizeof(item), "%s (and %zu more)", QUOTE(name), n_others);
	else
		n = snprintf(item, sizeof(item), "%s", QUOTE(name));
	if (l->n_more > 0 || l->used + (size_t)n + 2 > room) {
		l->n_more += 1 + n_others;
		return;
	}
	l->used += (size_t)snprintf(l->text + l->used, sizeof(l->text) - l->used, "%s%s",
				    l->used ? ", " : "", item);
}

static const char *list_end(struct list *l)
{
	if (l->n_more > 0)
		(void)snprintf(l->text + l->used, sizeof(l->text) - l->used, " and %zu more",
			       l->n_more);
	return l->text;
}

/* --- Directories without weights ---------------------------------------------------------------- */

static bool has_weights(const char *path)
{
	cleanup(directory_deinit) struct directory d = {0};
	struct file f = {.path = (char *)path, .fd = -1};
	struct sentence ignored; /* one that cannot be listed has none */

	return directory_read(&f, &d, &ignored) == 0 && d.n_sets > 0;
}

static bool is_other_format(const char *name)
{
	static const char *const suffixes[] = {".bin",     ".pt",  ".pth",  ".ckpt",
					       ".gguf",    ".h5",  ".npz",  ".onnx",
					       ".msgpack", ".sft", ".part", ".incomplete"};
	const char *suffix = strrchr(name, '.');

	for (size_t i = 0; suffix && i < ARRAY_LEN(suffixes); i++)
		if (!strcmp(suffix, suffixes[i]))
			return true;
	return false;
}

static char *concat(const char *a, const char *b, const char *c)
{
	char *text;

	return asprintf(&text, "%s%s%s", a, b, c) < 0 ? NULL : text;
}

/* One name of a directory that has no weights; `below` is the path to it from the one that was asked for. */
static void look_at(const char *directory, const char *below, const char *entry,
		    struct list *folders, struct list *files);

/*
 * Lists the folders that have weights, and the files of another format. A model in the cache of
 * huggingface_hub has them one level deeper, in "snapshots".
 */
static void look_around(const char *directory, const char *below, struct list *folders,
			struct list *files)
{
	struct dirent **entries = NULL;
	int n = scandir(directory, &entries, NULL, alphasort);

	for (int i = 0; i < n; i++) {
		look_at(directory, below, entries[i]->d_name, folders, files);
		free(entries[i]);
	}
	free(entries);
}

static void look_at(const char *directory, const char *below, const char *entry,
		    struct list *folders, struct list *files)
{
	cleanup(freep) char *path = concat(directory, "/", entry);
	cleanup(freep) char *name = concat(below, "", entry);
	struct stat st;

	if (entry[0] == '.' || !path || !name || stat(path, &st) < 0)
		return;
	if (S_ISREG(st.st_mode) && is_other_format(name))
		list_add(files, name, 0);
	if (!S_ISDIR(st.st_mode))
		return;
	if (has_weights(path))
		list_add(folders, name, 0);
	if (!strcmp(name, "snapshots"))
		look_around(path, "snapshots/", folders, files);
}

static int refuse_empty(const struct file *f, struct sentence *s)
{
	struct list folders = {0}, files = {0};

	look_around(f->path, "", &folders, &files);
	if (folders.used > 0)
		return sentence_set(
			s, -ENOENT,
			"the directory %s has no .safetensors file itself, but its folders have some: "
			"name one of %s",
			QUOTE_PATH(f->path), list_end(&folders));
	if (files.used > 0)
		return sentence_set(
			s, -ENOENT,
			"the directory %s has no .safetensors file, only %s: name a file that is "
			"safetensors under another name or GGUF, or save the tensors as "
			"safetensors",
			QUOTE_PATH(f->path), list_end(&files));
	return sentence_set(s, -ENOENT,
			    "the directory %s has no .safetensors file and no index of such files",
			    QUOTE_PATH(f->path));
}

/* --- The choice --------------------------------------------------------------------------------- */

static int refuse_several(const struct directory *d, const struct file *f, const char *what,
			  struct sentence *s)
{
	struct list all = {0};

	for (size_t i = 0; i < d->n_sets; i++)
		list_add(&all, d->sets[i].entries->name, d->sets[i].n - 1);
	return sentence_set(s, -EBADMSG,
			    "%s has several %s, %s: name one of them, by its files or its index",
			    QUOTE_PATH(f->path), what, list_end(&all));
}

/*
 * Parts are numbered from 1, by some programs from 0, and the entries are in the order of their
 * numbers. Numbers that are all different and all in range are whole when they are as many as there
 * are parts.
 */
static int check_parts(const struct directory_set *set, const struct file *f, struct sentence *s)
{
	const struct directory_entry *e = set->entries;
	uint32_t first = e->part == 0 ? 0 : 1;

	for (size_t i = 0; i < set->n; i++) {
		if (i > 0 && e[i].part == e[i - 1].part)
			return sentence_set(
				s, -EBADMSG,
				"%s has part %u of %u twice, %s and %s: name the files of one set",
				QUOTE_PATH(f->path), e[i].part, e[i].n_parts, QUOTE(e[i - 1].name),
				QUOTE(e[i].name));
		if (e[i].part - first >= e->n_parts)
			return sentence_set(
				s, -EBADMSG,
				"%s has %s, but parts of %u are numbered from %u to %u where %s is "
				"one: name the files of one set",
				QUOTE_PATH(f->path), QUOTE(e[i].name), e->n_parts, first,
				first + e->n_parts - 1, QUOTE(e->name));
	}
	if (set->n == e->n_parts)
		return 0;
	return sentence_set(
		s, -EBADMSG,
		"%s has %zu of the %u files that %s is one of: complete the set, or name the files "
		"to load",
		QUOTE_PATH(f->path), set->n, e->n_parts, QUOTE(e->name));
}

/* 0 and NULL: there is no such name. */
static int choose_well_known(const struct directory *d, const struct file *f,
			     const struct directory_set **ret, const char **ret_rule,
			     struct sentence *s)
{
	const struct directory_set *found = NULL;

	for (size_t i = 0; i < ARRAY_LEN(well_known); i++) {
		const struct well_known *known = &well_known[i];
		const struct directory_set *index = directory_find(d, known->stem, true);
		const struct directory_set *file = directory_find(d, known->stem, false);

		if (!index && !file)
			continue;
		if (found)
			return refuse_several(d, f, "models", s);
		found = index && (known->index_first || !file) ? index : file;
		*ret_rule = index && file ? known->rule : NULL;
	}
	*ret = found;
	return 0;
}

/*
 * transformers writes the file of a model's weights into its configuration, if it has an unusual name. 0 and NULL:
 * the configuration has none.
 */
static int choose_configured(const struct directory *d, const struct file *f,
			     const struct directory_set **ret, const char **ret_rule,
			     struct sentence *s)
{
	cleanup(json_decrefp) json_t *config = configuration_read(f->path);
	const char *name = json_string_value(json_object_get(config, "transformers_weights"));

	for (size_t i = 0; name && i < d->n_sets; i++)
		if (d->sets[i].n == 1 && !strcmp(d->sets[i].entries->name, name)) {
			*ret = &d->sets[i];
			*ret_rule = "by its config.json";
			return 0;
		}
	if (name)
		return sentence_set(
			s, -ENOENT,
			"the weights of %s are in %s by its config.json, and no such file or "
			"index exists: name the files to load",
			QUOTE_PATH(f->path), QUOTE(name));
	return 0;
}

/*
 * Kinds of sets, in the order of the search without a well-known name: the first kind present must have one set.
 */
enum kind {
	PLAIN_INDEX,
	SHARDS,
	ONE_FILE,
	N_KINDS
};

/* Parts that have an index are no set beside it. */
static bool is_of_kind(const struct directory_set *set, enum kind kind)
{
	const struct directory_entry *e = set->entries;

	if (kind == PLAIN_INDEX)
		return e->is_index && !e->is_variant;
	if (kind == SHARDS)
		return e->is_variant || (e->n_parts > 0 && !set->has_index);
	return !e->is_index && e->n_parts == 0;
}

/* 0 and NULL: there is none. */
static int choose_only(const struct directory *d, const struct file *f, enum kind kind,
		       const struct directory_set **ret, struct sentence *s)
{
	const struct directory_set *found = NULL;

	for (size_t i = 0; i < d->n_sets; i++) {
		if (!is_of_kind(&d->sets[i], kind))
			continue;
		if (found)
			return refuse_several(d, f,
					      kind == PLAIN_INDEX ? "indexes" : "sets of weights",
					      s);
		found = &d->sets[i];
	}
	*ret = found;
	return 0;
}

int choice_make(const struct directory *d, const struct file *f, struct choice *ret,
		struct sentence *s)
{
	struct choice c = {0};
	int r;

	if (d->n_sets == 0)
		return refuse_empty(f, s);
	r = choose_configured(d, f, &c.set, &c.rule, s);
	if (r == 0 && !c.set)
		r = choose_well_known(d, f, &c.set, &c.rule, s);
	for (enum kind kind = 0; r == 0 && !c.set && kind < N_KINDS; kind++)
		r = choose_only(d, f, kind, &c.set, s);
	if (r == 0 && c.set->entries->n_parts > 0)
		r = check_parts(c.set, f, s);
	if (r < 0)
		return r;
	*ret = c;
	return 0;
}

bool choice_left_out(const struct choice *c, const struct directory *d, const struct file *f,
		     struct sentence *ret)
{
	struct list taken = {0}, left = {0};

	list_add(&taken, c->set->entries->name, c->set->n - 1);
	for (size_t i = 0; i < d->n_sets; i++) {
		const struct directory_set *set = &d->sets[i];
		const char *first = NULL;
		size_t n = 0;

		for (size_t k = set->n; k-- > 0;)
			if (!set->entries[k].is_taken) {
				first = set->entries[k].name;
				n++;
			}
		if (n > 0)
			list_add(&left, first, n - 1);
	}
	if (left.used == 0)
		return false;
	if (c->rule)
		(void)sentence_set(ret, 0, "%s: took %s (%s) and left out %s", QUOTE_PATH(f->path),
				   list_end(&taken), c->rule, list_end(&left));
	else
		(void)sentence_set(ret, 0, "%s: took %s and left out %s", QUOTE_PATH(f->path),
				   list_end(&taken), list_end(&left));
	return true;
}
