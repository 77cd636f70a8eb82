#include "sim_average.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "ipc/base/num.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/base/planned_bytes.h"

bool sim_train(struct sim *s, unsigned node, const char *buffer)
{
	struct sim_node *n = &s->nodes[node];
	struct job *j;

	list_for_each(j, &n->jobs, link)
		if (j->kind == JOB_SINK && strcmp(j->buffer, buffer) == 0)
			return false;
	sim_add_version(n, buffer, ++s->n_contents, s->options.n_bytes);
	return true;
}

int sim_average(struct sim *s, unsigned node, const char *buffer, char ret_sync[SYNC_ID_SIZE])
{
	cleanup(json_freep) json_t *request = json_pack("{s:s}", "buffer", buffer);

	return sim_ask(s, node, request, agent_average, ret_sync);
}

const struct sim_made *sim_average_of(const struct sim *s, uint64_t content)
{
	const struct sim_made *made = sim_made_of(s, content);

	return made && !made->n_shards ? made : NULL;
}

/* --- The engine ----------------------------------------------------------------------------------- */

/* As even as possible, in pieces of a MiB. */
static uint64_t owned_by(const struct job *j, unsigned rank)
{
	uint64_t n = j->n_bytes / MIB;

	return (n / j->n_ranks + (rank < n % j->n_ranks)) * MIB;
}

static uint64_t n_others(const struct job *j)
{
	return j->node->others != 0;
}

static const char *open_average(struct job *j, const json_t *order, const int *fds, unsigned n_fds,
				json_t *opened)
{
	json_t *shares = json_array();

	(void)order;
	assert_int_equal(n_fds, 3);
	j->term = sim_pointer_of(fds[0]);
	j->memory = sim_pointer_of(fds[1]);
	j->term->n_refs++;
	j->memory->n_refs++;
	for (unsigned i = 0; i < j->n_ranks; i++) {
		j->expected += owned_by(j, i);
		json_array_append_new(shares, json_pack("[I, I]", (json_int_t)(owned_by(j, i) / MIB),
							(json_int_t)owned_by(j, i)));
	}
	json_object_set_new(opened, "shares", shares);
	json_object_set_new(opened, "n_others", json_integer((json_int_t)n_others(j)));
	return NULL;
}

static bool is_linked(const struct job *j, unsigned rank)
{
	(void)j, (void)rank;
	return true;
}

static uint64_t planned(const struct job *j, unsigned from, unsigned to)
{
	uint64_t n_bytes = owned_by(j, from) + owned_by(j, to);

	return gloo_planned_average(n_others(j), n_bytes / MIB, n_bytes);
}

static const char *compare(const struct job *j, const struct job *other)
{
	return other->node->others == j->node->others ? NULL : "a tensor has other values";
}

static void finish(struct job *j, json_t *done)
{
	struct sim_made average = {.n_terms = j->n_ranks};

	(void)done;
	memcpy(average.sync, j->sync, sizeof(average.sync));
	for (unsigned i = 0; i < j->n_ranks; i++)
		average.terms[i] = sim_engine_at(j, i)->term->content;
	sim_engine_makes(j, sim_content_made(j->node->sim, &average));
}

const struct sim_operation sim_averages = {
	.name = "average",
	.open = open_average,
	.is_linked = is_linked,
	.planned = planned,
	.compare = compare,
	.misfit = "differs",
	.finish = finish,
};
