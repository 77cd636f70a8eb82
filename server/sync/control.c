#include "server/sync/control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/channel.h"
#include "server/base/log.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/event_pages.h"
#include "server/sync/net/log_fields.h"
#include "server/sync/operators.h"

#define CLIENTS_MAX 256
/* Reserved for root: without them, other users could lock the administrator out. */
#define CLIENTS_OF_ROOT 16
#define CLIENTS_OF_USER_MAX                                                                        \
	64 /* or one of them could keep all others out; root has no such limit */
#define QUEUE_MAX 8192 /* packets that a client has not read */
/* The same for a watching client: anybody may watch, and packets are copied. */
#define WATCHED_MAX 512
#define HISTORY_MAX 256
#define PAUSE_NS 100000000u
#define WAY_OUT "; wait for your turn with --queue"

struct packet {
	struct list link; /* client::queue */
	json_t *json;
};

struct client {
	struct list link; /* control::clients */
	struct control *control;
	struct source source;
	struct list queue; /* struct packet */
	unsigned n_queue;
	uid_t uid;
	bool is_operator;
	bool watches;
	char sync[SYNC_ID_SIZE]; /* the client waits for its end; "": for none */
	bool is_tied; /* and it ends with the client */
	bool waits_for_slow; /* and for slow members to have it */
	json_t *queued; /* the request, until others end; NULL: none */
	const struct beginning *queued_as;
	bool doomed;
};

/* The syncs that operators begin. */
struct beginning {
	const char *what;
	bool is_tied; /* to the client that waits for it */
	int (*fn)(struct agent *a, const json_t *request, char ret_sync[SYNC_ID_SIZE],
		  char why[WHY_SIZE]);
};

static void client_free(struct client *c)
{
	struct packet *p, *next;
	char why[WHY_SIZE];

	/* One that is decided stays. */
	if (c->is_tied && c->sync[0])
		(void)agent_cancel(c->control->options->agent, c->sync, why);
	list_for_each_safe(p, next, &c->queue, link) {
		list_remove(&p->link);
		json_decref(p->json);
		free(p);
	}
	json_decref(c->queued);
	loop_remove(&c->source);
	(void)fd_close(c->source.fd);
	list_remove(&c->link);
	c->control->n_clients--;
	free(c);
}

/* It is freed from the loop: whoever says this is in the middle of something. */
static void control_doom(struct client *c)
{
	c->doomed = true;
	(void)shutdown(c->source.fd, SHUT_RDWR);
}

static void control_flush(struct client *c)
{
	struct packet *p, *next;

	list_for_each_safe(p, next, &c->queue, link) {
		int r = json_packet_send(c->source.fd, p->json, NULL, 0);

		if (r == -EAGAIN)
			break;
		if (r < 0) {
			control_doom(c);
			return;
		}
		list_remove(&p->link);
		json_decref(p->json);
		free(p);
		c->n_queue--;
	}
	loop_modify(&c->source, c->n_queue > 0 ? EPOLLOUT : EPOLLIN);
}

/* Takes `json`. */
static void control_say(struct client *c, json_t *json)
{
	bool is_full = c->n_queue >= (c->watches ? WATCHED_MAX : QUEUE_MAX);
	struct packet *p = c->doomed || !json || is_full ? NULL : malloc(sizeof(*p));

	if (!p) {
		json_decref(json);
		control_doom(c);
		return;
	}
	p->json = json;
	list_append(&c->queue, &p->link);
	c->n_queue++;
	control_flush(c);
}

static void say_end(struct client *c)
{
	control_say(c, json_pack("{sb}", "end", 1));
}

static void control_refuse(struct client *c, const char *code, const char *why)
{
	control_say(c, json_pack("{sbssss}", "end", 1, "code", code, "error", why));
}

/* Takes `rows`. */
static void say_rows(struct client *c, json_t *rows)
{
	size_t i;
	json_t *row;

	if (!rows) {
		control_doom(c);
		return;
	}
	json_array_foreach(rows, i, row) control_say(c, json_incref(row));
	json_decref(rows);
	say_end(c);
}

