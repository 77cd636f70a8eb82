/*
 * Every source is opened and parsed in turn, its tensors are laid out behind those of the one before,
 * and what has to be copied is written down. Nothing of the data is read here.
 */
#include "libclient/load/plan.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "libclient/image/array.h"
#include "libclient/image/safetensors.h"
#include "libclient/image/unit.h"
#include "libclient/load/disk/cached.h"
#include "libclient/load/folder/gguf_file.h"
#include "libclient/load/http/url.h"
#include "libclient/load/ties.h"
#include "libclient/version/layout_builder.h"

struct planner {
	struct plan plan;
	bool *taken; /* one flag for each entry of the current index: its tensor was found */
	struct progress *progress;
	struct sentence *s;
	size_t files_max, pieces_max; /* allocated */
	struct original_data data; /* of the only file */
	struct ties ties;
	size_t n_read; /* sources */
	bool leaves_out; /* an index assigns a tensor in a file to another file */
};

/* A tensor as any kind of file has it. */
struct found {
	const char *name;
	enum weightd_dtype dtype;
	enum weightd_role role;
	const char *unit; /* NULL: that of its name */
	uint32_t n_dims;
	const uint64_t *shape;
	uint64_t offset, size; /* in the file */
};

#define QUOTE(text) quote_bytes(&(struct quote){0}, text, strlen(text))
#define QUOTE_PATH(path) file_quote(&(struct quote){0}, path)

static int out_of_memory(struct planner *p)
{
	return sentence_set(p->s, -ENOMEM, "there is not enough memory for the plan");
}

/*
 * The tensor's name is taken. The file with the other one matters only for this error, so it is searched for here,
 * not recorded before.
 */
static int refuse_duplicate(struct planner *p, const char *name)
{
	const struct plan *plan = &p->plan;
	struct weightd_tensor t = {.size = sizeof(t)};
	uint32_t i = 0;
	size_t owner = 0;

	while (weightd_layout_tensor(plan->layout, i, &t) == 0 && strcmp(t.name, name) != 0)
		i++;
	while (owner + 1 < plan->n_files && plan->files[owner + 1].first_tensor <= i)
		owner++;
	return sentence_set(p->s, -EBADMSG,
			    "tensor %s is in both %s and %s; name the files of one model",
			    QUOTE(name), QUOTE_PATH(plan->files[owner].file.path),
			    QUOTE_PATH(plan->files[plan->n_files - 1].file.path));
}

static int refuse_tensor(struct planner *p, const char *name, int r)
{
	const char *path = p->plan.files[p->plan.n_files - 1].file.path;

	if (r == -EEXIST)
		return refuse_duplicate(p, name);
	if (r == -ENOMEM)
		return out_of_memory(p);
	return sentence_set(p->s, r, "tensor %s of %s does not fit into a layout: %s", QUOTE(name),
			    QUOTE_PATH(path), strerror(-r));
}

/* Appends bytes to copy, to the last piece if they follow it on both sides. */
static int add_piece(struct planner *p, struct plan_piece piece)
{
	struct plan *plan = &p->plan;
	struct plan_piece *last = plan->n_pieces ? &plan->pieces[plan->n_pieces - 1] : NULL;

	plan->n_bytes += piece.size; /* the layout adds the same sizes and checks */
	if (last && last->file == piece.file && last->offset + last->size == piece.offset &&
	    last->dest + last->size == piece.dest) {
		last->size += piece.size;
		return 0;
	}
	if (!array_reserve(plan->pieces, plan->n_pieces, p->pieces_max))
		return out_of_memory(p);
	plan->pieces[plan->n_pieces++] = piece;
	return 0;
}

static int add_tensor(struct planner *p, const struct found *t)
{
	struct plan *plan = &p->plan;
	struct weightd_tensor added = {.size = sizeof(added)};
	char unit[UNIT_MAX];
	int r;

	r = weightd_layout_add(plan->layout, t->name, t->dtype, t->n_dims, t->shape, t->role,
			       t->unit ? t->unit : unit_of(t->name, unit));
	if (r == 0)
		r = weightd_layout_tensor(plan->layout, weightd_layout_n_tensors(plan->layout) - 1,
					  &added);
	if (r < 0)
		return refuse_tensor(p, t->name, r);
	if (t->size == 0)
		return 0;
	return add_piece(p, (struct plan_piece){
				    .dest = added.offset,
				    .offset = t->offset,
				    .size = t->size,
				    .file = (uint32_t)plan->n_files - 1,
			    });
}

