#include "server/sync/gloo/chain.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/sync/base/cursor.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/base/planned_bytes.h"
#include "server/sync/base/preamble.h"

#define DEPTH 8 /* pieces under way, in each direction */
#define BATCH (DEPTH / 2) /* pieces per wake-up, which costs as much as the copy of a piece */
#define HELLO_SIZE (2 * (1 + LINK_HELLO_MAX))

/* Slots of a link. */
enum {
	SLOT_GREETING,
	SLOT_ANSWER,
	SLOT_THERE,
	SLOT_PIECES,
};

/*
 * The sender's first message; numbers are big-endian. A difference here would lead to other pieces
 * there. The answer is a proof: without it nothing is sent.
 */
struct greeting {
	uint8_t preamble[PREAMBLE_SIZE]; /* with a proof instead of the token */
	uint64_t chunk;
	uint64_t n_pieces;
};
_Static_assert(sizeof(struct greeting) == GLOO_GREETING_SIZE, "it goes over the wire");

enum {
	IN,
	OUT,
	N_WIRES,
};

struct chain {
	struct wire wires[N_WIRES];
	uint64_t n_pieces;
	struct address from; /* the address that the previous node must have */
	/*
	 * The next node owes progress until it has acknowledged so many bytes; written by the
	 * sending thread.
	 */
	atomic_uint_fast64_t owed;
};

static struct chain *chain_of(const struct engine *e)
{
	return e->work;
}

static uint64_t count_pieces(const struct engine_order *o)
{
	struct cursor c;
	uint64_t n = 0, size, offset;

	cursor_init(&c, &o->ranges);
	while ((size = cursor_piece(&c, o->chunk, &offset)) > 0) {
		cursor_advance(&c, size);
		n++;
	}
	return n;
}

/* --- Incoming ---------------------------------------------------------------------------------- */

static bool is_welcome(struct engine *e, const struct wire *w, const struct greeting *g)
{
	const struct engine_order *o = &e->engine_loop.order;
	uint8_t proof[PREAMBLE_TOKEN_SIZE];
	const char *wrong = NULL;
	struct preamble p;

	wire_prove(o->token, o->from, o->node, proof);
	if (preamble_decode(g->preamble, &p) < 0)
		wrong = "no preamble of ours";
	else if (memcmp(p.token, proof, sizeof(proof)) != 0)
		wrong = "a wrong token";
	else if (memcmp(p.sync, o->sync, sizeof(p.sync)) != 0 || p.epoch != o->epoch)
		wrong = "another sync or epoch";
	else if (strcmp(p.from, o->from) != 0 || strcmp(p.to, o->node) != 0)
		wrong = "other names";
	else if (p.n_bytes != o->total || be64toh(g->chunk) != o->chunk ||
		 be64toh(g->n_pieces) != chain_of(e)->n_pieces)
		wrong = "another size";
	if (wrong)
		engine_break(e, w, "the stream of %s begins with %s", w->node, wrong);
	return !wrong;
}

/* Receives the pieces from `i` on, in a batch: the sender may begin at once. */
static bool chain_ask(struct engine *e, struct cursor *c, uint64_t i, struct transfer **ret)
{
	uint64_t offset, size;

	for (unsigned j = 0; j < BATCH; j++) {
		size = cursor_piece(c, e->engine_loop.order.chunk, &offset);
		if (size == 0)
			break;
		cursor_advance(c, size);
		if (!wire_receive(e, &chain_of(e)->wires[IN], SLOT_PIECES + i + j,
				  e->memory.map + offset, size, &ret[j]))
			return false;
	}
	return true;
}

