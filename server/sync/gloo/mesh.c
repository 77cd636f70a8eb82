#include "server/sync/gloo/mesh.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/base/planned_bytes.h"
#include "server/sync/engine/common_text.h"

/* The first message of both ends. */
struct greeting {
	uint8_t preamble[PREAMBLE_SIZE]; /* with a proof instead of the token */
	uint64_t rank; /* numbers are big-endian */
	uint64_t n_nodes;
	uint64_t chunk;
	uint8_t hash[MERKLE_HASH_SIZE];
};
_Static_assert(sizeof(struct greeting) == GLOO_MESH_GREETING_SIZE, "it goes over the wire");

/* --- Called by threads ------------------------------------------------------------------------- */

uint64_t mesh_slot_out(const struct mesh *m, unsigned peer, uint64_t what)
{
	return 2 * what + (m->rank < peer ? 0 : 1);
}

uint64_t mesh_slot_in(const struct mesh *m, unsigned peer, uint64_t what)
{
	return 2 * what + (peer < m->rank ? 0 : 1);
}

bool mesh_exchange(struct mesh *m, unsigned peer, uint64_t what, const void *ours, void *theirs,
		   size_t size)
{
	struct engine *e = m->engine;
	struct wire *w = &m->wires[peer];
	struct transfer *in = NULL, *out = NULL;

	return wire_receive(e, w, mesh_slot_in(m, peer, what), theirs, size, &in) &&
	       wire_send(e, w, mesh_slot_out(m, peer, what), ours, size, &out) &&
	       wire_finish(e, w, &in) && wire_finish(e, w, &out);
}

/* The work of one thread. */
struct turn {
	struct mesh *mesh;
	bool (*fn)(struct mesh *m, unsigned peer);
	unsigned peer;
	pthread_t thread;
};

static void *take_turn(void *arg)
{
	struct turn *t = arg;

	return t->fn(t->mesh, t->peer) ? t : NULL;
}

bool mesh_each(struct mesh *m, bool (*fn)(struct mesh *m, unsigned peer))
{
	struct turn turns[ENGINE_NODES_MAX];
	unsigned n = 0;
	bool all = true;

	for (unsigned j = 0; all && j < m->n_nodes; j++) {
		struct turn *t = &turns[n];

		if (!m->wires[j].link)
			continue;
		*t = (struct turn){.mesh = m, .fn = fn, .peer = j};
		all = pthread_create(&t->thread, NULL, take_turn, t) == 0;
		n += all;
		if (!all)
			engine_break(m->engine, NULL, "no thread for %s", m->wires[j].node);
	}
	all = fn(m, m->rank) && all;
	for (unsigned i = 0; i < n; i++) {
		void *done;

		(void)pthread_join(turns[i].thread, &done);
		all = all && done;
	}
	return all;
}

static void make_greeting(const struct mesh *m, unsigned peer, struct greeting *ret)
{
	const struct engine_order *o = &m->engine->engine_loop.order;
	struct preamble p = {.epoch = o->epoch, .n_bytes = m->n_bytes};

	memcpy(p.sync, o->sync, sizeof(p.sync));
	wire_prove(o->token, o->node, m->wires[peer].node, p.token);
	memcpy(p.from, o->node, sizeof(p.from));
	memcpy(p.to, m->wires[peer].node, sizeof(p.to));
	preamble_encode(&p, ret->preamble);
	ret->rank = htobe64(m->rank);
	ret->n_nodes = htobe64(m->n_nodes);
	ret->chunk = htobe64(o->chunk);
	memcpy(ret->hash, m->hash, sizeof(ret->hash));
}

static bool is_welcome(const struct mesh *m, unsigned peer, const struct greeting *g)
{
	const struct engine_order *o = &m->engine->engine_loop.order;
	const struct wire *w = &m->wires[peer];
	uint8_t proof[PREAMBLE_TOKEN_SIZE];
	const char *wrong_thing = NULL, *what = "";
	struct preamble p;

	wire_prove(o->token, w->node, o->node, proof);
	if (preamble_decode(g->preamble, &p) < 0)
		wrong_thing = "sends no greeting of ours";
	else if (memcmp(p.token, proof, sizeof(proof)) != 0)
		wrong_thing = "has a wrong token";
	else if (memcmp(p.sync, o->sync, sizeof(p.sync)) != 0 || p.epoch != o->epoch)
		wrong_thing = "is in another sync or epoch";
	else if (strcmp(p.from, w->node) != 0 || strcmp(p.to, o->node) != 0 ||
		 be64toh(g->rank) != peer || be64toh(g->n_nodes) != m->n_nodes)
		wrong_thing = "has other names or ranks";
	else if (p.n_bytes != m->n_bytes || be64toh(g->chunk) != o->chunk)
		wrong_thing = "has another size";
	else if (memcmp(g->hash, m->hash, sizeof(g->hash)) != 0)
		wrong_thing = "has another ", what = m->what;
	if (wrong_thing)
		engine_break(m->engine, w, "%s %s%s", w->node, wrong_thing, what);
	return !wrong_thing;
}

bool mesh_greet(struct mesh *m, unsigned peer)
{
	struct greeting ours, theirs = {0}; /* the peer may send fewer bytes */

	make_greeting(m, peer, &ours);
	return wire_connect(m->engine, &m->wires[peer], &m->addresses[peer], m->max_rate) &&
	       mesh_exchange(m, peer, MESH_GREETING, &ours, &theirs, sizeof(ours)) &&
	       is_welcome(m, peer, &theirs);
}

