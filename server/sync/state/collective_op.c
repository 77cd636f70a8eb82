#include "server/sync/state/collective_op.h"

#include <errno.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/base/planned_bytes.h"

#define N_BYTES_MAX ((uint64_t)1 << 50)
#define N_OTHERS_MAX ((uint64_t)1 << 32)

/* --- Averages over Gloo ------------------------------------------------------------------------- */

static int read_average(const json_t *opened, unsigned n, struct flows *ret)
{
	struct flows t = {.n = n};
	json_t *shares;

	if (n > COLLECTIVE_OP_NODES_MAX || field_array(opened, "shares", n, &shares) < 0 ||
	    json_array_size(shares) != n ||
	    field_number(opened, "n_others", N_OTHERS_MAX, &t.n_others) < 0)
		return -EBADMSG;
	for (unsigned i = 0; i < n; i++) {
		json_int_t n_pieces, n_bytes;

		if (json_unpack(json_array_get(shares, i), "[I, I !]", &n_pieces, &n_bytes) < 0 ||
		    n_pieces < 0 || n_bytes < 0 || (uint64_t)n_bytes > N_BYTES_MAX ||
		    n_pieces > n_bytes)
			return -EBADMSG;
		t.at[i].n_pieces = (uint64_t)n_pieces;
		t.at[i].n_bytes = (uint64_t)n_bytes;
	}
	*ret = t;
	return 0;
}

/* Terms to their owners, and results from them. */
static uint64_t bytes_of_average(const struct flows *t, unsigned from, unsigned to)
{
	return t->at[from].n_bytes + t->at[to].n_bytes;
}

static uint64_t planned_average(const struct flows *t, unsigned from, unsigned to)
{
	return gloo_planned_average(t->n_others, t->at[from].n_pieces + t->at[to].n_pieces,
				    bytes_of_average(t, from, to));
}

static uint64_t changed_by_average(const struct flows *t)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < t->n; i++)
		n += t->at[i].n_bytes;
	return n;
}

static uint64_t expected_of_average(const struct flows *t, unsigned rank)
{
	(void)rank;
	return changed_by_average(t);
}

/* --- Averages over NCCL ------------------------------------------------------------------------- */

static int read_reduced(const json_t *opened, unsigned n, struct flows *ret)
{
	struct flows t = {.n = n};

	if (n > COLLECTIVE_OP_NODES_MAX ||
	    field_number(opened, "reduced", N_BYTES_MAX, &t.reduced) < 0)
		return -EBADMSG;
	*ret = t;
	return 0;
}

/*
 * Each rank passes all of it on to the next one: what NCCL's own links carry depends on the
 * algorithm that it chooses.
 */
static uint64_t bytes_of_all_reduce(const struct flows *t, unsigned from, unsigned to)
{
	return to == (from + 1) % t->n && from != to ? t->reduced : 0;
}

static uint64_t changed_by_all_reduce(const struct flows *t)
{
	return t->reduced;
}

static uint64_t expected_of_all_reduce(const struct flows *t, unsigned rank)
{
	(void)rank;
	return t->reduced;
}

/* --- Reshards ----------------------------------------------------------------------------------- */

/* The plan contains everything. */
static int read_reshard(const json_t *opened, unsigned n, struct flows *ret)
{
	(void)opened;
	ret->n = n;
	return n == ret->plan.n_nodes ? 0 : -EBADMSG;
}

static uint64_t bytes_of_reshard(const struct flows *t, unsigned from, unsigned to)
{
	const struct moves_link *l = moves_link(&t->plan, from, to);

	return l ? l->n_bytes : 0;
}

static uint64_t n_pieces(uint64_t n_bytes)
{
	return n_bytes / COLLECTIVE_OP_CHUNK + (n_bytes % COLLECTIVE_OP_CHUNK != 0);
}

static uint64_t planned_reshard(const struct flows *t, unsigned from, unsigned to)
{
	uint64_t n = bytes_of_reshard(t, from, to), back = bytes_of_reshard(t, to, from);

	return n ? gloo_planned_mesh(n_pieces(n), n_pieces(back), n) : 0;
}

static uint64_t expected_of_reshard(const struct flows *t, unsigned rank)
{
	uint64_t n = 0;

	for (size_t i = 0; i < t->plan.n_links; i++)
		n += t->plan.links[i].to == rank ? t->plan.links[i].n_bytes : 0;
	return n;
}

static uint64_t changed_by_reshard(const struct flows *t)
{
	uint64_t n = 0;

	for (size_t i = 0; i < t->plan.n_links; i++)
		n += t->plan.links[i].n_bytes;
	return n;
}

/* --- All operations ---------------------------------------------------------------------------- */

static const struct collective_op COLLECTIVE_OPS[] = {
	{.name = "average",
	 .an = "an average",
	 .exchange = "average",
	 .kind = KIND_AVERAGE,
	 .transport = &transport_gloo,
	 .over = "Gloo",
	 .lend = "lend",
	 .schedule = "all-to-all",
	 .is_version = true,
	 .read = read_average,
	 .bytes = bytes_of_average,
	 .planned = planned_average,
	 .expected = expected_of_average,
	 .changed = changed_by_average},
	{.name = "reshard",
	 .an = "a reshard",
	 .exchange = "exchange",
	 .kind = KIND_RESHARD,
	 .transport = &transport_gloo,
	 .over = "Gloo",
	 .lend = "give",
	 .schedule = "shards",
	 .read = read_reshard,
	 .bytes = bytes_of_reshard,
	 .planned = planned_reshard,
	 .expected = expected_of_reshard,
	 .changed = changed_by_reshard},
	{.name = "average",
	 .an = "an average",
	 .exchange = "average",
	 .kind = KIND_AVERAGE,
	 .transport = &transport_nccl,
	 .over = "NCCL",
	 .lend = "lend",
	 .schedule = "all-reduce",
	 .is_version = true,
	 .read = read_reduced,
	 .bytes = bytes_of_all_reduce,
	 .planned = bytes_of_all_reduce,
	 .expected = expected_of_all_reduce,
	 .changed = changed_by_all_reduce},
	{.name = "reshard",
	 .an = "a reshard",
	 .exchange = "exchange",
	 .kind = KIND_RESHARD,
	 .transport = &transport_nccl,
	 .over = "NCCL",
	 .lend = "give",
	 .schedule = "shards",
	 .read = read_reshard,
	 .bytes = bytes_of_reshard,
	 .planned = bytes_of_reshard,
	 .expected = expected_of_reshard,
	 .changed = changed_by_reshard},
};

const struct collective_op *collective_op_find(const char *name, const char *engine)
{
	for (unsigned i = 0; i < ARRAY_LEN(COLLECTIVE_OPS); i++)
		if (strcmp(COLLECTIVE_OPS[i].name, name) == 0 &&
		    strcmp(COLLECTIVE_OPS[i].transport->name, engine) == 0)
			return &COLLECTIVE_OPS[i];
	return NULL;
}

uint64_t collective_op_planned(const struct collective_op *op, const struct flows *t, unsigned rank)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < t->n; i++)
		n += i == rank ? 0 : op->planned(t, i, rank);
	return n;
}

uint64_t collective_op_most(const struct moves *plan)
{
	uint64_t n[MOVES_NODES_MAX] = {0}, most = 0;

	for (size_t i = 0; i < plan->n_links; i++) {
		n[plan->links[i].from] += plan->links[i].n_bytes;
		n[plan->links[i].to] += plan->links[i].n_bytes;
	}
	for (unsigned i = 0; i < plan->n_nodes; i++)
		most = n[i] > most ? n[i] : most;
	return most;
}
