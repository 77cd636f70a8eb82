#include "server/sync/local/companions.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/base/limits.h"

CLEANUP_POINTER(struct weightd_files, weightd_files_free);

static bool has_any(const struct weightd_files *f)
{
	return weightd_files_count(f) || weightd_files_n_attributes(f);
}

/* --- A source's --------------------------------------------------------------------------------- */

/* 0 with NULL: the version has none, or its weightd is of a release without files. */
static int find_files(const struct task *e, const struct target *target, struct weightd_files **ret,
		      struct fault *f)
{
	int r = weightd_files_get(e->w, target->buffer, target->device,
				  weightd_buffer_version(e->buffer), ret);

	if (r == -ENODATA || r == -EOPNOTSUPP)
		return 0;
	return r < 0 ? fault_set_weightd(f, r, e->w) : 0;
}

static uint64_t header_size_of(const struct task *e, int data_fd)
{
	struct weightd_location at = {.size = sizeof(at)};

	return data_fd >= 0 && weightd_buffer_location(e->buffer, &at) == 0 ? at.data_offset : 0;
}

static int read_header(int fd, uint8_t *to, uint64_t size)
{
	for (uint64_t at = 0; at < size;) {
		ssize_t n = pread(fd, to + at, size - at, (off_t)at);

		if (n < 0 && errno != EINTR)
			return -errno;
		if (n == 0)
			return -EIO; /* the version ends in its header */
		at += n > 0 ? (uint64_t)n : 0;
	}
	return 0;
}

int companions_new(const struct task *e, const struct target *target, int data_fd,
		   struct companions *ret, struct fault *f)
{
	cleanup(weightd_files_freep) struct weightd_files *files = NULL;
	struct companions c = {.fd = -1, .header_size = header_size_of(e, data_fd)};
	cleanup(freep) uint8_t *bytes = NULL;
	const void *image = NULL;
	uint64_t n_files = 0;
	int r = find_files(e, target, &files, f);

	if (r < 0)
		return r;
	if (files && has_any(files))
		image = weightd_files_image(files, &n_files);
	c.size = c.header_size + n_files;
	bytes = malloc(c.size + 1);
	if (!bytes || (files && has_any(files) && !image))
		return fault_set(f, -ENOMEM, "out of memory");
	r = read_header(data_fd, bytes, c.header_size);
	if (r == 0 && image)
		memcpy(bytes + c.header_size, image, n_files);
	if (r == 0 && c.size)
		r = fd_sealed_copy("weightd-sync-companions", bytes, c.size, &c.fd);
	if (r < 0)
		return fault_set(f, r, "its header and files cannot be copied: %s", strerror(-r));
	merkle_hash(bytes, c.size, c.hash);
	*ret = c;
	return 0;
}

void companions_clear(struct companions *c)
{
	c->fd = fd_close(c->fd);
}

void companions_describe(const struct companions *c, json_t *message)
{
	char hex[2 * MERKLE_HASH_SIZE + 1];

	/* Without memory the fields are missing, and nothing of them travels. */
	(void)json_object_update_new(message, json_pack("{s:s, s:I, s:I}", "companions",
							field_hex(c->hash, sizeof(c->hash), hex),
							"companions_bytes", (json_int_t)c->size,
							"header_bytes", (json_int_t)c->header_size));
}

/* --- A sink's ----------------------------------------------------------------------------------- */

unsigned companions_n_fds(const struct json_packet *t)
{
	const json_t *said = json_object_get(t->message, "companions");

	return json_integer_value(json_object_get(said, "bytes")) > 0;
}

int companions_take(const struct json_packet *t, struct received_companions *ret, struct fault *f)
{
	const json_t *said = json_object_get(t->message, "companions");
	uint8_t wanted[MERKLE_HASH_SIZE], found[MERKLE_HASH_SIZE];
	uint64_t size;

	if (!said)
		return 0;
	if (field_number(said, "bytes", DATA_OFFSET_MAX + FILES_MAX, &size) < 0 ||
	    field_number(said, "header_bytes", size < DATA_OFFSET_MAX ? size : DATA_OFFSET_MAX,
			 &ret->header_size) < 0 ||
	    field_bytes(said, "hash", wanted, sizeof(wanted)) < 0 ||
	    (size && (!t->n_fds || blob_map(t->fds[t->n_fds - 1], size, &ret->blob) < 0)) ||
	    ret->blob.size != size)
		return fault_set_message(f, t, "lacks a sealed header with files, or their size");
	merkle_hash(ret->blob.data, size, found);
	if (size && memcmp(found, wanted, sizeof(found)) != 0)
		return fault_set(f, -EILSEQ,
				 "the header and the files differ from the announced ones");
	ret->is_known = true;
	return 0;
}

void received_companions_deinit(struct received_companions *c)
{
	blob_deinit(&c->blob);
}

/* False: the version before has no files, and so the new one has none. */
static bool inherits_files(const struct task *e)
{
	cleanup(weightd_files_freep) struct weightd_files *before = NULL;

	return weightd_writer_get_files(e->writer, &before) < 0 || has_any(before);
}

static int parse_files(const struct received_companions *c, struct weightd_files **ret,
		       struct fault *f)
{
	int r = weightd_files_parse((const uint8_t *)c->blob.data + c->header_size,
				    c->blob.size - c->header_size, ret);

	return r < 0 ? fault_set(f, r, "the received files cannot be used: %s", strerror(-r)) : 0;
}

int companions_set_files(const struct task *e, const struct received_companions *c, struct fault *f)
{
	cleanup(weightd_files_freep) struct weightd_files *files = NULL;
	const bool has_files = c->blob.size > c->header_size;
	int r = has_files ? parse_files(c, &files, f) : 0;

	if (r < 0 || !c->is_known || (!has_files && !inherits_files(e)))
		return r;
	r = weightd_writer_set_files(e->writer, files);
	/* A weightd of a release without files goes on with the weights. */
	return r < 0 && r != -EOPNOTSUPP ? fault_set_weightd(f, r, e->w) : 0;
}
