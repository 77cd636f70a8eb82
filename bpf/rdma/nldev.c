/*
 * A request names its device by number, so that the list of devices is requested first. A device that is removed
 * meanwhile has no queue pairs.
 */
#include "bpf/rdma/nldev.h"

#include <errno.h>
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"

#define PACKET_SIZE 65536
#define PACKETS_MAX 4096 /* in one answer */
#define QPS_MAX 1024 /* queue pairs of one counter; further ones are left out */
#define ANSWER_S 1

/* --- Attributes --------------------------------------------------------------------------------- */

struct attribute {
	unsigned type;
	const char *data;
	size_t size;
};

/* Takes the first of those that `within` has. 1, 0 where there is none, or -EBADMSG. */
static int attribute_next(struct attribute *within, struct attribute *ret)
{
	struct nlattr head;
	size_t step;

	if (within->size < sizeof(head))
		return 0; /* padding */
	memcpy(&head, within->data, sizeof(head));
	if (head.nla_len < sizeof(head) || head.nla_len > within->size)
		return -EBADMSG;
	*ret = (struct attribute){.type = head.nla_type & (unsigned)NLA_TYPE_MASK,
				  .data = within->data + sizeof(head),
				  .size = head.nla_len - sizeof(head)};
	step = NLA_ALIGN(head.nla_len);
	step = step < within->size ? step : within->size;
	within->data += step;
	within->size -= step;
	return 1;
}

/* UINT64_MAX where it is not of `size` bytes, or too large for JSON. */
static uint64_t attribute_number(const struct attribute *a, size_t size)
{
	uint64_t n = 0; /* in native byte order, in which all sizes are alike */
	uint32_t n32;
	uint8_t n8;

	if (a->size != size)
		return UINT64_MAX;
	if (size == sizeof(n)) {
		memcpy(&n, a->data, size);
		return n <= INT64_MAX ? n : UINT64_MAX;
	}
	if (size == sizeof(n32)) {
		memcpy(&n32, a->data, size);
		return n32;
	}
	memcpy(&n8, a->data, sizeof(n8));
	return n8;
}

/* NULL: it is no text. */
static const char *attribute_text(const struct attribute *a)
{
	return a->size > 0 && !a->data[a->size - 1] ? a->data : NULL;
}

static void set_number(json_t *o, const char *key, const struct attribute *a, size_t size)
{
	uint64_t n = attribute_number(a, size);

	if (n != UINT64_MAX)
		(void)json_object_set_new(o, key, json_integer((json_int_t)n));
}

/* A value without a word is left out. */
static void set_word(json_t *o, const char *key, const char *const *words, size_t n_words,
		     uint64_t n)
{
	if (n < n_words && words[n])
		(void)json_object_set_new(o, key, json_string(words[n]));
}

/* Text that is not UTF-8 is none. */
static void set_text(json_t *o, const char *key, const struct attribute *a)
{
	json_t *value = attribute_text(a) ? json_string(attribute_text(a)) : NULL;

	if (value)
		(void)json_object_set_new(o, key, value);
}

/* --- Answers of the kernel -------------------------------------------------------------------- */

/* Indexed by their numbers in the kernel. */
static const char *const types[] = {"smi", "gsi", "rc",         "uc",      "ud",     NULL,
				    NULL,  NULL,  "raw-packet", "xrc-ini", "xrc-tgt"};
static const char *const states[] = {"reset", "init", "rtr", "rts", "sqd", "sqe", "err"};
static const char *const modes[] = {"none", "auto", "manual"};

