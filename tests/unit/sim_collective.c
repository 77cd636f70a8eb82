#include "sim_collective.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ipc/base/num.h"
#include "server/sync/base/json_packet.h"
#include "sim_link.h"

#define WINDOW (8 * MIB)

/* --- Results ----------------------------------------------------------------------------------- */

struct sim_made *sim_made_of(const struct sim *s, uint64_t content)
{
	for (unsigned i = 0; i < s->n_made; i++)
		if (s->made[i].content == content)
			return &s->made[i];
	return NULL;
}

static bool is_same(const struct sim_made *x, const struct sim_made *y)
{
	return strcmp(x->sync, y->sync) == 0 && x->rank == y->rank && x->n_terms == y->n_terms &&
	       memcmp(x->terms, y->terms, x->n_terms * sizeof(x->terms[0])) == 0;
}

uint64_t sim_content_made(struct sim *s, const struct sim_made *made)
{
	for (unsigned i = 0; i < s->n_made; i++)
		if (is_same(&s->made[i], made))
			return s->made[i].content;
	s->made = reallocarray(s->made, s->n_made + 1, sizeof(*made));
	assert_non_null(s->made);
	s->made[s->n_made] = *made;
	s->made[s->n_made].content = ++s->n_contents;
	return s->made[s->n_made++].content;
}

void sim_engine_makes(struct job *j, uint64_t content)
{
	j->memory->content = j->node->n_corrupt ? ++j->node->sim->n_contents : content;
	j->node->n_corrupt -= j->node->n_corrupt > 0;
}

/* --- Messages of the agent --------------------------------------------------------------------- */

const char *sim_node_at(const struct job *j, unsigned rank)
{
	return sim_text(json_array_get(j->nodes, rank), "node");
}

struct job *sim_engine_at(const struct job *j, unsigned rank)
{
	struct job *other;

	list_for_each(other, &j->node->sim->nodes[sim_index_of(sim_node_at(j, rank))].jobs, link)
		if (other->kind == JOB_GLOO && strcmp(other->token, j->token) == 0)
			return other;
	return NULL;
}

static bool is_linked(const struct job *j, unsigned rank)
{
	return rank != j->rank && j->operation->is_linked(j, rank);
}

/* The hello of the engine of one rank for that of another. */
static const char *hello(const struct job *j, unsigned from, unsigned to, char ret[64])
{
	snprintf(ret, 64, "%.8s%04x%04x", j->token, from, to);
	return ret;
}

static void read_order(struct job *j, const json_t *order)
{
	static const struct sim_operation *const COLLECTIVE_OPS[] = {&sim_averages, &sim_exchanges};

	for (unsigned i = 0; i < ARRAY_LEN(COLLECTIVE_OPS); i++)
		if (strcmp(COLLECTIVE_OPS[i]->name, sim_text(order, "operation")) == 0)
			j->operation = COLLECTIVE_OPS[i];
	assert_non_null(j->operation);
	j->n_bytes = sim_number(order, "n_bytes");
	j->stall_ns = sim_number(order, "stall_ms") * MS;
	snprintf(j->token, sizeof(j->token), "%s", sim_text(order, "token"));
	snprintf(j->sync, sizeof(j->sync), "%s", sim_text(order, "sync"));
	j->nodes = json_incref(json_object_get(order, "nodes"));
	j->n_ranks = (unsigned)json_array_size(j->nodes);
	for (unsigned i = 0; i < j->n_ranks; i++)
		j->rank = strcmp(sim_node_at(j, i), j->node->name) == 0 ? i : j->rank;
}

/* Steals `message`. */
static void say(struct job *j, uint64_t longest, json_t *message)
{
	sim_job_say(j, longest > 1 ? sim_jitter(j->node->sim, longest) : longest, message, -1, -1,
		    -1);
}

/* `peer` is the node to blame; NULL: this node. */
static void fail_gloo(struct job *j, const char *code, const char *peer, const char *why)
{
	j->is_over = true;
	say(j, 2 * MS,
	    json_pack("{s:s, s:s, s:s, s:s?, s:s?}", "op", "failed", "code", code, "why", why,
		      "who", peer, "from", peer));
}

static void open_gloo(struct job *j, const json_t *order, const int *fds, unsigned n_fds)
{
	cleanup(json_freep) json_t *opened = json_pack("{s:s}", "op", "opened");
	json_t *hellos = json_array();
	const char *why;
	char text[64];

	read_order(j, order);
	why = j->operation->open(j, order, fds, n_fds, opened);
	for (unsigned i = 0; i < j->n_ranks; i++)
		json_array_append_new(hellos, !why && is_linked(j, i)
						      ? json_string(hello(j, j->rank, i, text))
						      : json_null());
	json_object_set_new(opened, "hellos", hellos);
	if (why)
		fail_gloo(j, "order", NULL, why);
	else
		say(j, 5 * MS, json_incref(opened));
}

/* Like the real engine, it does not trust other nodes. */
static bool take_hellos(struct job *j, const json_t *hellos)
{
	char text[64];

	for (unsigned i = 0; i < j->n_ranks; i++) {
		const char *said = json_string_value(json_array_get(hellos, i));

		if (!is_linked(j, i) || (said && !strcmp(said, hello(j, i, j->rank, text))))
			continue;
		fail_gloo(j, "order", sim_node_at(j, i), "its hello is none");
		return false;
	}
	return true;
}

