#include "server/sync/nccl/average.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/sync/engine/pieces.h"
#include "server/sync/nccl/members.h"

#define TABLE_MAX (64 * MIB)
#define DIGESTS 16 /* exchanged at a time */
_Static_assert(DIGESTS *MERKLE_HASH_SIZE <= WORKER_GATHER_MAX, "all nodes exchange them at once");

struct average {
	struct members members;
	struct pieces pieces;
	uint64_t reduced; /* bytes of all tensors with a mean */
	uint64_t counted; /* bytes of the calls */
	size_t next; /* piece to be queued */
};

static struct average *average_of(const struct engine *e)
{
	return e->work;
}

/* --- Called by the loop ------------------------------------------------------------------------ */

/* NULL: NCCL makes a mean of it. */
static const char *find_obstacle(const struct tensor *t, unsigned n_nodes)
{
	if (t->type == MEAN_TYPES || t->size == 0)
		return NULL;
	if (t->offset % mean_size(t->type))
		return "begins where the GPU has no element of its type";
	if (t->type != MEAN_F32 && (n_nodes & (n_nodes - 1)))
		return "is of a 16-bit type, of which NCCL makes right means by 2, 4, 8, ... nodes "
		       "only: 1/n is no number of that type otherwise";
	return NULL;
}

static bool is_possible(struct engine *e, const struct average *a)
{
	for (size_t i = 0; i < a->pieces.n_tensors; i++) {
		const struct tensor *t = &a->pieces.tensors[i];
		const char *obstacle = find_obstacle(t, a->members.nodes.n);

		if (!obstacle)
			continue;
		members_refuse(e,
			       "tensor '%.*s' %s; average through host memory (engine = tcp at the "
			       "publisher)",
			       pieces_fit(t->name, PIECES_NAME_FIT), t->name, obstacle);
		return false;
	}
	return true;
}

static int read_table(struct average *a, const struct engine_order *o,
		      char why[ENGINE_ORDER_WHY_SIZE])
{
	struct common_text text;
	int r = common_text_init(&text, o->tensors_fd, TABLE_MAX, a->members.what, why);

	if (r < 0)
		return r;
	memcpy(a->members.hash, text.hash, sizeof(text.hash));
	r = pieces_init(&a->pieces, text.data, text.size, o->n_bytes, o->chunk, a->members.nodes.n,
			why);
	common_text_deinit(&text);
	return r;
}

static int average_open(struct engine *e, const json_t *order, char why[ENGINE_ORDER_WHY_SIZE])
{
	static struct average average = {.members.what = "table of tensors"};
	struct average *a = e->work = &average;
	int r = members_open(&a->members, e, order, why);

	if (r == 0 && a->members.nodes.n < 2)
		r = engine_order_wrong(why, "`nodes` must be 2 at least");
	if (r == 0)
		r = read_table(a, &e->engine_loop.order, why);
	if (r < 0)
		return r;
	for (size_t i = 0; i < a->pieces.n_tensors; i++)
		if (a->pieces.tensors[i].type != MEAN_TYPES)
			a->reduced += a->pieces.tensors[i].size;
	e->total = a->reduced;
	return is_possible(e, a) ? 0 : ENGINE_IS_OVER;
}

static json_t *average_opened(const struct engine *e)
{
	const struct average *a = average_of(e);
	json_t *opened = members_opened(&a->members, e);

	if (opened)
		(void)json_object_set_new(opened, "reduced", json_integer((json_int_t)a->reduced));
	return opened;
}

static int average_start(struct engine *e, const json_t *order, char why[ENGINE_ORDER_WHY_SIZE])
{
	return members_start(&average_of(e)->members, e, order, why);
}

/* In a ring, from the previous node and to the next one: NCCL does not report its links. */
static json_t *average_done(const struct engine *e)
{
	const struct average *a = average_of(e);
	const struct nodes *n = &a->members.nodes;
	const char *next = n->at[(n->rank + 1) % n->n].name;
	json_t *links = json_object(), *bytes = engine_describe_bytes(a->counted, true);

	if (!strcmp(next, e->previous)) {
		(void)json_object_set_new(links, next,
					  json_pack("{sO sO}", "in", bytes, "out", bytes));
	} else {
		(void)json_object_set_new(links, e->previous,
					  json_pack("{sO sn}", "in", bytes, "out"));
		(void)json_object_set_new(links, next, json_pack("{sn sO}", "in", "out", bytes));
	}
	return json_pack("{sO so so}", "in", bytes, "out", bytes, "links", links);
}

/* --- Leaves without a mean --------------------------------------------------------------------- */

