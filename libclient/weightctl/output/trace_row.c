#include "libclient/weightctl/output/trace_row.h"

#include <stddef.h>

#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/output/user.h"

static const char *trace_row_limited(const void *row, bool json)
{
	const struct trace_row *f = row;

	return f->stall && !json ? f->marked : f->limited_by;
}

static const char *trace_row_user(const void *row, bool json)
{
	const struct trace_row *f = row;

	(void)json;
	return f->uid == UINT32_MAX ? NULL : user_name(f->uid);
}

const struct column trace_row_columns[] = {
	{"SYNC", COLUMN_TEXT, TRACE_ROW(sync), .help = "its name", .shown = true, .cut = true,
	 .width = 8},
	{"VERSION", COLUMN_U64, TRACE_ROW(version), .help = "version in transfer"},
	{"PEER", COLUMN_TEXT, TRACE_ROW(peer), .help = "the other node", .shown = true, .cut = true,
	 .width = 16},
	{"PROCESS", COLUMN_TEXT, TRACE_ROW(process), .help = "process with the traffic",
	 .shown = true, .cut = true, .width = 4},
	{"ROLE", COLUMN_TEXT, TRACE_ROW(role), .help = "payload or control", .shown = true},
	{"DONE", COLUMN_COUNTED, TRACE_ROW(done), .help = "bytes delivered and received",
	 .shown = true},
	{"EXPECTED", COLUMN_COUNTED, TRACE_ROW(expected), .help = "bytes expected in all",
	 .shown = true},
	{"RATE", COLUMN_RATE, TRACE_ROW(rate), .help = "bytes delivered and received, a second",
	 .shown = true},
	{"RTT", COLUMN_DURATION, TRACE_ROW(rtt_ns), .help = "round trip, of the slowest connection",
	 .shown = true},
	{"RETRANS", COLUMN_COUNTED, TRACE_ROW(retrans), .help = "bytes that were sent again",
	 .shown = true},
	{"LIMITED", COLUMN_WORD, .word = trace_row_limited,
	 .help = "limit now (!), or the one that took most time", .shown = true, .cut = true,
	 .width = 7},
	{"STALL", COLUMN_TEXT, TRACE_ROW(stall), .help = "limit now, while nothing is delivered"},
	{"STALLED", COLUMN_DURATION, TRACE_ROW(stalled_ns), .help = "time without delivery"},
	{"PID", COLUMN_INDEX, TRACE_ROW(pid), .help = "number of that process"},
	{"CONTAINER", COLUMN_TEXT, TRACE_ROW(container), .help = "container of the process",
	 .cut = true, .width = 12},
	{"CGROUP", COLUMN_TEXT, TRACE_ROW(cgroup),
	 .help = "control group of the process, or all of one", .cut = true, .width = 12},
	{"TRANSPORT", COLUMN_TEXT, TRACE_ROW(transport), .help = "transport: tcp, tls, gloo, nccl"},
	{"USER", COLUMN_WORD, .word = trace_row_user, .help = "user that registered the sockets"},
	{"UID", COLUMN_INDEX, TRACE_ROW(uid), .help = "the same as a number"},
	{"ELAPSED", COLUMN_DURATION, TRACE_ROW(elapsed_ns), .help = "time since the start"},
	{"LEFT", COLUMN_CLOCK, TRACE_ROW(left_ns), .help = "time at that rate"},
	{"SUBMITTED", COLUMN_COUNTED, TRACE_ROW(submitted), .help = "bytes handed to the kernel"},
	{"DELIVERED", COLUMN_COUNTED, TRACE_ROW(delivered), .help = "part of it, acknowledged"},
	{"RECEIVED", COLUMN_COUNTED, TRACE_ROW(received), .help = "bytes received"},
	{"CONSUMED", COLUMN_COUNTED, TRACE_ROW(consumed), .help = "part of it, taken by the program"},
	{"WIRE", COLUMN_COUNTED, TRACE_ROW(wire), .help = "bytes sent, those sent again included"},
	{"SOCKETS", COLUMN_INDEX, TRACE_ROW(sockets), .help = "connections that are open"},
	{"PARTIAL", COLUMN_BOOL, TRACE_ROW(partial),
	 .help = "some bytes passed before counting began"},
	{"QUALITY", COLUMN_TEXT, TRACE_ROW(quality),
	 .help = "quality of DONE: exact, sampled or absent"},
	{"SOURCE", COLUMN_TEXT, TRACE_ROW(source), .help = "source of the counts: bpf or diag"},
	{"ROW", COLUMN_U64, TRACE_ROW(number), .help = "its number"},
	{},
};

