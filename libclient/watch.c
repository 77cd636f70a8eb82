/*
 * Events: pages of records, returned one by one. The server numbers them from its start, so after a restart all of
 * them are new.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "libclient/connection/call.h"
#include "libclient/connection/connection.h"
#include "weightd.h"

struct weightd_watch {
	struct weightd *user; /* referenced: receives the sentences of failures */
	struct weightd *w; /* referenced: a connection of its own, since it waits */
	uint64_t instance; /* server instance that numbered `after` */
	uint64_t after;
	struct wire_list_reply page;
	uint32_t n_told; /* records of the page */
	struct wire_event_record told; /* the caller's strings point into it */
};

static_assert((int)WEIGHTD_EVENT_CREATED == (int)WIRE_EVENT_CREATED &&
		      (int)WEIGHTD_EVENT_VERSION_GONE == (int)WIRE_EVENT_VERSION_GONE &&
		      (int)WEIGHTD_EVENT_EVICTED == (int)WIRE_EVENT_EVICTED &&
		      (int)WEIGHTD_EVENT_MISSED == (int)WIRE_EVENT_MISSED &&
		      (int)WEIGHTD_EVENT_RESTARTED == (int)WIRE_EVENT_END,
	      "events are ABI; RESTARTED is the library's own");
static_assert((int)WEIGHTD_END_NONE == (int)WIRE_END_NONE &&
		      (int)WEIGHTD_END_DROPPED == (int)WIRE_END_DROPPED &&
		      (int)WEIGHTD_END_LOST == (int)WIRE_END_LOST,
	      "ends are ABI");

const char *weightd_event_name(enum weightd_event_kind kind)
{
	static const char *const names[] = {
		[WEIGHTD_EVENT_CREATED] = "created",
		[WEIGHTD_EVENT_PUBLISHED] = "published",
		[WEIGHTD_EVENT_ROLLED_BACK] = "rolled-back",
		[WEIGHTD_EVENT_VERSION_GONE] = "version-gone",
		[WEIGHTD_EVENT_REMOVED] = "removed",
		[WEIGHTD_EVENT_UPDATING] = "updating",
		[WEIGHTD_EVENT_TORN] = "torn",
		[WEIGHTD_EVENT_ACCESS] = "access",
		[WEIGHTD_EVENT_EVICTED] = "evicted",
		[WEIGHTD_EVENT_MISSED] = "missed",
		[WEIGHTD_EVENT_RESTARTED] = "restarted",
	};

	return (unsigned)kind < ARRAY_LEN(names) ? names[kind] : NULL;
}

void weightd_watch_free(struct weightd_watch *watch)
{
	if (!watch)
		return;
	client_unref(watch->w);
	client_unref(watch->user);
	free(watch);
}
CLEANUP_POINTER(struct weightd_watch, weightd_watch_free);

/* On a connection to another server the question is another one. */
static int events_again(struct weightd *w, struct client_call *call)
{
	const struct weightd_watch *watch = call->subject;

	return w->instance != watch->instance;
}

/* The next page. 1: the server is another one, and none was asked for. */
static int watch_fetch(struct weightd_watch *watch, int timeout_ms)
{
	struct client_call call = {
		.op = WIRE_EVENTS,
		.timeout_ms = timeout_ms,
		.again = events_again,
		.subject = watch,
		.request.events.after = watch->after,
	};
	const struct wire_list_reply *reply = &call.reply.list;
	int r = client_call_run(watch->w, &call);

	if (r < 0)
		return r;
	if (watch->w->instance != watch->instance) {
		watch->instance = watch->w->instance;
		watch->after = 0;
		return 1;
	}
	if (reply->n_records && reply->record_size != sizeof(struct wire_event_record))
		return sentence_set(&watch->w->sentence, -EBADMSG,
				    "weightd's events cannot be read; use the same release of both");
	watch->page = *reply;
	watch->after = reply->next;
	watch->n_told = 0;
	return 0;
}

/* Starts "from now on": skips all events that the server remembers. */
static int skip_past(struct weightd_watch *watch)
{
	int r;

	do
		r = watch_fetch(watch, 0);
	while (r >= 0);
	watch->page.n_records = 0;
	return r == -ETIMEDOUT ? 0 : r;
}

int weightd_watch_new(struct weightd *w, struct weightd_watch **ret)
{
	cleanup(weightd_watch_freep) struct weightd_watch *watch = calloc(1, sizeof(*watch));
	int r;

	if (!watch)
		return sentence_set(&w->sentence, -ENOMEM, "out of memory");
	watch->user = client_ref(w);
	r = connection_twin(w, &watch->w);
	if (r < 0)
		return r;
	watch->instance = watch->w->instance;
	r = skip_past(watch);
	if (r < 0) {
		w->sentence = watch->w->sentence;
		return r;
	}
	*ret = take_ptr(watch);
	return 0;
}

static void watch_tell(struct weightd_watch *watch, struct weightd_event *ret)
{
	struct wire_event_record *rec = &watch->told;
	const struct weightd_event event = {
		.size = ret->size < sizeof(event) ? ret->size : sizeof(event),
		.kind = (enum weightd_event_kind)rec->event,
		.name = rec->name,
		.device = rec->device,
		.serial = rec->serial,
		.time_ns = rec->time_ns,
		.version = rec->version,
		.end = (enum weightd_end)rec->why,
		.uid = rec->uid,
		.pid = rec->pid,
	};

	rec->name[sizeof(rec->name) - 1] = '\0'; /* the server may not have terminated the strings */
	rec->device[sizeof(rec->device) - 1] = '\0';
	memcpy(ret, &event, event.size);
}

static void tell_restart(struct weightd_watch *watch, struct weightd_event *ret)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_REALTIME, &now);
	watch->told = (struct wire_event_record){
		.event = WEIGHTD_EVENT_RESTARTED,
		.time_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec,
	};
	watch->page.n_records = 0;
	watch->n_told = 0;
	watch_tell(watch, ret);
}

/* Until `deadline_ns`, in whole milliseconds; -1: for ever. */
static int left_ms(uint64_t deadline_ns)
{
	uint64_t now = num_now_ns();

	if (deadline_ns == UINT64_MAX)
		return -1;
	return now < deadline_ns ? (int)((deadline_ns - now + 999999) / 1000000) : 0;
}

int weightd_watch_next(struct weightd_watch *watch, int timeout_ms, struct weightd_event *ret)
{
	uint64_t deadline_ns = UINT64_MAX;
	int r;

	if (ret->size < offsetof(struct weightd_event, device))
		return sentence_set(&watch->user->sentence, -EINVAL,
				    "a struct weightd_event has no size (set .size)");
	if (timeout_ms >= 0)
		deadline_ns = num_now_ns() + (uint64_t)timeout_ms * 1000000;
	/* A page can be empty: what has happened was not for us to see. */
	while (watch->n_told == watch->page.n_records) {
		r = watch_fetch(watch, left_ms(deadline_ns));
		if (r < 0) {
			watch->user->sentence = watch->w->sentence;
			return r;
		}
		if (r > 0) {
			tell_restart(watch, ret);
			return 0;
		}
	}
	memcpy(&watch->told, watch->page.records + watch->n_told++ * sizeof(watch->told),
	       sizeof(watch->told));
	watch_tell(watch, ret);
	return 0;
}
