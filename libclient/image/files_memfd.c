/*
 * The form in which files travel: one constant range of bytes, which every reader parses as input of another user.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "ipc/base/mapping.h"
#include "ipc/base/num.h"
#include "ipc/dtype.h"
#include "ipc/wire.h"
#include "libclient/image/files.h"
#include "libclient/image/header.h"
#include "libclient/image/members.h"
#include "libclient/image/safetensors.h"

#define QUOTE(text) quote_bytes(&(struct quote){0}, text, strlen(text))

/* More than the longest paths and attributes take. Without it a hostile header could take seconds to parse. */
#define HEADER_MAX (16 * MIB)

/* --- Building ----------------------------------------------------------------------------------- */

static int build_header(const struct weightd_files *f, void **ret, uint64_t *ret_size)
{
	struct image_attribute list[WEIGHTD_ATTRIBUTES_MAX];
	const struct image_metadata metadata = {.list = list, .n = f->n_attributes};
	struct image_header h;

	for (size_t i = 0; i < f->n_attributes; i++)
		list[i] = (struct image_attribute){f->attributes[i].key, f->attributes[i].value};
	image_header_begin(&h, &metadata);
	for (size_t i = 0; i < f->n; i++) {
		const struct files_entry *e = &f->entries[i];

		image_header_tensor(&h, e->path, e->path_size, WEIGHTD_U8, 1, &e->n_bytes,
				    e->n_bytes);
	}
	return image_header_end(&h, 0, ret, ret_size);
}

static int build(const struct weightd_files *f, void **ret, uint64_t *ret_size, struct sentence *s)
{
	cleanup(freep) void *image = NULL;
	uint64_t size, at;
	char *larger;
	int r = build_header(f, &image, &size);

	if (r == 0 && size + f->n_bytes > WIRE_FILES_MAX)
		r = -EFBIG;
	if (r < 0)
		return sentence_set(s, r, "the files beside the weights cannot be described: %s",
				    strerror(-r));
	larger = realloc(image, size + f->n_bytes);
	if (!larger)
		return sentence_set(s, -ENOMEM, "there is not enough memory for the files");
	(void)take_ptr(image);
	at = size;
	for (size_t i = 0; i < f->n; at += f->entries[i++].n_bytes)
		if (f->entries[i].n_bytes)
			memcpy(larger + at, f->entries[i].data, f->entries[i].n_bytes);
	*ret = larger;
	*ret_size = at;
	return 0;
}

int files_image(struct weightd_files *f, const void **ret, uint64_t *ret_size, struct sentence *s)
{
	int r;

	if (f->image && !f->is_changed) {
		*ret = f->image;
		*ret_size = f->image_size;
		return 0;
	}
	r = files_check_weights(f, s);
	if (r == 0 && !f->built)
		r = build(f, &f->built, &f->built_size, s);
	if (r < 0)
		return r;
	*ret = f->built;
	*ret_size = f->built_size;
	return 0;
}

const void *weightd_files_image(struct weightd_files *f, uint64_t *ret_size)
{
	const void *image = NULL;
	uint64_t size = 0;

	if (files_image(f, &image, &size, &f->sentence) == 0 && ret_size)
		*ret_size = size;
	return image;
}

/* --- Parsing ------------------------------------------------------------------------------------ */

static int add_tensor(struct weightd_files *f, const struct safetensors *st,
		      const struct safetensors_tensor *t, const char *data, struct sentence *s)
{
	if (t->dtype != WEIGHTD_U8 || t->n_dims != 1)
		return sentence_set(s, -EBADMSG, "%s is not one row of bytes",
				    quote_bytes(&(struct quote){0}, t->name, t->name_size));
	return files_add_mapped(f, t->name, data + t->begin, safetensors_shape(st, t)[0], s);
}

