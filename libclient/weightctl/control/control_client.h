/*
 * Control sockets: weightd-sync, the agent of this node, and weightd-trace, which uses the same protocol of JSON
 * objects, one a packet
 *
 * Packets are untrusted, like any file: bounded here, escaped on output. A field that is missing or has another type
 * is none.
 */
#pragma once

#include <jansson.h>

#include "libclient/weightctl/cli.h"

#define CONTROL_ANSWER_S 10 /* time limit for replies if the verb has no patience_s */

/* The received packet is the last one of a reply. */
#define CONTROL_END 1000

struct service;
struct table;

struct control_client {
	const struct service *service;
	int fd;
	const char *path;
	unsigned patience_s;
	char *packet;
	uint64_t n_bytes; /* received */
};

/* All of these return 0, or EXIT_FAILED after printing why. */

/* Opens the socket of the verb's peer. */
int control_client_open(const struct cli *cli, struct control_client *ret);
/* Connects to the verb's peer and hangs up. 0 or a negative errno; prints nothing. */
int control_client_probe(const struct cli *cli);
/* Steals `request`, which is NULL where a text in it is not UTF-8. */
int control_client_ask(struct control_client *a, json_t *request);
/* The next packet, within the time that any answer may take. */
int control_client_next(struct control_client *a, json_t **ret);
/* The same without waiting: -EAGAIN. */
int control_client_take(struct control_client *a, json_t **ret);
/* One request and the rows of its answer, an array. Steals `request`. */
int control_client_ask_rows(struct control_client *a, json_t *request, json_t **ret);
/* The same in a connection of its own. */
int control_client_rows(const struct cli *cli, json_t *request, json_t **ret);

/*
 * The body of a verb without arguments, after its options: sends the request and passes the rows to `print`, with a
 * table of the verb's columns. Steals `request`.
 */
int control_client_show(const struct cli *cli, int argc, json_t *request,
			int (*print)(const struct cli *cli, struct table *table, const json_t *rows));

/* Prints that it did not reply in that time. EXIT_FAILED. */
int control_client_is_silent(const struct control_client *a);

void control_client_deinit(struct control_client *a);

/* True for the last packet of a reply. */
bool control_client_is_end(const json_t *packet);
/* The sentence of a refusal or a failure in it, or NULL. */
const char *control_client_error(const json_t *packet);