/* Attributes that become a member of the row. */
static const struct member {
	unsigned type;
	const char *key;
	size_t size; /* bytes of a number; 0: a text */
	const char *const *words; /* names of its values; NULL: the number itself */
	size_t n_words;
} members[] = {
	{RDMA_NLDEV_ATTR_DEV_INDEX, "index", .size = 4},
	{RDMA_NLDEV_ATTR_DEV_NAME, "device", .size = 0},
	{RDMA_NLDEV_ATTR_PORT_INDEX, "port", .size = 4},
	{RDMA_NLDEV_ATTR_RES_LQPN, "lqpn", .size = 4},
	{RDMA_NLDEV_ATTR_RES_RQPN, "rqpn", .size = 4},
	{RDMA_NLDEV_ATTR_RES_TYPE, "type", 1, types, ARRAY_LEN(types)},
	{RDMA_NLDEV_ATTR_RES_STATE, "state", 1, states, ARRAY_LEN(states)},
	{RDMA_NLDEV_ATTR_RES_PID, "pid", .size = 4},
	{RDMA_NLDEV_ATTR_RES_KERN_NAME, "comm", .size = 0},
	{RDMA_NLDEV_ATTR_STAT_COUNTER_ID, "counter", .size = 4},
	{RDMA_NLDEV_ATTR_STAT_MODE, "mode", 4, modes, ARRAY_LEN(modes)},
};

/* Sets a member that this kind of row has. */
static void set_member(json_t *o, const struct attribute *a)
{
	const struct member *m = members;

	while (m < members + ARRAY_LEN(members) && m->type != a->type)
		m++;
	if (m == members + ARRAY_LEN(members) || !json_object_get(o, m->key))
		return;
	if (m->words)
		set_word(o, m->key, m->words, m->n_words, attribute_number(a, m->size));
	else if (m->size)
		set_number(o, m->key, a, m->size);
	else
		set_text(o, m->key, a);
}

static int fill_members(json_t *o, struct attribute within)
{
	struct attribute a;
	int r;

	while ((r = attribute_next(&within, &a)) > 0)
		set_member(o, &a);
	return r;
}

static int fill_number_of_qp(json_t *qps, struct attribute within)
{
	struct attribute a;
	uint64_t n;
	int r;

	while ((r = attribute_next(&within, &a)) > 0) {
		n = attribute_number(&a, sizeof(uint32_t));
		if (a.type == RDMA_NLDEV_ATTR_RES_LQPN && n != UINT64_MAX &&
		    json_array_size(qps) < QPS_MAX)
			(void)json_array_append_new(qps, json_integer((json_int_t)n));
	}
	return r;
}

/* Fills in each entry. */
static int fill_all(json_t *into, struct attribute within,
		    int (*fill)(json_t *into, struct attribute within))
{
	struct attribute entry;
	int r;

	while ((r = attribute_next(&within, &entry)) > 0) {
		r = fill(into, entry);
		if (r < 0)
			return r;
	}
	return r;
}

static int fill_value(json_t *values, struct attribute within)
{
	const char *name = NULL;
	uint64_t value = UINT64_MAX;
	struct attribute a;
	int r;

	while ((r = attribute_next(&within, &a)) > 0) {
		if (a.type == RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME)
			name = attribute_text(&a);
		else if (a.type == RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE)
			value = attribute_number(&a, sizeof(value));
	}
	if (name && value != UINT64_MAX) /* a name that is not UTF-8 is left out */
		(void)json_object_set_new(values, name, json_integer((json_int_t)value));
	return r;
}

static int fill_counter(json_t *o, struct attribute within)
{
	struct attribute a;
	int r;

	while ((r = attribute_next(&within, &a)) > 0) {
		if (a.type == RDMA_NLDEV_ATTR_RES_QP)
			r = fill_all(json_object_get(o, "qps"), a, fill_number_of_qp);
		else if (a.type == RDMA_NLDEV_ATTR_STAT_HWCOUNTERS)
			r = fill_all(json_object_get(o, "values"), a, fill_value);
		else
			set_member(o, &a);
		if (r < 0)
			return r;
	}
	return r;
}

/* Members that the kernel leaves out are null. */
static json_t *qp_new(void)
{
	return json_pack("{ss sn sn sn sn sn sn sn sn sn}", "kind", "qp", "device", "port", "lqpn",
			 "rqpn", "type", "state", "pid", "comm", "counter");
}

static json_t *counter_new(void)
{
	return json_pack("{ss sn sn sn sn sn sn s[] s{}}", "kind", "counter", "device", "port",
			 "counter", "mode", "pid", "comm", "qps", "values");
}

