#include "server/sync/gloo/average.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/sync/base/merkle.h"
#include "server/sync/base/planned_bytes.h"
#include "server/sync/engine/pieces.h"
#include "server/sync/gloo/mean.h"
#include "server/sync/gloo/mesh.h"

#define TABLE_MAX (64 * MIB)
#define DEPTH 4 /* rounds requested ahead; as many may be pending behind */
#define WINDOW (2 * DEPTH)

/* To the owner, and from it. */
enum {
	TERM,
	RESULT,
	N_KINDS,
};

struct party {
	struct wire *wire;
	uint8_t digests[GLOO_DIGESTS][MERKLE_HASH_SIZE]; /* its digests of a batch */
	uint8_t *terms; /* DEPTH chunks: its terms for our rounds */
	struct transfer *come[N_KINDS][WINDOW];
	struct transfer *go[N_KINDS][WINDOW];
};

struct average {
	struct engine *engine;
	struct mesh mesh;
	struct party parties[ENGINE_NODES_MAX];
	struct pieces pieces;
	uint8_t digests[GLOO_DIGESTS][MERKLE_HASH_SIZE]; /* a batch */
	float *sums; /* one piece */
};

static uint64_t n_batches(const struct average *a)
{
	return (a->pieces.n_others + GLOO_DIGESTS - 1) / GLOO_DIGESTS;
}

/* Messages of a wire besides those of the mesh: batches, then rounds. */
static uint64_t of_batch(uint64_t batch)
{
	return MESH_MORE + batch;
}

static uint64_t of_round(const struct average *a, uint64_t round, unsigned kind)
{
	return of_batch(n_batches(a)) + N_KINDS * round + kind;
}

/* --- Leaves without a mean --------------------------------------------------------------------- */

static size_t batch_size(const struct average *a, uint64_t batch)
{
	size_t left = a->pieces.n_others - batch * GLOO_DIGESTS;

	return left < GLOO_DIGESTS ? left : GLOO_DIGESTS;
}

static void average_digest(struct average *a, uint64_t batch)
{
	for (size_t i = 0; i < batch_size(a, batch); i++) {
		const struct other *o = &a->pieces.others[batch * GLOO_DIGESTS + i];

		merkle_hash(a->mesh.source + o->offset, o->size, a->digests[i]);
		memcpy(a->mesh.result + o->offset, a->mesh.source + o->offset, o->size);
		atomic_fetch_add(&a->engine->digested, o->size);
	}
}

static bool is_equal(struct average *a, const struct party *p, uint64_t batch)
{
	for (size_t i = 0; i < batch_size(a, batch); i++) {
		const struct other *o = &a->pieces.others[batch * GLOO_DIGESTS + i];
		const char *name = a->pieces.tensors[o->tensor].name;

		if (memcmp(a->digests[i], p->digests[i], MERKLE_HASH_SIZE) == 0)
			continue;
		engine_differ(a->engine, p->wire,
			      "tensor '%.*s' is of no type that has a mean, and %s has other "
			      "bytes in it",
			      pieces_fit(name, PIECES_NAME_FIT), name, p->wire->node);
		return false;
	}
	return true;
}

static bool compare_batch(struct average *a, uint64_t batch)
{
	size_t size = batch_size(a, batch) * MERKLE_HASH_SIZE;
	struct engine *e = a->engine;

	average_digest(a, batch);
	for (unsigned j = 0; j < a->mesh.n_nodes; j++) {
		struct party *p = &a->parties[j];

		if (j != a->mesh.rank &&
		    (!wire_receive(e, p->wire, mesh_slot_in(&a->mesh, j, of_batch(batch)),
				   p->digests, size, &p->come[TERM][0]) ||
		     !wire_send(e, p->wire, mesh_slot_out(&a->mesh, j, of_batch(batch)), a->digests,
				size, &p->go[TERM][0])))
			return false;
	}
	for (unsigned j = 0; j < a->mesh.n_nodes; j++) {
		struct party *p = &a->parties[j];

		if (j != a->mesh.rank &&
		    (!wire_finish(e, p->wire, &p->come[TERM][0]) ||
		     !wire_finish(e, p->wire, &p->go[TERM][0]) || !is_equal(a, p, batch)))
			return false;
	}
	return true;
}

/*
 * A node that digests for long must not look silent to the others: so digests are exchanged in
 * batches.
 */
static bool compare_others(struct average *a)
{
	for (uint64_t batch = 0; batch < n_batches(a); batch++)
		if (!compare_batch(a, batch))
			return false;
	return true;
}

/* --- Rounds ------------------------------------------------------------------------------------ */

static const struct piece *piece_of(const struct average *a, unsigned owner, uint64_t round)
{
	const struct share *s = &a->pieces.shares[owner];

	return round < s->n_pieces ? &a->pieces.at[s->pieces[round]] : NULL;
}

static uint8_t *term_of(const struct average *a, unsigned peer, uint64_t round)
{
	return a->parties[peer].terms + round % DEPTH * a->engine->engine_loop.order.chunk;
}

