/*
 * A connection carries one request at a time. If the reply is lost with the server, and the server returns, the
 * request is sent again, unless the caller marks it as one that must not be repeated.
 */
#include "libclient/connection/call.h"

#include <errno.h>

#include "ipc/base/num.h"
#include "libclient/connection/restart.h"

static void start_patience(const struct weightd *w, struct client_call *call,
			   struct restart_patience *ret)
{
	*ret = (struct restart_patience){
		.has_lost = w->fd < 0,
		.until_ns = restart_until(w),
		.deadline_ns = call->deadline_ns ? call->deadline_ns : UINT64_MAX,
		.tick = call->tick,
		.userdata = call->userdata,
	};
	if (client_call_patience_ms(call) && call->timeout_ms >= 0)
		ret->deadline_ns = num_now_ns() + (uint64_t)call->timeout_ms * 1000000;
}

static void put_time_left(struct client_call *call, uint64_t deadline_ns)
{
	int64_t *field = client_call_patience_ms(call);
	uint64_t now = num_now_ns();

	if (field && deadline_ns == UINT64_MAX)
		*field = -1;
	else if (field)
		*field = now < deadline_ns ? (int64_t)((deadline_ns - now + 999999) / 1000000) : 0;
}

/* 0: connected anew, and the request is to be sent; 1: it is done. */
static int come_back(struct weightd *w, struct client_call *call,
		     const struct restart_patience *patience)
{
	int r = restart_wait(w, patience);

	return r == 0 && call->again ? call->again(w, call) : r;
}

int client_call_run(struct weightd *w, struct client_call *call)
{
	struct restart_patience patience;
	uint64_t asked = 0; /* the instance of the server that took the request */
	unsigned n_closed = 0;
	int r = client_check_usable(w);

	client_call_init_fds(call);
	if (r < 0)
		return r;
	(void)client_reap(w, false);
	start_patience(w, call, &patience);
	for (;;) {
		if (w->fd < 0) {
			r = come_back(w, call, &patience);
			if (r != 0)
				return r < 0 ? r : 0;
			/* A server that has not died and closes each time does not take this request. */
			if (call->sent && asked == w->instance && ++n_closed > 1)
				return client_lost(w, 0);
		}
		put_time_left(call, patience.deadline_ns);
		asked = w->instance;
		r = client_ask(w, call);
		if (r != -ENOTCONN || w->fd >= 0 || !client_awaits_restart(w))
			return r;
		if (!patience.has_lost)
			patience.until_ns = restart_until(w); /* it began now */
		patience.has_lost = true;
	}
}

int client_not_again(struct weightd *w, struct client_call *call)
{
	if (!call->sent)
		return 0;
	return sentence_set(&w->sentence, -ECONNABORTED,
			    "the connection to weightd was lost during a change of '%s', which "
			    "may or may not have taken effect: check (weightctl ls) and try again",
			    (const char *)call->subject);
}
