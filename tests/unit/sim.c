/*
 * One queue of all future events, in the order of virtual time, with random delays. A node that
 * dies in the middle of a call into its agent sends nothing more, and is freed after the call.
 */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "ipc/base/num.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/state/transport.h"
#include "sim_collective.h"
#include "sim_jobs.h"
#include "sim_link.h"
#include "sim_reshard.h"

#define EPOCH_NS ((uint64_t)1700000000 * SIM_SECOND)
#define PIECES_MAX 4 /* pieces of a record; one more rewrites all */

/* --- Randomness and time ----------------------------------------------------------------------- */

uint64_t sim_random(struct sim *s, uint64_t n)
{
	s->random ^= s->random << 13;
	s->random ^= s->random >> 7;
	s->random ^= s->random << 17;
	return n ? s->random % n : 0;
}

uint64_t sim_jitter(struct sim *s, uint64_t ns)
{
	return s->options.is_quiet ? ns / 2 : 1 + sim_random(s, ns);
}

/* --- The environment ----------------------------------------------------------------------------------- */

static uint64_t env_now(void *userdata)
{
	return ((struct sim_node *)userdata)->sim->now_ns;
}

static uint64_t env_time(void *userdata)
{
	struct sim_node *n = userdata;

	return EPOCH_NS + n->sim->now_ns + n->clock_skew_ns;
}

static void env_random(void *userdata, void *ret, size_t size)
{
	struct sim_node *n = userdata;

	for (size_t i = 0; i < size; i++)
		((uint8_t *)ret)[i] = (uint8_t)(sim_random(n->sim, 1 << 20) >> 5);
}

static void env_set_timer(void *userdata, uint64_t deadline)
{
	struct sim_node *n = userdata;

	n->timer_ns = deadline;
	if (deadline)
		sim_queue_push(&n->sim->queue,
			       (struct event){.at_ns = deadline > n->sim->now_ns ? deadline
										 : n->sim->now_ns,
					      .kind = EVENT_TIMER,
					      .to = n->index,
					      .id = deadline});
}

static void env_hang_up(void *userdata, unsigned peer, const char *why)
{
	struct sim_node *n = userdata;

	(void)why;
	if (!n->is_dying)
		sim_link_drop(n->sim, n->index, sim_link_to(n, peer));
}

static int env_job_start(void *userdata, enum job_kind kind, const char *buffer, void *owner,
			 struct job **ret, char why[WHY_SIZE])
{
	struct sim_node *n = userdata;
	struct job *j = calloc(1, sizeof(*j));

	(void)buffer, (void)why;
	assert_non_null(j);
	j->node = n;
	j->kind = kind;
	j->owner = owner;
	j->id = ++n->sim->n_ids;
	j->hangs = n->jobs_hang;
	ranges_init(&j->ranges);
	list_init(&j->link);
	list_init(&j->engine_link);
	if (kind == JOB_WATCH)
		n->watch = j;
	else
		list_append(&n->jobs, &j->link);
	if (kind == JOB_TCP || kind == JOB_GLOO)
		list_append(&n->sim->engines, &j->engine_link);
	*ret = j;
	return 0;
}

static void env_job_tell(void *userdata, struct job *j, const json_t *message, const int *fds,
			 unsigned n_fds)
{
	struct sim_node *n = userdata;

	if (n->is_dying || j->hangs || n->jobs_hang || j->kind == JOB_WATCH)
		return;
	if (j->kind == JOB_SOURCE)
		sim_source_told(j, message, fds, n_fds);
	else if (j->kind == JOB_SINK)
		sim_sink_told(j, message, fds, n_fds);
	else if (j->kind == JOB_GLOO)
		sim_gloo_told(j, message, fds, n_fds);
	else if (j->kind == JOB_PLANNER)
		sim_planner_told(j, message, fds, n_fds);
	else
		sim_engine_told(j, message, fds, n_fds);
}

static void env_job_end(void *userdata, struct job *j)
{
	struct sim_node *n = userdata;

	if (j == n->watch)
		n->watch = NULL;
	/* It may have been quicker than the end of its socket. */
	if (j->is_publishing && sim_random(n->sim, 2))
		sim_publish(j);
	sim_job_free(j);
}