/* True unless an index assigns the tensor of this name to another file. */
static bool plan_take(struct planner *p, const struct source *source,
		      const struct source_index *index, const char *name, uint32_t name_size)
{
	uint32_t entry;

	if (!index)
		return true;
	if (!names_find(&index->index.tensors, name, name_size, &entry) ||
	    index->index.entries[entry].file != source->index_file)
		return false;
	p->taken[entry] = true;
	return true;
}

static int open_source(struct planner *p, const struct source *source,
		       const struct source_index *index)
{
	struct plan *plan = &p->plan;
	struct plan_file *f;
	int r;

	if (!array_reserve(plan->files, plan->n_files, p->files_max))
		return out_of_memory(p);
	f = &plan->files[plan->n_files];
	*f = (struct plan_file){.first_tensor = weightd_layout_n_tensors(plan->layout)};
	r = sources_open(&plan->sources, source->path, &f->file, p->s);
	if (r == -ENOENT && index)
		return sentence_set(p->s, r,
				    "the index %s needs the file %s, which does not exist: "
				    "complete the download, or name the files to load",
				    QUOTE_PATH(index->file.path),
				    QUOTE(index->index.files[source->index_file]));
	if (r < 0)
		return r;
	plan->n_files++;
	if (f->file.is_directory)
		return sentence_set(p->s, -EBADMSG, "%s is a directory", QUOTE_PATH(source->path));
	if (!f->file.remote)
		f->n_cached = cached_bytes(f->file.fd, 0, f->file.identity.size);
	return 0;
}

static int add_tensor_of_safetensors(struct planner *p, const struct safetensors *st,
				     const struct safetensors_tensor *t)
{
	return add_tensor(p, &(struct found){
				     .name = t->name,
				     .dtype = t->dtype,
				     .role = t->role,
				     .unit = t->unit,
				     .n_dims = t->n_dims,
				     .shape = safetensors_shape(st, t),
				     .offset = st->data_offset + t->begin,
				     .size = t->end - t->begin,
			     });
}

static int expect_tensors(struct planner *p, const struct safetensors *st)
{
	size_t strings_size = 0;

	for (size_t i = 0; i < st->n_tensors; i++)
		strings_size += st->tensors[i].name_size + 1;
	return layout_builder_reserve(p->plan.layout, st->n_tensors, st->n_dims, strings_size) < 0
		       ? out_of_memory(p)
		       : 0;
}

static int read_safetensors(struct planner *p, const struct source *source,
			    const struct source_index *index, const struct file *f)
{
	const bool is_alone = p->plan.sources.n == 1;
	struct safetensors st = {0};
	void *header = NULL;
	int r = safetensors_read(f, &st, is_alone ? &header : NULL, p->s);

	if (r == 0)
		r = expect_tensors(p, &st);
	for (size_t i = 0; r == 0 && i < st.n_tensors; i++) {
		if (plan_take(p, source, index, st.tensors[i].name, st.tensors[i].name_size))
			r = add_tensor_of_safetensors(p, &st, &st.tensors[i]);
		else
			p->leaves_out = true;
	}
	p->data = (struct original_data){
		.offset = st.data_offset,
		.size = f->identity.size - st.data_offset,
		.alignment = 1,
		.header = header,
	};
	for (size_t i = 0; r == 0 && i < st.n_ties; i++) /* those of torch list both names */
		(void)plan_take(p, source, index, st.ties[i].alias, st.ties[i].alias_size);
	if (r == 0 && ties_keep(&p->ties, &st) < 0)
		r = out_of_memory(p);
	safetensors_deinit(&st);
	return r;
}

