/*
 * Meeting: a star with node 0 in its middle
 *
 * A node begins with a struct join. Node 0 answers with frames: which node is missing, whenever that changes, then that none
 * is. Words follow, as frames and their bytes: from each node to node 0, and from there to each other one.
 */
#include "libclient/train/nodes/meet.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "libclient/train/nodes/endpoint.h"
#include "libclient/train/nodes/sockets.h"
#include "libclient/train/plan/sentence.h"

#define MS ((uint64_t)1000000)
#define MAGIC                                                                                      \
	0x317465656d746477ull /* "wdtmeet1": other byte orders and versions have another one */
/* Connections that have not said yet what they are: each must within this time, and the oldest leaves for a new one. */
#define GUESTS_MAX 64
#define GUEST_NS (5000 * MS)

struct join {
	uint64_t magic;
	uint32_t line, node, n_nodes, zero;
};
static_assert(sizeof(struct join) == 24, "it goes between machines");

enum frame_kind {
	FRAME_MISSING, /* node */
	FRAME_COMPLETE,
	FRAME_REFUSED, /* line, n_nodes: those of node 0 */
	FRAME_REPLACED,
	FRAME_WORD, /* node, size */
};

struct frame {
	uint32_t kind, node;
	uint32_t line, n_nodes;
	uint32_t size, zero;
};
static_assert(sizeof(struct frame) == 24, "it goes between machines");

struct guest {
	int fd;
	uint64_t since_ns;
	size_t n_read;
	struct join join;
};

struct meet {
	struct meet_place place;
	char *address; /* of place */
	uint32_t missing;
	int listener; /* of node 0, while nodes join */
	struct guest guests[GUESTS_MAX]; /* the oldest first */
	uint32_t n_guests;
	int fds[WEIGHTD_NODES_MAX]; /* by node; -1: none */
};

int meet_open(const struct meet_place *place, struct meet **ret)
{
	struct meet *m = calloc(1, sizeof(*m));

	assert(place->n_nodes > 1 && place->n_nodes <= WEIGHTD_NODES_MAX &&
	       place->node < place->n_nodes);
	if (!m)
		return train_out_of_memory();
	m->place = *place;
	m->missing = place->node == 0;
	m->listener = -1;
	for (uint32_t i = 0; i < WEIGHTD_NODES_MAX; i++)
		m->fds[i] = -1;
	m->address = strdup(place->address);
	if (!m->address) {
		meet_close(m);
		return train_out_of_memory();
	}
	m->place.address = m->address;
	*ret = m;
	return 0;
}

static void stop_listening(struct meet *m)
{
	m->listener = fd_close(m->listener);
	for (uint32_t i = 0; i < m->n_guests; i++)
		(void)fd_close(m->guests[i].fd);
	m->n_guests = 0;
}

void meet_close(struct meet *m)
{
	if (!m)
		return;
	stop_listening(m);
	for (uint32_t i = 0; i < WEIGHTD_NODES_MAX; i++)
		(void)fd_close(m->fds[i]);
	free(m->address);
	free(m);
}

uint32_t meet_missing(const struct meet *m)
{
	return m->missing;
}

int meet_socket(const struct meet *m, uint32_t node)
{
	return m->fds[node];
}

static int fail_lost(const struct meet *m, uint32_t node)
{
	return train_fail(-EPIPE, "rank %u of node %u left while the nodes met at %s, port %u",
			  m->place.line, node, m->place.address, m->place.port);
}

/* Frames before the first word fit into the buffer of a socket. */
static bool send_frame(int fd, const struct frame *f)
{
	return send(fd, f, sizeof(*f), MSG_NOSIGNAL) == sizeof(*f);
}

/* --- Node 0: nodes join ---------------------------------------------------------------------------- */

/* Nodes show in their status which one they all wait for. */
static void find_missing(struct meet *m)
{
	struct frame f = {.kind = FRAME_MISSING};
	uint32_t before = m->missing;

	m->missing = 1;
	while (m->missing < m->place.n_nodes && m->fds[m->missing] >= 0)
		m->missing++;
	f.node = m->missing;
	for (uint32_t i = 1; m->missing != before && i < m->place.n_nodes; i++)
		if (m->fds[i] >= 0)
			(void)send_frame(m->fds[i], &f); /* found lost where it is read from */
}