static const char *code_of(int r)
{
	switch (r) {
	case -EBADMSG:
		return "request";
	case -ENOENT:
		return "unknown";
	case -EPERM:
		return "permission";
	case -EBUSY:
		return "busy";
	case -EALREADY:
		return "decided";
	default:
		return "failed";
	}
}

static bool may_operate(struct client *c)
{
	const char *group = c->control->options->operators;
	char why[WHY_SIZE];

	if (c->is_operator)
		return true;
	if (group)
		(void)snprintf(
			why, sizeof(why),
			"uid %u may look, not push or pull: only root, the agent's own user and members of the "
			"group '%s' may",
			c->uid, group);
	else
		(void)snprintf(
			why, sizeof(why),
			"uid %u may look, not push or pull: only root and the agent's own user may, and members "
			"of the group that sync.conf names by operators under [access]",
			c->uid);
	control_refuse(c, "permission", why);
	return false;
}

/* --- Requests ------------------------------------------------------------------------------------- */

static void answer_nodes(struct client *c, const json_t *request)
{
	(void)request;
	say_rows(c, c->control->options->nodes(c->control->options->userdata));
}

/* Those of one node, of which a row of the nodes has no room for all. */
static void answer_replicas(struct client *c, const json_t *request)
{
	const char *node;
	json_t *rows;

	if (field_string(request, "node", NODE_MAX, &node) < 0) {
		control_refuse(c, "request", "'node' names the node whose versions are asked for");
		return;
	}
	rows = c->control->options->replicas(c->control->options->userdata, node);
	if (rows)
		say_rows(c, rows);
	else
		control_refuse(c, "unknown", "there is no such node");
}

/* Keeps its turn, or has one from now on. */
static void wait_for_turn(struct client *c, const json_t *request, const struct beginning *b,
			  const char *why)
{
	if (!c->queued_as)
		control_say(c, json_pack("{ssss}", "event", "queued", "why", why));
	c->queued = json_incref((json_t *)request);
	c->queued_as = b;
}

static void control_begin(struct client *c, const json_t *request, const struct beginning *b)
{
	const char *buffer, *an = strchr("aeiou", *b->what) ? "an" : "a";
	char sync[SYNC_ID_SIZE], why[WHY_SIZE] = "";
	bool wait, queue, slow;
	int r;

	if (!may_operate(c))
		return;
	if (field_bool_or(request, "wait", true, &wait) < 0 ||
	    field_bool_or(request, "queue", false, &queue) < 0 ||
	    field_bool_or(request, "slow", true, &slow) < 0) {
		control_refuse(c, "request", "'wait', 'queue' and 'slow' are true or false");
		return;
	}
	r = b->fn(c->control->options->agent, request, sync, why);
	if (r == -EBUSY && queue) {
		wait_for_turn(c, request, b, why);
		return;
	}
	c->queued_as = NULL;
	if (r < 0) {
		char said[WHY_SIZE + sizeof(WAY_OUT)];

		(void)snprintf(said, sizeof(said), "%s%s", why, r == -EBUSY ? WAY_OUT : "");
		control_refuse(c, code_of(r), said);
		return;
	}
	buffer = json_string_value(json_object_get(request, "buffer"));
	log_fields_write(&(struct log_fields){LOG_FIELDS_ASKED, .sync = sync, .buffer = buffer,
					      .uid = c->uid},
			 "sync %s: %s %s of '%s' was asked for by uid %u", sync, an, b->what,
			 buffer, c->uid);
	if (wait)
		memcpy(c->sync, sync, sizeof(c->sync));
	c->is_tied = wait && b->is_tied;
	c->waits_for_slow = slow;
	control_say(c, wait ? json_pack("{ss}", "sync", sync)
			    : json_pack("{sssb}", "sync", sync, "end", 1));
}

