/*
 * Writes JSON by hand, as the plug-in has no library.
 */
#include "bpf/nccl/report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bpf/nccl/abi.h"

static void report_begin(struct text *t, const char *word, uint64_t ns)
{
	text_begin(t);
	text_add(t, "{\"act\":\"%s\"", word);
	text_number(t, "ns", (int64_t)ns);
}

static void add_comm(struct text *t, const struct comm *c)
{
	text_string(t, "sync", c->label);
	text_string(t, "communicator", c->name);
	text_add(t, ",\"hash\":\"%016" PRIx64 "\"", c->hash);
	text_number_if(t, "rank", c->rank >= 0, (uint64_t)c->rank);
}

void report_of_comm(struct text *t, const struct comm *c, const struct comm_sums *sums,
		    bool is_closed, uint64_t now_ns)
{
	report_begin(t, "nccl_comm", now_ns);
	add_comm(t, c);
	text_number_if(t, "n_ranks", c->n_ranks >= 0, (uint64_t)c->n_ranks);
	text_number_if(t, "n_nodes", c->n_nodes >= 0, (uint64_t)c->n_nodes);
	text_number(t, "api", c->api);
	text_string(t, "state", is_closed ? "closed" : "open");
	text_number(t, "colls", (int64_t)sums->colls);
	text_number(t, "p2ps", (int64_t)sums->p2ps);
	text_number(t, "untold", (int64_t)sums->unreported);
	text_add(t, "}");
}

/* Its name has its bits: ncclFloat32, ncclFloat8e4m3, ncclBfloat16. */
static bool size_of(const char *datatype, uint64_t *ret)
{
	unsigned long bits = strtoul(datatype + strcspn(datatype, "0123456789"), NULL, 10);

	*ret = bits / 8;
	return bits == 8 || bits == 16 || bits == 32 || bits == 64;
}

static uint64_t end_of(const struct slot *task)
{
	uint64_t ended_ns = slot_get(task->ended_ns);

	return ended_ns > task->stopped_ns ? ended_ns : task->stopped_ns;
}

/*
 * Bytes within a node are not seen: without an operation of the proxy the number is unknown, and not 0.
 */
void report_of_task(struct text *t, const struct comm *c, const struct slot *task)
{
	uint32_t n_ops = slot_get(task->n_ops);
	bool is_p2p = slot_get(task->type) == EVENT_P2P;
	uint64_t size, bytes = 0, ns = end_of(task);
	bool knows_bytes = size_of(task->datatype, &size) &&
			   !__builtin_mul_overflow(size, task->count, &bytes);

	report_begin(t, is_p2p ? "nccl_p2p" : "nccl_coll", ns);
	text_number(t, "took_ns", (int64_t)(ns - slot_get(task->began_ns)));
	add_comm(t, c);
	text_string(t, "func", task->func);
	text_number_if(t, "count", true, task->count);
	text_string(t, "datatype", task->datatype);
	text_number_if(t, "bytes", knows_bytes, bytes);
	text_number_if(t, is_p2p ? "peer" : "root", task->root >= 0, (uint64_t)task->root);
	text_number(t, "channels", task->n_channels);
	if (!is_p2p) {
		text_number_if(t, "seq", task->has_seq, task->seq);
		text_string(t, "algo", task->algo);
		text_string(t, "proto", task->proto);
	}
	text_number(t, "ops", n_ops);
	text_number_if(t, "sent", n_ops > 0, slot_get(task->sent));
	text_number_if(t, "received", n_ops > 0, slot_get(task->received));
	text_add(t, "}");
}

void report_of_sum(struct text *t, const struct comm *c, const struct sum *sum)
{
	report_begin(t,
		     sum->kind == RECORD_OP   ? "nccl_peer"
		     : sum->kind == RECORD_QP ? "nccl_qp"
					      : "nccl_socket",
		     sum->last_ns);
	add_comm(t, c);
	text_number_if(t, "peer", sum->peer >= 0, (uint64_t)sum->peer);
	text_string(t, "way", sum->is_send ? "send" : "receive");
	text_number_if(t, "bytes", sum->kind != RECORD_QP || sum->is_send, sum->bytes);
	text_number(t, "events", (int64_t)sum->n);
	text_number(t, "since_ns", (int64_t)sum->first_ns);
	if (sum->kind == RECORD_SOCKET) {
		text_number(t, "fd", sum->fd);
		text_number_if(t, "cookie", true, sum->number);
		text_add(t, ",\"counted\":%s", sum->tagged && !sum->is_refused ? "true" : "false");
	} else if (sum->kind == RECORD_QP) {
		text_number_if(t, "device", sum->device >= 0, (uint64_t)sum->device);
		text_number(t, "qp", (int64_t)sum->number);
	}
	text_add(t, "}");
}

void report_of_gap(struct text *t, uint64_t lost, uint64_t from_ns, uint64_t now_ns)
{
	report_begin(t, "nccl_gap", now_ns);
	text_number_if(t, "lost", true, lost);
	text_number(t, "from_ns", (int64_t)from_ns);
	text_add(t, "}");
}
