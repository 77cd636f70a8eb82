#include "libclient/train/save/description.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/quote.h"
#include "libclient/train/plan/names.h"
#include "libclient/train/plan/sentence.h"

#define INDEX ".safetensors.index.json"

/* --- Writing --------------------------------------------------------------------------------------- */

static int write_json(const struct folder *f, const char *name, json_t *o)
{
	cleanup(freep) char *text = o ? json_dumps(o, JSON_INDENT(1)) : NULL;

	return text ? folder_write(f, name, text) : train_out_of_memory();
}

static int map_name(json_t *map, const char *name, const char *suffix, const char *file)
{
	cleanup(freep) char *whole = NULL;

	if (asprintf(&whole, "%s%s", name, suffix) < 0 ||
	    json_object_set_new(map, whole, json_string(file)) < 0)
		return train_out_of_memory();
	return 0;
}

static uint32_t writer_of(const struct weightd_plan *p, const struct weightd_train_tensor *t)
{
	return plan_is_trained(t) && t->n_bytes ? checkpoint_owner(p, t) : 0;
}

static int map_states(json_t *map, const struct weightd_plan *p,
		      const struct weightd_train_tensor *t, const char *file, uint64_t *total)
{
	struct plan_interval elements = plan_elements(p, t);
	struct checkpoint_state state;
	int r = 0;

	for (uint32_t i = 0; r == 0 && checkpoint_state(p, i, &state); i++) {
		r = map_name(map, t->name, state.suffix, file);
		*total += (elements.end - elements.begin) * sizeof(float);
	}
	return r;
}

static int write_index(const struct folder *f, const struct weightd_plan *p, const char *stem)
{
	cleanup(json_decrefp) json_t *map = json_object(), *index = NULL;
	bool is_model = !strcmp(stem, CHECKPOINT_MODEL);
	char file[CHECKPOINT_NAME_MAX], name[CHECKPOINT_NAME_MAX];
	struct checkpoint_files files;
	uint64_t total = 0;
	int r = map ? 0 : train_out_of_memory();

	checkpoint_files_find(p, &files);
	for (uint32_t i = 0; r == 0 && i < p->n_tensors; i++) {
		const struct weightd_train_tensor *t = &p->tensors[i];

		checkpoint_file(&files, stem, writer_of(p, t), file);
		if (is_model) {
			r = map_name(map, t->name, "", file);
			total += t->n_bytes;
		} else if (plan_is_trained(t)) {
			r = map_states(map, p, t, file, &total);
		}
	}
	if (r < 0 || !json_object_size(map))
		return r;
	index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total,
			  "weight_map", map);
	(void)snprintf(name, sizeof(name), "%s" INDEX, stem);
	return write_json(f, name, index);
}

static int write_trainer(const struct folder *f, const struct weightd_plan *p,
			 const struct snapshot *s)
{
	cleanup(json_decrefp) json_t *o = NULL;
	cleanup(freep) char *text = NULL;
	json_t *plan, *scale;
	int r = weightd_plan_json(p, &text);

	if (r < 0)
		return r;
	plan = json_loads(text, 0, NULL);
	scale = p->has_scaling ? json_pack("{s:f, s:I, s:b}", "scale", (double)s->scale.scale,
					   "n_finite", (json_int_t)s->scale.n_finite, "overflowed",
					   (int)s->scale.has_overflowed)
			       : json_null();
	o = json_pack("{s:s, s:i, s:I, s:I, s:I, s:s, s:o, s:o}", "format", CHECKPOINT_FORMAT,
		      "version", CHECKPOINT_VERSION, "step", (json_int_t)s->step, "n_skipped",
		      (json_int_t)s->n_skipped, "n_ranks", (json_int_t)weightd_mesh_n_ranks(p->mesh),
		      "optimizer", optimizer_name(p->optimizer), "scaling", scale, "plan", plan);
	return write_json(f, CHECKPOINT_TRAINER, o);
}

int description_write(const struct folder *f, const struct weightd_plan *p, const struct snapshot *s)
{
	int r = write_index(f, p, CHECKPOINT_MODEL);

	if (r == 0)
		r = write_index(f, p, CHECKPOINT_OPTIMIZER);
	return r < 0 ? r : write_trainer(f, p, s);
}

/* --- Reading --------------------------------------------------------------------------------------- */

static int fail_damaged(const char *path, const char *why)
{
	struct quote q;

	return train_fail(-EBADMSG, "%s is damaged, or no file of a checkpoint: %s",
			  quote_bytes(&q, path, strlen(path)), why);
}

