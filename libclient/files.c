/*
 * The set travels as a sealed memfd. The server keeps it with the version, and the reader checks it.
 */
#include "libclient/files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "libclient/connection/call.h"
#include "libclient/connection/release.h"
#include "libclient/target.h"
#include "libclient/writer_check.h"

#define QUOTE(text) quote_bytes(&(struct quote){0}, text, strlen(text))

CLEANUP_POINTER(struct weightd_list, weightd_list_free);

int files_check_server(struct weightd *w)
{
	int r = client_check_usable(w);

	if (r < 0 || w->has_images)
		return r;
	return release_too_old(w, &w->sentence, "keep files beside weights");
}

/* --- Reading ------------------------------------------------------------------------------------ */

int weightd_files_get(struct weightd *w, const char *name, const char *device, uint64_t version,
		      struct weightd_files **ret)
{
	struct client_call call = {.op = WIRE_FILES, .request.files.version = version};
	struct wire_files *request = &call.request.files;
	struct sentence *s = &w->sentence, why;
	int r = files_check_server(w);

	if (r == 0)
		r = client_put_target(w, name, device, request->name, request->device);
	if (r == 0)
		r = client_call_run(w, &call);
	if (r < 0)
		return r;
	r = files_map(call.reply_fds[0], ret, &why);
	client_call_deinit(&call);
	if (r < 0)
		return sentence_set(s, r,
				    "the files of '%s@%" PRIu64 "' on %s cannot be used: %.300s",
				    name, call.reply.files.version, request->device, why.text);
	return 0;
}

/* --- Requiring ---------------------------------------------------------------------------------- */

/* One text against one version. `f` NULL: the version has no files. */
static int require_one(struct weightd *w, const char *where, const struct weightd_files *f,
		       const char *text)
{
	struct sentence *s = &w->sentence;
	const char *equals = strchr(text, '='), *value;
	cleanup(freep) char *key = NULL;

	if (!equals || equals == text)
		return sentence_set(s, -EINVAL,
				    "%s is not a required attribute and its value; use key=value",
				    QUOTE(text));
	key = strndup(text, (size_t)(equals - text));
	if (!key)
		return sentence_set(s, -ENOMEM, "out of memory");
	value = f ? weightd_files_value(f, key) : NULL;
	if (value && !strcmp(value, equals + 1))
		return 0;
	if (!value)
		return sentence_set(s, -EMEDIUMTYPE, "%s has no attribute %s, and %s is required",
				    where, QUOTE(key), QUOTE(equals + 1));
	return sentence_set(s, -EMEDIUMTYPE, "the attribute %s of %s is %s, and %s is required",
			    QUOTE(key), where, QUOTE(value), QUOTE(equals + 1));
}

int files_require(struct weightd *w, const char *name, const char *device, uint64_t version,
		  const char *const *require, size_t n_require)
{
	cleanup(weightd_files_freep) struct weightd_files *f = NULL;
	char where[WIRE_NAME_SIZE + WIRE_DEVICE_SIZE + 40];
	int r = 0;

	if (n_require == 0)
		return 0;
	r = weightd_files_get(w, name, device, version, &f);
	if (r < 0 && r != -ENODATA)
		return r;
	(void)snprintf(where, sizeof(where), "'%s@%" PRIu64 "' on %s", name, version, device);
	r = 0;
	for (size_t i = 0; r == 0 && i < n_require; i++)
		r = require_one(w, where, f, require[i]);
	return r;
}

/* --- Writing ------------------------------------------------------------------------------------ */

bool files_possible(struct weightd_writer *wr)
{
	if (files_check_server(wr->w) < 0)
		return false;
	if (wr->memory.location.memory != WIRE_MEMORY_CUDA_IPC)
		return true;
	(void)sentence_set(&wr->w->sentence, -EOPNOTSUPP,
			   "'%s' is cuda-ipc memory, which has no files beside its weights",
			   wr->name);
	return false;
}

static int check_writer(struct weightd_writer *wr)
{
	int r = writer_check_open(wr);

	if (r < 0)
		return r;
	return files_possible(wr) ? 0 : -EOPNOTSUPP;
}

