/* The requests of each attack. All of them are within the rights of an unprivileged user. */
#include "tests/bench/tenants/attacks.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "tests/bench/stopwatch.h"
#include "tests/bench/tenants/hostile_layout.h"
#include "tests/bench/tenants/stuck_socket.h"

#define MIB ((uint64_t)1 << 20)
#define STRAY_FDS 200
#define HELD_FDS 1 /* that a reader of `holding` keeps open: 4,000 may keep one */

static const char *own_name(const struct member *m, char (*buffer)[WIRE_NAME_SIZE])
{
	(void)snprintf(*buffer, sizeof(*buffer), "attacker/%" PRIu32 "-%" PRIu64, m->index,
		       m->serial);
	return *buffer;
}

static void create_put(struct wire_create *create, const char *name)
{
	(void)CODEC_PUT_STRING(create->name, name);
	create->cookie = (uint64_t)random() << 32 | (uint64_t)random() | 1;
	create->keep = 1;
}

static void send_create(struct member *m)
{
	struct wire_request request = {0};
	char name[WIRE_NAME_SIZE];

	create_put(&request.create, own_name(m, &name));
	member_send(m, WIRE_CREATE, &request, &m->squad->crowd->layout_fd, 1);
}

static void send_id(struct member *m, enum wire_op op)
{
	struct wire_request request = {0};

	request.detach.id = m->id;
	m->id = 0;
	member_send(m, op, &request, NULL, 0);
}

static void note_writer(struct member *m, const struct wire_reply *reply,
			struct channel_packet *packet)
{
	(void)packet;
	if (reply->header.op == (WIRE_CREATE | WIRE_REPLY))
		m->id = reply->create.writer;
}

/* --- Many buffers ------------------------------------------------------------------------------- */

static void prepare_small(struct crowd *c)
{
	c->layout_fd = hostile_layout_new(0, 1, false);
}

/* Publishes buffers of one byte, until the server refuses. */
static void prepare_filled(struct crowd *c)
{
	int fd = crowd_connect(c);
	struct wire_reply reply;
	char name[WIRE_NAME_SIZE];

	prepare_small(c);
	for (uint32_t i = 0; i < c->n_buffers; i++) {
		struct wire_request request = {0}, publish = {0};

		(void)snprintf(name, sizeof(name), "attacker/filled-%" PRIu32, i);
		create_put(&request.create, name);
		if (crowd_ask(fd, WIRE_CREATE, &request, &c->layout_fd, 1, &reply) < 0)
			break;
		publish.publish.writer = reply.create.writer;
		if (crowd_ask(fd, WIRE_PUBLISH, &publish, NULL, 0, &reply) < 0)
			break;
	}
	(void)close(fd);
}

static void send_list(struct member *m, enum wire_list_kind kind, const char *name, uint64_t after)
{
	struct wire_request request = {0};

	request.list.kind = kind;
	request.list.after = after;
	(void)CODEC_PUT_STRING(request.list.name, name);
	member_send(m, WIRE_LIST, &request, NULL, 0);
}

/* Every other request passes over all records and returns none. */
static void act_list_slots(struct member *m)
{
	send_list(m, WIRE_LIST_SLOTS, "", m->serial % 2 ? UINT64_MAX / 2 : 0);
}

static void act_lists(struct member *m)
{
	static const enum wire_list_kind kinds[] = {WIRE_LIST_BUFFERS, WIRE_LIST_USERS,
						    WIRE_LIST_JOBS};

	send_list(m, kinds[m->serial % 3], m->serial % 3 ? "" : "attacker/none", 0);
}

static void act_stat(struct member *m)
{
	struct wire_request request = {0};

	member_send(m, WIRE_STAT, &request, NULL, 0);
}

/* Creates and publishes, in names of its own, whatever the server answers. */
static void act_one_byte(struct member *m)
{
	struct wire_request request = {0};

	if (!m->id) {
		send_create(m);
		return;
	}
	request.publish.writer = m->id;
	m->id = 0;
	member_send(m, WIRE_PUBLISH, &request, NULL, 0);
}

