#include "server/sync/daemon.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/log.h"
#include "server/base/loop.h"
#include "server/base/notify.h"
#include "server/sync/agent.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/commit_log.h"
#include "server/sync/control.h"
#include "server/sync/jobs.h"
#include "server/sync/net/acceptor.h"
#include "server/sync/net/file_watch.h"
#include "server/sync/net/log_fields.h"
#include "server/sync/net/peer.h"
#include "server/sync/net/tls.h"
#include "server/sync/net/trust.h"
#include "server/sync/state/transport.h"
#include "server/sync/tracing.h"

#define STOP_NS 2000000000u /* time for the other nodes to receive that we stop */
#define STOP_LOOK_NS 10000000u
#define WARN_NS 3600000000000u /* between two warnings that a certificate expires soon */
#define ROW_SIZE_MAX (JSON_PACKET_SIZE_MAX - 1024)

struct daemon {
	const struct config *config;
	struct loop loop;
	struct notify notify;
	struct trust trust;
	SSL_CTX *tls;
	struct peers peers;
	struct acceptor acceptor;
	struct jobs jobs;
	struct tracing tracing;
	struct control control;
	struct control_options control_options;
	struct agent *agent;
	struct agent_config agent_config;
	struct timer agent_timer;
	struct source signals;
	struct file_watch file_watch; /* sync.conf first, and then what trust has */
	struct timer warn; /* about the certificate */
	struct timer stop; /* looks whether all has been said */
	uint64_t stop_ns; /* when that has to be; 0: we do not stop */
	uint64_t since_ns; /* CLOCK_REALTIME */
	struct commit_log commit_log;
	int lock_fd; /* locks the commit log */
};

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	(void)clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* --- The environment ------------------------------------------------------------------------------------- */

static uint64_t env_now_ns(void *userdata)
{
	(void)userdata;
	return num_now_ns();
}

static uint64_t env_time_ns(void *userdata)
{
	(void)userdata;
	return clock_ns(CLOCK_REALTIME);
}

static void env_random(void *userdata, void *ret, size_t size)
{
	ssize_t n = getrandom(ret, size, 0);

	(void)userdata;
	assert(n == (ssize_t)size); /* up to 256 bytes it gives all, once it gives any */
}

static void daemon_on_agent_timer(struct timer *timer)
{
	agent_on_timer(container_of(timer, struct daemon, agent_timer)->agent);
}

static void env_set_timer(void *userdata, uint64_t deadline_ns)
{
	struct daemon *w = userdata;

	if (deadline_ns)
		timer_start(&w->loop, &w->agent_timer, deadline_ns);
	else
		timer_stop(&w->agent_timer);
}

static int env_send(void *userdata, unsigned peer, const json_t *message)
{
	return peers_send(&((struct daemon *)userdata)->peers, peer, message);
}

static int env_send_blob(void *userdata, unsigned peer, const uint8_t hash[32], int fd,
			 uint64_t size)
{
	return peers_send_blob(&((struct daemon *)userdata)->peers, peer, hash, fd, size);
}

static void env_hang_up(void *userdata, unsigned peer, const char *why)
{
	peers_hang_up(&((struct daemon *)userdata)->peers, peer, why);
}

static int env_job_start(void *userdata, enum job_kind kind, const char *buffer, void *owner,
			 struct job **ret, char why[WHY_SIZE])
{
	static const struct {
		const char *program;
		const char *argument;
	} kinds[] = {
		[JOB_SOURCE] = {"weightd-sync-local", "source"},
		[JOB_SINK] = {"weightd-sync-local", "sink"},
		[JOB_WATCH] = {"weightd-sync-local", "watch"},
		[JOB_PLANNER] = {"weightd-sync-local", "planner"},
		[JOB_TCP] = {"weightd-sync-tcp", NULL},
		[JOB_GLOO] = {"weightd-sync-gloo", NULL},
		[JOB_NCCL] = {"weightd-sync-nccl", NULL},
	};
	struct daemon *w = userdata;

	return job_start(&w->jobs, kinds[kind].program, kinds[kind].argument, buffer, owner, ret,
			 why);
}

static bool is_op(const json_t *message, const char *op)
{
	const char *is = json_string_value(json_object_get(message, "op"));

	return is && !strcmp(is, op);
}