static void note_decided(struct sim_node *n, const json_t *piece)
{
	struct sim *s = n->sim;
	json_t *row;
	size_t i;

	json_array_foreach(json_object_get(piece, "heads"), i, row)
	{
		cleanup(json_freep) json_t *d = json_loads(sim_text(row, "document"), 0, NULL);
		uint8_t root[32];
		uint64_t content;

		assert_int_equal(field_bytes(d, "root", root, 32), 0);
		content = sim_content_of(root);
		if (strcmp(sim_text(d, "publisher"), n->name) != 0 || sim_is_decided(s, content))
			continue;
		assert_true(s->n_decided < ARRAY_LEN(s->decided) && content < ARRAY_LEN(s->pairs));
		s->decided[s->n_decided++] = content;
		s->pairs[content][0] = sim_number(d, "term");
		s->pairs[content][1] = sim_number(d, "number");
	}
}

/* There is no weightd-trace. */
static void env_trace(void *userdata, const json_t *request, int fd)
{
	(void)userdata, (void)request, (void)fd;
}

static void env_trace_job(void *userdata, const json_t *request, struct job *job)
{
	(void)userdata, (void)request, (void)job;
}

static void env_trace_drop(void *userdata, const char *sync)
{
	(void)userdata, (void)sync;
}

static int env_may_save(void *userdata, char why[WHY_SIZE])
{
	const struct sim_node *n = userdata;

	snprintf(why, WHY_SIZE, "its commit log cannot be written: the disk is full");
	return n->disk_is_full ? -ENOSPC : 0;
}

static int env_save(void *userdata, const json_t *piece, bool is_all)
{
	struct sim_node *n = userdata;
	bool dies;

	if (!is_all && json_array_size(n->commit_log) % PIECES_MAX == 0)
		return SAVE_ALL;
	dies = ++n->n_saves == n->die_at_save;
	if (n->is_dying || n->saves_fail || n->disk_is_full)
		return -ENOSPC;
	if (!dies || !n->die_before_it) {
		if (is_all) {
			json_decref(n->commit_log);
			n->commit_log = json_array();
		}
		json_array_append_new(n->commit_log, json_deep_copy(piece));
		note_decided(n, piece);
	}
	n->is_dying = dies;
	return 0;
}

static uint64_t checksum(const char *text, const char *name)
{
	uint64_t h = 1469598103934665603u;

	for (; *text; text++)
		h = (h ^ (uint8_t)*text) * 1099511628211u;
	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * 1099511628211u;
	return h;
}

static bool env_may_dial(void *userdata, const char *address, const char *whose, char why[WHY_SIZE])
{
	const struct sim *s = ((struct sim_node *)userdata)->sim;

	if (!s->untrusted || strcmp(address, s->untrusted) != 0)
		return true;
	snprintf(why, WHY_SIZE, "%s of %s is not trusted", address, whose);
	return false;
}

static int env_sign(void *userdata, const char *text, char *ret, size_t size)
{
	snprintf(ret, size, "%016jx",
		 (uintmax_t)checksum(text, ((struct sim_node *)userdata)->name));
	return 0;
}

static const char *env_certificate(void *userdata)
{
	const struct sim_node *n = userdata;

	return n->is_renewed ? n->renewed : n->name;
}

static bool is_over(struct sim_node *n, const struct sim_node *of, uint64_t time_ns)
{
	return of->over_ns && (time_ns == TIME_NOW ? env_time(n) : time_ns) > EPOCH_NS + of->over_ns;
}

static int env_check(void *userdata, const char *text, const char *signature,
		     const char *certificate, const char *name, uint64_t time_ns, char why[WHY_SIZE])
{
	const struct sim *s = ((struct sim_node *)userdata)->sim;
	char expected[32];

	snprintf(expected, sizeof(expected), "%016jx", (uintmax_t)checksum(text, name));
	snprintf(why, WHY_SIZE, "the signature is not that of %s", name);
	for (unsigned i = 0; i < s->options.n_nodes && strcmp(expected, signature) == 0; i++) {
		const struct sim_node *of = &s->nodes[i];

		if (strcmp(of->name, name) != 0)
			continue;
		if (strcmp(certificate, of->renewed) == 0)
			return 0;
		if (strcmp(certificate, of->name) == 0 && !is_over(userdata, of, time_ns))
			return 0;
		snprintf(why, WHY_SIZE, "the certificate of %s is over", name);
	}
	return -EKEYREJECTED;
}

static void take_plan(struct sim_node *n, const json_t *event)
{
	json_t *links = json_object_get(event, "links"), *before = json_object_get(n->plan, "links");
	json_int_t n_links = json_integer_value(json_object_get(event, "n_links"));

	if (before && (json_int_t)json_array_size(before) < n_links &&
	    strcmp(sim_text(n->plan, "sync"), sim_text(event, "sync")) == 0) {
		json_array_extend(before, links);
		return;
	}
	json_decref(n->plan);
	n->plan = json_deep_copy(event);
}

