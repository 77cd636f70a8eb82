/*
 * Bytes are not stored: a memory consists of its content and its correct ranges. Descriptors are
 * real, since agents duplicate and close them; their files contain the address of the object.
 */
#include "sim_jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "ipc/base/num.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/base/json_packet.h"
#include "sim_collective.h"
#include "sim_link.h"
#include "sim_reshard.h"

/* --- Descriptors -------------------------------------------------------------------------------- */

int sim_dup_fd(int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);

	assert_true(copy >= 0);
	return copy;
}

int sim_file_of(const void *pointer)
{
	int fd = memfd_create("sim", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, &pointer, sizeof(pointer), 0), sizeof(pointer));
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW), 0);
	return fd;
}

void *sim_pointer_of(int fd)
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

uint64_t sim_content_of(const uint8_t root[32])
{
	uint64_t content;

	memcpy(&content, root, sizeof(content));
	return content;
}

/* The ranges of a content that differ from another one, which may be larger or smaller. */
static void differ(const struct sim *s, const struct sim_version *x, const struct sim_version *y,
		   struct ranges *ret)
{
	uint64_t later = x->content > y->content ? x->content : y->content;
	uint64_t earlier = x->content < y->content ? x->content : y->content;
	uint64_t both = x->n_bytes < y->n_bytes ? x->n_bytes : y->n_bytes;

	if (!s->options.n_changed && earlier != later)
		both = 0;
	assert_int_equal(ranges_add(ret, both, x->n_bytes - both), 0);
	for (uint64_t i = earlier + 1; i <= later; i++) {
		uint64_t offset = i * 7 * MIB % x->n_bytes, left = x->n_bytes - offset;

		assert_int_equal(ranges_add(ret, offset,
					    left < s->options.n_changed ? left
									: s->options.n_changed),
				 0);
	}
}

static struct memory *memory_new(uint64_t content, uint64_t n_bytes)
{
	struct memory *m = calloc(1, sizeof(*m));

	assert_non_null(m);
	m->content = content;
	m->n_bytes = n_bytes;
	m->n_refs = 1;
	ranges_init(&m->wrong);
	return m;
}

/* All of it is missing still. */
static struct memory *patch_new(struct sim *s, uint64_t n_bytes)
{
	struct memory *m = memory_new(0, n_bytes);

	m->is_patch = true;
	assert_int_equal(ranges_add(&m->wrong, 0, n_bytes), 0);
	s->patches = reallocarray(s->patches, s->n_patches + 1, sizeof(struct memory *));
	assert_non_null(s->patches);
	return s->patches[s->n_patches++] = m;
}

/* Complete. */
static struct memory *patch_of(struct sim *s, uint64_t from, uint64_t to, uint64_t n_bytes)
{
	struct memory *m = patch_new(s, n_bytes);

	ranges_deinit(&m->wrong);
	ranges_init(&m->wrong);
	m->from = from;
	m->to = to;
	return m;
}

static void memory_unref(struct memory *m)
{
	if (!m || --m->n_refs)
		return;
	ranges_deinit(&m->wrong);
	free(m);
}

void sim_free_patches(struct sim *s)
{
	for (unsigned i = 0; i < s->n_patches; i++)
		memory_unref(s->patches[i]);
	free(s->patches);
}

struct sim_version *sim_newest(struct sim_node *n, const char *buffer)
{
	for (unsigned i = n->n_versions; i > 0; i--)
		if (strcmp(n->versions[i - 1].buffer, buffer) == 0)
			return &n->versions[i - 1];
	return NULL;
}

void sim_add_version(struct sim_node *n, const char *buffer, uint64_t content, uint64_t n_bytes)
{
	struct sim_version v = {.number = ++n->last_number,
				.content = content,
				.n_bytes = n_bytes,
				.has_companions = n->has_companions};

	snprintf(v.buffer, sizeof(v.buffer), "%s", buffer);
	if (n->n_versions == ARRAY_LEN(n->versions)) {
		memmove(n->versions, n->versions + 1, sizeof(n->versions) - sizeof(n->versions[0]));
		n->n_versions--;
	}
	n->versions[n->n_versions++] = v;
}

uint64_t sim_serves_of(const struct sim *s, unsigned node, const char *buffer)
{
	struct sim_version *v = sim_newest(&s->nodes[node], buffer);

	return v ? v->content : 0;
}

