#include "server/sync/gloo/average.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/sync/base/fields.h"
#include "server/sync/base/planned.h"
#include "server/sync/base/tree.h"
#include "server/sync/gloo/pieces.h"

#define NODES_MAX 64
#define TABLE_MAX (64 * MIB)
#define DEPTH 4 /* rounds that are asked for ahead, and of which some may be under way behind */
#define WINDOW (2 * DEPTH)

/* What goes over a link; the slot says which end sent it, too. */
enum {
	SLOT_GREETING,
	SLOT_DIGESTS, /* of the tensors of which there is no mean */
	SLOT_THERE,
	SLOT_ROUNDS,
};

/* To the owner, and from it. */
enum {
	TERM,
	RESULT,
	N_KINDS,
};

/* Both ends say it first. Who has another table would cut other pieces out of it. */
struct greeting {
	uint8_t preamble[PREAMBLE_SIZE]; /* with a proof instead of the token */
	uint64_t rank; /* numbers are big-endian */
	uint64_t n_nodes;
	uint64_t chunk;
	uint8_t table[TREE_HASH_SIZE];
};
_Static_assert(sizeof(struct greeting) == PREAMBLE_SIZE + 24 + TREE_HASH_SIZE,
	       "it goes over the wire");

struct party {
	struct average *average;
	struct wire *wire;
	struct address address;
	pthread_t greeter;
	uint8_t *terms; /* DEPTH chunks: what it sent for a round of ours */
	struct transfer *come[N_KINDS][WINDOW];
	struct transfer *go[N_KINDS][WINDOW];
};

struct average {
	struct engine *engine;
	struct wire wires[NODES_MAX]; /* by rank */
	struct party parties[NODES_MAX];
	unsigned rank;
	unsigned n_nodes;
	uint64_t max_rate; /* over each link */
	struct pieces pieces;
	uint8_t table[TREE_HASH_SIZE];
	uint8_t (*digests)[TREE_HASH_SIZE];
	const uint8_t *source;
	uint8_t *result;
	float *sums; /* of one piece */
};

static uint64_t slot_out(const struct average *a, unsigned peer, uint64_t what)
{
	return 2 * what + (a->rank < peer ? 0 : 1);
}

static uint64_t slot_in(const struct average *a, unsigned peer, uint64_t what)
{
	return 2 * what + (peer < a->rank ? 0 : 1);
}

static uint64_t of_round(uint64_t round, unsigned kind)
{
	return SLOT_ROUNDS + N_KINDS * round + kind;
}

/* Sends and receives as much. False: the engine was told why not. */
static bool exchange(struct average *a, unsigned peer, uint64_t what, const void *ours,
		     void *theirs, size_t size)
{
	struct wire *w = &a->wires[peer];
	struct transfer *in = NULL, *out = NULL;

	return wire_receive(a->engine, w, slot_in(a, peer, what), theirs, size, &in) &&
	       wire_send(a->engine, w, slot_out(a, peer, what), ours, size, &out) &&
	       wire_finish(a->engine, w, &in) && wire_finish(a->engine, w, &out);
}

/* --- Greeting ---------------------------------------------------------------------------------- */

static void greet(const struct average *a, unsigned peer, struct greeting *ret)
{
	const struct order *o = &a->engine->order;
	struct preamble p = {.epoch = o->epoch, .n_bytes = o->n_bytes};

	memcpy(p.sync, o->sync, sizeof(p.sync));
	wire_prove(o->token, o->node, a->wires[peer].node, p.token);
	memcpy(p.from, o->node, sizeof(p.from));
	memcpy(p.to, a->wires[peer].node, sizeof(p.to));
	preamble_encode(&p, ret->preamble);
	ret->rank = htobe64(a->rank);
	ret->n_nodes = htobe64(a->n_nodes);
	ret->chunk = htobe64(o->chunk);
	memcpy(ret->table, a->table, sizeof(ret->table));
}