/* Digests one that is in memory, and copies it to the result. */
static bool digest_other(struct worker *w, const struct other *o, uint8_t ret[MERKLE_HASH_SIZE])
{
	struct engine *e = w->e;

	if (!worker_read_leaf(w, e->memory + o->offset, o->size) ||
	    !worker_check(w, e->gpu.driver->memcpy_on_device_async(e->result + o->offset,
								   e->memory + o->offset, o->size,
								   e->gpu.stream)))
		return false;
	merkle_hash(w->pinned->leaf, o->size, ret);
	w->sent += o->size;
	engine_arrived(e, w->done, w->sent);
	return true;
}

static bool average_differs(struct worker *w, const struct other *o, unsigned rank)
{
	const struct average *a = average_of(w->e);
	const char *node = a->members.nodes.at[rank].name, *name = a->pieces.tensors[o->tensor].name;

	return engine_break_from(w->e, "differs", node,
				 "tensor '%.*s' is of no type that has a mean, and %s has other "
				 "bytes in it",
				 pieces_fit(name, PIECES_NAME_FIT), name, node);
}

static bool compare_batch(struct worker *w, const struct other *others, size_t n)
{
	const struct average *a = average_of(w->e);
	uint8_t ours[DIGESTS][MERKLE_HASH_SIZE];
	const size_t size = n * sizeof(*ours);

	for (size_t i = 0; i < n; i++)
		if (!digest_other(w, &others[i], ours[i]))
			return false;
	if (!worker_gather(w, ours, size))
		return false;
	for (unsigned rank = 0; rank < a->members.nodes.n; rank++)
		for (size_t i = 0; i < n; i++)
			if (memcmp(w->pinned->gathered + rank * size + i * sizeof(*ours), ours[i],
				   sizeof(*ours)) != 0)
				return average_differs(w, &others[i], rank);
	return true;
}

/*
 * A node that digests for long must not look silent to the others: so digests are exchanged in
 * batches.
 */
static bool compare_others(struct worker *w)
{
	const struct pieces *p = &average_of(w->e)->pieces;

	engine_does(w->e, "the comparison of tensors without a mean");
	for (size_t i = 0; i < p->n_others; i += DIGESTS) {
		const size_t left = p->n_others - i;

		if (!compare_batch(w, &p->others[i], left < DIGESTS ? left : DIGESTS))
			return false;
	}
	return true;
}

/* --- The mean ---------------------------------------------------------------------------------- */

static bool average_prepare(struct worker *w)
{
	struct engine *e = w->e;
	const struct engine_order *o = &e->engine_loop.order;

	return worker_map(w, o->memory_fd, o->map_size, true, &e->memory) &&
	       worker_map(w, o->result_fd, o->result_map_size, false, &e->result);
}

static bool average_greet(struct worker *w)
{
	return members_greet(&average_of(w->e)->members, w) && compare_others(w);
}

static bool average_has_more(const struct worker *w)
{
	const struct average *a = average_of(w->e);

	return a->next < a->pieces.n;
}

static void queue_part(struct worker *w, const struct tensor *t, uint64_t offset, uint64_t size)
{
	static const int types[MEAN_TYPES] = {
		[MEAN_F32] = NCCL_FLOAT32,
		[MEAN_BF16] = NCCL_BFLOAT16,
		[MEAN_F16] = NCCL_FLOAT16,
	};
	struct engine *e = w->e;

	worker_group_add(w, e->nccl.all_reduce((void *)(uintptr_t)(e->memory + offset),
					       (void *)(uintptr_t)(e->result + offset),
					       size / mean_size(t->type), types[t->type], NCCL_AVG,
					       w->comm, e->gpu.stream));
}

static bool average_queue(struct worker *w)
{
	struct average *a = average_of(w->e);
	const struct piece *piece = &a->pieces.at[a->next++];
	const struct tensor *t;
	uint64_t offset, size, n = 0;

	if (!worker_group_begin(w))
		return false;
	for (size_t i = piece->first; (t = pieces_part(&a->pieces, piece, i, &offset, &size)); i++) {
		if (size == 0)
			continue;
		queue_part(w, t, offset, size);
		n += size;
	}
	a->counted += n;
	return worker_group_end(w) && worker_end_bucket(w, n, n);
}

const struct operation average_operation = {
	.doing = "NCCL's average",
	.open = average_open,
	.opened = average_opened,
	.start = average_start,
	.done = average_done,
	.prepare = average_prepare,
	.greet = average_greet,
	.has_more = average_has_more,
	.queue = average_queue,
};
