/*
 * Bytes are not stored: a memory knows of which content it is, and which of its ranges are right. Descriptors
 * are real ones, as agents duplicate and close them, of files that hold the number of what they stand for.
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
#include "server/sync/base/fields.h"
#include "server/sync/base/talk.h"

#define MS ((uint64_t)1000000)
#define TICK (20 * MS)
#define SILENCE (5 * SIM_SECOND)
#define EPOCH_NS ((uint64_t)1700000000 * SIM_SECOND)

enum link {
	LINK_DOWN,
	LINK_UP,
	LINK_CUT_UP,
	LINK_CUT
};

struct memory {
	uint64_t content;
	uint64_t n_bytes;
	struct ranges wrong;
	unsigned n_refs;
};

struct job {
	struct list link; /* sim_node::jobs */
	struct sim_node *node;
	enum job_kind kind;
	void *owner;
	uint64_t id;
	bool hangs;
	uint64_t content; /* source: attached; sink: asked for */
	uint64_t n_bytes;
	struct memory *memory;
	bool is_publishing;

	struct list engine_link; /* sim::engines */
	char token[65];
	char from[NODE_MAX + 1];
	struct ranges ranges;
	uint64_t expected, done, stall_ns, moved_ns, turn_ns;
	bool is_source, is_started, has_next, is_over;
	uint64_t next_port;
	char next_token[65], next_name[NODE_MAX + 1];
	uint64_t last_said;
};

enum event_kind {
	EVENT_MESSAGE,
	EVENT_BLOB,
	EVENT_JOB,
	EVENT_JOB_END,
	EVENT_TIMER,
	EVENT_DOWN,
	EVENT_DIAL,
	EVENT_TICK
};

struct event {
	uint64_t at_ns;
	enum event_kind kind;
	unsigned from, to;
	uint64_t id; /* of a job, or the generation of a link */
	json_t *json;
	int fds[2];
	unsigned n_fds;
	uint8_t hash[32];
	uint64_t size;
};

struct slot {
	uint64_t at_ns, order;
	struct event *event;
};

/* A heap. */
struct sim_queue {
	struct slot *at;
	size_t n, room;
	uint64_t order;
	uint64_t *generations; /* of links */
	uint64_t *last_ns; /* of what was sent last, each way: it stays in order */
};

/* --- Chance and time ---------------------------------------------------------------------------- */

uint64_t sim_random(struct sim *s, uint64_t n)
{
	s->random ^= s->random << 13;
	s->random ^= s->random >> 7;
	s->random ^= s->random << 17;
	return n ? s->random % n : 0;
}

static bool is_before(const struct slot *x, const struct slot *y)
{
	return x->at_ns != y->at_ns ? x->at_ns < y->at_ns : x->order < y->order;
}

static void queue_push(struct sim *s, struct event e)
{
	struct sim_queue *q = s->queue;
	struct slot slot = {e.at_ns, q->order++, malloc(sizeof(e))};
	size_t i = q->n++;

	if (q->n > q->room) {
		q->room = q->room ? 2 * q->room : 256;
		q->at = reallocarray(q->at, q->room, sizeof(*q->at));
	}
	assert_true(q->at && slot.event);
	*slot.event = e;
	for (; i && is_before(&slot, &q->at[(i - 1) / 2]); i = (i - 1) / 2)
		q->at[i] = q->at[(i - 1) / 2];
	q->at[i] = slot;
}

static struct event queue_pop(struct sim *s)
{
	struct sim_queue *q = s->queue;
	struct slot first = q->at[0], last = q->at[--q->n];
	struct event e = *first.event;
	size_t i = 0, child;

	while ((child = 2 * i + 1) < q->n) {
		if (child + 1 < q->n && is_before(&q->at[child + 1], &q->at[child]))
			child++;
		if (!is_before(&q->at[child], &last))
			break;
		q->at[i] = q->at[child];
		i = child;
	}
	if (q->n)
		q->at[i] = last;
	free(first.event);
	return e;
}

static void event_deinit(struct event *e)
{
	json_decref(e->json);
	for (unsigned i = 0; i < e->n_fds; i++)
		if (e->fds[i] >= 0)
			close(e->fds[i]);
}

static uint64_t jitter(struct sim *s, uint64_t ns)
{
	return s->options.is_quiet ? ns / 2 : 1 + sim_random(s, ns);
}

/* --- Descriptors -------------------------------------------------------------------------------- */

static int dup_fd(int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);

	assert_true(copy >= 0);
	return copy;
}

static int file_of(const void *pointer)
{
	int fd = memfd_create("sim", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, &pointer, sizeof(pointer), 0), sizeof(pointer));
	return fd;
}

static void *pointer_of(int fd)
{
	void *pointer;

	assert_int_equal(pread(fd, &pointer, sizeof(pointer), 0), sizeof(pointer));
	return pointer;
}