/* Oldest first; whoever comes too late stays where he was. */
static void control_on_turn(struct timer *timer)
{
	struct control *control = container_of(timer, struct control, turn);
	struct client *c;

	list_for_each(c, &control->clients, link)
		if (c->queued && !c->doomed) {
			cleanup(json_freep) json_t *request = take_ptr(c->queued);

			control_begin(c, request, c->queued_as);
		}
}

static void answer_push(struct client *c, const json_t *request)
{
	static const struct beginning push = {"push", false, agent_push};

	control_begin(c, request, &push);
}

/* A request of its own: an agent that does not know it must not push instead. */
static void answer_plan(struct client *c, const json_t *request)
{
	static const struct beginning plan = {"plan", false, agent_plan};

	control_begin(c, request, &plan);
}

static void answer_average(struct client *c, const json_t *request)
{
	static const struct beginning average = {"average", false, agent_average};

	control_begin(c, request, &average);
}

static void answer_reshard(struct client *c, const json_t *request)
{
	static const struct beginning reshard = {"reshard", false, agent_reshard};

	control_begin(c, request, &reshard);
}

static void answer_pull(struct client *c, const json_t *request)
{
	static const struct beginning pull = {"pull", true, agent_pull};

	control_begin(c, request, &pull);
}

static void answer_cancel(struct client *c, const json_t *request)
{
	char why[WHY_SIZE] = "";
	const char *sync;
	int r;

	if (!may_operate(c))
		return;
	if (field_string(request, "sync", SYNC_ID_SIZE - 1, &sync) < 0) {
		control_refuse(c, "request", "'sync' names the sync to cancel, by its 16 digits");
		return;
	}
	r = agent_cancel(c->control->options->agent, sync, why);
	if (r < 0) {
		control_refuse(c, code_of(r), why);
		return;
	}
	log_fields_write(&(struct log_fields){LOG_FIELDS_CANCELLED, .sync = sync, .uid = c->uid},
			 "sync %s: cancelled by uid %u", sync, c->uid);
	say_end(c);
}

static void answer_status(struct client *c, const json_t *request)
{
	const char *sync;

	if (field_string_or_null(request, "sync", SYNC_ID_SIZE - 1, &sync) < 0)
		control_refuse(c, "request", "'sync' names a sync, by its 16 digits");
	else
		say_rows(c, agent_status(c->control->options->agent, sync));
}

static void answer_history(struct client *c, const json_t *request)
{
	uint64_t n;

	if (field_number_or(request, "n", HISTORY_MAX, HISTORY_MAX, &n) < 0)
		control_refuse(c, "request", "'n' is a number of syncs, 256 at most");
	else
		say_rows(c, agent_history(c->control->options->agent, (unsigned)n));
}

static void answer_metrics(struct client *c, const json_t *request)
{
	(void)request;
	say_rows(c, agent_metrics(c->control->options->agent));
}

static void answer_watch(struct client *c, const json_t *request)
{
	(void)request;
	c->watches = true;
	control_say(c, json_pack("{ss}", "event", "watching")); /* events from here on are sent */
}

static const struct {
	const char *op;
	void (*answer)(struct client *c, const json_t *request);
} requests[] = {
	{"nodes", answer_nodes},     {"heads", answer_replicas},  {"push", answer_push},
	{"plan", answer_plan},       {"cancel", answer_cancel},   {"status", answer_status},
	{"history", answer_history}, {"watch", answer_watch},     {"metrics", answer_metrics},
	{"average", answer_average}, {"reshard", answer_reshard}, {"pull", answer_pull},
};

static void control_answer(struct client *c, const json_t *request)
{
	char why[WHY_SIZE];
	const char *op;

	if (c->queued) {
		control_refuse(c, "request", "it waits for its turn, and asks for something else");
		return;
	}
	if (field_string(request, "op", 32, &op) < 0) {
		control_refuse(c, "request", "a request names what it wants by 'op'");
		return;
	}
	for (size_t i = 0; i < ARRAY_LEN(requests); i++)
		if (!strcmp(op, requests[i].op)) {
			requests[i].answer(c, request);
			return;
		}
	(void)snprintf(why, sizeof(why), "this agent knows no request '%s'", op);
	control_refuse(c, "request", why);
}

