/*
 * Rows as JSON. Members and their order are those of weightd-trace(8).
 */
#include "bpf/tcp/row.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "bpf/tcp/peer_totals.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"

/*
 * Bytes that TLS 1.3 adds to each of its records, with any cipher in common use, and the most that one record holds.
 */
#define TLS_RECORD_ADDS 22u
#define TLS_RECORD_HOLDS 16384u

static const char *const counter_names[N_COUNTERS] = {
	[COUNTER_SUBMITTED] = "submitted",
	[COUNTER_DELIVERED] = "delivered",
	[COUNTER_RECEIVED] = "received",
	[COUNTER_CONSUMED] = "consumed",
	[COUNTER_WIRE] = "wire",
	[COUNTER_RETRANS_BYTES] = "retrans_bytes",
	[COUNTER_RETRANS_SEGMENTS] = "retrans_segments",
};

static const char *const quality_names[] = {
	[QUALITY_ABSENT] = "absent",
	[QUALITY_SAMPLED] = "sampled",
	[QUALITY_EXACT] = "exact",
};

/* Indexed by their numbers in the kernel. */
static const char *const state_names[] = {
	NULL,        "established", "syn-sent",   "syn-recv", "fin-wait-1", "fin-wait-2",
	"time-wait", "close",       "close-wait", "last-ack", "listen",     "closing",
};

static bool take_text(const json_t *request, const char *key, char *ret)
{
	const char *text = json_string_value(json_object_get(request, key));

	if (!text || !*text || strlen(text) >= ROW_TEXT_SIZE)
		return false;
	(void)strcpy(ret, text);
	return true;
}

bool label_parse(const json_t *request, struct label *ret, const char **ret_why)
{
	const json_t *version = json_object_get(request, "version");
	const char *role = json_string_value(json_object_get(request, "role"));
	struct label label = {.version = json_integer_value(version)};

	*ret_why = NULL;
	if (!take_text(request, "sync", label.sync))
		*ret_why = "'sync' must be a text of 1 to 127 bytes";
	else if (!take_text(request, "peer", label.peer))
		*ret_why = "'peer' must be a text of 1 to 127 bytes: the name of the other node";
	else if (!json_is_integer(version) || label.version < 0)
		*ret_why = "'version' must be a number";
	else if (!role || (strcmp(role, "payload") != 0 && strcmp(role, "control") != 0))
		*ret_why = "'role' must be \"payload\" or \"control\"";
	if (*ret_why)
		return false;
	label.is_payload = !strcmp(role, "payload");
	*ret = label;
	return true;
}

bool row_parse_expected(const json_t *request, json_int_t *ret, const char **ret_why)
{
	const json_t *expected = json_object_get(request, "expected");
	json_int_t bytes = expected ? json_integer_value(expected) : -1;

	if (expected && (!json_is_integer(expected) || bytes < 0)) {
		*ret_why = "'expected' must be a number of bytes";
		return false;
	}
	*ret = bytes;
	return true;
}

bool row_parse_transport(const json_t *request, const char **ret, const char **ret_why)
{
	const json_t *transport = json_object_get(request, "transport");
	const char *text = json_string_value(transport);

	if (transport && (!text || !*text || strlen(text) >= TRANSPORT_SIZE)) {
		*ret_why = "'transport' must be a text of 1 to 15 bytes";
		return false;
	}
	*ret = text;
	return true;
}

bool label_equal(const struct label *a, const struct label *b)
{
	return !strcmp(a->sync, b->sync) && !strcmp(a->peer, b->peer) && a->version == b->version &&
	       a->is_payload == b->is_payload;
}

static json_t *label_json(const char *kind, const struct row *row)
{
	const struct label *label = &row->label;

	return json_pack("{ss sI ss sI ss ss}", "kind", kind, "row", (json_int_t)row->number,
			 "sync", label->sync, "version", label->version, "peer", label->peer,
			 "role", label->is_payload ? "payload" : "control");
}

static bool is_absent(const struct reading *now)
{
	return now->quality[COUNTER_SUBMITTED] == QUALITY_ABSENT;
}

/* Both are null for a row that did not send, or is unknown. */
static json_t *limits_json(const struct row *row, const struct reading *now)
{
	struct division d;
	json_t *limits;
	char key[32];

	if (is_absent(now) || !division_of(&row->before, &now->totals, &d))
		return json_pack("{sn sn}", "limited_by", "limits");
	division_rest(&d, row->rest.ns - row->rested_ns);
	limits = json_object();
	for (int i = 0; i < N_LIMITS; i++) {
		(void)snprintf(key, sizeof(key), "%s_ns", limit_names[i]);
		(void)json_object_set_new(limits, key, json_integer((json_int_t)d.ns[i]));
	}
	return json_pack("{ss so}", "limited_by", limit_names[d.by], "limits", limits);
}

/* The least that TLS needs: smaller records and the handshake take more, which is unknown here. */
static uint64_t bytes_of_all(const struct row *row)
{
	uint64_t n = (uint64_t)row->expected;

	if (!strcmp(row->transport, "tls"))
		n += (n + TLS_RECORD_HOLDS - 1) / TLS_RECORD_HOLDS * TLS_RECORD_ADDS;
	return n;
}

