#include "sim_link.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/sync/base/json_packet.h"
#include "server/sync/net/frame.h"
#include "server/sync/net/outbox.h"
#include "sim_jobs.h"

#define SILENCE (5 * SIM_SECOND)

void sim_links_init(struct sim *s)
{
	s->links = calloc((size_t)s->options.n_nodes * s->options.n_nodes, sizeof(*s->links));
	assert_non_null(s->links);
}

void sim_links_deinit(struct sim *s)
{
	free(s->links);
}

static struct sim_link *link_at(const struct sim *s, unsigned i, unsigned j)
{
	return &s->links[i < j ? (size_t)i * s->options.n_nodes + j
			       : (size_t)j * s->options.n_nodes + i];
}

static bool is_there(const struct sim_link *l)
{
	return l->state == LINK_UP || l->state == LINK_CUT_UP;
}

bool sim_is_cut(const struct sim *s, unsigned i, unsigned j)
{
	return link_at(s, i, j)->state >= LINK_CUT_UP;
}

/* --- Sending ----------------------------------------------------------------------------------- */

unsigned sim_link_to(const struct sim_node *n, unsigned peer)
{
	return peer < n->index ? peer : peer + 1;
}

static unsigned peer_number(const struct sim_node *n, unsigned index)
{
	return index < n->index ? index : index - 1;
}

static uint64_t arrival(struct sim *s, unsigned from, unsigned to)
{
	uint64_t *last = &link_at(s, from, to)->last_ns[from < to];
	uint64_t at = s->now_ns + sim_jitter(s, 2 * MS);

	*last = at > *last ? at : *last + 1;
	return *last;
}

static void encode(const json_t *message, struct event *e)
{
	struct outbox out;
	const void *data;
	size_t size;

	outbox_init(&out);
	assert_int_equal(outbox_put(&out, message, false), 0);
	assert_int_equal(outbox_next(&out, &data, &size), 1);
	e->frame = malloc(size);
	assert_non_null(e->frame);
	memcpy(e->frame, data, size);
	e->size = size;
	outbox_deinit(&out);
}