/* Without this check a publisher could make us dial any host, and learn from the failure what is there. */
static bool env_may_dial(void *userdata, const char *address, const char *node, char why[WHY_SIZE])
{
	const struct daemon *w = userdata;
	const char *whose = node ? node : "another node";
	struct address at;

	if (!address_from_digits(address, 0, &at)) {
		(void)snprintf(why, WHY_SIZE, "'%.100s' of %.64s is no address in digits", address,
			       whose);
		return false;
	}
	if (peers_take_bytes_at(&w->peers, node, (const struct sockaddr *)&at.at))
		return config_trusts(w->config, (const struct sockaddr *)&at.at, whose, why);
	(void)snprintf(why, WHY_SIZE,
		       "%.64s has not told %s that it takes bytes at %.100s; see by weightctl nodes "
		       "whether both are connected",
		       whose, w->config->name, address);
	return false;
}

/* Checks the address of a node in `o`, if there is one. */
static bool may_dial_of(struct daemon *w, const json_t *o, const char *node, char why[WHY_SIZE])
{
	const char *address = json_string_value(json_object_get(o, "address"));

	return !address || env_may_dial(w, address, node, why);
}

/*
 * Whatever a coordinator told the agent to have dialled. One of Gloo's may dial the node before it, too, and one of
 * NCCL's any of those in its ring.
 */
static bool may_start(struct daemon *w, const json_t *start, char why[WHY_SIZE])
{
	const json_t *next = json_object_get(start, "next"), *one;
	const char *node = json_string_value(json_object_get(next, "node"));
	const char *from = json_string_value(json_object_get(start, "from_address"));
	size_t i;

	json_array_foreach(json_object_get(start, "addresses"), i, one)
	{
		if (json_is_string(one) && !env_may_dial(w, json_string_value(one), NULL, why))
			return false;
	}
	json_array_foreach(json_object_get(next, "stripes"), i, one)
	{
		if (!may_dial_of(w, one, node, why))
			return false;
	}
	return may_dial_of(w, next, node, why) && (!from || env_may_dial(w, from, NULL, why));
}

/* The same of an engine that is linked with all others. */
static bool may_open(struct daemon *w, const json_t *open, char why[WHY_SIZE])
{
	const json_t *one;
	size_t i;

	json_array_foreach(json_object_get(open, "nodes"), i, one)
	{
		if (!may_dial_of(w, one, json_string_value(json_object_get(one, "node")), why))
			return false;
	}
	return true;
}

/* Only engines receive "open" and "start". Under TLS they need the identity of this node. */
static void env_job_tell(void *userdata, struct job *job, const json_t *message, const int *fds,
			 unsigned n_fds)
{
	struct daemon *w = userdata;
	cleanup(json_freep) json_t *traced = NULL;
	int all[JSON_PACKET_FDS_MAX];
	char why[WHY_SIZE];

	if ((is_op(message, "start") && !may_start(w, message, why)) ||
	    (is_op(message, "open") && !may_open(w, message, why))) {
		job_fail(job, why);
		return;
	}
	assert(n_fds <= JSON_PACKET_FDS_MAX);
	if (n_fds > 0)
		memcpy(all, fds, n_fds * sizeof(*fds));
	if (w->config->data_tls && is_op(message, "open")) {
		assert(n_fds + 3 <= JSON_PACKET_FDS_MAX);
		memcpy(all + n_fds, w->trust.fds, sizeof(w->trust.fds));
		n_fds += 3;
	}
	if (is_op(message, "open") && tracing_is_on(&w->tracing) &&
	    (traced = json_copy((json_t *)message)))
		json_object_set_new(traced, "traced", json_true());
	job_tell(job, traced ? traced : message, all, n_fds);
}

static void env_job_end(void *userdata, struct job *job)
{
	(void)userdata;
	job_end(job);
}

static int env_may_save(void *userdata, char why[WHY_SIZE])
{
	struct daemon *w = userdata;

	return commit_log_may_save(&w->commit_log, why);
}

