/*
 * weightctl trace rdma: the ports of RDMA devices, their queue pairs, and the counters of those.
 */
#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/control/control_client.h"
#include "libclient/weightctl/control/sync.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/verb.h"

enum {
	OPTION_QPS = OPTION_OWN,
	OPTION_COUNTERS,
};

/* --- Ports -------------------------------------------------------------------------------------- */

#define COUNTS_MAX 20

/* UINT64_MAX, UINT32_MAX or NULL: unknown, as in the other structs. */
struct port {
	const char *device, *link_layer, *state, *link, *netdev, *gid;
	uint32_t number;
	uint64_t speed; /* bytes a second; 0: unknown */
	uint64_t sent, received;
	uint64_t errors; /* all of them together */
	uint64_t counts[COUNTS_MAX];
};

#define PORT(member) offsetof(struct port, member)
/* clang-format off */
#define COUNT(i, name_, help_) {.name = (name_), .kind = COLUMN_COUNT, .offset = PORT(counts) + (i) * sizeof(uint64_t), .help = (help_)}
/* clang-format on */

static const struct column ports[] = {
	{"DEVICE", COLUMN_TEXT, PORT(device), .help = "its name", .shown = true, .cut = true,
	 .width = 8},
	{"PORT", COLUMN_INDEX, PORT(number), .help = "its number", .shown = true},
	{"LAYER", COLUMN_TEXT, PORT(link_layer), .help = "InfiniBand, or Ethernet: RoCE",
	 .shown = true},
	{"STATE", COLUMN_TEXT, PORT(state), .help = "active, down, init or armed", .shown = true},
	{"SPEED", COLUMN_RATE, PORT(speed), .help = "bytes a second that it can carry",
	 .shown = true},
	{"SENT", COLUMN_COUNTED, PORT(sent), .help = "bytes, by its own count", .shown = true},
	{"RECEIVED", COLUMN_COUNTED, PORT(received), .help = "likewise", .shown = true},
	{"ERRORS", COLUMN_COUNT, PORT(errors), .help = "errors of all kinds together", .shown = true},
	{"LINK", COLUMN_TEXT, PORT(link), .help = "its speed and width in words"},
	{"NETDEV", COLUMN_TEXT, PORT(netdev), .help = "interface that it belongs to"},
	{"GID", COLUMN_TEXT, PORT(gid), .help = "the first of its addresses"},
	COUNT(0, "XMIT_PACKETS", "packets sent"),
	COUNT(1, "RECV_PACKETS", "packets received"),
	COUNT(2, "XMIT_WAIT", "ticks that it had to wait to send"),
	COUNT(3, "NP_CNP_SENT", "notifications of congestion sent"),
	COUNT(4, "NP_ECN_MARKED_ROCE_PACKETS", "packets received with a congestion mark"),
	COUNT(5, "RP_CNP_HANDLED", "notifications that slowed it down"),
	COUNT(6, "SYMBOL_ERROR", "errors in symbols of the link"),
	COUNT(7, "LINK_ERROR_RECOVERY", "times that the link recovered"),
	COUNT(8, "LINK_DOWNED", "times that it did not"),
	COUNT(9, "PORT_RCV_ERRORS", "corrupt packets received"),
	COUNT(10, "PORT_XMIT_DISCARDS", "packets that it threw away"),
	COUNT(11, "LOCAL_LINK_INTEGRITY_ERRORS", "errors of the link, too many at once"),
	COUNT(12, "EXCESSIVE_BUFFER_OVERRUN_ERRORS", "overruns of its buffers"),
	COUNT(13, "OUT_OF_SEQUENCE", "packets received out of order"),
	COUNT(14, "PACKET_SEQ_ERR", "packets asked for again"),
	COUNT(15, "IMPLIED_NAK_SEQ_ERR", "answers that show a loss"),
	COUNT(16, "DUPLICATE_REQUEST", "duplicate requests received"),
	COUNT(17, "LOCAL_ACK_TIMEOUT_ERR", "timers that ran out"),
	COUNT(18, "RNR_NAK_RETRY_ERR", "times that a receiver was not ready"),
	COUNT(19, "OUT_OF_BUFFER", "times that there was no buffer for a packet"),
	{},
};

static uint64_t known(const json_t *row, const char *key)
{
	return json_field_number(row, key, UINT64_MAX);
}

