#include "libclient/train/save/share.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "libclient/train/loaded.h"
#include "libclient/train/nodes/star.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/plan/spread.h"
#include "libclient/train/save/loading.h"
#include "libclient/train/save/places.h"
#include "libclient/train/trainer.h"

#define CHUNK ((uint64_t)1 << 18) /* elements that are read at once for another node */
#define CHECK_TICKS 20 /* of asking if the job exists */

/* Goes before all bytes: their size, or an error and its sentence, which is the last thing that is sent. */
struct share_head {
	int64_t result;
	uint64_t size;
};

/* First: the rest of t->loaded, and of the rank. Its state and its buffers follow. */
struct share_description {
	uint64_t step, n_skipped, state_size;
	struct control_scale scale;
};

struct sharing {
	struct weightd_train *t;
	struct loading *loading; /* node 0 */
	struct star star;
	uint32_t node; /* node 0: that it sends to; others: 0 */
	const struct weightd_train_tensor *tensor; /* node 0: that it sends */
	void *bounce; /* node 0 */
	uint8_t *frozen; /* others: the whole range */
	unsigned n_ticks;
};

/* Elements of a tensor that one rank gets. */
struct share_item {
	const struct weightd_train_tensor *tensor;
	const struct checkpoint_state *state; /* NULL: parameters, which are the same on all nodes */
	struct plan_interval part; /* from the first element of the tensor on; frozen: bytes */
	uint64_t at; /* the place of the first one in a state */
};

typedef int share_fn(struct sharing *s, const struct share_item *item);

/* --- Items: in the same order on both ends ----------------------------------------------------------- */

static int walk_part(struct sharing *s, uint32_t node, struct share_item item, share_fn *fn)
{
	const struct weightd_plan *p = s->t->plan;
	struct plan_interval elements = plan_elements(p, item.tensor);
	struct spread parts = spread_of_rank(p, node, s->t->arena.rank, elements);
	struct plan_piece part;
	int r = 0;

	while (r == 0 && spread_next(&parts, &part)) {
		uint64_t begin = part.interval.begin, n;

		for (; r == 0 && begin < part.interval.end; begin += n) {
			n = part.interval.end - begin;
			n = n < CHUNK ? n : CHUNK;
			item.part = (struct plan_interval){begin - elements.begin,
							   begin - elements.begin + n};
			item.at = part.at + (begin - part.interval.begin);
			r = fn(s, &item);
		}
	}
	return r;
}

static int walk_params(struct sharing *s, uint32_t node, struct share_item item, share_fn *fn)
{
	if (plan_shards_params(s->t->plan)) {
		item.state = &checkpoint_params;
		return walk_part(s, node, item, fn);
	}
	item.part = places_params(s->t, item.tensor);
	return item.part.begin < item.part.end ? fn(s, &item) : 0;
}

static int walk_trained(struct sharing *s, uint32_t node, struct share_item item, share_fn *fn)
{
	struct checkpoint_state state;
	int r = walk_params(s, node, item, fn);

	item.state = &state;
	for (uint32_t i = 0; r == 0 && checkpoint_state(s->t->plan, i, &state); i++)
		r = walk_part(s, node, item, fn);
	return r;
}

/* All of a tensor that the rank of a node gets. Frozen parameters have one copy, of rank 0. */
static int walk_tensor(struct sharing *s, uint32_t node, const struct weightd_train_tensor *tensor,
		       share_fn *fn)
{
	struct share_item item = {.tensor = tensor, .part = {0, tensor->n_bytes}};

	if (!tensor->n_bytes)
		return 0;
	if (plan_is_trained(tensor))
		return walk_trained(s, node, item, fn);
	return tensor->frozen && s->t->arena.rank == 0 ? fn(s, &item) : 0;
}

/* --- Connections ------------------------------------------------------------------------------------- */

static int check_wait(void *sharing, bool is_interrupted)
{
	struct sharing *s = sharing;

	if (is_interrupted && s->t->place.is_interruptible)
		return train_fail(-EINTR, "a signal interrupted the load; call it again");
	if (++s->n_ticks % CHECK_TICKS)
		return 0;
	return wait_check_removed(&s->t->place, "load the checkpoint");
}

static int connect_all(struct sharing *s)
{
	struct weightd_train *t = s->t;
	int r;

	s->star = (struct star){
		.what = "load",
		.deadline_ms = t->place.start_ms,
		.met_ms = s->star.met_ms,
		.check = check_wait,
		.data = s,
		.is_load = true,
		.past = control_exchange(t->loaded.step, control_values(0, CONTROL_SEND)),
	};
	r = star_place(&t->exchange.link, t->plan, true, &s->star.place);
	return r < 0 ? r : star_open(&s->star, t->plan);
}

/* True: all connect again, since a rank was lost that will be started anew. */
static bool again(const struct sharing *s, int *r)
{
	char sentence[256];

	if (*r != -EPIPE && *r != -EAGAIN)
		return false;
	if (s->t->place.on_death != WEIGHTD_DEATH_FAIL)
		return true;
	(void)snprintf(sentence, sizeof(sentence), "%s", weightd_train_error());
	*r = train_fail(-EOWNERDEAD, "%s; load the checkpoint again on all nodes", sentence);
	return false;
}