uint64_t sim_serves(const struct sim *s, unsigned node)
{
	return sim_serves_of(s, node, SIM_BUFFER);
}

bool sim_is_decided(const struct sim *s, uint64_t content)
{
	for (uint64_t i = 0; i < s->n_decided; i++)
		if (s->decided[i] == content)
			return true;
	return false;
}

/*
 * The invariant of these tests: a version is published only after its publisher decided on it, and
 * no older one replaces it. A shard is published only after all shards of its sync were verified.
 */
void sim_publish(struct job *j)
{
	struct sim_node *n = j->node;
	struct sim *s = n->sim;
	const struct sim_version *before = sim_newest(n, j->buffer);

	assert_true(sim_is_decided(s, j->content) || sim_shard_may_be_published(s, j->content));
	assert_int_equal(j->memory->wrong.n, 0);
	if (before && s->pairs[before->content][0]) {
		const uint64_t *x = s->pairs[before->content], *y = s->pairs[j->content];

		assert_true(x[0] < y[0] || (x[0] == y[0] && x[1] <= y[1]));
	}
	sim_add_version(n, j->buffer, j->content, j->n_bytes);
	n->versions[n->n_versions - 1].has_companions = j->has_companions;
}

/* --- Jobs --------------------------------------------------------------------------------------- */

void sim_job_say(struct job *j, uint64_t delay, json_t *message, int fd0, int fd1, int fd2)
{
	struct event e = {.at_ns = j->node->sim->now_ns + delay,
			  .kind = EVENT_JOB,
			  .to = j->node->index,
			  .id = j->id,
			  .json = message};
	int fds[] = {fd0, fd1, fd2};

	assert_non_null(message);
	for (unsigned i = 0; i < ARRAY_LEN(fds); i++)
		if (fds[i] >= 0)
			e.fds[e.n_fds++] = fds[i];
	sim_queue_push(&j->node->sim->queue, e);
}

static void say(struct job *j, uint64_t delay, json_t *message, int fd)
{
	sim_job_say(j, delay, message, fd, -1, -1);
}

/* The received bytes are in the memory of its node. */
static void land(struct job *j)
{
	struct ranges came;
	struct memory *m = j->memory;
	uint64_t before, after;

	if (j->kind != JOB_TCP || j->is_source || !j->is_started || !m || j->is_over)
		return;
	j->is_over = true;
	ranges_init(&came);
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
}

void sim_job_free(struct job *j)
{
	land(j);
	memory_unref(j->memory);
	ranges_deinit(&j->ranges);
	ranges_deinit(&j->missing);
	memory_unref(j->term);
	json_decref(j->nodes);
	moves_deinit(&j->plan);
	list_remove(&j->link);
	list_remove(&j->engine_link);
	free(j);
}

struct job *sim_job_find(struct sim_node *n, uint64_t id)
{
	struct job *j;

	list_for_each(j, &n->jobs, link)
		if (j->id == id)
			return j;
	return n->watch && n->watch->id == id ? n->watch : NULL;
}

const char *sim_text(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	assert_non_null(s);
	return s;
}

uint64_t sim_number(const json_t *o, const char *key)
{
	assert_true(json_is_integer(json_object_get(o, key)));
	return (uint64_t)json_integer_value(json_object_get(o, key));
}

/* Makes a patch from the base in the message, if both have the same size. */
static struct memory *make_patch(struct job *j, const json_t *base, const int *fds, unsigned n_fds)
{
	uint64_t from;
	uint8_t root[32];

	if (!base)
		return NULL;
	assert_int_equal(n_fds, 2);
	assert_int_equal(field_bytes(base, "root", root, 32), 0);
	from = sim_content_of(root);
	assert_int_equal(((struct memory *)sim_pointer_of(fds[0]))->content, from);
	if (sim_number(base, "n_bytes") != j->n_bytes || from >= j->content)
		return NULL;
	return patch_of(j->node->sim, from, j->content, j->node->sim->options.n_patch);
}