static uint64_t known(const json_t *row, const char *key)
{
	return json_field_number(row, key, UINT64_MAX);
}

static uint64_t done_of(const json_t *row)
{
	uint64_t delivered = known(row, "delivered"), received = known(row, "received"), sum;

	if (delivered == UINT64_MAX || received == UINT64_MAX ||
	    __builtin_add_overflow(delivered, received, &sum))
		return UINT64_MAX;
	return sum;
}

static uint64_t rate_of(const json_t *row, const json_t *before)
{
	uint64_t done = done_of(row), began_ns = known(row, "began_ns"), done_before = 0;
	uint64_t now_ns = known(row, "now_ns"), before_ns = began_ns;

	if (before && known(before, "began_ns") == began_ns) {
		done_before = done_of(before);
		before_ns = known(before, "now_ns");
	}
	if (done == UINT64_MAX || done <= done_before || now_ns <= before_ns)
		return 0;
	return size_per_second(done - done_before, now_ns - before_ns);
}

static uint64_t left_ns(const struct trace_row *f)
{
	double left;

	if (!f->rate || f->expected == UINT64_MAX || f->done >= f->expected)
		return UINT64_MAX;
	left = (double)(f->expected - f->done) / (double)f->rate * 1e9;
	return left < 1e18 ? (uint64_t)left + 999999999 : UINT64_MAX; /* rounded up */
}

/* UINT64_MAX if either is unknown. */
static uint64_t time_since(uint64_t then_ns, uint64_t now_ns)
{
	return now_ns == UINT64_MAX || then_ns > now_ns ? UINT64_MAX : now_ns - then_ns;
}

struct trace_row trace_row_of(const json_t *row, const json_t *before)
{
	const json_t *client = json_object_get(row, "client");
	const json_t *process = json_object_get(row, "process");
	const json_t *stall = json_object_get(row, "stall");
	uint64_t rtt_us = known(row, "rtt_us");
	uint64_t now_ns = known(row, "now_ns");
	uint32_t sockets = json_field_id(row, "sockets"), closed = json_field_id(row, "closed");
	struct trace_row f = {
		.sync = json_field_text(row, "sync"),
		.peer = json_field_text(row, "peer"),
		.role = json_field_text(row, "role"),
		.limited_by = json_field_text(row, "limited_by"),
		.stall = json_field_text(stall, "cause"),
		.process = json_field_text(process, "comm"),
		.cgroup = json_field_text(process, "cgroup"),
		.container = json_field_text(process, "container"),
		.transport = json_field_text(row, "transport"),
		.quality = json_field_text(json_object_get(row, "quality"), "delivered"),
		.source = json_field_text(row, "source"),
		.number = known(row, "row"),
		.version = json_field_number(row, "version", 0),
		.delivered = known(row, "delivered"),
		.received = known(row, "received"),
		.done = done_of(row),
		.expected = known(row, "expected"),
		.submitted = known(row, "submitted"),
		.consumed = known(row, "consumed"),
		.wire = known(row, "wire"),
		.retrans = known(row, "retrans_bytes"),
		.rate = rate_of(row, before),
		.connections = sockets,
		.elapsed_ns = time_since(known(row, "began_ns"), now_ns),
		.stalled_ns = time_since(known(stall, "since_ns"), now_ns),
		.rtt_ns = rtt_us < UINT64_MAX / 1000 ? rtt_us * 1000 : UINT64_MAX,
		.sockets = closed <= sockets ? sockets - closed : UINT32_MAX,
		.pid = json_field_id(process, "pid"),
		.uid = json_field_id(client, "uid"),
		.partial = json_field_bool(row, "partial"),
	};

	f.left_ns = left_ns(&f);
	(void)snprintf(f.marked, sizeof(f.marked), "!%s", f.stall ? f.stall : "");
	return f;
}
