/*
 * Compares what a load would publish with the current version: tensors as weightd_diff() does, then files and attributes.
 */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "libclient/buffer.h"
#include "libclient/connection/client.h"
#include "libclient/diff/diff.h"
#include "libclient/files.h"
#include "libclient/load/companions.h"
#include "libclient/load/plan.h"
#include "libclient/load/selection.h"
#include "libclient/verified.h"

CLEANUP_POINTER(struct weightd_buffer, weightd_detach);

/* The release of the loading library says nothing about the model, and what was verified is compared on its own. */
static bool is_compared(const struct companions *c, const char *key)
{
	if (!strcmp(key, "weightd") || !strcmp(key, VERIFIED_ATTRIBUTE))
		return false;
	return c->is_whole || c->sets_weights || strcmp(key, FILES_WEIGHTS) != 0;
}

static bool has_attributes(const struct weightd_files *f, const struct companions *c)
{
	for (size_t i = 0; i < c->files->n_attributes; i++) {
		const struct files_attribute *a = &c->files->attributes[i];
		const char *value = weightd_files_value(f, a->key);

		if (is_compared(c, a->key) && (!value || strcmp(value, a->value) != 0))
			return false;
	}
	if (c->is_whole)
		return f->n_attributes - (weightd_files_value(f, VERIFIED_ATTRIBUTE) != NULL) ==
		       c->files->n_attributes;
	for (size_t i = 0; i < f->n_attributes; i++)
		if (selection_has_attribute(f->attributes[i].key) &&
		    !weightd_files_value(c->files, f->attributes[i].key))
			return false;
	return true;
}

static bool has_files(const struct weightd_files *f, const struct companions *c)
{
	if (!c->is_whole)
		return true;
	if (f->n != c->files->n)
		return false;
	for (size_t i = 0; i < f->n; i++) {
		const struct files_entry *a = &f->entries[i], *b = &c->files->entries[i];

		if (strcmp(a->path, b->path) != 0 || a->n_bytes != b->n_bytes ||
		    memcmp(a->data, b->data, a->n_bytes) != 0)
			return false;
	}
	return true;
}

/* 1: other files, or none; 0: the same. */
static int compare_files(struct weightd *w, const struct weightd_buffer *b, const char *path,
			 const struct weightd_load_options *o)
{
	cleanup(weightd_files_freep) struct weightd_files *f = NULL;
	cleanup(companions_deinit) struct companions c = {0};
	cleanup(plan_deinit) struct plan plan = {0};
	struct progress progress = {0};
	int r;

	if (b->memory.location.memory == WIRE_MEMORY_CUDA_IPC)
		return o->verify != WEIGHTD_VERIFY_NONE; /* it has no attributes */
	r = plan_make(&path, 1, &progress, &plan, client_sentence(w));
	if (r == 0)
		r = selection_apply(o, &plan, client_sentence(w));
	if (r == 0)
		r = companions_init(&c, w, &plan, &path, 1, o);
	if (r < 0 || !c.files)
		return r;
	r = weightd_files_get(w, b->name, b->device, b->version, &f);
	if (r < 0)
		return r == -ENODATA ? 1 : r;
	return !has_files(f, &c) || !has_attributes(f, &c) ||
	       verified_level(f, weightd_buffer_digest(b)) < o->verify;
}

int weightd_load_needed(struct weightd *w, const char *name, const char *path,
			const struct weightd_load_options *options, uint64_t *ret_version)
{
	cleanup(weightd_detachp) struct weightd_buffer *b = NULL;
	struct weightd_attach_options attach = {.size = sizeof(attach)};
	struct weightd_diff_side first = {.size = sizeof(first)}, second = first;
	struct weightd_load_options o = {0};
	uint32_t uid = geteuid();
	int r = 0;

	if (options)
		r = client_copy_options(w, options, offsetof(struct weightd_load_options, n_threads),
					&o, sizeof(o));
	if (r < 0)
		return r;
	o.note = NULL; /* the load repeats them */
	attach.device = o.create ? o.create->device : NULL;
	attach.owner = o.create && o.create->owner ? o.create->owner : &uid;
	if (weightd_attach(w, name, &attach, &b) < 0)
		return 1; /* the load has the error */
	first.buffer = b;
	second.path = path;
	r = diff_with_load(w, &first, &second, &o);
	if (r == 0)
		r = compare_files(w, b, path, &o);
	if (r == 0 && ret_version)
		*ret_version = b->version;
	return r;
}
