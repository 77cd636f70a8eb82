/*
 * Callbacks only write slots and rings. The sender reads them.
 */
#include "bpf/nccl/event.h"

#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#include "bpf/nccl/chained_plugin.h"
#include "bpf/nccl/comm.h"
#include "bpf/nccl/ring.h"
#include "bpf/nccl/slot.h"
#include "ipc/base/num.h"

#define EVENTS_OF_CE (EVENT_CE_COLL | EVENT_CE_SYNC | EVENT_CE_BATCH)
#define EVENTS_OF_STEP (EVENT_PROXY_STEP | EVENT_NET)
#define EVENTS_OF_OP (EVENTS_OF_STEP | EVENT_PROXY_OP)
#define EVENTS_OF_TASK (EVENTS_OF_OP | EVENT_KERNEL_CH)
#define EVENTS_OF_GROUP (EVENTS_OF_TASK | EVENT_GROUP | EVENT_COLL | EVENT_P2P)
#define EVENTS_OF_TASKS (EVENT_COLL | EVENT_P2P | EVENT_CE_COLL)

static _Atomic int asked;

int event_known_by(int api)
{
	static const int newest[N_APIS] = {EVENT_NET, EVENT_KERNEL_LAUNCH, EVENT_CE_BATCH};

	return api == API_NEWEST ? INT32_MAX : newest[api - API_OLDEST] * 2 - 1;
}

/* As src/plugin/profiler.cc decides it. */
int event_implied_by(uint64_t type)
{
	switch (type) {
	case EVENT_GROUP:
		return EVENTS_OF_GROUP;
	case EVENT_COLL:
		return EVENTS_OF_TASK | EVENT_COLL;
	case EVENT_P2P:
		return EVENTS_OF_TASK | EVENT_P2P;
	case EVENT_PROXY_OP:
		return EVENTS_OF_OP;
	case EVENT_PROXY_STEP:
		return EVENTS_OF_STEP;
	case EVENT_GROUP_API:
		return EVENTS_OF_GROUP | EVENT_GROUP_API | EVENT_COLL_API | EVENT_P2P_API |
		       EVENT_KERNEL_LAUNCH | EVENTS_OF_CE;
	case EVENT_COLL_API:
		return EVENTS_OF_TASK | EVENT_COLL_API | EVENT_COLL | EVENTS_OF_CE;
	case EVENT_P2P_API:
		return EVENTS_OF_TASK | EVENT_P2P_API | EVENT_P2P;
	case EVENT_CE_COLL:
		return EVENTS_OF_CE;
	default:
		return type > INT32_MAX ? 0 : (int)type;
	}
}

void event_set_mask(int mask)
{
	atomic_store(&asked, mask);
}

/*
 * Events that we do not record are here for the chained plug-in alone. Groups are not reported; but NCCL 2.27 drops
 * the collectives of a group without a handle.
 */
static bool is_ours(uint64_t type)
{
	return num_is_power_of_two(type) &&
	       (type & (EVENT_GROUP | EVENTS_OF_TASKS | EVENTS_OF_OP)) &&
	       (event_implied_by(type) & atomic_load_explicit(&asked, memory_order_relaxed));
}

/* Left as it is: the reader cleans it. */
static void slot_copy_text(char ret[SLOT_TEXT_SIZE], const char *s)
{
	size_t n = s ? strnlen(s, SLOT_TEXT_SIZE - 1) : 0;

	if (n > 0)
		memcpy(ret, s, n);
	ret[n] = '\0';
}

static void set_task(struct slot *s, uint64_t type, const struct descr *d)
{
	bool is_p2p = type == EVENT_P2P;

	s->has_seq = !is_p2p;
	s->n_channels = 0;
	if (is_p2p) {
		s->count = d->p2p.count;
		s->root = d->p2p.peer;
		s->n_channels = d->p2p.n_channels;
		slot_copy_text(s->func, d->p2p.func);
		slot_copy_text(s->datatype, d->p2p.datatype);
		s->algo[0] = s->proto[0] = '\0';
		return;
	}
	/* Both versions have these members at the same place. */
	s->seq = d->coll.seq;
	s->count = d->coll.count;
	s->root = d->coll.root;
	slot_copy_text(s->func, d->coll.func);
	slot_copy_text(s->datatype, d->coll.datatype);
	if (type == EVENT_COLL) {
		s->n_channels = d->coll.n_channels;
		slot_copy_text(s->algo, d->coll.algo);
		slot_copy_text(s->proto, d->coll.proto);
	} else {
		slot_copy_text(s->algo, "CE");
		s->proto[0] = '\0';
	}
}

/* In the proxy of another process neither is valid, and the communicator is unknown. */
static void set_op(struct slot *s, const struct descr *d)
{
	struct slot *task = slot_hold(d->parent);

	slot_set(s->peer, d->proxy_op.peer);
	slot_set(s->is_send, d->proxy_op.is_send != 0);
	if (task)
		atomic_fetch_add_explicit(&task->n_ops, 1, memory_order_relaxed);
	atomic_store_explicit(&s->held, task, memory_order_release);
}

static const struct slot *find_type(const void *handle, uint32_t type)
{
	const struct slot *s = slot_find(handle);

	return s && slot_get(s->type) == type ? s : NULL;
}

static void start_socket(struct record *r, const struct net_socket *n)
{
	socklen_t size = sizeof(r->number);

	if (n->type != NET_EVENT || n->fd < 0)
		return;
	r->kind = RECORD_SOCKET;
	r->fd = n->fd;
	r->is_send = n->op == NET_OP_SEND;
	r->bytes = n->length;
	/* Numbers of descriptors are used again, this one is not. */
	if (getsockopt(n->fd, SOL_SOCKET, SO_COOKIE, &r->number, &size) == 0)
		(void)ring_write(r);
}

