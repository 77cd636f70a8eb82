/*
 * Tasks
 *
 * What one process does for the agent between its start and its hangup: one version of the local weightd, lent or
 * made, or a plan that needs none. It ends in what was asked for or in one failure, which is told and leaves nothing in
 * weightd.
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
	struct weightd_buffer *buffer; /* of a source */
	struct weightd_writer *writer; /* of a sink */
	uint64_t n_bytes;
	uint8_t root[MERKLE_HASH_SIZE]; /* that the bytes of a sink must have */
	struct blob leaves; /* of a sink: the table that the root is of */
	struct staging staging; /* where the version is a GPU's, and moves through host memory */
	char gpu[WEIGHTD_DEVICE_MAX + 1]; /* or it moves from there and to there; "": it does not */
	int nccl_version; /* of what moves it then */
	bool *is_staged; /* the leaves that are staged then; NULL: all are, where there is a staging */
	struct base *base; /* of a sink, until it verifies */
	struct planning *planning; /* of a planner */
	bool is_computed; /* of a sink: its root is what verify finds */
};

/* What the first message names; strings are the message's. */
struct target {
	const char *socket; /* NULL: where libweightd finds it */
	const char *buffer;
	const char *device;
};

/* Else it is on a GPU, by whatever name. */
bool target_is_host(const struct target *t);

/* Reads the target from the first message and connects to the weightd that it names. */
int task_begin(struct task *e, const struct json_packet *t, struct target *ret, struct fault *f);
/* To the weightd at this socket; NULL: where libweightd finds it. */
int task_connect(struct task *e, const char *socket, struct fault *f);

/* The bytes, in host memory: of the staging where there is one, else of the version itself. */
void *task_data(const struct task *e);

/* Copies from weightd's memory, wherever that is, as weightd_buffer_read() does. */
int task_read(const struct task *e, uint64_t offset, void *to, uint64_t n);

/* Lets go of all that it has in weightd. */
void task_end(struct task *e);

/* Answers the agent, waiting for room. Takes the reference to the message; the descriptors stay the caller's. */
int task_say(json_t *message, const int *fds, unsigned n_fds, struct fault *f);

/* What the kinds of tasks do with a message of the agent; a failure ends them. */
int source_take(struct task *e, const struct json_packet *t, struct fault *f);
int sink_take(struct task *e, const struct json_packet *t, struct fault *f);
int watch_take(struct task *e, const struct json_packet *t, struct fault *f);