static bool is_welcome(const struct average *a, unsigned peer, const struct greeting *g)
{
	const struct order *o = &a->engine->order;
	const struct wire *w = &a->wires[peer];
	uint8_t proof[PREAMBLE_TOKEN_SIZE];
	const char *wrong = NULL;
	struct preamble p;

	wire_prove(o->token, w->node, o->node, proof);
	if (preamble_decode(g->preamble, &p) < 0)
		wrong = "says no greeting of ours";
	else if (memcmp(p.token, proof, sizeof(proof)) != 0)
		wrong = "has a wrong token";
	else if (memcmp(p.sync, o->sync, sizeof(p.sync)) != 0 || p.epoch != o->epoch)
		wrong = "is in another sync or epoch";
	else if (strcmp(p.from, w->node) != 0 || strcmp(p.to, o->node) != 0 ||
		 be64toh(g->rank) != peer || be64toh(g->n_nodes) != a->n_nodes)
		wrong = "has other names or ranks";
	else if (p.n_bytes != o->n_bytes || be64toh(g->chunk) != o->chunk)
		wrong = "has another size";
	else if (memcmp(g->table, a->table, sizeof(g->table)) != 0)
		wrong = "has other tensors";
	if (wrong)
		engine_break(a->engine, w, "%s %s", w->node, wrong);
	return !wrong;
}

