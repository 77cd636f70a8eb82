/*
 * weightctl trace explain: print in words what took the time of a sync, on which link and why
 *
 * A recording has all stalls; weightd-trace itself keeps the longest.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/weightctl/control/control_client.h"
#include "libclient/weightctl/control/recording.h"
#include "libclient/weightctl/control/sync_prefix.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/output/sync_phase.h"
#include "libclient/weightctl/verb.h"
#include "libclient/weightctl/verbs/train_explain.h"

enum {
	OPTION_RECORDING = OPTION_OWN,
	OPTION_JOB,
};

#define PERCENT_MIN 1 /* share of the time; smaller ones are left out */
#define AS_LONG_PERCENT 90 /* part of a time that counts as equally long */

/* In the order of the words that weightd-trace has for them. `%s` is the other node. */
static const struct limit {
	const char *name;
	const char *key; /* member with the time */
	const char *by; /* noun in "limited by ..." */
	const char *why;
} limits[] = {
	{"busy", "busy_ns", "the path", "as many bytes were on their way as it takes"},
	{"receive_window", "receive_window_ns", "the receive window of %s",
	 "the program there did not read as fast"},
	{"send_buffer", "send_buffer_ns", "the send buffer here", "all of it was on its way"},
	{"producer", "producer_ns", "a lack of bytes to send",
	 "the program here did not write as fast"},
	{"pacing", "pacing_ns", "its own pacing",
	 "no more a second was to be sent (--max-rate, repair-rate or SO_MAX_PACING_RATE)"},
	{"loss", "loss_ns", "loss", "packets to %s were lost and sent again"},
	{"silent", "silent_ns", "silence", "%s did not answer"},
};

#define N_LIMITS (sizeof(limits) / sizeof(*limits))

struct stall {
	uint64_t since_ns, until_ns; /* the last look that found it */
	const struct limit *cause;
};

/* The counts of one client between this node and a peer. */
struct link {
	uint64_t client, number;
	json_t *row; /* its last state */
	bool is_over; /* it is the whole */
	struct stall *stalls;
	size_t n_stalls;
};

struct explanation {
	struct sync_prefix sync_names; /* names of all syncs that were seen */
	const char *name; /* name of the sync that is explained */
	struct link *links;
	size_t n_links;
	struct sync_phases phases; /* phases of syncs with the prefix */
	uint64_t lost; /* events */
};

static uint64_t number(const json_t *row, const char *key)
{
	return json_field_number(row, key, UINT64_MAX);
}

static bool is_payload(const struct link *l)
{
	const char *role = json_field_text(l->row, "role");

	return role && !strcmp(role, "payload");
}

/* The replies to received bytes are small. */
static bool is_sent(const struct link *l)
{
	return json_field_number(l->row, "delivered", 0) > json_field_number(l->row, "received", 0);
}

/* All received bytes arrived before the end of their span, which waits for other nodes, too. */
static uint64_t took_ns(const struct link *l)
{
	uint64_t began = json_field_number(l->row, "began_ns", 0),
		 end = json_field_number(l->row, "now_ns", 0);

	if (l->is_over && !is_sent(l))
		end = json_field_number(l->row, "moved_ns", end);
	return end > began ? end - began : 0;
}

/* Both ways, like the expected bytes; UINT64_MAX: unknown. */
static uint64_t done(const struct link *l)
{
	uint64_t delivered = number(l->row, "delivered"), received = number(l->row, "received");

	return delivered == UINT64_MAX || received == UINT64_MAX ? UINT64_MAX : delivered + received;
}

static bool is_sampled(const struct link *l, const char *key)
{
	const char *quality = json_field_text(json_object_get(l->row, "quality"), key);

	return quality && !strcmp(quality, "sampled");
}

static const char *peer_of(const struct link *l)
{
	const char *peer = json_field_text(l->row, "peer");

	return peer ? peer : "-";
}

/* --- Packets ------------------------------------------------------------------------------------ */

static struct link *link_of(struct explanation *e, const json_t *row)
{
	uint64_t client = number(json_object_get(row, "client"), "id"), n = number(row, "row");

	for (size_t i = 0; i < e->n_links; i++)
		if (e->links[i].client == client && e->links[i].number == n)
			return &e->links[i];
	e->links = cli_grown(e->links, e->n_links, sizeof(*e->links));
	e->links[e->n_links] = (struct link){.client = client, .number = n};
	return &e->links[e->n_links++];
}

