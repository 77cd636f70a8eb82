/*
 * The state of a connection, and the objects that this process holds on it
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/list.h"
#include "ipc/codec.h"
#include "libclient/connection/sentence.h"

struct weightd {
	unsigned n_refs; /* the caller's, and one of each buffer, writer and job */
	int fd; /* -1: not connected */
	int greeted_fd; /* -1, or a new connection to a server that has not answered yet; see restart_try() */
	pid_t owner; /* the process that connected; a child may not use the connection */
	uint64_t serial;
	uint64_t instance; /* identifies one start of the server */
	pid_t server_pid; /* in its namespace */
	char server_release[32]; /* "": it has not replied yet */
	char server_program[256]; /* see release_program() */
	bool has_server_program;
	bool survives; /* the server announced that it restarts after its death */
	bool sends_layouts; /* the server announced WIRE_LAYOUT */
	bool has_images; /* the server announced WIRE_FEATURE_IMAGE */
	bool has_jobs; /* the server announced WIRE_FEATURE_JOBS */
	bool has_costs; /* ... and WIRE_FEATURE_COSTS */
	bool has_holders; /* ... and WIRE_FEATURE_HOLDERS */
	bool has_health; /* ... and WIRE_FEATURE_HEALTH */
	bool has_job_views; /* ... and WIRE_FEATURE_JOB_VIEW */
	bool has_owners; /* ... and WIRE_FEATURE_OWNER */
	bool provides; /* ... and WIRE_FEATURE_PROVIDE */
	bool shares; /* ... and WIRE_FEATURE_SHARE */
	bool has_numa; /* ... and WIRE_FEATURE_NUMA */
	bool is_placed; /* the last create of this connection had a policy for its memory */
	int restart_timeout_ms;
	char *path;
	bool is_closed; /* the caller has closed the connection */
	struct list buffers; /* held::link of each weightd_buffer */
	int n_leaving; /* buffers that are detached and still in use by a stream */
	struct list writers; /* held::link of each weightd_writer */
	struct list jobs; /* held::link of each weightd_job */
	struct sentence sentence;
};

struct restart_patience;
struct held;

struct held_ops {
	/* On a new connection: takes it up again. An error with w->fd < 0: the connection is lost anew. */
	int (*resume)(struct held *h, const struct restart_patience *p);
	/* The connection leads to another server now, or is another process's. */
	void (*forget)(struct held *h);
	/*
	 * Buffers only: ends one that was detached and that no stream uses any more; `wait` waits for the
	 * streams. True: ended.
	 */
	bool (*leave)(struct held *h, bool wait);
};

/* An attached buffer, a writer or a job. The server identifies it by its connection. The first member of each. */
struct held {
	struct list link; /* weightd::buffers, weightd::writers or weightd::jobs */
	const struct held_ops *ops;
};

struct sentence *client_sentence(struct weightd *w);

struct weightd *client_ref(struct weightd *w);
void client_unref(struct weightd *w);
static inline void client_unrefp(struct weightd **w)
{
	client_unref(*w);
}

/*
 * Copies a struct of options; its first member is the caller's size of the struct. A shorter one is padded with zeros;
 * in a longer one all bytes behind ours must be zero. -EINVAL below `min`; -E2BIG.
 */
int client_copy_options(struct weightd *w, const void *options, size_t min, void *ret, size_t size);

/* -ECHILD: the connection is a parent's. */
int client_check_owner(struct weightd *w);
/* -ECHILD, -ENOTCONN: a call would not get as far as the server. */
int client_check_usable(struct weightd *w);
/* True if calls wait for this server when it is gone. */
bool client_awaits_restart(const struct weightd *w);

/* Ends the attachments that no stream uses any more; `wait`: all. Returns the number that is left. */
int client_reap(struct weightd *w, bool wait);
