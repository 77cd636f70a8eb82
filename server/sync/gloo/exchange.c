#include "server/sync/gloo/exchange.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/reshard/moves.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/base/merkle.h"
#include "server/sync/base/planned_bytes.h"
#include "server/sync/gloo/mesh.h"

#define DEPTH 4 /* pieces under way, in each direction */

/* One direction of a wire. */
struct lane {
	const struct moves_link *link; /* NULL: nothing to move */
	uint64_t n_pieces;
	struct stream stream; /* place of the next piece in memory */
	uint8_t *pieces; /* DEPTH chunks */
	struct transfer *transfers[DEPTH];
	uint8_t root[MERKLE_HASH_SIZE]; /* valid at the end */
};

struct party {
	struct exchange *exchange;
	struct lane out;
	struct lane in;
};

struct exchange {
	struct engine *engine;
	struct mesh mesh;
	struct moves moves;
	struct party parties[ENGINE_NODES_MAX]; /* indexed by rank; our own one for bytes that stay here */
};

static uint64_t piece_size(const struct exchange *x, const struct lane *l, uint64_t i)
{
	uint64_t chunk = x->engine->engine_loop.order.chunk, left = l->link->n_bytes - i * chunk;

	return left < chunk ? left : chunk;
}

static uint8_t *piece_of(const struct exchange *x, const struct lane *l, uint64_t i)
{
	return l->pieces + i % DEPTH * x->engine->engine_loop.order.chunk;
}

/* --- Digests ----------------------------------------------------------------------------------- */

/* The root of the tree over a stream, from the bytes in memory now, independent of those sent. */
static bool exchange_digest(struct exchange *x, struct lane *l, enum moves_side side)
{
	uint64_t n_bytes = l->link->n_bytes, n_leaves = merkle_n_leaves(n_bytes);
	cleanup(freep) uint8_t(*leaves)[MERKLE_HASH_SIZE] = calloc(n_leaves, sizeof(*leaves));
	cleanup(freep) uint8_t *leaf = malloc(MERKLE_LEAF_SIZE);
	struct stream s;

	if (!leaves || !leaf) {
		engine_break(x->engine, NULL, "no memory for digests");
		return false;
	}
	stream_init(&s, &x->moves, l->link);
	for (uint64_t i = 0; i < n_leaves; i++) {
		uint64_t left = n_bytes - i * MERKLE_LEAF_SIZE;
		size_t size = left < MERKLE_LEAF_SIZE ? left : MERKLE_LEAF_SIZE;

		stream_read(&s, side, side == MOVES_FROM ? x->mesh.source : x->mesh.result, leaf,
			    size);
		merkle_leaf(leaf, size, 0, leaves[i]);
		atomic_fetch_add(&x->engine->digested, size);
	}
	merkle_root(n_bytes, (const void *)leaves, l->root);
	return true;
}

static bool digest_lanes(struct party *p)
{
	return (!p->out.link || exchange_digest(p->exchange, &p->out, MOVES_FROM)) &&
	       (!p->in.link || exchange_digest(p->exchange, &p->in, MOVES_TO));
}

/* --- Transfers --------------------------------------------------------------------------------- */

static bool exchange_ask(struct party *p, unsigned peer, uint64_t i)
{
	struct exchange *x = p->exchange;

	return i >= p->in.n_pieces ||
	       wire_receive(x->engine, &x->mesh.wires[peer],
			    mesh_slot_in(&x->mesh, peer, MESH_MORE + i), piece_of(x, &p->in, i),
			    piece_size(x, &p->in, i), &p->in.transfers[i % DEPTH]);
}

/* Sends a piece, after the transfer that used its place has ended. */
static bool exchange_give(struct party *p, unsigned peer, uint64_t i)
{
	struct exchange *x = p->exchange;
	struct engine *e = x->engine;
	struct lane *l = &p->out;

	if (i >= DEPTH && i - DEPTH < l->n_pieces) {
		if (!wire_finish(e, &x->mesh.wires[peer], &l->transfers[i % DEPTH]))
			return false;
		atomic_fetch_add(&e->sent, piece_size(x, l, i - DEPTH));
	}
	if (i >= l->n_pieces)
		return true;
	stream_read(&l->stream, MOVES_FROM, x->mesh.source, piece_of(x, l, i), piece_size(x, l, i));
	return wire_send(e, &x->mesh.wires[peer], mesh_slot_out(&x->mesh, peer, MESH_MORE + i),
			 piece_of(x, l, i), piece_size(x, l, i), &l->transfers[i % DEPTH]);
}