/* --- Creates ------------------------------------------------------------------------------------ */

static void prepare_big_layouts(struct crowd *c)
{
	c->layout_fd = hostile_layout_new(256 * MIB, 1, true);
}

static void prepare_creates(struct crowd *c)
{
	c->layout_fd = hostile_layout_new(8 * MIB, 1, true);
}

static void prepare_big_slots(struct crowd *c)
{
	c->layout_fd = hostile_layout_new(0, 64 * MIB, false);
}

static void act_create(struct member *m)
{
	if (m->id)
		send_id(m, WIRE_ABORT);
	else
		send_create(m);
}

/* --- Connections -------------------------------------------------------------------------------- */

/* Every other connection leaves with its hello unread by the server. */
static void act_connects(struct member *m)
{
	if (m->step++ == 0 && m->serial % 2 == 0)
		act_stat(m);
	else
		member_leave(m);
}

static void send_attach(struct member *m, uint64_t version)
{
	struct wire_request request = {0};

	request.attach.version = version;
	(void)CODEC_PUT_STRING(request.attach.name, m->squad->crowd->target);
	member_send(m, WIRE_ATTACH, &request, NULL, 0);
}

static void act_silent(struct member *m)
{
	if (m->serial % 2)
		send_attach(m, 0);
	else
		send_list(m, WIRE_LIST_BUFFERS, "", 0);
}

static void act_stuck(struct member *m)
{
	struct wire_header header = {.size = sizeof(header), .op = WIRE_PING, .serial = 1};
	int fd = stuck_socket_new();

	if (!member_send_raw(m, &header, sizeof(header), &fd, fd >= 0))
		stuck_socket_free(fd);
	stuck_socket_close(fd); /* the server's is the last one, unless it is closed by now */
}

static void send_stray_fds(struct member *m)
{
	static int null_fd = -1; /* both threads may open it */
	int fds[STRAY_FDS];

	if (null_fd < 0)
		null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	for (int i = 0; i < STRAY_FDS; i++)
		fds[i] = null_fd;
	(void)member_send_raw(m, "", 1, fds, STRAY_FDS);
}

/* A create with a descriptor that is no layout: the request is valid, and refused. */
static void send_stray_create(struct member *m)
{
	struct wire_request request = {0};
	char name[WIRE_NAME_SIZE];
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0)
		stopwatch_fail("no pipe");
	create_put(&request.create, own_name(m, &name));
	member_send(m, WIRE_CREATE, &request, ends, 1);
	(void)close(ends[0]);
	(void)close(ends[1]);
}

static void act_garbage(struct member *m)
{
	uint32_t words[WIRE_MESSAGE_MAX / sizeof(uint32_t)];

	m->serial++;
	switch (random() % 4) {
	case 0:
		send_stray_create(m);
		break;
	case 1:
		send_stray_fds(m);
		break;
	default:
		for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
			words[i] = (uint32_t)random();
		words[0] = sizeof(words);
		words[1] = (uint32_t)random() % WIRE_OP_END; /* a known request without descriptors */
		(void)member_send_raw(m, words, sizeof(words), NULL, 0);
	}
}

/* --- Reading ------------------------------------------------------------------------------------ */

static void send_wait(struct member *m, int64_t timeout_ms)
{
	struct wire_request request = {0};

	request.wait.version = m->version + 1;
	request.wait.timeout_ms = timeout_ms;
	(void)CODEC_PUT_STRING(request.wait.name, m->squad->crowd->target);
	member_send(m, WIRE_WAIT, &request, NULL, 0);
}

/* Every version of the target wakes all waiters; the timers of half of them run out all the time. */
static void act_waits(struct member *m)
{
	send_wait(m, m->index % 2 ? 1 : -1);
}