static void env_event(void *userdata, const json_t *event)
{
	struct sim_node *n = userdata;
	const char *why;
	uint64_t took;

	if (strcmp(sim_text(event, "event"), "plan") == 0)
		take_plan(n, event);
	if (strcmp(sim_text(event, "event"), "left") == 0) {
		assert_null(n->left);
		n->left = json_deep_copy(event);
	}
	if (strcmp(sim_text(event, "event"), "end") != 0)
		return;
	took = sim_number(event, "ended_ns") - sim_number(event, "started_ns");
	n->sim->longest_ns = took > n->sim->longest_ns ? took : n->sim->longest_ns;
	json_decref(n->end);
	n->end = json_deep_copy(event);
	why = json_string_value(json_object_get(event, "why"));
	snprintf(n->why, sizeof(n->why), "%s", why ? why : "");
	snprintf(n->outcome, sizeof(n->outcome), "%s", sim_text(event, "state"));
}

static const struct env ENV = {
	.now_ns = env_now,
	.time_ns = env_time,
	.random = env_random,
	.set_timer = env_set_timer,
	.send = sim_link_send,
	.send_blob = sim_link_send_blob,
	.hang_up = env_hang_up,
	.job_start = env_job_start,
	.job_tell = env_job_tell,
	.job_end = env_job_end,
	.may_dial = env_may_dial,
	.trace = env_trace,
	.trace_job = env_trace_job,
	.trace_drop = env_trace_drop,
	.may_save = env_may_save,
	.save = env_save,
	.sign = env_sign,
	.certificate = env_certificate,
	.check = env_check,
	.event = env_event,
};

/* --- Nodes -------------------------------------------------------------------------------------- */

void sim_settle_death(struct sim_node *n)
{
	if (n->is_dying)
		sim_kill(n->sim, n->index);
}

void sim_start(struct sim *s, unsigned node)
{
	struct sim_node *n = &s->nodes[node];
	char why[WHY_SIZE];

	assert_null(n->agent);
	n->is_dying = false;
	assert_int_equal(agent_new(&ENV, n, &n->config, &n->agent), 0);
	assert_int_equal(agent_load(n->agent, n->commit_log, why), 0);
	sim_settle_death(n);
	sim_link_dial_all(s, node);
}

void sim_kill(struct sim *s, unsigned node)
{
	struct sim_node *n = &s->nodes[node];

	if (!n->agent)
		return;
	n->is_dying = true; /* nothing that it sends from now on is delivered */
	n->agent = agent_free(n->agent);
	n->timer_ns = 0;
	n->die_at_save = 0;
	sim_link_drop_all(s, node);
}

bool sim_kill_job(struct sim *s, unsigned node, enum job_kind kind)
{
	struct job *j;

	list_for_each(j, &s->nodes[node].jobs, link) {
		if (j->kind != kind)
			continue;
		sim_queue_push(&s->queue, (struct event){.at_ns = s->now_ns,
							 .kind = EVENT_JOB_END,
							 .to = node,
							 .id = j->id});
		return true;
	}
	return false;
}

/* Steals `message`. */
static void tell_watch(struct sim_node *n, json_t *message)
{
	if (n->watch)
		sim_queue_push(&n->sim->queue, (struct event){.at_ns = n->sim->now_ns + MS,
							      .kind = EVENT_JOB,
							      .to = n->index,
							      .id = n->watch->id,
							      .json = message});
	else
		json_decref(message);
}

void sim_lose_data(struct sim *s, unsigned node)
{
	s->nodes[node].n_versions = 0;
	tell_watch(&s->nodes[node], json_pack("{s:s}", "op", "missed"));
}

void sim_remove(struct sim *s, unsigned node, uint64_t version)
{
	if (version)
		s->nodes[node].n_versions = 0;
	tell_watch(&s->nodes[node],
		   json_pack("{s:s, s:s, s:s, s:I}", "op", "removed", "buffer", SIM_BUFFER,
			     "device", "host", "version", (json_int_t)version));
}

void sim_find_data(struct sim *s, unsigned node)
{
	struct sim_node *n = &s->nodes[node];

	while (n->n_versions < ARRAY_LEN(n->versions) && n->versions[n->n_versions].number)
		n->n_versions++;
	tell_watch(n, json_pack("{s:s}", "op", "missed"));
}

