/*
 * The link: meeting, comparing plans, connecting
 */
#include "libclient/train/nodes/link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "libclient/train/nodes/star.h"
#include "libclient/train/plan/given.h"
#include "libclient/train/plan/sentence.h"

#define HELLO_MAGIC 0x4f4c4c4548444757ull
#define HELLO_FORM 2 /* of hellos, and of exchanges */
#define IMAGE_MAX (96ull << 20) /* of a plan that nodes send each other */

CLEANUP_POINTER(struct weightd_plan, weightd_plan_free);

/* The first word of each rank in a meeting; the hello of its engine follows. Bytes are those of little-endian machines. */
struct hello {
	uint64_t magic;
	uint32_t form;
	uint32_t node, n_nodes, line;
	uint64_t done, doing;
	uint32_t lacks, serves;
	uint8_t plan[16]; /* hash */
	uint64_t image_size; /* of the plan */
};

_Static_assert(sizeof(struct hello) == LINK_WORD_MAX - ENGINE_HELLO_MAX, "a hello has no padding");

/* --- Where to meet ------------------------------------------------------------------------------------ */

static int address_find(struct link *l, const char *given)
{
	const char *address = given ? given : getenv("MASTER_ADDR");

	if (!address || !*address)
		return train_fail(-EINVAL,
				  "the plan has %u nodes, and the address of node 0 is missing; set "
				  "$MASTER_ADDR, or give weightd_nodes.address (Python: "
				  "init_mesh(address=))",
				  l->n_nodes);
	l->address = strdup(address);
	return l->address ? 0 : train_out_of_memory();
}

/* The launcher's agent listens at $MASTER_PORT itself. */
static int port_find(struct link *l, uint16_t given)
{
	const char *value = getenv("MASTER_PORT");
	uint64_t port = given;

	if (!given && !value)
		return train_fail(
			-EINVAL,
			"the plan has %u nodes, and the port of node 0 is missing; set "
			"$MASTER_PORT, or give weightd_nodes.port (Python: init_mesh(port=))",
			l->n_nodes);
	if (!given && (num_parse(value, 10, &port) < 0 || port++ == 0))
		return train_fail(-EINVAL, "$MASTER_PORT is '%.32s'; it must be a number of a port",
				  value);
	if (port + l->plan->n_ranks + l->line > UINT16_MAX)
		return train_fail(-EINVAL,
				  "rank %u meets the ranks %u of other nodes at port %llu + %u, and "
				  "%u behind that for checkpoints, which is above %d; choose a lower "
				  "port",
				  l->line, l->line, (unsigned long long)port, l->line,
				  l->plan->n_ranks, UINT16_MAX);
	l->port = (uint16_t)(port + l->line);
	return 0;
}

static int given_engine(struct link *l, const struct weightd_engine *engine)
{
	int r = given_copy(engine, GIVEN_ENGINE_MIN, &l->given, sizeof(l->given),
			   "struct weightd_engine");

	if (!r && !l->given.exchange)
		r = train_fail(-EINVAL, "the engine '%s' has no exchange()",
			       l->given.name ? l->given.name : "");
	return r;
}

/* An engine of the caller needs no place; checkpoints do. */
static bool is_place_known(const struct weightd_nodes *given)
{
	return (given->address || getenv("MASTER_ADDR")) && (given->port || getenv("MASTER_PORT"));
}

int link_init(struct link *l, const struct weightd_plan *plan, const struct weightd_nodes *given,
	      uint32_t node, uint32_t rank)
{
	int r;

	*l = (struct link){.plan = plan, .node = node, .n_nodes = plan->n_nodes, .line = rank};
	if (plan->n_nodes == 1)
		return 0;
	l->peers = calloc(plan->n_nodes, sizeof(*l->peers));
	if (!l->peers)
		return train_out_of_memory();
	pthread_mutex_init(&l->lock, NULL);
	pthread_mutex_init(&l->side, NULL);
	r = given->engine ? given_engine(l, given->engine) : 0;
	if (r < 0 || (given->engine && !is_place_known(given)))
		return r;
	r = address_find(l, given->address);
	return r < 0 ? r : port_find(l, given->port);
}

void link_close(struct link *l)
{
	if (l->state)
		l->engine->close(l->state);
	l->state = NULL;
	l->is_connected = false;
}

