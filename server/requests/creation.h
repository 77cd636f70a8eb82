/*
 * Creates
 *
 * A client's WIRE_CREATE or its like, up to the writer: permissions, the owner that the client means, options, the
 * buffer if it does not exist, and creates that were sent before a restart.
 */
#pragma once

struct session;
struct wire_request;

/* Answers the session's request, one of the four creates, now or later. */
void creation_start(struct session *s, const struct wire_request *m, int layout_fd);