/* --- Contents ----------------------------------------------------------------------------------- */

static void root_of(uint64_t content, uint8_t ret[32])
{
	memset(ret, 0x5a, 32);
	memcpy(ret, &content, sizeof(content));
}

static uint64_t content_of(const uint8_t root[32])
{
	uint64_t content;

	memcpy(&content, root, sizeof(content));
	return content;
}

static struct memory *memory_new(uint64_t content, uint64_t n_bytes, bool is_right)
{
	struct memory *m = calloc(1, sizeof(*m));

	assert_non_null(m);
	m->content = content;
	m->n_bytes = n_bytes;
	m->n_refs = 1;
	ranges_init(&m->wrong);
	if (!is_right)
		assert_int_equal(ranges_add(&m->wrong, 0, n_bytes), 0);
	return m;
}

static void memory_unref(struct memory *m)
{
	if (!m || --m->n_refs)
		return;
	ranges_deinit(&m->wrong);
	free(m);
}

static struct sim_version *newest(struct sim_node *n)
{
	return n->n_versions ? &n->versions[n->n_versions - 1] : NULL;
}

static void add_version(struct sim_node *n, uint64_t content, uint64_t n_bytes)
{
	if (n->n_versions == ARRAY_LEN(n->versions)) {
		memmove(n->versions, n->versions + 1, sizeof(n->versions) - sizeof(n->versions[0]));
		n->n_versions--;
	}
	n->versions[n->n_versions++] = (struct sim_version){++n->last_number, content, n_bytes};
}

uint64_t sim_serves(const struct sim *s, unsigned node)
{
	struct sim_version *v = newest(&s->nodes[node]);

	return v ? v->content : 0;
}

static bool is_decided(const struct sim *s, uint64_t content)
{
	for (uint64_t i = 0; i < s->n_decided; i++)
		if (s->decided[i] == content)
			return true;
	return false;
}

/* The promise of all this: nothing is read that its publisher did not decide on, and nothing older. */
static void publish(struct job *j)
{
	struct sim_node *n = j->node;
	struct sim *s = n->sim;
	const struct sim_version *before = newest(n);

	assert_true(is_decided(s, j->content));
	assert_int_equal(j->memory->wrong.n, 0);
	if (before && s->pairs[before->content][0]) {
		const uint64_t *x = s->pairs[before->content], *y = s->pairs[j->content];

		assert_true(x[0] < y[0] || (x[0] == y[0] && x[1] <= y[1]));
	}
	add_version(n, j->content, j->n_bytes);
}

/* --- Jobs --------------------------------------------------------------------------------------- */

static void say(struct job *j, uint64_t delay, json_t *message, int fd0, int fd1)
{
	struct event e = {.at_ns = j->node->sim->now_ns + delay,
			  .kind = EVENT_JOB,
			  .to = j->node->index,
			  .id = j->id,
			  .json = message};

	assert_non_null(message);
	if (fd0 >= 0)
		e.fds[e.n_fds++] = fd0;
	if (fd1 >= 0)
		e.fds[e.n_fds++] = fd1;
	queue_push(j->node->sim, e);
}

/* What an engine got is in the memory of its node. */
static void land(struct job *j)
{
	struct ranges came, had;
	struct memory *m = j->memory;
	uint64_t before, after;

	if (j->kind != JOB_ENGINE || j->is_source || !j->is_started || !m || j->is_over)
		return;
	j->is_over = true;
	ranges_init(&came);
	ranges_init(&had);
	assert_int_equal(ranges_prefix(&j->ranges, j->done, &came), 0);
	before = ranges_total(&m->wrong);
	j->node->n_received += j->done;
	if (j->node->n_corrupt && j->done) {
		struct ranges first;

		j->node->n_corrupt--;
		ranges_init(&first);
		assert_int_equal(ranges_prefix(&came, MIB, &first), 0);
		assert_int_equal(ranges_remove_all(&came, &first), 0);
		ranges_deinit(&first);
	}
	assert_int_equal(ranges_remove_all(&m->wrong, &came), 0);
	after = ranges_total(&m->wrong);
	j->node->n_received_again += ranges_total(&came) - (before - after);
	ranges_deinit(&came);
	ranges_deinit(&had);
}

static void job_free(struct job *j)
{
	land(j);
	memory_unref(j->memory);
	ranges_deinit(&j->ranges);
	list_remove(&j->link);
	list_remove(&j->engine_link);
	free(j);
}

static struct job *find_job(struct sim_node *n, uint64_t id)
{
	struct job *j;

	list_for_each(j, &n->jobs, link)
		if (j->id == id)
			return j;
	return NULL;
}

static const char *text(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	assert_non_null(s);
	return s;
}

