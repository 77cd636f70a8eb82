/*
 * Nodes of tests
 *
 * Each node is a job of its own on this machine. Its ranks are children of the test, which meet through Gloo, or through an
 * engine of the caller over pairs of sockets.
 */
#pragma once

#include <poll.h>

#include "tests/unit/train_ports.h"
#include "tests/unit/train_ranks.h"

#define NODES_MAX 4

static struct train_job_server *jobs[NODES_MAX];
static uint16_t nodes_port; /* of the first line */
static int port_fds[2 * RANKS_MAX]; /* hold those of links and checkpoints of all ranks */

static inline uint32_t nodes_of(const struct setup *setup)
{
	return setup->n_nodes ? setup->n_nodes : 1;
}

/* --- Pairs: an engine of the caller ------------------------------------------------------------------ */

/* Sockets of the rank `line` of node a to that of node b. */
static int pair_fds[RANKS_MAX][NODES_MAX][NODES_MAX];

struct pairs {
	uint32_t node, line;
};

static inline void pairs_start(const struct setup *setup)
{
	for (uint32_t line = 0; line < ranks_of(setup); line++)
		for (uint32_t a = 0; a < nodes_of(setup); a++)
			for (uint32_t b = a + 1; b < nodes_of(setup); b++) {
				int fds[2];

				assert_int_equal(socketpair(AF_UNIX,
							    SOCK_STREAM | SOCK_NONBLOCK |
								    SOCK_CLOEXEC,
							    0, fds),
						 0);
				pair_fds[line][a][b] = fds[0];
				pair_fds[line][b][a] = fds[1];
			}
}

static inline void pairs_stop(const struct setup *setup)
{
	for (uint32_t line = 0; line < ranks_of(setup); line++)
		for (uint32_t a = 0; a < nodes_of(setup); a++)
			for (uint32_t b = 0; b < nodes_of(setup); b++)
				if (a != b)
					close(pair_fds[line][a][b]);
}

/* Segments that are sent or received one after the other. */
struct stream {
	const struct weightd_segment *segments;
	uint32_t n;
	uint64_t at; /* of the first one */
};

/* False: there is nothing left. */
static inline bool stream_move(struct stream *s, int fd, bool sends)
{
	while (s->n) {
		uint8_t *data = (uint8_t *)s->segments->data + s->at;
		uint64_t left = s->segments->size - s->at;
		ssize_t n = sends ? send(fd, data, left, MSG_NOSIGNAL) : recv(fd, data, left, 0);

		if (n <= 0)
			return true;
		s->at += (uint64_t)n;
		if (s->at == s->segments->size) {
			s->segments++;
			s->n--;
			s->at = 0;
		}
	}
	return false;
}

static inline int pairs_exchange(void *data, const struct weightd_transfer *transfers, uint32_t n,
				 int deadline_ms, char *ret_why, size_t why_size)
{
	const struct pairs *p = data;
	struct stream sent[NODES_MAX] = {0}, received[NODES_MAX] = {0};

	if (gettid() != getpid()) {
		(void)snprintf(ret_why, why_size, "it was called on a thread of the trainer");
		return -EDEADLK;
	}
	for (uint32_t i = 0; i < n; i++) {
		sent[i] = (struct stream){transfers[i].send, transfers[i].n_send, 0};
		received[i] = (struct stream){transfers[i].receive, transfers[i].n_receive, 0};
	}
	for (;;) {
		struct pollfd fds[NODES_MAX];
		bool is_done = true;

		for (uint32_t i = 0; i < n; i++) {
			int fd = pair_fds[p->line][p->node][transfers[i].node];
			bool sends = stream_move(&sent[i], fd, true);
			bool receives = stream_move(&received[i], fd, false);

			fds[i] = (struct pollfd){.fd = sends || receives ? fd : -1,
						 .events = (short)((sends ? POLLOUT : 0) |
								   (receives ? POLLIN : 0))};
			is_done &= !sends && !receives;
		}
		if (is_done)
			return 0;
		if (poll(fds, n, deadline_ms) == 0) {
			(void)snprintf(ret_why, why_size, "a socket is silent");
			return -ETIMEDOUT;
		}
	}
}

/* --- Ranks -------------------------------------------------------------------------------------------- */

static inline void nodes_start(const struct setup *setup)
{
	const struct engine *gloo; /* ranks inherit the object, and load none of their own */

	for (uint32_t node = 0; node < nodes_of(setup); node++) {
		train_job_start(ranks_of(setup));
		jobs[node] = train_job;
	}
	nodes_port = ports_hold(port_fds, 2 * ranks_of(setup));
	scales_start();
	pairs_start(setup);
	(void)engine_gloo(&gloo);
}

/* Undoes nodes_start(), but for the jobs. */
static inline void places_stop(const struct setup *setup)
{
	(void)munmap(all_scales, sizeof(*all_scales));
	all_scales = NULL;
	pairs_stop(setup);
	ports_free(port_fds, 2 * ranks_of(setup));
}