static void compose(struct job *j, const int *fds, unsigned n_fds)
{
	struct memory *first = sim_pointer_of(fds[0]), *last = first;
	uint64_t size = first->n_bytes;

	assert_true(n_fds > 1);
	if (j->node->compose_fails)
		say(j, sim_jitter(j->node->sim, 5 * MS),
		    json_pack("{s:s, s:s}", "op", "composed", "why", "out of memory"), -1);
	if (j->node->compose_fails || j->node->compose_hangs)
		return;
	for (unsigned i = 1; i < n_fds; i++) {
		struct memory *next = sim_pointer_of(fds[i]);

		assert_int_equal(last->to, next->from);
		size += next->n_bytes;
		last = next;
	}
	assert_int_equal(last->to, j->content);
	say(j, sim_jitter(j->node->sim, 50 * MS),
	    json_pack("{s:s, s:I, s:I}", "op", "composed", "size", (json_int_t)size, "changed",
		      (json_int_t)size / 2),
	    sim_file_of(patch_of(j->node->sim, first->from, last->to, size)));
}

static json_t *say_patch(const struct memory *patch)
{
	return patch ? json_pack("{s:I, s:I}", "size", (json_int_t)patch->n_bytes, "changed",
				 (json_int_t)patch->n_bytes / 2)
		     : NULL;
}

static const struct sim_version *find_version(const struct sim_node *n, uint64_t number)
{
	for (unsigned i = 0; i < n->n_versions; i++)
		if (n->versions[i].number == number)
			return &n->versions[i];
	return NULL;
}

static void say_companions(const struct sim_version *v, json_t *told)
{
	uint8_t hash[32];
	char hex[65];

	root_of(v->content, hash);
	hash[30] = 1;
	json_object_update_new(told,
			       json_pack("{s:s, s:i, s:i}", "companions", field_hex(hash, 32, hex),
					 "companions_bytes", SIM_COMPANIONS, "header_bytes", 4096));
}

/* Sends the lent memory, and, after reading it, the root. */
void sim_source_told(struct job *j, const json_t *message, const int *fds, unsigned n_fds)
{
	struct sim_node *n = j->node;
	const char *op = sim_text(message, "op");
	const struct sim_version *found;
	bool lends = strcmp(op, "lend") == 0, gives = strcmp(op, "give") == 0;
	uint64_t wanted, delay = sim_jitter(n->sim, 5 * MS);
	uint8_t layout[32], root[32], leaves[32];
	char hex[65], leaves_hex[65];
	struct memory *patch;
	bool is_lent, has_companions;
	json_t *told;

	if (strcmp(op, "compose") == 0) {
		compose(j, fds, n_fds);
		return;
	}
	if (strcmp(op, "copy") == 0) {
		assert_non_null(j->memory);
		if (!n->copies_hang)
			say(j, delay, json_pack("{s:s}", "op", "copied"), sim_file_of(j->memory));
		return;
	}
	if (strcmp(op, "compare") == 0) {
		sim_job_say(j, delay,
			    json_pack("{s:s, s:s, s:o}", "op", "failed", "code", "layout", "why",
				      json_sprintf("tensor 'w' is F32 on %s, and BF16 on %s",
						   sim_text(message, "node"),
						   sim_text(message, "other"))),
			    -1, -1, -1);
		return;
	}
	snprintf(j->buffer, sizeof(j->buffer), "%s", sim_text(message, "buffer"));
	/* A version on a GPU is copied on request. */
	is_lent = !lends || strcmp(sim_text(message, "device"), "host") == 0;
	wanted = sim_number(message, "version");
	found = wanted ? find_version(n, wanted) : sim_newest(n, j->buffer);
	if (!found) {
		say(j, delay,
		    json_pack("{s:s, s:s, s:s}", "op", "failed", "code", "not-found", "why",
			      n->local_why ? n->local_why : "there is no such version"),
		    -1);
		return;
	}
	if (n->sources_fail && strcmp(op, "look") != 0) {
		say(j, delay,
		    json_pack("{s:s, s:s, s:s}", "op", "failed", "code", "memory", "why",
			      "there is no room to send it from"),
		    -1);
		return;
	}
	n->n_read += !strcmp(sim_text(message, "op"), "attach");
	j->content = found->content;
	j->n_bytes = found->n_bytes;
	j->memory = memory_new(found->content, found->n_bytes);
	root_of(n->layout, layout);
	root_of(found->content, root);
	root_of(found->content, leaves);
	leaves[31] = 1;
	has_companions = found->has_companions && strcmp(op, "attach") == 0;
	told = json_pack("{s:s, s:s, s:I, s:I, s:I, s:s}", "op", "attached", "memory", "host",
			 "version", (json_int_t)found->number, "n_bytes", (json_int_t)found->n_bytes,
			 "layout_bytes", (json_int_t)1000, "layout", field_hex(layout, 32, hex));
	if (has_companions)
		say_companions(found, told);
	sim_job_say(j, delay, told, sim_file_of((const void *)(uintptr_t)found->n_bytes),
		    is_lent ? sim_file_of(j->memory) : -1,
		    lends || has_companions ? sim_file_of(NULL) : -1);
	if (lends || gives)
		return;
	patch = make_patch(j, json_object_get(message, "base"), fds, n_fds);
	sim_job_say(j, delay + sim_jitter(n->sim, 50 * MS),
		    json_pack("{s:s, s:s, s:s, s:o*}", "op", "root", "root",
			      field_hex(root, 32, hex), "leaves", field_hex(leaves, 32, leaves_hex),
			      "patch", say_patch(patch)),
		    sim_file_of((const void *)(uintptr_t)found->content),
		    patch ? sim_file_of(patch) : -1, -1);
}