static uint64_t number(const json_t *o, const char *key)
{
	assert_true(json_is_integer(json_object_get(o, key)));
	return (uint64_t)json_integer_value(json_object_get(o, key));
}

/* What it lends, and, once it has read it, what that is. */
static void source_told(struct job *j, const json_t *message)
{
	struct sim_node *n = j->node;
	const struct sim_version *found = NULL;
	uint64_t wanted = number(message, "version"), delay = jitter(n->sim, 5 * MS);
	uint8_t layout[32], root[32], leaves[32];
	char hex[65], leaves_hex[65];

	for (unsigned i = 0; i < n->n_versions; i++)
		if (!wanted || n->versions[i].number == wanted)
			found = &n->versions[i];
	if (!found) {
		say(j, delay,
		    json_pack("{s:s, s:s, s:s}", "op", "failed", "code", "not-found", "why",
			      "there is no such version"),
		    -1, -1);
		return;
	}
	j->content = found->content;
	j->n_bytes = found->n_bytes;
	j->memory = memory_new(found->content, found->n_bytes, true);
	root_of(0, layout);
	root_of(found->content, root);
	root_of(found->content, leaves);
	leaves[31] = 1;
	say(j, delay,
	    json_pack("{s:s, s:I, s:I, s:I, s:s}", "op", "attached", "version",
		      (json_int_t)found->number, "n_bytes", (json_int_t)found->n_bytes,
		      "layout_bytes", (json_int_t)1000, "layout", field_hex(layout, 32, hex)),
	    file_of(NULL), file_of(j->memory));
	say(j, delay + jitter(n->sim, 50 * MS),
	    json_pack("{s:s, s:s, s:s}", "op", "root", "root", field_hex(root, 32, hex), "leaves",
		      field_hex(leaves, 32, leaves_hex)),
	    file_of(NULL), -1);
}

static void sink_told(struct job *j, const json_t *message, unsigned n_fds)
{
	struct sim *s = j->node->sim;
	const char *op = text(message, "op");
	uint8_t root[32];
	char hex[65];

	if (strcmp(op, "create") == 0) {
		assert_int_equal(n_fds, 2);
		if (j->node->sinks_fail) {
			say(j, jitter(s, 5 * MS),
			    json_pack("{s:s, s:s, s:s}", "op", "failed", "code", "memory", "why",
				      "host needs 64 MiB more than there are"),
			    -1, -1);
			return;
		}
		assert_int_equal(field_bytes(message, "root", root, 32), 0);
		j->content = content_of(root);
		j->n_bytes = number(message, "n_bytes");
		j->memory = memory_new(j->content, j->n_bytes, false);
		say(j, jitter(s, 20 * MS), json_pack("{s:s}", "op", "created"), file_of(j->memory),
		    -1);
	} else if (strcmp(op, "verify") == 0) {
		root_of(j->content, root);
		if (j->memory->wrong.n)
			say(j, jitter(s, 50 * MS),
			    json_pack("{s:s, s:o}", "op", "corrupt", "ranges",
				      ranges_to_json(&j->memory->wrong)),
			    -1, -1);
		else
			say(j, jitter(s, 50 * MS),
			    json_pack("{s:s, s:s}", "op", "verified", "root",
				      field_hex(root, 32, hex)),
			    -1, -1);
	} else {
		j->is_publishing = true;
		say(j, jitter(s, 20 * MS), json_pack("{s:s}", "op", "published"), -1, -1);
	}
}

static void tick_later(struct sim *s)
{
	if (s->ticks)
		return;
	s->ticks = true;
	queue_push(s, (struct event){.at_ns = s->now_ns + TICK, .kind = EVENT_TICK});
}

static void engine_told(struct job *j, const json_t *message, const int *fds, unsigned n_fds)
{
	struct sim *s = j->node->sim;
	const json_t *next, *token;

	if (strcmp(text(message, "op"), "open") == 0) {
		assert_int_equal(n_fds, 1);
		j->memory = pointer_of(fds[0]);
		j->memory->n_refs++;
		j->n_bytes = number(message, "n_bytes");
		j->is_source = json_is_null(json_object_get(message, "from"));
		token = json_object_get(message, "token");
		snprintf(j->token, sizeof(j->token), "%s",
			 json_is_string(token) ? json_string_value(token) : "");
		if (!j->is_source)
			snprintf(j->from, sizeof(j->from), "%s", text(message, "from"));
		assert_int_equal(ranges_from_json(json_object_get(message, "ranges"), j->n_bytes,
						  &j->ranges),
				 0);
		j->expected = ranges_total(&j->ranges);
		j->stall_ns = number(message, "stall_ms") * MS;
		say(j, jitter(s, 5 * MS),
		    json_pack("{s:s, s:I}", "op", "opened", "port",
			      (json_int_t)(j->is_source ? 0 : 1 + j->id % 65535)),
		    -1, -1);
		return;
	}
	j->is_started = true;
	j->moved_ns = s->now_ns;
	next = json_object_get(message, "next");
	j->has_next = json_is_object(next);
	if (j->has_next) {
		snprintf(j->next_name, sizeof(j->next_name), "%s", text(next, "node"));
		snprintf(j->next_token, sizeof(j->next_token), "%s", text(next, "token"));
		j->next_port = number(next, "port");
	}
	if (j->is_source)
		j->done = j->expected;
	tick_later(s);
}