void link_deinit(struct link *l)
{
	if (!l->peers)
		return;
	link_close(l);
	pthread_mutex_destroy(&l->side);
	pthread_mutex_destroy(&l->lock);
	free(l->peers);
	free(l->address);
	free(l->given_error);
}

uint32_t link_missing(const struct link *l)
{
	uint32_t node = l->n_nodes;

	if (l->meet)
		node = meet_missing(l->meet);
	else if (l->state)
		node = l->engine->missing(l->state);
	if (node < l->n_nodes)
		return node;
	return l->n_nodes == 2 ? 1 - l->node : l->node;
}

uint64_t link_moved(const struct link *l)
{
	return l->state ? l->engine->moved(l->state) : 0;
}

/* --- Comparing ---------------------------------------------------------------------------------------- */

static struct hello hello_make(const struct link *l, const struct link_peer *own)
{
	struct hello h = {.magic = HELLO_MAGIC,
			  .form = HELLO_FORM,
			  .node = l->node,
			  .n_nodes = l->n_nodes,
			  .line = l->line,
			  .done = own->done,
			  .doing = own->doing,
			  .lacks = own->lacks,
			  .serves = own->serves};

	weightd_plan_hash(l->plan, h.plan);
	(void)weightd_plan_image(l->plan, &h.image_size);
	return h;
}

static int hello_check(const struct link *l, uint32_t node, const struct hello *h)
{
	if (h->magic != HELLO_MAGIC || h->form != HELLO_FORM)
		return train_fail(-EPROTOTYPE,
				  "node %u has another release of weightd-train; start all nodes with "
				  "one release",
				  node);
	if (h->node != node || h->n_nodes != l->n_nodes || h->line != l->line)
		return train_fail(-EPROTOTYPE,
				  "rank %u is connected to rank %u of node %u of %u where rank %u of "
				  "node %u of %u belongs; give each process its own node and rank",
				  l->line, h->line, h->node, h->n_nodes, l->line, node, l->n_nodes);
	return 0;
}

static int hellos_check(struct link *l, const struct hello *hellos)
{
	bool gathers = plan_shards_params(l->plan); /* else no rank says so */
	int r = 0;

	for (uint32_t node = 0; !r && node < l->n_nodes; node++) {
		r = hello_check(l, node, &hellos[node]);
		l->peers[node] = (struct link_peer){hellos[node].done, hellos[node].doing,
						    hellos[node].lacks && gathers,
						    hellos[node].serves && gathers};
	}
	return r;
}

/* All ranks see the same hellos: either all send their plans, or none does. */
static bool plans_differ(const struct link *l, const struct hello *hellos)
{
	for (uint32_t node = 1; node < l->n_nodes; node++)
		if (memcmp(hellos[node].plan, hellos[0].plan, sizeof(hellos[0].plan)) != 0)
			return true;
	return false;
}

/* The first node whose plan is not ours. */
static uint32_t find_other(const struct link *l, const struct hello *hellos)
{
	uint32_t node = 0;

	while (memcmp(hellos[node].plan, hellos[l->node].plan, sizeof(hellos[0].plan)) == 0)
		node++;
	return node;
}

/* All refuse such a plan, too: they see the same hellos. */
static int find_largest(const struct link *l, const struct hello *hellos, uint64_t *ret)
{
	*ret = 0;
	for (uint32_t node = 0; node < l->n_nodes; node++) {
		uint64_t size = hellos[node].image_size;

		if (size > IMAGE_MAX)
			return train_fail(-EPROTOTYPE,
					  "the nodes have different plans, and that of node %u has "
					  "%llu MB, which is too large to be compared; start all nodes "
					  "with the same model and options, on new jobs",
					  node, (unsigned long long)(size >> 20));
		*ret = size > *ret ? size : *ret;
	}
	return 0;
}