/* --- Clients --------------------------------------------------------------------------------------- */

/* One request a round; while it has not read the answer to one, no other is taken. */
static void control_on_client(struct source *source, uint32_t events)
{
	struct client *c = container_of(source, struct client, source);
	struct json_packet t;
	int r;

	if (!c->doomed && events & EPOLLOUT)
		control_flush(c);
	if (!c->doomed && c->n_queue == 0 && events & (EPOLLIN | EPOLLHUP)) {
		r = json_packet_receive_plain(source->fd, MSG_DONTWAIT, &t);
		if (r == 0) {
			control_answer(c, t.message);
			json_packet_deinit(&t);
		} else if (r != -EAGAIN) {
			c->doomed = true;
		}
	}
	if (c->doomed || events & (EPOLLHUP | EPOLLERR))
		client_free(c);
}

static bool has_too_many(const struct control *control, uid_t uid)
{
	const struct client *c;
	unsigned n = 0, n_others = 0; /* clients of this user; of all but root */

	list_for_each(c, &control->clients, link) {
		n += c->uid == uid;
		n_others += c->uid != 0;
	}
	return uid != 0 && (n >= CLIENTS_OF_USER_MAX || n_others >= CLIENTS_MAX - CLIENTS_OF_ROOT);
}

static void client_new(struct control *control, int fd)
{
	cleanup(freep) struct client *c = calloc(1, sizeof(*c));
	struct channel_peer peer;
	int r = c ? channel_peer(fd, &peer) : -ENOMEM;

	if (r == 0 && has_too_many(control, peer.uid)) {
		channel_peer_deinit(&peer);
		r = -EUSERS;
	}
	if (r == 0) {
		c->control = control;
		c->uid = peer.uid;
		c->is_operator = operators_have(control->options->operators_gid, &peer);
		channel_peer_deinit(&peer);
		list_init(&c->queue);
		r = loop_add(control->loop, &c->source, fd, EPOLLIN, control_on_client);
	}
	if (r < 0) {
		log_warning("a client of the control socket is turned away: %s", strerror(-r));
		(void)fd_close(fd);
		return;
	}
	list_append(&control->clients, &c->link);
	control->n_clients++;
	c = NULL;
}

static void control_on_connection(struct source *source, uint32_t events)
{
	struct control *c = container_of(source, struct control, listener);
	int fd = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	(void)events;
	if (fd >= 0 && c->n_clients < CLIENTS_MAX) {
		client_new(c, fd);
		return;
	}
	if (fd >= 0) {
		log_warning("a client of the control socket is turned away: there are %u",
			    c->n_clients);
		(void)fd_close(fd);
		return;
	}
	if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM)
		return; /* the client gave up */
	log_warning("no new clients of the control socket for the moment: %s", strerror(errno));
	loop_modify(source, 0);
	timer_start(c->loop, &c->pause, num_now_ns() + PAUSE_NS);
}

static void control_on_pause_over(struct timer *timer)
{
	loop_modify(&container_of(timer, struct control, pause)->listener, EPOLLIN);
}

/* --- The socket ------------------------------------------------------------------------------------ */

/* Anything but a socket is a file of somebody's. */
static bool is_in_the_way(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode);
}

/* Returns true if a process answers there: its socket must not be replaced. */
static bool is_alive(const struct sockaddr_un *at)
{
	cleanup(fd_closep) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK,
					   0);

	return fd >= 0 &&
	       (connect(fd, (const struct sockaddr *)at, sizeof(*at)) == 0 || errno == EAGAIN);
}