static bool has_all(const struct row *row, const struct totals *now)
{
	const struct totals *before = &row->before;
	uint64_t delivered = now->counter[COUNTER_DELIVERED] - before->counter[COUNTER_DELIVERED];
	uint64_t received = now->counter[COUNTER_RECEIVED] - before->counter[COUNTER_RECEIVED];

	return row->expected >= 0 && delivered + received >= bytes_of_all(row);
}

/* False: it is none. */
static bool cause_of(const struct row *row, const struct reading *now, uint64_t now_ns,
		     enum limit *ret)
{
	enum limit cause;

	if (!stall_cause(&row->stall, &now->totals, now_ns, row->rtt_us, &cause) ||
	    (row->rest.is_on && cause == LIMIT_PRODUCER))
		return false;
	*ret = cause;
	return true;
}

static json_t *stall_json(const struct stalled *s)
{
	if (s->since_ns == 0)
		return json_null();
	return json_pack("{ss sI sI}", "cause", limit_names[s->cause], "since_ns",
			 (json_int_t)s->since_ns, "until_ns", (json_int_t)s->until_ns);
}

static json_t *stalls_json(const struct row *row)
{
	json_t *list = row->knows_stalls ? json_array() : json_null();

	for (unsigned i = 0; row->knows_stalls && i < row->stalls.n; i++)
		(void)json_array_append_new(list, stall_json(&row->stalls.list[i]));
	return list;
}

static void look_for_stall(struct row *row, const struct reading *now, uint64_t now_ns)
{
	struct stalled s = {.since_ns = row->stall.since_ns, .until_ns = now_ns};

	row->knows_stalls = true;
	row->stalled.since_ns = 0;
	if (!cause_of(row, now, now_ns, &s.cause))
		return;
	row->peer_totals->stalled_ns[s.cause] +=
		now_ns - (s.since_ns > row->stalled_ns ? s.since_ns : row->stalled_ns);
	row->stalled_ns = now_ns;
	row->stalled = s;
	stalls_take(&row->stalls, &s);
}

static uint64_t bytes_of(const struct totals *t)
{
	return t->counter[COUNTER_DELIVERED] + t->counter[COUNTER_RECEIVED];
}

static void look_for_bytes(struct row *row, const struct totals *now, uint64_t now_ns)
{
	uint64_t before = row->moved;

	row->moved = bytes_of(now);
	if (row->moved > before) /* less: the byte of a FIN was found to be none */
		row->moved_ns = now_ns;
}

void row_look(struct row *row, const struct reading *now, bool is_in_span)
{
	uint64_t now_ns = num_now_ns();

	if (!is_absent(now))
		look_for_bytes(row, &now->totals, now_ns);
	if (is_in_span && !is_absent(now)) {
		stall_look(&row->stall, &now->totals, now_ns);
		rest_look(&row->rest, &now->totals, has_all(row, &now->totals));
		look_for_stall(row, now, now_ns);
	} else {
		row->stall.since_ns = 0;
		row->stalled.since_ns = 0;
		row->rest.is_on = false;
	}
}

void row_begin(struct row *row, const struct totals *now, uint64_t now_ns)
{
	row->before = *now;
	row->began_ns = now_ns;
	row->moved = bytes_of(now);
	row->moved_ns = 0;
	row->stall.since_ns = 0;
	row->stalls.n = 0;
	row->knows_stalls = false;
	row->rest.is_on = false;
	row->rested_ns = row->rest.ns;
}

static json_t *calls_json(const struct calls *counts, enum call call)
{
	const __u64 *of_size = counts->of[call].of_size;
	json_t *sizes = json_object();
	uint64_t n = 0;
	char size[16];

	for (int i = 0; i < CALL_SIZES; i++) {
		if (of_size[i] == 0)
			continue;
		n += of_size[i];
		(void)snprintf(size, sizeof(size), "%u", 1u << i);
		(void)json_object_set_new(sizes, size, json_integer((json_int_t)of_size[i]));
	}
	return json_pack("{sI sI so}", "calls", (json_int_t)n, "bytes",
			 (json_int_t)counts->of[call].bytes, "sizes", sizes);
}

static json_t *messages_json(const struct row *row, struct meter *m)
{
	const struct row_calls *calls = row->calls;
	struct calls counts;

	if (!calls)
		return json_null();
	counts = calls->counts;
	if (!calls->ended_ns && m->kind->read_calls(m, row->number, &counts) < 0)
		return json_null();
	return json_pack("{sI so so so}", "began_ns", (json_int_t)calls->began_ns, "ended_ns",
			 calls->ended_ns ? json_integer((json_int_t)calls->ended_ns) : json_null(),
			 "sent", calls_json(&counts, CALL_SEND), "received",
			 calls_json(&counts, CALL_RECEIVE));
}

static json_t *quality_text(enum quality q)
{
	return json_string(quality_names[q]);
}