static bool take_stream(struct engine *e)
{
	struct chain *chain = chain_of(e);
	struct transfer *transfers[DEPTH] = {0};
	struct cursor asked, there;
	uint64_t offset;

	cursor_init(&asked, &e->engine_loop.order.ranges);
	cursor_init(&there, &e->engine_loop.order.ranges);
	for (unsigned i = 0; i < DEPTH; i += BATCH)
		if (!chain_ask(e, &asked, i, &transfers[i]))
			return false;
	for (uint64_t i = 0; i < chain->n_pieces; i++) {
		if (!wire_finish(e, &chain->wires[IN], &transfers[i % DEPTH]))
			return false;
		cursor_advance(&there, cursor_piece(&there, e->engine_loop.order.chunk, &offset));
		engine_arrived(e, there.at);
		if ((i + 1) % BATCH == 0 && !chain_ask(e, &asked, i + 1 - BATCH + DEPTH,
						       &transfers[(i + 1 - BATCH) % DEPTH]))
			return false;
	}
	return true;
}

static void *chain_take(void *arg)
{
	struct engine *e = arg;
	struct wire *in = &chain_of(e)->wires[IN];
	uint8_t answer[PREAMBLE_TOKEN_SIZE];
	struct greeting greeting = {0}; /* the peer may send fewer bytes */

	wire_prove(e->engine_loop.order.token, e->engine_loop.order.node, e->engine_loop.order.from,
		   answer);
	if (!wire_connect(e, in, &chain_of(e)->from, 0) ||
	    !wire_receive_wait(e, in, SLOT_GREETING, &greeting, sizeof(greeting)) ||
	    !is_welcome(e, in, &greeting) ||
	    !wire_send_wait(e, in, SLOT_ANSWER, answer, sizeof(answer)) || !take_stream(e) ||
	    !wire_send_wait(e, in, SLOT_THERE, STREAM_THERE, STREAM_WORD_SIZE))
		return NULL;
	atomic_store(&in->state, WIRE_DONE);
	engine_thread_is_done(e);
	return NULL;
}

/* --- Outgoing ---------------------------------------------------------------------------------- */

static void chain_greet(const struct engine *e, struct greeting *ret)
{
	struct preamble p = {.epoch = e->engine_loop.order.epoch,
			     .n_bytes = e->engine_loop.order.total};

	memcpy(p.sync, e->engine_loop.order.sync, sizeof(p.sync));
	wire_prove(e->next.token, e->engine_loop.order.node, e->next.node, p.token);
	memcpy(p.from, e->engine_loop.order.node, sizeof(p.from));
	memcpy(p.to, e->next.node, sizeof(p.to));
	preamble_encode(&p, ret->preamble);
	ret->chunk = htobe64(e->engine_loop.order.chunk);
	ret->n_pieces = htobe64(chain_of(e)->n_pieces);
}

/* A piece being sent. */
struct going {
	struct transfer *transfer;
	uint64_t size;
};

/* Waits for the last first: while it is sent, this thread is not woken for the earlier ones. */
static bool chain_finish(struct engine *e, struct going *batch)
{
	for (unsigned j = BATCH; j-- > 0;) {
		if (!wire_finish(e, &chain_of(e)->wires[OUT], &batch[j].transfer))
			return false;
		atomic_fetch_add(&e->sent, batch[j].size);
		batch[j].size = 0;
	}
	return true;
}

static bool give_stream(struct engine *e)
{
	struct chain *chain = chain_of(e);
	struct going going[DEPTH] = {0};
	struct cursor c;

	cursor_init(&c, &e->engine_loop.order.ranges);
	/* The last DEPTH turns only wait. */
	for (uint64_t i = 0; i < chain->n_pieces + DEPTH; i++) {
		struct going *g = &going[i % DEPTH];
		uint64_t offset;

		/* Once all is sent, the next node owes STREAM_THERE. */
		atomic_store(&chain->owed,
			     i < chain->n_pieces ? gloo_planned(i + 1, GLOO_GREETING_SIZE + c.at) +
							   gloo_planned_back(1)
						 : UINT64_MAX);
		if (i % BATCH == 0 && !chain_finish(e, g))
			return false;
		g->size = cursor_piece(&c, e->engine_loop.order.chunk, &offset);
		if (g->size == 0)
			continue;
		cursor_advance(&c, g->size);
		engine_await(e, c.at);
		if (!wire_send(e, &chain->wires[OUT], SLOT_PIECES + i, e->memory.map + offset,
			       g->size, &g->transfer))
			return false;
	}
	return true;
}