static bool exchange_take(struct party *p, unsigned peer, uint64_t i)
{
	struct exchange *x = p->exchange;
	struct lane *l = &p->in;

	if (i >= l->n_pieces)
		return true;
	if (!wire_finish(x->engine, &x->mesh.wires[peer], &l->transfers[i % DEPTH]))
		return false;
	stream_write(&l->stream, piece_of(x, l, i), x->mesh.result, piece_size(x, l, i));
	atomic_fetch_add(&x->engine->arrived, piece_size(x, l, i));
	if (i + 1 == l->n_pieces)
		atomic_store(&x->mesh.wires[peer].has_all, true);
	return exchange_ask(p, peer, i + DEPTH);
}

static void *give_all(void *arg)
{
	struct party *p = arg;
	unsigned peer = (unsigned)(p - p->exchange->parties);

	/* The last DEPTH turns only wait. */
	for (uint64_t i = 0; i < p->out.n_pieces + DEPTH; i++)
		if (!exchange_give(p, peer, i))
			return NULL;
	return p;
}

static bool take_all(struct party *p, unsigned peer)
{
	for (uint64_t i = 0; i < DEPTH; i++)
		if (!exchange_ask(p, peer, i))
			return false;
	for (uint64_t i = 0; i < p->in.n_pieces; i++)
		if (!exchange_take(p, peer, i))
			return false;
	return true;
}

/*
 * Runs both directions at once, and neither waits for the other: otherwise a slow outgoing link
 * would make this node look silent.
 */
static bool run_lanes(struct party *p, unsigned peer)
{
	void *given = NULL;
	pthread_t giver;

	if (!p->in.link)
		return give_all(p) != NULL;
	if (!p->out.link)
		return take_all(p, peer);
	if (pthread_create(&giver, NULL, give_all, p) != 0) {
		engine_break(p->exchange->engine, NULL, "no thread to give %s anything",
			     p->exchange->mesh.wires[peer].node);
		return false;
	}
	if (!take_all(p, peer))
		return false;
	(void)pthread_join(giver, &given);
	return given != NULL;
}

/* Copies the bytes that stay on this node. */
static void move_ours(struct party *p)
{
	struct exchange *x = p->exchange;

	for (uint64_t i = 0; i < p->out.n_pieces; i++) {
		uint64_t size = piece_size(x, &p->out, i);

		stream_read(&p->out.stream, MOVES_FROM, x->mesh.source, p->out.pieces, size);
		stream_write(&p->in.stream, p->out.pieces, x->mesh.result, size);
		atomic_fetch_add(&x->engine->arrived, size);
	}
}

static bool exchange_serve(struct mesh *m, unsigned peer)
{
	struct party *p = &container_of(m, struct exchange, mesh)->parties[peer];

	if (peer == m->rank)
		move_ours(p);
	else if (!mesh_greet(m, peer) || !run_lanes(p, peer) || !mesh_part(m, peer))
		return false;
	return digest_lanes(p);
}

static void *exchange_work(void *arg)
{
	struct exchange *x = arg;

	if (mesh_each(&x->mesh, exchange_serve))
		engine_thread_is_done(x->engine);
	return NULL;
}

/* --- The operation ----------------------------------------------------------------------------- */

static int read_plan(struct mesh *m, const void *text, size_t size, char why[ENGINE_ORDER_WHY_SIZE])
{
	struct exchange *x = container_of(m, struct exchange, mesh);
	const struct engine_order *o = &m->engine->engine_loop.order;
	char reason[MOVES_WHY_SIZE];
	int r = moves_decode(text, size, &x->moves, reason);

	m->n_bytes = size;
	if (r < 0) {
		(void)engine_order_wrong(why, reason);
		return r;
	}
	if (x->moves.n_nodes != m->n_nodes ||
	    x->moves.nodes[m->rank].size[MOVES_FROM] != o->n_bytes ||
	    x->moves.nodes[m->rank].size[MOVES_TO] != o->result_bytes)
		return engine_order_wrong(
			why, "the plan is of other `nodes`, `n_bytes` or `result_bytes`");
	return 0;
}

