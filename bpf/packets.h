/*
 * Packets for a client: each is an object of JSON, and waits while the client's socket is full
 */
#pragma once

#include <jansson.h>

#include "bpf/client.h"

/* Takes `json`, and counts it as lost where more packets are waiting already, or memory ran out. */
void packets_send(struct client *c, json_t *json, unsigned queue_max);

/*
 * Adds a row to an answer. Without room the row is cut, and the last packet has the number of cut rows.
 */
void packets_answer(struct client *c, json_t *json);
/* The last, for which there is room always: the client waits for it. */
void packets_answer_end(struct client *c, json_t *json);

/* Sends what the socket has room for. */
void packets_flush(struct client *c);
/* Waits until the client has room for packets, or sends a request. */
void packets_wait(struct client *c);
/* Drops all that it has not read. */
void packets_clear(struct client *c);