static const struct limit *limit_named(const char *name)
{
	for (size_t i = 0; name && i < N_LIMITS; i++)
		if (!strcmp(limits[i].name, name))
			return &limits[i];
	return NULL;
}

/* It is the one that was seen before if nothing moved since. */
static void take_stall(struct link *l, const json_t *told, uint64_t now_ns)
{
	struct stall s = {
		.since_ns = json_field_number(told, "since_ns", UINT64_MAX),
		.until_ns = json_field_number(told, "until_ns", now_ns), /* older releases lack it */
		.cause = limit_named(json_field_text(told, "cause")),
	};
	size_t at = l->n_stalls;

	if (!s.cause || s.since_ns > s.until_ns)
		return;
	while (at > 0 && l->stalls[at - 1].since_ns > s.since_ns)
		at--;
	if (at > 0 && l->stalls[at - 1].since_ns == s.since_ns) {
		l->stalls[at - 1] = s;
		return;
	}
	l->stalls = cli_grown(l->stalls, l->n_stalls, sizeof(*l->stalls));
	memmove(&l->stalls[at + 1], &l->stalls[at], (l->n_stalls++ - at) * sizeof(s));
	l->stalls[at] = s;
}

static void take_stalls(struct link *l, const json_t *row)
{
	uint64_t now_ns = json_field_number(row, "now_ns", 0);
	const json_t *stall;
	size_t i;

	json_array_foreach(json_object_get(row, "stalls"), i, stall)
	{
		take_stall(l, stall, now_ns);
	}
	take_stall(l, json_object_get(row, "stall"), now_ns);
}

static bool is_row(const char *kind)
{
	return !strcmp(kind, "row") || !strcmp(kind, "progress") || !strcmp(kind, "total") ||
	       !strcmp(kind, "past");
}

/* A sync that moved no bytes has these alone. */
static bool is_phase(const json_t *packet)
{
	const char *act = json_field_text(packet, "act");

	return (json_field_is_kind(packet, "act") || json_field_is_kind(packet, "acted")) && act &&
	       !strcmp(act, "sync_phase");
}

static void trace_explain_take(void *context, json_t *packet)
{
	struct explanation *e = context;
	const char *kind = json_field_text(packet, "kind"), *sync = json_field_text(packet, "sync");
	uint64_t began_ns;
	struct link *l;
	bool fits;

	if (kind && !strcmp(kind, "gap"))
		e->lost += json_field_number(packet, "lost", 0);
	if (!kind || !sync || (!is_row(kind) && !is_phase(packet)))
		return;
	fits = sync_prefix_add(&e->sync_names, sync);
	if (fits && is_phase(packet))
		sync_phases_take(&e->phases, packet);
	if (!fits || !is_row(kind))
		return;
	l = link_of(e, packet);
	began_ns = json_field_number(packet, "began_ns", 0);
	if (l->row && began_ns < json_field_number(l->row, "began_ns", 0))
		return; /* its span before this one */
	if (l->row && began_ns > json_field_number(l->row, "began_ns", 0))
		l->n_stalls = 0;
	json_decref(l->row);
	l->row = json_deep_copy(packet);
	if (!l->row)
		cli_out_of_memory();
	l->is_over = !strcmp(kind, "total") || !strcmp(kind, "past");
	take_stalls(l, packet);
}

/* --- In words ----------------------------------------------------------------------------------- */

/* Prints `words`, in which `%s` is a peer. */
static void put_words(const char *words, const char *peer)
{
	const char *at = strstr(words, "%s");

	if (!at) {
		(void)fputs(words, stdout);
		return;
	}
	(void)fwrite(words, 1, (size_t)(at - words), stdout);
	escape_text(stdout, peer);
	(void)fputs(at + 2, stdout);
}

/* In percent of all the time that its connections had. */
static double share_of(const struct link *l, const struct limit *limit)
{
	const json_t *ns = json_object_get(l->row, "limits");
	double all = 0;

	for (size_t i = 0; i < N_LIMITS; i++)
		all += (double)json_field_number(ns, limits[i].key, 0);
	return all > 0 ? 100 * (double)json_field_number(ns, limit->key, 0) / all : 0;
}

/* The limit that took the most time. NULL: it sent nothing, or that is unknown. */
static const struct limit *worst_of(const struct link *l)
{
	return limit_named(json_field_text(l->row, "limited_by"));
}

