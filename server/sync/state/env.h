/*
 * The environment
 *
 * All that an agent needs of the daemon, as functions, and all that the daemon tells an agent. The agent itself
 * is a state machine without a clock, a socket, a process or a file, so that a thousand of them run in one
 * test. Peers are known by their index in the configuration; nothing here blocks, and nothing calls back into
 * the agent before it returned.
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
	JOB_WATCH, /* weightd-sync-local: tells of versions that the local weightd has lost */
	JOB_PLANNER, /* weightd-sync-local: plans what has to move for a reshard */
	JOB_TCP, /* weightd-sync-tcp: carries the bytes of one epoch */
	JOB_GLOO, /* weightd-sync-gloo: the same */
	JOB_NCCL, /* weightd-sync-nccl: the same */
};

#define SAVE_ALL 1 /* what env.save() may return */

struct env {
	uint64_t (*now_ns)(void *userdata); /* CLOCK_MONOTONIC */
	uint64_t (*time_ns)(void *userdata); /* CLOCK_REALTIME */
	void (*random)(void *userdata, void *ret, size_t size);

	/* agent_on_timer() comes then, once; a later call replaces it, 0 forgets it. */
	void (*set_timer)(void *userdata, uint64_t deadline_ns);

	/* Queues a message. -ENOTCONN; -ENOBUFS: the peer does not read, and is hung up on. */
	int (*send)(void *userdata, unsigned peer, const json_t *message);
	/* Queues `size` bytes of `fd`, which is duplicated, as the blob that this hash names. */
	int (*send_blob)(void *userdata, unsigned peer, const uint8_t hash[32], int fd,
			 uint64_t size);
	/* Hangs up, for what it said: agent_on_peer_down() follows later. */
	void (*hang_up)(void *userdata, unsigned peer, const char *why);

	/*
	 * Starts a process, whose messages come with `owner`, to work for a buffer; NULL: for none. -errno with a
	 * sentence.
	 */
	int (*job_start)(void *userdata, enum job_kind kind, const char *buffer, void *owner,
			 struct job **ret, char why[WHY_SIZE]);
	/*
	 * Once all of the same buffer that were ended are gone, and write no more. Descriptors are duplicated. A
	 * failure shows as the job's end.
	 */
	void (*job_tell)(void *userdata, struct job *job, const json_t *message, const int *fds,
			 unsigned n_fds);
	/* Kills it; nothing of it is heard any more, and `job` is gone. */
	void (*job_end)(void *userdata, struct job *job);

	/*
	 * Whether engines may dial an address in digits, which somebody says to be that of `node`; NULL: of one that we
	 * know. False with a sentence.
	 */
	bool (*may_dial)(void *userdata, const char *address, const char *node, char why[WHY_SIZE]);

	/*
	 * Returns whether there is room to write another piece of the commit log. -errno with a
	 * sentence.
	 */
	int (*may_save)(void *userdata, char why[WHY_SIZE]);
	/*
	 * Writes a piece of the commit log of this node, durably, before it returns: what changed since the last one, or
	 * all, with which those before are forgotten. -errno; SAVE_ALL: nothing was written, and it has to be all.
	 */
	int (*save)(void *userdata, const json_t *piece, bool is_all);

	/* Signs a document with this node's key: base64. -errno. */
	int (*sign)(void *userdata, const char *text, char *ret_signature, size_t size);
	/* This node's certificate, PEM. */
	const char *(*certificate)(void *userdata);
	/*
	 * Whether `signature` over `text` is of the owner of `certificate` (PEM), whose name is `name` and which
	 * our CA issued and which was valid at `time_ns`; TIME_NOW: is valid, and was not revoked. -EKEYREJECTED
	 * with a sentence.
	 */
	int (*check)(void *userdata, const char *text, const char *signature,
		     const char *certificate, const char *name, uint64_t time_ns,
		     char why[WHY_SIZE]);

	/*
	 * Asks weightd-trace, whose requests these are, if there is one: nobody hears whether. `fd` goes along and is
	 * duplicated; -1: none. Their "note" is for us, and stays here. What it answers an "end" with comes by agent_on_traced(), if it comes.
	 */
	void (*trace)(void *userdata, const json_t *request, int fd);
	/* Likewise of all connections of a job, which it makes itself and cannot tell of. */
	void (*trace_job)(void *userdata, const json_t *request, struct job *job);
	/* Forgets what it was told of a sync, whose engine is ended. */
	void (*trace_drop)(void *userdata, const char *sync);

	/* Something for weightctl sync watch, history and the journal: see `event` in the agent's opening. */
	void (*event)(void *userdata, const json_t *event);
};
