#include "libclient/train/nodes/star.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "libclient/train/nodes/link.h"
#include "libclient/train/plan/sentence.h"

/* First word of each rank: all must be about the same thing. */
struct star_word {
	char what[8];
	uint64_t step;
	uint8_t plan[16];
};

int star_place(const struct link *l, const struct weightd_plan *plan, bool is_load,
	       struct meet_place *ret)
{
	if (!l->address)
		return train_fail(-EINVAL,
				  "checkpoints of several nodes need the address of node 0; set "
				  "$MASTER_ADDR, or give it in struct weightd_nodes");
	*ret = (struct meet_place){
		.address = l->address,
		.port = (uint16_t)(l->port + (is_load ? 0 : plan->n_ranks)),
		.line = l->line,
		.node = l->node,
		.n_nodes = l->n_nodes,
	};
	return 0;
}

/* The node that is missing, as far as it is known; n_nodes: it is not. */
static uint32_t missing_node(const struct star *s)
{
	uint32_t node = meet_missing(s->meet);

	return node == 2 && s->place.n_nodes == 2 ? 1 - s->place.node : node;
}

static int fail_absent(const struct star *s)
{
	uint32_t node = missing_node(s);
	char name[32] = "another node";

	if (node < s->place.n_nodes)
		(void)snprintf(name, sizeof(name), "node %u", node);
	return train_fail(
		-ETIMEDOUT,
		"rank %u of %s did not take part in the %s within %g s: it did not meet the "
		"others at %s, port %u; all ranks of all nodes call it after the same step, "
		"and have this address (MASTER_ADDR, MASTER_PORT)",
		s->place.line, name, s->what, (double)s->deadline_ms / 1000, s->place.address,
		s->place.port);
}

static int fail_silent(const struct star *s, uint32_t node)
{
	return train_fail(-ETIMEDOUT,
			  "rank %u of node %u was silent in the %s for %g s; look why its process is "
			  "stopped or stuck, or ask for a longer deadline",
			  s->place.line, node, s->what, (double)s->deadline_ms / 1000);
}

/* A tick of a wait. */
static bool tick_is_late(struct star *s, bool is_interrupted)
{
	if (!is_interrupted)
		s->waited_ms += ENGINE_TICK_MS;
	return s->deadline_ms >= 0 && s->waited_ms > (uint64_t)s->deadline_ms;
}

static int meet_tick(void *star, bool is_interrupted)
{
	struct star *s = star;

	return tick_is_late(s, is_interrupted) ? fail_absent(s) : s->check(s->data, is_interrupted);
}

/* --- Connecting ------------------------------------------------------------------------------------ */

bool star_has_sent(const struct meet_word *word)
{
	return word->size == sizeof(struct star_word);
}

static int fail_elsewhere(const struct star *s, uint32_t node)
{
	return train_fail(-EINVAL,
			  "rank %u of node %u does not %s now, and this rank does; call it on all "
			  "ranks of all nodes",
			  s->place.line, node, s->what);
}

/* It meets others in its link. Only node 0 may be behind it: a load ends there when all others have the values. */
static int compare_link(struct star *s, uint32_t node, uint64_t done)
{
	s->is_past[node] = s->is_load && node && (s->place.node || done == s->past);
	return s->is_past[node] ? 0 : fail_elsewhere(s, node);
}

/* 1: they are in that of an earlier step. They fail, and come with a later one: until then, this rank meets again. */
static int compare_word(const struct star *s, uint32_t node, const struct star_word *own,
			const struct meet_word *theirs)
{
	const struct star_word *word = theirs->data;

	if (!star_has_sent(theirs) || memcmp(word->plan, own->plan, sizeof(own->plan)) != 0)
		return train_fail(-EPROTOTYPE,
				  "node %u has another plan than node %u; start all nodes with the "
				  "same model and options, on new jobs",
				  node, s->place.node);
	if (memcmp(word->what, own->what, sizeof(own->what)) != 0)
		return fail_elsewhere(s, node);
	if (word->step > own->step)
		return train_fail(-EINVAL,
				  "rank %u of node %u is in the %s of step %" PRIu64
				  ", and this rank in that of step %" PRIu64
				  "; all ranks of all nodes call it after the same step",
				  s->place.line, node, s->what, word->step, own->step);
	return word->step < own->step;
}

