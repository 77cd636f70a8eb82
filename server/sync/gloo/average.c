#include "server/sync/gloo/average.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/sync/base/planned.h"
#include "server/sync/base/tree.h"
#include "server/sync/gloo/mesh.h"
#include "server/sync/gloo/pieces.h"

#define TABLE_MAX (64 * MIB)
#define DEPTH 4 /* rounds that are asked for ahead, and of which some may be under way behind */
#define WINDOW (2 * DEPTH)

/* What goes over a wire besides what the mesh needs. */
enum {
	SLOT_DIGESTS = MESH_MORE, /* of the tensors of which there is no mean */
	SLOT_ROUNDS,
};

/* To the owner, and from it. */
enum {
	TERM,
	RESULT,
	N_KINDS,
};

struct party {
	struct average *average;
	struct wire *wire;
	pthread_t greeter;
	uint8_t *terms; /* DEPTH chunks: what it sent for a round of ours */
	struct transfer *come[N_KINDS][WINDOW];
	struct transfer *go[N_KINDS][WINDOW];
};

struct average {
	struct engine *engine;
	struct mesh mesh;
	struct party parties[ENGINE_NODES_MAX];
	struct pieces pieces;
	uint8_t (*digests)[TREE_HASH_SIZE];
	const uint8_t *source;
	uint8_t *result;
	float *sums; /* of one piece */
};

static uint64_t of_round(uint64_t round, unsigned kind)
{
	return SLOT_ROUNDS + N_KINDS * round + kind;
}

/* --- Greeting ---------------------------------------------------------------------------------- */

static bool is_equal(const struct average *a, unsigned peer, const uint8_t (*theirs)[TREE_HASH_SIZE])
{
	const struct wire *w = &a->mesh.wires[peer];
	size_t other = 0;

	for (size_t i = 0; i < a->pieces.n_tensors; i++) {
		const struct tensor *t = &a->pieces.tensors[i];

		if (t->type != MEAN_TYPES)
			continue;
		if (memcmp(a->digests[other], theirs[other], TREE_HASH_SIZE) != 0) {
			engine_differ(a->engine, w,
				      "tensor '%.*s' is of no type that has a mean, and %s has "
				      "other bytes in it",
				      pieces_fit(t->name, PIECES_NAME_FIT), t->name, w->node);
			return false;
		}
		other++;
	}
	return true;
}

static bool greet_party(struct average *a, unsigned peer)
{
	size_t n = a->pieces.n_others * TREE_HASH_SIZE;
	cleanup(freep) uint8_t(*digests)[TREE_HASH_SIZE] = calloc(1, n + 1);

	if (!digests) {
		engine_break(a->engine, NULL, "no memory for the digests of tensors");
		return false;
	}
	if (!mesh_greet(&a->mesh, peer))
		return false;
	return n == 0 || (mesh_exchange(&a->mesh, peer, SLOT_DIGESTS, a->digests, digests, n) &&
			  is_equal(a, peer, (const void *)digests));
}

static void *greet_one(void *arg)
{
	struct party *p = arg;

	return greet_party(p->average, (unsigned)(p - p->average->parties)) ? p : NULL;
}

/* All at once: who waits for one of them must not be taken by the others for silent. */
static bool greet_all(struct average *a)
{
	bool all = true;

	for (unsigned j = 0; j < a->mesh.n_nodes; j++) {
		if (j == a->mesh.rank)
			continue;
		if (pthread_create(&a->parties[j].greeter, NULL, greet_one, &a->parties[j]) != 0) {
			engine_break(a->engine, NULL, "no thread to greet %s",
				     a->mesh.wires[j].node);
			return false;
		}
	}
	for (unsigned j = 0; j < a->mesh.n_nodes; j++) {
		void *greeted = NULL;

		if (j != a->mesh.rank) {
			(void)pthread_join(a->parties[j].greeter, &greeted);
			all = all && greeted;
		}
	}
	return all;
}

/* --- Rounds ------------------------------------------------------------------------------------ */

static const struct piece *piece_of(const struct average *a, unsigned owner, uint64_t round)
{
	const struct share *s = &a->pieces.shares[owner];

	return round < s->n_pieces ? &a->pieces.at[s->pieces[round]] : NULL;
}

static uint8_t *term_of(const struct average *a, unsigned peer, uint64_t round)
{
	return a->parties[peer].terms + round % DEPTH * a->engine->order.chunk;
}

