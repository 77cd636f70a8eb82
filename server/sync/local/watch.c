/*
 * A watch tells of versions in this host's memory that are gone from weightd, one by one, and where it cannot know
 * which. It needs no buffer, ends with the agent, and lives through restarts of weightd, as libweightd does.
 */
#include <string.h>

#include "server/sync/base/fields.h"
#include "server/sync/local/errand.h"

static int tell(const struct weightd_event *event, struct fault *f)
{
	if (event->kind == WEIGHTD_EVENT_MISSED || event->kind == WEIGHTD_EVENT_RESTARTED)
		return errand_say(json_pack("{s:s}", "op", "missed"), NULL, 0, f);
	if (event->kind != WEIGHTD_EVENT_VERSION_GONE || strcmp(event->device, "host") != 0)
		return 0;
	return errand_say(json_pack("{s:s, s:s, s:I, s:b}", "op", "gone", "buffer", event->name,
				    "version", (json_int_t)event->version, "lost",
				    event->end == WEIGHTD_END_LOST),
			  NULL, 0, f);
}

int watch_take(struct errand *e, const struct talk *t, struct fault *f)
{
	const char *op = json_string_value(json_object_get(t->message, "op"));
	struct weightd_watch *watch;
	const char *socket;
	int r;

	if (!op || strcmp(op, "watch") != 0 || t->n_fds || e->stage != STAGE_NEW)
		return fault_set_message(f, t, "expects nothing but one watch");
	if (field_string_or_null(t->message, "socket", TALK_SIZE_MAX, &socket) < 0)
		return fault_set_message(f, t, "misses a socket in it");
	r = errand_connect(e, socket, f);
	if (r < 0)
		return r;
	r = weightd_watch_new(e->w, &watch);
	if (r < 0)
		return fault_set_weightd(f, r, e->w);
	e->stage = STAGE_AT_WORK;
	r = errand_say(json_pack("{s:s}", "op", "watching"), NULL, 0, f);
	while (r == 0) {
		struct weightd_event event = {.size = sizeof(event)};

		r = weightd_watch_next(watch, -1, &event);
		r = r < 0 ? fault_set_weightd(f, r, e->w) : tell(&event, f);
	}
	weightd_watch_free(watch);
	return r;
}