static void *chain_give(void *arg)
{
	struct engine *e = arg;
	struct wire *out = &chain_of(e)->wires[OUT];
	uint8_t answer[PREAMBLE_TOKEN_SIZE] = {0}, expected[PREAMBLE_TOKEN_SIZE];
	struct greeting greeting;
	char word[STREAM_WORD_SIZE] = {0};

	chain_greet(e, &greeting);
	wire_prove(e->next.token, e->next.node, e->engine_loop.order.node, expected);
	if (!wire_connect(e, out, &e->next.address, e->next.max_rate) ||
	    !wire_send_wait(e, out, SLOT_GREETING, &greeting, sizeof(greeting)) ||
	    !wire_receive_wait(e, out, SLOT_ANSWER, answer, sizeof(answer)))
		return NULL;
	if (memcmp(answer, expected, sizeof(answer)) != 0) {
		engine_break(e, out, "a peer other than %s connected: its token is wrong",
			     out->node);
		return NULL;
	}
	if (!give_stream(e) || !wire_receive_wait(e, out, SLOT_THERE, word, sizeof(word)))
		return NULL;
	if (memcmp(word, STREAM_THERE, sizeof(word)) != 0) {
		engine_break(e, out, "%s does not speak our protocol", out->node);
		return NULL;
	}
	atomic_store(&out->state, WIRE_DONE);
	engine_thread_is_done(e);
	return NULL;
}

/* --- The operation ----------------------------------------------------------------------------- */

/* Writes a hello: those of both links, each with its length before it. The source has only one. */
static size_t add_hello(const struct wire *w, uint8_t *to)
{
	to[0] = w->link ? (uint8_t)link_hello(w->link, to + 1) : 0;
	return 1 + (size_t)to[0];
}

/* Reads the hello of the link to this node from that of a neighbour. */
static int take_hello(const json_t *from, const char *key, struct wire *w)
{
	const char *hex = json_string_value(json_object_get(from, key));
	uint8_t both[HELLO_SIZE] = {0}, *at = both;
	size_t size = hex ? strlen(hex) / 2 : 0;

	if (size < 2 || size > sizeof(both) || field_bytes(from, key, both, size) < 0)
		return -EBADMSG;
	if (w->way == WIRE_IN) /* it is the neighbour's outgoing link, which is second */
		at += 1 + at[0];
	if (at >= both + size || at[0] == 0 || at[0] > LINK_HELLO_MAX ||
	    at + 1 + at[0] > both + size)
		return -EBADMSG;
	w->hello_size = at[0];
	memcpy(w->hello, at + 1, w->hello_size);
	return 0;
}

static int open_wire(const struct engine *e, struct wire *w, char why[ENGINE_ORDER_WHY_SIZE])
{
	const struct link_form form = {
		.address = e->engine_loop.order.address.at,
		.is_first = w->way == WIRE_OUT,
	};
	char reason[LINK_WHY_SIZE];

	if (link_new(&form, &w->link, reason) == 0)
		return 0;
	(void)snprintf(why, ENGINE_ORDER_WHY_SIZE, "%s cannot listen: %s",
		       e->engine_loop.order.node, reason);
	return -EIO;
}

