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
	struct answer answer; /* the part for questions, which have no access to clients */
	struct client *client;
	const json_t *json;
	int fd; /* the descriptor of the request, or -1 */
	pid_t pid; /* the process that has the sockets; 0: the client */
	const char *cgroup; /* a whole group instead; NULL: none */
	char why[2 * WHY_SIZE]; /* reason for a refusal */
};

/*
 * Answers, except for the last packet, which it returns: the caller sends it after it has closed the descriptor.
 * NULL: memory ran out.
 */
json_t *request_serve(struct client *c, const char *text, size_t size, int fd);