/*
 * Sends our terms of the others' pieces of a round; receives the others' terms of ours, and their
 * results.
 */
static bool average_ask(struct average *a, uint64_t round)
{
	const struct piece *ours = piece_of(a, a->mesh.rank, round);
	struct engine *e = a->engine;

	for (unsigned j = 0; j < a->mesh.n_nodes; j++) {
		const struct piece *theirs = piece_of(a, j, round);
		struct party *p = &a->parties[j];
		uint64_t term = of_round(a, round, TERM), result = of_round(a, round, RESULT);

		if (j == a->mesh.rank)
			continue;
		if (ours &&
		    !wire_receive(e, p->wire, mesh_slot_in(&a->mesh, j, term), term_of(a, j, round),
				  ours->size, &p->come[TERM][round % WINDOW]))
			return false;
		if (theirs && (!wire_receive(e, p->wire, mesh_slot_in(&a->mesh, j, result),
					     a->mesh.result + theirs->offset, theirs->size,
					     &p->come[RESULT][round % WINDOW]) ||
			       !wire_send(e, p->wire, mesh_slot_out(&a->mesh, j, term),
					  a->mesh.source + theirs->offset, theirs->size,
					  &p->go[TERM][round % WINDOW])))
			return false;
	}
	return true;
}

static void add_terms(struct average *a, const struct piece *piece, const uint8_t *terms)
{
	const struct tensor *t;
	uint64_t offset, size;
	size_t n = 0;

	for (size_t i = piece->first; (t = pieces_part(&a->pieces, piece, i, &offset, &size)); i++) {
		if (size == 0)
			continue;
		mean_add(t->type, a->sums + n, terms + (offset - piece->offset),
			 size / mean_size(t->type));
		n += size / mean_size(t->type);
	}
}

static void store_mean(struct average *a, const struct piece *piece)
{
	const struct tensor *t;
	uint64_t offset, size;
	size_t n = 0;

	for (size_t i = piece->first; (t = pieces_part(&a->pieces, piece, i, &offset, &size)); i++) {
		if (size == 0)
			continue;
		mean_store(t->type, a->sums + n, size / mean_size(t->type), a->mesh.n_nodes,
			   a->mesh.result + offset);
		n += size / mean_size(t->type);
	}
}

static bool average_reduce(struct average *a, uint64_t round)
{
	const struct piece *ours = piece_of(a, a->mesh.rank, round);
	struct engine *e = a->engine;

	if (!ours)
		return true;
	/* The smallest element type has this many elements; a last byte of padding has no sum. */
	for (uint64_t i = 0; i < ours->size / 2; i++)
		a->sums[i] = -0.0f;
	for (unsigned j = 0; j < a->mesh.n_nodes; j++) {
		struct party *p = &a->parties[j];

		if (j != a->mesh.rank && !wire_finish(e, p->wire, &p->come[TERM][round % WINDOW]))
			return false;
		add_terms(a, ours,
			  j == a->mesh.rank ? a->mesh.source + ours->offset : term_of(a, j, round));
	}
	store_mean(a, ours);
	engine_arrived(e, atomic_load(&e->arrived) + ours->size);
	for (unsigned j = 0; j < a->mesh.n_nodes; j++) {
		struct party *p = &a->parties[j];

		if (j != a->mesh.rank &&
		    !wire_send(e, p->wire, mesh_slot_out(&a->mesh, j, of_round(a, round, RESULT)),
			       a->mesh.result + ours->offset, ours->size,
			       &p->go[RESULT][round % WINDOW]))
			return false;
	}
	return true;
}

/* Waits for the rest of a round. */
static bool average_settle(struct average *a, uint64_t round)
{
	struct engine *e = a->engine;

	for (unsigned j = 0; j < a->mesh.n_nodes; j++) {
		struct party *p = &a->parties[j];
		const struct piece *theirs = piece_of(a, j, round);

		if (j == a->mesh.rank)
			continue;
		if (!wire_finish(e, p->wire, &p->go[TERM][round % WINDOW]) ||
		    !wire_finish(e, p->wire, &p->come[RESULT][round % WINDOW]) ||
		    !wire_finish(e, p->wire, &p->go[RESULT][round % WINDOW]))
			return false;
		if (theirs)
			engine_arrived(e, atomic_load(&e->arrived) + theirs->size);
	}
	return true;
}

/*
 * No deadlock: each of the nodes furthest behind has all its terms on the way, and sends the data
 * that the others wait for.
 */
static bool run_rounds(struct average *a)
{
	uint64_t n = a->pieces.n_rounds;

	for (uint64_t i = 0; i < DEPTH && i < n; i++)
		if (!average_ask(a, i))
			return false;
	for (uint64_t i = 0; i < n + DEPTH; i++) {
		if (i < n && !average_reduce(a, i))
			return false;
		if (i >= DEPTH && !average_settle(a, i - DEPTH))
			return false;
		if (i + DEPTH < n && !average_ask(a, i + DEPTH))
			return false;
	}
	return true;
}

