/*
 * weightctl metrics: the memory, limits and latencies of weightd, as OpenMetrics text.
 *
 * The whole is that of all users; buffers are those that the caller may read.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/http/http_server.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"
#include "libclient/weightctl/verbs/openmetrics.h"

enum {
	OPTION_LISTEN = OPTION_OWN,
};

/* All that is asked for, before anything is printed. */
struct daemon_state {
	struct weightd_server server;
	struct weightd_stat stat;
	struct weightd_health health;
	struct weightd_list *slots;
};

static void daemon_state_deinit(struct daemon_state *s)
{
	weightd_list_free(s->slots);
}

static int daemon_state_ask(struct cli *cli, struct daemon_state *s)
{
	int r;

	*s = (struct daemon_state){
		.server.size = sizeof(s->server),
		.stat.size = sizeof(s->stat),
		.health.size = sizeof(s->health),
	};
	r = weightd_ping(cli->w, &s->server);
	if (r >= 0)
		r = weightd_stat(cli->w, &s->stat);
	if (r >= 0)
		r = weightd_health(cli->w, &s->health);
	if (r >= 0)
		r = weightd_list_slots(cli->w, NULL, &s->slots);
	return r < 0 ? cli_fail(cli, r) : 0;
}

/* --- Samples ------------------------------------------------------------------------------------ */

/* Takes `labels`. */
static void add_sample(json_t *samples, json_t *labels, const char *suffix, const char *key,
		       uint64_t value)
{
	json_t *sample = json_pack("{so ss* sI}", "labels", labels, "suffix", suffix, key,
				   (json_int_t)value);

	if (!sample || json_array_append_new(samples, sample) < 0)
		cli_out_of_memory();
}

static void add_value(json_t *samples, uint64_t value)
{
	add_sample(samples, json_object(), NULL, "value", value);
}

static void add_labelled(json_t *samples, const char *label, const char *is, uint64_t value)
{
	add_sample(samples, json_pack("{ss}", label, is), NULL, "value", value);
}

/* Buckets of OpenMetrics count all that is not longer. `worker` NULL: no label. */
static void add_latency(json_t *samples, const char *worker, const struct weightd_latency *l)
{
	uint64_t count = 0;
	char le[32];

	for (unsigned i = 0; i < WEIGHTD_LATENCY_BUCKETS; i++) {
		count += l->counts[i];
		if (i == WEIGHTD_LATENCY_BUCKETS - 1)
			(void)strcpy(le, "+Inf");
		else
			(void)snprintf(le, sizeof(le), "%g", 1e-6 * (double)(UINT64_C(1) << 2 * i));
		add_sample(samples, json_pack("{ss* ss}", "worker", worker, "le", le), "_bucket",
			   "value", count);
	}
	add_sample(samples, json_pack("{ss*}", "worker", worker), "_sum", "value_ns", l->sum_ns);
	add_sample(samples, json_pack("{ss*}", "worker", worker), "_count", "value", count);
}

static void add_memory(const struct daemon_state *s, json_t *samples)
{
	uint64_t other = s->stat.kept_bytes + s->stat.leaving_bytes + s->stat.orphan_bytes;

	add_labelled(samples, "state", "used",
		     s->stat.slot_bytes > other ? s->stat.slot_bytes - other : 0);
	add_labelled(samples, "state", "kept", s->stat.kept_bytes);
	add_labelled(samples, "state", "leaving", s->stat.leaving_bytes);
	add_labelled(samples, "state", "orphan", s->stat.orphan_bytes);
	add_labelled(samples, "state", "layout", s->stat.layout_bytes);
}

static const char *state_name(enum weightd_slot_state state)
{
	static const char *const names[] = {
		[WEIGHTD_SLOT_WRITING] = "writing", [WEIGHTD_SLOT_CURRENT] = "current",
		[WEIGHTD_SLOT_KEPT] = "kept",       [WEIGHTD_SLOT_LEAVING] = "leaving",
		[WEIGHTD_SLOT_ORPHAN] = "orphan",
	};

	return (size_t)state < sizeof(names) / sizeof(*names) && names[state] ? names[state]
									      : "unknown";
}

static bool is_same(const struct weightd_slot_info *a, const struct weightd_slot_info *b)
{
	return a->state == b->state && !strcmp(a->name, b->name) && !strcmp(a->device, b->device);
}