static int add_attributes(struct weightd_files *f, json_t *metadata, struct sentence *s)
{
	const char *key;
	json_t *value;
	int r;

	/* The form was checked: an object of texts, or null. */
	json_object_foreach(metadata, key, value)
	{
		if (strlen(json_string_value(value)) != json_string_length(value))
			return sentence_set(s, -EBADMSG, "the attribute %s has a NUL", QUOTE(key));
		r = files_set_attribute(f, key, json_string_value(value), s);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Finds the attributes in a header that was accepted. */
static int parse_attributes(struct weightd_files *f, const char *header, uint64_t size,
			    struct sentence *s)
{
	struct members members;
	struct span key, value;
	int r;

	members_init(&members, header, size);
	while ((r = members_next(&members, &key, &value)) > 0) {
		cleanup(json_decrefp) json_t *name = NULL, *metadata = NULL;

		r = members_parse(&members, key, &name);
		if (r < 0)
			break;
		if (strcmp(json_string_value(name), IMAGE_METADATA_NAME) != 0)
			continue;
		r = members_parse(&members, value, &metadata);
		return r < 0 ? r : add_attributes(f, metadata, s);
	}
	return r;
}

static int parse_tensors(struct weightd_files *f, const char *header, uint64_t size,
			 uint64_t data_size, struct sentence *s)
{
	struct safetensors st = {0};
	int r = safetensors_parse(header, size, data_size, &st, s);

	if (r > 0)
		r = -EBADMSG;
	for (size_t i = 0; r == 0 && i < st.n_tensors; i++)
		r = add_tensor(f, &st, &st.tensors[i], header + size, s);
	safetensors_deinit(&st);
	return r;
}

int files_parse(struct weightd_files *f, const void *image, uint64_t size, struct sentence *s)
{
	const char *header = (const char *)image + SAFETENSORS_PREFIX_SIZE;
	uint8_t prefix[SAFETENSORS_PREFIX_SIZE] = {0};
	uint64_t n = 0;
	int r;

	(void)sentence_set(s, 0, "%s", "");
	memcpy(prefix, image, size < sizeof(prefix) ? size : sizeof(prefix));
	r = safetensors_parse_prefix(prefix, size, &n, s) ? -EBADMSG : 0;
	if (r == 0 && n > HEADER_MAX)
		r = sentence_set(s, -EBADMSG, "its header has more than %" PRIu64 " bytes",
				 HEADER_MAX);
	if (r == 0)
		r = parse_tensors(f, header, n, size - sizeof(prefix) - n, s);
	if (r == 0)
		r = parse_attributes(f, header, n, s);
	if (r == 0)
		r = files_check_weights(f, s);
	f->is_changed = false;
	if (r < 0 && r != -ENOMEM)
		return sentence_set(s, -EBADMSG, "%s", s->text[0] ? s->text : strerror(-r));
	return r;
}

int weightd_files_parse(const void *data, uint64_t size, struct weightd_files **ret)
{
	cleanup(weightd_files_freep) struct weightd_files *f = NULL;
	struct sentence ignored;
	int r;

	if (size > WIRE_FILES_MAX)
		return -EBADMSG;
	r = weightd_files_new(&f);
	if (r < 0)
		return r;
	f->image = malloc(size + 1);
	if (!f->image)
		return -ENOMEM;
	memcpy(f->image, data, size);
	f->image_size = size;
	r = files_parse(f, f->image, size, &ignored);
	if (r == 0)
		*ret = take_ptr(f);
	return r;
}

int files_map(int fd, struct weightd_files **ret, struct sentence *s)
{
	cleanup(weightd_files_freep) struct weightd_files *f = NULL;
	uint64_t size = 0;
	int r = weightd_files_new(&f);

	if (r < 0)
		return sentence_set(s, r, "%s", strerror(-r));
	/* One that could shrink would end this process, and its size is of no use before the seal. */
	if (!fd_is_sealed(fd) || fd_size(fd, &size) < 0 || size == 0 || size > WIRE_FILES_MAX)
		return sentence_set(s, -EBADMSG, "it is no sealed memfd of 1 to %" PRIu64 " bytes",
				    WIRE_FILES_MAX);
	r = mapping_new_plain(fd, size, &f->image);
	if (r < 0)
		return sentence_set(s, r, "it cannot be mapped: %s", strerror(-r));
	f->image_size = size;
	f->is_mapped = true;
	r = files_parse(f, f->image, size, s);
	if (r == 0)
		*ret = take_ptr(f);
	return r;
}