/* A guest that has said what it is gets a place, or an answer. */
static void admit(struct meet *m, int fd, const struct join *j)
{
	const struct frame missing = {.kind = FRAME_MISSING, .node = m->missing},
			   replaced = {.kind = FRAME_REPLACED},
			   refused = {.kind = FRAME_REFUSED,
				      .line = m->place.line,
				      .n_nodes = m->place.n_nodes};

	if (j->magic != MAGIC || j->node == 0 || j->zero) {
		(void)fd_close(fd);
		return;
	}
	if (j->line != m->place.line || j->n_nodes != m->place.n_nodes || j->node >= j->n_nodes) {
		(void)send_frame(fd, &refused); /* otherwise it tries again */
		(void)fd_close(fd);
		return;
	}
	if (m->fds[j->node] >= 0)
		(void)send_frame(m->fds[j->node],
				 &replaced); /* nothing reads it if that one is dead */
	(void)fd_close(m->fds[j->node]);
	m->fds[j->node] = fd;
	(void)send_frame(fd, &missing); /* found lost where it is read from */
	find_missing(m);
}

static void forget_guest(struct meet *m, uint32_t i)
{
	memmove(&m->guests[i], &m->guests[i + 1], (--m->n_guests - i) * sizeof(*m->guests));
}

/* False: it left, or has a place now. */
static bool hear_guest(struct meet *m, struct guest *g)
{
	ssize_t n = recv(g->fd, (char *)&g->join + g->n_read, sizeof(g->join) - g->n_read, 0);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0) {
		(void)fd_close(g->fd);
		return false;
	}
	g->n_read += (size_t)n;
	if (g->n_read < sizeof(g->join))
		return true;
	admit(m, g->fd, &g->join);
	return false;
}

static int accept_guests(struct meet *m)
{
	for (uint32_t i = 0; i < GUESTS_MAX; i++) {
		int fd = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), r;

		if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
			return train_fail(-errno, "cannot accept connections of nodes: %m%s",
					  errno == ENOMEM ? "" : "; raise the limit (ulimit -n)");
		if (fd < 0)
			return 0; /* none, or it left already */
		r = sockets_add(fd);
		if (r < 0) {
			(void)fd_close(fd);
			return r;
		}
		if (m->n_guests == GUESTS_MAX) {
			(void)fd_close(m->guests[0].fd);
			forget_guest(m, 0);
		}
		m->guests[m->n_guests++] = (struct guest){.fd = fd, .since_ns = num_now_ns()};
	}
	return 0;
}

/* Those that are ready, by the poll for as many as there were; later ones are behind them. */
static void hear_guests(struct meet *m, const struct pollfd *wait)
{
	uint64_t now = num_now_ns();
	uint32_t n = m->n_guests, i = 0;

	for (uint32_t at = 0; at < n; at++) {
		struct guest *g = &m->guests[i];

		if (wait[at].revents && !hear_guest(m, g)) {
			forget_guest(m, i);
		} else if (now - g->since_ns > GUEST_NS) {
			(void)fd_close(g->fd);
			forget_guest(m, i);
		} else {
			i++;
		}
	}
}

/* A node that has joined is silent until all have: one that is not has left. */
static void drop_lost(struct meet *m, const struct pollfd *wait)
{
	for (uint32_t i = 1; i < m->place.n_nodes; i++)
		if (wait[i].revents && wait[i].fd == m->fds[i])
			m->fds[i] = fd_close(m->fds[i]);
	find_missing(m);
}

static int join_some(struct meet *m, struct ticks *t)
{
	/* By node, with the listener for node 0; then the guests. */
	struct pollfd wait[WEIGHTD_NODES_MAX + GUESTS_MAX];
	uint32_t n = m->place.n_nodes;
	int r;

	for (uint32_t i = 0; i < n; i++)
		wait[i] = (struct pollfd){.fd = i ? m->fds[i] : m->listener, .events = POLLIN};
	for (uint32_t i = 0; i < m->n_guests; i++)
		wait[n + i] = (struct pollfd){.fd = m->guests[i].fd, .events = POLLIN};
	r = ticks_poll(t, wait, n + m->n_guests);
	if (r != 0)
		return r;
	drop_lost(m, wait);
	hear_guests(m, wait + n);
	return wait[0].revents ? accept_guests(m) : 0;
}

static int join_as_first(struct meet *m, struct ticks *t)
{
	const struct frame complete = {.kind = FRAME_COMPLETE};
	int r = m->listener < 0 ? endpoint_listen(m->place.address, m->place.port, t, &m->listener)
				: 0;

	while (r == 0 && m->missing < m->place.n_nodes)
		r = join_some(m, t);
	if (r != 0)
		return r;
	stop_listening(m);
	for (uint32_t i = 1; i < m->place.n_nodes; i++)
		if (!send_frame(m->fds[i], &complete))
			return fail_lost(m, i);
	return 0;
}

/* --- Other nodes join ------------------------------------------------------------------------------ */