static int plan_differs(const struct link *l, uint32_t node, const void *image, uint64_t size)
{
	cleanup(weightd_plan_freep) struct weightd_plan *theirs = NULL;
	char difference[512];

	if (weightd_plan_parse(image, size, &theirs) < 0 ||
	    weightd_plan_compare(l->plan, theirs, difference, sizeof(difference)) == 0)
		return train_fail(-EPROTOTYPE,
				  "node %u has a plan of another release of weightd-train; start all "
				  "nodes with one release, on new jobs",
				  node);
	return train_fail(
		-EPROTOTYPE,
		"node %u and node %u have different plans: %s (the job is that of node %u here); "
		"start all nodes with the same model and options, on new jobs",
		l->node, node, difference, node);
}

bool link_has_sent(const struct meet_word *word, const uint8_t plan[16], uint64_t *ret_done)
{
	const struct hello *h = word->data;

	if (word->size < sizeof(*h) || h->magic != HELLO_MAGIC || h->form != HELLO_FORM ||
	    memcmp(h->plan, plan, sizeof(h->plan)) != 0)
		return false;
	*ret_done = h->done;
	return true;
}

/* --- Meeting ------------------------------------------------------------------------------------------ */

/* The check of the caller, and in a connect() a look at the meeting: the engine does not notice a node that dies there. */
struct watch {
	struct link *link;
	engine_check *check;
	void *data;
	bool watches_meeting;
};

static int watch_check(void *data, bool is_interrupted)
{
	struct watch *w = data;
	int r = w->watches_meeting ? meet_watch(w->link->meet) : 0;

	return r ? r : w->check(w->data, is_interrupted);
}

static int tell_plans(struct link *l, const struct hello *hellos, struct watch *w)
{
	uint64_t size, max;
	const void *image = weightd_plan_image(l->plan, &size);
	struct meet_word words[WEIGHTD_NODES_MAX] = {0};
	uint32_t other;
	int r = find_largest(l, hellos, &max);

	if (!r)
		r = meet_tell(l->meet, image, (uint32_t)size, (uint32_t)max, watch_check, w, words);
	if (r < 0)
		return r;
	/* A third node may have the plan that differs: this one fails as well. */
	other = find_other(l, hellos);
	r = plan_differs(l, other, words[other].data, words[other].size);
	meet_words_free(words, l->n_nodes);
	return r;
}

/* A rank of node 0 that was killed in a load repeats it, with those that do not have the values: this one waits. */
static int fail_loads(uint32_t node, const struct hello *own)
{
	if (own->done)
		return train_fail(-EPIPE, "node %u loads the checkpoint again", node);
	return train_fail(-EINVAL,
			  "node %u loads a checkpoint, and this node does not; call "
			  "weightd_train_load() on all ranks of all nodes",
			  node);
}

/* The engine's hellos, behind ours. */
static int words_split(const struct link *l, const struct hello *own, const struct meet_word *words,
		       struct hello *hellos, struct engine_hello *ends)
{
	for (uint32_t node = 0; node < l->n_nodes; node++) {
		const struct meet_word *word = &words[node];

		if (star_has_sent(word))
			return fail_loads(node, own);
		if (word->size < sizeof(*hellos) || word->size - sizeof(*hellos) > ENGINE_HELLO_MAX)
			return train_fail(-EPROTOTYPE,
					  "node %u has another release of weightd-train; start all "
					  "nodes with one release",
					  node);
		memcpy(&hellos[node], word->data, sizeof(*hellos));
		ends[node].size = word->size - (uint32_t)sizeof(*hellos);
		memcpy(ends[node].bytes, (const uint8_t *)word->data + sizeof(*hellos),
		       ends[node].size);
	}
	return 0;
}

/* Sends ours, and receives those of all. `ends` has ours in the beginning. */
static int tell_hellos(struct link *l, const struct hello *own, struct hello *hellos,
		       struct engine_hello *ends, struct watch *w)
{
	struct meet_word words[WEIGHTD_NODES_MAX] = {0};
	uint8_t bytes[sizeof(*own) + ENGINE_HELLO_MAX];
	uint32_t size = ends[l->node].size;
	int r;

	memcpy(bytes, own, sizeof(*own));
	memcpy(bytes + sizeof(*own), ends[l->node].bytes, size);
	r = meet_tell(l->meet, bytes, (uint32_t)sizeof(*own) + size, LINK_WORD_MAX, watch_check, w,
		      words);
	if (r < 0)
		return r;
	r = words_split(l, own, words, hellos, ends);
	meet_words_free(words, l->n_nodes);
	return r;
}