/* The results of a broken epoch are overwritten. */
static void start_gloo(struct job *j, const json_t *message)
{
	if (!take_hellos(j, json_object_get(message, "hellos")))
		return;
	if (j->memory)
		assert_int_equal(ranges_add(&j->memory->wrong, 0, j->memory->n_bytes), 0);
	j->is_started = true;
	j->moved_ns = j->node->sim->now_ns;
	sim_tick_later(j->node->sim);
}

void sim_gloo_told(struct job *j, const json_t *message, const int *fds, unsigned n_fds)
{
	if (strcmp(sim_text(message, "op"), "open") == 0)
		open_gloo(j, message, fds, n_fds);
	else
		start_gloo(j, message);
}

/* --- Progress ---------------------------------------------------------------------------------- */

static json_t *traffic(uint64_t n_bytes)
{
	return json_pack("{s:I, s:I}", "bytes", (json_int_t)n_bytes, "kernel", (json_int_t)n_bytes);
}

static void finish_gloo(struct job *j)
{
	json_t *links = json_object(), *done;
	uint64_t in = 0, out = 0;

	for (unsigned i = 0; i < j->n_ranks; i++) {
		uint64_t from = is_linked(j, i) ? j->operation->planned(j, i, j->rank) : 0;
		uint64_t to = is_linked(j, i) ? j->operation->planned(j, j->rank, i) : 0;

		in += from;
		out += to;
		if (is_linked(j, i))
			json_object_set_new(links, sim_node_at(j, i),
					    json_pack("{s:o, s:o}", "in", traffic(from), "out",
						      traffic(to)));
	}
	if (j->memory) {
		ranges_deinit(&j->memory->wrong);
		ranges_init(&j->memory->wrong);
	}
	done = json_pack("{s:s, s:o, s:o, s:o}", "op", "done", "in", traffic(in), "out",
			 traffic(out), "links", links);
	j->operation->finish(j, done);
	j->is_over = true;
	say(j, 2 * MS, done);
}

static bool has_all(const struct job *j)
{
	return j->done == j->expected;
}

static bool is_silent(const struct job *j, const struct job *other)
{
	return sim_is_cut(j->node->sim, j->node->index, other->node->index) || !other->is_started ||
	       other->hangs || other->node->engines_hang || other->node->jobs_hang ||
	       (other->is_over && !has_all(other));
}

/* The progress of the other engines. */
struct others {
	uint64_t done; /* least of those that are not done; UINT64_MAX: all are */
	unsigned least;
	uint64_t moved_ns; /* last progress of any of them */
	unsigned n_silent;
	unsigned silent; /* one of them */
};

/* False: one of them is gone, or does not fit. */
static bool look_at_others(struct sim *s, struct job *j, struct others *ret)
{
	*ret = (struct others){.done = UINT64_MAX};
	for (unsigned i = 0; i < j->n_ranks; i++) {
		struct job *other = is_linked(j, i) ? sim_engine_at(j, i) : NULL;
		const char *misfit;

		if (!is_linked(j, i))
			continue;
		if (!other) {
			fail_gloo(j, "stream", sim_node_at(j, i), "a node hung up");
			return false;
		}
		misfit = other->is_started ? j->operation->compare(j, other) : NULL;
		if (misfit) {
			fail_gloo(j, j->operation->misfit, sim_node_at(j, i), misfit);
			return false;
		}
		if (is_silent(j, other) && sim_random(s, ++ret->n_silent) == 0)
			ret->silent = i;
		ret->moved_ns = other->moved_ns > ret->moved_ns ? other->moved_ns : ret->moved_ns;
		if (!has_all(other) && other->done < ret->done) {
			ret->done = other->done;
			ret->least = i;
		}
	}
	return true;
}

/* Bytes that it may receive in this step. */
static uint64_t step_of(const struct job *j, const struct others *others)
{
	uint64_t step = j->node->rate / (SIM_SECOND / TICK), room = j->expected - j->done;

	if (others->n_silent)
		return 0;
	if (others->done != UINT64_MAX && others->done + WINDOW - j->done < room)
		room = others->done + WINDOW - j->done;
	return step < room ? step : room;
}

void sim_gloo_turn(struct sim *s, struct job *j)
{
	struct others others;
	uint64_t step;

	if (!j->is_started || j->is_over || j->hangs || j->node->engines_hang ||
	    !look_at_others(s, j, &others))
		return;
	step = step_of(j, &others);
	j->done += step;
	if (step) {
		j->moved_ns = s->now_ns;
		say(j, 1,
		    json_pack("{s:s, s:I, s:I}", "op", "progress", "done", (json_int_t)j->done,
			      "sent", (json_int_t)j->done));
	}
	/* An engine that has all bytes still sends: progress of a receiver counts as its own. */
	if (has_all(j) && others.moved_ns > j->moved_ns)
		j->moved_ns = others.moved_ns;
	if (!others.n_silent && has_all(j) && others.done == UINT64_MAX)
		finish_gloo(j);
	else if (s->now_ns - j->moved_ns > j->stall_ns)
		fail_gloo(j, "stream",
			  sim_node_at(j, others.n_silent ? others.silent : others.least),
			  "a node sent nothing for 5 s");
}
