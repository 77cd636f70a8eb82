/*
 * A set in memory: two sorted arrays. Files of a received set lie in its mapping, others are copies.
 */
#include "libclient/image/files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/mapping.h"
#include "ipc/base/utf8.h"
#include "libclient/image/array.h"
#include "libclient/image/file_path.h"

#define QUOTE(text) quote_bytes(&(struct quote){0}, text, strlen(text))

int weightd_files_new(struct weightd_files **ret)
{
	struct weightd_files *f = calloc(1, sizeof(*f));

	if (!f)
		return -ENOMEM;
	*ret = f;
	return 0;
}

void weightd_files_free(struct weightd_files *f)
{
	if (!f)
		return;
	for (size_t i = 0; i < f->n; i++) {
		free(f->entries[i].path);
		free(f->entries[i].owned);
	}
	for (size_t i = 0; i < f->n_attributes; i++) {
		free(f->attributes[i].key);
		free(f->attributes[i].value);
	}
	free(f->entries);
	free(f->attributes);
	if (f->is_mapped)
		mapping_free(f->image, f->image_size);
	else
		free(f->image);
	free(f->built);
	free(f);
}

const char *weightd_files_error(const struct weightd_files *f)
{
	return f->sentence.text;
}

static void files_change(struct weightd_files *f)
{
	f->is_changed = true;
	free(f->built);
	f->built = NULL;
}

static int out_of_memory(struct sentence *s)
{
	return sentence_set(s, -ENOMEM, "there is not enough memory for the files");
}

/* --- Files -------------------------------------------------------------------------------------- */