/* --- Engines move ------------------------------------------------------------------------------- */

static size_t link_at(const struct sim *s, unsigned i, unsigned j)
{
	return i < j ? (size_t)i * s->options.n_nodes + j : (size_t)j * s->options.n_nodes + i;
}

static bool is_cut(const struct sim *s, unsigned i, unsigned j)
{
	return s->links[link_at(s, i, j)] >= LINK_CUT_UP;
}

static unsigned index_of(const struct sim *s, const char *name)
{
	(void)s;
	return (unsigned)atoi(name + 1);
}

static struct job *next_engine(struct sim *s, struct job *j)
{
	struct sim_node *n = &s->nodes[index_of(s, j->next_name)];
	struct job *to;

	list_for_each(to, &n->jobs, link)
		if (to->kind == JOB_ENGINE && strcmp(to->token, j->next_token) == 0)
			return to;
	return NULL;
}

static void engine_fail(struct job *j, const char *why, const char *from, const char *to)
{
	if (j->is_over && !j->is_source)
		return;
	land(j);
	j->is_over = true;
	say(j, jitter(j->node->sim, 2 * MS),
	    json_pack("{s:s, s:s, s:s?, s:s?, s:I}", "op", "failed", "why", why, "from", from, "to",
		      to, "done", (json_int_t)j->done),
	    -1, -1);
}

static void wire(struct job *j, json_t **ret_in, json_t **ret_out)
{
	*ret_in = j->is_source ? json_null()
			       : json_pack("{s:I, s:I}", "bytes", (json_int_t)j->expected, "kernel",
					   (json_int_t)j->expected);
	*ret_out = !j->has_next ? json_null()
				: json_pack("{s:I, s:I}", "bytes", (json_int_t)j->expected,
					    "kernel", (json_int_t)j->expected);
}

/* Everything of this one is there, and passed on. */
static void engine_done(struct job *j)
{
	json_t *in, *out;

	land(j);
	j->is_over = true;
	wire(j, &in, &out);
	say(j, jitter(j->node->sim, 2 * MS),
	    json_pack("{s:s, s:o, s:o}", "op", "done", "in", in, "out", out), -1, -1);
}

static void engine_move(struct sim *s, struct job *j)
{
	struct job *to = j->has_next ? next_engine(s, j) : NULL;
	uint64_t room;

	if (!j->is_started || j->is_over || j->hangs || j->node->engines_hang)
		return;
	if (!j->has_next) {
		if (j->done == j->expected)
			engine_done(j);
		return;
	}
	if (is_cut(s, j->node->index, index_of(s, j->next_name))) {
		/* silence */
	} else if (!to) {
		engine_fail(j, "connection reset", j->node->name, j->next_name);
		return;
	} else if (to->is_started && !to->is_over && !to->hangs && !to->node->engines_hang &&
		   to->done < j->done) {
		room = j->done - to->done;
		to->done += to->node->rate / (SIM_SECOND / TICK) < room
				    ? to->node->rate / (SIM_SECOND / TICK)
				    : room;
		to->moved_ns = j->moved_ns = s->now_ns;
	}
	if (to && to->done == j->expected && j->done == j->expected)
		engine_done(j);
	else if (s->now_ns - j->moved_ns > j->stall_ns)
		engine_fail(j, "no byte moved for 5 s", j->node->name, j->next_name);
}

/* Whoever waits for bytes notices that the one before it is gone. */
static void engine_listen(struct sim *s, struct job *j)
{
	struct job *other;
	bool has_from = false;

	if (!j->is_started || j->is_over || j->is_source || j->hangs || j->done == j->expected)
		return;
	list_for_each(other, &s->nodes[index_of(s, j->from)].jobs, link)
		has_from |= other->kind == JOB_ENGINE &&
			    (!other->is_started || strcmp(other->next_token, j->token) == 0);
	if (is_cut(s, j->node->index, index_of(s, j->from)))
		has_from = true;
	if (!has_from)
		engine_fail(j, "connection reset", j->from, j->node->name);
	else if (s->now_ns - j->moved_ns > j->stall_ns)
		engine_fail(j, "no byte came for 5 s", j->from, j->node->name);
}