static json_t *decode(const struct event *e)
{
	struct frame_decoder d;
	struct frame frame;
	const char *why;
	json_t *message;
	size_t room = 0;
	void *at;

	frame_decoder_init(&d);
	for (size_t done = 0; done < e->size; done += room) {
		assert_int_equal(frame_decoder_next(&d, &frame, &why), 0);
		assert_int_equal(frame_decoder_room(&d, &at, &room), 0);
		room = room < e->size - done ? room : e->size - done;
		memcpy(at, (const uint8_t *)e->frame + done, room);
		frame_decoder_put(&d, room);
	}
	assert_int_equal(frame_decoder_next(&d, &frame, &why), 1);
	message = json_loadb((const char *)frame.data, frame.size, JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(message);
	frame_decoder_deinit(&d);
	return message;
}

int sim_link_send(void *userdata, unsigned peer, const json_t *message)
{
	struct sim_node *n = userdata;
	struct sim *s = n->sim;
	struct event e = {.kind = EVENT_MESSAGE, .from = n->index, .to = sim_link_to(n, peer)};
	const struct sim_link *l = link_at(s, e.from, e.to);

	if (n->is_dying)
		return 0;
	if (!is_there(l))
		return -ENOTCONN;
	e.at_ns = arrival(s, e.from, e.to);
	e.id = l->generation;
	if (s->options.as_frames)
		encode(message, &e);
	else
		e.json = json_incref((json_t *)message);
	s->n_frame_bytes += e.size;
	sim_queue_push(&s->queue, e);
	return 0;
}

int sim_link_send_blob(void *userdata, unsigned peer, const uint8_t hash[32], int fd, uint64_t size)
{
	struct sim_node *n = userdata;
	struct sim *s = n->sim;
	struct event e = {.kind = EVENT_BLOB,
			  .from = n->index,
			  .to = sim_link_to(n, peer),
			  .n_fds = 1,
			  .size = size};

	if (n->is_dying)
		return 0;
	e.at_ns = arrival(s, e.from, e.to);
	e.id = link_at(s, e.from, e.to)->generation;
	e.fds[0] = sim_dup_fd(fd);
	memcpy(e.hash, hash, 32);
	sim_queue_push(&s->queue, e);
	return 0;
}

static void hear(struct sim *s, const struct event *e)
{
	struct sim_node *n = &s->nodes[e->to];
	cleanup(json_freep) json_t *message = e->frame ? decode(e) : json_incref(e->json);

	if (s->on_message && !s->on_message(s, e->from, e->to, message))
		return;
	if (n->agent)
		agent_on_message(n->agent, peer_number(n, e->from), message);
}

/* The same as in connection.c. */
static void hear_blob(struct sim *s, struct event *e)
{
	struct sim_node *n = &s->nodes[e->to];
	unsigned peer = peer_number(n, e->from);
	uint64_t limit;

	if (s->on_blob)
		s->on_blob(s, e);
	limit = agent_blob_limit(n->agent, peer, e->hash);
	if (limit >= e->size)
		agent_on_blob(n->agent, peer, e->hash, e->fds[0], e->size);
	else if (limit)
		sim_link_drop(s, e->from, e->to);
}

void sim_link_on_message(struct sim *s, struct event *e)
{
	const struct sim_link *l = link_at(s, e->from, e->to);
	struct sim_node *n = &s->nodes[e->to];

	if (e->id != l->generation || l->state != LINK_UP || !n->agent ||
	    s->nodes[e->from].is_silent)
		return;
	s->n_messages++;
	if (e->kind == EVENT_MESSAGE)
		hear(s, e);
	else
		hear_blob(s, e);
	sim_settle_death(n);
}

/* --- End and reconnection ---------------------------------------------------------------------- */

static void drop_later(struct sim *s, unsigned i, unsigned j, uint64_t delay)
{
	sim_queue_push(&s->queue, (struct event){.at_ns = s->now_ns + delay,
						 .kind = EVENT_DOWN,
						 .from = i,
						 .to = j,
						 .id = link_at(s, i, j)->generation});
}

static void dial_later(struct sim *s, unsigned i, unsigned j, uint64_t delay)
{
	sim_queue_push(
		&s->queue,
		(struct event){.at_ns = s->now_ns + delay, .kind = EVENT_DIAL, .from = i, .to = j});
}

void sim_link_drop(struct sim *s, unsigned i, unsigned j)
{
	drop_later(s, i, j, 1);
}

void sim_link_dial_all(struct sim *s, unsigned node)
{
	for (unsigned i = 0; i < s->options.n_nodes; i++)
		if (i != node)
			dial_later(s, node, i, sim_jitter(s, 200 * MS));
}

void sim_link_drop_all(struct sim *s, unsigned node)
{
	for (unsigned i = 0; i < s->options.n_nodes; i++)
		if (i != node && is_there(link_at(s, node, i)))
			sim_link_drop(s, node, i);
}

void sim_cut(struct sim *s, unsigned i, unsigned j, bool cut)
{
	struct sim_link *l = link_at(s, i, j);

	if (cut && l->state == LINK_UP) {
		l->state = LINK_CUT_UP;
		drop_later(s, i, j, SILENCE);
	} else if (cut && l->state == LINK_DOWN) {
		l->state = LINK_CUT;
	} else if (!cut && l->state == LINK_CUT_UP) {
		l->state = LINK_UP;
	} else if (!cut && l->state == LINK_CUT) {
		l->state = LINK_DOWN;
		dial_later(s, i, j, sim_jitter(s, 500 * MS));
	}
}

static void tell_down(struct sim *s, unsigned node, unsigned of, const char *why)
{
	struct sim_node *n = &s->nodes[node];

	if (!n->agent)
		return;
	agent_on_peer_down(n->agent, peer_number(n, of), why);
	sim_settle_death(n);
}

void sim_link_on_down(struct sim *s, const struct event *e)
{
	struct sim_link *l = link_at(s, e->from, e->to);
	const char *why = l->state == LINK_CUT_UP ? "did not answer for 5 s" : "hung up";

	if (e->id != l->generation || !is_there(l))
		return;
	l->generation++;
	l->state = l->state == LINK_CUT_UP ? LINK_CUT : LINK_DOWN;
	tell_down(s, e->from, e->to, why);
	tell_down(s, e->to, e->from, why);
	if (l->state == LINK_DOWN)
		dial_later(s, e->from, e->to, 200 * MS);
}

void sim_link_on_dial(struct sim *s, const struct event *e)
{
	struct sim_link *l = link_at(s, e->from, e->to);
	struct sim_node *x = &s->nodes[e->from], *y = &s->nodes[e->to];

	if (l->state != LINK_DOWN || !x->agent || !y->agent)
		return;
	l->state = LINK_UP;
	l->generation++;
	agent_on_peer_up(x->agent, peer_number(x, y->index));
	sim_settle_death(x);
	if (!y->agent)
		return;
	agent_on_peer_up(y->agent, peer_number(y, x->index));
	sim_settle_death(y);
}
