/*
 * Device queries
 *
 * A session that asked which devices there are. The GPUs' worker finds out, which may take as long as a GPU
 * takes to hang; until then the connection stays silent. A session that ends meanwhile leaves its query to
 * the worker.
 */
#pragma once

struct session;
struct wire_list;

/* Answers a list of devices, now or later. */
void device_query_new(struct session *session, const struct wire_list *list);

/* The session ends. */
void device_query_forget(struct session *session);