static int open_chain(struct engine *e, const json_t *order, json_t *opened,
		      char why[ENGINE_ORDER_WHY_SIZE])
{
	const struct engine_order *o = &e->engine_loop.order;
	struct chain *chain = calloc(1, sizeof(*chain));
	bool is_source = !o->from[0];
	uint8_t hello[HELLO_SIZE];
	char hex[2 * HELLO_SIZE + 1];
	size_t size;
	int r = chain ? memory_init(&e->memory, o->memory_fd, o->data_offset, o->n_bytes, is_source,
				    true)
		      : -ENOMEM;

	(void)order;
	if (r < 0) {
		(void)snprintf(why, ENGINE_ORDER_WHY_SIZE, "the memory cannot be mapped: %s",
			       strerror(-r));
		free(chain);
		return r;
	}
	e->work = chain;
	e->wires = chain->wires;
	e->n_wires = N_WIRES;
	chain->wires[IN].way = WIRE_IN;
	chain->wires[OUT].way = WIRE_OUT;
	chain->n_pieces = count_pieces(&e->engine_loop.order);
	chain->owed = UINT64_MAX;
	memcpy(chain->wires[IN].node, e->engine_loop.order.from, sizeof(chain->wires[IN].node));
	if (e->engine_loop.order.address.size == 0)
		return engine_order_wrong(why, "`address` is missing");
	if (is_source)
		e->arrived = e->engine_loop.order.total;
	else
		r = open_wire(e, &chain->wires[IN], why);
	if (r == 0)
		r = open_wire(e, &chain->wires[OUT], why);
	if (r < 0)
		return r;
	size = add_hello(&chain->wires[IN], hello);
	size += add_hello(&chain->wires[OUT], hello + size);
	if (json_object_set_new(opened, "hello", json_string(field_hex(hello, size, hex))) < 0 ||
	    json_object_set_new(opened, "port",
				json_integer(is_source ? 0 : link_port(chain->wires[IN].link))) < 0)
		return engine_order_no_memory(why);
	return 0;
}

static int start_wire(struct engine *e, struct wire *w, void *(*fn)(void *),
		      char why[ENGINE_ORDER_WHY_SIZE])
{
	atomic_store(&w->state, WIRE_CONNECTING);
	return engine_run(e, fn, e, why);
}

/*
 * The agent only passed it on: so this is a failure of the link, for which the agent may blame the
 * sender as well.
 */
static int refuse_hello(struct engine *e, const struct wire *w)
{
	engine_break(e, w, "%s sent no `hello` of Gloo", w->node);
	return 0;
}

static int start_chain(struct engine *e, const json_t *order, char why[ENGINE_ORDER_WHY_SIZE])
{
	struct chain *chain = chain_of(e);
	struct wire *in = &chain->wires[IN], *out = &chain->wires[OUT];
	bool is_source = !in->link, is_last;
	int r = engine_order_read_next(order, &e->next, why);

	if (r < 0)
		return r;
	is_last = !e->next.node[0];
	if (!is_source && engine_order_read_address(order, "from_address", 0, &chain->from) < 0)
		return engine_order_wrong(why,
					  "`from_address` must be one of IPv4 or IPv6, in digits");
	memcpy(out->node, e->next.node, sizeof(out->node));
	if (!is_source && take_hello(order, "from_hello", in) < 0)
		return refuse_hello(e, in);
	if (!is_last && take_hello(json_object_get(order, "next"), "hello", out) < 0)
		return refuse_hello(e, out);
	if (!is_source)
		r = start_wire(e, in, chain_take, why);
	if (r == 0 && !is_last)
		r = start_wire(e, out, chain_give, why);
	return r;
}

static bool chain_is_owed(struct engine *e, const struct wire *w)
{
	return w->way == WIRE_IN || wire_acknowledged(w) < atomic_load(&chain_of(e)->owed);
}

static struct planned_bytes chain_plan(const struct engine *e, const struct wire *w)
{
	const struct engine_order *o = &e->engine_loop.order;
	uint64_t stream = gloo_planned_stream(&o->ranges, o->chunk);
	uint64_t back = gloo_planned_stream_back(&o->ranges, o->chunk);

	return w->way == WIRE_IN ? (struct planned_bytes){.received = stream, .sent = back}
				 : (struct planned_bytes){.received = back, .sent = stream};
}

const struct operation chain_operation = {
	.open = open_chain,
	.start = start_chain,
	.is_owed = chain_is_owed,
	.plan = chain_plan,
};