void sim_replace(struct sim *s, unsigned node)
{
	struct sim_node *n = &s->nodes[node];
	uint64_t before = sim_newest(n, SIM_BUFFER)->number;

	n->n_versions--;
	sim_add_version(n, SIM_BUFFER, ++s->n_contents, s->options.n_bytes);
	tell_watch(n, json_pack("{s:s, s:s, s:s, s:I, s:b}", "op", "gone", "buffer", SIM_BUFFER,
				"device", "host", "version", (json_int_t)before, "lost", 0));
}

static void on_job(struct sim *s, struct event *e)
{
	struct sim_node *n = &s->nodes[e->to];
	struct job *j = sim_job_find(n, e->id);

	if (!j || !n->agent || j->hangs || n->jobs_hang)
		return;
	if (strcmp(sim_text(e->json, "op"), "published") == 0) {
		sim_publish(j);
		j->is_publishing = false;
		json_object_set_new(e->json, "version", json_integer((json_int_t)n->last_number));
	}
	agent_on_job(n->agent, j->owner, e->json, e->fds, e->n_fds);
	sim_settle_death(n);
}

static void on_job_end(struct sim *s, const struct event *e)
{
	struct sim_node *n = &s->nodes[e->to];
	struct job *j = sim_job_find(n, e->id);
	void *owner = j ? j->owner : NULL;

	if (!j || !n->agent)
		return;
	if (j->is_publishing && sim_random(s, 2))
		sim_publish(j);
	sim_job_free(j);
	agent_on_job_end(n->agent, owner, "signal 9");
	sim_settle_death(n);
}

static void on_timer(struct sim *s, const struct event *e)
{
	struct sim_node *n = &s->nodes[e->to];

	if (!n->agent || n->timer_ns != e->id)
		return;
	n->timer_ns = 0;
	agent_on_timer(n->agent);
	sim_settle_death(n);
}

static void happen(struct sim *s, struct event *e)
{
	switch (e->kind) {
	case EVENT_MESSAGE:
	case EVENT_BLOB:
		sim_link_on_message(s, e);
		break;
	case EVENT_JOB:
		on_job(s, e);
		break;
	case EVENT_JOB_END:
		on_job_end(s, e);
		break;
	case EVENT_TIMER:
		on_timer(s, e);
		break;
	case EVENT_DOWN:
		sim_link_on_down(s, e);
		break;
	case EVENT_DIAL:
		sim_link_on_dial(s, e);
		break;
	case EVENT_TICK:
		sim_tick(s);
		break;
	}
	sim_event_deinit(e);
}

static bool never(struct sim *s)
{
	(void)s;
	return false;
}

bool sim_run_until(struct sim *s, bool (*is_true)(struct sim *s), uint64_t ns)
{
	uint64_t end = s->now_ns + ns;

	while (!is_true(s)) {
		struct event e;

		if (!s->queue.n || sim_queue_peek(&s->queue)->at_ns > end) {
			s->now_ns = end;
			return is_true(s);
		}
		e = sim_queue_pop(&s->queue);
		s->now_ns = e.at_ns > s->now_ns ? e.at_ns : s->now_ns;
		happen(s, &e);
	}
	return true;
}

void sim_run(struct sim *s, uint64_t ns)
{
	(void)sim_run_until(s, never, ns);
}

int sim_ask(struct sim *s, unsigned node, const json_t *request, sim_ask_fn *fn,
	    char ret_sync[SYNC_ID_SIZE])
{
	struct sim_node *n = &s->nodes[node];
	char why[WHY_SIZE] = "";
	int r;

	sim_forget_end(s, node);
	r = fn(n->agent, request, ret_sync, why);
	sim_settle_death(n);
	if (r < 0)
		snprintf(n->why, sizeof(n->why), "%s", why);
	return r;
}

static int begin(struct sim *s, unsigned node, char ret_sync[SYNC_ID_SIZE], sim_ask_fn *fn)
{
	cleanup(json_freep) json_t *request = json_pack("{s:s}", "buffer", SIM_BUFFER);
	struct sim_node *n = &s->nodes[node];
	int r;

	sim_add_version(n, SIM_BUFFER, ++s->n_contents, s->options.n_bytes);
	r = sim_ask(s, node, request, fn, ret_sync);
	if (r < 0)
		n->n_versions--;
	return r;
}

int sim_push(struct sim *s, unsigned node, char ret_sync[SYNC_ID_SIZE])
{
	return begin(s, node, ret_sync, agent_push);
}

int sim_plan(struct sim *s, unsigned node, char ret_sync[SYNC_ID_SIZE])
{
	return begin(s, node, ret_sync, agent_plan);
}