static void start_qp(struct record *r, const struct net_qp *n)
{
	if (n->type != NET_EVENT)
		return;
	r->kind = RECORD_QP;
	r->device = n->device;
	r->number = (uint32_t)n->qp;
	r->bytes = r->is_send ? n->length : 0;
	(void)ring_write(r);
}

/* Its parent may be freed: helper threads of NCCL's sockets name that of their first request. */
static void start_net(uint32_t comm, const struct descr *d)
{
	const struct slot *step = find_type(d->parent, EVENT_PROXY_STEP);
	const struct slot *op = step ? find_type(slot_get(step->parent), EVENT_PROXY_OP) : NULL;
	struct record r = {.peer = -1};

	if (op) {
		comm = slot_get(op->comm);
		r.peer = slot_get(op->peer);
		r.is_send = slot_get(op->is_send);
	}
	if (comm == COMM_NONE || !d->net.data || (d->net.id & NET_VERSION_MASK) != NET_VERSION)
		return;
	r.comm = (uint16_t)comm;
	r.ns = num_now_ns();
	if ((d->net.id & ~(int64_t)NET_VERSION_MASK) == NET_TYPE_SOCKET)
		start_socket(&r, d->net.data);
	else if ((d->net.id & ~(int64_t)NET_VERSION_MASK) == NET_TYPE_IB && op)
		start_qp(&r, d->net.data);
}

/*
 * Returns the task of an event: for a step that of its operation. There is none if the context belongs to another
 * process, which this one is the proxy of.
 */
static uint32_t comm_of(uint64_t type, const void *context, const struct descr *d)
{
	const struct slot *op = type == EVENT_PROXY_STEP ? find_type(d->parent, EVENT_PROXY_OP)
							 : NULL;

	return op ? slot_get(op->comm) : comm_find(context);
}

static void slot_fill(struct slot *s, uint64_t type, uint32_t comm, const struct descr *d)
{
	slot_set(s->comm, comm);
	slot_set(s->parent, d->parent);
	if (!is_ours(type)) {
		type = 0;
	} else if (type & EVENTS_OF_TASKS) {
		slot_set(s->began_ns, num_now_ns());
		set_task(s, type, d);
	} else if (type == EVENT_PROXY_OP) {
		set_op(s, d);
	}
	slot_set(s->type, (uint32_t)type);
}

void event_start(int api, void *context, void **ret_handle, const struct descr *d)
{
	uint64_t type = api == API_OLDEST ? d->type_v4 : d->type;
	uint32_t comm = comm_of(type, context, d);
	void *handle, *chained = chained_plugin_start(api, comm, d);
	bool is_kept = is_ours(type) && type != EVENT_NET && comm != COMM_NONE;
	struct slot *s;

	if (type == EVENT_NET && is_ours(type))
		start_net(comm, d);
	if (!is_kept && !chained)
		return;
	s = slot_take(&handle);
	if (!s) {
		chained_plugin_stop(chained);
		return;
	}
	slot_set(s->chained, chained);
	slot_fill(s, type, comm, d);
	*ret_handle = handle;
}

static void stop_task(struct slot *s)
{
	const struct record r = {.kind = RECORD_TASK, .comm = (uint16_t)slot_get(s->comm), .task = s};

	if (!ring_write(&r))
		slot_free(s);
}

static void stop_op(struct slot *s)
{
	struct slot *task = slot_take_held(s);
	uint32_t comm = slot_get(s->comm);
	bool is_send = slot_get(s->is_send);
	uint64_t bytes = is_send ? slot_get(s->sent) : slot_get(s->received), now_ns = num_now_ns();
	const struct record r = {.kind = RECORD_OP,
				 .comm = (uint16_t)comm,
				 .is_send = is_send,
				 .peer = slot_get(s->peer),
				 .bytes = bytes,
				 .ns = now_ns};

	slot_free(s);
	if (task) {
		atomic_fetch_add_explicit(is_send ? &task->sent : &task->received, bytes,
					  memory_order_relaxed);
		if (now_ns > slot_get(task->ended_ns))
			slot_set(task->ended_ns, now_ns);
		slot_release(task);
	}
	(void)ring_write(&r);
}

static void stop_step(struct slot *s)
{
	void *parent = slot_get(s->parent);
	uint64_t bytes = slot_get(s->sent);
	struct slot *op = slot_find(parent);

	slot_free(s);
	if (op && slot_get(op->type) == EVENT_PROXY_OP)
		atomic_fetch_add_explicit(slot_get(op->is_send) ? &op->sent : &op->received, bytes,
					  memory_order_relaxed);
}

/* The first thread that stops it owns it. */
void event_stop(void *handle)
{
	struct slot *s = slot_stop(handle, SLOT_STOPPED);
	uint32_t type;

	if (!s)
		return;
	chained_plugin_stop(slot_get(s->chained));
	type = slot_get(s->type);
	if (type & EVENTS_OF_TASKS) {
		s->stopped_ns = num_now_ns();
		stop_task(s);
	} else if (type == EVENT_PROXY_OP) {
		stop_op(s);
	} else if (type == EVENT_PROXY_STEP) {
		stop_step(s);
	} else {
		slot_free(s);
	}
}

void event_record_state(void *handle, int state, union state_args *args)
{
	struct slot *s = slot_find(handle);

	if (!s)
		return;
	chained_plugin_record_state(slot_get(s->chained), state, args);
	if (args &&
	    (state == STATE_SEND_WAIT || state == STATE_RECV_FLUSH_WAIT ||
	     state == STATE_RECV_GPU_WAIT) &&
	    slot_get(s->type) == EVENT_PROXY_STEP)
		slot_set(s->sent, args->size);
}