static void put_bytes(const struct link *l)
{
	uint64_t expected = number(l->row, "expected");
	char text[SIZE_TEXT_MAX], rate[SIZE_TEXT_MAX];

	if (done(l) == UINT64_MAX) {
		(void)fputs("an unknown number of bytes", stdout);
		return;
	}
	(void)fputs(size_text(text, done(l)), stdout);
	if (expected != UINT64_MAX)
		(void)printf(" of %s", size_text(text, expected));
	(void)printf(" in %s", size_duration(text, took_ns(l)));
	(void)printf(", %s", size_rate(rate, done(l), took_ns(l)));
	if (is_sampled(l, "delivered") || is_sampled(l, "received"))
		(void)fputs(", as far as it was looked at", stdout);
}

static void put_stalls(const struct link *l)
{
	uint64_t began_ns = json_field_number(l->row, "began_ns", 0);
	char after[SIZE_TEXT_MAX], took[SIZE_TEXT_MAX];

	for (size_t i = 0; i < l->n_stalls; i++) {
		const struct stall *s = &l->stalls[i];
		uint64_t after_ns = s->since_ns > began_ns ? s->since_ns - began_ns : 0;

		(void)printf("  stood still for about %s, %s after it began: ",
			     size_duration(took, s->until_ns - s->since_ns),
			     size_duration(after, after_ns));
		put_words(s->cause->why, peer_of(l));
		(void)putchar('\n');
	}
}

static void put_limits(const struct link *l)
{
	for (size_t i = 0; i < N_LIMITS; i++) {
		double share = share_of(l, &limits[i]);

		if (share < PERCENT_MIN)
			continue;
		(void)printf("  %.0f %% of the time limited by ", share);
		put_words(limits[i].by, peer_of(l));
		(void)fputs(": ", stdout);
		put_words(limits[i].why, peer_of(l));
		(void)putchar('\n');
	}
}

static void put_link(const struct link *l)
{
	const json_t *client = json_object_get(l->row, "client");
	uint64_t sent_again = number(l->row, "retrans_bytes");
	char text[SIZE_TEXT_MAX];

	(void)fputs(done(l) == UINT64_MAX ? "between here and "
		    : is_sent(l)          ? "to "
					  : "from ",
		    stdout);
	escape_text(stdout, peer_of(l));
	if (json_field_text(client, "comm")) {
		(void)fputs(", ", stdout);
		escape_text(stdout, json_field_text(client, "comm"));
	}
	if (number(client, "pid") != UINT64_MAX)
		(void)printf(" %" PRIu64, number(client, "pid"));
	(void)fputs(": ", stdout);
	put_bytes(l);
	if (!l->is_over)
		(void)fputs("; not over yet", stdout);
	(void)putchar('\n');
	if (is_sent(l))
		put_limits(l);
	put_stalls(l);
	if (sent_again == UINT64_MAX)
		(void)puts("  an unknown number of bytes was sent again");
	else if (sent_again)
		(void)printf("  %s sent again\n", size_text(text, sent_again));
	if (json_field_bool(l->row, "partial"))
		(void)puts("  without what its connections carried before they were counted");
}

/* `share`: of the other's time, in percent. */
static bool took_as_long(const struct link *l, const struct link *other, double share)
{
	return (double)took_ns(l) >= (double)took_ns(other) * share / 100 * AS_LONG_PERCENT / 100;
}

/*
 * The incoming link of the node that sent this, if it took as long as that lacked bytes: forwarding is no faster than
 * receiving. NULL: there is none; or TCP reports that the other end limited it.
 */
static const struct link *waited_for(const struct explanation *e, const struct link *l)
{
	const char *by = worst_of(l)->name;
	const struct link *found = NULL;
	double share = !strcmp(by, "producer") ? share_of(l, worst_of(l)) : 100;

	if (strcmp(by, "busy") != 0 && strcmp(by, "producer") != 0)
		return NULL;
	for (size_t i = 0; i < e->n_links; i++) {
		const struct link *in = &e->links[i];

		if (in->client == l->client && is_payload(in) && !is_sent(in) &&
		    took_as_long(in, l, share) && (!found || took_ns(in) > took_ns(found)))
			found = in;
	}
	return found;
}

/* The sender has more details than the receiver. */
static bool is_slower(const struct link *l, const struct link *than)
{
	if (is_sent(l) != is_sent(than))
		return is_sent(l) ? took_as_long(l, than, 100) : !took_as_long(than, l, 100);
	return took_ns(l) > took_ns(than);
}