static int add_tensor_of_gguf(struct planner *p, const struct gguf *g, const struct gguf_tensor *t)
{
	char name[WEIGHTD_TENSOR_NAME_MAX + 1];

	(void)snprintf(name, sizeof(name), "%.*s", (int)t->name_size, t->name);
	return add_tensor(p, &(struct found){
				     .name = name,
				     .dtype = t->dtype,
				     .role = WEIGHTD_PARAM,
				     .n_dims = t->n_dims,
				     .shape = t->shape,
				     .offset = g->data_offset + t->offset,
				     .size = t->n_bytes,
			     });
}

/* A version is the file, so that no other can be a part of it. */
static int read_gguf(struct planner *p, const struct file *f)
{
	struct gguf_file g = {0};
	int r;

	if (p->plan.sources.n > 1)
		return sentence_set(p->s, -EBADMSG,
				    "%s is a GGUF file, which is loaded alone: name no other file",
				    QUOTE_PATH(f->path));
	r = gguf_file_read(f, &g, p->s);
	for (size_t i = 0; r == 0 && i < g.gguf.n_tensors; i++)
		r = add_tensor_of_gguf(p, &g.gguf, &g.gguf.tensors[i]);
	if (r == 0 && g.gguf.architecture) {
		p->plan.architecture = strndup(g.gguf.architecture, g.gguf.architecture_size);
		r = p->plan.architecture ? 0 : out_of_memory(p);
	}
	p->data = (struct original_data){
		.offset = g.gguf.data_offset,
		.size = g.gguf.data_size,
		.alignment = g.gguf.alignment,
		.header = take_ptr(g.header),
	};
	gguf_file_deinit(&g);
	return r;
}

static int read_source(struct planner *p, const struct source *source,
		       const struct source_index *index)
{
	const struct file *f;
	int r;

	r = open_source(p, source, index);
	if (r < 0)
		return r;
	f = &p->plan.files[p->plan.n_files - 1].file;
	return gguf_file_is(f) ? read_gguf(p, f) : read_safetensors(p, source, index, f);
}

/* A mapped tensor that its file does not have: the index is older or younger than the files. */
static int check_taken(struct planner *p, const struct source_index *index)
{
	const struct index *ix = &index->index;

	for (size_t i = 0; i < ix->n_entries; i++)
		if (!p->taken[i])
			return sentence_set(
				p->s, -EBADMSG,
				"the index %s maps tensor %s to %s, which does not have it: the "
				"index and the files do not belong together",
				QUOTE_PATH(index->file.path), QUOTE(ix->entries[i].tensor),
				QUOTE(ix->files[ix->entries[i].file]));
	return 0;
}

static int begin_index(struct planner *p, const struct source_index *index)
{
	free(p->taken);
	p->taken = calloc(index->index.n_entries, sizeof(*p->taken));
	return p->taken ? 0 : out_of_memory(p);
}

static int planner_report(struct planner *p)
{
	return progress_report(p->progress, "plan", p->n_read, p->plan.sources.n);
}

/* The sources of one index stand side by side: what it maps is checked when the last was read. */
static int read_sources(struct planner *p)
{
	const struct sources *ss = &p->plan.sources;
	const struct source_index *index;
	int r = 0;

	for (size_t i = 0; r == 0 && i < ss->n; i++) {
		const struct source *source = &ss->list[i];

		index = source->index == SOURCE_NO_INDEX ? NULL : &ss->indexes[source->index];
		p->n_read = i;
		if (planner_report(p) < 0)
			return progress_failed(p->progress, p->s);
		if (index && (i == 0 || source[-1].index != source->index))
			r = begin_index(p, index);
		if (r == 0)
			r = read_source(p, source, index);
		if (r == 0 && index && (i + 1 == ss->n || source[1].index != source->index))
			r = check_taken(p, index);
	}
	return r;
}

/* --- Plans -------------------------------------------------------------------------------------- */

static bool planner_is_stopped(void *userdata)
{
	return planner_report(userdata) < 0;
}

/* Makes the fetcher of the load, if a path is a URL. */
static int make_fetcher(struct planner *p, const char *const *paths, size_t n_paths)
{
	size_t i = 0;
	int r;

	while (i < n_paths && !url_is(paths[i]))
		i++;
	if (i == n_paths)
		return 0;
	r = fetcher_new(&p->plan.sources.fetcher, p->s);
	if (r == 0)
		fetcher_set_stop(p->plan.sources.fetcher, planner_is_stopped, p);
	return r;
}