static int env_save(void *userdata, const json_t *piece, bool is_all)
{
	struct daemon *w = userdata;
	int r = commit_log_save(&w->commit_log, piece, is_all);

	if (r < 0)
		log_error("the commit log cannot be written to %s: %s", w->config->state,
			  strerror(-r));
	return r;
}

static int env_sign(void *userdata, const char *text, char *ret_signature, size_t size)
{
	return trust_sign(&((struct daemon *)userdata)->trust, text, ret_signature, size);
}

static const char *env_certificate(void *userdata)
{
	return ((struct daemon *)userdata)->trust.certificate_pem;
}

static int env_check(void *userdata, const char *text, const char *signature,
		     const char *certificate, const char *name, uint64_t time_ns, char why[WHY_SIZE])
{
	return trust_check(&((struct daemon *)userdata)->trust, text, signature, certificate, name,
			   time_ns, why);
}

static void env_trace(void *userdata, const json_t *request, int fd)
{
	tracing_ask(&((struct daemon *)userdata)->tracing, request, fd);
}

static void env_trace_job(void *userdata, const json_t *request, struct job *job)
{
	cleanup(json_freep) json_t *of_job = json_copy((json_t *)request);

	if (of_job && json_object_set_new(of_job, "pid", json_integer(job_pid(job))) == 0)
		env_trace(userdata, of_job, -1);
}

static void env_trace_drop(void *userdata, const char *sync)
{
	tracing_drop(&((struct daemon *)userdata)->tracing, sync);
}

static void env_event(void *userdata, const json_t *event)
{
	const char *what = json_string_value(json_object_get(event, "event"));
	struct daemon *w = userdata;

	log_fields_write_event(event);
	if (!what || strcmp(what, "log") != 0)
		control_tell(&w->control, event);
}

static const struct env env = {
	.now_ns = env_now_ns,
	.time_ns = env_time_ns,
	.random = env_random,
	.set_timer = env_set_timer,
	.send = env_send,
	.send_blob = env_send_blob,
	.hang_up = env_hang_up,
	.job_start = env_job_start,
	.job_tell = env_job_tell,
	.job_end = env_job_end,
	.may_dial = env_may_dial,
	.may_save = env_may_save,
	.save = env_save,
	.sign = env_sign,
	.certificate = env_certificate,
	.check = env_check,
	.trace = env_trace,
	.trace_job = env_trace_job,
	.trace_drop = env_trace_drop,
	.event = env_event,
};

/* --- Events --------------------------------------------------------------------------------------- */

static void daemon_on_said(void *userdata, void *owner, const json_t *message, int *fds,
			   unsigned n_fds)
{
	agent_on_job(((struct daemon *)userdata)->agent, owner, message, fds, n_fds);
}

static void daemon_on_job_end(void *userdata, void *owner, const char *how)
{
	agent_on_job_end(((struct daemon *)userdata)->agent, owner, how);
}

static const struct jobs_events jobs_events = {.on_said = daemon_on_said,
					       .on_end = daemon_on_job_end};

static void format_status(const struct daemon *w, char *buf, size_t size)
{
	(void)snprintf(buf, size, "%u of %u peers are up", w->peers.n_up, w->peers.n);
}

/* Connections between agents are of no sync: all that they carry is under one name. */
static void trace_peer(struct daemon *w, unsigned peer)
{
	const struct connection *c = w->peers.at[peer].up;
	cleanup(json_freep) json_t *tag = NULL;

	if (!c)
		return;
	tag = json_pack("{s:s, s:s, s:i, s:s, s:s, s:s, s:b}", "op", "tag", "sync", "control",
			"version", 0, "peer", c->name, "role", "control", "transport", "tls",
			"dialled", c->dialled);
	if (tag)
		tracing_ask(&w->tracing, tag, c->fd);
}

static void daemon_on_tracer(void *userdata)
{
	struct daemon *w = userdata;

	for (unsigned i = 0; i < w->peers.n; i++)
		trace_peer(w, i);
}

static void daemon_on_missing(void *userdata, const char *sync)
{
	agent_on_untraced(((struct daemon *)userdata)->agent, sync);
}

static void daemon_on_traced(void *userdata, const json_t *request, const json_t *rows)
{
	agent_on_traced(((struct daemon *)userdata)->agent, request, rows);
}

