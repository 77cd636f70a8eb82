#include "libclient/load/companions.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "libclient/files.h"
#include "libclient/image/files.h"
#include "libclient/load/folder/companion_folder.h"
#include "libclient/load/folder/gguf_file.h"
#include "libclient/load/selection.h"
#include "libclient/verified.h"

#define QUOTE(text) quote_bytes(&(struct quote){0}, text, strlen(text))
#define QUOTE_PATH(path) file_quote(&(struct quote){0}, path)

/* --- Attributes that the tensors and their file show --------------------------------------------- */

/* The type with most of the bytes. */
static const char *main_dtype(const struct weightd_layout *layout)
{
	uint64_t n_bytes[256] = {0};
	struct weightd_tensor t = {.size = sizeof(t)};
	unsigned most = 0;

	for (uint32_t i = 0; weightd_layout_tensor(layout, i, &t) == 0; i++)
		n_bytes[(unsigned)t.dtype % 256] += t.n_bytes;
	for (unsigned i = 1; i < 256; i++)
		if (n_bytes[i] > n_bytes[most])
			most = i;
	return weightd_dtype_name((enum weightd_dtype)most);
}

static bool begins_with(const char *text, const char *beginning)
{
	return !strncmp(text, beginning, strlen(beginning));
}

/* The name that programs expect of one file with all of the weights in `name`, a shard or a variant of it or not. */
static const char *weights_name(const char *name)
{
	static const char *const stems[] = {"diffusion_pytorch_model", "adapter_model"};
	static const char *const names[] = {"diffusion_pytorch_model.safetensors",
					    "adapter_model.safetensors"};

	for (size_t i = 0; i < ARRAY_LEN(stems); i++)
		if (begins_with(name, stems[i]))
			return names[i];
	return FILES_WEIGHTS_DEFAULT;
}

/* The path of the weights in a directory like the one they are from; `path` is theirs in that. */
static int set_weights(struct companions *c, const struct plan *plan, const char *path,
		       struct sentence *s)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	cleanup(freep) char *weights = NULL;

	name = gguf_file_is(&plan->files[0].file) ? "model.gguf" : weights_name(name);
	if (asprintf(&weights, "%.*s%s", slash ? (int)(slash + 1 - path) : 0, path, name) < 0) {
		weights = NULL;
		return sentence_set(s, -ENOMEM, "out of memory");
	}
	return files_set_attribute(c->files, FILES_WEIGHTS, weights, s);
}

/* --- Attributes that a configuration shows ------------------------------------------------------- */

/* Sets what can be one: a configuration is input, and may hold anything. */
static int set_found(struct companions *c, const char *key, const char *value)
{
	struct sentence ignored;

	if (!value || files_set_attribute(c->files, key, value, &ignored) != -ENOMEM)
		return 0;
	return -ENOMEM;
}

static int set_producer(struct companions *c, const json_t *config)
{
	static const char *const tools[][2] = {
		{"transformers_version", "transformers"},
		{"_diffusers_version", "diffusers"},
	};
	const char *release;
	char text[128];
	int r = 0;

	for (size_t i = 0; r == 0 && i < ARRAY_LEN(tools); i++) {
		release = json_string_value(json_object_get(config, tools[i][0]));
		if (!release)
			continue;
		(void)snprintf(text, sizeof(text), "%s %.64s", tools[i][1], release);
		r = set_found(c, "producer", text);
	}
	return r;
}

static int set_configured(struct companions *c, const json_t *config)
{
	const char *architecture = json_string_value(
		json_array_get(json_object_get(config, "architectures"), 0));
	const json_t *quantization = json_object_get(config, "quantization_config");
	int r;

	if (!architecture)
		architecture = json_string_value(json_object_get(config, "_class_name"));
	r = set_found(c, "architecture", architecture);
	if (r == 0)
		r = set_found(c, "quantization",
			      json_string_value(json_object_get(quantization, "quant_method")));
	return r == 0 ? set_producer(c, config) : r;
}

static int read_config(struct companions *c, const char *folder, size_t folder_size,
		       const char *name)
{
	struct weightd_file file = {.size = sizeof(file)};
	cleanup(json_decrefp) json_t *config = NULL;
	cleanup(freep) char *path = NULL;

	if (asprintf(&path, "%.*s%s", (int)folder_size, folder, name) < 0) {
		path = NULL;
		return -ENOMEM;
	}
	if (weightd_files_find(c->files, path, &file) == 0)
		config = json_loadb(file.data, file.n_bytes, 0, NULL);
	return config ? set_configured(c, config) : 0;
}