bool mesh_part(struct mesh *m, unsigned peer)
{
	char word[STREAM_WORD_SIZE];

	if (!mesh_exchange(m, peer, MESH_THERE, STREAM_THERE, word, sizeof(word)))
		return false;
	atomic_store(&m->wires[peer].state, WIRE_DONE);
	return true;
}

/* --- Called by the loop ------------------------------------------------------------------------ */

int mesh_init(struct mesh *m, struct engine *e, const json_t *order, char why[ENGINE_ORDER_WHY_SIZE])
{
	struct nodes nodes;
	int r = nodes_read(&nodes, &e->engine_loop.order, order, why);

	m->engine = e;
	e->wires = m->wires;
	if (r < 0)
		return r;
	m->rank = nodes.rank;
	e->n_wires = m->n_nodes = nodes.n;
	for (unsigned j = 0; j < m->n_nodes; j++) {
		struct wire *w = &m->wires[j];

		w->way = WIRE_BOTH;
		(void)strcpy(w->node, nodes.at[j].name);
		m->addresses[j] = nodes.at[j].address;
	}
	return 0;
}

int mesh_read(struct mesh *m, int fd, uint64_t max,
	      int (*read)(struct mesh *m, const void *text, size_t size,
			  char why[ENGINE_ORDER_WHY_SIZE]),
	      char why[ENGINE_ORDER_WHY_SIZE])
{
	struct common_text text;
	int r = common_text_init(&text, fd, max, m->what, why);

	if (r < 0)
		return r;
	memcpy(m->hash, text.hash, sizeof(m->hash));
	r = read(m, text.data, text.size, why);
	common_text_deinit(&text);
	return r;
}

int mesh_map(struct mesh *m, uint64_t result_bytes, char why[ENGINE_ORDER_WHY_SIZE])
{
	const struct engine_order *o = &m->engine->engine_loop.order;
	struct memory source, result;
	int r = memory_init(&source, o->memory_fd, o->data_offset, o->n_bytes, true, true);

	if (r == 0)
		r = memory_init(&result, o->result_fd, o->result_offset, result_bytes, false, true);
	if (r < 0) {
		(void)snprintf(why, ENGINE_ORDER_WHY_SIZE, "the memory cannot be mapped: %s",
			       strerror(-r));
		return r;
	}
	m->source = source.map;
	m->result = result.map;
	return 0;
}

int mesh_open(struct mesh *m, unsigned peer, char why[ENGINE_ORDER_WHY_SIZE])
{
	const struct engine_order *o = &m->engine->engine_loop.order;
	const struct link_form form = {
		.address = o->address.at,
		.is_first = m->rank < peer,
		.tls = m->engine->tls,
	};
	char reason[LINK_WHY_SIZE];

	if (link_new(&form, &m->wires[peer].link, reason) == 0)
		return 0;
	(void)snprintf(why, ENGINE_ORDER_WHY_SIZE, "%s cannot listen: %s", o->node, reason);
	return -EIO;
}

int mesh_add_hellos(const struct mesh *m, json_t *opened, char why[ENGINE_ORDER_WHY_SIZE])
{
	json_t *hellos = json_array();
	bool fits = true;

	for (unsigned j = 0; j < m->n_nodes; j++) {
		uint8_t hello[LINK_HELLO_MAX];
		char hex[2 * LINK_HELLO_MAX + 1];
		const struct link *l = m->wires[j].link;

		fits = fits &&
		       json_array_append_new(
			       hellos, l ? json_string(field_hex(hello, link_hello(l, hello), hex))
					 : json_null()) == 0;
	}
	fits = json_object_set_new(opened, "hellos", hellos) == 0 && fits;
	return fits ? 0 : engine_order_no_memory(why);
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

int mesh_start(struct mesh *m, const json_t *order, bool *ret, char why[ENGINE_ORDER_WHY_SIZE])
{
	unsigned n_wires = 0;
	uint64_t max_rate;
	json_t *hellos;

	if (field_number_or(order, "max_rate", INT64_MAX, 0, &max_rate) < 0 ||
	    (max_rate && max_rate / m->n_nodes < ENGINE_ORDER_RATE_MIN))
		return engine_order_wrong(
			why, "`max_rate` must be 0 or at least 65536 bytes a second for each "
			     "of `nodes`");
	if (field_array(order, "hellos", m->n_nodes, &hellos) < 0 ||
	    json_array_size(hellos) != m->n_nodes)
		return engine_order_wrong(why, "`hellos` must have one of each of `nodes`");
	for (unsigned j = 0; j < m->n_nodes; j++)
		n_wires += m->wires[j].link != NULL;
	m->max_rate = n_wires ? max_rate / n_wires : 0;
	*ret = false;
	for (unsigned j = 0; j < m->n_nodes; j++) {
		struct wire *w = &m->wires[j];

		if (!w->link)
			continue;
		if (take_hello(json_array_get(hellos, j), w) < 0) {
			/* The agent only passed it on: so this is a failure of the link. */
			engine_break(m->engine, w, "%s sent no hello in `hellos` for %s", w->node,
				     m->engine->engine_loop.order.node);
			return 0;
		}
		atomic_store(&w->state, WIRE_CONNECTING);
	}
	*ret = true;
	return 0;
}