/* Returns once all have connected. */
static int connect_ends(struct link *l, const struct engine_hello *ends, struct watch *w)
{
	struct meet_word words[WEIGHTD_NODES_MAX] = {0};
	char why[ENGINE_WHY_SIZE] = "";
	int r;

	w->watches_meeting = true;
	r = l->engine->connect(l->state, ends, watch_check, w, why);
	w->watches_meeting = false;
	if (r < 0 && *why)
		return train_fail(r, "%s", why);
	if (r < 0)
		return r;
	r = meet_tell(l->meet, NULL, 0, 0, watch_check, w, words);
	if (!r)
		meet_words_free(words, l->n_nodes);
	return r;
}

static int meet_others(struct link *l, const struct hello *own, struct engine_hello *ends,
		       struct watch *w)
{
	struct hello hellos[WEIGHTD_NODES_MAX];
	struct sockaddr_storage address;
	char why[ENGINE_WHY_SIZE] = "";
	int r = meet_join(l->meet, watch_check, w, &address);

	if (r < 0)
		return r;
	r = l->engine->open(&address, l->node, l->n_nodes, &l->state, &ends[l->node], why);
	if (r < 0)
		return train_fail(r, "%s cannot open connections to other nodes: %s",
				  l->engine->name, why);
	r = tell_hellos(l, own, hellos, ends, w);
	if (!r)
		r = hellos_check(l, hellos);
	if (!r && plans_differ(l, hellos))
		r = tell_plans(l, hellos, w);
	return r < 0 ? r : connect_ends(l, ends, w);
}

static int connect_engine(struct link *l, const struct hello *own, engine_check *check, void *data)
{
	struct meet_place place = {.address = l->address,
				   .port = l->port,
				   .line = l->line,
				   .node = l->node,
				   .n_nodes = l->n_nodes};
	struct watch w = {.link = l, .check = check, .data = data};
	cleanup(freep) struct engine_hello *ends = calloc(l->n_nodes, sizeof(*ends));
	int r = ends ? engine_gloo(&l->engine) : train_out_of_memory();

	if (!r)
		r = meet_open(&place, &l->meet);
	if (r < 0)
		return r;
	r = meet_others(l, own, ends, &w);
	meet_close(l->meet);
	l->meet = NULL;
	if (r < 0)
		link_close(l);
	return r;
}

/* --- The caller's engine ------------------------------------------------------------------------------ */

static int given_fail(const struct link *l)
{
	return train_fail(
		l->given_result,
		"%s failed: %s; start the ranks again, with it or another engine: the job continues in "
		"the same step",
		l->given.name ? l->given.name : "the engine of the caller",
		l->given_error ? l->given_error : strerror(-l->given_result));
}

static int given_exchange(struct link *l, const struct weightd_transfer *transfers, uint32_t n,
			  int deadline_ms)
{
	char why[ENGINE_WHY_SIZE] = "";
	int r = l->given.exchange(l->given.data, transfers, n, deadline_ms, why, sizeof(why));

	if (r >= 0)
		return 0;
	l->given_result = r;
	l->given_error = *why ? strdup(why) : NULL;
	return given_fail(l);
}

/* Sends `size` bytes to each node, and receives `sizes[node]` bytes from each at `ret[node]`. */
static int given_tell(struct link *l, const void *data, uint64_t size, void *const *ret,
		      const uint64_t *sizes, int deadline_ms)
{
	struct weightd_transfer transfers[WEIGHTD_NODES_MAX];
	struct weightd_segment sent = {(void *)data, size}, received[WEIGHTD_NODES_MAX];
	uint32_t n = 0;

	for (uint32_t node = 0; node < l->n_nodes; node++) {
		received[node] = (struct weightd_segment){ret[node], sizes[node]};
		if (node == l->node)
			continue;
		transfers[n++] = (struct weightd_transfer){.node = node,
							   .send = &sent,
							   .n_send = 1,
							   .receive = &received[node],
							   .n_receive = 1};
	}
	return given_exchange(l, transfers, n, deadline_ms);
}