static int plan_files(struct planner *p, const char *const *paths, size_t n_paths)
{
	const char *tied;
	int r = make_fetcher(p, paths, n_paths);

	if (r < 0)
		return r;

	if (n_paths == 0)
		return sentence_set(p->s, -EINVAL, "no file to load was named");
	p->plan.sources.note = p->progress->note;
	p->plan.sources.userdata = p->progress->userdata;
	p->plan.sources.is_stopped = planner_is_stopped;
	p->plan.sources.planner = p;
	for (size_t i = 0; i < n_paths; i++) {
		r = sources_add(&p->plan.sources, paths[i], p->s);
		if (r < 0)
			return r;
	}
	if (weightd_layout_new(0, &p->plan.layout) < 0)
		return out_of_memory(p);
	r = read_sources(p);
	if (r < 0)
		return r;
	if (weightd_layout_n_tensors(p->plan.layout) == 0)
		return sentence_set(p->s, -EBADMSG, "%s has no tensors", QUOTE_PATH(paths[0]));
	r = ties_add(&p->ties, p->plan.layout, &tied);
	if (r < 0)
		return refuse_tensor(p, tied, r);
	if (p->plan.n_files > 1 || p->leaves_out)
		return 0;
	return original_init(&p->plan.original, &p->data, p->plan.layout, p->s);
}

int plan_make(const char *const *paths, size_t n_paths, struct progress *progress, struct plan *ret,
	      struct sentence *s)
{
	struct planner p = {.progress = progress, .s = s};
	int r;

	r = plan_files(&p, paths, n_paths);
	free(p.taken);
	free(p.data.header);
	ties_deinit(&p.ties);
	if (r < 0) {
		plan_deinit(&p.plan);
		return r;
	}
	if (plan_is_remote(&p.plan))
		fetcher_set_stop(p.plan.sources.fetcher, NULL, NULL);
	*ret = p.plan;
	return 0;
}

void plan_deinit(struct plan *p)
{
	for (size_t i = 0; i < p->n_files; i++)
		file_deinit(&p->files[i].file);
	free(p->files);
	free(p->pieces);
	free(p->cuts);
	weightd_layout_free(p->layout);
	original_deinit(&p->original);
	free(p->architecture);
	free(p->tp_rules);
	sources_deinit(&p->sources);
	*p = (struct plan){0};
}

int plan_check_unchanged(const struct plan *p, struct sentence *s)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < p->sources.n_indexes; i++)
		r = file_check_unchanged(&p->sources.indexes[i].file, s);
	for (size_t i = 0; r == 0 && i < p->n_files; i++)
		r = file_check_unchanged(&p->files[i].file, s);
	return r;
}

uint64_t plan_end(const struct plan *p)
{
	const struct plan_piece *last = p->n_pieces ? &p->pieces[p->n_pieces - 1] : NULL;

	return last ? last->dest + last->size : 0;
}

size_t plan_find_piece(const struct plan *p, uint64_t dest)
{
	size_t low = 0, high = p->n_pieces;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (p->pieces[middle].dest + p->pieces[middle].size <= dest)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct plan_piece plan_clip(const struct plan_piece *piece, uint64_t begin, uint64_t end)
{
	struct plan_piece part = *piece;
	uint64_t skip = part.dest < begin ? begin - part.dest : 0;

	part.offset += skip;
	part.dest += skip;
	part.size -= skip;
	if (part.size > end - part.dest)
		part.size = end - part.dest;
	return part;
}

struct plan_piece plan_tensor_piece(const struct plan *p, const struct weightd_tensor *t)
{
	const struct plan_piece *piece = &p->pieces[plan_find_piece(p, t->offset)];

	return plan_clip(piece, t->offset, t->offset + t->n_bytes);
}

int plan_read(const struct plan *p, const struct plan_piece *piece, uint64_t at, uint64_t n,
	      void *to, struct sentence *s)
{
	const struct file *f = &p->files[piece->file].file;

	if (piece->cut)
		return cut_read(&p->cuts[piece->cut - 1], f, piece->offset, at, n, to, s);
	return file_read(f, to, n, piece->offset + at, s);
}