/* Waits for all bytes. 0, -EPIPE without a sentence, or what the check returned. */
static int receive_all(int fd, void *ret, size_t size, struct ticks *t)
{
	struct pollfd wait = {.fd = fd, .events = POLLIN};

	for (size_t done = 0; done < size;) {
		ssize_t n = recv(fd, (char *)ret + done, size - done, 0);
		int r = 0;

		if (n > 0)
			done += (size_t)n;
		else if (n < 0 && (errno == EAGAIN || errno == EINTR))
			r = ticks_poll(t, &wait, 1);
		else
			return -EPIPE;
		if (r != 0)
			return r;
	}
	return 0;
}

static int fail_refused(const struct meet *m, const struct frame *f)
{
	if (f->n_nodes != m->place.n_nodes)
		return train_fail(-EPROTOTYPE,
				  "node 0 at %s, port %u, has %u nodes, and node %u has %u: start "
				  "all with the same number",
				  m->place.address, m->place.port, f->n_nodes, m->place.node,
				  m->place.n_nodes);
	return train_fail(-EPROTOTYPE,
			  "at %s, port %u, is rank %u of node 0, and rank %u of node %u looks for "
			  "its own: start all with the same port (MASTER_PORT)",
			  m->place.address, m->place.port, f->line, m->place.line, m->place.node);
}

/* Returns 1 once all have joined; -EPIPE without a sentence: it must connect again. */
static int hear_frame(struct meet *m, struct ticks *t)
{
	struct frame f;
	int r = receive_all(m->fds[0], &f, sizeof(f), t);

	if (r != 0)
		return r;
	switch (f.kind) {
	case FRAME_MISSING:
		m->missing = f.node < m->place.n_nodes ? f.node : m->place.n_nodes;
		return 0;
	case FRAME_COMPLETE:
		m->missing = m->place.n_nodes;
		return 1;
	case FRAME_REFUSED:
		return fail_refused(m, &f);
	case FRAME_REPLACED:
		return train_fail(-EEXIST,
				  "another process has joined at %s, port %u, as rank %u of node %u, "
				  "too: start each node with a number of its own",
				  m->place.address, m->place.port, m->place.line, m->place.node);
	}
	return -EPIPE;
}

static int join_once(struct meet *m, struct ticks *t)
{
	const struct join j = {.magic = MAGIC,
			       .line = m->place.line,
			       .node = m->place.node,
			       .n_nodes = m->place.n_nodes};
	int r = endpoint_connect(m->place.address, m->place.port, t, &m->fds[0]);

	if (r != 0)
		return r;
	if (send(m->fds[0], &j, sizeof(j), MSG_NOSIGNAL) != sizeof(j))
		return -EPIPE;
	do
		r = hear_frame(m, t);
	while (r == 0);
	return r;
}

static int join_first(struct meet *m, struct ticks *t)
{
	int r;

	while ((r = join_once(m, t)) == -EPIPE) {
		m->fds[0] = fd_close(m->fds[0]);
		r = ticks_pass(t);
		if (r != 0)
			return r;
	}
	return r == 1 ? 0 : r;
}

int meet_join(struct meet *m, engine_check *check, void *data, struct sockaddr_storage *ret_address)
{
	struct ticks t;
	int r;

	ticks_init(&t, check, data);
	r = m->place.node == 0 ? join_as_first(m, &t) : join_first(m, &t);
	return r == 0 ? endpoint_own(m->fds[m->place.node == 0], ret_address) : r;
}

/* --- Words ----------------------------------------------------------------------------------------- */

/* A word on its way: the frame, and then the bytes. */
struct moving {
	uint32_t peer; /* at the other end of the connection */
	uint32_t node; /* that has said it */
	struct frame frame;
	struct meet_word word; /* read: made as soon as the frame is there */
	uint32_t max; /* read: its size */
	uint64_t done; /* of both */
};

static bool moving_is_done(const struct moving *w)
{
	return w->done >= sizeof(w->frame) && w->done == sizeof(w->frame) + w->word.size;
}

static int moving_check_frame(const struct meet *m, struct moving *w)
{
	const struct frame *f = &w->frame;

	if (f->kind != FRAME_WORD || f->node != w->node || f->size > w->max)
		return train_fail(-EPIPE, "rank %u of node %u sent what is no word of node %u",
				  m->place.line, w->peer, w->node);
	w->word.size = f->size;
	w->word.data = malloc(f->size ? f->size : 1);
	return w->word.data ? 0 : train_out_of_memory();
}

/* Moves what can be moved at once. */
static int moving_move(const struct meet *m, struct moving *w, bool is_sent)
{
	while (!moving_is_done(w)) {
		bool in_frame = w->done < sizeof(w->frame);
		char *at = in_frame ? (char *)&w->frame + w->done
				    : (char *)w->word.data + (w->done - sizeof(w->frame));
		size_t left = in_frame ? sizeof(w->frame) - w->done
				       : w->word.size - (w->done - sizeof(w->frame));
		ssize_t n = is_sent ? send(m->fds[w->peer], at, left,
					   MSG_NOSIGNAL | (in_frame && w->word.size ? MSG_MORE : 0))
				    : recv(m->fds[w->peer], at, left, 0);
		int r = 0;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return 0;
		if (n <= 0)
			return fail_lost(m, w->peer);
		w->done += (uint64_t)n;
		if (!is_sent && in_frame && w->done == sizeof(w->frame))
			r = moving_check_frame(m, w);
		if (r != 0)
			return r;
	}
	return 0;
}

