/*
 * Tasks
 *
 * The work of one process for the agent between its start and the hangup: it lends or makes one
 * version of the local weightd, or makes a plan without weightd. It ends in success or in one
 * failure, which is reported and leaves nothing in weightd.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <weightd.h>

#include "server/sync/base/json_packet.h"
#include "server/sync/base/merkle.h"
#include "server/sync/local/blob.h"
#include "server/sync/local/fault.h"
#include "server/sync/local/staging.h"

#define N_BYTES_MAX ((uint64_t)1 << 50) /* weightd's own limit of a version */

enum stage {
	STAGE_NEW,
	STAGE_AT_WORK, /* attached, or created and not verified */
	STAGE_VERIFIED,
	STAGE_OVER,
};

struct base;
struct planning;

struct task {
	enum stage stage;
	struct weightd *w;
	struct weightd_buffer *buffer; /* a source's */
	struct weightd_writer *writer; /* a sink's */
	uint64_t n_bytes;
	uint8_t root[MERKLE_HASH_SIZE]; /* a sink's: the bytes must have it */
	struct blob leaves; /* a sink's: the table with that root */
	struct staging staging; /* if the version is on a GPU, and moves through host memory */
	char gpu[WEIGHTD_DEVICE_MAX + 1]; /* the GPU, if NCCL moves the version in place; else "" */
	int nccl_version; /* that NCCL's */
	bool *is_staged; /* leaves that are staged then; NULL: all, if there is a staging */
	struct base *base; /* a sink's, until it verifies */
	struct planning *planning; /* a planner's */
	bool is_computed; /* a sink's: verify sets its root */
};

/* The target of the first message, which owns the strings. */
struct target {
	const char *socket; /* NULL: libweightd's default */
	const char *buffer;
	const char *device;
};

/* False: it is on a GPU, by any name. */
bool target_is_host(const struct target *t);

/* Reads the target from the first message and connects to its weightd. */
int task_begin(struct task *e, const struct json_packet *t, struct target *ret, struct fault *f);
/* Connects to the weightd at this socket; NULL: libweightd's default. */
int task_connect(struct task *e, const char *socket, struct fault *f);

/* The bytes in host memory: those of the staging, if there is one, else of the version itself. */
void *task_data(const struct task *e);

/* Copies from weightd's memory of any kind, as weightd_buffer_read() does. */
int task_read(const struct task *e, uint64_t offset, void *to, uint64_t n);

/* Releases everything that it has in weightd. */
void task_end(struct task *e);

/*
 * Answers the agent, and waits for room. Takes the reference to the message; the descriptors stay
 * the caller's.
 */
int task_send(json_t *message, const int *fds, unsigned n_fds, struct fault *f);

/* Handle a message of the agent; a failure ends the task. */
int source_handle(struct task *e, const struct json_packet *t, struct fault *f);
int sink_handle(struct task *e, const struct json_packet *t, struct fault *f);
int watch_handle(struct task *e, const struct json_packet *t, struct fault *f);
