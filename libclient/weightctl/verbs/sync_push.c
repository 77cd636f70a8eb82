/*
 * weightctl sync push: send a version of this node to every node of a group.
 *
 * The agent does it, with or without a waiting weightctl: one that stops waiting prints how to find the sync again,
 * and how to cancel it.
 */
#include "libclient/weightctl/verbs/sync_push.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/weightctl/control/keepalive.h"
#include "libclient/weightctl/control/sync.h"
#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/progress.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/signals.h"
#include "libclient/weightctl/verb.h"
#include "libclient/weightctl/verbs/push_plan.h"

#define NODES_MAX 4096

enum {
	OPTION_GROUP = OPTION_OWN,
	OPTION_POLICY,
	OPTION_MAX_RATE,
	OPTION_NO_WAIT,
	OPTION_WAIT_ALL,
	OPTION_QUEUE,
	OPTION_DRY_RUN,
};

struct push {
	const struct cli *cli;
	const struct pushing *kind;
	struct control_client control;
	struct target target;
	struct push_options options;
	json_t *queued; /* event with the sync that it waits for; NULL: it does not wait */
	json_t *more; /* that it is asked for; NULL: nothing */
	char sync[SYNC_ID_MAX];
	json_t *nodes; /* the last packet of each, by name */
	json_t *outcome; /* NULL: not yet */
	struct push_plan plan;
	json_t *reached; /* how it ended at each node */
	uint64_t started_ns;
	bool has_sent;
	struct progress progress;
};

static void push_deinit(struct push *p)
{
	control_client_deinit(&p->control);
	json_decref(p->more);
	json_decref(p->nodes);
	json_decref(p->outcome);
	push_plan_deinit(&p->plan);
	json_decref(p->reached);
	json_decref(p->queued);
}

/* Steps of the nodes, in this order; nodes at the same step have the same text. */
static const struct step {
	const char *phase;
	const char *text; /* as progress_update() takes it */
} steps[] = {
	{"attach", "digesting"},     {"prepare", "preparing"}, {"ready", "preparing"},
	{"open", "connecting"},      {"bytes", PROGRESS_SEND}, {"moved", PROGRESS_SEND},
	{"verify", "checking"},      {"verified", "checking"}, {"commit", "committing"},
	{"committed", "committing"},
};

#define N_STEPS (sizeof(steps) / sizeof(*steps))

static size_t step_of(const char *phase)
{
	size_t i = 0;

	while (phase && i < N_STEPS && strcmp(steps[i].phase, phase) != 0)
		i++;
	return phase ? i : N_STEPS;
}

static const char *policy(const struct cli *cli, const char *arg)
{
	if (strcmp(arg, "all") != 0 && strcmp(arg, "quorum") != 0 && strcmp(arg, "each") != 0)
		cli_usage(cli, "--policy wants all, quorum or each, not '%s'", arg);
	return arg;
}

static bool is_lost(const char *phase)
{
	return phase && (!strcmp(phase, "failed") || !strcmp(phase, "absent"));
}

/*
 * As far as the last of the nodes that are still in it, and how many bytes a node has, in the mean: what moves
 * along a chain of them has the rate of one link.
 */
static void sync_push_show(struct push *p)
{
	double n = 0, done = 0, expected = 0;
	size_t step = N_STEPS;
	bool is_sending;
	const char *name;
	json_t *node;

	json_object_foreach(p->nodes, name, node)
	{
		size_t s = step_of(json_field_text(node, "phase"));

		if (s == N_STEPS)
			continue;
		step = s < step ? s : step;
		n++;
		done += (double)json_field_number(node, "done", 0);
		expected += (double)json_field_number(node, "expected", 0);
	}
	if (step == N_STEPS)
		return;
	is_sending = strcmp(steps[step].text, PROGRESS_SEND) == 0;
	if (p->has_sent && step < step_of("bytes"))
		return; /* another epoch sends the rest: this is not the end of the sending */
	p->has_sent |= is_sending;
	if (!is_sending)
		progress_update(&p->progress, steps[step].text, 0, 0);
	else
		progress_update(&p->progress, PROGRESS_SEND, (uint64_t)(done / n),
				(uint64_t)(expected / n));
}

