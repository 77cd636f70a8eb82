/*
 * What a client asks, and what answers it
 */
#pragma once

#include <jansson.h>

#include "bpf/base/question.h"
#include "bpf/client.h"

#define PACKET_MAX 4096 /* of a request */
#define OVERFLOW_UID 65534u /* of any user whom this namespace does not know */

struct request {
	struct answer answer; /* for questions, which do not know clients */
	struct client *client;
	const json_t *json;
	int fd; /* that came with it, or -1 */
	pid_t pid; /* whose sockets it is about; 0: its client's */
	const char *cgroup; /* likewise a whole group's; NULL: none */
	char why[2 * WHY_SIZE]; /* of a refusal */
};

/*
 * Answers but for the last packet, which it returns: the descriptor is closed before that is told. Who has the answer
 * finds that it is not kept. NULL where memory ran out.
 */
json_t *request_serve(struct client *c, const char *text, size_t size, int fd);

/* Of operations; these return 0 or negative errno, with why in the request. */

/* What it gives as "sync"; NULL: that is none. */
const char *request_sync(struct request *q);
/* What others have counted is for root, and for whom the tracer runs as, who could read it out of its memory. */
int request_may_observe(struct request *q);