static const struct tracing_events tracing_events = {
	.on_connect = daemon_on_tracer,
	.on_missing = daemon_on_missing,
	.on_rows = daemon_on_traced,
};

static void daemon_on_change(void *userdata, unsigned peer)
{
	struct daemon *w = userdata;
	char status[64], text[80];

	format_status(w, status, sizeof(status));
	(void)snprintf(text, sizeof(text), "STATUS=%s", status);
	(void)notify_send(&w->notify, NOTIFY_OURS, text,
			  -1); /* without a listener, no one misses it */
	trace_peer(w, peer);
}

static bool daemon_may_trust(void *userdata, const struct sockaddr *at, const char *whose,
			     char why[WHY_SIZE])
{
	return config_trusts(((struct daemon *)userdata)->config, at, whose, why);
}

static const struct peer_events peer_events = {
	.on_up = agent_on_peer_up,
	.on_down = agent_on_peer_down,
	.on_message = agent_on_message,
	.on_blob = agent_on_blob,
	.blob_limit = agent_blob_limit,
	.is_idle = agent_is_idle,
	.on_change = daemon_on_change,
	.may_trust = daemon_may_trust,
};

static void daemon_on_call(void *userdata, int fd, const struct address *address)
{
	peers_accept(&((struct daemon *)userdata)->peers, fd, address);
}

/*
 * Takes both. Leaves out what does not fit into a packet, and says so in the row: daemon_replicas()
 * has it.
 */
static void append_row(json_t *rows, json_t *row, json_t *replicas)
{
	size_t n = json_array_size(replicas);

	if (row && replicas) {
		(void)json_object_set(row, "heads", replicas);
		if (json_dumpb(row, NULL, 0, JSON_COMPACT) > ROW_SIZE_MAX) {
			(void)json_object_set_new(row, "heads", json_array());
			(void)json_object_set_new(row, "n_heads", json_integer((json_int_t)n));
		}
	}
	json_decref(replicas);
	if (row)
		(void)json_array_append_new(rows, row);
}

static json_t *daemon_nodes(void *userdata)
{
	const struct daemon *w = userdata;
	json_t *rows = json_array();
	char why[WHY_SIZE];
	bool warn = trust_warn(&w->trust, why);

	append_row(rows,
		   json_pack("{s:s, s:s, s:s, s:I, s:s?, s:n}", "node", w->config->name, "address",
			     w->config->listen, "state", "self", "since_ns",
			     (json_int_t)w->since_ns, "why", warn ? why : NULL, "rtt_us"),
		   agent_replicas(w->agent, AGENT_SELF));
	for (unsigned i = 0; i < w->peers.n; i++)
		append_row(rows, peer_row(&w->peers, i), agent_replicas(w->agent, i));
	return rows;
}

static json_t *daemon_replicas(void *userdata, const char *node)
{
	const struct daemon *w = userdata;

	if (!strcmp(node, w->config->name))
		return agent_replicas(w->agent, AGENT_SELF);
	for (unsigned i = 0; i < w->peers.n; i++)
		if (!strcmp(node, w->peers.at[i].config->name))
			return agent_replicas(w->agent, i);
	return NULL;
}

/* --- Signals -------------------------------------------------------------------------------------- */

/* Clients that wait for our own syncs are told why they end; members see it by themselves. */
static bool cancel_pushes(struct daemon *w)
{
	json_t *rows = agent_status(w->agent, NULL), *row;
	bool some = false;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		const char *sync = json_string_value(json_object_get(row, "sync"));
		const char *role = json_string_value(json_object_get(row, "role"));
		char why[WHY_SIZE];

		if (!sync || !role || strcmp(role, "publisher") != 0 ||
		    !agent_sync_group(w->agent, sync))
			continue;
		some = true;
		if (agent_cancel(w->agent, sync, why) == 0)
			log_warning("sync %s is aborted: weightd-sync stops", sync);
	}
	json_decref(rows);
	return some;
}

static void daemon_on_stop(struct timer *timer)
{
	struct daemon *w = container_of(timer, struct daemon, stop);
	bool busy = cancel_pushes(w) || !peers_are_flushed(&w->peers);

	if (busy && num_now_ns() < w->stop_ns)
		timer_start(&w->loop, &w->stop, num_now_ns() + STOP_LOOK_NS);
	else
		loop_quit(&w->loop);
}