static void on_phase(struct push *p, json_t *event)
{
	const char *node = json_field_text(event, "node"), *phase = json_field_text(event, "phase");
	const char *why = json_field_text(event, "why");
	json_t *before;

	if (!node || (json_object_size(p->nodes) >= NODES_MAX && !json_object_get(p->nodes, node)))
		return;
	before = json_object_get(p->nodes, node);
	if (is_lost(phase) && !is_lost(json_field_text(before, "phase")) && !p->options.quiet) {
		progress_finish(&p->progress);
		if (why && sync_begins_with(why, node))
			(void)cli_error("%s", why);
		else
			(void)cli_error("%s: %s", node, why ? why : phase);
	}
	if (json_object_set(p->nodes, node, event) < 0)
		cli_out_of_memory();
	sync_push_show(p);
}

/* With many nodes, some are reported before the end. */
static void take_reached(struct push *p, const json_t *packet)
{
	json_t *nodes = json_object_get(packet, "nodes");

	if (json_is_array(nodes) &&
	    json_array_size(p->reached) + json_array_size(nodes) <= NODES_MAX &&
	    json_array_extend(p->reached, nodes) < 0)
		cli_out_of_memory();
}

/* The caller owns the packet. 0: more packets follow; CONTROL_END; or EXIT_FAILED. */
static int sync_push_on_packet(struct push *p, json_t *packet)
{
	const char *sync = json_field_text(packet, "sync"),
		   *event = json_field_text(packet, "event");

	if (sync && !*p->sync) {
		(void)snprintf(p->sync, sizeof(p->sync), "%s", sync);
		p->started_ns = clock_now_ns();
	}
	if (json_field_text(packet, "state") &&
	    (control_client_is_end(packet) || (event && !strcmp(event, "end")))) {
		json_decref(p->outcome);
		p->outcome = json_incref(packet);
		take_reached(p, packet);
	} else if (control_client_error(packet)) {
		progress_finish(&p->progress);
		return cli_error("%s", control_client_error(packet));
	} else if (event && !strcmp(event, "queued")) {
		json_decref(p->queued);
		p->queued = json_incref(packet);
	} else if (event && !strcmp(event, "phase")) {
		on_phase(p, packet);
	} else if (event && !strcmp(event, "plan")) {
		push_plan_take(&p->plan, packet);
	} else if (event && !strcmp(event, "nodes")) {
		take_reached(p, packet);
	}
	return control_client_is_end(packet) ? CONTROL_END : 0;
}

/* Stops waiting; the sync continues. */
static int push_leave(struct push *p, int signal)
{
	progress_finish(&p->progress);
	if (!*p->sync) {
		(void)cli_error("the %s was withdrawn before it began", p->kind->what);
		return EXIT_SIGNAL + signal;
	}
	(void)cli_error("the %s continues; 'weightctl sync status %s' shows its progress, "
			"'weightctl sync cancel %s' cancels it",
			p->options.is_dry ? "dry run" : p->kind->what, p->sync, p->sync);
	return EXIT_SIGNAL + signal;
}

/* 0, CONTROL_END, or EXIT_FAILED. */
static int sync_push_take(struct push *p, struct keepalive *keepalive)
{
	cleanup(json_decrefp) json_t *packet = NULL;
	int r = control_client_take(&p->control, &packet);

	if (r == 0) {
		keepalive_reset(keepalive);
		return sync_push_on_packet(p, packet);
	}
	if (r == -EAGAIN)
		r = keepalive_check(keepalive);
	if (r != 0) {
		progress_finish(&p->progress);
		if (*p->sync)
			(void)cli_error(
				"it may continue; 'weightctl sync history' will show the end of %s",
				p->sync);
	}
	return r;
}