static void engine_turn(struct sim *s, struct job *j)
{
	if (j->turn_ns == s->now_ns)
		return;
	j->turn_ns = s->now_ns;
	engine_move(s, j);
	engine_listen(s, j);
	if (!j->is_started || j->is_over || j->last_said == j->done)
		return;
	j->last_said = j->done;
	say(j, 1,
	    json_pack("{s:s, s:I, s:I}", "op", "progress", "done", (json_int_t)j->done, "sent",
		      (json_int_t)j->done),
	    -1, -1);
}

/* Along each chain first, so that its length costs no time. */
static void tick(struct sim *s)
{
	struct job *j, *at;

	s->ticks = false;
	list_for_each(j, &s->engines, engine_link)
		if (j->is_source)
			for (at = j; at; at = at->has_next ? next_engine(s, at) : NULL)
				engine_turn(s, at);
	list_for_each(j, &s->engines, engine_link)
		engine_turn(s, j);
	if (!list_empty(&s->engines))
		tick_later(s);
}

/* --- The edge ----------------------------------------------------------------------------------- */

static uint64_t edge_now(void *world)
{
	return ((struct sim_node *)world)->sim->now_ns;
}

static uint64_t edge_time(void *world)
{
	struct sim_node *n = world;

	return EPOCH_NS + n->sim->now_ns + n->clock_skew_ns;
}

static void edge_random(void *world, void *ret, size_t size)
{
	struct sim_node *n = world;

	for (size_t i = 0; i < size; i++)
		((uint8_t *)ret)[i] = (uint8_t)(sim_random(n->sim, 1 << 20) >> 5);
}

static void edge_set_timer(void *world, uint64_t deadline)
{
	struct sim_node *n = world;

	n->timer_ns = deadline;
	if (deadline)
		queue_push(n->sim,
			   (struct event){.at_ns = deadline > n->sim->now_ns ? deadline
									     : n->sim->now_ns,
					  .kind = EVENT_TIMER,
					  .to = n->index,
					  .id = deadline});
}

static unsigned peer_index(const struct sim_node *n, unsigned peer)
{
	return peer < n->index ? peer : peer + 1;
}

static unsigned peer_number(const struct sim_node *n, unsigned index)
{
	return index < n->index ? index : index - 1;
}

static uint64_t arrival(struct sim *s, unsigned from, unsigned to)
{
	uint64_t *last = &s->queue->last_ns[(size_t)from * s->options.n_nodes + to];
	uint64_t at = s->now_ns + jitter(s, 2 * MS);

	*last = at > *last ? at : *last + 1;
	return *last;
}

static int edge_send(void *world, unsigned peer, const json_t *message)
{
	struct sim_node *n = world;
	struct sim *s = n->sim;
	unsigned to = peer_index(n, peer);
	size_t link = link_at(s, n->index, to);

	if (n->is_dying)
		return 0;
	if (s->links[link] != LINK_UP && s->links[link] != LINK_CUT_UP)
		return -ENOTCONN;
	queue_push(s, (struct event){.at_ns = arrival(s, n->index, to),
				     .kind = EVENT_MESSAGE,
				     .from = n->index,
				     .to = to,
				     .id = s->queue->generations[link],
				     .json = json_incref((json_t *)message)});
	return 0;
}

static int edge_send_blob(void *world, unsigned peer, const uint8_t hash[32], int fd, uint64_t size)
{
	struct sim_node *n = world;
	struct sim *s = n->sim;
	unsigned to = peer_index(n, peer);
	size_t link = link_at(s, n->index, to);
	struct event e = {.kind = EVENT_BLOB,
			  .from = n->index,
			  .to = to,
			  .id = s->queue->generations[link],
			  .n_fds = 1,
			  .size = size};

	if (n->is_dying)
		return 0;
	e.at_ns = arrival(s, n->index, to);
	e.fds[0] = dup_fd(fd);
	memcpy(e.hash, hash, 32);
	queue_push(s, e);
	return 0;
}

/* Both ends hear of it, a moment later. */
static void drop_link(struct sim *s, unsigned i, unsigned j, uint64_t delay)
{
	size_t link = link_at(s, i, j);

	queue_push(s, (struct event){.at_ns = s->now_ns + delay,
				     .kind = EVENT_DOWN,
				     .from = i,
				     .to = j,
				     .id = s->queue->generations[link]});
}

static void edge_hang_up(void *world, unsigned peer, const char *why)
{
	struct sim_node *n = world;

	(void)why;
	if (!n->is_dying)
		drop_link(n->sim, n->index, peer_index(n, peer), 1);
}

static int edge_job_start(void *world, enum job_kind kind, void *owner, struct job **ret,
			  char why[WHY_SIZE])
{
	struct sim_node *n = world;
	struct job *j = calloc(1, sizeof(*j));

	(void)why;
	assert_non_null(j);
	j->node = n;
	j->kind = kind;
	j->owner = owner;
	j->id = ++n->sim->n_ids;
	j->hangs = n->jobs_hang;
	ranges_init(&j->ranges);
	list_append(&n->jobs, &j->link);
	list_init(&j->engine_link);
	if (kind == JOB_ENGINE)
		list_append(&n->sim->engines, &j->engine_link);
	*ret = j;
	return 0;
}

