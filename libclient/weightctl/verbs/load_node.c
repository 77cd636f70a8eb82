/*
 * A version of another node arrives as a repair that the agent of this node requests. weightctl waits for it: the agent
 * cancels the pull when the connection closes, so that a killed weightctl leaves nothing under way.
 */
#include "libclient/weightctl/verbs/load_node.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/weightctl/control/keepalive.h"
#include "libclient/weightctl/control/sync.h"
#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/output/column.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/progress.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/signals.h"

#define SCHEME "weightd://"
#define NODE_NAME_MAX 64

struct pull {
	struct cli cli; /* as of a verb whose peer is the agent */
	struct verb verb;
	const char *name;
	char node[NODE_NAME_MAX];
	struct sync_version wanted; /* 0, 0: whichever the node has */
	struct load_node_options options;
	struct control_client control;
	struct keepalive keepalive;
	struct progress progress;
	char id[SYNC_ID_MAX]; /* "": it has not begun */
	json_t *end; /* NULL: it goes on */
	uint64_t started_ns, deadline_ns; /* 0: no deadline */
	int signal; /* that cancelled it */
	bool is_late; /* the deadline did */
};

/* --- The command line --------------------------------------------------------------------------- */

bool load_node_is(const char *path)
{
	return strncmp(path, SCHEME, strlen(SCHEME)) == 0;
}

_Noreturn void load_node_refuse_option(const struct cli *cli, const char *option)
{
	static const struct {
		const char *option; /* NULL: all others */
		const char *way;
	} ways[] = {
		{"mode", "mode and group of the [group] in sync.conf are the permissions"},
		{"owner", "an agent publishes in buffers of its own user only"},
		{"device", "device of the [group] in sync.conf names it; 'weightctl copy' copies a "
			   "version to another one"},
		{"max-rate", "repair-rate in sync.conf of the other node limits it"},
		{"verify", "the signed SHA-256 root of the version is always checked"},
		{NULL, "a version arrives as it was pushed, in the agent's buffer; save it "
		       "(weightctl save), and load the files with that option"},
	};
	size_t i = 0;

	while (ways[i].option && strcmp(ways[i].option, option) != 0)
		i++;
	cli_usage(cli, "--%s has no meaning for " SCHEME "NODE/NAME: %s", option, ways[i].way);
}

/* "1.7" */
static bool read_version(const char *text, struct sync_version *ret)
{
	size_t n = strspn(text, "0123456789"), m = 0;

	if (n && n < 16 && text[n] == '.')
		m = strspn(text + n + 1, "0123456789");
	if (!m || m >= 16 || text[n + 1 + m])
		return false;
	ret->term = strtoull(text, NULL, 10);
	ret->number = strtoull(text + n + 1, NULL, 10);
	return ret->number > 0;
}

static void read_path(struct pull *p, const char *path)
{
	const char *node = path + strlen(SCHEME), *slash = strchr(node, '/');
	const char *buffer = slash ? slash + 1 : "", *at = strrchr(buffer, '@');
	size_t n_node = slash ? (size_t)(slash - node) : 0;
	size_t n_buffer = at ? (size_t)(at - buffer) : strlen(buffer);

	if (!n_node || n_node >= sizeof(p->node) || !n_buffer)
		cli_usage(&p->cli,
			  "'%s' is not of the form " SCHEME "NODE/NAME or " SCHEME
			  "NODE/NAME@TERM.NUMBER",
			  path);
	if (at && !read_version(at + 1, &p->wanted))
		cli_usage(&p->cli,
			  "'%s' has no version behind the '@'; those of nodes are TERM.NUMBER, such "
			  "as 1.7, which 'weightctl nodes --buffers' lists",
			  path);
	if (strlen(p->name) != n_buffer || strncmp(p->name, buffer, n_buffer) != 0)
		cli_usage(&p->cli,
			  "a version has the same name on all nodes: load '%.*s' from '%s', not '%s'",
			  (int)n_buffer, buffer, path, p->name);
	memcpy(p->node, node, n_node);
}

/* --- Waiting ------------------------------------------------------------------------------------ */

static void pull_show(struct pull *p, const json_t *event)
{
	static const struct {
		const char *phase;
		const char *text;
	} steps[] = {
		{"prepare", "preparing"}, {"ready", "preparing"},      {"open", "connecting"},
		{"moved", "checking"},    {"verify", "checking"},      {"verified", "checking"},
		{"commit", "publishing"}, {"committed", "publishing"},
	};
	const char *phase = json_field_text(event, "phase");

	if (phase && !strcmp(phase, "bytes"))
		progress_update(&p->progress, PROGRESS_RECEIVE, json_field_number(event, "done", 0),
				json_field_number(event, "expected", 0));
	for (size_t i = 0; phase && i < sizeof(steps) / sizeof(*steps); i++)
		if (!strcmp(phase, steps[i].phase))
			progress_update(&p->progress, steps[i].text, 0, 0);
}

