#include "server/state/server.h"

#include "ipc/base/cleanup.h"
#include "server/base/headroom.h"
#include "server/base/log.h"
#include "server/state/access.h"
#include "server/state/buffer_names.h"

void server_apply_config(struct server *s, struct config *c)
{
	uint64_t total;

	quota_set_limits(&s->quota, s->config.limits, take_ptr(c->overrides), c->n_overrides);
	c->n_overrides = 0;
	quota_set_memory(&s->quota, headroom_total(&total) < 0 ? UINT64_MAX : total);
	(void)buffer_names_free(s->config.names);
	s->config.names = take_ptr(c->names);
	access_set_admins(s->config.admin_gid);
	log_set_level(s->config.log_level);
}

uint64_t server_next_id(struct server *s)
{
	return ++s->last_id;
}