static uint64_t sum_of(const json_t *errors)
{
	uint64_t sum = UINT64_MAX;
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)errors, key, value)
	{
		if (json_is_integer(value) && json_integer_value(value) >= 0)
			sum = (sum == UINT64_MAX ? 0 : sum) + (uint64_t)json_integer_value(value);
	}
	return sum;
}

/* Each counter has the name of its column. */
static void take_counts(const json_t *row, uint64_t *counts)
{
	char key[64];

	for (const struct column *c = ports; c->name; c++) {
		size_t n = strlen(c->name);

		if (c->kind != COLUMN_COUNT || c->offset < PORT(counts))
			continue;
		for (size_t i = 0; i <= n; i++)
			key[i] = (char)tolower((unsigned char)c->name[i]);
		*(uint64_t *)(void *)((char *)counts + (c->offset - PORT(counts))) =
			json_field_number(row, key, known(json_object_get(row, "errors"), key));
	}
}

static void add_port(struct table *table, const json_t *row)
{
	struct port p = {
		.device = json_field_text(row, "device"),
		.link_layer = json_field_text(row, "link_layer"),
		.state = json_field_text(row, "state"),
		.link = json_field_text(row, "rate"),
		.netdev = json_field_text(row, "netdev"),
		.gid = json_string_value(json_array_get(json_object_get(row, "gids"), 0)),
		.number = json_field_id(row, "port"),
		.speed = json_field_number(row, "rate_bits", 0) / 8,
		.sent = known(row, "xmit_bytes"),
		.received = known(row, "recv_bytes"),
		.errors = sum_of(json_object_get(row, "errors")),
	};

	take_counts(row, p.counts);
	table_row(table, &p);
}

/* --- Queue pairs, and their counters ------------------------------------------------------------ */

struct qp {
	const char *device, *type, *state, *process;
	uint32_t port, lqpn, rqpn, pid, counter;
};

#define QP(member) offsetof(struct qp, member)

static const struct column qps[] = {
	{"DEVICE", COLUMN_TEXT, QP(device), .shown = true, .cut = true, .width = 8},
	{"PORT", COLUMN_INDEX, QP(port), .shown = true},
	{"QP", COLUMN_INDEX, QP(lqpn), .shown = true},
	{"PEER", COLUMN_INDEX, QP(rqpn), .shown = true},
	{"TYPE", COLUMN_TEXT, QP(type), .shown = true},
	{"STATE", COLUMN_TEXT, QP(state), .shown = true},
	{"PID", COLUMN_INDEX, QP(pid), .shown = true},
	{"PROCESS", COLUMN_TEXT, QP(process), .shown = true, .cut = true, .width = 8},
	{"COUNTER", COLUMN_INDEX, QP(counter), .shown = true},
	{},
};

static void add_qp(struct table *table, const json_t *row)
{
	const struct qp qp = {
		.device = json_field_text(row, "device"),
		.type = json_field_text(row, "type"),
		.state = json_field_text(row, "state"),
		.process = json_field_text(row, "comm"),
		.port = json_field_id(row, "port"),
		.lqpn = json_field_id(row, "lqpn"),
		.rqpn = json_field_id(row, "rqpn"),
		.pid = json_field_id(row, "pid"),
		.counter = json_field_id(row, "counter"),
	};

	table_row(table, &qp);
}

/* One value of a counter. */
struct value {
	const char *device, *mode, *process, *name;
	uint32_t port, counter, pid, n_qps;
	uint64_t value;
};

#define VALUE(member) offsetof(struct value, member)

static const struct column values[] = {
	{"DEVICE", COLUMN_TEXT, VALUE(device), .shown = true, .cut = true, .width = 8},
	{"PORT", COLUMN_INDEX, VALUE(port), .shown = true},
	{"COUNTER", COLUMN_INDEX, VALUE(counter), .shown = true},
	{"MODE", COLUMN_TEXT, VALUE(mode), .shown = true},
	{"PID", COLUMN_INDEX, VALUE(pid), .shown = true},
	{"PROCESS", COLUMN_TEXT, VALUE(process), .shown = true, .cut = true, .width = 8},
	{"QPS", COLUMN_INDEX, VALUE(n_qps), .shown = true},
	{"NAME", COLUMN_TEXT, VALUE(name), .shown = true, .cut = true, .width = 8},
	{"VALUE", COLUMN_COUNT, VALUE(value), .shown = true},
	{},
};