/*
 * New memory. The base's table decides which leaves it has; the current version with that number
 * decides if they are correct. Returns the missing ranges.
 */
static json_t *fill(struct job *j, const json_t *base, const int *fds)
{
	const struct sim_version whole = {.n_bytes = j->n_bytes, .content = j->content}, none = {0};
	const struct sim_version *there = base ? find_version(j->node, sim_number(base, "version"))
					       : NULL;
	struct sim_version said = none;

	if (there && there->n_bytes == sim_number(base, "n_bytes")) {
		said = *there;
		said.content = (uintptr_t)sim_pointer_of(fds[2]);
	}
	j->base = said.content ? there->content : 0;
	differ(j->node->sim, &whole, &said, &j->missing);
	differ(j->node->sim, &whole, said.content ? there : &none, &j->memory->wrong);
	assert_int_equal(ranges_add_all(&j->memory->wrong, &j->missing), 0);
	return ranges_to_json(&j->missing);
}

/* The missing ranges are correct if the content of the base is within the patch's range. */
static void patch(struct job *j, const struct memory *p)
{
	bool is_right = p && p->is_patch && !p->wrong.n && p->to == j->content &&
			j->base >= p->from && j->base < p->to;

	if (is_right) {
		j->node->n_patched++;
		assert_int_equal(ranges_remove_all(&j->memory->wrong, &j->missing), 0);
	}
	say(j, sim_jitter(j->node->sim, 50 * MS),
	    json_pack("{s:s, s:s*}", "op", "patched", "why", is_right ? NULL : "it is none"), -1);
}

static void create(struct job *j, const json_t *message, const int *fds, unsigned n_fds)
{
	const json_t *companions = json_object_get(message, "companions");
	json_t *missing;
	uint8_t root[32];

	j->has_companions = companions && sim_number(companions, "bytes") == SIM_COMPANIONS;
	j->node->n_companions += j->has_companions;
	j->node->n_told_companions += companions != NULL;
	assert_int_equal(n_fds, (json_object_get(message, "base") ? 3 : 2) + j->has_companions);
	assert_int_equal(field_bytes(message, "root", root, 32), 0);
	j->content = sim_content_of(root);
	j->memory = memory_new(j->content, j->n_bytes);
	missing = fill(j, json_object_get(message, "base"), fds);
	say(j, j->node->room_ns + sim_jitter(j->node->sim, 20 * MS),
	    json_pack("{s:s, s:s, s:o, s:b}", "op", "created", "memory", "host", "missing", missing,
		      "has_base", j->base != 0),
	    sim_file_of(j->memory));
}

/* The engine determines its content. */
static void make(struct job *j, unsigned n_fds)
{
	assert_int_equal(n_fds, 1);
	j->makes = true;
	j->memory = memory_new(0, j->n_bytes);
	assert_int_equal(ranges_add(&j->memory->wrong, 0, j->n_bytes), 0);
	say(j, sim_jitter(j->node->sim, 20 * MS),
	    json_pack("{s:s, s:s}", "op", "created", "memory", "host"), sim_file_of(j->memory));
}

