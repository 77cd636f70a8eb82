/*
 * Identity, counters and health of the server.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "libclient/connection/call.h"
#include "libclient/connection/release.h"
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
	(void)snprintf(s.program, sizeof(s.program), "%s", release_program(w));
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

static struct weightd_latency latency_of(const struct wire_latency *l)
{
	struct weightd_latency ret = {.sum_ns = l->sum_ns};

	static_assert(WEIGHTD_LATENCY_BUCKETS == WIRE_LATENCY_BUCKETS,
		      "the buckets are those of the wire");
	memcpy(ret.counts, l->counts, sizeof(ret.counts));
	return ret;
}

static void fill_health(const struct wire_health_record *rec, struct weightd_health *ret)
{
	static_assert((int)WEIGHTD_REFUSALS == WIRE_REFUSALS &&
			      (int)WEIGHTD_WORKERS == WIRE_WORKERS &&
			      (int)WEIGHTD_KEEPER_GONE == WIRE_KEEPER_GONE,
		      "the numbers are those of the wire");
	*ret = (struct weightd_health){
		.started_ns = rec->started_ns,
		.memory = rec->memory,
		.reserve = rec->reserve,
		.headroom = rec->headroom,
		.max_descriptors = rec->max_descriptors,
		.loop = latency_of(&rec->loop),
		.keeper = (enum weightd_keeper)rec->keeper,
		.admin = rec->admin,
	};
	memcpy(ret->limit, rec->limit, sizeof(ret->limit) - 1);
	memcpy(ret->refused, rec->refused, sizeof(ret->refused));
	for (unsigned i = 0; i < WEIGHTD_WORKERS; i++)
		ret->workers[i] = latency_of(&rec->workers[i]);
}

int weightd_health(struct weightd *w, struct weightd_health *ret)
{
	struct client_call call = {.op = WIRE_LIST, .request.list.kind = WIRE_LIST_HEALTH};
	const struct wire_list_reply *reply = &call.reply.list;
	struct wire_health_record rec;
	struct weightd_health h;
	size_t size = ret->size < sizeof(h) ? ret->size : sizeof(h);
	int r;

	if (ret->size < offsetof(struct weightd_health, memory))
		return sentence_set(&w->sentence, -EINVAL,
				    "a struct weightd_health has no size (set .size)");
	if (!w->has_health)
		return release_too_old(w, &w->sentence, "report its health");
	r = client_call_run(w, &call);
	if (r < 0)
		return r;
	if (reply->n_records != 1 || reply->record_size != sizeof(rec))
		return sentence_set(&w->sentence, -EBADMSG, "weightd's health cannot be read: %s",
				    strerror(EBADMSG));
	memcpy(&rec, reply->records, sizeof(rec));
	fill_health(&rec, &h);
	h.size = size;
	memcpy(ret, &h, size);
	return 0;
}