static int wait_for_end(struct push *p, int signal_fd)
{
	cleanup(keepalive_deinit) struct keepalive keepalive;
	int r = 0, signal;

	keepalive_init(&keepalive, p->cli);
	while (r == 0) {
		struct pollfd fds[] = {
			{.fd = p->control.fd, .events = POLLIN},
			{.fd = signal_fd, .events = POLLIN},
			{.fd = keepalive.control.fd, .events = POLLIN},
		};

		(void)poll(fds, 3, keepalive_timeout_ms(&keepalive));
		signal = signals_take(signal_fd);
		if (signal)
			return push_leave(p, signal);
		r = sync_push_take(p, &keepalive);
	}
	return r;
}

static json_t *request_of(const struct push *p)
{
	const struct pushing *k = p->kind;
	const char *op = p->options.is_dry && k->dry_op ? k->dry_op : k->op;
	json_t *request = json_pack("{s:s, s:s, s:s?, s:s?, s:I, s:b}", "op", op, "buffer",
				    p->target.name, "group", p->options.group, "policy",
				    p->options.policy, "max_rate", (json_int_t)p->options.max_rate,
				    "wait", !p->options.no_wait);
	int r = 0;

	if (!k->makes)
		r = json_object_set_new(request, "version",
					json_integer((json_int_t)p->target.version));
	else if (p->options.is_dry)
		r = json_object_set_new(request, "dry", json_true());
	if (r == 0 && !p->options.wait_all && !k->makes)
		r = json_object_set_new(request, "slow", json_false());
	if (r == 0 && p->options.queue)
		r = json_object_set_new(request, "queue", json_true());
	if (r < 0 || (p->more && json_object_update(request, p->more) < 0))
		cli_out_of_memory();
	return request;
}

/*
 * Waits until the agent has given it a name, or a place in its queue. CONTROL_END: it sent no more than that.
 */
static int sync_push_begin(struct push *p)
{
	int r = 0;

	if (control_client_open(p->cli, &p->control) ||
	    control_client_ask(&p->control, request_of(p)))
		return EXIT_FAILED;
	while (r == 0 && !*p->sync && !p->queued) {
		cleanup(json_decrefp) json_t *packet = NULL;

		r = control_client_next(&p->control, &packet);
		if (r == 0)
			r = sync_push_on_packet(p, packet);
	}
	return r;
}

/* --- How it ended ------------------------------------------------------------------------------- */

struct pushed {
	const char *sync;
	const char *state;
	const char *buffer;
	const char *group;
	const char *by;
	struct sync_version version;
	struct sync_share share;
	uint64_t planned, payload; /* UINT64_MAX: unknown */
	uint64_t bytes, kernel; /* the same on the wire */
	uint64_t n_broken; /* attempts that the numbers of bytes omit */
	uint64_t elapsed_ns;
};

static const char *sync_push_version(const void *row, bool json)
{
	(void)json;
	return sync_version_text(((const struct pushed *)row)->version);
}

#define PUSHED(member) offsetof(struct pushed, member)

static const struct column columns[] = {
	COLUMN("SYNC", COLUMN_TEXT, PUSHED(sync)),
	COLUMN("STATE", COLUMN_TEXT, PUSHED(state)),
	COLUMN("BUFFER", COLUMN_TEXT, PUSHED(buffer)),
	COLUMN("GROUP", COLUMN_TEXT, PUSHED(group)),
	{"VERSION", COLUMN_WORD, .word = sync_push_version},
	COLUMN("TERM", COLUMN_U64, PUSHED(version.term)),
	COLUMN("NUMBER", COLUMN_U64, PUSHED(version.number)),
	COLUMN("SIZE", COLUMN_COUNTED, PUSHED(share.size)),
	COLUMN("CHANGED", COLUMN_COUNTED, PUSHED(share.changed)),
	COLUMN("BY", COLUMN_TEXT, PUSHED(by)),
	COLUMN("PATCH", COLUMN_COUNTED, PUSHED(share.patch)),
	COLUMN("DIFFER", COLUMN_COUNTED, PUSHED(share.differ)),
	COLUMN("PLANNED", COLUMN_COUNTED, PUSHED(planned)),
	COLUMN("PAYLOAD", COLUMN_COUNTED, PUSHED(payload)),
	COLUMN("BYTES", COLUMN_COUNTED, PUSHED(bytes)),
	COLUMN("KERNEL", COLUMN_COUNTED, PUSHED(kernel)),
	COLUMN("BROKEN", COLUMN_U64, PUSHED(n_broken)),
	COLUMN("ELAPSED", COLUMN_DURATION, PUSHED(elapsed_ns)),
	{},
};

