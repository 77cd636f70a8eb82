#include "server/reload.h"

#include "server/base/log.h"
#include "server/requests/held_killer.h"
#include "server/state/server.h"

void reload_init(struct reload *r, struct server *server, const struct config_source *source)
{
	*r = (struct reload){.server = server, .source = *source};
}

static int reload_step(struct job *job)
{
	struct reload *r = container_of(job, struct reload, job);

	return config_load(&r->source, &r->next);
}

static void reload_apply(struct reload *r)
{
	config_reload(&r->server->config, &r->next);
	notify_keep_order(&r->server->notify); /* subordinate users may count for others now */
	server_apply_config(r->server, &r->next);
	held_killer_start(r->server);
	config_deinit(&r->next);
	log_info("configuration read again");
}

static void reload_done(struct job *job, int result)
{
	struct reload *r = container_of(job, struct reload, job);

	r->running = false;
	if (result < 0)
		log_error("the configuration stays as it was");
	else
		reload_apply(r);
	if (r->again)
		reload_start(r);
}

void reload_start(struct reload *r)
{
	r->again = r->running;
	if (r->running)
		return;
	r->running = true;
	worker_submit(&r->server->worker, &r->job, WORKER_NOBODY, reload_step, reload_done);
}