static void daemon_stop(struct daemon *w)
{
	if (w->stop_ns) {
		loop_quit(&w->loop); /* asked for twice */
		return;
	}
	(void)notify_send(&w->notify, NOTIFY_OURS, "STOPPING=1", -1);
	w->stop_ns = num_now_ns() + STOP_NS;
	daemon_on_stop(&w->stop);
}

static int load_trust(const struct config *c, struct trust *ret, SSL_CTX **ret_tls,
		      char why[WHY_SIZE])
{
	const struct trust_files files = {
		.ca = c->ca,
		.certificate = c->certificate,
		.key = c->key,
		.crl = c->crl,
	};
	struct trust t;
	int r = trust_load(&files, c->name, &t, why);

	if (r < 0)
		return r;
	r = tls_context_new(&t, ret_tls, why);
	if (r < 0)
		trust_deinit(&t);
	else
		*ret = t;
	return r;
}

static void warn_of_certificate(struct daemon *w)
{
	char why[WHY_SIZE];

	agent_set_certificate_end(w->agent, trust_end_ns(&w->trust));
	if (trust_warn(&w->trust, why))
		log_warning("%s", why);
	timer_start(&w->loop, &w->warn, num_now_ns() + WARN_NS);
}

static void daemon_on_warn(struct timer *timer)
{
	warn_of_certificate(container_of(timer, struct daemon, warn));
}

static void daemon_reload(struct daemon *w)
{
	char why[WHY_SIZE];
	struct trust t;
	SSL_CTX *tls;

	if (load_trust(w->config, &t, &tls, why) < 0) {
		log_error("the certificates stay as they are: %s", why);
		return;
	}
	SSL_CTX_free(w->tls);
	trust_deinit(&w->trust);
	w->trust = t;
	w->tls = tls;
	peers_recheck(&w->peers);
	log_info("the certificates were read again");
	warn_of_certificate(w);
}

static void daemon_on_files_changed(void *userdata, unsigned changed)
{
	struct daemon *w = userdata;

	if (changed & 1) /* reading it may block in the lookup of Unix groups */
		log_warning("%s was changed, and is read at the start only: weightd-sync --check says "
			    "what is wrong with it, and a restart takes it",
			    w->config->path);
	if (changed & ~1u)
		daemon_reload(w);
}

static void watch_files(struct daemon *w)
{
	const struct config *c = w->config;
	const char *const paths[] = {c->path, c->ca, c->certificate, c->key, c->crl};
	int r = file_watch_init(&w->file_watch, &w->loop, daemon_on_files_changed, w);

	for (unsigned i = 0; i < ARRAY_LEN(paths) && r == 0; i++)
		r = paths[i] ? file_watch_add(&w->file_watch, paths[i]) : 0;
	if (r < 0)
		log_warning("nobody tells of changes of sync.conf and of certificates (%s): after those, "
			    "systemctl reload weightd-sync",
			    strerror(-r));
}

static void daemon_on_signal(struct source *source, uint32_t events)
{
	struct daemon *w = container_of(source, struct daemon, signals);
	struct signalfd_siginfo info;

	(void)events;
	if (read(source->fd, &info, sizeof(info)) != sizeof(info))
		return;
	if (info.ssi_signo == SIGHUP)
		daemon_reload(w);
	else
		daemon_stop(w);
}

/* Before there is a thread: it would take signals, too. */
static int watch_signals(struct daemon *w)
{
	sigset_t set;
	int fd, r;

	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGTERM);
	(void)sigaddset(&set, SIGINT);
	(void)sigaddset(&set, SIGHUP);
	(void)sigprocmask(SIG_BLOCK, &set, NULL);
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	r = fd < 0 ? -errno : loop_add(&w->loop, &w->signals, fd, EPOLLIN, daemon_on_signal);
	if (r < 0)
		(void)fd_close(fd);
	return r;
}

/* --- Beginning and end ---------------------------------------------------------------------------- */

