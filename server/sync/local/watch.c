/*
 * A watch reports versions and buffers that weightd lost, one by one, on the devices that the agent
 * named and by those names. If events were missed, it sends "missed". It needs no buffer, ends
 * with the agent, and survives restarts of weightd, as libweightd does.
 */
#include <string.h>

#include "server/sync/base/json_fields.h"
#include "server/sync/local/task.h"

/* Resolved each time: a GPU that is absent has no name yet. */
static bool is_device(struct weightd *w, const char *spelling, const char *name)
{
	char found[WEIGHTD_DEVICE_MAX + 1];

	return !strcmp(spelling, name) ||
	       (weightd_device_name(w, spelling, found) == 0 && !strcmp(found, name));
}

static int send_gone(const struct task *e, const json_t *devices, const struct weightd_event *event,
		     struct fault *f)
{
	json_t *device;
	int r = 0;
	size_t i;

	json_array_foreach(devices, i, device)
	{
		if (r < 0 || !is_device(e->w, json_string_value(device), event->device))
			continue;
		r = task_send(json_pack("{s:s, s:s, s:O, s:I, s:b, s:b}", "op", "gone", "buffer",
					event->name, "device", device, "version",
					(json_int_t)event->version, "lost",
					event->end == WEIGHTD_END_LOST, "unwanted",
					event->end == WEIGHTD_END_DROPPED ||
						event->end == WEIGHTD_END_MEMORY),
			      NULL, 0, f);
	}
	return r;
}

static int send_removed(const struct task *e, const json_t *devices,
			const struct weightd_event *event, struct fault *f)
{
	json_t *device;
	int r = 0;
	size_t i;

	json_array_foreach(devices, i, device)
	{
		if (r == 0 && is_device(e->w, json_string_value(device), event->device))
			r = task_send(json_pack("{s:s, s:s, s:O, s:I}", "op", "removed", "buffer",
						event->name, "device", device, "version",
						(json_int_t)event->version),
				      NULL, 0, f);
	}
	return r;
}

static int send_event(const struct task *e, const json_t *devices,
		      const struct weightd_event *event, struct fault *f)
{
	if (event->kind == WEIGHTD_EVENT_MISSED || event->kind == WEIGHTD_EVENT_RESTARTED)
		return task_send(json_pack("{s:s}", "op", "missed"), NULL, 0, f);
	if (event->kind == WEIGHTD_EVENT_REMOVED)
		return send_removed(e, devices, event, f);
	return event->kind == WEIGHTD_EVENT_VERSION_GONE ? send_gone(e, devices, event, f) : 0;
}

static bool are_devices(const json_t *devices)
{
	const json_t *device;
	size_t i;

	json_array_foreach(devices, i, device)
	{
		if (!json_is_string(device) || json_string_length(device) > WEIGHTD_DEVICE_MAX)
			return false;
	}
	return true;
}

int watch_handle(struct task *e, const struct json_packet *t, struct fault *f)
{
	const char *op = json_string_value(json_object_get(t->message, "op"));
	struct weightd_watch *watch;
	const char *socket;
	json_t *devices;
	int r;

	if (!op || strcmp(op, "watch") != 0 || t->n_fds || e->stage != STAGE_NEW)
		return fault_set_message(f, t, "expects nothing but one watch");
	if (field_string_or_null(t->message, "socket", JSON_PACKET_SIZE_MAX, &socket) < 0 ||
	    field_array(t->message, "devices", JSON_PACKET_SIZE_MAX, &devices) < 0 ||
	    !are_devices(devices))
		return fault_set_message(f, t, "lacks a socket or devices");
	r = task_connect(e, socket, f);
	if (r < 0)
		return r;
	r = weightd_watch_new(e->w, &watch);
	if (r < 0)
		return fault_set_weightd(f, r, e->w);
	e->stage = STAGE_AT_WORK;
	r = task_send(json_pack("{s:s}", "op", "watching"), NULL, 0, f);
	while (r == 0) {
		struct weightd_event event = {.size = sizeof(event)};

		r = weightd_watch_next(watch, -1, &event);
		r = r < 0 ? fault_set_weightd(f, r, e->w) : send_event(e, devices, &event, f);
	}
	weightd_watch_free(watch);
	return r;
}