/* The one that took the most time, and waited for none. */
static const struct link *slowest(const struct explanation *e)
{
	const struct link *found = NULL;

	for (size_t i = 0; i < e->n_links; i++) {
		const struct link *l = &e->links[i], *in;

		if (!is_payload(l) || !is_sent(l) || !worst_of(l))
			continue;
		in = waited_for(e, l);
		l = in ? in : l;
		if (!found || is_slower(l, found))
			found = l;
	}
	return found;
}

/* The reason why no link is known to be slow. */
static const char *why_none(const struct explanation *e)
{
	bool has_payload = false;

	for (size_t i = 0; i < e->n_links; i++) {
		if (!is_payload(&e->links[i]))
			continue;
		has_payload = true;
		if (done(&e->links[i]) == UINT64_MAX || is_sent(&e->links[i]))
			return "The cause of the time is unknown.";
	}
	return has_payload ? "Nothing was sent from here: the sending node has the cause."
			   : "This node has no counts of its payload.";
}

static void put_verdict(const struct explanation *e)
{
	const struct link *l = slowest(e);
	char text[SIZE_TEXT_MAX];

	if (!l) {
		(void)puts(why_none(e));
		return;
	}
	if (!is_sent(l)) {
		(void)fputs("Most of the time went to bytes from ", stdout);
		escape_text(stdout, peer_of(l));
		(void)printf(", %s: that node has the cause.\n", size_duration(text, took_ns(l)));
		return;
	}
	(void)fputs("Most of the time went to ", stdout);
	escape_text(stdout, peer_of(l));
	(void)printf(", %s, %.0f %% of it limited by ", size_duration(text, took_ns(l)),
		     share_of(l, worst_of(l)));
	put_words(worst_of(l)->by, peer_of(l));
	(void)puts(".");
}

static bool is_over(const struct explanation *e)
{
	for (size_t i = 0; i < e->n_links; i++)
		if (!e->links[i].is_over)
			return false;
	return true;
}

static void put_all(const struct explanation *e)
{
	uint64_t version = e->n_links ? json_field_number(e->links[0].row, "version", 0) : 0;

	(void)fputs("Sync ", stdout);
	escape_text(stdout, e->name);
	if (!e->n_links)
		(void)puts(": this node has no counts of its bytes.");
	else if (version) /* bytes that are only watched have no version */
		(void)printf(" carried version %" PRIu64 ".\n", version);
	else
		(void)puts(" has no version.");
	sync_phases_put(&e->phases, e->name, is_over(e));
	for (size_t i = 0; i < e->n_links; i++)
		if (is_payload(&e->links[i]))
			put_link(&e->links[i]);
	if (e->n_links)
		put_verdict(e);
	if (e->lost)
		(void)printf("%" PRIu64 " events were lost: the client was too slow, or there "
			     "was no room for them.\n",
			     e->lost);
}

/* --- In JSON ------------------------------------------------------------------------------------ */

static void explanation_set(json_t *o, const char *key, json_t *value)
{
	if (json_object_set_new(o, key, value) < 0)
		cli_out_of_memory();
}

static json_t *stalls_json(const struct link *l)
{
	json_t *list = json_array();

	for (size_t i = 0; i < l->n_stalls; i++)
		if (json_array_append_new(
			    list, json_pack("{ss sI sI}", "cause", l->stalls[i].cause->name,
					    "since_ns", (json_int_t)l->stalls[i].since_ns,
					    "until_ns", (json_int_t)l->stalls[i].until_ns)) < 0)
			cli_out_of_memory();
	return list;
}

static int print_json(const struct explanation *e)
{
	const struct link *l = slowest(e);
	json_t *rows = json_array();
	cleanup(json_decrefp) json_t *o = json_pack(
		"{ss sO? so sI so so}", "sync", e->name, "version",
		e->n_links ? json_object_get(e->links[0].row, "version") : NULL, "slowest",
		l ? json_string(peer_of(l)) : json_null(), "lost", (json_int_t)e->lost, "phases",
		sync_phases_json(&e->phases, e->name), "rows", rows);

	if (!o)
		cli_out_of_memory();
	for (size_t i = 0; i < e->n_links; i++) {
		json_t *row = e->links[i].row;

		explanation_set(row, "stalls", stalls_json(&e->links[i]));
		explanation_set(row, "is_over", json_boolean(e->links[i].is_over));
		if (json_array_append(rows, row) < 0)
			cli_out_of_memory();
	}
	if (json_dumpf(o, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII) < 0)
		cli_out_of_memory();
	(void)putchar('\n');
	return 0;
}

