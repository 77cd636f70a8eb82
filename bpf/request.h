/*
 * Requests of clients, and their answers
 */
#pragma once

#include <jansson.h>

#include "bpf/base/question.h"
#include "bpf/client.h"

#define PACKET_MAX 4096 /* bytes of a request */
#define OVERFLOW_UID 65534u /* stands for all users that this namespace does not map */

struct request {
	struct answer answer; /* for questions, which have no access to clients */
	struct client *client;
	const json_t *json;
	int fd; /* the descriptor of the request, or -1 */
	pid_t pid; /* the process that has the sockets; 0: the client */
	const char *cgroup; /* a whole group instead; NULL: none */
	char why[2 * WHY_SIZE]; /* of a refusal */
};

/*
 * Answers, except for the last packet, which it returns: the caller sends it after it has closed the descriptor.
 * NULL: memory ran out.
 */
json_t *request_serve(struct client *c, const char *text, size_t size, int fd);

/* For operations. They return 0, or negative errno with why in the request. */

/* Returns the request's "sync"; NULL: it has none that is valid. */
const char *request_sync(struct request *q);
/*
 * Only root may see what other users have counted, and the user of the tracer, which could read it out of the
 * tracer's memory. Returns 0, or -EPERM.
 */
int request_may_observe(struct request *q);