/* The more general one last, which is that of the whole model. */
static int read_configs(struct companions *c, const char *weights, struct sentence *s)
{
	const char *slash = strrchr(weights, '/');
	int r = slash ? read_config(c, weights, (size_t)(slash + 1 - weights), "config.json") : 0;

	if (r == 0)
		r = read_config(c, "", 0, "config.json");
	if (r == 0)
		r = read_config(c, "", 0, "model_index.json");
	return r < 0 ? sentence_set(s, r, "out of memory") : 0;
}

/* --- Directories -------------------------------------------------------------------------------- */

/* The first path that is a directory; NULL: none. */
static const char *find_directory(const char *const *paths, size_t n_paths)
{
	struct stat st;

	for (size_t i = 0; i < n_paths; i++)
		if (stat(paths[i], &st) == 0 && S_ISDIR(st.st_mode))
			return paths[i];
	return NULL;
}

/* The path of the first file that is loaded from `directory`, in it. */
static const char *weights_in(const struct plan *plan, const char *directory)
{
	size_t n = strlen(directory);

	while (n > 1 && directory[n - 1] == '/')
		n--;
	for (size_t i = 0; i < plan->sources.n; i++) {
		const char *path = plan->sources.list[i].path;

		if (!strncmp(path, directory, n) && (path[n] == '/' || directory[n - 1] == '/'))
			return path + n + (path[n] == '/');
	}
	return FILES_WEIGHTS_DEFAULT;
}

static void note_left_out(const struct companion_folder *folder,
			  const struct weightd_load_options *o)
{
	struct sentence note;
	char more[40] = "";

	if (!folder->left_out || !o->note)
		return;
	if (folder->n_left_out > 1)
		(void)snprintf(more, sizeof(more), " and %zu more", folder->n_left_out - 1);
	(void)sentence_set(&note, 0,
			   "%s: left out %s%s: links that leave the directory or lead nowhere, or "
			   "names that are not UTF-8 or have control characters",
			   QUOTE_PATH(folder->path), QUOTE(folder->left_out), more);
	o->note(o->userdata, note.text);
}

/* Reads the small files of the directory, or with no_files only its configurations, for their attributes. */
static int read_directory(struct companions *c, const char *directory, const char *weights,
			  const struct weightd_load_options *o, struct sentence *s)
{
	cleanup(companion_folder_deinit) struct companion_folder folder = {.fd = -1, .blobs_fd = -1};
	int r = companion_folder_init(&folder, directory, weights, o->no_files, s);

	if (r == 0)
		r = companion_folder_read(&folder, c->files);
	if (r == 0)
		r = read_configs(c, weights, s);
	if (r == 0 && !o->no_files)
		note_left_out(&folder, o);
	return r;
}

/* --- Loads -------------------------------------------------------------------------------------- */

static int drop_files(struct companions *c, struct sentence *s)
{
	cleanup(weightd_files_freep) struct weightd_files *attributes = NULL, *files = c->files;
	int r = weightd_files_new(&attributes);

	for (size_t i = 0; r == 0 && i < files->n_attributes; i++)
		r = files_set_attribute(attributes, files->attributes[i].key,
					files->attributes[i].value, s);
	if (r < 0) {
		(void)take_ptr(files);
		return sentence_set(s, r, "out of memory");
	}
	c->files = take_ptr(attributes);
	return 0;
}

static int fill(struct companions *c, const struct plan *plan, const char *const *paths,
		size_t n_paths, const struct weightd_load_options *o, struct sentence *s)
{
	const char *directory = find_directory(paths, n_paths);
	const char *weights = directory ? weights_in(plan, directory) : plan->files[0].file.path;
	const char *slash = strrchr(weights, '/');
	int r = 0;

	if (!directory && slash)
		weights = slash + 1;
	c->is_whole = directory || o->no_files || (o->create && o->create->new_layout);
	if (directory)
		r = read_directory(c, directory, weights, o, s);
	if (r == 0)
		r = set_weights(c, plan, weights, s);
	if (r == 0 && set_found(c, "architecture", plan->architecture) < 0)
		r = sentence_set(s, -ENOMEM, "out of memory");
	if (r == 0)
		r = files_set_attribute(c->files, "dtype", main_dtype(plan->layout), s);
	if (r == 0)
		r = files_set_attribute(c->files, "weightd", weightd_release(), s);
	if (r == 0)
		r = selection_describe(o, plan->tp_rules, c->files, s);
	if (r == 0 && o->no_files)
		r = drop_files(c, s);
	for (size_t i = 0; r == 0 && i < o->n_attributes; i++) {
		c->sets_weights |= begins_with(o->attributes[i], FILES_WEIGHTS "=");
		r = files_set_text(c->files, o->attributes[i], s);
	}
	return r == 0 ? files_check_weights(c->files, s) : r;
}

