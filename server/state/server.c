#include "server/state/server.h"

#include <errno.h>
#include <malloc.h>
#include <stddef.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "server/base/log.h"
#include "server/state/access.h"
#include "server/state/buffer_names.h"

#define MANY_OBJECTS 256 /* of which the memory is worth a call */

void server_apply_config(struct server *s, struct config *c)
{
	uint64_t total;

	subordinates_use(&c->subordinates);
	quota_set_limits(&s->quota, s->config.limits, take_ptr(c->overrides), c->n_overrides);
	c->n_overrides = 0;
	s->turns.share_ms = (unsigned)s->config.loop_ms;
	quota_set_memory(&s->quota, headroom_total(&total) < 0 ? UINT64_MAX : total);
	(void)buffer_names_free(s->config.names);
	s->config.names = take_ptr(c->names);
	access_set_admins(s->config.admin_gid);
	log_set_level(s->config.log_level);
}

void server_count_refusal(struct server *s, int error)
{
	static const struct {
		int error;
		enum wire_refusal refusal;
	} reasons[] = {
		{-EACCES, WIRE_REFUSAL_PERMISSION},      {-EPERM, WIRE_REFUSAL_PERMISSION},
		{-EDQUOT, WIRE_REFUSAL_LIMIT},           {-ENOMEM, WIRE_REFUSAL_MEMORY},
		{-ENOSPC, WIRE_REFUSAL_MEMORY},          {-EMFILE, WIRE_REFUSAL_DESCRIPTORS},
		{-ENFILE, WIRE_REFUSAL_DESCRIPTORS},     {-ETOOMANYREFS, WIRE_REFUSAL_DESCRIPTORS},
		{-ENOTRECOVERABLE, WIRE_REFUSAL_KEEPER},
	};

	for (size_t i = 0; i < ARRAY_LEN(reasons); i++)
		if (reasons[i].error == error)
			s->refused[reasons[i].refusal]++;
}

void server_count_object(struct server *s, int change)
{
	s->n_objects += (uint64_t)(int64_t)change;
	if (s->n_objects > s->most_objects)
		s->most_objects = s->n_objects;
	if (s->most_objects < MANY_OBJECTS || s->n_objects > s->most_objects / 8)
		return;
	(void)malloc_trim(0);
	s->most_objects = s->n_objects;
}

uint64_t server_next_id(struct server *s)
{
	return ++s->last_id;
}