static int fill_agent_config(struct daemon *w)
{
	const struct config *c = w->config;
	size_t n = c->n_peers ? c->n_peers : 1;
	const char **names = calloc(n, sizeof(*names)), **addresses = calloc(n, sizeof(*addresses));

	w->agent_config = (struct agent_config){
		.name = c->name,
		.peers = names,
		.n_peers = c->n_peers,
		.peer_addresses = addresses,
		.groups = c->groups,
		.n_groups = c->n_groups,
		.weightd_socket = c->weightd,
		.n_data_addresses = c->n_data_addresses,
		.tls = c->data_tls,
		.transport = c->transport,
		.patches = c->patches,
		.prepare_ns = c->prepare_ns,
		.stall_ns = c->stall_ns,
		.max_bytes = c->max_bytes,
		.repair_rate = c->repair_rate,
	};
	memcpy(w->agent_config.data_addresses, c->data_addresses, sizeof(c->data_addresses));
	for (unsigned i = 0; names && addresses && i < c->n_peers; i++) {
		names[i] = c->peers[i].name;
		addresses[i] = c->peers[i].address;
	}
	return names && addresses ? 0 : -ENOMEM;
}

static int start_agent(struct daemon *w, char why[WHY_SIZE])
{
	json_t *pieces = NULL;
	int r = commit_log_lock(w->config->state, &w->lock_fd, why);

	w->commit_log.folder = w->config->state;
	if (r == 0)
		r = commit_log_load(&w->commit_log, &pieces, why);
	if (r < 0)
		return r;
	if (w->commit_log.n_torn)
		log_warning("the last %ju bytes of the record in %s were not written whole, as by a "
			    "loss of power, and are left out: nobody was told of what they said",
			    (uintmax_t)w->commit_log.n_torn, w->commit_log.folder);
	(void)snprintf(why, WHY_SIZE, "out of memory");
	r = fill_agent_config(w);
	if (r == 0)
		r = agent_new(&env, w, &w->agent_config, &w->agent);
	if (r == 0)
		r = agent_load(w->agent, pieces, why);
	json_decref(pieces);
	return r;
}

static int listen_for_nodes(struct daemon *w, char why[WHY_SIZE])
{
	int r = acceptor_init(&w->acceptor, &w->loop, &w->config->listen_at, daemon_on_call, w);

	if (r < 0)
		(void)snprintf(why, WHY_SIZE, "cannot listen on %s ([node] listen): %s",
			       w->config->listen, strerror(-r));
	return r;
}

static int open_control(struct daemon *w, char why[WHY_SIZE])
{
	w->control_options = (struct control_options){
		.path = w->config->socket,
		.operators = w->config->operators,
		.operators_gid = w->config->operators_gid,
		.agent = w->agent,
		.nodes = daemon_nodes,
		.replicas = daemon_replicas,
		.userdata = w,
	};
	return control_init(&w->control, &w->loop, &w->control_options, why);
}

static void daemon_init(struct daemon *w, const struct config *config)
{
	*w = (struct daemon){.config = config, .lock_fd = -1, .since_ns = clock_ns(CLOCK_REALTIME)};
	w->loop.epoll_fd = -1;
	w->notify.source.fd = -1;
	list_init(&w->notify.lanes);
	w->acceptor.fd = -1;
	w->signals.fd = -1;
	list_init(&w->control.clients);
	trust_init(&w->trust);
	timer_init(&w->agent_timer, daemon_on_agent_timer);
	w->file_watch.source.fd = -1;
	timer_init(&w->file_watch.settle, NULL);
	timer_init(&w->warn, daemon_on_warn);
	timer_init(&w->stop, daemon_on_stop);
	timer_init(&w->acceptor.pause, NULL);
	timer_init(&w->control.pause, NULL);
	timer_init(&w->control.turn, NULL);
	timer_init(&w->notify.watchdog, NULL);
	timer_init(&w->notify.retry, NULL);
	jobs_init(&w->jobs, &w->loop, &jobs_events, w);
	tracing_init(&w->tracing, &w->loop, config->trace, &tracing_events, w);
}

static int init_peers(struct daemon *w)
{
	const struct config *c = w->config;
	const struct net_config net = {
		.name = c->name,
		.data_addresses = c->data_addresses,
		.n_data_addresses = c->n_data_addresses,
		.peers = c->peers,
		.n_peers = c->n_peers,
		.heartbeat_ns = c->heartbeat_ns,
	};

	return peers_init(&w->peers, &w->loop, &net, &w->tls, &peer_events, w);
}

