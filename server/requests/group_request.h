/*
 * Requests about jobs
 *
 * All but the join, which waits for memory: see group_join.h.
 */
#pragma once

#include <stdint.h>

#include "ipc/wire.h"

struct session;
struct writer_group;

void group_request_create(struct session *s, const struct wire_job_create *create);
void group_request_part(struct session *s, const struct wire_job_index *index);
void group_request_description(struct session *s, const struct wire_job_key *key);
void group_request_leave(struct session *s, const struct wire_job_leave *leave);
void group_request_remove(struct session *s, const char *name);
void group_request_view(struct session *s, const char *name);