/* Columns of a dry run; the plan has the rest. */
static const struct column planned_columns[] = {
	COLUMN("SYNC", COLUMN_TEXT, PUSHED(sync)),
	COLUMN("STATE", COLUMN_TEXT, PUSHED(state)),
	COLUMN("BUFFER", COLUMN_TEXT, PUSHED(buffer)),
	COLUMN("GROUP", COLUMN_TEXT, PUSHED(group)),
	{"VERSION", COLUMN_WORD, .word = sync_push_version},
	COLUMN("TERM", COLUMN_U64, PUSHED(version.term)),
	COLUMN("NUMBER", COLUMN_U64, PUSHED(version.number)),
	COLUMN("ELAPSED", COLUMN_DURATION, PUSHED(elapsed_ns)),
	{},
};

struct reached {
	const char *node;
	const char *state;
	const char *why;
	uint64_t version; /* version number in the weightd there; 0: none */
};

#define REACHED(member) offsetof(struct reached, member)

static const struct column node_columns[] = {
	COLUMN("NODE", COLUMN_TEXT, REACHED(node)),
	COLUMN("STATE", COLUMN_TEXT, REACHED(state)),
	COLUMN("VERSION", COLUMN_VERSION, REACHED(version)),
	COLUMN("WHY", COLUMN_TEXT, REACHED(why)),
	{},
};

static struct reached reached_of(const json_t *node)
{
	return (struct reached){
		.node = json_field_text(node, "node"),
		.state = json_field_text(node, "state"),
		.why = json_field_text(node, "why"),
		.version = json_field_number(node, "version", 0),
	};
}

static bool is_committed(const char *state)
{
	return state && !strcmp(state, "committed");
}

/* True if as many nodes as required have the version. */
static bool is_good(const struct push *p, const char *state)
{
	return p->options.is_dry ? state && !strcmp(state, "planned") && p->plan.sums
				 : is_committed(state);
}

static void print_json(const struct push *p, const struct pushed *pushed, const json_t *nodes)
{
	struct json json = {.file = stdout};
	const json_t *node;
	size_t i;

	json_open(&json, NULL, '{');
	column_json_all(p->options.is_dry ? planned_columns : columns, pushed, &json);
	if (p->options.is_dry)
		push_plan_json(&p->plan, &json);
	json_open(&json, "nodes", '[');
	json_array_foreach(nodes, i, node)
	{
		const struct reached reached = reached_of(node);

		json_open(&json, NULL, '{');
		column_json_all(node_columns, &reached, &json);
		json_close(&json, '}');
	}
	json_close(&json, ']');
	json_close(&json, '}');
}

/*
 * "llama 1.7 on 3 of 3 nodes in 9.1 s, 4.0% of 16.1 GB as a patch", or "the mean of 3" where it was made of theirs, and a
 * line for each that has it not, and where that is only for now, how to see more.
 */