/* A sample for each buffer, device and state: versions would be new series for ever. */
static void add_buffers(const struct daemon_state *s, json_t *samples, bool readers)
{
	const struct weightd_slot_info *info, *other;

	for (size_t i = 0; (info = weightd_list_slot(s->slots, i)); i++) {
		bool is_first = true;
		uint64_t sum = 0;

		for (size_t k = 0; (other = weightd_list_slot(s->slots, k)); k++) {
			if (!is_same(info, other))
				continue;
			if (k < i)
				is_first = false;
			sum += readers ? other->n_readers : other->n_bytes;
		}
		if (is_first)
			add_sample(samples,
				   json_pack("{ss ss ss}", "buffer", info->name, "device",
					     info->device, "state", state_name(info->state)),
				   NULL, "value", sum);
	}
}

static void add_buffer_bytes(const struct daemon_state *s, json_t *samples)
{
	add_buffers(s, samples, false);
}

static void add_buffer_readers(const struct daemon_state *s, json_t *samples)
{
	add_buffers(s, samples, true);
}

static void add_headroom(const struct daemon_state *s, json_t *samples)
{
	add_labelled(samples, "limit", *s->health.limit ? s->health.limit : "machine",
		     s->health.headroom);
}

static void add_keeper(const struct daemon_state *s, json_t *samples)
{
	add_value(samples, s->health.keeper == WEIGHTD_KEEPER_MANAGER ||
				   s->health.keeper == WEIGHTD_KEEPER_PARENT);
}

static void add_refusals(const struct daemon_state *s, json_t *samples)
{
	static const char *const reasons[WEIGHTD_REFUSALS] = {
		[WEIGHTD_REFUSAL_PERMISSION] = "permission",
		[WEIGHTD_REFUSAL_LIMIT] = "limit",
		[WEIGHTD_REFUSAL_MEMORY] = "memory",
		[WEIGHTD_REFUSAL_DESCRIPTORS] = "descriptors",
		[WEIGHTD_REFUSAL_KEEPER] = "keeper",
	};

	for (unsigned i = 0; i < WEIGHTD_REFUSALS; i++)
		add_labelled(samples, "reason", reasons[i], s->health.refused[i]);
}

static void add_loop(const struct daemon_state *s, json_t *samples)
{
	add_latency(samples, NULL, &s->health.loop);
}

static void add_workers(const struct daemon_state *s, json_t *samples)
{
	static const char *const workers[WEIGHTD_WORKERS] = {
		[WEIGHTD_WORKER_CHECK] = "check",
		[WEIGHTD_WORKER_FREE] = "free",
		[WEIGHTD_WORKER_SEAL] = "seal",
		[WEIGHTD_WORKER_WAKE] = "wake",
	};

	for (unsigned i = 0; i < WEIGHTD_WORKERS; i++)
		add_latency(samples, workers[i], &s->health.workers[i]);
}

static void add_info(const struct daemon_state *s, json_t *samples)
{
	add_labelled(samples, "release", s->server.release, 1);
}

static void add_started(const struct daemon_state *s, json_t *samples)
{
	add_sample(samples, json_object(), NULL, "value_ns", s->health.started_ns);
}

#define MEMBER(member) offsetof(struct daemon_state, member)