/* Moves words, each on a connection of its own, until all are there. */
static int move_all(const struct meet *m, struct moving *words, uint32_t n, bool is_sent,
		    struct ticks *t)
{
	struct pollfd wait[WEIGHTD_NODES_MAX];

	for (;;) {
		uint32_t n_left = 0;
		int r;

		for (uint32_t i = 0; i < n; i++) {
			r = moving_move(m, &words[i], is_sent);
			if (r != 0)
				return r;
			if (!moving_is_done(&words[i]))
				wait[n_left++] = (struct pollfd){.fd = m->fds[words[i].peer],
								 .events = is_sent ? POLLOUT
										   : POLLIN};
		}
		if (n_left == 0)
			return 0;
		r = ticks_poll(t, wait, n_left);
		if (r != 0)
			return r;
	}
}

static struct moving moving_to(uint32_t peer, uint32_t node, const struct meet_word *word)
{
	return (struct moving){
		.peer = peer,
		.node = node,
		.frame = {.kind = FRAME_WORD, .node = node, .size = word->size},
		.word = *word,
	};
}

/* Receives the words of `nodes`, each from one of `peers`. */
static int receive_words(const struct meet *m, struct moving *words, uint32_t n, struct ticks *t,
			 struct meet_word *ret)
{
	int r = move_all(m, words, n, false, t);

	for (uint32_t i = 0; i < n; i++)
		if (r == 0)
			ret[words[i].node] = words[i].word;
		else
			free(words[i].word.data);
	return r;
}

/* From each other node, and then, one word after the other, to all that did not say it. */
static int tell_as_first(const struct meet *m, uint32_t max, struct ticks *t, struct meet_word *all)
{
	struct moving words[WEIGHTD_NODES_MAX];
	uint32_t n = m->place.n_nodes;
	int r;

	for (uint32_t i = 1; i < n; i++)
		words[i - 1] = (struct moving){.peer = i, .node = i, .max = max};
	r = receive_words(m, words, n - 1, t, all);
	for (uint32_t i = 0; r == 0 && i < n; i++) {
		uint32_t n_to = 0;

		for (uint32_t j = 1; j < n; j++)
			if (j != i)
				words[n_to++] = moving_to(j, i, &all[i]);
		r = move_all(m, words, n_to, true, t);
	}
	return r;
}

static int tell_first(const struct meet *m, uint32_t max, struct ticks *t, struct meet_word *all)
{
	uint32_t own = m->place.node;
	struct moving word = moving_to(0, own, &all[own]);
	int r = move_all(m, &word, 1, true, t);

	for (uint32_t i = 0; r == 0 && i < m->place.n_nodes; i++) {
		word = (struct moving){.peer = 0, .node = i, .max = max};
		if (i != own)
			r = receive_words(m, &word, 1, t, all);
	}
	return r;
}

void meet_words_free(struct meet_word *words, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		free(words[i].data);
}

int meet_tell(struct meet *m, const void *word, uint32_t size, uint32_t max, engine_check *check,
	      void *data, struct meet_word *ret)
{
	struct meet_word all[WEIGHTD_NODES_MAX] = {};
	struct meet_word *own = &all[m->place.node];
	struct ticks t;
	int r;

	assert(size <= max);
	own->size = size;
	own->data = malloc(size ? size : 1);
	if (!own->data)
		return train_out_of_memory();
	if (size)
		memcpy(own->data, word, size);
	ticks_init(&t, check, data);
	r = m->place.node == 0 ? tell_as_first(m, max, &t, all) : tell_first(m, max, &t, all);
	if (r != 0) {
		meet_words_free(all, m->place.n_nodes);
		return r;
	}
	memcpy(ret, all, m->place.n_nodes * sizeof(*all));
	return 0;
}

int meet_watch(const struct meet *m)
{
	struct pollfd wait[WEIGHTD_NODES_MAX];

	for (uint32_t i = 0; i < m->place.n_nodes; i++)
		wait[i] = (struct pollfd){.fd = m->fds[i], .events = POLLRDHUP};
	if (poll(wait, m->place.n_nodes, 0) <= 0)
		return 0; /* the next look is soon */
	for (uint32_t i = 0; i < m->place.n_nodes; i++)
		if (wait[i].revents)
			return fail_lost(m, i);
	return 0;
}