/* The caller owns the packet. 0: more packets follow; CONTROL_END; or EXIT_FAILED. */
static int pull_on_packet(struct pull *p, json_t *packet)
{
	const char *sync = json_field_text(packet, "sync"), *why = json_field_text(packet, "why");
	const char *event = json_field_text(packet, "event");

	if (event && !strcmp(event, "end")) {
		p->end = json_incref(packet);
		return CONTROL_END;
	}
	if (control_client_error(packet)) {
		progress_finish(&p->progress);
		return cli_error("%s", control_client_error(packet));
	}
	if (event && !strcmp(event, "queued") && !p->options.quiet) {
		progress_finish(&p->progress);
		(void)cli_error("waiting: %s", why ? why : "another sync is under way");
	} else if (event && !strcmp(event, "phase")) {
		pull_show(p, packet);
	} else if (sync && !event && !*p->id) {
		(void)snprintf(p->id, sizeof(p->id), "%s", sync);
		progress_update(&p->progress, "waiting", 0, 0);
	}
	return 0;
}

static int pull_take(struct pull *p)
{
	cleanup(json_decrefp) json_t *packet = NULL;
	int r = control_client_take(&p->control, &packet);

	if (r == 0) {
		keepalive_reset(&p->keepalive);
		return pull_on_packet(p, packet);
	}
	if (r == -EAGAIN)
		r = keepalive_check(&p->keepalive);
	if (r != 0)
		progress_finish(&p->progress);
	return r;
}

static int pull_say_cancelled(const struct pull *p)
{
	if (p->signal) {
		(void)cli_error("interrupted: '%s' was not pulled from %s; nothing was published",
				p->name, p->node);
		return EXIT_SIGNAL + p->signal;
	}
	return cli_error("'%s' was not pulled from %s within %u ms; nothing was published; load again "
			 "with more time (--timeout)",
			 p->name, p->node, p->options.timeout_ms);
}

/*
 * The agent answers on the first connection how the pull ended: a decision that it has made already stands. Before a
 * pull has begun, the end of this process is enough.
 */
static int pull_cancel(struct pull *p)
{
	cleanup(control_client_deinit) struct control_client control = {.fd = -1};
	cleanup(json_decrefp) json_t *packet = NULL;

	if (!*p->id) {
		progress_finish(&p->progress);
		return pull_say_cancelled(p);
	}
	if (control_client_open(&p->cli, &control) ||
	    control_client_ask(&control, json_pack("{s:s, s:s}", "op", "cancel", "sync", p->id)) ||
	    control_client_next(&control, &packet))
		return EXIT_FAILED;
	return 0;
}

