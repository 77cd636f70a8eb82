/*
 * libibverbs: the peers of RDMA, and the memory that it uses
 *
 * Sending is an inline function, which no probe can find. But connecting a queue pair by hand shows its peer: the
 * number of the queue pair there and its address. Of a function with two versions the old one calls the new one,
 * which is probed. The offsets are part of the interface for good (infiniband/verbs.h).
 */
#include <string.h>

#include "bpf/base/json_null.h"
#include "bpf/base/process.h"
#include "bpf/event/event.h"
#include "bpf/event/event_cause.h"
#include "bpf/probe/site.h"
#include "bpf/rdma/qp.h"
#include "ipc/base/num.h"

#define DEVICE_NAME 24 /* ibv_device::name */
#define QP_NUM 52 /* ibv_qp::qp_num, which is followed by its state and its type */
#define QP_TYPE 8 /* behind qp_num */
#define ATTR_SIZE 88 /* struct ibv_qp_attr, up to the end of ah_attr */
#define MASK_STATE 0x1 /* IBV_QP_STATE */
#define MASK_PEER 0x100000 /* IBV_QP_DEST_QPN */
#define MASK_PATH 0x80 /* IBV_QP_AV */
#define STATE_RTR 2 /* IBV_QPS_RTR: ready to receive */

struct attr { /* struct ibv_qp_attr, as far as it is read */
	uint32_t state, old_state, mtu, migration, qkey, receive_psn, send_psn, peer_qp;
	uint32_t access, capabilities[5];
	uint8_t gid[16]; /* address of the peer */
	uint32_t flow_label;
	uint8_t gid_index, hops, class, unused;
	uint16_t lid;
	uint8_t service, path, rate, has_gid, port, unused_too;
};

_Static_assert(sizeof(struct attr) == ATTR_SIZE, "the interface's");

static const char *const types[] = {[2] = "RC", [3] = "UC", [4] = "UD", [8] = "raw"};
static const char *const states[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};

static void set_device(json_t *event, const struct probe_call *c)
{
	(void)json_object_set_new(event, "device", chars_or_null(c->name, sizeof(c->name)));
}

static bool device_open(struct site_state *s, const struct probe_call *c, json_t *event)
{
	(void)s;
	set_device(event, c);
	return true;
}

static struct qp_name qp_name_of(const struct probe_call *c, uint32_t number)
{
	struct qp_name name = {.pid = (pid_t)c->tgid,
			       .began_ticks = process_ticks(c->began_ns),
			       .number = number};

	_Static_assert(sizeof(name.device) == sizeof(c->name), "all of it");
	memcpy(name.device, c->name, sizeof(name.device));
	return name;
}

/* A queue pair as of the event that is filled now. */
static struct qp qp_of(const struct site_state *s, const struct probe_call *c, uint32_t number)
{
	return (struct qp){.name = qp_name_of(c, number),
			   .uid = c->uid,
			   .cause = event_cause_of(s->event, c->ns, (pid_t)c->tgid, c->comm)};
}

static bool qp_create(struct site_state *s, const struct probe_call *c, json_t *event)
{
	uint32_t number, type;
	struct qp qp;

	set_device(event, c);
	if (!c->has_data)
		return true;
	memcpy(&number, c->data, sizeof(number));
	memcpy(&type, c->data + QP_TYPE, sizeof(type));
	event_set_number(event, "qp", number);
	if (type < ARRAY_LEN(types) && types[type])
		(void)json_object_set_new(event, "type", json_string(types[type]));
	qp = qp_of(s, c, number);
	qps_make(&s->qps, &qp);
	return true;
}

static struct qp_peer peer_of(const struct attr *attr, uint64_t mask)
{
	struct qp_peer peer = {
		.qp = attr->peer_qp,
		.lid = attr->lid,
		.port = attr->port,
		.has_qp = mask & MASK_PEER,
		.has_path = mask & MASK_PATH,
		.has_gid = attr->has_gid,
	};