static void print_text(const struct push *p, const struct pushed *pushed, const json_t *nodes)
{
	const uint64_t *travelled = pushed->share.travelled;
	char text[SIZE_TEXT_MAX], part[SIZE_TEXT_MAX];
	const char *v = sync_push_version(pushed, false);
	const char *share = size_part(part, travelled[0], travelled[1]);
	bool goes_on = false;
	size_t i, n = 0;
	const json_t *node;

	json_array_foreach(nodes, i, node) n += is_committed(json_field_text(node, "state"));
	escape_name(stdout, pushed->buffer);
	if (v)
		(void)printf(" %s", v);
	(void)printf(" on %zu of %zu nodes in %s", n, json_array_size(nodes),
		     size_duration(text, pushed->elapsed_ns));
	if (p->kind->made)
		(void)printf(", %s", p->kind->made);
	else if (p->kind->makes)
		(void)printf(", the mean of %zu", n);
	else if (share)
		(void)printf(", %s of %s%s", share, size_text(text, pushed->share.size),
			     pushed->share.patch != UINT64_MAX ? " as a patch" : "");
	(void)putchar('\n');
	json_array_foreach(nodes, i, node)
	{
		const struct reached reached = reached_of(node);

		if (!is_committed(reached.state))
			sync_say(stdout, reached.node,
				 reached.why     ? reached.why
				 : reached.state ? reached.state
						 : "unknown");
		goes_on |= step_of(reached.state) < N_STEPS && !is_committed(reached.state);
	}
	if (goes_on)
		(void)printf("'weightctl sync status %s' shows its progress\n", pushed->sync);
}

static int sync_push_finish(struct push *p)
{
	const struct pushed pushed = {
		.sync = p->sync,
		.state = json_field_text(p->outcome, "state"),
		.buffer = p->target.name,
		.group = json_field_text(p->outcome, "group"),
		.version = sync_version_of(p->outcome),
		.share = sync_share_of(p->outcome),
		.by = json_field_text(p->outcome, "by"),
		.planned = json_field_number(p->outcome, "planned", UINT64_MAX),
		.payload = json_field_number(p->outcome, "payload", UINT64_MAX),
		.bytes = json_field_number(p->outcome, "bytes", UINT64_MAX),
		.kernel = json_field_number(p->outcome, "kernel", UINT64_MAX),
		.n_broken = json_field_number(p->outcome, "broken", 0),
		.elapsed_ns = clock_now_ns() - p->started_ns,
	};
	const json_t *nodes = p->reached;
	const char *error = control_client_error(p->outcome);

	progress_finish(&p->progress);
	if (!is_good(p, pushed.state))
		return error ? cli_error("%s", error)
			     : cli_error("the %s failed, and weightd-sync sent no reason",
					 p->kind->what);
	if (p->cli->format.json)
		print_json(p, &pushed, nodes);
	else if (p->options.is_dry)
		return push_plan_print(&p->plan, p->cli, p->target.name);
	else if (!p->options.quiet)
		print_text(p, &pushed, nodes);
	return 0;
}

/* Prints only the name of the sync, without waiting. */
static int say_begun(const struct push *p)
{
	struct json json = {.file = stdout};

	if (p->cli->format.json) {
		json_open(&json, NULL, '{');
		json_put_string(&json, "sync", p->sync);
		json_close(&json, '}');
	} else if (!p->options.quiet) {
		escape_text(stdout, p->sync);
		(void)fputc('\n', stdout);
	}
	return 0;
}

static void tell_queued(const struct push *p)
{
	const char *why = json_field_text(p->queued, "why");

	(void)cli_error("waiting: %s", why ? why : "another sync is under way");
}

static int sync_push_wait(struct push *p)
{
	int signal_fd, r;

	p->nodes = json_object();
	p->reached = json_array();
	if (!p->nodes || !p->reached)
		cli_out_of_memory();
	p->started_ns = clock_now_ns();
	r = sync_push_begin(p);
	if (r != 0 && !(r == CONTROL_END && *p->sync))
		return r == CONTROL_END ? cli_error("weightd-sync started no %s, and sent no "
						    "reason",
						    p->kind->what)
					: r;
	if (p->options.no_wait)
		return say_begun(p);
	if (r == 0) {
		signal_fd = signals_open();
		if (signal_fd < 0)
			return cli_error("cannot watch for signals: %s", strerror(-signal_fd));
		if (p->queued && !p->options.quiet)
			tell_queued(p);
		r = wait_for_end(p, signal_fd);
		(void)close(signal_fd);
	}
	return r == CONTROL_END ? sync_push_finish(p) : r;
}