/* The child of a test: a rank of the mesh, which calls `fn`. */
static inline int node_run(const struct setup *setup, uint32_t rank, void *data, bool has_pairs,
			   int (*fn)(uint32_t rank, void *data))
{
	uint32_t n = ranks_of(setup);
	struct pairs pairs = {.node = rank / n, .line = rank % n};
	struct weightd_engine engine = {
		.size = sizeof(engine), .name = "pairs", .exchange = pairs_exchange, .data = &pairs};
	struct weightd_nodes nodes = {.size = sizeof(nodes),
				      .node = rank / n,
				      .address = "127.0.0.1",
				      .port = nodes_port,
				      .engine = has_pairs ? &engine : NULL};

	train_job = jobs[rank / n];
	rank_nodes = nodes_of(setup) > 1 ? &nodes : NULL;
	return fn(rank, data);
}

/* --- Results ------------------------------------------------------------------------------------------ */

/* Values of all nodes in the end; MASTER and MOMENTS put together. */
struct union_result {
	uint64_t n_elements, param_size;
	uint8_t *params[NODES_MAX]; /* sharded parameters are those of node 0, put together as well */
	float *value, *m, *v;
	struct scales scales;
};

/* Copies the pieces of all ranks of a node to their elements, which have `size` bytes. */
static inline void pieces_copy(const struct weightd_plan *p, uint32_t node, void *to,
			       const void *from, uint64_t size)
{
	for (uint32_t rank = 0; rank < p->n_ranks; rank++) {
		const struct plan_pieces *pieces = plan_updates(p, node, rank);

		for (uint32_t i = 0; i < pieces->n; i++) {
			const struct plan_piece *piece = &pieces->pieces[i];

			memcpy((uint8_t *)to + piece->interval.begin * size,
			       (const uint8_t *)from + piece->at * size,
			       (piece->interval.end - piece->interval.begin) * size);
		}
	}
}

static inline void params_read(const struct weightd_plan *p, uint32_t node, struct union_result *ret)
{
	uint64_t size = plan_element_size(p, WEIGHTD_KIND_PARAM);
	uint8_t *param;

	if (!plan_shards_params(p)) {
		ret->params[node] = part_read(p, WEIGHTD_KIND_PARAM, ret->param_size);
		return;
	}
	if (!ret->params[0])
		ret->params[0] = zeros(ret->param_size);
	param = part_read(p, WEIGHTD_KIND_PARAM, p->n_state * size);
	pieces_copy(p, node, ret->params[0], param, size);
	free(param);
}

static inline void node_read(const struct setup *setup, const struct weightd_plan *p, uint32_t node,
			     struct union_result *ret)
{
	float *master, *moments;

	train_job = jobs[node];
	params_read(p, node, ret);
	moments = part_read(p, WEIGHTD_KIND_MOMENTS, 2 * p->n_state * sizeof(float));
	pieces_copy(p, node, ret->m, moments, sizeof(float));
	pieces_copy(p, node, ret->v, moments + p->n_state, sizeof(float));
	free(moments);
	if (!setup->dtype)
		return;
	master = part_read(p, WEIGHTD_KIND_MASTER, p->n_state * sizeof(float));
	pieces_copy(p, node, ret->value, master, sizeof(float));
	free(master);
}

static inline struct union_result nodes_stop(const struct setup *setup)
{
	struct weightd_plan *p = plan_make(setup);
	uint64_t size = p->n_elements * sizeof(float);
	struct union_result result = {.n_elements = p->n_elements,
				      .param_size = p->n_elements *
						    plan_element_size(p, WEIGHTD_KIND_PARAM),
				      .value = zeros(size),
				      .m = zeros(size),
				      .v = zeros(size),
				      .scales = *all_scales};

	for (uint32_t node = 0; node < nodes_of(setup); node++) {
		node_read(setup, p, node, &result);
		train_job_stop();
	}
	if (!setup->dtype)
		memcpy(result.value, result.params[0], size);
	places_stop(setup);
	weightd_plan_free(p);
	return result;
}

static inline void union_free(struct union_result *r)
{
	for (uint32_t node = 0; node < NODES_MAX; node++)
		free(r->params[node]);
	free(r->value);
	free(r->m);
	free(r->v);
}

static inline void floats_compare(const char *what, const float *a, const float *b, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		if (memcmp(&a[i], &b[i], sizeof(float)))
			fail_msg("%s %llu is %.9g and %.9g", what, (unsigned long long)i,
				 (double)a[i], (double)b[i]);
}

/* The same values on all nodes of both. */
static inline void union_compare(const struct union_result *a, const struct union_result *b)
{
	assert_int_equal(a->n_elements, b->n_elements);
	floats_compare("parameter", a->value, b->value, a->n_elements);
	floats_compare("first moment", a->m, b->m, a->n_elements);
	floats_compare("second moment", a->v, b->v, a->n_elements);
	assert_int_equal(a->param_size, b->param_size);
	for (uint32_t node = 0; node < NODES_MAX; node++) {
		if (a->params[node])
			assert_memory_equal(a->params[node], b->params[0], a->param_size);
		if (b->params[node])
			assert_memory_equal(b->params[node], a->params[0], b->param_size);
	}
}
