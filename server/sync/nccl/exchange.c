#include "server/sync/nccl/exchange.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/reshard/moves.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/nccl/members.h"

#define PIECE_MIN ((uint64_t)65536)

/* One direction of a link with a node. */
struct lane {
	const struct moves_link *link; /* NULL: nothing to move */
	struct stream stream; /* place of the next piece in memory */
	uint64_t left; /* bytes to be queued */
	uint64_t counted; /* bytes of the calls */
	cu_ptr piece;
	uint8_t root[MERKLE_HASH_SIZE]; /* valid at the end */
};

struct exchange {
	struct members members;
	struct moves moves;
	uint64_t piece; /* bytes of a piece, the same on all nodes */
	struct lane out[ENGINE_NODES_MAX]; /* indexed by rank; our own: bytes that stay here */
	struct lane in[ENGINE_NODES_MAX];
};

static struct exchange *exchange_of(const struct engine *e)
{
	return e->work;
}

/* --- Called by the loop ------------------------------------------------------------------------ */

static int decode_plan(struct exchange *x, const struct engine_order *o,
		       const struct common_text *text, char why[ENGINE_ORDER_WHY_SIZE])
{
	const struct nodes *n = &x->members.nodes;
	char reason[MOVES_WHY_SIZE];
	int r = moves_decode(text->data, text->size, &x->moves, reason);

	if (r < 0) {
		(void)engine_order_wrong(why, reason);
		return r;
	}
	if (x->moves.n_nodes != n->n || x->moves.nodes[n->rank].size[MOVES_FROM] != o->n_bytes ||
	    x->moves.nodes[n->rank].size[MOVES_TO] != o->result_bytes)
		return engine_order_wrong(
			why, "the plan is of other `nodes`, `n_bytes` or `result_bytes`");
	return 0;
}

static int read_plan(struct exchange *x, const struct engine_order *o,
		     char why[ENGINE_ORDER_WHY_SIZE])
{
	struct common_text text;
	int r;

	if (!fd_is_sealed(o->plan_fd))
		return engine_order_wrong(why, "the plan must be sealed");
	r = common_text_init(&text, o->plan_fd, MOVES_SIZE_MAX, x->members.what, why);
	if (r < 0)
		return r;
	memcpy(x->members.hash, text.hash, sizeof(text.hash));
	r = decode_plan(x, o, &text, why);
	common_text_deinit(&text);
	return r;
}

static void open_lane(const struct exchange *x, struct lane *l, unsigned from, unsigned to)
{
	l->link = moves_link(&x->moves, from, to);
	if (!l->link)
		return;
	l->left = l->link->n_bytes;
	stream_init(&l->stream, &x->moves, l->link);
}

static int exchange_open(struct engine *e, const json_t *order, char why[ENGINE_ORDER_WHY_SIZE])
{
	static struct exchange exchange = {.members.what = "plan"};
	struct exchange *x = e->work = &exchange;
	const struct nodes *n = &x->members.nodes;
	int r = members_open(&x->members, e, order, why);

	if (r == 0)
		r = read_plan(x, &e->engine_loop.order, why);
	if (r < 0)
		return r;
	/* So the pieces of a round have at most a chunk, in each direction. */
	x->piece = e->engine_loop.order.chunk / n->n;
	x->piece = x->piece < PIECE_MIN ? PIECE_MIN : x->piece - x->piece % PIECE_MIN;
	for (unsigned rank = 0; rank < n->n; rank++) {
		open_lane(x, &x->out[rank], n->rank, rank);
		open_lane(x, &x->in[rank], rank, n->rank);
		e->total += rank == n->rank ? 0 : x->out[rank].left;
	}
	return 0;
}

static json_t *exchange_opened(const struct engine *e)
{
	return members_opened(&exchange_of(e)->members, e);
}

static int exchange_start(struct engine *e, const json_t *order, char why[ENGINE_ORDER_WHY_SIZE])
{
	return members_start(&exchange_of(e)->members, e, order, why);
}

static json_t *lane_describe(const struct lane *l, const char *node)
{
	char hex[2 * MERKLE_HASH_SIZE + 1];

	return json_pack("{ss sI ss}", "node", node, "bytes", (json_int_t)l->link->n_bytes, "root",
			 field_hex(l->root, sizeof(l->root), hex));
}