int sync_push_ask(const struct cli *cli, const struct pushing *kind, const struct target *target,
		  const struct push_options *options, json_t *more)
{
	cleanup(push_deinit) struct push p = {.cli = cli,
					      .kind = kind,
					      .control.fd = -1,
					      .target = *target,
					      .options = *options,
					      .more = more};

	if (options->is_dry && options->no_wait)
		cli_usage(cli, "--dry-run waits for its plan; --no-wait makes no sense with it");
	if (options->queue && options->no_wait)
		cli_usage(cli, "--queue waits for its turn; --no-wait makes no sense with it");
	progress_init(&p.progress, target->name, options->quiet);
	return sync_push_wait(&p);
}

int pushing_run(struct cli *cli, int argc, char *argv[], const struct pushing *kind)
{
	static const struct option longs[] = {
		{"group", required_argument, NULL, OPTION_GROUP},
		{"policy", required_argument, NULL, OPTION_POLICY},
		{"max-rate", required_argument, NULL, OPTION_MAX_RATE},
		{"no-wait", no_argument, NULL, OPTION_NO_WAIT},
		{"wait-all", no_argument, NULL, OPTION_WAIT_ALL},
		{"queue", no_argument, NULL, OPTION_QUEUE},
		{"dry-run", no_argument, NULL, OPTION_DRY_RUN},
		{"quiet", no_argument, NULL, 'q'},
		OPTIONS_JSON,
		OPTIONS_AGENT,
		{},
	};
	struct push_options o = {};
	struct target target;
	int option;

	while ((option = cli_option(cli, argc, argv, LETTERS_JSON "q", longs)) >= 0) {
		if (option == OPTION_GROUP)
			o.group = optarg;
		else if (option == OPTION_POLICY)
			o.policy = policy(cli, optarg);
		else if (option == OPTION_MAX_RATE)
			o.max_rate = cli_bytes(cli, "--max-rate", optarg);
		else if (option == OPTION_NO_WAIT)
			o.no_wait = true;
		else if (option == OPTION_WAIT_ALL)
			o.wait_all = true;
		else if (option == OPTION_QUEUE)
			o.queue = true;
		else if (option == OPTION_DRY_RUN)
			o.is_dry = true;
		else
			o.quiet = true;
	}
	if (argc - optind != 1)
		cli_usage(cli, "'%s' wants one buffer", cli->verb->name);
	if (o.wait_all && (kind->makes || o.no_wait))
		cli_usage(cli, "--wait-all makes no sense with %s",
			  kind->makes ? "'sync average', which has no nodes to wait for afterwards"
				      : "--no-wait");
	target = cli_target(cli, argv[optind]);
	if (kind->makes && target.version)
		cli_usage(cli, "'%s' takes the newest version of each node; name the buffer alone",
			  cli->verb->name);
	return sync_push_ask(cli, kind, &target, &o, NULL);
}

static int sync_push_run(struct cli *cli, int argc, char *argv[])
{
	static const struct pushing push = {.what = "push", .op = "push", .dry_op = "plan"};

	return pushing_run(cli, argc, argv, &push);
}

const struct verb verb_sync_push = {
	.name = "sync push",
	.args = "BUFFER[@VERSION]",
	.summary = "Push a version to every node of a group, all or none",
	.options = "     --group GROUP      the group; the only one it fits into if not given\n"
		   "     --policy POLICY    required nodes: all, quorum or each (the group's)\n"
		   "     --max-rate BYTES   a second over each link at most, such as 500M or 1G\n"
		   "     --dry-run          prepare all nodes, print what would be sent, and undo "
		   "it\n"
		   "     --no-wait          print the name of the sync, and do not wait for its "
		   "end\n"
		   "     --wait-all         wait for nodes that are slow, too\n"
		   "     --queue            wait for the end of syncs in progress with the "
		   "buffer\n"
		   " -q, --quiet            no progress and no closing line\n" HELP_JSON,
	.peer = PEER_AGENT,
	.run = sync_push_run,
};
