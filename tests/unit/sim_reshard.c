#include "sim_reshard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "ipc/base/fd.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/base/merkle.h"
#include "server/sync/base/planned_bytes.h"

int sim_reshard(struct sim *s, unsigned node, unsigned sources, unsigned targets,
		char ret_sync[SYNC_ID_SIZE])
{
	cleanup(json_freep) json_t *request = json_pack("{s:s, s:[], s:[], s:{}}", "buffer",
							SIM_SHARDS, "sources", "targets", "split");

	for (unsigned i = 0; i < s->options.n_nodes; i++) {
		if (sources & 1u << i)
			json_array_append_new(json_object_get(request, "sources"),
					      json_pack("{s:s, s:s}", "node", s->nodes[i].name,
							"buffer", SIM_BUFFER));
		if (targets & 1u << i)
			json_array_append_new(json_object_get(request, "targets"),
					      json_string(s->nodes[i].name));
	}
	return sim_ask(s, node, request, agent_reshard, ret_sync);
}

/* --- Shards --------------------------------------------------------------------------------------- */

const struct sim_made *sim_shard_of(const struct sim *s, uint64_t content)
{
	const struct sim_made *made = sim_made_of(s, content);

	return made && made->n_shards ? made : NULL;
}

void sim_shard_verified(struct sim *s, uint64_t content)
{
	struct sim_made *made = sim_made_of(s, content);

	if (made)
		made->is_verified = true;
}

bool sim_shard_may_be_published(const struct sim *s, uint64_t content)
{
	const struct sim_made *shard = sim_shard_of(s, content);
	unsigned n = 0;

	for (unsigned i = 0; shard && i < s->n_made; i++)
		n += s->made[i].is_verified && strcmp(s->made[i].sync, shard->sync) == 0;
	return shard && n == shard->n_shards;
}

/* --- The planner ---------------------------------------------------------------------------------- */

/* The bytes of a source for the targets before this one; as even as possible. */
static uint64_t cut(const struct job *j, unsigned source, unsigned target, unsigned n_targets)
{
	return j->given[source] * target / n_targets;
}

/* -1: none. */
static int rank_of(const json_t *places, unsigned place)
{
	for (size_t i = 0; i < json_array_size(places); i++)
		if (json_integer_value(json_array_get(places, i)) == place)
			return (int)i;
	return -1;
}

/* The bytes from one source to one target, and their offset in the target's memory. */
static void add_move(struct moves *m, const struct job *j, unsigned source, unsigned target,
		     unsigned n_targets)
{
	uint64_t from = cut(j, source, target, n_targets), to = 0;
	struct move *move = &m->moves[m->n_moves];

	for (unsigned i = 0; i < source; i++)
		to += cut(j, i, target + 1, n_targets) - cut(j, i, target, n_targets);
	*move = (struct move){.offset = {from, to},
			      .run = cut(j, source, target + 1, n_targets) - from,
			      .n = {1, 1}};
	m->links[m->n_links - 1].n_bytes = move->run;
	m->n_moves++;
}

static void make_plan(const struct job *j, const json_t *sources, const json_t *targets,
		      unsigned n_nodes, struct moves *ret)
{
	unsigned n_sources = (unsigned)json_array_size(sources),
		 n_targets = (unsigned)json_array_size(targets);

	*ret = (struct moves){.n_nodes = n_nodes,
			      .nodes = calloc(n_nodes, sizeof(*ret->nodes)),
			      .links = calloc(n_sources * n_targets, sizeof(*ret->links)),
			      .moves = calloc(n_sources * n_targets, sizeof(*ret->moves))};
	assert_true(ret->nodes && ret->links && ret->moves);
	for (unsigned from = 0; from < n_nodes; from++) {
		int source = rank_of(sources, from);

		if (source < 0)
			continue;
		ret->nodes[from].size[MOVES_FROM] = j->given[source];
		for (unsigned to = 0; to < n_nodes; to++) {
			int target = rank_of(targets, to);

			if (target < 0)
				continue;
			ret->links[ret->n_links++] = (struct moves_link){
				.from = from, .to = to, .first = ret->n_moves, .n_moves = 1};
			add_move(ret, j, (unsigned)source, (unsigned)target, n_targets);
			ret->nodes[to].size[MOVES_TO] += ret->moves[ret->n_moves - 1].run;
		}
	}
}

static void say_blob(struct job *j, uint64_t delay, json_t *message, const void *data, size_t size)
{
	uint8_t hash[32];
	char hex[65];
	int fd;

	merkle_hash(data, size, hash);
	assert_int_equal(fd_sealed_copy("sim-plan", data, size, &fd), 0);
	json_object_set_new(message, "size", json_integer((json_int_t)size));
	json_object_set_new(message, "hash", json_string(field_hex(hash, 32, hex)));
	sim_job_say(j, delay, message, fd, -1, -1);
}

static void say_plan(struct job *j, const json_t *sources, const json_t *targets, unsigned n_nodes)
{
	cleanup(moves_deinit) struct moves plan;
	uint64_t delay = sim_jitter(j->node->sim, 50 * MS);
	size_t n_targets = json_array_size(targets), size;
	void *text;

	make_plan(j, sources, targets, n_nodes, &plan);
	for (unsigned i = 0; i < n_targets; i++) {
		json_int_t place = json_integer_value(json_array_get(targets, i));

		say_blob(j, delay,
			 json_pack("{s:s, s:i, s:I}", "op", "target", "rank", (int)i, "n_bytes",
				   (json_int_t)plan.nodes[place].size[MOVES_TO]),
			 &i, sizeof(i));
	}
	assert_int_equal(moves_encode(&plan, &text, &size), 0);
	say_blob(j, delay, json_pack("{s:s}", "op", "planned"), text, size);
	free(text);
}