static const struct family {
	const char *name, *type, *unit, *help;
	void (*add)(const struct daemon_state *s, json_t *samples); /* NULL: the u64 at `offset` */
	size_t offset;
} families[] = {
	{"weightd_build_info", "gauge", NULL, "Release of weightd", add_info, 0},
	{"weightd_start_time_seconds", "gauge", "seconds", "When weightd began, since 1970",
	 add_started, 0},
	{"weightd_keeper_up", "gauge", NULL,
	 "1: a service manager or keeper keeps the buffers while weightd restarts", add_keeper, 0},
	{"weightd_memory_bytes", "gauge", "bytes",
	 "Memory of all versions by state, and of tensor tables (layout)", add_memory, 0},
	{"weightd_buffer_bytes", "gauge", "bytes",
	 "Memory of a buffer by the state of its versions", add_buffer_bytes, 0},
	{"weightd_buffer_readers", "gauge", NULL, "Attachments of a buffer", add_buffer_readers, 0},
	{"weightd_headroom_bytes", "gauge", "bytes",
	 "Bytes for new versions, and the file of the cgroup that limits them", add_headroom, 0},
	{"weightd_machine_memory_bytes", "gauge", "bytes",
	 "Memory of the machine, or as much as the cgroups of weightd allow", NULL,
	 MEMBER(health.memory)},
	{"weightd_reserve_bytes", "gauge", "bytes", "Bytes that weightd leaves to other programs",
	 NULL, MEMBER(health.reserve)},
	{"weightd_buffers", "gauge", NULL, "Buffers", NULL, MEMBER(server.n_buffers)},
	{"weightd_sessions", "gauge", NULL, "Connections", NULL, MEMBER(server.n_sessions)},
	{"weightd_leases", "gauge", NULL, "Attachments of all users", NULL, MEMBER(server.n_leases)},
	{"weightd_store_descriptors", "gauge", NULL, "Descriptors that the keeper has", NULL,
	 MEMBER(stat.store_used)},
	{"weightd_store_max_descriptors", "gauge", NULL, "Descriptors that the keeper may have",
	 NULL, MEMBER(stat.store_max)},
	{"weightd_quarantined_descriptors", "gauge", NULL,
	 "Descriptors that the keeper returned and that match no buffer", NULL,
	 MEMBER(stat.n_quarantined)},
	{"weightd_refusals", "counter", NULL, "Requests and connections that were refused",
	 add_refusals, 0},
	{"weightd_loop_round_seconds", "histogram", "seconds",
	 "Rounds of the loop, which answers all requests", add_loop, 0},
	{"weightd_worker_step_seconds", "histogram", "seconds", "Steps of jobs on other threads",
	 add_workers, 0},
};

static json_t *make_rows(const struct daemon_state *s)
{
	json_t *rows = json_array();

	for (size_t i = 0; i < sizeof(families) / sizeof(*families); i++) {
		const struct family *f = &families[i];
		json_t *samples = json_array(), *row;

		if (f->add)
			f->add(s, samples);
		else
			add_value(samples,
				  *(const uint64_t *)(const void *)((const char *)s + f->offset));
		row = json_pack("{ss ss ss* ss so}", "metric", f->name, "type", f->type, "unit",
				f->unit, "help", f->help, "samples", samples);
		if (!row || json_array_append_new(rows, row) < 0)
			cli_out_of_memory();
	}
	return rows;
}

/* Connects for each set of rows, which the server may have been started again since. The caller frees the rows. */
static int metrics_ask(struct cli *cli, json_t **ret)
{
	cleanup(daemon_state_deinit) struct daemon_state state = {};

	if (server_connect(cli))
		return EXIT_FAILED;
	weightd_set_restart_timeout(cli->w, 0);
	if (daemon_state_ask(cli, &state))
		return EXIT_FAILED;
	*ret = make_rows(&state);
	return 0;
}

static int metrics_make_page(void *userdata, char **ret_text)
{
	cleanup(json_decrefp) json_t *rows = NULL;
	struct cli *cli = userdata;
	int r;

	cli_error_capture(ret_text);
	r = metrics_ask(cli, &rows);
	cli_error_capture(NULL);
	weightd_close(cli->w);
	cli->w = NULL;
	if (r == 0)
		*ret_text = openmetrics_text(rows);
	return r;
}

static int metrics_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"output", required_argument, NULL, 'O'},
		{"listen", required_argument, NULL, OPTION_LISTEN},
		OPTIONS_COMMON,
		{},
	};
	const struct http_page page = {
		.path = "/metrics",
		.type = "application/openmetrics-text; version=1.0.0; charset=utf-8",
		.make = metrics_make_page,
		.userdata = cli,
	};
	cleanup(json_decrefp) json_t *rows = NULL;
	const char *path = NULL, *address = NULL;
	int option;

	while ((option = cli_option(cli, argc, argv, LETTERS_COMMON, longs)) >= 0)
		*(option == OPTION_LISTEN ? &address : &path) = optarg;
	if (argc - optind > 0)
		cli_usage(cli, "'metrics' takes no arguments");
	if (address && path)
		cli_usage(cli, "--listen and --output exclude each other");
	if (address)
		return http_server_run(address, &page);
	return metrics_ask(cli, &rows) ? EXIT_FAILED : openmetrics_write(rows, path);
}

const struct verb verb_metrics = {
	.name = "metrics",
	.args = "",
	.summary = "Print the memory and latencies of the server, as OpenMetrics",
	.options = "     --output FILE      replace this file, whole, instead of printing\n"
		   "     --listen ADDR:PORT serve them by HTTP, at /metrics, until a signal\n",
	.run = metrics_run,
};