static int listen_at(const char *path, int *ret)
{
	cleanup(fd_closep) int fd = -1;
	struct sockaddr_un at;
	int r = channel_address(path, &at);

	if (r < 0)
		return r;
	if (is_in_the_way(path))
		return -ENOTSOCK;
	if (is_alive(&at))
		return -EADDRINUSE;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || (unlink(path) < 0 && errno != ENOENT) ||
	    bind(fd, (const struct sockaddr *)&at, sizeof(at)) < 0 || chmod(path, 0666) < 0 ||
	    listen(fd, CLIENTS_MAX) < 0)
		return -errno;
	*ret = take_fd(fd);
	return 0;
}

int control_init(struct control *c, struct loop *l, const struct control_options *options,
		 char why[WHY_SIZE])
{
	int fd = -1, r;

	*c = (struct control){.options = options, .loop = l, .listener.fd = -1};
	list_init(&c->clients);
	timer_init(&c->pause, control_on_pause_over);
	timer_init(&c->turn, control_on_turn);
	r = listen_at(options->path, &fd);
	if (r == 0)
		r = loop_add(l, &c->listener, fd, EPOLLIN, control_on_connection);
	if (r < 0) {
		(void)fd_close(fd);
		(void)snprintf(why, WHY_SIZE, "cannot listen on %s: %s%s", options->path,
			       strerror(-r),
			       r == -EADDRINUSE ? "; another weightd-sync answers there"
			       : r == -ENOTSOCK
				       ? "; remove what is there, or give another [node] socket"
				       : "");
	}
	return r;
}

void control_deinit(struct control *c)
{
	struct client *client, *next;

	list_for_each_safe(client, next, &c->clients, link)
		client_free(client);
	timer_stop(&c->pause);
	timer_stop(&c->turn);
	if (!c->listener.loop)
		return;
	loop_remove(&c->listener);
	c->listener.fd = fd_close(c->listener.fd);
	(void)unlink(c->options->path);
}

static bool is_kind(const json_t *event, const char *what)
{
	const char *kind = json_string_value(json_object_get(event, "event"));

	return kind && !strcmp(kind, what);
}

static bool is_end(const json_t *event)
{
	return is_kind(event, "end");
}

/* The sync is committed, and continues for slow members. */
static bool is_left(const json_t *event)
{
	return is_kind(event, "left");
}

/* A sync that ended makes room. So may one that only waits for slow members. */
static bool may_make_room(const json_t *event)
{
	static const char *const LAST[] = {"committed", "failed", "unknown"};
	const char *phase = json_string_value(json_object_get(event, "phase"));

	for (size_t i = 0; phase && i < ARRAY_LEN(LAST); i++)
		if (!strcmp(phase, LAST[i]))
			return true;
	return is_end(event);
}

static bool is_awaited(const struct client *c, const char *sync_or_null)
{
	return sync_or_null && !strcmp(c->sync, sync_or_null);
}

/* A packet of an event that was cut into several. */
static void tell_page(struct control *c, const json_t *event, const json_t *page)
{
	const char *sync = json_string_value(json_object_get(event, "sync"));
	const char *pull = json_string_value(json_object_get(event, "pull"));
	struct client *client;

	list_for_each(client, &c->clients, link) {
		bool waits = (is_awaited(client, sync) || is_awaited(client, pull)) &&
			     !(client->waits_for_slow && is_left(event));
		json_t *copy;

		if (client->doomed || (!waits && !client->watches))
			continue;
		copy = json_copy((json_t *)page); /* shallow: the end is this client's alone */
		if (waits && (is_end(page) || is_left(page)) && copy) {
			(void)json_object_set_new(copy, "end", json_true());
			client->sync[0] = '\0';
		}
		control_say(client, copy);
	}
}

void control_tell(struct control *c, const json_t *event)
{
	cleanup(json_freep) json_t *pages = list_empty(&c->clients) ? NULL
								    : event_pages_split(event);
	json_t *page;
	size_t i;

	if (may_make_room(event)) /* the agent is in the middle of it */
		timer_start(c->loop, &c->turn, num_now_ns());
	/* Without memory for pages, clients that wait for the end receive at least the event. */
	if (!pages)
		tell_page(c, event, event);
	json_array_foreach(pages, i, page) tell_page(c, event, page);
}
