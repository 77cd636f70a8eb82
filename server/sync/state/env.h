/*
 * The environment
 *
 * All functions of the daemon that an agent needs; agent.h has the calls of the daemon into it. The
 * agent itself is a state machine without a clock, a socket, a process or a file, so that a
 * thousand of them run in one test. A peer is its index in the configuration. Nothing here blocks,
 * and nothing calls back into the agent before it returned.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/sync/base/limits.h"

struct agent;
struct job; /* a process that works for the agent; the daemon's */

enum job_kind {
	JOB_SOURCE, /* weightd-sync-local: lends a version of the local weightd, and digests it */
	JOB_SINK, /* weightd-sync-local: makes the next version of the local weightd */
	JOB_WATCH, /* weightd-sync-local: reports versions that the local weightd has lost */
	JOB_PLANNER, /* weightd-sync-local: plans the moves of a reshard */
	JOB_TCP, /* weightd-sync-tcp: carries the bytes of one epoch */
	JOB_GLOO, /* weightd-sync-gloo: the same */
	JOB_NCCL, /* weightd-sync-nccl: the same */
};

#define SAVE_ALL 1 /* a result of env.save() */

struct env {
	uint64_t (*now_ns)(void *userdata); /* CLOCK_MONOTONIC */
	uint64_t (*time_ns)(void *userdata); /* CLOCK_REALTIME */
	void (*random)(void *userdata, void *ret, size_t size);

	/* Calls agent_on_timer() once at that time; a later call replaces it, 0 cancels it. */
	void (*set_timer)(void *userdata, uint64_t deadline_ns);

	/* Queues a message. -ENOTCONN; -ENOBUFS: the peer does not read, and is disconnected. */
	int (*send)(void *userdata, unsigned peer, const json_t *message);
	/* Queues `size` bytes of `fd`, which is duplicated, as the blob with this hash. */
	int (*send_blob)(void *userdata, unsigned peer, const uint8_t hash[32], int fd,
			 uint64_t size);
	/* Disconnects a peer because of its messages: agent_on_peer_down() follows later. */
	void (*hang_up)(void *userdata, unsigned peer, const char *why);

	/*
	 * Starts a process for a buffer, NULL: for none. Its messages have `owner`. -errno with a
	 * sentence.
	 */
	int (*job_start)(void *userdata, enum job_kind kind, const char *buffer, void *owner,
			 struct job **ret, char why[WHY_SIZE]);
	/*
	 * Sends a message after all killed jobs of the same buffer have ended, and can write no
	 * more. Descriptors are duplicated. A failure appears as the job's end.
	 */
	void (*job_tell)(void *userdata, struct job *job, const json_t *message, const int *fds,
			 unsigned n_fds);
	/* Kills the job. Its messages are dropped, and `job` is freed. */
	void (*job_end)(void *userdata, struct job *job);

	/*
	 * Engines may dial this address in digits, which is claimed to be that of `node`; NULL: of
	 * a known node. False with a sentence.
	 */
	bool (*may_dial)(void *userdata, const char *address, const char *node, char why[WHY_SIZE]);

	/* Checks the room for another piece of the commit log. -errno with a sentence. */
	int (*may_save)(void *userdata, char why[WHY_SIZE]);
	/*
	 * Writes a piece of the commit log of this node, durably, before it returns: the changes
	 * since the last one, or everything, which replaces the earlier pieces. -errno; SAVE_ALL:
	 * nothing was written, and the caller must write everything.
	 */
	int (*save)(void *userdata, const json_t *piece, bool is_all);

	/* Signs a document with this node's key: base64. -errno. */
	int (*sign)(void *userdata, const char *text, char *ret_signature, size_t size);
	/* This node's certificate, PEM. */
	const char *(*certificate)(void *userdata);
	/*
	 * Verifies `signature` over `text` by the owner of `certificate` (PEM), with the name
	 * `name`, issued by our CA, and valid at `time_ns`; TIME_NOW: valid now, and not revoked.
	 * -EKEYREJECTED with a sentence.
	 */
	int (*check)(void *userdata, const char *text, const char *signature,
		     const char *certificate, const char *name, uint64_t time_ns,
		     char why[WHY_SIZE]);

	/*
	 * Sends a request to weightd-trace, if it runs; the caller does not learn that. `fd` is
	 * attached and duplicated; -1: none. The "note" of a request stays here. The answer to an
	 * "end" is passed to agent_on_traced(), if there is one.
	 */
	void (*trace)(void *userdata, const json_t *request, int fd);
	/* The same for all connections of a job, which it makes itself and cannot report. */
	void (*trace_job)(void *userdata, const json_t *request, struct job *job);
	/* Drops the state of a sync with a killed engine. */
	void (*trace_drop)(void *userdata, const char *sync);

	/*
	 * Sends an event for weightctl sync watch, history and the journal: see `event` in the
	 * agent's opening.
	 */
	void (*event)(void *userdata, const json_t *event);
};