static int send_bytes(struct sharing *s, const void *data, uint64_t size)
{
	struct share_head head = {.size = size};
	int r = star_send(&s->star, s->node, &head, sizeof(head));

	return r < 0 ? r : star_send(&s->star, s->node, data, size);
}

static int receive_bytes(struct sharing *s, void *data, uint64_t size)
{
	char sentence[CONTROL_SENTENCE] = "";
	struct share_head head;
	int r = star_receive(&s->star, 0, &head, sizeof(head));

	if (r < 0)
		return r;
	if (head.result < 0) {
		r = star_receive(&s->star, 0, sentence, sizeof(sentence) - 1);
		return r < 0 ? r : train_fail((int)head.result, "%s", sentence);
	}
	if (head.size != size)
		return train_fail(-EPROTOTYPE,
				  "node 0 sent %llu bytes of the checkpoint, and not %llu; start all "
				  "nodes with one release of weightd-train",
				  (unsigned long long)head.size, (unsigned long long)size);
	return star_receive(&s->star, 0, data, size);
}

/* The sentence is the last one. */
static void send_error(struct sharing *s, int r)
{
	struct share_head head = {.result = r};
	char sentence[CONTROL_SENTENCE] = "";

	(void)snprintf(sentence, sizeof(sentence), "%s", weightd_train_error());
	/* A node that was lost calls again, or not. */
	for (s->node = 1; s->node < s->t->plan->n_nodes; s->node++)
		if (!s->star.is_past[s->node] &&
		    star_send(&s->star, s->node, &head, sizeof(head)) == 0)
			(void)star_send(&s->star, s->node, sentence, sizeof(sentence) - 1);
	(void)train_fail(r, "%s", sentence);
}

/* --- Node 0 ------------------------------------------------------------------------------------------ */

static int send_item(struct sharing *s, const struct share_item *item)
{
	const struct weightd_train *t = s->t;
	uint64_t n = item->part.end - item->part.begin;
	int r;

	if (item->tensor->frozen)
		return send_bytes(s, t->arena.frozen + item->tensor->offset, n);
	if (!item->state)
		return send_bytes(s, places_param(t, item->tensor, item->part.begin),
				  n * plan_element_size(t->plan, WEIGHTD_KIND_PARAM));
	r = loading_read_state(s->loading, item->tensor, item->state, item->part, s->bounce);
	return r < 0 ? r
		     : send_bytes(s, s->bounce, n * plan_element_size(t->plan, item->state->kind));
}

static int send_rank(struct sharing *s)
{
	const struct weightd_plan *p = s->t->plan;
	struct share_description d = {.step = s->t->loaded.step,
				      .n_skipped = s->t->loaded.n_skipped,
				      .scale = s->t->loaded.scale};
	cleanup(freep) uint8_t *buffers = malloc(p->buffer_size + 1),
			       *state = malloc(p->state_size + 1);
	int r = buffers && state ? 0 : train_out_of_memory();

	if (r == 0)
		r = loading_read_rank(s->loading, checkpoint_rank(p, s->node, s->t->arena.rank),
				      buffers, state, &d.state_size);
	if (r == 0)
		r = send_bytes(s, &d, sizeof(d));
	if (r == 0)
		r = send_bytes(s, state, d.state_size);
	return r < 0 ? r : send_bytes(s, buffers, p->buffer_size);
}

static int ask(struct sharing *s)
{
	uint8_t word = 0;

	return send_bytes(s, &word, sizeof(word));
}

static int hear(struct sharing *s)
{
	uint8_t word;

	return star_receive(&s->star, s->node, &word, sizeof(word));
}

/* Calls it for all nodes that are connected. */
static int for_each_node(struct sharing *s, int (*fn)(struct sharing *s))
{
	int r = 0;

	for (s->node = 1; r == 0 && s->node < s->t->plan->n_nodes; s->node++)
		if (!s->star.is_past[s->node])
			r = fn(s);
	return r;
}

static int send_tensor(struct sharing *s)
{
	return walk_tensor(s, s->node, s->tensor, send_item);
}

/* Tensor by tensor, so that no node waits for its turn as long as all of the checkpoint takes. */
static int send_all(struct sharing *s)
{
	const struct weightd_plan *p = s->t->plan;
	int r = for_each_node(s, send_rank);

	for (uint32_t i = 0; r == 0 && i < p->n_tensors; i++) {
		s->tensor = &p->tensors[i];
		r = for_each_node(s, send_tensor);
	}
	return r;
}

/*
 * All nodes have it: only then may one of them go on. If this process dies between their answers and its own word, or one of
 * them before its answer, they go on, and meet this rank in their links while it loads again: star.is_past.
 */