struct nldev_table {
	unsigned op; /* the request that it answers */
	unsigned type, entry_type;
	json_t *(*new)(void);
	int (*fill)(json_t *o, struct attribute within);
};

static const struct nldev_table tables[] = {
	{RDMA_NLDEV_CMD_RES_QP_GET, RDMA_NLDEV_ATTR_RES_QP, RDMA_NLDEV_ATTR_RES_QP_ENTRY, qp_new,
	 fill_members},
	{RDMA_NLDEV_CMD_STAT_GET, RDMA_NLDEV_ATTR_STAT_COUNTER, RDMA_NLDEV_ATTR_STAT_COUNTER_ENTRY,
	 counter_new, fill_counter},
};

static int take_table(const struct nldev_table *t, const struct attribute *device,
		      struct attribute within, json_t *rows)
{
	struct attribute entry;
	json_t *o;
	int r;

	while ((r = attribute_next(&within, &entry)) > 0) {
		if (entry.type != t->entry_type || json_array_size(rows) >= NLDEV_ROWS_MAX)
			continue;
		o = t->new ();
		set_text(o, "device", device);
		(void)json_array_append(rows, o);
		r = t->fill(o, entry);
		json_decref(o);
		if (r < 0)
			return r;
	}
	return r;
}

static int take_device(struct attribute within, json_t *rows)
{
	json_t *o = json_pack("{ss sn sn}", "kind", "device", "index", "device");
	int r = fill_members(o, within);

	if (json_array_size(rows) < NLDEV_ROWS_MAX)
		(void)json_array_append(rows, o);
	json_decref(o);
	return r;
}

static int take_tables(unsigned op, struct attribute within, json_t *rows)
{
	struct attribute a, rest = within, device = {};
	int r;

	while ((r = attribute_next(&rest, &a)) > 0)
		if (a.type == RDMA_NLDEV_ATTR_DEV_NAME)
			device = a;
	while (r >= 0 && (r = attribute_next(&within, &a)) > 0)
		for (size_t i = 0; i < ARRAY_LEN(tables) && r >= 0; i++)
			if (tables[i].op == op && tables[i].type == a.type)
				r = take_table(&tables[i], &device, a, rows);
	return r;
}

/* Returns the status at the end of an answer: an error, or 0. */
static int status_of(const char *data, size_t size)
{
	int error = 0;

	if (size >= sizeof(error))
		memcpy(&error, data, sizeof(error));
	return error < 0 && error > -4096 ? error : 1;
}

static int take_message(const struct nlmsghdr *h, const char *data, size_t size, json_t *rows)
{
	const struct attribute within = {.data = data, .size = size};
	unsigned op = RDMA_NL_GET_OP(h->nlmsg_type);

	if (h->nlmsg_type == NLMSG_DONE || h->nlmsg_type == NLMSG_ERROR)
		return status_of(data, size);
	if (RDMA_NL_GET_CLIENT(h->nlmsg_type) != RDMA_NL_NLDEV)
		return 0;
	return op == RDMA_NLDEV_CMD_GET ? take_device(within, rows) : take_tables(op, within, rows);
}

int nldev_parse(const void *packet, size_t size, json_t *rows)
{
	const char *at = packet;
	struct nlmsghdr h;
	size_t step;
	int r = 0;

	while (r == 0 && size >= sizeof(h)) {
		memcpy(&h, at, sizeof(h));
		if (h.nlmsg_len < sizeof(h) || h.nlmsg_len > size)
			return -EBADMSG;
		r = take_message(&h, at + sizeof(h), h.nlmsg_len - sizeof(h), rows);
		step = NLMSG_ALIGN((size_t)h.nlmsg_len);
		step = step < size ? step : size;
		at += step;
		size -= step;
	}
	return r;
}

/* --- Asking ------------------------------------------------------------------------------------- */

struct nldev_request {
	struct nlmsghdr head;
	struct {
		struct nlattr head;
		uint32_t value;
	} attributes[2]; /* the device, and for counters what they count */
};

