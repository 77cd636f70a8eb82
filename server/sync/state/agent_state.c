#include "server/sync/state/agent_state.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "ipc/base/utf8.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/state/loopback.h"

int agent_send(struct agent *a, unsigned peer, json_t *message)
{
	int r = -ENOMEM;

	if (message)
		r = peer == AGENT_SELF ? loopback_send(&a->loopback, message)
				       : a->env->send(a->userdata, peer, message);
	json_decref(message);
	return r;
}

int agent_send_blob(struct agent *a, unsigned peer, const uint8_t hash[32], int fd, uint64_t size)
{
	return peer == AGENT_SELF ? loopback_send_blob(&a->loopback, hash, fd, size)
				  : a->env->send_blob(a->userdata, peer, hash, fd, size);
}

void agent_event(struct agent *a, json_t *event)
{
	if (event)
		a->env->event(a->userdata, event);
	json_decref(event);
}

static void log_of(struct agent *a, json_t *event, const char *level, const char *format,
		   va_list args)
{
	char text[3 * WHY_SIZE];

	utf8_vformat(text, sizeof(text), format, args);
	json_object_set_new(event, "event", json_string("log"));
	json_object_set_new(event, "level", json_string(level));
	json_object_set_new(event, "text", json_string(text));
	agent_event(a, event);
}

void agent_log(struct agent *a, const char *level, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	log_of(a, json_object(), level, format, args);
	va_end(args);
}

void agent_log_of(struct agent *a, json_t *about, const char *level, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	log_of(a, about, level, format, args);
	va_end(args);
}

void agent_hang_up(struct agent *a, unsigned peer, const char *format, ...)
{
	char why[WHY_SIZE];
	va_list args;

	va_start(args, format);
	utf8_vformat(why, sizeof(why), format, args);
	va_end(args);
	if (peer == AGENT_SELF)
		agent_log(a, "error", "%s", why);
	else
		a->env->hang_up(a->userdata, peer, why);
}

void agent_new_id(struct agent *a, char ret[SYNC_ID_SIZE])
{
	uint8_t id[(SYNC_ID_SIZE - 1) / 2];

	a->env->random(a->userdata, id, sizeof(id));
	field_hex(id, sizeof(id), ret);
}

const char *agent_peer_name(const struct agent *a, unsigned peer_or_self)
{
	return peer_or_self == AGENT_SELF ? a->config->name : a->config->peers[peer_or_self];
}

unsigned agent_peer_number(const struct agent *a, const char *name)
{
	for (unsigned i = 0; i < a->config->n_peers; i++)
		if (strcmp(a->config->peers[i], name) == 0)
			return i;
	return NO_PEER;
}

bool agent_knows(const struct agent *a, const struct group *g, unsigned peer_or_self)
{
	size_t width = a->config->n_peers + 1;
	size_t row = (size_t)(g - a->config->groups);

	return a->knows[row * width + (peer_or_self == AGENT_SELF ? width - 1 : peer_or_self)];
}