/* An older server: the weights are loaded alone, unless the caller asked for more. */
static int go_without(struct companions *c, struct weightd *w, const struct weightd_load_options *o)
{
	struct sentence note = w->sentence;

	if (o->n_attributes > 0)
		return -EOPNOTSUPP;
	if (o->note && c->files->n > 0)
		o->note(o->userdata, note.text);
	companions_deinit(c);
	return 0;
}

int companions_init(struct companions *c, struct weightd *w, const struct plan *plan,
		    const char *const *paths, size_t n_paths, const struct weightd_load_options *o)
{
	int r;

	*c = (struct companions){
		.n_wanted = o->n_attributes,
		.note = o->note,
		.userdata = o->userdata,
	};
	r = weightd_files_new(&c->files);
	if (r < 0)
		return sentence_set(&w->sentence, r, "out of memory");
	r = fill(c, plan, paths, n_paths, o, &w->sentence);
	if (r == 0 && files_check_server(w) == -EOPNOTSUPP)
		r = go_without(c, w, o);
	if (r < 0)
		companions_deinit(c);
	return r;
}

void companions_deinit(struct companions *c)
{
	weightd_files_free(c->files);
	c->files = NULL;
}

/* A program that loads by itself, not from a directory: the path of its weights stays, if it is of that kind. */
static bool keeps_weights(const struct weightd_files *had, const struct weightd_files *f)
{
	const char *here = strrchr(files_weights(f), '.'), *there = strrchr(files_weights(had), '.');

	return weightd_files_value(had, FILES_WEIGHTS) && here && there && !strcmp(here, there);
}

/* The files that the version begins with, to add to. None, with a note, if they cannot be read. */
static int get_begun(const struct companions *c, struct weightd_writer *wr,
		     struct weightd_files **ret)
{
	struct sentence note;
	int r = weightd_writer_get_files(wr, ret);

	if (r != -EBADMSG)
		return r;
	(void)sentence_set(&note, 0,
			   "the files of the newest version of '%s' are left out, because they "
			   "cannot be used: %.300s",
			   wr->name, wr->w->sentence.text);
	if (c->note)
		c->note(c->userdata, note.text);
	r = weightd_files_new(ret);
	return r < 0 ? sentence_set(&wr->w->sentence, r, "out of memory") : 0;
}

static int send_added(const struct companions *c, struct weightd_writer *wr,
		      enum weightd_verify verified)
{
	cleanup(weightd_files_freep) struct weightd_files *all = NULL;
	struct sentence *s = &wr->w->sentence;
	bool keep;
	int r = get_begun(c, wr, &all);

	if (r < 0)
		return r;
	keep = !c->sets_weights && keeps_weights(all, c->files);
	r = selection_describe(&(struct weightd_load_options){0}, NULL, all,
			       s); /* it was another load's */
	for (size_t i = 0; r == 0 && i < c->files->n_attributes; i++) {
		const struct files_attribute *a = &c->files->attributes[i];

		if (!keep || strcmp(a->key, FILES_WEIGHTS) != 0)
			r = files_set_attribute(all, a->key, a->value, s);
	}
	if (r == 0)
		r = verified_describe(verified, wr, all, s);
	return r == 0 ? weightd_writer_set_files(wr, all) : r;
}

int companions_send(const struct companions *c, struct weightd_writer *wr,
		    enum weightd_verify verified)
{
	int r;

	if (!c->files || (!files_possible(wr) && c->n_wanted == 0))
		return 0;
	if (!c->is_whole)
		return send_added(c, wr, verified);
	r = verified_describe(verified, wr, c->files, &wr->w->sentence);
	return r == 0 ? weightd_writer_set_files(wr, c->files) : r;
}
