#include "server/reload.h"

#include "server/access.h"
#include "server/base/log.h"
#include "server/server.h"

static struct server *server_of(struct job *job)
{
	return container_of(container_of(job, struct reload, job), struct server, reload);
}

static int load(struct job *job)
{
	struct server *s = server_of(job);

	return config_load(&s->source, &s->reload.next);
}

static void apply(struct server *s)
{
	struct config *next = &s->reload.next;

	config_reload(&s->config, next);
	server_apply_config(s, next);
	config_deinit(next);
	log_info("configuration read again");
}

static void on_loaded(struct job *job, int r)
{
	struct server *s = server_of(job);

	s->reload.running = false;
	if (r < 0)
		log_error("the configuration stays as it was");
	else
		apply(s);
	if (s->reload.again)
		reload_start(s);
}

void reload_start(struct server *s)
{
	s->reload.again = s->reload.running;
	if (s->reload.running)
		return;
	s->reload.running = true;
	worker_submit(&s->worker, &s->reload.job, load, on_loaded);
}