static void note_version(struct member *m, const struct wire_reply *reply,
			 struct channel_packet *packet)
{
	(void)packet;
	if (reply->header.op == (WIRE_WAIT | WIRE_REPLY))
		m->version = reply->wait.version;
}

static void act_events(struct member *m)
{
	struct wire_request request = {0};

	request.events.after = m->version ? m->version : UINT64_MAX;
	request.events.timeout_ms = m->index % 2 ? 1 : -1;
	member_send(m, WIRE_EVENTS, &request, NULL, 0);
}

static void note_event(struct member *m, const struct wire_reply *reply,
		       struct channel_packet *packet)
{
	(void)packet;
	if (reply->header.op == (WIRE_EVENTS | WIRE_REPLY))
		m->version = reply->list.next;
}

/* Attaches to each new version, and lets none go. */
static void act_holding(struct member *m)
{
	if (m->step++ % 2)
		send_wait(m, -1);
	else
		send_attach(m, 0);
}

static void note_held(struct member *m, const struct wire_reply *reply,
		      struct channel_packet *packet)
{
	if (reply->header.op != (WIRE_ATTACH | WIRE_REPLY))
		return;
	m->version = reply->attach.version;
	if (m->step <= 2 * HELD_FDS)
		packet->fds[packet->n_fds - 1] = -1; /* held to the end of the program */
}

static void act_attaches(struct member *m)
{
	if (m->id)
		send_id(m, WIRE_DETACH);
	else
		send_attach(m, 0);
}

static void note_lease(struct member *m, const struct wire_reply *reply,
		       struct channel_packet *packet)
{
	(void)packet;
	if (reply->header.op == (WIRE_ATTACH | WIRE_REPLY))
		m->id = reply->attach.lease;
}

/* Every connection makes and removes a job of its own. */
static void act_jobs(struct member *m)
{
	struct wire_request request = {0};
	char name[WIRE_NAME_SIZE];

	(void)snprintf(name, sizeof(name), "attacker/job-%" PRIu32, m->index);
	if (m->step++ % 2) {
		(void)CODEC_PUT_STRING(request.job_remove.name, name);
		member_send(m, WIRE_JOB_REMOVE, &request, NULL, 0);
		return;
	}
	(void)CODEC_PUT_STRING(request.job_create.name, name);
	request.job_create.token[0] = 1;
	request.job_create.n_ranks = WIRE_JOB_RANKS_MAX;
	member_send(m, WIRE_JOB_CREATE, &request, NULL, 0);
}

static const struct attack attacks[] = {
	{"list-slots", prepare_filled, act_list_slots, NULL, false, false},
	{"lists", prepare_filled, act_lists, NULL, false, false},
	{"stat", prepare_filled, act_stat, NULL, false, false},
	{"big-layouts", prepare_big_layouts, act_create, note_writer, false, false},
	{"creates", prepare_creates, act_create, note_writer, false, false},
	{"big-slots", prepare_big_slots, act_create, note_writer, false, false},
	{"one-byte", prepare_small, act_one_byte, note_writer, false, false},
	{"connects", NULL, act_connects, NULL, false, false},
	{"silent", NULL, act_silent, NULL, false, true},
	{"stuck-close", NULL, act_stuck, NULL, true, false},
	{"garbage", NULL, act_garbage, NULL, false, false},
	{"holding", NULL, act_holding, note_held, false, false},
	{"waits", NULL, act_waits, note_version, false, false},
	{"events", NULL, act_events, note_event, false, false},
	{"attaches", NULL, act_attaches, note_lease, false, false},
	{"jobs", NULL, act_jobs, NULL, false, false},
};

const struct attack *attack_find(const char *name)
{
	for (size_t i = 0; i < sizeof(attacks) / sizeof(*attacks); i++)
		if (!strcmp(attacks[i].name, name))
			return &attacks[i];
	return NULL;
}

void attacks_print(void)
{
	for (size_t i = 0; i < sizeof(attacks) / sizeof(*attacks); i++)
		(void)puts(attacks[i].name);
}