static void edge_job_tell(void *world, struct job *j, const json_t *message, const int *fds,
			  unsigned n_fds)
{
	struct sim_node *n = world;

	if (n->is_dying || j->hangs || n->jobs_hang)
		return;
	if (j->kind == JOB_SOURCE)
		source_told(j, message);
	else if (j->kind == JOB_SINK)
		sink_told(j, message, n_fds);
	else
		engine_told(j, message, fds, n_fds);
}

static void edge_job_end(void *world, struct job *j)
{
	struct sim_node *n = world;

	/* It may have been quicker than the end of its socket. */
	if (j->is_publishing && sim_random(n->sim, 2))
		publish(j);
	job_free(j);
}

static void note_decided(struct sim_node *n, const json_t *record)
{
	struct sim *s = n->sim;
	json_t *row;
	size_t i;

	json_array_foreach(json_object_get(record, "heads"), i, row)
	{
		cleanup(json_freep) json_t *d = json_loads(text(row, "document"), 0, NULL);
		uint8_t root[32];
		uint64_t content;

		assert_int_equal(field_bytes(d, "root", root, 32), 0);
		content = content_of(root);
		if (strcmp(text(d, "publisher"), n->name) != 0 || is_decided(s, content))
			continue;
		assert_true(s->n_decided < ARRAY_LEN(s->decided) && content < ARRAY_LEN(s->pairs));
		s->decided[s->n_decided++] = content;
		s->pairs[content][0] = number(d, "term");
		s->pairs[content][1] = number(d, "number");
	}
}