static int open_lane(struct exchange *x, struct lane *l, unsigned from, unsigned to,
		     char why[ENGINE_ORDER_WHY_SIZE])
{
	uint64_t chunk = x->engine->engine_loop.order.chunk;

	l->link = moves_link(&x->moves, from, to);
	if (!l->link)
		return 0;
	l->n_pieces = l->link->n_bytes / chunk + (l->link->n_bytes % chunk != 0);
	stream_init(&l->stream, &x->moves, l->link);
	l->pieces = malloc((l->n_pieces < DEPTH ? l->n_pieces : DEPTH) * chunk);
	return l->pieces ? 0 : engine_order_no_memory(why);
}

static int open_party(struct exchange *x, unsigned rank, char why[ENGINE_ORDER_WHY_SIZE])
{
	struct party *p = &x->parties[rank];
	struct wire *w = &x->mesh.wires[rank];
	int r = open_lane(x, &p->out, x->mesh.rank, rank, why);

	p->exchange = x;
	if (r == 0)
		r = open_lane(x, &p->in, rank, x->mesh.rank, why);
	if (r < 0 || rank == x->mesh.rank || (!p->out.link && !p->in.link))
		return r;
	w->way = !p->in.link ? WIRE_OUT : !p->out.link ? WIRE_IN : WIRE_BOTH;
	return mesh_open(&x->mesh, rank, why);
}

static int open_exchange(struct engine *e, const json_t *order, json_t *opened,
			 char why[ENGINE_ORDER_WHY_SIZE])
{
	struct exchange *x = calloc(1, sizeof(*x));
	int r;

	if (!x)
		return engine_order_no_memory(why);
	x->engine = e;
	e->work = x;
	x->mesh.what = "plan";
	r = mesh_init(&x->mesh, e, order, why);
	if (r == 0 && !fd_is_sealed(e->engine_loop.order.plan_fd))
		r = engine_order_wrong(why, "the plan must be sealed");
	if (r == 0)
		r = mesh_read(&x->mesh, e->engine_loop.order.plan_fd, MOVES_SIZE_MAX, read_plan,
			      why);
	if (r == 0)
		r = mesh_map(&x->mesh, e->engine_loop.order.result_bytes, why);
	for (unsigned rank = 0; r == 0 && rank < x->mesh.n_nodes; rank++)
		r = open_party(x, rank, why);
	return r == 0 ? mesh_add_hellos(&x->mesh, opened, why) : r;
}

static int start_exchange(struct engine *e, const json_t *order, char why[ENGINE_ORDER_WHY_SIZE])
{
	struct exchange *x = e->work;
	bool is_met;
	int r = mesh_start(&x->mesh, order, &is_met, why);

	if (r < 0 || !is_met)
		return r;
	return engine_run(e, exchange_work, x, why);
}

static bool exchange_is_owed(struct engine *e, const struct wire *w)
{
	(void)e, (void)w;
	return true;
}

static struct planned_bytes exchange_plan(const struct engine *e, const struct wire *w)
{
	const struct exchange *x = e->work;
	const struct lane *in = &x->parties[w - x->mesh.wires].in;
	const struct lane *out = &x->parties[w - x->mesh.wires].out;

	return (struct planned_bytes){
		.received = gloo_planned_mesh(in->n_pieces, out->n_pieces,
					      in->link ? in->link->n_bytes : 0),
		.sent = gloo_planned_mesh(out->n_pieces, in->n_pieces,
					  out->link ? out->link->n_bytes : 0),
	};
}

static json_t *lane_describe(const struct lane *l, const char *node)
{
	char hex[2 * MERKLE_HASH_SIZE + 1];

	return json_pack("{ss sI ss}", "node", node, "bytes", (json_int_t)l->link->n_bytes, "root",
			 field_hex(l->root, sizeof(l->root), hex));
}

static void exchange_report(const struct engine *e, json_t *done)
{
	const struct exchange *x = e->work;
	json_t *gave = json_array(), *took = json_array();

	/* An incomplete result is missing from the report: the agent compares it with the plan. */
	for (unsigned rank = 0; rank < x->mesh.n_nodes; rank++) {
		const struct party *p = &x->parties[rank];
		const char *node = x->mesh.wires[rank].node;

		if (p->out.link)
			(void)json_array_append_new(gave, lane_describe(&p->out, node));
		if (p->in.link)
			(void)json_array_append_new(took, lane_describe(&p->in, node));
	}
	(void)json_object_set_new(done, "gave", gave);
	(void)json_object_set_new(done, "took", took);
}

const struct operation exchange_operation = {
	.open = open_exchange,
	.start = start_exchange,
	.is_owed = exchange_is_owed,
	.plan = exchange_plan,
	.report = exchange_report,
};