/* Opens a regular file; a pipe would block. */
static FILE *file_open(const char *path)
{
	cleanup(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	FILE *f;

	if (fd < 0 || fstat(fd, &st) < 0)
		return NULL;
	if (!S_ISREG(st.st_mode)) {
		errno = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
		return NULL;
	}
	f = fdopen(fd, "r");
	if (f)
		(void)take_fd(fd); /* the stream's */
	return f;
}

static int read_json(const char *folder, const char *name, char path[FOLDER_PATH_MAX], json_t **ret)
{
	json_error_t error;
	struct quote q;
	FILE *f;

	if (snprintf(path, FOLDER_PATH_MAX, "%s/%s", folder, name) >= FOLDER_PATH_MAX)
		return train_fail(-ENAMETOOLONG, "the path of the checkpoint is too long");
	f = file_open(path);
	if (!f)
		return train_fail(-errno, "cannot open %s: %s", quote_bytes(&q, path, strlen(path)),
				  strerror(errno));
	*ret = json_loadf(f, JSON_REJECT_DUPLICATES, &error);
	(void)fclose(f);
	return *ret ? 0 : fail_damaged(path, error.text);
}

static int get_number(const json_t *o, const char *path, const char *key, uint64_t max,
		      uint64_t *ret)
{
	const json_t *value = json_object_get(o, key);
	char why[64];

	if (json_is_integer(value) && json_integer_value(value) >= 0 &&
	    (uint64_t)json_integer_value(value) <= max) {
		*ret = (uint64_t)json_integer_value(value);
		return 0;
	}
	(void)snprintf(why, sizeof(why), "'%s' is no number of the range", key);
	return fail_damaged(path, why);
}

static int get_text(const json_t *o, const char *path, const char *key, const char **ret)
{
	char why[64];

	*ret = json_string_value(json_object_get(o, key));
	(void)snprintf(why, sizeof(why), "'%s' is no text", key);
	return *ret ? 0 : fail_damaged(path, why);
}

static int check_format(const json_t *o, const char *path)
{
	uint64_t version = 0;
	const char *format;
	int r = get_text(o, path, "format", &format);

	if (r == 0 && strcmp(format, CHECKPOINT_FORMAT) != 0)
		r = fail_damaged(path, "'format' is another one");
	if (r == 0)
		r = get_number(o, path, "version", UINT32_MAX, &version);
	if (r == 0 && version != CHECKPOINT_VERSION)
		return train_fail(-EPROTOTYPE,
				  "%s has format version %" PRIu64
				  ", and this release of weightd-train reads version %d",
				  path, version, CHECKPOINT_VERSION);
	return r;
}

/* Without it, a plan with scaling begins with its first scale. */
static int get_scale(const json_t *o, const char *path, struct description *ret)
{
	const json_t *scaling = json_object_get(o, "scaling");
	double scale = json_number_value(json_object_get(scaling, "scale"));
	uint64_t n_finite = 0;
	int r;

	if (!scaling || json_is_null(scaling))
		return 0;
	r = get_number(scaling, path, "n_finite", UINT32_MAX, &n_finite);
	if (r == 0 && !(scale > 0 && isnormal((float)scale)))
		r = fail_damaged(path, "'scale' is no positive number");
	ret->has_scale = r == 0;
	ret->scale = (struct control_scale){.scale = (float)scale,
					    .n_finite = (uint32_t)n_finite,
					    .has_overflowed = json_is_true(
						    json_object_get(scaling, "overflowed"))};
	return r;
}

int description_read(const char *folder, struct description *ret)
{
	cleanup(json_decrefp) json_t *o = NULL;
	char path[FOLDER_PATH_MAX];
	const char *optimizer = "";
	uint64_t n_ranks = 0;
	int r = read_json(folder, CHECKPOINT_TRAINER, path, &o);

	if (r == 0)
		r = check_format(o, path);
	if (r == 0)
		r = get_number(o, path, "step", (1ull << 31) - 1, &ret->step);
	if (r == 0)
		r = get_number(o, path, "n_skipped", ret->step, &ret->n_skipped);
	if (r == 0)
		r = get_number(o, path, "n_ranks", WEIGHTD_RANKS_MAX, &n_ranks);
	if (r == 0 && n_ranks == 0)
		r = fail_damaged(path, "'n_ranks' is 0");
	if (r == 0)
		r = get_text(o, path, "optimizer", &optimizer);
	if (r == 0)
		r = get_scale(o, path, ret);
	if (r < 0)
		return r;
	ret->n_ranks = (uint32_t)n_ranks;
	(void)snprintf(ret->optimizer, sizeof(ret->optimizer), "%s", optimizer);
	return 0;
}

/* Files of an index lie beside it: a path could lead anywhere. */
static bool is_map(json_t *map)
{
	const char *name;
	json_t *file;

	if (!json_is_object(map))
		return false;
	json_object_foreach(map, name, file) if (!json_is_string(file) ||
						 strchr(json_string_value(file), '/')) return false;
	return true;
}

int description_read_index(const char *folder, const char *stem, json_t **ret)
{
	cleanup(json_decrefp) json_t *o = NULL;
	char path[FOLDER_PATH_MAX], name[CHECKPOINT_NAME_MAX];
	json_t *map;
	int r;

	(void)snprintf(name, sizeof(name), "%s" INDEX, stem);
	r = read_json(folder, name, path, &o);
	if (r < 0)
		return r;
	map = json_object_get(o, "weight_map");
	if (!is_map(map))
		return fail_damaged(path, "'weight_map' does not name a file for each tensor");
	*ret = json_incref(map);
	return 0;
}
