#include "libclient/load/source.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "libclient/load/array.h"

#define FILE_SUFFIX ".safetensors"
#define INDEX_SUFFIX ".safetensors.index.json"
#define INDEX_NAME "model" INDEX_SUFFIX /* what transformers writes */

/* Names in a directory. */
struct listing {
	char **names;
	size_t n, max;
};

#define QUOTE(text) sentence_quote(&(struct sentence_quote){0}, text, strlen(text))
#define QUOTE_PATH(path) file_quote(&(struct sentence_quote){0}, path)

static int out_of_memory(struct sentence *s)
{
	return sentence_set(s, -ENOMEM, "there is not enough memory for the list of files");
}

static bool ends_with(const char *text, const char *suffix)
{
	size_t n = strlen(text), n_suffix = strlen(suffix);

	return n >= n_suffix && !strcmp(text + n - n_suffix, suffix);
}

/* The path of `name` in the directory whose path is the first `n` bytes of `directory`. */
static char *join(const char *directory, size_t n, const char *name)
{
	char *path;

	while (n > 1 && directory[n - 1] == '/')
		n--;
	if (asprintf(&path, "%.*s%s%s", (int)n, directory,
		     n == 0 || directory[n - 1] == '/' ? "" : "/", name) < 0)
		return NULL;
	return path;
}

/* Owns `path`, also when it fails. */
static int add_source(struct sources *ss, char *path, uint32_t index, uint32_t index_file,
		      struct sentence *s)
{
	if (!path)
		return out_of_memory(s);
	if (!array_reserve(ss->list, ss->n, ss->max)) {
		free(path);
		return out_of_memory(s);
	}
	ss->list[ss->n++] = (struct source){path, index, index_file};
	return 0;
}

/* --- Indexes ------------------------------------------------------------------------------------ */

static int add_files_of(struct sources *ss, uint32_t i, struct sentence *s)
{
	const char *path = ss->indexes[i].file.path;
	const struct index *index = &ss->indexes[i].index;
	const char *slash = strrchr(path, '/');
	size_t n_directory = slash ? (size_t)(slash - path) + 1 : 0;
	int r = 0;

	for (size_t k = 0; r == 0 && k < index->n_files; k++)
		r = add_source(ss, join(path, n_directory, index->files[k]), i, (uint32_t)k, s);
	return r;
}

/* Takes `f` over, unless it fails. */
static int add_index(struct sources *ss, struct file *f, struct sentence *s)
{
	struct source_index *added;
	int r;

	if (!array_reserve(ss->indexes, ss->n_indexes, ss->max_indexes))
		return out_of_memory(s);
	added = &ss->indexes[ss->n_indexes];
	r = index_read(f, &added->index, s);
	if (r < 0)
		return r;
	added->file = *f;
	*f = (struct file)FILE_INIT;
	return add_files_of(ss, (uint32_t)ss->n_indexes++, s);
}

static int add_index_in(struct sources *ss, const char *directory, const char *name,
			struct sentence *s)
{
	cleanup(freep) char *path = join(directory, strlen(directory), name);
	cleanup(file_deinit) struct file f = FILE_INIT;
	int r;

	if (!path)
		return out_of_memory(s);
	r = file_open(path, &f, s);
	if (r < 0)
		return r;
	if (f.is_directory)
		return sentence_set(s, -EBADMSG, "%s is a directory and no index", QUOTE_PATH(path));
	return add_index(ss, &f, s);
}

/* --- Directories -------------------------------------------------------------------------------- */

static void listing_deinit(struct listing *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->names[i]);
	free(l->names);
}

static int listing_add(struct listing *l, const char *name)
{
	if (!array_reserve(l->names, l->n, l->max))
		return -ENOMEM;
	l->names[l->n] = strdup(name);
	if (!l->names[l->n])
		return -ENOMEM;
	l->n++;
	return 0;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void listing_sort(struct listing *l)
{
	if (l->n > 1)
		qsort(l->names, l->n, sizeof(*l->names), compare_names);
}

static bool listing_has(const struct listing *l, const char *name)
{
	for (size_t i = 0; i < l->n; i++)
		if (!strcmp(l->names[i], name))
			return true;
	return false;
}

/* Hidden names are left out, as a shell does. */
static int list_directory(const struct file *f, struct listing *indexes, struct listing *files)
{
	const struct dirent *entry;
	DIR *dir = opendir(f->path);
	int r = 0;

	if (!dir)
		return -errno;
	while (r == 0) {
		errno = 0;
		entry = readdir(dir);
		if (!entry) {
			r = -errno;
			break;
		}
		if (entry->d_name[0] == '.')
			continue;
		if (ends_with(entry->d_name, INDEX_SUFFIX))
			r = listing_add(indexes, entry->d_name);
		else if (ends_with(entry->d_name, FILE_SUFFIX))
			r = listing_add(files, entry->d_name);
	}
	(void)closedir(dir);
	listing_sort(indexes);
	listing_sort(files);
	return r;
}

static int add_listed(struct sources *ss, const char *path, const struct listing *indexes,
		      const struct listing *files, struct sentence *s)
{
	int r = 0;

	if (listing_has(indexes, INDEX_NAME))
		return add_index_in(ss, path, INDEX_NAME, s);
	if (indexes->n > 1)
		return sentence_set(s, -EBADMSG,
				    "%s has several indexes, %s and %s among them: name one of them",
				    QUOTE_PATH(path), QUOTE(indexes->names[0]),
				    QUOTE(indexes->names[1]));
	if (indexes->n == 1)
		return add_index_in(ss, path, indexes->names[0], s);
	if (files->n == 0)
		return sentence_set(s, -ENOENT,
				    "the directory %s has no " FILE_SUFFIX
				    " file and no index of such files",
				    QUOTE_PATH(path));
	for (size_t i = 0; r == 0 && i < files->n; i++)
		r = add_source(ss, join(path, strlen(path), files->names[i]), SOURCE_NO_INDEX, 0, s);
	return r;
}

static int add_directory(struct sources *ss, const struct file *f, struct sentence *s)
{
	cleanup(listing_deinit) struct listing indexes = {0};
	cleanup(listing_deinit) struct listing files = {0};
	int r;

	r = list_directory(f, &indexes, &files);
	if (r == -ENOMEM)
		return out_of_memory(s);
	if (r < 0)
		return sentence_set(s, r, "cannot list the directory %s: %s", QUOTE_PATH(f->path),
				    strerror(-r));
	return add_listed(ss, f->path, &indexes, &files, s);
}

/* --- Paths -------------------------------------------------------------------------------------- */

int sources_add(struct sources *ss, const char *path, struct sentence *s)
{
	cleanup(file_deinit) struct file f = FILE_INIT;
	int r;

	r = file_open(path, &f, s);
	if (r < 0)
		return r;
	if (f.is_directory)
		return add_directory(ss, &f, s);
	if (ends_with(path, INDEX_SUFFIX))
		return add_index(ss, &f, s);
	return add_source(ss, strdup(path), SOURCE_NO_INDEX, 0, s);
}

void sources_deinit(struct sources *ss)
{
	for (size_t i = 0; i < ss->n; i++)
		free(ss->list[i].path);
	for (size_t i = 0; i < ss->n_indexes; i++) {
		file_deinit(&ss->indexes[i].file);
		index_deinit(&ss->indexes[i].index);
	}
	free(ss->list);
	free(ss->indexes);
	*ss = (struct sources){0};
}
