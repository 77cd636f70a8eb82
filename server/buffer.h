/*
 * Buffers and their versions
 *
 * A buffer is a name on a device; its versions are what was published under it. The newest version is
 * what attach gets. An older one lives while it is among the `keep` newest or somebody reads it; a
 * version that was dropped lives only for its readers. A buffer object outlives its name: it goes with
 * its last version and its writer.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/list.h"
#include "ipc/head.h"
#include "ipc/wire.h"
#include "server/access.h"
#include "server/quota.h"
#include "server/slot.h"

struct server;
struct writer;

struct buffer {
	struct list link; /* server::buffers while it has its name */
	struct server *server;
	unsigned n_refs; /* its name, its versions, its writer */
	uint64_t id;
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	const struct backend *backend;
	struct access access;
	uint32_t keep;
	uint64_t next_version;
	struct list versions; /* oldest first */
	unsigned n_versions;
	struct writer *writer; /* who makes the next version, NULL for nobody */
	struct head *head;
	int head_fd; /* read-only, for readers */
	struct charge charge;
};

struct version {
	struct list link; /* buffer::versions; alone once dropped */
	struct buffer *buffer;
	uint64_t number;
	struct slot *slot;
	int layout_fd;
	uint64_t n_tensors;
	uint64_t published_ns; /* CLOCK_REALTIME */
	uid_t uid; /* who published it */
	unsigned n_leases;
	bool has_digest;
	uint8_t layout_hash[WIRE_HASH_SIZE];
	uint8_t digest[WIRE_HASH_SIZE];
	struct charge charge;
};

/* 1 to 127 of [A-Za-z0-9._/:-], the first a letter or a digit. */
bool buffer_name_ok(const char *name);

/* The buffer of that name, NULL for none. */
struct buffer *buffer_find(struct server *server, const char *name, const char *device);

/* Makes a buffer without versions and gives it its name. 0, QUOTA_EXCEEDED or a negative errno. */
int buffer_new(struct server *server, const char *name, const char *device,
	       const struct backend *backend, const struct access *access, struct buffer **ret);
void buffer_ref(struct buffer *b);
void buffer_unref(struct buffer *b);

/* Takes the name away; who reads a version goes on reading it. */
void buffer_drop(struct buffer *b);

/* True until buffer_drop(). */
bool buffer_has_name(const struct buffer *b);

/* The version attach gets, NULL before the first publish; or the one of that number. */
struct version *buffer_newest(const struct buffer *b);
struct version *buffer_version(const struct buffer *b, uint64_t number);

/* Makes `v`, filled in by the caller but for buffer and number, the newest version. */
void buffer_publish(struct buffer *b, struct version *v);

/*
 * Frees the oldest version of all that is only kept, to make room. False: there is none, or all of them
 * together would not make up for the `missing` bytes.
 */
bool buffers_evict(struct server *server, uint64_t missing);

/* A version is held by its leases and by its place in the buffer. */
void version_pin(struct version *v);
void version_unpin(struct version *v);

/* Takes an old version out of its buffer. */
void version_drop(struct version *v);
