/*
 * The agent of this node, weightd-sync, on its control socket: JSON objects, one a packet; and weightd-trace,
 * which says what it says in the same way
 *
 * What it says is believed no more than a file from elsewhere: bounded here, escaped where it is shown. A
 * field that is missing or of another type is none.
 */
#pragma once

#include <jansson.h>

#include "libclient/weightctl/cli.h"

#define CONTROL_ANSWER_S 10 /* for any answer, where the verb has no patience_s */

/* What was heard is the last packet of an answer. */
#define CONTROL_END 1000

struct service;
struct table;

struct control_client {
	const struct service *service;
	int fd;
	const char *path;
	unsigned patience_s;
	char *packet;
	uint64_t n_bytes; /* heard */
};

/* All of these return 0, or EXIT_FAILED after telling why. */

/* Of whichever of them the verb talks to. */
int control_client_open(const struct cli *cli, struct control_client *ret);
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
 * What a verb does once its options are read, if it takes no arguments: it asks that, and shows the rows, for which
 * `print` has a table of the verb's columns. Steals `request`.
 */
int control_client_show(const struct cli *cli, int argc, json_t *request,
			int (*print)(const struct cli *cli, struct table *table, const json_t *rows));

/* Tells that it did not answer in that time. EXIT_FAILED. */
int control_client_is_silent(const struct control_client *a);

void control_client_deinit(struct control_client *a);

/* Whether the packet is the last one of an answer. */
bool control_client_is_end(const json_t *packet);
/* The sentence of a refusal or a failure in it, or NULL. */
const char *control_client_error(const json_t *packet);