static int settle_all(struct sharing *s)
{
	int r = for_each_node(s, ask);

	if (r == 0)
		r = for_each_node(s, hear);
	if (r < 0)
		return r;
	loaded_keep(s->t);
	(void)for_each_node(s, ask); /* a loss ends their waits, too */
	return 0;
}

static int send_once(struct sharing *s, int result, char sentence[CONTROL_SENTENCE])
{
	int r = connect_all(s);

	if (r < 0 && r != -EPIPE && result < 0)
		return train_fail(result, "%s", sentence);
	if (r < 0)
		return r;
	if (result < 0) {
		r = train_fail(result, "%s", sentence);
		send_error(s, r);
	} else {
		r = send_all(s);
		if (r == 0)
			r = settle_all(s);
		if (r < 0)
			send_error(s, r == -EPIPE ? -EAGAIN : r);
	}
	star_close(&s->star);
	return r;
}

int share_send(struct loading *l, int result)
{
	cleanup(freep) void *bounce = malloc(CHUNK * sizeof(float));
	struct sharing s = {.t = l->t, .loading = l, .bounce = bounce};
	char sentence[CONTROL_SENTENCE];
	int r;

	if (!bounce && result == 0)
		result = train_out_of_memory();
	(void)snprintf(sentence, sizeof(sentence), "%s", weightd_train_error());
	do {
		r = send_once(&s, result, sentence);
	} while (again(&s, &r));
	return r;
}

/* --- Other nodes ------------------------------------------------------------------------------------- */

static int receive_frozen(struct sharing *s, const struct share_item *item)
{
	if (!s->frozen)
		s->frozen = arena_map_all(&s->t->arena, WEIGHTD_KIND_FROZEN, 0);
	return s->frozen ? receive_bytes(s, s->frozen + item->tensor->offset, item->part.end)
			 : -ENOMEM;
}

static int receive_item(struct sharing *s, const struct share_item *item)
{
	struct weightd_train *t = s->t;
	uint64_t n = item->part.end - item->part.begin;
	int r;

	if (item->tensor->frozen)
		return receive_frozen(s, item);
	if (item->state)
		return receive_bytes(s, places_state(t, item->state, item->at),
				     n * plan_element_size(t->plan, item->state->kind));
	r = receive_bytes(s, places_param(t, item->tensor, item->part.begin),
			  n * plan_element_size(t->plan, WEIGHTD_KIND_PARAM));
	if (r == 0)
		places_copy(t, item->tensor, item->part);
	return r;
}

static int receive_rank(struct sharing *s)
{
	struct weightd_train *t = s->t;
	struct share_description d;
	struct control_saved *saved;
	int r = receive_bytes(s, &d, sizeof(d));

	if (r == 0 && d.state_size > t->plan->state_size)
		r = train_fail(-EPROTOTYPE,
			       "node 0 sent a state of %llu bytes, and the plan has "
			       "room for %u",
			       (unsigned long long)d.state_size, t->plan->state_size);
	if (r < 0)
		return r;
	t->loaded = (struct trainer_loaded){
		.is_there = true, .step = d.step, .n_skipped = d.n_skipped, .scale = d.scale};
	saved = places_slot(t, d.step);
	saved->state_size = d.state_size;
	r = receive_bytes(s, saved + 1, d.state_size);
	if (r == 0)
		r = receive_bytes(s, t->buffers, t->plan->buffer_size);
	if (r == 0)
		places_keep(t, d.step);
	return r;
}

/* Node 0 asks if the values are there, and sends a word once all nodes have them, or is lost: then they count as well. */
static int settle_with(struct sharing *s)
{
	uint8_t word;
	int r = receive_bytes(s, &word, sizeof(word));

	if (r < 0)
		return r;
	loaded_keep(s->t);
	r = star_send(&s->star, 0, &word, sizeof(word));
	if (r == 0)
		r = receive_bytes(s, &word, sizeof(word));
	return r == -EPIPE ? 0 : r;
}

static int receive_all(struct sharing *s)
{
	const struct weightd_plan *p = s->t->plan;
	int r = receive_rank(s);

	for (uint32_t i = 0; r == 0 && i < p->n_tensors; i++)
		r = walk_tensor(s, s->t->arena.node, &p->tensors[i], receive_item);
	return r;
}

static int receive_once(struct sharing *s)
{
	int r = connect_all(s);

	if (r < 0)
		return r;
	r = receive_all(s);
	if (r == 0)
		r = settle_with(s);
	star_close(&s->star);
	if (r < 0)
		s->t->loaded.is_there = false;
	/* Node 0 may have gone on from a load that a signal interrupted: the call that repeats it finds the values. */
	if (r < 0 && r != -EINTR)
		wait_publish(&trainer_words(s->t)->loaded, 0);
	return r;
}

int share_receive(struct weightd_train *t)
{
	enum control_phase before = status_wait(&t->status.main, CONTROL_NODES, 0);
	struct sharing s = {.t = t};
	int r;

	do {
		r = receive_once(&s);
	} while (again(&s, &r));
	status_enter(&t->status.main, before);
	if (s.frozen)
		arena_unmap_all(&t->arena, s.frozen);
	return r;
}