void sim_planner_told(struct job *j, const json_t *message, const int *fds, unsigned n_fds)
{
	json_t *sources = json_object_get(message, "sources");

	assert_int_equal(n_fds, 1);
	if (strcmp(sim_text(message, "op"), "layout") == 0) {
		assert_true(j->n_given < COLLECTIVE_OP_NODES_MAX);
		j->given[j->n_given++] = (uintptr_t)sim_pointer_of(fds[0]);
		return;
	}
	assert_int_equal(j->n_given, json_array_size(sources));
	if (j->node->planners_fail)
		sim_job_say(j, sim_jitter(j->node->sim, 50 * MS),
			    json_pack("{s:s, s:s}", "op", "failed", "why",
				      "tensor 'w' cannot be split by 3"),
			    -1, -1, -1);
	else
		say_plan(j, sources, json_object_get(message, "targets"),
			 (unsigned)sim_number(message, "n_nodes"));
}

/* --- The engine ----------------------------------------------------------------------------------- */

/* NULL, or why the plan is invalid. */
static const char *read_plan(struct job *j, int fd)
{
	char why[MOVES_WHY_SIZE];
	uint64_t size;
	void *text;
	int r;

	assert_int_equal(fd_size(fd, &size), 0);
	text = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	assert_true(text != MAP_FAILED);
	merkle_hash(text, size, j->plan_hash);
	r = moves_decode(text, size, &j->plan, why);
	assert_int_equal(munmap(text, size), 0);
	return r < 0 ? "the plan is none" : NULL;
}

static const char *open_exchange(struct job *j, const json_t *order, const int *fds, unsigned n_fds,
				 json_t *opened)
{
	uint64_t result_bytes = sim_number(order, "result_bytes");
	const char *why = read_plan(j, fds[n_fds - 1]);

	(void)opened;
	assert_int_equal(n_fds, 1 + (j->n_bytes > 0) + (result_bytes > 0));
	if (why)
		return why;
	if (j->plan.n_nodes != j->n_ranks || j->plan.nodes[j->rank].size[MOVES_FROM] != j->n_bytes ||
	    j->plan.nodes[j->rank].size[MOVES_TO] != result_bytes)
		return "the plan is of other `nodes`, `n_bytes` or `result_bytes`";
	if (j->n_bytes) {
		j->term = sim_pointer_of(fds[0]);
		j->term->n_refs++;
	}
	if (result_bytes) {
		j->memory = sim_pointer_of(fds[n_fds - 2]);
		j->memory->n_refs++;
	}
	for (unsigned i = 0; i < j->plan.n_links; i++)
		j->expected += j->plan.links[i].to == j->rank ? j->plan.links[i].n_bytes : 0;
	return NULL;
}

static bool is_linked(const struct job *j, unsigned rank)
{
	return moves_link(&j->plan, rank, j->rank) || moves_link(&j->plan, j->rank, rank);
}

static uint64_t n_pieces(const struct moves_link *l)
{
	return l ? (l->n_bytes + COLLECTIVE_OP_CHUNK - 1) / COLLECTIVE_OP_CHUNK : 0;
}

static uint64_t planned(const struct job *j, unsigned from, unsigned to)
{
	const struct moves_link *l = moves_link(&j->plan, from, to);

	return l ? gloo_planned_mesh(n_pieces(l), n_pieces(moves_link(&j->plan, to, from)),
				     l->n_bytes)
		 : 0;
}

static const char *compare(const struct job *j, const struct job *other)
{
	return memcmp(j->plan_hash, other->plan_hash, 32) == 0 ? NULL : "it has another plan";
}

/*
 * The digest of the bytes on a link, from the sender's memory. Wrong digests of the two ends
 * differ.
 */
static json_t *digest(const struct job *j, const struct moves_link *l, enum moves_side side,
		      bool is_wrong)
{
	uint64_t of[] = {sim_engine_at(j, l->from)->term->content, l->from, l->to,
			 is_wrong ? 1 + side : 0};
	uint8_t root[32];
	char hex[65];

	merkle_hash(of, sizeof(of), root);
	return json_pack("{s:s, s:I, s:s}", "node",
			 sim_node_at(j, side == MOVES_FROM ? l->to : l->from), "bytes",
			 (json_int_t)l->n_bytes, "root", field_hex(root, 32, hex));
}

/* The terms of a shard are those of all nodes that sent a part of it. */
static void finish(struct job *j, json_t *done)
{
	struct sim_made shard = {.rank = j->rank};
	json_t *gave = json_array(), *took = json_array();

	memcpy(shard.sync, j->sync, sizeof(shard.sync));
	for (unsigned i = 0; i < j->plan.n_nodes; i++)
		shard.n_shards += j->plan.nodes[i].size[MOVES_TO] > 0;
	for (unsigned i = 0; i < j->plan.n_links; i++) {
		const struct moves_link *l = &j->plan.links[i];

		if (l->from == j->rank)
			json_array_append_new(gave, digest(j, l, MOVES_FROM, j->node->lies));
		if (l->to != j->rank)
			continue;
		shard.terms[shard.n_terms++] = sim_engine_at(j, l->from)->term->content;
		json_array_append_new(took, digest(j, l, MOVES_TO, j->node->n_corrupt));
	}
	json_object_set_new(done, "gave", gave);
	json_object_set_new(done, "took", took);
	if (j->memory)
		sim_engine_makes(j, sim_content_made(j->node->sim, &shard));
}

const struct sim_operation sim_exchanges = {
	.name = "exchange",
	.open = open_exchange,
	.is_linked = is_linked,
	.planned = planned,
	.compare = compare,
	.misfit = "stream",
	.finish = finish,
};