/* All steps that can fail; daemon_deinit() undoes those that succeeded. */
static int daemon_start(struct daemon *w, char why[WHY_SIZE])
{
	int r;

	(void)snprintf(why, WHY_SIZE, "cannot start");
	r = loop_init(&w->loop);
	if (r == 0)
		r = watch_signals(w);
	if (r < 0)
		return r;
	watch_files(w); /* before they are read */
	r = load_trust(w->config, &w->trust, &w->tls, why);
	if (r < 0)
		return r;
	r = notify_init(&w->notify, &w->loop);
	if (r < 0) {
		(void)snprintf(why, WHY_SIZE, "cannot start");
		return r;
	}
	r = start_agent(w, why);
	if (r < 0)
		return r;
	(void)snprintf(why, WHY_SIZE, "cannot start");
	r = init_peers(w);
	if (r == 0)
		r = listen_for_nodes(w, why);
	if (r == 0)
		r = open_control(w, why);
	return r;
}

static void daemon_deinit(struct daemon *w)
{
	if (w->control.options)
		control_deinit(&w->control);
	acceptor_deinit(&w->acceptor);
	if (w->agent)
		(void)agent_flush(w->agent); /* it was logged where it fails */
	w->agent = agent_free(w->agent);
	peers_deinit(&w->peers, "weightd-sync stops there");
	jobs_deinit(&w->jobs);
	tracing_deinit(&w->tracing);
	timer_stop(&w->agent_timer);
	timer_stop(&w->stop);
	timer_stop(&w->warn);
	file_watch_deinit(&w->file_watch);
	notify_deinit(&w->notify);
	loop_remove(&w->signals);
	(void)fd_close(w->signals.fd);
	loop_deinit(&w->loop);
	(void)fd_close(w->lock_fd);
	SSL_CTX_free(w->tls);
	trust_deinit(&w->trust);
	free((void *)w->agent_config.peers);
	free((void *)w->agent_config.peer_addresses);
}

/* Warns of values that are valid and probably not meant. */
static void warn_of(const struct config *config)
{
	const struct transport *t = config->transport;

	if (config->n_data_addresses > 1 && !t->has_stripes)
		log_warning(
			"[data] engine = %s: what %s pushes goes over %s alone, the first data-address; "
			"with engine = tcp it goes over all %u",
			t->name, config->name, config->data_addresses[0], config->n_data_addresses);
	for (unsigned i = 0; i < config->n_groups; i++) {
		const struct group *g = &config->groups[i];

		if (!ownership_can_be_given(&g->ownership))
			log_warning(
				"[group %s] group = %s: uid %u, which this runs as, is not in that group, and a "
				"weightd that is not its own will refuse it; add the user to it (usermod -aG) "
				"and start this anew",
				g->name, g->ownership.unix_group, geteuid());
	}
}

int daemon_run(const struct config *config)
{
	char why[WHY_SIZE], status[64];
	struct daemon w;
	int r;

	log_fields_init(config->name);
	daemon_init(&w, config);
	r = daemon_start(&w, why);
	if (r < 0) {
		log_error("%s", why);
	} else {
		warn_of_certificate(&w);
		warn_of(config);
		log_info("node %s listens on %s for %u peer%s, and on %s", config->name,
			 config->listen, config->n_peers, config->n_peers == 1 ? "" : "s",
			 config->socket);
		peers_start(&w.peers, w.agent);
		format_status(&w, status, sizeof(status));
		notify_ready(&w.notify, status);
		r = loop_run(&w.loop);
		log_info("node %s stops", config->name);
	}
	daemon_deinit(&w);
	return r;
}

int daemon_check(const struct config *config)
{
	char why[WHY_SIZE];
	struct trust trust;
	SSL_CTX *tls;
	int r = load_trust(config, &trust, &tls, why);

	if (r < 0) {
		log_error("%s", why);
		return r;
	}
	if (trust_warn(&trust, why))
		log_warning("%s", why);
	warn_of(config);
	SSL_CTX_free(tls);
	trust_deinit(&trust);
	return 0;
}