static void begin_sink(struct job *j, const json_t *message, const int *fds, unsigned n_fds)
{
	struct sim_node *n = j->node;

	snprintf(j->buffer, sizeof(j->buffer), "%s", sim_text(message, "buffer"));
	j->n_bytes = sim_number(message, "n_bytes");
	if (n->sinks_fail)
		say(j, sim_jitter(n->sim, 5 * MS),
		    json_pack("{s:s, s:s, s:s}", "op", "failed", "code", "memory", "why",
			      n->local_why ? n->local_why : "host needs 64 MiB more than there are"),
		    -1);
	else if (strcmp(sim_text(message, "op"), "make") == 0)
		make(j, n_fds);
	else
		create(j, message, fds, n_fds);
}

static void verify(struct job *j)
{
	uint64_t delay = sim_jitter(j->node->sim, 50 * MS);
	uint8_t root[32];
	char hex[65];

	root_of(j->content, root);
	if (j->memory->wrong.n)
		say(j, delay,
		    json_pack("{s:s, s:o}", "op", "corrupt", "ranges",
			      ranges_to_json(&j->memory->wrong)),
		    -1);
	else
		say(j, delay,
		    json_pack("{s:s, s:s}", "op", "verified", "root", field_hex(root, 32, hex)), -1);
}

/* Requested only after all bytes are there. */
static void digest_result(struct job *j)
{
	uint8_t root[32], leaves[32];
	char hex[65], leaves_hex[65];

	assert_int_equal(j->memory->wrong.n, 0);
	j->content = j->memory->content;
	sim_shard_verified(j->node->sim, j->content);
	root_of(j->node->lies ? ++j->node->sim->n_contents : j->content, root);
	root_of(j->content, leaves);
	leaves[31] = 1;
	say(j, sim_jitter(j->node->sim, 50 * MS),
	    json_pack("{s:s, s:s, s:s}", "op", "verified", "root", field_hex(root, 32, hex),
		      "leaves", field_hex(leaves, 32, leaves_hex)),
	    sim_file_of((const void *)(uintptr_t)j->content));
}

void sim_sink_told(struct job *j, const json_t *message, const int *fds, unsigned n_fds)
{
	const char *op = sim_text(message, "op");

	if (!j->memory) {
		begin_sink(j, message, fds, n_fds);
	} else if (strcmp(op, "patch") == 0) {
		assert_int_equal(n_fds, 1);
		patch(j, sim_pointer_of(fds[0]));
	} else if (strcmp(op, "verify") == 0) {
		if (j->makes)
			digest_result(j);
		else
			verify(j);
	} else {
		j->is_publishing = true;
		say(j, sim_jitter(j->node->sim, 20 * MS), json_pack("{s:s}", "op", "published"), -1);
	}
}

void sim_tick_later(struct sim *s)
{
	if (s->ticks)
		return;
	s->ticks = true;
	sim_queue_push(&s->queue, (struct event){.at_ns = s->now_ns + TICK, .kind = EVENT_TICK});
}

/* Like the real one: several addresses have a port each. */
static json_t *ports_of(const struct job *j, const json_t *addresses)
{
	json_t *ports = addresses && !j->is_source ? json_array() : NULL;

	for (size_t i = 0; ports && i < json_array_size(addresses); i++)
		json_array_append_new(ports, json_integer((json_int_t)(1 + (j->id + i) % 65535)));
	return ports;
}