static int edge_save(void *world, const json_t *record)
{
	struct sim_node *n = world;
	bool dies = ++n->n_saves == n->die_at_save;

	if (n->is_dying || n->saves_fail)
		return -ENOSPC;
	if (!dies || !n->die_before_it) {
		json_decref(n->record);
		n->record = json_deep_copy(record);
		note_decided(n, record);
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

static int edge_sign(void *world, const char *text, char *ret, size_t size)
{
	snprintf(ret, size, "%016jx", (uintmax_t)checksum(text, ((struct sim_node *)world)->name));
	return 0;
}

static const char *edge_certificate(void *world)
{
	return ((struct sim_node *)world)->name;
}

static int edge_check(void *world, const char *text, const char *signature, const char *certificate,
		      const char *name, uint64_t time_ns, char why[WHY_SIZE])
{
	char expected[32];

	(void)world, (void)time_ns;
	snprintf(expected, sizeof(expected), "%016jx", (uintmax_t)checksum(text, name));
	if (strcmp(certificate, name) == 0 && strcmp(expected, signature) == 0)
		return 0;
	snprintf(why, WHY_SIZE, "the signature is not that of %s", name);
	return -EKEYREJECTED;
}

static int edge_memory(void *world, const void *data, size_t size, int *ret_fd)
{
	(void)world, (void)data, (void)size;
	*ret_fd = file_of(NULL);
	return 0;
}

static void edge_event(void *world, const json_t *event)
{
	struct sim_node *n = world;
	const char *why;

	if (strcmp(text(event, "event"), "end") != 0)
		return;
	json_decref(n->end);
	n->end = json_deep_copy(event);
	why = json_string_value(json_object_get(event, "why"));
	snprintf(n->why, sizeof(n->why), "%s", why ? why : "");
	snprintf(n->outcome, sizeof(n->outcome), "%s", text(event, "state"));
}

static const struct edge EDGE = {
	.now_ns = edge_now,
	.time_ns = edge_time,
	.random = edge_random,
	.set_timer = edge_set_timer,
	.send = edge_send,
	.send_blob = edge_send_blob,
	.hang_up = edge_hang_up,
	.job_start = edge_job_start,
	.job_tell = edge_job_tell,
	.job_end = edge_job_end,
	.save = edge_save,
	.sign = edge_sign,
	.certificate = edge_certificate,
	.check = edge_check,
	.memory = edge_memory,
	.event = edge_event,
};

/* --- Nodes -------------------------------------------------------------------------------------- */

static void settle_death(struct sim_node *n)
{
	if (n->is_dying)
		sim_kill(n->sim, n->index);
}

static void dial_later(struct sim *s, unsigned i, unsigned j, uint64_t delay)
{
	queue_push(s, (struct event){
			      .at_ns = s->now_ns + delay, .kind = EVENT_DIAL, .from = i, .to = j});
}

void sim_start(struct sim *s, unsigned node)
{
	struct sim_node *n = &s->nodes[node];
	char why[WHY_SIZE];

	assert_null(n->agent);
	n->is_dying = false;
	assert_int_equal(agent_new(&EDGE, n, &n->config, &n->agent), 0);
	assert_int_equal(agent_load(n->agent, n->record, why), 0);
	settle_death(n);
	for (unsigned i = 0; i < s->options.n_nodes; i++)
		if (i != node)
			dial_later(s, node, i, jitter(s, 200 * MS));
}

void sim_kill(struct sim *s, unsigned node)
{
	struct sim_node *n = &s->nodes[node];

	if (!n->agent)
		return;
	n->is_dying = true; /* nothing of what it does now is heard */
	n->agent = agent_free(n->agent);
	n->timer_ns = 0;
	n->die_at_save = 0;
	for (unsigned i = 0; i < s->options.n_nodes; i++)
		if (i != node && s->links[link_at(s, node, i)] != LINK_DOWN &&
		    s->links[link_at(s, node, i)] != LINK_CUT)
			drop_link(s, node, i, 1);
}

bool sim_kill_job(struct sim *s, unsigned node, enum job_kind kind)
{
	struct job *j;

	list_for_each(j, &s->nodes[node].jobs, link) {
		if (j->kind != kind)
			continue;
		queue_push(s, (struct event){.at_ns = s->now_ns,
					     .kind = EVENT_JOB_END,
					     .to = node,
					     .id = j->id});
		return true;
	}
	return false;
}

void sim_lose_data(struct sim *s, unsigned node)
{
	s->nodes[node].n_versions = 0;
}

void sim_cut(struct sim *s, unsigned i, unsigned j, bool cut)
{
	size_t link = link_at(s, i, j);

	if (cut && s->links[link] == LINK_UP) {
		s->links[link] = LINK_CUT_UP;
		drop_link(s, i, j, SILENCE);
	} else if (cut && s->links[link] == LINK_DOWN) {
		s->links[link] = LINK_CUT;
	} else if (!cut && s->links[link] == LINK_CUT_UP) {
		s->links[link] = LINK_UP;
	} else if (!cut && s->links[link] == LINK_CUT) {
		s->links[link] = LINK_DOWN;
		dial_later(s, i, j, jitter(s, 500 * MS));
	}
}

static void tell_down(struct sim *s, unsigned node, unsigned of, const char *why)
{
	struct sim_node *n = &s->nodes[node];

	if (!n->agent)
		return;
	agent_on_peer_down(n->agent, peer_number(n, of), why);
	settle_death(n);
}

static void on_down(struct sim *s, const struct event *e)
{
	size_t link = link_at(s, e->from, e->to);
	const char *why = s->links[link] == LINK_CUT_UP ? "did not answer for 5 s" : "hung up";

	if (e->id != s->queue->generations[link] || s->links[link] == LINK_DOWN ||
	    s->links[link] == LINK_CUT)
		return;
	s->queue->generations[link]++;
	s->links[link] = s->links[link] == LINK_CUT_UP ? LINK_CUT : LINK_DOWN;
	tell_down(s, e->from, e->to, why);
	tell_down(s, e->to, e->from, why);
	if (s->links[link] == LINK_DOWN)
		dial_later(s, e->from, e->to, 200 * MS);
}

static void on_dial(struct sim *s, const struct event *e)
{
	size_t link = link_at(s, e->from, e->to);
	struct sim_node *x = &s->nodes[e->from], *y = &s->nodes[e->to];

	if (s->links[link] != LINK_DOWN || !x->agent || !y->agent)
		return;
	s->links[link] = LINK_UP;
	s->queue->generations[link]++;
	agent_on_peer_up(x->agent, peer_number(x, y->index));
	settle_death(x);
	if (!y->agent)
		return;
	agent_on_peer_up(y->agent, peer_number(y, x->index));
	settle_death(y);
}

static void on_message(struct sim *s, struct event *e)
{
	size_t link = link_at(s, e->from, e->to);
	struct sim_node *n = &s->nodes[e->to];

	if (e->id != s->queue->generations[link] || s->links[link] != LINK_UP || !n->agent ||
	    s->nodes[e->from].is_silent)
		return;
	s->n_messages++;
	if (e->kind == EVENT_BLOB) {
		unsigned peer = peer_number(n, e->from);

		if (agent_blob_limit(n->agent, peer, e->hash) < e->size)
			drop_link(s, e->from, e->to, 1);
		else
			agent_on_blob(n->agent, peer, e->hash, e->fds[0], e->size);
	} else if (!s->on_message || s->on_message(s, e->from, e->to, e->json)) {
		if (n->agent)
			agent_on_message(n->agent, peer_number(n, e->from), e->json);
	}
	settle_death(n);
}

static void on_job(struct sim *s, struct event *e)
{
	struct sim_node *n = &s->nodes[e->to];
	struct job *j = find_job(n, e->id);

	if (!j || !n->agent || j->hangs || n->jobs_hang)
		return;
	if (strcmp(text(e->json, "op"), "published") == 0) {
		publish(j);
		j->is_publishing = false;
		json_object_set_new(e->json, "version", json_integer((json_int_t)n->last_number));
	}
	agent_on_job(n->agent, j->owner, e->json, e->fds, e->n_fds);
	settle_death(n);
}

static void on_job_end(struct sim *s, const struct event *e)
{
	struct sim_node *n = &s->nodes[e->to];
	struct job *j = find_job(n, e->id);
	void *owner = j ? j->owner : NULL;

	if (!j || !n->agent)
		return;
	if (j->is_publishing && sim_random(s, 2))
		publish(j);
	job_free(j);
	agent_on_job_end(n->agent, owner, "signal 9");
	settle_death(n);
}

static void on_timer(struct sim *s, const struct event *e)
{
	struct sim_node *n = &s->nodes[e->to];

	if (!n->agent || n->timer_ns != e->id)
		return;
	n->timer_ns = 0;
	agent_on_timer(n->agent);
	settle_death(n);
}

static void happen(struct sim *s, struct event *e)
{
	switch (e->kind) {
	case EVENT_MESSAGE:
	case EVENT_BLOB:
		on_message(s, e);
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
		on_down(s, e);
		break;
	case EVENT_DIAL:
		on_dial(s, e);
		break;
	case EVENT_TICK:
		tick(s);
		break;
	}
	event_deinit(e);
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

		if (!s->queue->n || s->queue->at[0].at_ns > end) {
			s->now_ns = end;
			return is_true(s);
		}
		e = queue_pop(s);
		s->now_ns = e.at_ns > s->now_ns ? e.at_ns : s->now_ns;
		happen(s, &e);
	}
	return true;
}

void sim_run(struct sim *s, uint64_t ns)
{
	(void)sim_run_until(s, never, ns);
}

int sim_push(struct sim *s, unsigned node, char ret_sync[SYNC_ID_SIZE])
{
	struct sim_node *n = &s->nodes[node];
	static const char REQUEST[] = "{\"buffer\":\"" SIM_BUFFER "\"}";
	cleanup(json_freep) json_t *request = json_loads(REQUEST, 0, NULL);
	char why[WHY_SIZE] = "";
	int r;

	sim_forget_end(s, node);
	add_version(n, ++s->n_contents, s->options.n_bytes);
	r = agent_push(n->agent, request, ret_sync, why);
	settle_death(n);
	if (r < 0) {
		n->n_versions--;
		snprintf(n->why, sizeof(n->why), "%s", why);
	}
	return r;
}

bool sim_is_idle(struct sim *s)
{
	for (unsigned i = 0; i < s->options.n_nodes; i++)
		if (!list_empty(&s->nodes[i].jobs))
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
		.data_address = "127.0.0.1",
		.prepare_ns = 10 * SIM_SECOND,
		.stall_ns = 5 * SIM_SECOND,
	};
}