bool sim_is_idle(struct sim *s)
{
	struct job *j;

	for (unsigned i = 0; i < s->options.n_nodes; i++)
		list_for_each(j, &s->nodes[i].jobs, link)
			if (!s->options.n_patch || j->kind != JOB_SOURCE) /* a kept source */
				return false;
	return true;
}

bool sim_ended(struct sim *s)
{
	return s->nodes[0].end;
}

void sim_forget_end(struct sim *s, unsigned node)
{
	json_decref(s->nodes[node].end);
	s->nodes[node].end = NULL;
	json_decref(s->nodes[node].left);
	s->nodes[node].left = NULL;
	s->nodes[node].outcome[0] = '\0';
}

bool sim_is_converged(struct sim *s)
{
	uint64_t content = 0;

	if (!sim_is_idle(s))
		return false;
	for (unsigned i = 0; i < s->options.n_nodes; i++) {
		if (!s->nodes[i].agent)
			continue;
		if (content && sim_serves(s, i) != content)
			return false;
		content = sim_serves(s, i);
	}
	return content;
}

static void node_init(struct sim *s, unsigned i)
{
	struct sim_node *n = &s->nodes[i];
	unsigned n_peers = 0;

	n->sim = s;
	n->index = i;
	n->rate = 256 * MIB;
	list_init(&n->jobs);
	n->peers = calloc(s->options.n_nodes, sizeof(*n->peers));
	assert_non_null(n->peers);
	for (unsigned j = 0; j < s->options.n_nodes; j++)
		if (j != i)
			n->peers[n_peers++] = s->names[j];
	n->config = (struct agent_config){
		.name = n->name,
		.peers = n->peers,
		.n_peers = n_peers,
		.peer_addresses = n->peers,
		.groups = &s->group,
		.n_groups = 1,
		.data_addresses = {"127.0.0.1", "127.0.0.2"},
		.n_data_addresses = s->options.n_addresses ? s->options.n_addresses : 1,
		.prepare_ns = 10 * SIM_SECOND,
		.stall_ns = 5 * SIM_SECOND,
		.transport = &transport_tcp,
		.patches = s->options.n_patch,
	};
}

/* Returns the new limit. */
static rlim_t raise_files(void)
{
	struct rlimit files;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
	files.rlim_cur = files.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
	return files.rlim_max;
}

void sim_require_files(unsigned n)
{
	rlim_t most = raise_files();

	if (most >= n)
		return;
	print_message("a process may have %lu descriptors here, not %u (ulimit -Hn)\n",
		      (unsigned long)most, n);
	skip();
}

struct sim *sim_new(const struct sim_options *options)
{
	struct sim *s = calloc(1, sizeof(*s));
	size_t n = options->n_nodes;

	assert_non_null(s);
	(void)raise_files();
	s->options = *options;
	s->options.n_bytes = options->n_bytes ? options->n_bytes : 64 * MIB;
	s->random = options->seed * 0x9e3779b97f4a7c15u + 0x1234567;
	s->now_ns = SIM_SECOND;
	list_init(&s->engines);
	s->nodes = calloc(n, sizeof(*s->nodes));
	s->names = calloc(n, sizeof(*s->names));
	assert_true(s->nodes && s->names);
	sim_links_init(s);
	for (unsigned i = 0; i < n; i++) {
		snprintf(s->nodes[i].name, sizeof(s->nodes[i].name), "n%04u", i);
		snprintf(s->nodes[i].renewed, sizeof(s->nodes[i].renewed), "n%04u anew", i);
		s->names[i] = s->nodes[i].name;
	}
	s->group = (struct group){
		.name = "main",
		.members = s->names,
		.n_members = (unsigned)n,
		.publishers = s->names,
		.n_publishers = options->n_publishers ? options->n_publishers : 1,
		.buffers = "*",
		.policy = options->policy,
		.device = GROUP_DEVICE_DEFAULT,
	};
	for (unsigned i = 0; i < n; i++)
		node_init(s, i);
	for (unsigned i = 0; i < n; i++)
		sim_start(s, i);
	return s;
}

void sim_free(struct sim *s)
{
	for (unsigned i = 0; i < s->options.n_nodes; i++) {
		sim_kill(s, i);
		json_decref(s->nodes[i].commit_log);
		json_decref(s->nodes[i].end);
		json_decref(s->nodes[i].left);
		json_decref(s->nodes[i].plan);
		free(s->nodes[i].peers);
	}
	sim_free_patches(s);
	free(s->made);
	sim_queue_deinit(&s->queue);
	free(s->nodes);
	free(s->names);
	sim_links_deinit(s);
	free(s);
}
