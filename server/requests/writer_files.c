#include "server/requests/writer_files.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "server/base/fault.h"
#include "server/buffers/buffer.h"
#include "server/buffers/buffer_commit.h"
#include "server/buffers/writer.h"
#include "server/memory/version_files.h"
#include "server/requests/store_room.h"
#include "server/state/server.h"
#include "server/state/session.h"

/*
 * At all times the manifest names both those that come and those that go, so that recovery can identify
 * what it finds. Those in `new_files` are dropped then, since no client has their answer.
 */
static void writer_take_files(struct writer *w)
{
	struct version_files *old = w->files;
	struct wire_reply reply = {0};

	w->files = take_ptr(w->new_files);
	w->other_files = version_files_id(old);
	fault_point("files-kept");
	buffer_save(w->buffer);
	fault_point("files-committed");
	version_files_unref(old);
	fault_point("files-removed");
	(void)session_reply(w->session, WIRE_SET_FILES, &reply, NULL, 0);
}

static void fail_to_keep(struct writer *w, int r)
{
	version_files_unref(take_ptr(w->new_files));
	buffer_save(w->buffer);
	session_fail(w->session, r == -ENOTCONN ? -ENOTRECOVERABLE : r,
		     "the service manager does not keep the files of '%s' (%s); restart weightd",
		     w->buffer->name, r == -ENOTCONN ? "it is gone" : strerror(-r));
}

static void writer_on_files_kept(struct barrier *barrier, int r)
{
	struct writer *w = writer_take_back(container_of(barrier, struct writer, barrier));

	if (!w)
		return;
	writer_leave_work(w);
	if (r < 0)
		fail_to_keep(w, r);
	else
		writer_take_files(w);
}

static void writer_keep_files(struct writer *w)
{
	int r;

	w->other_files = version_files_id(w->new_files);
	buffer_save(w->buffer);
	fault_point("files-saved");
	kept_memfd_keep(&w->new_files->memfd, w->buffer->store_uid);
	r = barrier_start(&w->barrier, &w->buffer->server->store, w->buffer->store_uid,
			  writer_on_files_kept);
	if (r == 0)
		writer_set_busy(w);
	else
		fail_to_keep(w, r);
}

/* 0, or the request was answered with an error. */
static int open_files(struct session *s, int fd, int *ret_fd)
{
	uint64_t size = 0;
	int r = fd_is_sealed(fd) ? fd_size(fd, &size) : -EBADMSG;

	if (r == 0 && size > WIRE_FILES_MAX)
		r = -EFBIG;
	else if (r == 0 && (size == 0 || !fd_is_written(fd, size)))
		r = -EBADMSG;
	if (r == 0)
		r = fd_reopen_readonly(fd, ret_fd);
	if (r < 0)
		session_fail(s, r,
			     "files must come as a sealed memfd without holes, of at most %" PRIu64
			     " MiB: %s",
			     WIRE_FILES_MAX >> 20, strerror(-r));
	return r;
}

void writer_set_files(struct writer *w, int fd)
{
	cleanup(fd_closep) int own = -1;
	struct session *s = w->session;
	int r;

	if (!slot_is_provided(w->slot)) {
		session_fail(s, -EBUSY,
			     "'%s' cannot get files yet: parts of its memory are still to be provided",
			     w->buffer->name);
		return;
	}
	if (w->buffer->backend->memory == WIRE_MEMORY_CUDA_IPC) {
		session_fail(s, -EOPNOTSUPP,
			     "'%s' on %s has memory of the older kind (--handle ipc), and a version "
			     "there has no files; use the default kind",
			     w->buffer->name, w->buffer->device);
		return;
	}
	if (open_files(s, fd, &own) < 0 ||
	    store_room_reserve(s, &(struct store_need){.n = 1}, &w->room) < 0)
		return;
	r = version_files_new(s->server, w->uid, own, &w->new_files);
	if (r != 0) {
		store_release(&w->room);
		session_fail_quota(s, r, SESSION_MEMORY);
		return;
	}
	own = -1;
	if (store_room_check_memory(s, w->buffer->name, w->new_files->memfd.size) < 0) {
		version_files_unref(take_ptr(w->new_files));
		store_release(&w->room);
		return;
	}
	if (!store_room_take(s->server, w->uid, &w->room)) {
		version_files_unref(take_ptr(w->new_files));
		store_room_fail(s);
		return;
	}
	fault_point("files-begun");
	writer_keep_files(w);
}