/* On a new connection the writer has been resumed, or is lost. */
static int set_again(struct weightd *w, struct client_call *call)
{
	(void)w;
	return check_writer(call->subject);
}

static int send_files(struct weightd_writer *wr, int fd)
{
	struct client_call call = {
		.op = WIRE_SET_FILES,
		.fds = &fd,
		.again = set_again,
		.subject = wr,
		.request.set_files.id = wr->id,
	};
	int r = client_call_run(wr->w, &call);

	client_call_deinit(&call);
	return r;
}

int weightd_writer_set_files(struct weightd_writer *wr, struct weightd_files *f)
{
	cleanup(weightd_files_freep) struct weightd_files *none = NULL;
	struct sentence *s = &wr->w->sentence;
	cleanup(fd_closep) int fd = -1;
	const void *image;
	uint64_t size;
	int r = check_writer(wr);

	if (r == 0 && !f)
		r = weightd_files_new(&none);
	if (r == 0)
		r = files_image(f ? f : none, &image, &size, s);
	if (r < 0)
		return r;
	r = fd_sealed_copy("weightd-files", image, size, &fd);
	if (r < 0)
		return sentence_set(s, r, "the files beside '%s' have no memory: %s", wr->name,
				    strerror(-r));
	r = send_files(wr, fd);
	if (r < 0)
		return r;
	(void)fd_close(wr->files_fd);
	wr->files_fd = take_fd(fd);
	return 0;
}

/* The number of the newest version; 0: none. */
static int newest_version(struct weightd *w, const char *name, const char *device, uint64_t *ret)
{
	cleanup(weightd_list_freep) struct weightd_list *list = NULL;
	const struct weightd_buffer_info *info;
	int r = weightd_list(w, name, &list);

	if (r < 0)
		return r;
	*ret = 0;
	for (size_t i = 0; (info = weightd_list_buffer(list, i)); i++)
		if (!strcmp(info->device, device))
			*ret = info->newest;
	return 0;
}

/* Asks for the files of the newest version, which a writer begins with. -ENODATA: there are none. */
static int ask_for_newest(struct weightd *w, const char *name, const char *device, int *ret_fd)
{
	struct client_call call = {.op = WIRE_FILES};
	struct wire_files *request = &call.request.files;
	int r = newest_version(w, name, device, &request->version);

	if (r == 0 && request->version == 0)
		return -ENODATA;
	if (r == 0)
		r = client_put_target(w, name, device, request->name, request->device);
	if (r == 0)
		r = client_call_run(w, &call);
	if (r < 0)
		return r == -ENOENT ? -ENODATA : r;
	*ret_fd = take_fd(call.reply_fds[0]);
	client_call_deinit(&call);
	return 0;
}

void files_keep(struct weightd_writer *wr, const char *name, const char *device)
{
	if (wr->w->has_images && ask_for_newest(wr->w, name, device, &wr->files_fd) < 0)
		wr->files_fd = -1; /* the create has its own sentence about what is wrong */
}

static int get_inherited(struct weightd_writer *wr, struct weightd_files **ret)
{
	cleanup(fd_closep) int fd = -1;
	int r = ask_for_newest(wr->w, wr->name, wr->device, &fd);

	return r < 0 ? r : files_map(fd, ret, &wr->w->sentence);
}

int weightd_writer_get_files(struct weightd_writer *wr, struct weightd_files **ret)
{
	cleanup(weightd_files_freep) struct weightd_files *f = NULL, *copy = NULL;
	struct sentence *s = &wr->w->sentence;
	int r = check_writer(wr);

	if (r < 0)
		return r;
	r = wr->files_fd >= 0 ? files_map(wr->files_fd, &f, s) : get_inherited(wr, &f);
	if (r < 0 && r != -ENODATA)
		return r;
	r = weightd_files_new(&copy);
	if (r < 0)
		return sentence_set(s, r, "out of memory");
	if (f)
		r = files_copy(copy, f, s);
	if (r == 0)
		*ret = take_ptr(copy);
	return r;
}