/* A value that is null is absent. */
static enum quality quality_of_looks(const json_t *o, const char *key)
{
	return json_is_null(json_object_get(o, key)) ? QUALITY_ABSENT : QUALITY_SAMPLED;
}

static json_t *quality_json(const struct row *row, const struct reading *now, const json_t *o)
{
	/*
	 * TCP does not measure these, or reports no event for them: they are as the last look found
	 * them.
	 */
	static const char *const looked_for[] = {"limits", "rtt_us", "moved_ns", "stalls"};
	json_t *q = json_object();

	for (int i = 0; i < N_COUNTERS; i++)
		(void)json_object_set_new(q, counter_names[i], quality_text(now->quality[i]));
	for (size_t i = 0; i < ARRAY_LEN(looked_for); i++)
		(void)json_object_set_new(q, looked_for[i],
					  quality_text(quality_of_looks(o, looked_for[i])));
	(void)json_object_update_new(
		q, json_pack("{so so so}", "stall",
			     quality_text(row->stall.since_ns ? QUALITY_SAMPLED : QUALITY_ABSENT),
			     "sockets", quality_text(now->opened), "closed",
			     quality_text(now->ended)));
	return q;
}

static json_t *count_or_null(enum quality q, uint64_t n)
{
	return q == QUALITY_ABSENT ? json_null() : json_integer((json_int_t)n);
}

json_t *row_json(const struct row *row, const char *kind, struct meter *m, const struct reading *now)
{
	const struct totals *t = &now->totals, *before = &row->before;
	json_t *o = label_json(kind, row);

	for (int i = 0; i < N_COUNTERS; i++)
		(void)json_object_set_new(o, counter_names[i],
					  count_or_null(now->quality[i],
							t->counter[i] - before->counter[i]));
	(void)json_object_update_new(o, limits_json(row, now));
	(void)json_object_set_new(o, "stall", stall_json(&row->stalled));
	(void)json_object_set_new(o, "stalls", stalls_json(row));
	(void)json_object_set_new(o, "messages", messages_json(row, m));
	/* Adopted while it was read: what such a socket carried before is not in it. */
	(void)json_object_update_new(
		o, json_pack("{so so sI sb ss sI sI}", "sockets",
			     count_or_null(now->opened, t->sockets - before->closed), "closed",
			     count_or_null(now->ended, t->closed - before->closed), "lost",
			     (json_int_t)(t->lost - before->lost), "partial",
			     t->adopted != before->adopted, "source", m->kind->name, "began_ns",
			     (json_int_t)row->began_ns, "now_ns", (json_int_t)num_now_ns()));
	(void)json_object_update_new(
		o,
		json_pack("{so so so ss so}", "moved_ns",
			  row->moved_ns ? json_integer((json_int_t)row->moved_ns) : json_null(),
			  "expected", row->expected < 0 ? json_null() : json_integer(row->expected),
			  "rtt_us", row->rtt_us ? json_integer(row->rtt_us) : json_null(),
			  "transport", row->transport, "process", process_json(&row->process)));
	(void)json_object_set_new(o, "quality", quality_json(row, now, o));
	return o;
}

static json_t *end_json(uint16_t family, const uint8_t *address, uint16_t port)
{
	char ip[INET6_ADDRSTRLEN];

	if (!inet_ntop(family, address, ip, sizeof(ip)))
		return json_null();
	return json_sprintf(family == AF_INET6 ? "[%s]:%u" : "%s:%u", ip, port);
}

json_t *row_sample_json(const struct row *row, const char *kind, const struct sample *s)
{
	json_t *o = label_json(kind, row);
	bool knows_state = s->state < ARRAY_LEN(state_names) && state_names[s->state];
	/* The kernel's word for "none yet". */
	bool knows_rtt = s->srtt_us != 0, knows_min = s->min_rtt_us != UINT32_MAX;

	(void)json_object_update_new(
		o, json_pack("{sI sI sI so so so}", "ns", (json_int_t)s->ns, "cookie",
			     (json_int_t)s->cookie, "netns", (json_int_t)s->netns, "local",
			     end_json(s->family, s->local, s->local_port), "remote",
			     end_json(s->family, s->peer, s->peer_port), "state",
			     knows_state ? json_string(state_names[s->state]) : json_null()));
	(void)json_object_update_new(
		o, json_pack("{sI sI sI sI sI sI sI sI so so}", "bytes_sent",
			     (json_int_t)s->bytes_sent, "bytes_retrans",
			     (json_int_t)s->bytes_retrans, "bytes_acked", (json_int_t)s->bytes_acked,
			     "bytes_received", (json_int_t)s->bytes_received, "retrans",
			     (json_int_t)s->total_retrans, "cwnd", (json_int_t)s->cwnd, "notsent",
			     (json_int_t)s->notsent, "unacked", (json_int_t)s->unacked, "rtt_us",
			     knows_rtt ? json_integer(s->srtt_us) : json_null(), "min_rtt_us",
			     knows_min ? json_integer(s->min_rtt_us) : json_null()));
	return o;
}