static bool average_part(struct average *a)
{
	for (unsigned j = 0; j < a->mesh.n_nodes; j++)
		if (j != a->mesh.rank && !mesh_part(&a->mesh, j))
			return false;
	return true;
}

static bool average_greet(struct mesh *m, unsigned peer)
{
	return peer == m->rank || mesh_greet(m, peer);
}

static void *average_work(void *arg)
{
	struct average *a = arg;

	/* All at once: a node that waits for one of them must not look silent to the others. */
	if (mesh_each(&a->mesh, average_greet) && compare_others(a) && run_rounds(a) &&
	    average_part(a))
		engine_thread_is_done(a->engine);
	return NULL;
}

/* --- The operation ----------------------------------------------------------------------------- */

static int read_table(struct mesh *m, const void *text, size_t size, char why[ENGINE_ORDER_WHY_SIZE])
{
	const struct engine_order *o = &m->engine->engine_loop.order;

	return pieces_init(&container_of(m, struct average, mesh)->pieces, text, size, o->n_bytes,
			   o->chunk, m->n_nodes, why);
}

static int open_parties(struct average *a, char why[ENGINE_ORDER_WHY_SIZE])
{
	uint64_t chunk = a->engine->engine_loop.order.chunk;
	int r = 0;

	a->sums = calloc(chunk / 2, sizeof(*a->sums));
	if (!a->sums)
		return engine_order_no_memory(why);
	for (unsigned j = 0; r == 0 && j < a->mesh.n_nodes; j++) {
		struct party *p = &a->parties[j];

		p->wire = &a->mesh.wires[j];
		if (j == a->mesh.rank)
			continue;
		r = mesh_open(&a->mesh, j, why);
		p->terms = malloc(DEPTH * chunk);
		if (r == 0 && !p->terms)
			r = engine_order_no_memory(why);
	}
	return r;
}

/*
 * Adds the pieces of each rank, which determine the bytes of each link: the agent reports these
 * before anything moves.
 */
static int add_shares(const struct average *a, json_t *opened, char why[ENGINE_ORDER_WHY_SIZE])
{
	json_t *shares = json_array();
	int r = 0;

	for (unsigned j = 0; j < a->mesh.n_nodes; j++)
		r |= json_array_append_new(
			shares, json_pack("[I, I]", (json_int_t)a->pieces.shares[j].n_pieces,
					  (json_int_t)a->pieces.shares[j].n_bytes));
	r |= json_object_set_new(opened, "shares", shares);
	r |= json_object_set_new(opened, "n_others", json_integer((json_int_t)a->pieces.n_others));
	if (r != 0)
		(void)snprintf(why, ENGINE_ORDER_WHY_SIZE, "no memory");
	return r == 0 ? 0 : -ENOMEM;
}

static int open_average(struct engine *e, const json_t *order, json_t *opened,
			char why[ENGINE_ORDER_WHY_SIZE])
{
	struct average *a = calloc(1, sizeof(*a));
	int r;

	if (!a)
		return engine_order_no_memory(why);
	a->engine = e;
	e->work = a;
	a->mesh.what = "table of tensors";
	a->mesh.n_bytes = e->engine_loop.order.n_bytes;
	r = mesh_init(&a->mesh, e, order, why);
	if (r == 0)
		r = mesh_read(&a->mesh, e->engine_loop.order.tensors_fd, TABLE_MAX, read_table, why);
	if (r == 0)
		r = mesh_map(&a->mesh, e->engine_loop.order.n_bytes, why);
	if (r == 0)
		r = open_parties(a, why);
	if (r == 0)
		r = mesh_add_hellos(&a->mesh, opened, why);
	if (r == 0)
		r = add_shares(a, opened, why);
	return r;
}

static int start_average(struct engine *e, const json_t *order, char why[ENGINE_ORDER_WHY_SIZE])
{
	struct average *a = e->work;
	bool is_met;
	int r = mesh_start(&a->mesh, order, &is_met, why);

	if (r < 0 || !is_met)
		return r;
	return engine_run(e, average_work, a, why);
}

static bool average_is_owed(struct engine *e, const struct wire *w)
{
	(void)e, (void)w;
	return true;
}

static struct planned_bytes average_plan(const struct engine *e, const struct wire *w)
{
	const struct average *a = e->work;
	const struct share *ours = &a->pieces.shares[a->mesh.rank];
	const struct share *theirs = &a->pieces.shares[w - a->mesh.wires];
	uint64_t each = gloo_planned_average(a->pieces.n_others, ours->n_pieces + theirs->n_pieces,
					     ours->n_bytes + theirs->n_bytes);

	return (struct planned_bytes){.received = each, .sent = each};
}

const struct operation average_operation = {
	.open = open_average,
	.start = start_average,
	.is_owed = average_is_owed,
	.plan = average_plan,
};