/* An incomplete result is missing from the report: the agent compares it with the plan. */
static json_t *exchange_done(const struct engine *e)
{
	const struct exchange *x = exchange_of(e);
	const struct nodes *n = &x->members.nodes;
	json_t *gave = json_array(), *took = json_array(), *links = json_object();
	bool comes = false, goes = false;
	uint64_t in = 0, out = 0;

	for (unsigned rank = 0; rank < n->n; rank++) {
		const struct lane *from = &x->in[rank], *to = &x->out[rank];
		const char *node = n->at[rank].name;

		if (to->link)
			(void)json_array_append_new(gave, lane_describe(to, node));
		if (from->link)
			(void)json_array_append_new(took, lane_describe(from, node));
		if (rank == n->rank || (!to->link && !from->link))
			continue;
		(void)json_object_set_new(
			links, node,
			json_pack("{so so}", "in", engine_describe_bytes(from->counted, from->link),
				  "out", engine_describe_bytes(to->counted, to->link)));
		comes |= from->link != NULL;
		goes |= to->link != NULL;
		in += from->counted;
		out += to->counted;
	}
	return json_pack("{so so so so so}", "in", engine_describe_bytes(in, comes), "out",
			 engine_describe_bytes(out, goes), "links", links, "gave", gave, "took",
			 took);
}

/* --- Memory ------------------------------------------------------------------------------------ */

static bool allocate_piece(struct worker *w, struct lane *l, uint64_t piece)
{
	const uint64_t size = l->left < piece ? l->left : piece;

	return !l->link || worker_check(w, w->e->gpu.driver->mem_alloc(&l->piece, size));
}

static bool exchange_prepare(struct worker *w)
{
	struct engine *e = w->e;
	struct exchange *x = exchange_of(e);
	const struct engine_order *o = &e->engine_loop.order;
	const struct nodes *n = &x->members.nodes;

	if (!worker_map(w, o->memory_fd, o->map_size, true, &e->memory) ||
	    !worker_map(w, o->result_fd, o->result_map_size, false, &e->result))
		return false;
	engine_does(e, "the allocation of memory for pieces");
	for (unsigned rank = 0; rank < n->n; rank++)
		if (rank != n->rank && (!allocate_piece(w, &x->out[rank], x->piece) ||
					!allocate_piece(w, &x->in[rank], x->piece)))
			return false;
	return true;
}

/* Copies the next bytes of a stream out of memory. */
static bool gather(struct worker *w, struct stream *s, enum moves_side side, cu_ptr memory,
		   cu_ptr to, uint64_t size)
{
	struct engine *e = w->e;

	while (size > 0) {
		uint64_t offset;
		const size_t n = stream_next(s, side, size, &offset);

		if (!worker_check(w, e->gpu.driver->memcpy_on_device_async(to, memory + offset, n,
									   e->gpu.stream)))
			return false;
		to += n;
		size -= n;
	}
	return true;
}

static bool scatter(struct worker *w, struct stream *s, cu_ptr from, uint64_t size)
{
	struct engine *e = w->e;

	while (size > 0) {
		uint64_t offset;
		const size_t n = stream_next(s, MOVES_TO, size, &offset);

		if (!worker_check(w, e->gpu.driver->memcpy_on_device_async(e->result + offset, from,
									   n, e->gpu.stream)))
			return false;
		from += n;
		size -= n;
	}
	return true;
}

/* Copies bytes that stay on this node: their runs are equally long at both ends. */
static bool move_ours(struct worker *w, struct lane *out, struct lane *in, uint64_t size)
{
	struct engine *e = w->e;

	out->left -= size;
	in->left -= size;
	while (size > 0) {
		uint64_t from, to;
		const size_t n = stream_next(&out->stream, MOVES_FROM, size, &from);

		(void)stream_next(&in->stream, MOVES_TO, n, &to);
		if (!worker_check(w, e->gpu.driver->memcpy_on_device_async(
					     e->result + to, e->memory + from, n, e->gpu.stream)))
			return false;
		size -= n;
	}
	return true;
}

/* --- Rounds ------------------------------------------------------------------------------------ */

static uint64_t piece_size(const struct exchange *x, const struct lane *l)
{
	return l->left < x->piece ? l->left : x->piece;
}

static bool exchange_greet(struct worker *w)
{
	return members_greet(&exchange_of(w->e)->members, w);
}

static bool exchange_has_more(const struct worker *w)
{
	const struct exchange *x = exchange_of(w->e);

	for (unsigned rank = 0; rank < x->members.nodes.n; rank++)
		if (x->out[rank].left || x->in[rank].left)
			return true;
	return false;
}

static bool gather_pieces(struct worker *w, struct exchange *x)
{
	for (unsigned rank = 0; rank < x->members.nodes.n; rank++) {
		struct lane *l = &x->out[rank];

		if (rank != x->members.nodes.rank && l->left &&
		    !gather(w, &l->stream, MOVES_FROM, w->e->memory, l->piece, piece_size(x, l)))
			return false;
	}
	return true;
}