void sim_engine_told(struct job *j, const json_t *message, const int *fds, unsigned n_fds)
{
	struct sim *s = j->node->sim;
	const json_t *next, *token;

	if (strcmp(sim_text(message, "op"), "open") == 0) {
		assert_int_equal(n_fds, 1);
		j->n_bytes = sim_number(message, "n_bytes");
		j->memory = sim_pointer_of(fds[0]);
		if (!j->memory) { /* made by the agent itself, for a patch */
			j->memory = patch_new(s, j->n_bytes);
			assert_int_equal(pwrite(fds[0], &j->memory, sizeof(j->memory), 0),
					 sizeof(j->memory));
		}
		j->memory->n_refs++;
		j->is_source = json_is_null(json_object_get(message, "from"));
		token = json_object_get(message, "token");
		snprintf(j->token, sizeof(j->token), "%s",
			 json_is_string(token) ? json_string_value(token) : "");
		if (!j->is_source)
			snprintf(j->from, sizeof(j->from), "%s", sim_text(message, "from"));
		assert_int_equal(ranges_from_json(json_object_get(message, "ranges"), j->n_bytes,
						  &j->ranges),
				 0);
		j->expected = ranges_total(&j->ranges);
		j->stall_ns = sim_number(message, "stall_ms") * MS;
		say(j, sim_jitter(s, 5 * MS),
		    json_pack("{s:s, s:I, s:o*}", "op", "opened", "port",
			      (json_int_t)(j->is_source ? 0 : 1 + j->id % 65535), "ports",
			      ports_of(j, json_object_get(message, "addresses"))),
		    -1);
		return;
	}
	j->is_started = true;
	j->moved_ns = s->now_ns;
	next = json_object_get(message, "next");
	j->has_next = json_is_object(next);
	if (j->has_next) {
		snprintf(j->next_name, sizeof(j->next_name), "%s", sim_text(next, "node"));
		snprintf(j->next_token, sizeof(j->next_token), "%s", sim_text(next, "token"));
	}
	if (j->is_source)
		j->done = j->expected;
	sim_tick_later(s);
}

/* --- Progress of engines ----------------------------------------------------------------------- */

unsigned sim_index_of(const char *name)
{
	return (unsigned)atoi(name + 1);
}

static struct job *next_engine(struct sim *s, struct job *j)
{
	struct sim_node *n = &s->nodes[sim_index_of(j->next_name)];
	struct job *to;

	list_for_each(to, &n->jobs, link)
		if (to->kind == JOB_TCP && strcmp(to->token, j->next_token) == 0)
			return to;
	return NULL;
}

static void engine_fail(struct job *j, const char *why, const char *from, const char *to)
{
	if (j->is_over && !j->is_source)
		return;
	land(j);
	j->is_over = true;
	say(j, sim_jitter(j->node->sim, 2 * MS),
	    json_pack("{s:s, s:s, s:s?, s:s?, s:I}", "op", "failed", "why", why, "from", from, "to",
		      to, "done", (json_int_t)j->done),
	    -1);
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

/* All bytes are there, and forwarded. */
static void engine_done(struct job *j)
{
	json_t *in, *out;

	land(j);
	j->is_over = true;
	wire(j, &in, &out);
	say(j, sim_jitter(j->node->sim, 2 * MS),
	    json_pack("{s:s, s:o, s:o}", "op", "done", "in", in, "out", out), -1);
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
	if (sim_is_cut(s, j->node->index, sim_index_of(j->next_name))) {
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
		assert_int_equal(j->memory->is_patch, to->memory->is_patch);
		if (to->memory->is_patch) {
			to->memory->from = j->memory->from;
			to->memory->to = j->memory->to;
		}
	}
	if (to && to->done == j->expected && j->done == j->expected)
		engine_done(j);
	else if (s->now_ns - j->moved_ns > j->stall_ns)
		engine_fail(j, "no byte moved for 5 s", j->node->name, j->next_name);
}

/* A receiver notices that the previous engine is gone. */
static void engine_listen(struct sim *s, struct job *j)
{
	struct job *other;
	bool has_from = false;

	if (!j->is_started || j->is_over || j->is_source || j->hangs || j->done == j->expected)
		return;
	list_for_each(other, &s->nodes[sim_index_of(j->from)].jobs, link)
		has_from |= other->kind == JOB_TCP &&
			    (!other->is_started || strcmp(other->next_token, j->token) == 0);
	if (sim_is_cut(s, j->node->index, sim_index_of(j->from)))
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
	    -1);
}

/* Follows each chain first, so that its length costs no time. */
void sim_tick(struct sim *s)
{
	struct job *j, *at;

	s->ticks = false;
	list_for_each(j, &s->engines, engine_link)
		if (j->is_source)
			for (at = j; at; at = at->has_next ? next_engine(s, at) : NULL)
				engine_turn(s, at);
	list_for_each(j, &s->engines, engine_link)
		if (j->kind == JOB_GLOO)
			sim_gloo_turn(s, j);
		else
			engine_turn(s, j);
	if (!list_empty(&s->engines))
		sim_tick_later(s);
}