struct sim *sim_new(const struct sim_options *options)
{
	struct sim *s = calloc(1, sizeof(*s));
	size_t n = options->n_nodes;
	struct rlimit files;

	assert_non_null(s);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
	files.rlim_cur = files.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
	s->options = *options;
	s->options.n_bytes = options->n_bytes ? options->n_bytes : 64 * MIB;
	s->random = options->seed * 0x9e3779b97f4a7c15u + 0x1234567;
	s->now_ns = SIM_SECOND;
	list_init(&s->engines);
	s->nodes = calloc(n, sizeof(*s->nodes));
	s->names = calloc(n, sizeof(*s->names));
	s->links = calloc(n * n, 1);
	s->queue = calloc(1, sizeof(*s->queue));
	s->queue->generations = calloc(n * n, sizeof(uint64_t));
	s->queue->last_ns = calloc(n * n, sizeof(uint64_t));
	assert_true(s->nodes && s->names && s->links && s->queue->generations && s->queue->last_ns);
	for (unsigned i = 0; i < n; i++) {
		snprintf(s->nodes[i].name, sizeof(s->nodes[i].name), "n%04u", i);
		s->names[i] = s->nodes[i].name;
	}
	s->group = (struct group){"main",
				  s->names,
				  (unsigned)n,
				  s->names,
				  options->n_publishers ? options->n_publishers : 1,
				  "*",
				  options->policy};
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
		json_decref(s->nodes[i].record);
		json_decref(s->nodes[i].end);
		free(s->nodes[i].peers);
	}
	while (s->queue->n) {
		struct event e = queue_pop(s);

		event_deinit(&e);
	}
	free(s->queue->at);
	free(s->queue->generations);
	free(s->queue->last_ns);
	free(s->queue);
	free(s->nodes);
	free(s->names);
	free(s->links);
	free(s);
}