static int nldev_ask(int fd, unsigned op, uint32_t device)
{
	struct nldev_request q = {
		.head = {.nlmsg_type = (uint16_t)RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, op),
			 .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
		.attributes = {{{sizeof(q.attributes[0]), RDMA_NLDEV_ATTR_DEV_INDEX}, device},
			       {{sizeof(q.attributes[1]), RDMA_NLDEV_ATTR_STAT_RES},
				RDMA_NLDEV_ATTR_RES_QP}},
	};

	q.head.nlmsg_len = sizeof(q.head);
	if (op != RDMA_NLDEV_CMD_GET)
		q.head.nlmsg_len += sizeof(q.attributes[0]);
	if (op == RDMA_NLDEV_CMD_STAT_GET)
		q.head.nlmsg_len += sizeof(q.attributes[1]);
	return send(fd, &q, q.head.nlmsg_len, 0) < 0 ? -errno : 0;
}

/* To the end of its answer. */
static int read_all(int fd, unsigned op, uint32_t device, json_t *rows)
{
	cleanup(freep) char *packet = malloc(PACKET_SIZE);
	ssize_t n;
	int r = packet ? nldev_ask(fd, op, device) : -ENOMEM;

	for (unsigned i = 0; r == 0 && i < PACKETS_MAX; i++) {
		n = recv(fd, packet, PACKET_SIZE, MSG_TRUNC);
		if (n < 0)
			return -errno;
		r = n > PACKET_SIZE ? -EBADMSG : nldev_parse(packet, (size_t)n, rows);
	}
	return r < 0 ? r : 0;
}

int nldev_open(void)
{
	const struct timeval patience = {.tv_sec = ANSWER_S};
	cleanup(fd_closep) int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA);

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) < 0)
		return -errno;
	return take_fd(fd);
}

/* An answer that is not understood leaves its rest behind, so that each question has a socket of its own. */
static int ask_alone(int (*open)(void), unsigned op, uint32_t device, json_t *rows)
{
	cleanup(fd_closep) int fd = open();

	return fd < 0 ? fd : read_all(fd, op, device, rows);
}

static void key_of(const json_t *o, json_int_t lqpn, char *ret, size_t size)
{
	const char *device = json_string_value(json_object_get(o, "device"));

	(void)snprintf(ret, size, "%s/%lld", device ? device : "", (long long)lqpn);
}

/* Sets the counter that each queue pair is bound to. */
static void nldev_join(const json_t *rows)
{
	cleanup(json_decrefp) json_t *counter_of = json_object();
	json_t *row, *lqpn;
	char key[128];
	size_t i, k;

	json_array_foreach(rows, i, row) json_array_foreach(json_object_get(row, "qps"), k, lqpn)
	{
		key_of(row, json_integer_value(lqpn), key, sizeof(key));
		(void)json_object_set(counter_of, key, json_object_get(row, "counter"));
	}
	json_array_foreach(rows, i, row)
	{
		if (json_object_get(row, "qps"))
			continue;
		key_of(row, json_integer_value(json_object_get(row, "lqpn")), key, sizeof(key));
		if (json_object_get(counter_of, key))
			(void)json_object_set(row, "counter", json_object_get(counter_of, key));
	}
}

int nldev_read(int (*open)(void), json_t *rows, char ret_why[WHY_SIZE])
{
	cleanup(json_decrefp) json_t *devices = json_array();
	const json_t *device;
	size_t i;
	int r = ask_alone(open, RDMA_NLDEV_CMD_GET, 0, devices);

	if (r < 0) {
		(void)snprintf(ret_why, WHY_SIZE, "the kernel lists none by netlink: %s",
			       strerror(-r));
		return r;
	}
	json_array_foreach(devices, i, device)
	{
		uint32_t index = (uint32_t)json_integer_value(json_object_get(device, "index"));

		/*
		 * The device was removed, or the kernel is older than its counters: there are none.
		 */
		(void)ask_alone(open, RDMA_NLDEV_CMD_RES_QP_GET, index, rows);
		(void)ask_alone(open, RDMA_NLDEV_CMD_STAT_GET, index, rows);
	}
	nldev_join(rows);
	return 0;
}
