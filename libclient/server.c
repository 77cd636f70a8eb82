/*
 * Identity and counters of the server.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "libclient/connection/call.h"
#include "weightd.h"

int weightd_ping(struct weightd *w, struct weightd_server *ret)
{
	struct client_call call = {.op = WIRE_PING};
	const struct wire_ping_reply *p = &call.reply.ping;
	struct weightd_server s;
	size_t size = ret->size < sizeof(s) ? ret->size : sizeof(s);
	int r;

	if (ret->size < offsetof(struct weightd_server, uptime_ns))
		return sentence_set(&w->sentence, -EINVAL,
				    "a struct weightd_server has no size (set .size)");
	r = client_call_run(w, &call);
	if (r < 0)
		return r;
	s = (struct weightd_server){
		.size = size,
		.instance = p->instance,
		.uptime_ns = p->uptime_ns,
		.n_buffers = p->n_buffers,
		.n_sessions = p->n_sessions,
		.n_leases = p->n_leases,
		.n_bytes = p->n_bytes,
		.pid = p->pid,
	};
	memcpy(s.release, p->release, sizeof(s.release));
	memcpy(ret, &s, size);
	return 0;
}

int weightd_stat(struct weightd *w, struct weightd_stat *ret)
{
	struct client_call call = {.op = WIRE_STAT};
	const struct wire_stat_reply *p = &call.reply.stat;
	struct weightd_stat s;
	size_t size = ret->size < sizeof(s) ? ret->size : sizeof(s);
	int r;

	if (ret->size < offsetof(struct weightd_stat, slot_bytes))
		return sentence_set(&w->sentence, -EINVAL,
				    "a struct weightd_stat has no size (set .size)");
	r = client_call_run(w, &call);
	if (r < 0)
		return r;
	s = (struct weightd_stat){
		.size = size,
		.headroom = p->headroom,
		.slot_bytes = p->slot_bytes,
		.kept_bytes = p->kept_bytes,
		.leaving_bytes = p->leaving_bytes,
		.orphan_bytes = p->orphan_bytes,
		.layout_bytes = p->layout_bytes,
		.n_quarantined = p->n_quarantined,
		.store_used = p->store_used,
		.store_max = p->store_max,
	};
	memcpy(ret, &s, size);
	return 0;
}
