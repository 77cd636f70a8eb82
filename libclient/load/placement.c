/*
 * Each tensor of the plan is looked up in the writer, and the pieces are sorted by destination
 * again. Two tensors that lead to one place are compared in their files, and one of them is read.
 */
#include "libclient/load/placement.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "libclient/version/tensor.h"

#define CHUNK_SIZE (256u << 10)

struct place {
	struct plan_piece piece;
	uint32_t tensor; /* index in the plan's layout */
};

static int out_of_memory(struct sentence *s)
{
	return sentence_set(s, -ENOMEM, "there is not enough memory for the plan");
}

/* A layout in which the tensors of a plan are looked up. */
struct lookup {
	const struct weightd_writer *wr; /* NULL: that of no writer */
	const struct layout *layout;
	const char *name; /* of the buffer */
};

static int lookup_find(const struct lookup *l, const char *name, struct weightd_tensor *ret)
{
	return l->wr ? weightd_writer_find(l->wr, name, ret)
		     : tensor_find(l->layout, NULL, name, ret);
}

static int find_places(const struct plan *plan, const struct lookup *lookup, struct place *ret,
		       size_t *ret_n)
{
	struct weightd_tensor t = {.size = sizeof(t)}, at = {.size = sizeof(at)};
	size_t n = 0;
	int r = 0;

	for (uint32_t i = 0; weightd_layout_tensor(plan->layout, i, &t) == 0; i++) {
		if (t.tied_to != WEIGHTD_NOT_TIED || t.n_bytes == 0)
			continue;
		r = lookup_find(lookup, t.name, &at);
		if (r < 0)
			return r;
		ret[n].piece = plan_tensor_piece(plan, &t);
		ret[n].piece.dest = at.offset;
		ret[n++].tensor = i;
	}
	*ret_n = n;
	return 0;
}

static int compare_places(const void *a, const void *b)
{
	const struct place *p = a, *q = b;

	if (p->piece.dest != q->piece.dest)
		return p->piece.dest < q->piece.dest ? -1 : 1;
	return p->tensor < q->tensor ? -1 : 1;
}

static int refuse_tie(const struct plan *plan, const struct place *p, const struct place *q,
		      const char *name, struct sentence *s)
{
	struct weightd_tensor a = {.size = sizeof(a)}, b = {.size = sizeof(b)};
	struct quote qa, qb;

	(void)weightd_layout_tensor(plan->layout, p->tensor, &a);
	(void)weightd_layout_tensor(plan->layout, q->tensor, &b);
	return sentence_set(s, -EPROTOTYPE,
			    "the newest version of '%s' ties %s to %s, and the files have different "
			    "bytes for them; ask for a new layout (weightctl load --new-layout), or "
			    "remove the buffer first",
			    name, quote_bytes(&qb, b.name, strlen(b.name)),
			    quote_bytes(&qa, a.name, strlen(a.name)));
}

/* Two names for one place: their bytes must be the same. */
static int check_tie(const struct plan *plan, const struct place *p, const struct place *q,
		     const char *name, struct sentence *s)
{
	const struct plan_piece *a = &p->piece, *b = &q->piece;
	cleanup(freep) char *chunk = malloc(2 * CHUNK_SIZE);
	int r = 0;

	if (!chunk)
		return out_of_memory(s);
	for (uint64_t at = 0; at < a->size; at += CHUNK_SIZE) {
		uint64_t n = a->size - at < CHUNK_SIZE ? a->size - at : CHUNK_SIZE;

		r = plan_read(plan, a, at, n, chunk, s);
		if (r == 0)
			r = plan_read(plan, b, at, n, chunk + CHUNK_SIZE, s);
		if (r < 0)
			return r;
		if (memcmp(chunk, chunk + CHUNK_SIZE, n))
			return refuse_tie(plan, p, q, name, s);
	}
	return 0;
}

/* As one piece with the one before, where it follows that on both sides. */
static void add_piece(struct plan_piece *pieces, size_t *n, const struct plan_piece *piece)
{
	struct plan_piece *last = *n ? &pieces[*n - 1] : NULL;

	if (last && !last->cut && !piece->cut && last->file == piece->file &&
	    last->offset + last->size == piece->offset && last->dest + last->size == piece->dest)
		last->size += piece->size;
	else
		pieces[(*n)++] = *piece;
}

/* All that lead to one place become one piece. */
static int add_pieces(struct plan *placed, const struct plan *plan, const struct place *places,
		      size_t n, const char *name, struct sentence *s)
{
	for (size_t i = 0; i < n; i++) {
		const struct plan_piece *piece = &places[i].piece;

		if (i > 0 && piece->dest == places[i - 1].piece.dest) {
			int r = check_tie(plan, &places[i - 1], &places[i], name, s);

			if (r < 0)
				return r;
			continue;
		}
		add_piece(placed->pieces, &placed->n_pieces, piece);
		placed->n_bytes += piece->size;
	}
	return 0;
}

static int placement_look_up(struct placement *p, const struct plan *plan,
			     const struct lookup *lookup, struct sentence *s)
{
	size_t n = weightd_layout_n_tensors(plan->layout);
	cleanup(freep) struct place *places = calloc(n, sizeof(*places));
	int r;

	p->plan = *plan;
	p->plan.n_pieces = 0;
	p->plan.n_bytes = 0;
	p->plan.pieces = calloc(n, sizeof(*p->plan.pieces));
	if (!places || !p->plan.pieces)
		return out_of_memory(s);
	r = find_places(plan, lookup, places, &n);
	if (r < 0)
		return sentence_set(s, r, "the tensors of '%s' cannot be placed: %s", lookup->name,
				    strerror(-r));
	if (n > 1)
		qsort(places, n, sizeof(*places), compare_places);
	return add_pieces(&p->plan, plan, places, n, lookup->name, s);
}

int placement_init(struct placement *p, const struct plan *plan, const struct weightd_writer *wr,
		   const char *name, struct sentence *s)
{
	return placement_look_up(p, plan, &(struct lookup){.wr = wr, .name = name}, s);
}

int placement_init_layout(struct placement *p, const struct plan *plan, const struct layout *layout,
			  struct sentence *s)
{
	return placement_look_up(p, plan, &(struct lookup){.layout = layout, .name = ""}, s);
}

int placement_init_original(struct placement *p, const struct plan *plan, struct sentence *s)
{
	uint64_t size = weightd_layout_n_bytes(plan->original.layout);

	p->plan = *plan;
	p->plan.n_pieces = 0;
	p->plan.n_bytes = size;
	p->plan.pieces = calloc(1, sizeof(*p->plan.pieces));
	if (!p->plan.pieces)
		return out_of_memory(s);
	if (size > 0)
		p->plan.pieces[p->plan.n_pieces++] = (struct plan_piece){
			.offset = plan->original.header_size,
			.size = size,
		};
	return 0;
}

void placement_deinit(struct placement *p)
{
	free(p->plan.pieces);
	*p = (struct placement){0};
}
