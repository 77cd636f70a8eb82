/*
 * Packets that a client has to read: each is an object of JSON, and waits while the client's socket is full
 */
#pragma once

#include <jansson.h>

#include "bpf/client.h"

/* Takes `json`, and counts it as lost where more packets are waiting already, or memory ran out. */
void packets_send(struct client *c, json_t *json, unsigned queue_max);

/* A row of an answer, which is cut where there is no room: its last packet says by how many. */
void packets_answer(struct client *c, json_t *json);
/* The last, for which there is room always: the client waits for it. */
void packets_answer_end(struct client *c, json_t *json);

/* Sends what the socket has room for. */
void packets_flush(struct client *c);
/* Waits until the client can read, or asks, whichever comes next. */
void packets_wait(struct client *c);
/* Drops all that it has not read. */
void packets_clear(struct client *c);