static void add_counter(struct table *table, const json_t *row)
{
	struct value v = {
		.device = json_field_text(row, "device"),
		.mode = json_field_text(row, "mode"),
		.process = json_field_text(row, "comm"),
		.port = json_field_id(row, "port"),
		.counter = json_field_id(row, "counter"),
		.pid = json_field_id(row, "pid"),
		.n_qps = (uint32_t)json_array_size(json_object_get(row, "qps")),
	};
	json_t *all = json_object_get(row, "values"), *value;
	const char *name;

	json_object_foreach(all, name, value)
	{
		v.name = name;
		v.value = known(all, name);
		table_row(table, &v);
	}
}

/* --- The verb ----------------------------------------------------------------------------------- */

static const struct kind {
	const char *kind; /* kind of its rows */
	const char *what; /* kind of the row with the reason why there are none */
	const char *list; /* in JSON */
	const char *none; /* printed in that case */
	const struct column *columns;
	void (*add)(struct table *table, const json_t *row);
} PORTS = {"port", "ports", "ports", "No ports", ports, add_port},
  QPS = {"qp", "qps", "qps", "No queue pairs", qps, add_qp},
  COUNTERS = {"counter", "qps", "counters", "No counters", values, add_counter};

/* NULL if there are some, or no reason is known. */
static const char *why_not(const json_t *rows, const struct kind *kind)
{
	const json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		const char *what = json_field_text(row, "what");

		if (json_field_is_kind(row, "rdma") && what && !strcmp(what, kind->what))
			return json_field_text(row, "why");
	}
	return NULL;
}

static int trace_rdma_print(const struct cli *cli, struct table *table, const struct kind *kind,
			    const json_t *rows)
{
	const char *why = why_not(rows, kind);
	struct json json = {.file = stdout};
	const json_t *row;
	size_t i, n = 0;
	int r;

	json_array_foreach(rows, i, row) n += json_field_is_kind(row, kind->kind);
	if (!n && !cli->format.json) {
		sync_say(stdout, kind->none, why ? why : "there are none now");
		return 0;
	}
	if (cli->format.json) {
		json_open(&json, NULL, '{');
		json_put_string(&json, "why", why);
	}
	table_begin(table, &json, kind->list);
	json_array_foreach(rows, i, row)
	{
		if (json_field_is_kind(row, kind->kind))
			kind->add(table, row);
	}
	r = table_end(table);
	if (cli->format.json)
		json_close(&json, '}');
	return r;
}

static int trace_rdma_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"qps", no_argument, NULL, OPTION_QPS},
		{"counters", no_argument, NULL, OPTION_COUNTERS},
		OPTIONS_TABLE,
		OPTIONS_TRACER,
		{},
	};
	cleanup(json_decrefp) json_t *rows = NULL;
	cleanup(table_deinit) struct table table = {};
	const struct kind *kind = &PORTS;
	int option;

	while ((option = cli_option(cli, argc, argv, LETTERS_TABLE, longs)) >= 0) {
		if (kind != &PORTS && (kind == &QPS) != (option == OPTION_QPS))
			cli_usage(cli, "--qps and --counters are two tables: one at a time");
		kind = option == OPTION_QPS ? &QPS : &COUNTERS;
	}
	if (argc - optind > 0)
		cli_usage(cli, "'%s' takes no arguments", cli->verb->name);
	table_init(&table, &cli->format, kind->columns);
	if (control_client_rows(cli, json_pack("{s:s, s:b}", "op", "rdma", "qps", kind != &PORTS),
				&rows))
		return EXIT_FAILED;
	return trace_rdma_print(cli, &table, kind, rows);
}

const struct verb verb_trace_rdma = {
	.name = "trace rdma",
	.args = "",
	.summary = "Show ports of RDMA devices, queue pairs and their counters",
	.options = "     --qps              show queue pairs and their processes\n"
		   "     --counters         show counters of queue pairs; the columns of\n"
		   "                        both are in weightctl(1)\n" HELP_TABLE,
	.columns = ports,
	.peer = PEER_TRACER,
	.run = trace_rdma_run,
};