/* The first entry that does not stand before `path`. */
static size_t entry_at(const struct weightd_files *f, const char *path, size_t size)
{
	size_t low = 0, high = f->n;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct files_entry *e = &f->entries[middle];

		if (file_path_compare(e->path, e->path_size, path, size) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static const struct files_entry *entry_find(const struct weightd_files *f, const char *path,
					    size_t size)
{
	size_t i = entry_at(f, path, size);

	if (i == f->n || f->entries[i].path_size != size || memcmp(f->entries[i].path, path, size))
		return NULL;
	return &f->entries[i];
}

/* An entry that is a folder of `path`. */
static const struct files_entry *entry_above(const struct weightd_files *f, const char *path,
					     size_t size)
{
	const struct files_entry *e = NULL;

	for (size_t i = 1; !e && i < size; i++)
		if (path[i] == '/')
			e = entry_find(f, path, i);
	return e;
}

/* An entry that has `path` as a folder. */
static const struct files_entry *entry_below(const struct weightd_files *f, const char *path,
					     size_t size)
{
	char folder[WEIGHTD_FILE_PATH_MAX + 1];
	const struct files_entry *e;
	size_t i;

	memcpy(folder, path, size);
	folder[size] = '/';
	i = entry_at(f, folder, size + 1);
	if (i == f->n)
		return NULL;
	e = &f->entries[i];
	return e->path_size > size + 1 && !memcmp(e->path, folder, size + 1) ? e : NULL;
}

/* -EEXIST: a directory with the files of `f` cannot have this path as well. */
static int check_free(const struct weightd_files *f, const char *path, size_t size,
		      struct sentence *s)
{
	struct quote q;
	const struct files_entry *e = entry_find(f, path, size);

	if (e)
		return sentence_set(s, -EEXIST, "%s is there twice", quote_bytes(&q, path, size));
	e = entry_above(f, path, size);
	if (!e)
		e = entry_below(f, path, size);
	if (!e)
		return 0;
	return sentence_set(s, -EEXIST,
			    "%s and %s cannot both be files: one is a folder of the other",
			    quote_bytes(&q, path, size), QUOTE(e->path));
}

static int check_room(const struct weightd_files *f, const char *path, uint64_t n_bytes,
		      struct sentence *s)
{
	if (f->n >= WEIGHTD_FILES_COUNT_MAX)
		return sentence_set(s, -EFBIG, "%d files beside the weights are the most",
				    WEIGHTD_FILES_COUNT_MAX);
	if (n_bytes > WEIGHTD_FILES_MAX - f->n_bytes)
		return sentence_set(s, -EFBIG,
				    "with %s of %" PRIu64 " bytes the files have more than %d bytes, "
				    "which is the most that a version has beside its weights",
				    QUOTE(path), n_bytes, WEIGHTD_FILES_MAX);
	return 0;
}

int files_add_mapped(struct weightd_files *f, const char *path, const void *data, uint64_t n_bytes,
		     struct sentence *s)
{
	cleanup(freep) char *copy = NULL;
	struct files_entry entry = {.path_size = strlen(path), .data = data, .n_bytes = n_bytes};
	size_t at;
	int r = file_path_check(path, entry.path_size, s);

	if (r == 0)
		r = check_free(f, path, entry.path_size, s);
	if (r == 0)
		r = check_room(f, path, n_bytes, s);
	if (r < 0)
		return r;
	copy = strdup(path);
	at = entry_at(f, path, entry.path_size);
	if (!copy || !array_reserve(f->entries, f->n, f->max))
		return out_of_memory(s);
	files_change(f);
	memmove(&f->entries[at + 1], &f->entries[at], (f->n++ - at) * sizeof(entry));
	entry.path = take_ptr(copy);
	f->entries[at] = entry;
	f->n_bytes += n_bytes;
	return 0;
}

int files_add(struct weightd_files *f, const char *path, const void *data, uint64_t n_bytes,
	      struct sentence *s)
{
	cleanup(freep) void *copy = NULL;
	int r = check_room(f, path, n_bytes, s);

	if (r < 0)
		return r;
	copy = malloc(n_bytes + 1);
	if (!copy)
		return out_of_memory(s);
	if (n_bytes)
		memcpy(copy, data, n_bytes);
	r = files_add_mapped(f, path, copy, n_bytes, s);
	if (r == 0)
		f->entries[entry_at(f, path, strlen(path))].owned = take_ptr(copy);
	return r;
}

int weightd_files_add(struct weightd_files *f, const char *path, const void *data, uint64_t n_bytes)
{
	return files_add(f, path, data, n_bytes, &f->sentence);
}

size_t weightd_files_count(const struct weightd_files *f)
{
	return f->n;
}

static int entry_get(const struct files_entry *e, struct weightd_file *ret)
{
	const struct weightd_file file = {
		.size = ret->size,
		.path = e->path,
		.data = e->data,
		.n_bytes = e->n_bytes,
	};

	if (ret->size < sizeof(file))
		return -EINVAL;
	*ret = file;
	return 0;
}

int weightd_files_file(const struct weightd_files *f, size_t i, struct weightd_file *ret)
{
	return i < f->n ? entry_get(&f->entries[i], ret) : -ENOENT;
}

int weightd_files_find(const struct weightd_files *f, const char *path, struct weightd_file *ret)
{
	const struct files_entry *e = entry_find(f, path, strlen(path));

	return e ? entry_get(e, ret) : -ENOENT;
}

/* --- Attributes --------------------------------------------------------------------------------- */

static size_t attribute_at(const struct weightd_files *f, const char *key, bool *ret_found)
{
	size_t i = 0;
	int order = 1;

	while (i < f->n_attributes && (order = strcmp(f->attributes[i].key, key)) < 0)
		i++;
	*ret_found = i < f->n_attributes && order == 0;
	return i;
}

static bool key_ok(const char *key)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
				      "0123456789._-";
	size_t n = strlen(key);

	return n > 0 && n <= WEIGHTD_ATTRIBUTE_KEY_MAX && strspn(key, allowed) == n;
}

static bool value_ok(const char *value)
{
	const unsigned char *p = (const unsigned char *)value;
	size_t left = strlen(value), n;
	uint32_t character;

	if (left > WEIGHTD_ATTRIBUTE_VALUE_MAX)
		return false;
	for (; left > 0; left -= n, p += n)
		if ((n = utf8_decode(p, left, &character)) == 0)
			return false;
	return true;
}

static int check_attribute(const char *key, const char *value, struct sentence *s)
{
	if (!key_ok(key))
		return sentence_set(s, -EINVAL,
				    "%s cannot be the name of an attribute: it is not 1 to %d of "
				    "A-Z a-z 0-9 . _ -",
				    QUOTE(key), WEIGHTD_ATTRIBUTE_KEY_MAX);
	if (value && !value_ok(value))
		return sentence_set(s, -EINVAL,
				    "the value of the attribute '%s' is not at most %d bytes of UTF-8",
				    key, WEIGHTD_ATTRIBUTE_VALUE_MAX);
	if (value && !strcmp(key, FILES_WEIGHTS))
		return file_path_check(value, strlen(value), s);
	return 0;
}

static void attribute_remove(struct weightd_files *f, size_t at)
{
	struct files_attribute *a = &f->attributes[at];

	free(a->key);
	free(a->value);
	f->n_attributes--;
	memmove(a, a + 1, (f->n_attributes - at) * sizeof(*a));
}

static int attribute_insert(struct weightd_files *f, size_t at, const char *key, const char *value,
			    struct sentence *s)
{
	cleanup(freep) char *copied_key = strdup(key);
	cleanup(freep) char *copied_value = strdup(value);

	if (f->n_attributes >= WEIGHTD_ATTRIBUTES_MAX)
		return sentence_set(s, -EFBIG, "%d attributes are the most", WEIGHTD_ATTRIBUTES_MAX);
	if (!copied_key || !copied_value ||
	    !array_reserve(f->attributes, f->n_attributes, f->max_attributes))
		return out_of_memory(s);
	memmove(&f->attributes[at + 1], &f->attributes[at],
		(f->n_attributes++ - at) * sizeof(*f->attributes));
	f->attributes[at].key = take_ptr(copied_key);
	f->attributes[at].value = take_ptr(copied_value);
	return 0;
}

int files_set_attribute(struct weightd_files *f, const char *key, const char *value,
			struct sentence *s)
{
	cleanup(freep) char *copy = NULL;
	bool found;
	size_t at = attribute_at(f, key, &found);
	int r = check_attribute(key, value, s);

	if (r < 0)
		return r;
	files_change(f);
	if (!value) {
		if (found)
			attribute_remove(f, at);
		return 0;
	}
	if (!found)
		return attribute_insert(f, at, key, value, s);
	copy = strdup(value);
	if (!copy)
		return out_of_memory(s);
	free(f->attributes[at].value);
	f->attributes[at].value = take_ptr(copy);
	return 0;
}

int weightd_files_set_attribute(struct weightd_files *f, const char *key, const char *value)
{
	return files_set_attribute(f, key, value, &f->sentence);
}

int files_set_text(struct weightd_files *f, const char *text, struct sentence *s)
{
	const char *equals = strchr(text, '=');
	cleanup(freep) char *key = NULL;

	if (!equals)
		return sentence_set(s, -EINVAL,
				    "%s is not an attribute and its value; write KEY=VALUE",
				    QUOTE(text));
	key = strndup(text, (size_t)(equals - text));
	return key ? files_set_attribute(f, key, equals + 1, s) : out_of_memory(s);
}

size_t weightd_files_n_attributes(const struct weightd_files *f)
{
	return f->n_attributes;
}

int weightd_files_attribute(const struct weightd_files *f, size_t i, const char **ret_key,
			    const char **ret_value)
{
	if (i >= f->n_attributes)
		return -ENOENT;
	*ret_key = f->attributes[i].key;
	*ret_value = f->attributes[i].value;
	return 0;
}

const char *weightd_files_value(const struct weightd_files *f, const char *key)
{
	bool found;
	size_t at = attribute_at(f, key, &found);

	return found ? f->attributes[at].value : NULL;
}

/* --- Both --------------------------------------------------------------------------------------- */

const char *files_weights(const struct weightd_files *f)
{
	const char *path = weightd_files_value(f, FILES_WEIGHTS);

	return path ? path : FILES_WEIGHTS_DEFAULT;
}

int files_check_weights(const struct weightd_files *f, struct sentence *s)
{
	const char *path = files_weights(f);
	struct sentence why;
	int r = check_free(f, path, strlen(path), &why);

	if (r < 0)
		return sentence_set(s, r,
				    "the weights are %s in a directory with these files, and that "
				    "path is not free (%.200s); set the attribute '" FILES_WEIGHTS
				    "' to another",
				    QUOTE(path), why.text);
	return 0;
}

int files_copy(struct weightd_files *to, const struct weightd_files *from, struct sentence *s)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < from->n; i++)
		r = files_add(to, from->entries[i].path, from->entries[i].data,
			      from->entries[i].n_bytes, s);
	for (size_t i = 0; r == 0 && i < from->n_attributes; i++)
		r = files_set_attribute(to, from->attributes[i].key, from->attributes[i].value, s);
	return r;
}