/* Sends our terms of the others' pieces of a round, and asks for the others' terms of ours and for their results. */
static bool ask(struct average *a, uint64_t round)
{
	const struct piece *ours = piece_of(a, a->mesh.rank, round);
	struct engine *e = a->engine;

	for (unsigned j = 0; j < a->mesh.n_nodes; j++) {
		const struct piece *theirs = piece_of(a, j, round);
		struct party *p = &a->parties[j];
		uint64_t term = of_round(round, TERM), result = of_round(round, RESULT);

		if (j == a->mesh.rank)
			continue;
		if (ours &&
		    !wire_receive(e, p->wire, mesh_slot_in(&a->mesh, j, term), term_of(a, j, round),
				  ours->size, &p->come[TERM][round % WINDOW]))
			return false;
		if (theirs && (!wire_receive(e, p->wire, mesh_slot_in(&a->mesh, j, result),
					     a->result + theirs->offset, theirs->size,
					     &p->come[RESULT][round % WINDOW]) ||
			       !wire_send(e, p->wire, mesh_slot_out(&a->mesh, j, term),
					  a->source + theirs->offset, theirs->size,
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
			   a->result + offset);
		n += size / mean_size(t->type);
	}
}

static bool reduce(struct average *a, uint64_t round)
{
	const struct piece *ours = piece_of(a, a->mesh.rank, round);
	struct engine *e = a->engine;

	if (!ours)
		return true;
	/* Of the smallest elements there are as many; a byte of padding that is left over has no sum. */
	for (uint64_t i = 0; i < ours->size / 2; i++)
		a->sums[i] = -0.0f;
	for (unsigned j = 0; j < a->mesh.n_nodes; j++) {
		struct party *p = &a->parties[j];

		if (j != a->mesh.rank && !wire_finish(e, p->wire, &p->come[TERM][round % WINDOW]))
			return false;
		add_terms(a, ours,
			  j == a->mesh.rank ? a->source + ours->offset : term_of(a, j, round));
	}
	store_mean(a, ours);
	engine_arrived(e, atomic_load(&e->arrived) + ours->size);
	for (unsigned j = 0; j < a->mesh.n_nodes; j++) {
		struct party *p = &a->parties[j];

		if (j != a->mesh.rank &&
		    !wire_send(e, p->wire, mesh_slot_out(&a->mesh, j, of_round(round, RESULT)),
			       a->result + ours->offset, ours->size, &p->go[RESULT][round % WINDOW]))
			return false;
	}
	return true;
}

/* Waits for all that is left of a round. */
static bool settle(struct average *a, uint64_t round)
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
 * Nobody waits for ever: of those who are furthest behind, each has all terms that it waits for under way, and
 * gives what the others wait for.
 */
static bool run_rounds(struct average *a)
{
	uint64_t n = a->pieces.n_rounds;

	for (uint64_t i = 0; i < DEPTH && i < n; i++)
		if (!ask(a, i))
			return false;
	for (uint64_t i = 0; i < n + DEPTH; i++) {
		if (i < n && !reduce(a, i))
			return false;
		if (i >= DEPTH && !settle(a, i - DEPTH))
			return false;
		if (i + DEPTH < n && !ask(a, i + DEPTH))
			return false;
	}
	return true;
}

static bool part(struct average *a)
{
	for (unsigned j = 0; j < a->mesh.n_nodes; j++)
		if (j != a->mesh.rank && !mesh_part(&a->mesh, j))
			return false;
	return true;
}

static void *work(void *arg)
{
	struct average *a = arg;

	if (greet_all(a) && run_rounds(a) && part(a))
		engine_thread_is_done(a->engine);
	return NULL;
}

/* --- The operation ----------------------------------------------------------------------------- */

static int wrong(char why[ORDER_WHY_SIZE], const char *what)
{
	(void)snprintf(why, ORDER_WHY_SIZE, "the order is wrong: %s", what);
	return -EBADMSG;
}

static int read_table(struct average *a, char why[ORDER_WHY_SIZE])
{
	const struct order *o = &a->engine->order;
	uint64_t size;
	void *text;
	int r;

	if (fd_size(o->tensors_fd, &size) < 0 || size == 0 || size > TABLE_MAX)
		return wrong(why, "the table of tensors has to have 1 byte to 64 MiB");
	text = mmap(NULL, size, PROT_READ, MAP_PRIVATE, o->tensors_fd, 0);
	if (text == MAP_FAILED) {
		(void)snprintf(why, ORDER_WHY_SIZE, "the table of tensors cannot be mapped: %s",
			       strerror(errno));
		return -errno;
	}
	tree_hash(text, size, a->mesh.hash);
	r = pieces_init(&a->pieces, text, size, o->n_bytes, o->chunk, a->mesh.n_nodes, why);
	(void)munmap(text, size);
	return r;
}

static int map_memory(struct average *a, char why[ORDER_WHY_SIZE])
{
	const struct order *o = &a->engine->order;
	struct memory source, result;
	int r = memory_init(&source, o->memory_fd, o->n_bytes, true, true);

	if (r == 0)
		r = memory_init(&result, o->result_fd, o->n_bytes, false, true);
	if (r < 0) {
		(void)snprintf(why, ORDER_WHY_SIZE, "the memory cannot be mapped: %s", strerror(-r));
		return r;
	}
	a->source = source.map;
	a->result = result.map;
	return 0;
}

/*
 * Tensors without a mean, of which there may be many: before the others are told that we are ready, as whoever digests
 * or copies for long must not look silent.
 */
static int take_others(struct average *a, char why[ORDER_WHY_SIZE])
{
	size_t other = 0;

	a->digests = calloc(a->pieces.n_others + 1, TREE_HASH_SIZE);
	a->sums = calloc(a->engine->order.chunk / 2, sizeof(*a->sums));
	if (!a->digests || !a->sums) {
		(void)snprintf(why, ORDER_WHY_SIZE, "no memory");
		return -ENOMEM;
	}
	for (size_t i = 0; i < a->pieces.n_tensors; i++) {
		const struct tensor *t = &a->pieces.tensors[i];

		if (t->type != MEAN_TYPES)
			continue;
		tree_hash(a->source + t->offset, t->size, a->digests[other++]);
		memcpy(a->result + t->offset, a->source + t->offset, t->size);
	}
	return 0;
}

static int open_wires(struct average *a, char why[ORDER_WHY_SIZE])
{
	int r = 0;

	for (unsigned j = 0; r == 0 && j < a->mesh.n_nodes; j++) {
		struct party *p = &a->parties[j];

		p->average = a;
		p->wire = &a->mesh.wires[j];
		if (j == a->mesh.rank)
			continue;
		r = mesh_open(&a->mesh, j, why);
		p->terms = malloc(DEPTH * a->engine->order.chunk);
		if (r == 0 && !p->terms) {
			(void)snprintf(why, ORDER_WHY_SIZE, "no memory");
			r = -ENOMEM;
		}
	}
	return r;
}

/* What each rank owns, from which follows what each link carries: the agent tells it before anything moves. */
static int tell_shares(const struct average *a, json_t *opened, char why[ORDER_WHY_SIZE])
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
		(void)snprintf(why, ORDER_WHY_SIZE, "no memory");
	return r == 0 ? 0 : -ENOMEM;
}

static int open_average(struct engine *e, const json_t *order, json_t *opened,
			char why[ORDER_WHY_SIZE])
{
	struct average *a = calloc(1, sizeof(*a));
	int r;

	if (!a) {
		(void)snprintf(why, ORDER_WHY_SIZE, "no memory");
		return -ENOMEM;
	}
	a->engine = e;
	e->work = a;
	a->mesh.what = "other tensors";
	a->mesh.n_bytes = e->order.n_bytes;
	r = mesh_init(&a->mesh, e, order, why);
	if (r == 0)
		r = read_table(a, why);
	if (r == 0)
		r = map_memory(a, why);
	if (r == 0)
		r = take_others(a, why);
	if (r == 0)
		r = open_wires(a, why);
	if (r == 0)
		r = mesh_add_hellos(&a->mesh, opened, why);
	if (r == 0)
		r = tell_shares(a, opened, why);
	return r;
}

static int start_average(struct engine *e, const json_t *order, char why[ORDER_WHY_SIZE])
{
	struct average *a = e->work;
	bool is_met;
	int r = mesh_start(&a->mesh, order, &is_met, why);

	if (r < 0 || !is_met)
		return r;
	r = engine_run(e, work, a);
	if (r < 0)
		(void)snprintf(why, ORDER_WHY_SIZE, "no thread: %s", strerror(-r));
	return r;
}

static bool is_owed(struct engine *e, const struct wire *w)
{
	(void)e, (void)w;
	return true;
}

static void plan(const struct engine *e, const struct wire *w, uint64_t *ret_received,
		 uint64_t *ret_sent)
{
	const struct average *a = e->work;
	const struct share *ours = &a->pieces.shares[a->mesh.rank];
	const struct share *theirs = &a->pieces.shares[w - a->mesh.wires];

	*ret_received = *ret_sent = gloo_planned_average(a->pieces.n_others,
							 ours->n_pieces + theirs->n_pieces,
							 ours->n_bytes + theirs->n_bytes);
}

const struct operation average_operation = {
	.open = open_average,
	.start = start_average,
	.is_owed = is_owed,
	.plan = plan,
};