static int compare_words(struct star *s, const struct star_word *own, const struct meet_word *words)
{
	int meets_again = 0;

	for (uint32_t node = 0; node < s->place.n_nodes; node++) {
		uint64_t done;
		int r;

		s->is_past[node] = false;
		if (link_has_sent(&words[node], own->plan, &done))
			r = compare_link(s, node, done);
		else
			r = compare_word(s, node, own, &words[node]);
		if (r < 0)
			return r;
		meets_again |= r;
	}
	return meets_again;
}

static int tell_words(struct star *s, const struct weightd_plan *plan)
{
	struct meet_word words[WEIGHTD_NODES_MAX] = {0};
	struct star_word own = {.step = s->step};
	int r;

	(void)snprintf(own.what, sizeof(own.what), "%s", s->what);
	weightd_plan_hash(plan, own.plan);
	r = meet_tell(s->meet, &own, sizeof(own), LINK_WORD_MAX, meet_tick, s, words);
	if (r < 0)
		return r;
	r = compare_words(s, &own, words);
	meet_words_free(words, s->place.n_nodes);
	return r;
}

static int open_once(struct star *s, const struct weightd_plan *plan)
{
	struct sockaddr_storage address;
	int r = meet_open(&s->place, &s->meet);

	if (r == 0)
		r = meet_join(s->meet, meet_tick, s, &address);
	if (r == 0)
		r = tell_words(s, plan);
	if (r != 0)
		star_close(s);
	return r;
}

int star_open(struct star *s, const struct weightd_plan *plan)
{
	int r;

	s->waited_ms = s->met_ms;
	do
		r = open_once(s, plan);
	while (r > 0);
	s->met_ms = s->waited_ms;
	s->waited_ms = 0;
	return r;
}

void star_close(struct star *s)
{
	meet_close(s->meet);
	s->meet = NULL;
}

/* --- Bytes ----------------------------------------------------------------------------------------- */

static int fail_lost(const struct star *s, uint32_t node, const char *why)
{
	return train_fail(-EPIPE, "the connection to rank %u of node %u was lost in the %s: %s",
			  s->place.line, node, s->what, why);
}

static int wait_ready(struct star *s, uint32_t node, short events)
{
	struct pollfd fd = {.fd = meet_socket(s->meet, node), .events = events};
	int n = poll(&fd, 1, ENGINE_TICK_MS);

	if (n < 0 && errno != EINTR)
		return fail_lost(s, node, strerror(errno));
	if (n > 0)
		return 0;
	return tick_is_late(s, n < 0) ? fail_silent(s, node) : s->check(s->data, n < 0);
}

/* Bytes that one call moved; 0: none now. */
static ssize_t star_move(struct star *s, uint32_t node, void *data, uint64_t size, bool is_send)
{
	int fd = meet_socket(s->meet, node);
	ssize_t n = is_send ? send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT)
			    : recv(fd, data, size, MSG_DONTWAIT);

	if (n == 0)
		return fail_lost(s, node, "it closed the connection");
	if (n < 0 && errno != EAGAIN && errno != EINTR)
		return fail_lost(s, node, strerror(errno));
	return n < 0 ? 0 : n;
}

static int star_move_all(struct star *s, uint32_t node, uint8_t *data, uint64_t size, bool is_send)
{
	while (size) {
		ssize_t n = star_move(s, node, data, size, is_send);
		int r;

		if (n < 0)
			return (int)n;
		if (n > 0) {
			data += n;
			size -= (uint64_t)n;
			s->waited_ms = 0;
			s->met_ms = is_send ? s->met_ms : 0; /* the peer may be dead */
			continue;
		}
		r = wait_ready(s, node, is_send ? POLLOUT : POLLIN);
		if (r < 0)
			return r;
	}
	return 0;
}

int star_send(struct star *s, uint32_t node, const void *data, uint64_t size)
{
	return star_move_all(s, node, (uint8_t *)data, size, true);
}

int star_receive(struct star *s, uint32_t node, void *data, uint64_t size)
{
	return star_move_all(s, node, data, size, false);
}
