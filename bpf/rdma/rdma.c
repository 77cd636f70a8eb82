/*
 * Nothing is kept: each answer reads sysfs and netlink anew.
 */
#include "bpf/rdma/rdma.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bpf/base/json_null.h"
#include "bpf/base/process.h"
#include "bpf/rdma/nldev.h"
#include "bpf/rdma/rdma_port.h"
#include "ipc/base/cleanup.h"

/* --- Ports -------------------------------------------------------------------------------------- */

static json_t *number_or_null(uint64_t n)
{
	return n == RDMA_PORT_UNKNOWN ? json_null() : json_integer((json_int_t)n);
}

static json_t *gids_json(const struct rdma_port *p)
{
	json_t *gids = json_array();

	for (int i = 0; i < RDMA_PORT_GIDS_MAX && p->gids[i][0]; i++)
		(void)json_array_append_new(gids, json_string(p->gids[i]));
	return gids;
}

static json_t *port_json(const struct rdma_port *p)
{
	json_t *o = json_pack("{ss ss sI sI so so so so so so}", "kind", "port", "device", p->device,
			      "port", (json_int_t)p->number, "ns", (json_int_t)p->ns, "link_layer",
			      text_or_null(p->link_layer), "state", text_or_null(p->state), "rate",
			      text_or_null(p->rate), "rate_bits", number_or_null(p->rate_bits),
			      "netdev", text_or_null(p->netdev), "gids", gids_json(p));
	json_t *errors = json_object();

	for (int i = 0; rdma_port_counts[i].key; i++)
		(void)json_object_set_new(rdma_port_counts[i].kind == RDMA_PORT_ERROR ? errors : o,
					  rdma_port_counts[i].key, number_or_null(p->counts[i]));
	(void)json_object_set_new(o, "errors", errors);
	return o;
}

/* The caller frees them. -ENODEV and why: there is none. */
static int find_ports(const char *sysfs, struct rdma_port **ret, size_t *ret_n,
		      char ret_why[WHY_SIZE])
{
	cleanup(freep) struct rdma_port *ports = NULL;
	size_t n = 0;
	int r = rdma_ports_read(sysfs, &ports, &n);

	if (r == -ENOENT)
		(void)snprintf(ret_why, WHY_SIZE, "there is no %s/class/infiniband", sysfs);
	else if (r < 0)
		(void)snprintf(ret_why, WHY_SIZE, "%s/class/infiniband cannot be read: %s", sysfs,
			       strerror(-r));
	else if (n == 0)
		(void)snprintf(ret_why, WHY_SIZE, "no device with a port is in %s/class/infiniband",
			       sysfs);
	if (n == 0)
		return -ENODEV;
	*ret = take_ptr(ports);
	*ret_n = n;
	return 0;
}

static int add_ports(const char *sysfs, struct answer *a, char ret_why[WHY_SIZE])
{
	cleanup(freep) struct rdma_port *ports = NULL;
	size_t n = 0;
	int r = find_ports(sysfs, &ports, &n, ret_why);

	for (size_t i = 0; i < n; i++)
		a->add(a, port_json(&ports[i]));
	return r;
}

void rdma_add_ports(const char *sysfs, struct answer *a)
{
	char why[WHY_SIZE];

	(void)add_ports(sysfs, a, why); /* that there are none is seen from there being none */
}

/* --- Queue pairs -------------------------------------------------------------------------------- */

/*
 * Adds the current name of the process; the kernel itself names the owner of its own queue pairs.
 */
static void name_process(json_t *row)
{
	json_int_t pid = json_integer_value(json_object_get(row, "pid"));
	char comm[COMM_SIZE];

	if (pid <= 0 || pid > INT32_MAX)
		return;
	process_read_comm((pid_t)pid, comm);
	(void)json_object_set_new(row, "comm", text_or_null(comm));
}

static int add_qps(struct answer *a, bool *ret_cut, char ret_why[WHY_SIZE])
{
	cleanup(json_decrefp) json_t *rows = json_array();
	json_t *row;
	size_t i;
	int r = nldev_read(nldev_open, rows, ret_why);

	if (r < 0)
		return r;
	json_array_foreach(rows, i, row)
	{
		name_process(row);
		a->add(a, json_incref(row));
	}
	*ret_cut = json_array_size(rows) == NLDEV_ROWS_MAX;
	return 0;
}

static json_t *status_json(const char *what, int r, const char *why)
{
	return json_pack("{ss ss sb ss?}", "kind", "rdma", "what", what, "on", r == 0, "why",
			 r == 0 ? NULL : why);
}

static int rdma_answer(struct question *q, struct answer *a)
{
	char why[WHY_SIZE] = "";
	bool is_cut = false;
	json_t *o;
	int r;

	r = add_ports(q->collector->sysfs, a, why);
	a->add(a, status_json("ports", r, why));
	if (json_is_true(json_object_get(a->request, "qps"))) {
		r = add_qps(a, &is_cut, why);
		o = status_json("qps", r, why);
		(void)json_object_set_new(o, "cut", json_boolean(is_cut));
		a->add(a, o);
	}
	return 0;
}

static void rdma_doctor(struct question *q, struct answer *a)
{
	cleanup(json_decrefp) json_t *rows = json_array();
	cleanup(freep) struct rdma_port *ports = NULL;
	char why[WHY_SIZE] = "";
	size_t n;
	int r;

	r = find_ports(q->collector->sysfs, &ports, &n, why);
	a->add(a, status_json("ports", r, why));
	r = nldev_read(nldev_open, rows, why);
	a->add(a, status_json("qps", r, why));
}

static struct question *rdma_open(struct collector *c, const char *off)
{
	struct question *q = calloc(1, sizeof(*q));

	(void)off;
	if (q)
		*q = (struct question){.kind = &question_rdma, .collector = c};
	return q;
}

static void rdma_close(struct question *q)
{
	free(q);
}

const struct question_kind question_rdma = {
	.open = rdma_open,
	.close = rdma_close,
	.answer = rdma_answer,
	.doctor = rdma_doctor,
};
