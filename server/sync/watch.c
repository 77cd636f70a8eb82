/*
 * An event makes a replica unverified, no more: only a look finds whether the bytes are there.
 * Events from before a watch are lost. So this node looks at all replicas once a watch is in place: at those that are
 * served, and at those that it could not find because weightd was not running.
 */
#include "server/sync/watch.h"

#include <string.h>

#include "server/sync/base/json_fields.h"
#include "server/sync/coordinator/broadcast.h"
#include "server/sync/repair.h"
#include "server/sync/state/group.h"
#include "server/sync/state/loan.h"
#include "server/sync/state/replica.h"

#define RETRY_MIN SECOND
#define RETRY_SHIFT_MAX 3 /* 8 s */

static void replica_doubt(struct agent *a, struct replica *rep)
{
	if (rep->document && rep->state != REPLICA_SUPERSEDED)
		repair_look_again(a, rep);
}

static void doubt_all(struct agent *a)
{
	struct replica *rep;

	list_for_each(rep, &a->replicas, link) {
		replica_doubt(a, rep);
		loan_forget(a, rep); /* a weightd that was started anew knows of no loan */
	}
}

/* A version that was dropped on request, or for a newer one, is not fetched again. */
static void on_gone(struct agent *a, const json_t *message)
{
	const char *buffer, *device;
	bool is_lost = json_is_true(json_object_get(message, "lost"));
	bool is_unwanted = json_is_true(json_object_get(message, "unwanted"));
	struct broadcast *b;
	uint64_t version;
	struct replica *rep;

	if (field_string(message, "buffer", BUFFER_MAX, &buffer) < 0 ||
	    field_string(message, "device", DEVICE_MAX, &device) < 0 ||
	    field_number(message, "version", INT64_MAX, &version) < 0)
		return;
	rep = replica_find(a, buffer);
	if (!rep || strcmp(group_device(a->config, rep->group), device) != 0)
		return;
	b = broadcast_find_of_buffer(a, buffer);
	if (b && !sync_is_repair(&b->sync) && b->sync.version == version && !is_lost) {
		b->is_gone = true;
		b->is_unwanted |= is_unwanted;
	}
	if (is_lost || is_unwanted)
		loan_forget_version(a, rep, version);
	if (version != rep->version)
		return;
	if (is_lost)
		replica_doubt(a, rep);
	else
		replica_set_superseded(a, rep);
}

/*
 * With all its versions, the one that is kept for the next push among them. weightd sends no event for each of these. A
 * buffer without a version belonged to a writer that ended.
 */
static void on_removed(struct agent *a, const json_t *message)
{
	const char *buffer, *device;
	struct broadcast *b;
	uint64_t version;
	struct replica *rep;

	if (field_string(message, "buffer", BUFFER_MAX, &buffer) < 0 ||
	    field_string(message, "device", DEVICE_MAX, &device) < 0 ||
	    field_number(message, "version", INT64_MAX, &version) < 0)
		return;
	rep = replica_find(a, buffer);
	if (!rep || strcmp(group_device(a->config, rep->group), device) != 0)
		return;
	b = broadcast_find_of_buffer(a, buffer);
	loan_forget(a, rep);
	patch_chain_deinit(&rep->patch_chain);
	if (b && !sync_is_repair(&b->sync))
		b->is_gone = b->is_unwanted = true;
	if (version && version >= rep->version && rep->state == REPLICA_SERVING)
		replica_set_superseded(a, rep);
}

static void again_later(struct agent *a)
{
	unsigned shift = a->n_watches < RETRY_SHIFT_MAX ? a->n_watches : RETRY_SHIFT_MAX;

	work_end(a, &a->watch);
	a->n_watches++;
	a->watch_ns = agent_now(a) + (RETRY_MIN << shift);
}

static void watch_on_message(struct agent *a, struct work *w, const json_t *message, int *fds,
			     unsigned n_fds)
{
	const char *op;

	(void)w, (void)fds, (void)n_fds;
	if (field_string(message, "op", 32, &op) < 0)
		op = "";
	if (strcmp(op, "watching") == 0) {
		a->n_watches = 0;
		doubt_all(a);
	} else if (strcmp(op, "missed") == 0) {
		doubt_all(a);
	} else if (strcmp(op, "gone") == 0) {
		on_gone(a, message);
	} else if (strcmp(op, "removed") == 0) {
		on_removed(a, message);
	} else {
		again_later(a);
	}
}

static void watch_on_end(struct agent *a, struct work *w, const char *how)
{
	(void)w, (void)how;
	again_later(a);
}

/* Each by one name only where several groups have it. */
static json_t *devices(const struct agent *a)
{
	json_t *names = json_object(), *list = json_array();
	const char *name;
	json_t *unused;

	for (unsigned i = 0; i < a->config->n_groups; i++)
		json_object_set_new(names, a->config->groups[i].device, json_null());
	json_object_foreach(names, name, unused) json_array_append_new(list, json_string(name));
	json_decref(names);
	return list;
}

uint64_t watch_step(struct agent *a, uint64_t now)
{
	char why[WHY_SIZE];

	if (a->watch.job)
		return 0;
	if (now < a->watch_ns)
		return a->watch_ns;
	a->watch = (struct work){.on_message = watch_on_message, .on_end = watch_on_end};
	if (work_start(a, &a->watch, JOB_WATCH, NULL, why) < 0) {
		agent_log(a, "warning", "%s", why);
		again_later(a);
		return a->watch_ns;
	}
	work_tell(a, &a->watch,
		  json_pack("{s:s, s:s?, s:o}", "op", "watch", "socket", a->config->weightd_socket,
			    "devices", devices(a)),
		  NULL, 0);
	return 0;
}

void watch_end(struct agent *a)
{
	work_end(a, &a->watch);
}