/* A second signal of the same kind ends the program. */
static int on_signal(struct pull *p, int number)
{
	sigset_t set;

	p->signal = number;
	(void)signal(number, SIG_DFL);
	(void)sigemptyset(&set);
	(void)sigaddset(&set, number);
	(void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	return pull_cancel(p);
}

static int timeout_ms(const struct pull *p)
{
	int ms = keepalive_timeout_ms(&p->keepalive);
	uint64_t now = clock_now_ns(), left_ms;

	if (!p->deadline_ns || p->is_late)
		return ms;
	left_ms = now < p->deadline_ns ? (p->deadline_ns - now) / 1000000 + 1 : 0;
	return left_ms < (uint64_t)ms ? (int)left_ms : ms;
}

static int pull_wait(struct pull *p, int signal_fd)
{
	int r = 0;

	while (r == 0) {
		struct pollfd fds[] = {
			{.fd = p->control.fd, .events = POLLIN},
			{.fd = signal_fd, .events = POLLIN},
			{.fd = p->keepalive.control.fd, .events = POLLIN},
		};
		int number;

		(void)poll(fds, 3, timeout_ms(p));
		number = signals_take(signal_fd);
		if (number && !p->signal)
			r = on_signal(p, number);
		else if (p->deadline_ns && !p->is_late && clock_now_ns() >= p->deadline_ns) {
			p->is_late = true;
			r = pull_cancel(p);
		} else {
			r = pull_take(p);
		}
	}
	return r;
}

/* --- The end ------------------------------------------------------------------------------------ */

struct pulled {
	const char *name;
	const char *node;
	const char *group;
	struct sync_version version;
	uint64_t local; /* its number in the weightd of this node; 0: unknown */
	struct sync_share share;
	uint64_t payload, bytes; /* UINT64_MAX: unknown */
	uint64_t elapsed_ns;
};

#define PULLED(member) offsetof(struct pulled, member)

static const struct column columns[] = {
	COLUMN("NAME", COLUMN_TEXT, PULLED(name)),
	COLUMN("VERSION", COLUMN_VERSION, PULLED(local)),
	COLUMN("NODE", COLUMN_TEXT, PULLED(node)),
	COLUMN("GROUP", COLUMN_TEXT, PULLED(group)),
	COLUMN("TERM", COLUMN_U64, PULLED(version.term)),
	COLUMN("NUMBER", COLUMN_U64, PULLED(version.number)),
	COLUMN("SIZE", COLUMN_COUNTED, PULLED(share.size)),
	COLUMN("CHANGED", COLUMN_COUNTED, PULLED(share.changed)),
	COLUMN("PATCH", COLUMN_COUNTED, PULLED(share.patch)),
	COLUMN("PAYLOAD", COLUMN_COUNTED, PULLED(payload)),
	COLUMN("BYTES", COLUMN_COUNTED, PULLED(bytes)),
	COLUMN("ELAPSED", COLUMN_DURATION, PULLED(elapsed_ns)),
	{},
};

static void print_text(const struct pull *p, const struct pulled *d)
{
	char size[SIZE_TEXT_MAX], sent[SIZE_TEXT_MAX], time[SIZE_TEXT_MAX];
	uint64_t travelled = d->share.travelled[0];

	(void)printf("%s", d->name);
	if (d->local)
		(void)printf("@%" PRIu64, d->local);
	(void)printf(": %s of %s, %s", sync_version_text(d->version), d->node,
		     size_text(size, d->share.size));
	if (p->options.is_dry)
		(void)printf(", %s to receive\n", size_text(sent, travelled));
	else if (travelled == 0)
		(void)printf(", was here already\n");
	else
		(void)printf(" in %s, %s received%s\n", size_duration(time, d->elapsed_ns),
			     size_text(sent, travelled),
			     d->share.patch != UINT64_MAX ? " as a patch" : "");
}

static bool is_state(const json_t *end, const char *state)
{
	const char *text = json_field_text(end, "state");

	return text && !strcmp(text, state);
}

/* The sentence of a repair has its own id, and perhaps not the node. */
static int pull_say_failed(const struct pull *p)
{
	const char *error = control_client_error(p->end), *kind = json_field_text(p->end, "kind");
	static const char way[] = "load it from another node that has it, see 'weightctl nodes "
				  "--buffers'";

	if (!error)
		error = "weightd-sync sent no reason";
	if (kind && !strcmp(kind, "pull"))
		return cli_error("%s; %s", error, way);
	return cli_error("'%s' was not pulled from %s: %s; %s", p->name, p->node, error, way);
}

static int pull_finish(const struct pull *p)
{
	const json_t *row = json_array_get(json_object_get(p->end, "nodes"), 0);
	const struct pulled pulled = {
		.name = p->name,
		.node = p->node,
		.group = json_field_text(p->end, "group"),
		.version = sync_version_of(p->end),
		.local = json_field_number(row, "version", 0),
		.share = sync_share_of(p->end),
		.payload = json_field_number(p->end, "payload", UINT64_MAX),
		.bytes = json_field_number(p->end, "bytes", UINT64_MAX),
		.elapsed_ns = clock_now_ns() - p->started_ns,
	};

	if (!is_state(p->end, p->options.is_dry ? "planned" : "committed"))
		return p->signal || p->is_late ? pull_say_cancelled(p) : pull_say_failed(p);
	if (p->cli.format.json)
		column_json_object(columns, &pulled);
	else if (!p->options.quiet)
		print_text(p, &pulled);
	return 0;
}

static json_t *request_of(const struct pull *p)
{
	return json_pack("{s:s, s:s, s:s, s:I, s:I, s:b, s:b}", "op", "pull", "buffer", p->name,
			 "node", p->node, "term", (json_int_t)p->wanted.term, "number",
			 (json_int_t)p->wanted.number, "dry", p->options.is_dry, "queue", 1);
}

int load_node(const struct cli *cli, const char *name, const char *path,
	      const struct load_node_options *options)
{
	struct pull p = {.cli = *cli,
			 .verb = {.name = cli->verb->name, .peer = PEER_AGENT},
			 .name = name,
			 .options = *options,
			 .control.fd = -1,
			 .started_ns = clock_now_ns()};
	int signal_fd = signals_open(), r;

	p.cli.verb = &p.verb;
	read_path(&p, path);
	if (signal_fd < 0)
		return cli_error("cannot watch for signals: %s", strerror(-signal_fd));
	if (options->timeout_ms)
		p.deadline_ns = p.started_ns + (uint64_t)options->timeout_ms * 1000000;
	progress_init(&p.progress, name, options->quiet);
	keepalive_init(&p.keepalive, &p.cli);
	r = control_client_open(&p.cli, &p.control);
	if (r == 0)
		r = control_client_ask(&p.control, request_of(&p));
	if (r == 0)
		r = pull_wait(&p, signal_fd);
	progress_finish(&p.progress);
	if (r == CONTROL_END)
		r = pull_finish(&p);
	json_decref(p.end);
	keepalive_deinit(&p.keepalive);
	control_client_deinit(&p.control);
	(void)close(signal_fd);
	return r;
}
