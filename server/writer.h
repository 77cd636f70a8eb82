/*
 * Writers
 *
 * A version in the making, and the session that makes it:
 *
 *	checking (the layout) -> providing (the memory) -> filling (by the client) -> sealing -> a version
 *
 * All but filling is a job on the worker, during which the writer belongs to the job: a session that
 * ends meanwhile abandons the writer, and the job's end frees it. A writer that ends before it became a
 * version takes its memory with it, and its buffer too if it never held anything.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/list.h"
#include "ipc/layout.h"
#include "ipc/wire.h"
#include "server/quota.h"
#include "server/worker.h"

struct backend;
struct buffer;
struct session;
struct slot;

struct writer {
	struct list link; /* session::writers */
	struct session *session; /* NULL once abandoned */
	uint64_t id;
	struct buffer *buffer;
	struct slot *slot;
	struct job job;
	bool busy; /* the job has us */
	uint32_t keep; /* of the buffer, from this version on; 0: as before */
	bool new_layout; /* the layout may differ from the newest version's */
	bool spoiled; /* sealed and not whole: fit for nothing but the end */

	int layout_fd;
	const void *layout_image; /* mapped while it is checked */
	uint64_t layout_size;
	struct layout_check check;
	uint8_t layout_hash[WIRE_HASH_SIZE];
	uint64_t n_tensors;
	uint64_t data_size;

	uint64_t seal_deadline_ns;
	bool has_digest;
	uint8_t digest[WIRE_HASH_SIZE];
	struct charge charge; /* of the version to be */
};

/* Starts a writer for `buffer` and answers the session's create, now or later. Takes nothing. */
void writer_new(struct session *session, struct buffer *buffer, const struct wire_create *create,
		int layout_fd);

/* Answers the session's publish, later. */
void writer_publish(struct writer *w, const struct wire_publish *publish);

/* Ends the writer; a job that has it is told to stop and ends it then. */
void writer_abandon(struct writer *w);

/* NULL: the session has no such writer. */
struct writer *writer_find(struct session *session, uint64_t id);