static int given_tell_plans(struct link *l, const struct hello *hellos, int deadline_ms)
{
	void *images[WEIGHTD_NODES_MAX] = {NULL};
	uint64_t sizes[WEIGHTD_NODES_MAX], size, max;
	const void *image = weightd_plan_image(l->plan, &size);
	uint32_t other = find_other(l, hellos);
	int r = find_largest(l, hellos, &max);

	if (r < 0)
		return r;
	for (uint32_t node = 0; node < l->n_nodes; node++) {
		sizes[node] = hellos[node].image_size;
		images[node] = malloc(sizes[node] + 1);
		r = images[node] ? r : train_out_of_memory();
	}
	if (!r)
		r = given_tell(l, image, size, images, sizes, deadline_ms);
	if (!r)
		r = plan_differs(l, other, images[other], sizes[other]);
	for (uint32_t node = 0; node < l->n_nodes; node++)
		free(images[node]);
	return r;
}

static int connect_given(struct link *l, const struct hello *own, int deadline_ms)
{
	struct hello hellos[WEIGHTD_NODES_MAX];
	void *words[WEIGHTD_NODES_MAX];
	uint64_t sizes[WEIGHTD_NODES_MAX];
	int r;

	for (uint32_t node = 0; node < l->n_nodes; node++) {
		words[node] = &hellos[node];
		sizes[node] = sizeof(*hellos);
	}
	hellos[l->node] = *own;
	r = given_tell(l, own, sizeof(*own), words, sizes, deadline_ms);
	if (!r)
		r = hellos_check(l, hellos);
	if (!r && plans_differ(l, hellos))
		r = given_tell_plans(l, hellos, deadline_ms);
	return r;
}

/* --- Use ---------------------------------------------------------------------------------------------- */

int link_connect(struct link *l, const struct link_peer *peer, engine_check *check, void *data,
		 int deadline_ms)
{
	struct hello own = hello_make(l, peer);
	int r;

	if (l->is_connected)
		return 0;
	if (l->given_result)
		return given_fail(l);
	l->number = 0;
	r = l->given.exchange ? connect_given(l, &own, deadline_ms)
			      : connect_engine(l, &own, check, data);
	l->is_connected = !r;
	return r;
}

int link_exchange(struct link *l, const struct weightd_transfer *transfers, uint32_t n,
		  engine_check *check, void *data, int deadline_ms)
{
	char why[ENGINE_WHY_SIZE] = "";
	int r;

	if (l->given.exchange) {
		r = given_exchange(l, transfers, n, deadline_ms);
		l->is_connected = !r;
		return r;
	}
	r = l->engine->exchange(l->state, l->number++, transfers, n, check, data, why);
	if (r == -EPIPE)
		atomic_fetch_add_explicit(&l->n_lost, 1, memory_order_relaxed);
	if (r < 0)
		link_close(l);
	return r < 0 && *why ? train_fail(r, "%s", why) : r;
}

bool link_take(struct link *l)
{
	bool is_taken;

	atomic_fetch_add(&l->n_wanted, 1);
	pthread_mutex_lock(&l->side);
	is_taken = pthread_mutex_trylock(&l->lock) == 0;
	pthread_mutex_unlock(&l->side);
	atomic_fetch_sub(&l->n_wanted, 1);
	return is_taken;
}

void link_give(struct link *l)
{
	pthread_mutex_unlock(&l->lock);
}

bool link_take_aside(struct link *l)
{
	if (link_is_wanted(l) || pthread_mutex_trylock(&l->side) != 0)
		return false;
	if (pthread_mutex_trylock(&l->lock) == 0)
		return true;
	pthread_mutex_unlock(&l->side);
	return false;
}

void link_give_aside(struct link *l)
{
	pthread_mutex_unlock(&l->lock);
	pthread_mutex_unlock(&l->side);
}

void link_look(struct link *l)
{
	if (l->is_connected && l->engine->watch(l->state, l->lost) < 0) {
		atomic_fetch_add_explicit(&l->n_lost, 1, memory_order_relaxed);
		link_close(l);
	}
}

void link_watch(struct link *l)
{
	if (l->n_nodes < 2 || l->given.exchange || !link_take_aside(l))
		return;
	link_look(l);
	link_give_aside(l);
}

int link_check(struct link *l)
{
	int r = *l->lost ? train_fail(-EPIPE, "%s", l->lost) : 0;

	l->lost[0] = '\0';
	return r;
}
