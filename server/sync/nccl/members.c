#include "server/sync/nccl/members.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#include "server/sync/base/json_fields.h"

/* The message of each node to all others; numbers are big-endian. */
struct greeting {
	uint8_t sync[PREAMBLE_SYNC_SIZE];
	uint64_t epoch;
	uint64_t n_nodes;
	uint64_t chunk;
	uint8_t hash[MERKLE_HASH_SIZE];
};
_Static_assert(sizeof(struct greeting) <= WORKER_GATHER_MAX, "all nodes exchange it at once");

int members_open(struct members *m, struct engine *e, const json_t *order,
		 char why[ENGINE_ORDER_WHY_SIZE])
{
	struct nodes *n = &m->nodes;
	int r = nodes_read(n, &e->engine_loop.order, order, why);

	if (r < 0)
		return r;
	if (n->n > 1)
		e->previous = n->at[(n->rank + n->n - 1) % n->n].name;
	e->is_first = n->rank == 0;
	return 0;
}

json_t *members_opened(const struct members *m, const struct engine *e)
{
	char id[2 * NCCL_ID_SIZE + 1];
	json_t *hellos = json_array();

	field_hex(e->id.bytes, sizeof(e->id.bytes), id);
	for (unsigned i = 0; i < m->nodes.n; i++)
		(void)json_array_append_new(hellos,
					    e->is_first && i > 0 ? json_string(id) : json_null());
	return json_pack("{so si}", "hellos", hellos, "nccl", e->nccl.version);
}

static int read_id(const json_t *hellos, struct place *p)
{
	cleanup(json_freep) json_t *o = json_pack("{sO}", "hello", json_array_get(hellos, 0));

	return field_bytes(o, "hello", p->id, sizeof(p->id));
}

int members_start(const struct members *m, struct engine *e, const json_t *order,
		  char why[ENGINE_ORDER_WHY_SIZE])
{
	struct place p = {.rank = m->nodes.rank, .n_ranks = m->nodes.n};
	json_t *hellos;

	if (engine_order_read_rate(order, &p.max_rate, why) < 0)
		return -EBADMSG;
	if (field_array(order, "hellos", m->nodes.n, &hellos) < 0 ||
	    json_array_size(hellos) != m->nodes.n)
		return engine_order_wrong(why, "`hellos` must have one of each of `nodes`");
	if (e->is_first)
		memcpy(p.id, e->id.bytes, sizeof(p.id));
	else if (read_id(hellos, &p) < 0)
		return engine_order_wrong(
			why, "the first of `hellos` must be that of rank 0, 256 hexadecimal digits");
	e->place = p;
	return 0;
}

void members_refuse(struct engine *e, const char *fmt, ...)
{
	static const struct blame refused = {.code = "refused"};
	va_list args;

	va_start(args, fmt);
	engine_loop_vfail(&e->engine_loop, &refused, fmt, args);
	va_end(args);
}

static bool is_welcome(const struct members *m, struct engine *e, unsigned rank,
		       const struct greeting *ours, const struct greeting *theirs)
{
	const char *node = m->nodes.at[rank].name;

	if (memcmp(theirs->sync, ours->sync, sizeof(ours->sync)) != 0 ||
	    theirs->epoch != ours->epoch)
		return engine_break_from(e, NULL, node, "%s is in another sync or epoch", node);
	if (theirs->n_nodes != ours->n_nodes || theirs->chunk != ours->chunk)
		return engine_break_from(e, NULL, node, "%s has another size", node);
	if (memcmp(theirs->hash, ours->hash, sizeof(ours->hash)) != 0)
		return engine_break_from(e, NULL, node, "%s has another %s", node, m->what);
	return true;
}

bool members_greet(const struct members *m, struct worker *w)
{
	struct engine *e = w->e;
	const struct engine_order *o = &e->engine_loop.order;
	struct greeting ours = {
		.epoch = htobe64(o->epoch),
		.n_nodes = htobe64(m->nodes.n),
		.chunk = htobe64(o->chunk),
	};

	engine_does(e, "NCCL's greeting");
	memcpy(ours.sync, o->sync, sizeof(ours.sync));
	memcpy(ours.hash, m->hash, sizeof(ours.hash));
	if (!worker_gather(w, &ours, sizeof(ours)))
		return false;
	for (unsigned rank = 0; rank < m->nodes.n; rank++) {
		struct greeting theirs;

		memcpy(&theirs, w->pinned->gathered + rank * sizeof(theirs), sizeof(theirs));
		if (!is_welcome(m, e, rank, &ours, &theirs))
			return false;
	}
	return true;
}