	memcpy(peer.gid, attr->gid, sizeof(peer.gid));
	return peer;
}

/*
 * A queue pair that is ready to receive has its peer. Of other states only failures are reported.
 */
static bool qp_modify(struct site_state *s, const struct probe_call *c, json_t *event)
{
	bool has_failed = (int)c->result != 0;
	uint64_t mask = c->args[2];
	struct attr attr;
	struct qp qp;

	memcpy(&attr, c->data, sizeof(attr));
	if (!c->has_data || !(mask & MASK_STATE) || (attr.state != STATE_RTR && !has_failed))
		return false;
	set_device(event, c);
	if (c->has_out)
		event_set_number(event, "qp", c->out);
	if (attr.state < ARRAY_LEN(states))
		(void)json_object_set_new(event, "state", json_string(states[attr.state]));
	if (attr.state != STATE_RTR)
		return true;
	qp = qp_of(s, c, (uint32_t)c->out);
	qp.peer = peer_of(&attr, mask);
	qp_peer_set(event, &qp.peer);
	if (c->has_out && !has_failed)
		qps_connect(&s->qps, &qp);
	return true;
}

static bool qp_destroy(struct site_state *s, const struct probe_call *c, json_t *event)
{
	struct qp_name name;
	uint32_t number;

	set_device(event, c);
	if (!c->has_data)
		return true;
	memcpy(&number, c->data, sizeof(number));
	event_set_number(event, "qp", number);
	name = qp_name_of(c, number);
	if ((int)c->result == 0)
		qps_destroy(&s->qps, &name, c->ns - c->took_ns, c->ns);
	return true;
}

static bool mr_register(struct site_state *s, const struct probe_call *c, json_t *event)
{
	(void)s;
	event_set_number(event, "address", c->args[1]);
	event_set_number(event, "bytes", c->args[2]);
	return true;
}

static bool mr_register_dmabuf(struct site_state *s, const struct probe_call *c, json_t *event)
{
	(void)s;
	event_set_number(event, "bytes", c->args[2]);
	(void)json_object_set_new(event, "fd", json_integer((int)c->args[4]));
	return true;
}

/* An ibv_pd and an ibv_qp begin with their ibv_context, which begins with its ibv_device. */
#define NAMED .is_named = 1, .name_hops = 2, .name_from = DEVICE_NAME

/* clang-format off */
static const struct site sites[] = {
	{"ibv_open_device", "rdma_open", {.is_named = 1, .name_from = DEVICE_NAME}, RESULT_POINTER, .fill = device_open},
	{"ibv_create_qp", "qp_create", {.take = TAKE_RESULT, .take_size = 12, .take_from = QP_NUM, NAMED},
	 RESULT_POINTER, .fill = qp_create},
	{"ibv_modify_qp", "qp_connect",
	 {.take = TAKE_AT_CALL, .take_arg = 1, .take_size = ATTR_SIZE, .out = 4, .out_from = QP_NUM, NAMED},
	 .fill = qp_modify},
	{"ibv_destroy_qp", "qp_destroy", {.take = TAKE_AT_CALL, .take_size = 4, .take_from = QP_NUM, NAMED},
	 .fill = qp_destroy},
	{"ibv_reg_mr", "rdma_register", {}, RESULT_POINTER, .fill = mr_register},
	{"ibv_reg_mr_iova", "rdma_register", {}, RESULT_POINTER, .fill = mr_register},
	{"ibv_reg_mr_iova2", "rdma_register", {}, RESULT_POINTER, .fill = mr_register},
	{"ibv_reg_dmabuf_mr", "rdma_register", {}, RESULT_POINTER, .fill = mr_register_dmabuf},
};
/* clang-format on */

const struct library library_verbs = {
	.name = "libibverbs.so.",
	.sites = sites,
	.n_sites = ARRAY_LEN(sites),
};
