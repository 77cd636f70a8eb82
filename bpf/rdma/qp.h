/*
 * Queue pairs of processes that probes saw made, connected and destroyed
 *
 * A number belongs to its device, and two devices of a process may give the same. A client that has a number and a
 * time, but no device, as NCCL, gets the only queue pair that can be meant, or none. A destroyed one is kept for
 * later queries, and is dropped first when there is no room.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "bpf/event/event_cause.h"
#include "ipc/base/list.h"

#define QPS_MAX 16384
#define QPS_OF_USER_MAX 8192 /* no user takes the room of all others */
#define QPS_OF_BUCKET_MAX 64 /* limit for one user, whatever numbers it makes up */
#define QP_BUCKETS 4096
#define QP_KEY_SIZE 192
#define QP_DEVICE_SIZE 64

struct qp_name {
	pid_t pid;
	uint64_t began_ticks; /* start time of the process, see process.h */
	uint64_t number;
	char device[QP_DEVICE_SIZE]; /* "": unknown, it may be any; without a NUL if it fills the array */
};

/* The other end. All zero: unknown. */
struct qp_peer {
	uint32_t qp;
	uint16_t lid;
	uint8_t port; /* port of our end */
	uint8_t gid[16];
	bool has_qp, has_path, has_gid;
};

struct qp {
	struct list link; /* qp_user::there or ::over */
	struct list in_bucket; /* qps::buckets */
	struct qp_user *user;
	struct qp_name name;
	uid_t uid;
	uint64_t began_ns, ended_ns; /* UINT64_MAX: it is there */
	struct event_cause cause; /* the event that connected it last, or else made it */
	struct qp_peer peer;
};

struct qps {
	uint8_t key[QP_KEY_SIZE]; /* or many users together could have all of theirs in one bucket */
	struct list users; /* struct qp_user */
	struct list buckets[QP_BUCKETS]; /* struct qp, by process and number, the oldest first */
	unsigned n;
};

void qps_init(struct qps *s);
void qps_deinit(struct qps *s);

/*
 * `qp` has name, uid and cause, and the time is that of the cause. Adds nothing if memory runs out.
 */
void qps_make(struct qps *s, const struct qp *qp);
/*
 * The same with its peer. The queue pair may be older than the probes. With another peer than before it becomes
 * another one: bytes for the first peer are not the second's.
 */
void qps_connect(struct qps *s, const struct qp *qp);
/* Before it returns, another one may have the number already. */
void qps_destroy(struct qps *s, const struct qp_name *name, uint64_t called_ns, uint64_t ns);

/* The one that it can have been all that time; NULL: none, or more than one. */
const struct qp *qps_find(const struct qps *s, const struct qp_name *name, uint64_t since_ns,
			  uint64_t until_ns);

/* Sets the members that the peer has. */
void qp_peer_set(json_t *event, const struct qp_peer *peer);
