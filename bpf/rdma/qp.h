/*
 * Queue pairs of processes, as probes saw them made, connected and destroyed
 *
 * A number is one of its device, and two devices of a process may give the same. Who says a number and no device, as NCCL
 * does, and when it was used, is told of the only one that can be meant, or of none. One that was destroyed is kept for
 * what is said of it later, and goes first where there is no room.
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
#define QPS_OF_BUCKET_MAX 64 /* of one user, whatever numbers he makes up */
#define QP_BUCKETS 4096
#define QP_KEY_SIZE 192
#define QP_DEVICE_SIZE 64

struct qp_name {
	pid_t pid;
	uint64_t began_ticks; /* of the process, see process.h */
	uint64_t number;
	char device[QP_DEVICE_SIZE]; /* "": not known, it may be any; without a NUL where it fills it */
};

/* Where the other end is. All zero: it is not known. */
struct qp_peer {
	uint32_t qp;
	uint16_t lid;
	uint8_t port; /* of this end */
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
	struct event_cause cause; /* the act that connected it last, or else made it */
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

/* Of these, name, uid and cause are given, which says when that was. Without memory nothing is remembered. */
void qps_make(struct qps *s, const struct qp *qp);
/*
 * Likewise, and its peer. It may have been made before anybody looked. With another peer than before it is another one:
 * what went to the first is not told of the second.
 */
void qps_connect(struct qps *s, const struct qp *qp);
/* Before it returns, another one may have the number already. */
void qps_destroy(struct qps *s, const struct qp_name *name, uint64_t called_ns, uint64_t ns);

/* The one that it can have been all that time; NULL: none, or more than one. */
const struct qp *qps_find(const struct qps *s, const struct qp_name *name, uint64_t since_ns,
			  uint64_t until_ns);

/* What is known of it. */
void qp_peer_set(json_t *event, const struct qp_peer *peer);