/* ------------------------------------------------------------------------------------------------ */

static void link_deinit(struct link *l)
{
	json_decref(l->row);
	free(l->stalls);
}

static void drop_others(struct explanation *e)
{
	size_t n = 0;

	for (size_t i = 0; i < e->n_links; i++) {
		if (strcmp(json_field_text(e->links[i].row, "sync"), e->name) != 0)
			link_deinit(&e->links[i]);
		else
			e->links[n++] = e->links[i];
	}
	e->n_links = n;
}

static int trace_explain_find(struct explanation *e, const char *path)
{
	char names[SYNC_PREFIX_TEXT_MAX];

	if (sync_prefix_find(&e->sync_names, &e->name))
		return EXIT_FAILED;
	if (e->name) {
		drop_others(e);
		return 0;
	}
	sync_prefix_text(&e->sync_names, names);
	if (*names)
		return cli_error("%s has no sync '%s', but %s", path ? path : "weightd-trace",
				 e->sync_names.prefix, names);
	if (path)
		return cli_error("%s has no sync at all", path);
	return cli_error(
		"weightd-trace has no sync; one that ended before its start, or long ago, is in a "
		"recording of 'weightctl trace record', see --recording");
}

static int read_recording(const char *path, struct explanation *e)
{
	struct recording r;
	int result = recording_open(path, &r) || recording_read(&r, trace_explain_take, e)
			     ? EXIT_FAILED
			     : 0;

	recording_deinit(&r);
	return result;
}

static int trace_explain_receive(const struct cli *cli, const char *op, struct explanation *e)
{
	cleanup(json_decrefp) json_t *rows = NULL;
	json_t *row;
	size_t i;
	int r = control_client_rows(cli, json_pack("{s:s}", "op", op), &rows);

	json_array_foreach(rows, i, row)
	{
		trace_explain_take(e, row);
	}
	return r;
}

/* A sync that is over stays so, though its rows may still exist. */
static int hear_all(const struct cli *cli, struct explanation *e)
{
	return trace_explain_receive(cli, "rows", e) || trace_explain_receive(cli, "past", e) ||
			       trace_explain_receive(cli, "acts", e)
		       ? EXIT_FAILED
		       : 0;
}

static int trace_explain_sync(const struct cli *cli, struct explanation *e, const char *path)
{
	if (path ? read_recording(path, e) : hear_all(cli, e))
		return EXIT_FAILED;
	if (trace_explain_find(e, path))
		return EXIT_FAILED;
	if (cli->format.json)
		return print_json(e);
	put_all(e);
	return 0;
}

static void explanation_deinit(struct explanation *e)
{
	for (size_t i = 0; i < e->n_links; i++)
		link_deinit(&e->links[i]);
	free(e->links);
	sync_phases_deinit(&e->phases);
	sync_prefix_deinit(&e->sync_names);
}

static int trace_explain_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"recording", required_argument, NULL, OPTION_RECORDING},
		{"job", no_argument, NULL, OPTION_JOB},
		{"socket", required_argument, NULL, OPTION_SOCKET},
		OPTIONS_JSON,
		OPTIONS_TRACER,
		{},
	};
	cleanup(explanation_deinit) struct explanation e = {};
	const char *path = NULL;
	bool is_job = false;
	int option;

	while ((option = cli_option(cli, argc, argv, LETTERS_JSON, longs)) >= 0) {
		if (option == OPTION_JOB)
			is_job = true;
		else
			path = optarg;
	}
	if (argc - optind != 1)
		cli_usage(cli, "'%s' takes the name of a sync, or with --job that of a job",
			  cli->verb->name);
	if (is_job && path)
		cli_usage(cli, "recordings have no jobs: use --job without --recording");
	if (is_job)
		return train_explain_job(cli, argv[optind]);
	sync_prefix_init(&e.sync_names, argv[optind]);
	return trace_explain_sync(cli, &e, path);
}

const struct verb verb_trace_explain = {
	.name = "trace explain",
	.args = "SYNC",
	.summary = "Explain what took the time of a sync, or of a training job",
	.options = "     --recording FILE   of 'trace record'; else from weightd-trace\n"
		   "     --job              SYNC is the name of a training job\n"
		   "     --socket PATH      socket of the server, for --job\n" HELP_JSON,
	.peer = PEER_TRACER,
	.run = trace_explain_run,
};