static bool exchange_pieces(struct worker *w, struct exchange *x)
{
	struct engine *e = w->e;

	if (!worker_group_begin(w))
		return false;
	for (unsigned rank = 0; rank < x->members.nodes.n; rank++) {
		struct lane *out = &x->out[rank], *in = &x->in[rank];
		const uint64_t n_out = piece_size(x, out), n_in = piece_size(x, in);

		if (rank == x->members.nodes.rank)
			continue;
		if (n_out > 0)
			worker_group_add(w, e->nccl.send((void *)(uintptr_t)out->piece, n_out,
							 NCCL_UINT8, (int)rank, w->comm,
							 e->gpu.stream));
		if (n_in > 0)
			worker_group_add(w, e->nccl.receive((void *)(uintptr_t)in->piece, n_in,
							    NCCL_UINT8, (int)rank, w->comm,
							    e->gpu.stream));
		out->counted += n_out;
		in->counted += n_in;
	}
	return worker_group_end(w);
}

/* Advances the lanes by a piece each. */
static bool scatter_pieces(struct worker *w, struct exchange *x, uint64_t *ret_in, uint64_t *ret_out)
{
	for (unsigned rank = 0; rank < x->members.nodes.n; rank++) {
		struct lane *out = &x->out[rank], *in = &x->in[rank];
		const uint64_t n_out = piece_size(x, out), n_in = piece_size(x, in);

		*ret_in += n_in;
		if (rank == x->members.nodes.rank) {
			if (!move_ours(w, out, in, n_in))
				return false;
			continue;
		}
		*ret_out += n_out;
		if (n_in > 0 && !scatter(w, &in->stream, in->piece, n_in))
			return false;
		out->left -= n_out;
		in->left -= n_in;
	}
	return true;
}

/* The stream keeps the order, so that the memory of pieces is free again for the next round. */
static bool exchange_queue(struct worker *w)
{
	struct exchange *x = exchange_of(w->e);
	uint64_t in = 0, out = 0;

	return gather_pieces(w, x) && exchange_pieces(w, x) && scatter_pieces(w, x, &in, &out) &&
	       worker_end_bucket(w, in, out);
}

/* --- Digests ----------------------------------------------------------------------------------- */

/* The root of the tree over a stream, from the bytes in memory now. */
static bool exchange_digest(struct worker *w, struct lane *l, enum moves_side side)
{
	struct engine *e = w->e;
	const uint64_t n_bytes = l->link->n_bytes, n_leaves = merkle_n_leaves(n_bytes);
	cleanup(freep) uint8_t(*leaves)[MERKLE_HASH_SIZE] = calloc(n_leaves + 1, sizeof(*leaves));
	const cu_ptr leaf = worker_scratch(w, offsetof(struct pinned, leaf));
	struct stream s;

	if (!leaves)
		return engine_break(e, false, "no memory for digests");
	stream_init(&s, &exchange_of(e)->moves, l->link);
	for (uint64_t i = 0; i < n_leaves; i++) {
		const uint64_t left = n_bytes - i * MERKLE_LEAF_SIZE;
		const size_t size = left < MERKLE_LEAF_SIZE ? left : MERKLE_LEAF_SIZE;

		if (!gather(w, &s, side, side == MOVES_FROM ? e->memory : e->result, leaf, size) ||
		    !worker_read_leaf(w, leaf, size))
			return false;
		merkle_leaf(w->pinned->leaf, size, 0, leaves[i]);
		w->sent += size;
		engine_arrived(e, w->done, w->sent);
	}
	merkle_root(n_bytes, (const void *)leaves, l->root);
	return true;
}

static bool exchange_finish(struct worker *w)
{
	struct exchange *x = exchange_of(w->e);

	engine_does(w->e, "the digests of what has moved");
	for (unsigned rank = 0; rank < x->members.nodes.n; rank++)
		if ((x->out[rank].link && !exchange_digest(w, &x->out[rank], MOVES_FROM)) ||
		    (x->in[rank].link && !exchange_digest(w, &x->in[rank], MOVES_TO)))
			return false;
	return true;
}

const struct operation exchange_operation = {
	.doing = "NCCL's exchange",
	.open = exchange_open,
	.opened = exchange_opened,
	.start = exchange_start,
	.done = exchange_done,
	.prepare = exchange_prepare,
	.greet = exchange_greet,
	.has_more = exchange_has_more,
	.queue = exchange_queue,
	.finish = exchange_finish,
};
