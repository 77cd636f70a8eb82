#include "libclient/load/source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "libclient/image/array.h"
#include "libclient/load/folder/choice.h"
#include "libclient/load/folder/directory.h"
#include "libclient/load/folder/gguf_file.h"
#include "libclient/load/folder/pipeline.h"
#include "libclient/load/http/url.h"
#include "libclient/load/torch/checkpoint.h"

#define QUOTE_PATH(path) file_quote(&(struct quote){0}, path)

static int out_of_memory(struct sentence *s)
{
	return sentence_set(s, -ENOMEM, "there is not enough memory for the list of files");
}

/* The path of `name` in the directory that the first `n` bytes of `directory` name. */
static char *path_join(const char *directory, size_t n, const char *name)
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

/* The path or URL of `name` in the folder of an index. */
static char *path_beside(const char *index, const char *name)
{
	const char *slash = strrchr(index, '/');

	if (url_is(index))
		return url_sibling(index, name);
	return path_join(index, slash ? (size_t)(slash - index) + 1 : 0, name);
}

static int add_files_of(struct sources *ss, const char *path, uint32_t i, struct sentence *s)
{
	const struct index *index = &ss->indexes[i].index;
	int r = 0;

	for (size_t k = 0; r == 0 && k < index->n_files; k++)
		r = add_source(ss, path_beside(path, index->files[k]), i, (uint32_t)k, s);
	return r;
}

/* Takes `f`, which is at `path`, over, unless it fails. */
static int add_index(struct sources *ss, const char *path, struct file *f, struct sentence *s)
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
	return add_files_of(ss, path, (uint32_t)ss->n_indexes++, s);
}

static int add_index_in(struct sources *ss, const char *directory, const char *name,
			struct sentence *s)
{
	cleanup(freep) char *path = path_join(directory, strlen(directory), name);
	cleanup(file_deinit) struct file f = FILE_INIT;
	int r;

	if (!path)
		return out_of_memory(s);
	r = file_open(path, &f, s);
	if (r < 0)
		return r;
	if (f.is_directory)
		return sentence_set(s, -EBADMSG, "%s is a directory and no index", QUOTE_PATH(path));
	return add_index(ss, path, &f, s);
}

/* --- Directories -------------------------------------------------------------------------------- */

static int add_index_of(struct sources *ss, struct directory *d, const char *directory,
			const char *name, struct sentence *s)
{
	const struct index *index;
	int r = add_index_in(ss, directory, name, s);

	if (r < 0)
		return r;
	index = &ss->indexes[ss->n_indexes - 1].index;
	for (size_t i = 0; i < index->n_files; i++)
		directory_take(d, index->files[i]);
	directory_take(d, name);
	return 0;
}

static int add_files_in(struct sources *ss, struct directory *d, const char *directory,
			const struct directory_set *set, struct sentence *s)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < set->n; i++) {
		directory_take(d, set->entries[i].name);
		r = add_source(ss, path_join(directory, strlen(directory), set->entries[i].name),
			       SOURCE_NO_INDEX, 0, s);
	}
	return r;
}

/* Adds the set that `d`, the list of `f`, stands for. */
static int add_choice(struct sources *ss, struct directory *d, const struct file *f,
		      struct sentence *s)
{
	struct choice choice = {0};
	struct sentence note;
	int r = choice_make(d, f, &choice, s);

	if (r < 0)
		return r;
	if (choice.set->entries->is_index)
		r = add_index_of(ss, d, f->path, choice.set->entries->name, s);
	else
		r = add_files_in(ss, d, f->path, choice.set, s);
	if (r == 0 && ss->note && choice_left_out(&choice, d, f, &note))
		ss->note(ss->userdata, note.text);
	return r;
}

/* 1: the directory is a pipeline, and its component with weights was added. */
static int add_component(struct sources *ss, const char *directory, struct sentence *s)
{
	cleanup(directory_deinit) struct directory d = {0};
	cleanup(file_deinit) struct file f = FILE_INIT;
	cleanup(freep) char *component = NULL, *path = NULL;
	int r = pipeline_find(directory, &component, s);

	if (r <= 0)
		return r;
	path = path_join(directory, strlen(directory), component);
	if (!path)
		return out_of_memory(s);
	r = file_open(path, &f, s);
	if (r == 0)
		r = directory_read(&f, &d, s);
	if (r == 0)
		r = add_choice(ss, &d, &f, s);
	return r < 0 ? r : 1;
}

/* 1: the weights of the directory are one GGUF file, which was added. */
static int add_gguf(struct sources *ss, const char *directory, struct sentence *s)
{
	cleanup(freep) char *name = NULL;
	int r = gguf_file_find(directory, &name);

	if (r < 0)
		return sentence_set(s, r, "cannot list the directory %s: %s", QUOTE_PATH(directory),
				    strerror(-r));
	if (r == 0)
		return 0;
	r = add_source(ss, path_join(directory, strlen(directory), name), SOURCE_NO_INDEX, 0, s);
	return r < 0 ? r : 1;
}

static int add_directory(struct sources *ss, const struct file *f, struct sentence *s)
{
	cleanup(directory_deinit) struct directory d = {0};
	int r = directory_read(f, &d, s);

	if (r == 0 && d.n_sets == 0)
		r = add_component(ss, f->path, s);
	if (r == 0 && d.n_sets == 0)
		r = add_gguf(ss, f->path, s);
	if (r != 0)
		return r < 0 ? r : 0;
	return add_choice(ss, &d, f, s);
}

/* --- Paths -------------------------------------------------------------------------------------- */

int sources_open(const struct sources *ss, const char *path, struct file *ret, struct sentence *s)
{
	int r = url_is(path) ? fetcher_open(ss->fetcher, path, ret, s) : file_open(path, ret, s);

	if (r < 0 || !checkpoint_is(ret))
		return r;
	r = checkpoint_convert(ret, ss->is_stopped, ss->planner, s);
	if (r < 0)
		file_deinit(ret);
	return r;
}

static bool is_index(const char *path)
{
	return directory_is_index(path) || checkpoint_is_index(path);
}

static int add_url(struct sources *ss, const char *url, struct sentence *s)
{
	cleanup(file_deinit) struct file f = FILE_INIT;
	cleanup(freep) char *shown = url_shown(url);
	int r;

	if (!shown)
		return out_of_memory(s);
	if (!is_index(shown))
		return add_source(ss, strdup(url), SOURCE_NO_INDEX, 0, s);
	r = sources_open(ss, url, &f, s);
	return r < 0 ? r : add_index(ss, url, &f, s);
}

int sources_add(struct sources *ss, const char *path, struct sentence *s)
{
	cleanup(file_deinit) struct file f = FILE_INIT;
	int r;

	if (url_is(path))
		return add_url(ss, path, s);
	r = file_open(path, &f, s);
	if (r < 0)
		return r;
	if (f.is_directory)
		return add_directory(ss, &f, s);
	if (is_index(path))
		return add_index(ss, path, &f, s);
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
	ss->fetcher = fetcher_free(ss->fetcher);
	free(ss->list);
	free(ss->indexes);
	*ss = (struct sources){0};
}