static bool is_equal(const struct average *a, unsigned peer, const uint8_t (*theirs)[TREE_HASH_SIZE])
{
	const struct wire *w = &a->wires[peer];
	size_t other = 0;

	for (size_t i = 0; i < a->pieces.n_tensors; i++) {
		const struct tensor *t = &a->pieces.tensors[i];

		if (t->type != MEAN_TYPES)
			continue;
		if (memcmp(a->digests[other], theirs[other], TREE_HASH_SIZE) != 0) {
			engine_break(a->engine, w,
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
	struct greeting ours, theirs = {0}; /* of which fewer bytes may come */
	cleanup(freep) uint8_t(*digests)[TREE_HASH_SIZE] = calloc(1, n + 1);

	greet(a, peer, &ours);
	if (!digests) {
		engine_break(a->engine, NULL, "no memory for the digests of tensors");
		return false;
	}
	if (!wire_connect(a->engine, &a->wires[peer], &a->parties[peer].address, a->max_rate) ||
	    !exchange(a, peer, SLOT_GREETING, &ours, &theirs, sizeof(ours)) ||
	    !is_welcome(a, peer, &theirs))
		return false;
	return n == 0 || (exchange(a, peer, SLOT_DIGESTS, a->digests, digests, n) &&
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

	for (unsigned j = 0; j < a->n_nodes; j++) {
		if (j == a->rank)
			continue;
		if (pthread_create(&a->parties[j].greeter, NULL, greet_one, &a->parties[j]) != 0) {
			engine_break(a->engine, NULL, "no thread to greet %s", a->wires[j].node);
			return false;
		}
	}
	for (unsigned j = 0; j < a->n_nodes; j++) {
		void *greeted = NULL;

		if (j != a->rank) {
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
	const struct piece *ours = piece_of(a, a->rank, round);
	struct engine *e = a->engine;

	for (unsigned j = 0; j < a->n_nodes; j++) {
		const struct piece *theirs = piece_of(a, j, round);
		struct party *p = &a->parties[j];
		uint64_t term = of_round(round, TERM), result = of_round(round, RESULT);

		if (j == a->rank)
			continue;
		if (ours && !wire_receive(e, p->wire, slot_in(a, j, term), term_of(a, j, round),
					  ours->size, &p->come[TERM][round % WINDOW]))
			return false;
		if (theirs &&
		    (!wire_receive(e, p->wire, slot_in(a, j, result), a->result + theirs->offset,
				   theirs->size, &p->come[RESULT][round % WINDOW]) ||
		     !wire_send(e, p->wire, slot_out(a, j, term), a->source + theirs->offset,
				theirs->size, &p->go[TERM][round % WINDOW])))
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
		mean_store(t->type, a->sums + n, size / mean_size(t->type), a->n_nodes,
			   a->result + offset);
		n += size / mean_size(t->type);
	}
}

static bool reduce(struct average *a, uint64_t round)
{
	const struct piece *ours = piece_of(a, a->rank, round);
	struct engine *e = a->engine;

	if (!ours)
		return true;
	/* Of the smallest elements there are as many; a byte of padding that is left over has no sum. */
	for (uint64_t i = 0; i < ours->size / 2; i++)
		a->sums[i] = -0.0f;
	for (unsigned j = 0; j < a->n_nodes; j++) {
		struct party *p = &a->parties[j];

		if (j != a->rank && !wire_finish(e, p->wire, &p->come[TERM][round % WINDOW]))
			return false;
		add_terms(a, ours, j == a->rank ? a->source + ours->offset : term_of(a, j, round));
	}
	store_mean(a, ours);
	engine_arrived(e, atomic_load(&e->arrived) + ours->size);
	for (unsigned j = 0; j < a->n_nodes; j++) {
		struct party *p = &a->parties[j];

		if (j != a->rank && !wire_send(e, p->wire, slot_out(a, j, of_round(round, RESULT)),
					       a->result + ours->offset, ours->size,
					       &p->go[RESULT][round % WINDOW]))
			return false;
	}
	return true;
}

/* Waits for all that is left of a round. */
static bool settle(struct average *a, uint64_t round)
{
	struct engine *e = a->engine;

	for (unsigned j = 0; j < a->n_nodes; j++) {
		struct party *p = &a->parties[j];
		const struct piece *theirs = piece_of(a, j, round);

		if (j == a->rank)
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
	char word[STREAM_WORD_SIZE];

	for (unsigned j = 0; j < a->n_nodes; j++) {
		if (j == a->rank)
			continue;
		if (!exchange(a, j, SLOT_THERE, STREAM_THERE, word, sizeof(word)))
			return false;
		atomic_store(&a->wires[j].state, WIRE_DONE);
	}
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

static int read_nodes(struct average *a, const json_t *order, char why[ORDER_WHY_SIZE])
{
	json_t *nodes;

	if (field_array(order, "nodes", NODES_MAX, &nodes) < 0)
		return wrong(why, "`nodes` has to be an array of at most 64");
	a->n_nodes = (unsigned)json_array_size(nodes);
	a->rank = a->n_nodes;
	for (unsigned j = 0; j < a->n_nodes; j++) {
		const json_t *node = json_array_get(nodes, j);
		struct party *p = &a->parties[j];
		const char *name;

		p->average = a;
		p->wire = &a->wires[j];
		p->wire->way = WIRE_BOTH;
		if (field_string(node, "node", PREAMBLE_NAME_SIZE - 1, &name) < 0 ||
		    !preamble_is_name(name) ||
		    order_read_address(node, "address", 0, &p->address) < 0)
			return wrong(why, "each of `nodes` has to have a `node` and an `address`");
		(void)snprintf(p->wire->node, sizeof(p->wire->node), "%s", name);
		for (unsigned i = 0; i < j; i++)
			if (!strcmp(a->wires[i].node, name))
				return wrong(why, "one of `nodes` is there twice");
		if (!strcmp(name, a->engine->order.node))
			a->rank = j;
	}
	return a->rank < a->n_nodes ? 0 : wrong(why, "`node` has to be one of `nodes`");
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
	tree_hash(text, size, a->table);
	r = pieces_init(&a->pieces, text, size, o->n_bytes, o->chunk, a->n_nodes, why);
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

/* A hello for each rank, in their order; null for our own. */
static int open_wires(struct average *a, json_t *opened, char why[ORDER_WHY_SIZE])
{
	const struct order *o = &a->engine->order;
	json_t *hellos = json_array();
	uint8_t hello[LINK_HELLO_MAX];
	char hex[2 * LINK_HELLO_MAX + 1];
	int r = 0;

	for (unsigned j = 0; r == 0 && j < a->n_nodes; j++) {
		struct wire *w = &a->wires[j];
		char reason[LINK_WHY_SIZE];
		json_t *one = json_null();

		if (j != a->rank) {
			r = link_new(&o->address.at, a->rank < j, &w->link, reason);
			if (r < 0) {
				(void)snprintf(why, ORDER_WHY_SIZE, "%s cannot listen: %s", o->node,
					       reason);
				break;
			}
			one = json_string(field_hex(hello, link_hello(w->link, hello), hex));
			a->parties[j].terms = malloc(DEPTH * o->chunk);
		}
		if ((j != a->rank && !a->parties[j].terms) ||
		    json_array_append_new(hellos, one) < 0) {
			(void)snprintf(why, ORDER_WHY_SIZE, "no memory");
			r = -ENOMEM;
		}
	}
	if (r == 0 && json_object_set(opened, "hellos", hellos) < 0)
		r = -ENOMEM;
	json_decref(hellos);
	return r;
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
	e->wires = a->wires;
	if (e->order.address.size == 0)
		return wrong(why, "`address` is missing");
	r = read_nodes(a, order, why);
	if (r == 0)
		r = read_table(a, why);
	if (r == 0)
		r = map_memory(a, why);
	if (r == 0)
		r = take_others(a, why);
	if (r == 0)
		r = open_wires(a, opened, why);
	e->n_wires = a->n_nodes;
	return r;
}

static int take_hello(const json_t *hello, struct wire *w)
{
	size_t size = json_string_length(hello) / 2;
	cleanup(json_freep) json_t *o = json_pack("{sO}", "hello", hello);

	if (size == 0 || size > sizeof(w->hello) || field_bytes(o, "hello", w->hello, size) < 0)
		return -EBADMSG;
	w->hello_size = size;
	return 0;
}

static int start_average(struct engine *e, const json_t *order, char why[ORDER_WHY_SIZE])
{
	struct average *a = e->work;
	uint64_t max_rate;
	json_t *hellos;
	int r;

	if (field_number_or(order, "max_rate", INT64_MAX, 0, &max_rate) < 0 ||
	    (max_rate && max_rate / a->n_nodes < ORDER_RATE_MIN))
		return wrong(why, "`max_rate` has to be 0 or at least 65536 bytes a second for each "
				  "of `nodes`");
	a->max_rate = a->n_nodes > 1 ? max_rate / (a->n_nodes - 1) : 0;
	if (field_array(order, "hellos", a->n_nodes, &hellos) < 0 ||
	    json_array_size(hellos) != a->n_nodes)
		return wrong(why, "`hellos` has to have one of each of `nodes`");
	for (unsigned j = 0; j < a->n_nodes; j++) {
		if (j == a->rank)
			continue;
		if (take_hello(json_array_get(hellos, j), &a->wires[j]) < 0) {
			/* Our agent only passed it on: it is the link that fails. */
			engine_break(e, &a->wires[j],
				     "%s said no hello of Gloo's in `hellos` for %s",
				     a->wires[j].node, e->order.node);
			return 0;
		}
		atomic_store(&a->wires[j].state, WIRE_CONNECTING);
	}
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
	const struct share *ours = &a->pieces.shares[a->rank];
	const struct share *theirs = &a->pieces.shares[w - a->wires];
	uint64_t n_digests = a->pieces.n_others * TREE_HASH_SIZE;
	/* Terms and results: each goes over the link once in each direction. */
	uint64_t n = (n_digests ? 3 : 2) + ours->n_pieces + theirs->n_pieces;
	uint64_t n_bytes = sizeof(struct greeting) + n_digests + STREAM_WORD_SIZE + ours->n_bytes +
			   theirs->n_bytes;

	*ret_received = *ret_sent = gloo_planned(n, n_bytes) + gloo_planned_back(n);
}

const struct operation average_operation = {
	.open = open_average,
	.start = start_average,
	.is_owed = is_owed,
	.plan = plan,
};
