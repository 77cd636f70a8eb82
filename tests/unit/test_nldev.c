/*
 * The parser of the kernel's queue pairs and counters accepts its packets, and survives all others.
 *
 * The packets are made here, as drivers/infiniband/core/nldev.c makes them: no machine of these tests has such a
 * device.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <linux/netlink.h>
#include <pthread.h>
#include <rdma/rdma_netlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bpf/rdma/nldev.h"

#define ROOM 4096

/* A packet while it is made; what is open ends with close_table(). */
struct packet {
	_Alignas(struct nlmsghdr) char bytes[ROOM];
	size_t size;
};

static void *put(struct packet *p, size_t size)
{
	void *at = p->bytes + p->size;

	assert_true(p->size + size + NLA_ALIGNTO <= ROOM);
	p->size += (size + NLA_ALIGNTO - 1) & ~(size_t)(NLA_ALIGNTO - 1);
	return at;
}

static void put_attribute(struct packet *p, unsigned type, const void *data, size_t size)
{
	struct nlattr *a = put(p, sizeof(*a) + size);

	a->nla_type = (uint16_t)type;
	a->nla_len = (uint16_t)(sizeof(*a) + size);
	memcpy(a + 1, data, size);
}

static void put_u8(struct packet *p, unsigned type, uint8_t n)
{
	put_attribute(p, type, &n, sizeof(n));
}

static void put_u32(struct packet *p, unsigned type, uint32_t n)
{
	put_attribute(p, type, &n, sizeof(n));
}

static void put_u64(struct packet *p, unsigned type, uint64_t n)
{
	put_attribute(p, type, &n, sizeof(n));
}

static void put_text(struct packet *p, unsigned type, const char *text)
{
	put_attribute(p, type, text, strlen(text) + 1);
}

static struct nlattr *open_table(struct packet *p, unsigned type)
{
	struct nlattr *a = put(p, sizeof(*a));

	a->nla_type = (uint16_t)(type | NLA_F_NESTED);
	return a;
}

static void close_table(struct packet *p, struct nlattr *a)
{
	a->nla_len = (uint16_t)(p->bytes + p->size - (char *)a);
}

static struct nlmsghdr *open_message(struct packet *p, unsigned op)
{
	struct nlmsghdr *h = put(p, sizeof(*h));

	*h = (struct nlmsghdr){.nlmsg_type = (uint16_t)RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, op)};
	return h;
}

static void close_message(struct packet *p, struct nlmsghdr *h)
{
	h->nlmsg_len = (uint32_t)(p->bytes + p->size - (char *)h);
}

static void put_done(struct packet *p, int type, int status)
{
	struct nlmsghdr *h = put(p, sizeof(*h));

	*h = (struct nlmsghdr){.nlmsg_type = (uint16_t)type};
	memcpy(put(p, sizeof(status)), &status, sizeof(status));
	close_message(p, h);
}

static void put_device(struct packet *p)
{
	put_u32(p, RDMA_NLDEV_ATTR_DEV_INDEX, 3);
	put_text(p, RDMA_NLDEV_ATTR_DEV_NAME, "mlx5_1");
}

static void put_qps(struct packet *p)
{
	struct nlmsghdr *h = open_message(p, RDMA_NLDEV_CMD_RES_QP_GET);
	struct nlattr *table, *entry;

	put_device(p);
	table = open_table(p, RDMA_NLDEV_ATTR_RES_QP);
	entry = open_table(p, RDMA_NLDEV_ATTR_RES_QP_ENTRY);
	put_u32(p, RDMA_NLDEV_ATTR_PORT_INDEX, 1);
	put_u32(p, RDMA_NLDEV_ATTR_RES_LQPN, 281);
	put_u32(p, RDMA_NLDEV_ATTR_RES_RQPN, 0xfffffe);
	put_u32(p, RDMA_NLDEV_ATTR_RES_RQ_PSN, 7);
	put_u8(p, RDMA_NLDEV_ATTR_RES_TYPE, 2);
	put_u8(p, RDMA_NLDEV_ATTR_RES_STATE, 3);
	put_u32(p, RDMA_NLDEV_ATTR_RES_PID, 4711);
	close_table(p, entry);
	entry = open_table(p, RDMA_NLDEV_ATTR_RES_QP_ENTRY);
	put_u32(p, RDMA_NLDEV_ATTR_RES_LQPN, 1);
	put_u8(p, RDMA_NLDEV_ATTR_RES_TYPE, 1);
	put_u8(p, RDMA_NLDEV_ATTR_RES_STATE, 200);
	put_text(p, RDMA_NLDEV_ATTR_RES_KERN_NAME, "ib_core");
	close_table(p, entry);
	close_table(p, table);
	close_message(p, h);
}

static void put_value(struct packet *p, const char *name, uint64_t value)
{
	struct nlattr *entry = open_table(p, RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY);

	put_text(p, RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME, name);
	put_u64(p, RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE, value);
	close_table(p, entry);
}

static void put_counters(struct packet *p)
{
	struct nlmsghdr *h = open_message(p, RDMA_NLDEV_CMD_STAT_GET);
	struct nlattr *table, *entry, *within, *qp;

	put_device(p);
	table = open_table(p, RDMA_NLDEV_ATTR_STAT_COUNTER);
	entry = open_table(p, RDMA_NLDEV_ATTR_STAT_COUNTER_ENTRY);
	put_u32(p, RDMA_NLDEV_ATTR_PORT_INDEX, 1);
	put_u32(p, RDMA_NLDEV_ATTR_STAT_COUNTER_ID, 5);
	put_u32(p, RDMA_NLDEV_ATTR_STAT_MODE, RDMA_COUNTER_MODE_AUTO);
	put_u32(p, RDMA_NLDEV_ATTR_RES_PID, 4711);
	within = open_table(p, RDMA_NLDEV_ATTR_RES_QP);
	for (uint32_t i = 0; i < 2; i++) {
		qp = open_table(p, RDMA_NLDEV_ATTR_RES_QP_ENTRY);
		put_u32(p, RDMA_NLDEV_ATTR_RES_LQPN, 281 + i);
		close_table(p, qp);
	}
	close_table(p, within);
	within = open_table(p, RDMA_NLDEV_ATTR_STAT_HWCOUNTERS);
	put_value(p, "out_of_sequence", 3);
	put_value(p, "rx_write_requests", UINT64_C(1) << 40);
	put_value(p, "no number", UINT64_MAX);
	close_table(p, within);
	close_table(p, entry);
	close_table(p, table);
	close_message(p, h);
}

static json_t *parse(const struct packet *p, int wanted)
{
	json_t *rows = json_array();

	assert_int_equal(nldev_parse(p->bytes, p->size, rows), wanted);
	return rows;
}

static size_t n_rows(const struct packet *p, int wanted)
{
	json_t *rows = parse(p, wanted);
	size_t n = json_array_size(rows);

	json_decref(rows);
	return n;
}

/* Takes both. */
static void assert_same(json_t *got, json_t *wanted)
{
	char *a = json_dumps(got, JSON_SORT_KEYS), *b = json_dumps(wanted, JSON_SORT_KEYS);

	assert_non_null(b);
	assert_string_equal(a, b);
	free(a);
	free(b);
	json_decref(got);
	json_decref(wanted);
}

static void test_devices_are_told(void **state)
{
	struct packet p = {};
	struct nlmsghdr *h;

	(void)state;
	h = open_message(&p, RDMA_NLDEV_CMD_GET);
	put_device(&p);
	put_u32(&p, RDMA_NLDEV_ATTR_PORT_INDEX, 2); /* how many it has */
	close_message(&p, h);
	assert_same(parse(&p, 0), json_pack("[{ss sI ss}]", "kind", "device", "index",
					    (json_int_t)3, "device", "mlx5_1"));
}

static void test_queue_pairs_are_told(void **state)
{
	struct packet p = {};

	(void)state;
	put_qps(&p);
	assert_same(parse(&p, 0),
		    json_pack("[{ss ss si si si ss ss si sn sn}, {ss ss sn si sn ss sn sn ss sn}]",
			      "kind", "qp", "device", "mlx5_1", "port", 1, "lqpn", 281, "rqpn",
			      0xfffffe, "type", "rc", "state", "rts", "pid", 4711, "comm",
			      "counter", /* */
			      "kind", "qp", "device", "mlx5_1", "port", "lqpn", 1, "rqpn", "type",
			      "gsi", "state", "pid", "comm", "ib_core", "counter"));
}

static void test_counters_are_told(void **state)
{
	struct packet p = {};

	(void)state;
	put_counters(&p);
	assert_same(parse(&p, 0),
		    json_pack("[{ss ss si si ss si sn s[ii] s{si sI}}]", "kind", "counter",
			      "device", "mlx5_1", "port", 1, "counter", 5, "mode", "auto", "pid",
			      4711, "comm", "qps", 281, 282, "values", "out_of_sequence", 3,
			      "rx_write_requests", (json_int_t)1 << 40));
}

static void test_an_answer_ends(void **state)
{
	struct packet p = {};

	(void)state;
	put_qps(&p);
	put_done(&p, NLMSG_DONE, 0);
	put_qps(&p); /* these belong to another device */
	assert_int_equal(n_rows(&p, 1), 2);
	p.size = 0;
	put_done(&p, NLMSG_ERROR, -EINVAL);
	assert_int_equal(n_rows(&p, -EINVAL), 0);
	p.size = 0;
	put_done(&p, NLMSG_DONE, -EOPNOTSUPP);
	assert_int_equal(n_rows(&p, -EOPNOTSUPP), 0);
}

static void test_what_others_say_is_not_heard(void **state)
{
	struct packet p = {};
	struct nlmsghdr *h;

	(void)state;
	put_counters(&p);
	h = (struct nlmsghdr *)(void *)p.bytes;
	h->nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_LS, RDMA_NLDEV_CMD_STAT_GET);
	assert_int_equal(n_rows(&p, 0), 0);
	h->nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_RES_QP_GET);
	assert_int_equal(n_rows(&p, 0), 0);
}

static void test_they_are_no_more_than_so_many(void **state)
{
	struct packet p = {};
	json_t *rows = json_array();

	(void)state;
	put_qps(&p);
	for (int i = 0; i < NLDEV_ROWS_MAX; i++)
		assert_int_equal(nldev_parse(p.bytes, p.size, rows), 0);
	assert_int_equal(json_array_size(rows), NLDEV_ROWS_MAX);
	json_decref(rows);
}

/* Each length that it could be cut to, and each byte, one after the other: any answer, but no crash. */
static void test_damaged_packets_harm_nobody(void **state)
{
	static const uint8_t damages[] = {0x01, 0x04, 0x80, 0xff};
	struct packet whole = {}, p;
	json_t *rows;

	(void)state;
	put_qps(&whole);
	put_counters(&whole);
	for (size_t size = 0; size < whole.size; size++) {
		char *cut = malloc(size + 1); /* so that a read beyond its end is seen */

		rows = json_array();
		memcpy(cut, whole.bytes, size);
		(void)nldev_parse(cut, size, rows);
		json_decref(rows);
		free(cut);
	}
	for (size_t at = 0; at < whole.size; at++)
		for (size_t i = 0; i < sizeof(damages); i++) {
			p = whole;
			p.bytes[at] = (char)(p.bytes[at] ^ damages[i]);
			rows = json_array();
			(void)nldev_parse(p.bytes, p.size, rows);
			json_decref(rows);
		}
}

/* --- A kernel ----------------------------------------------------------------------------------- */

/* It answers each question in two packets, the last of which only ends it, and takes only those that are right. */
static void *answer_one(void *argument)
{
	int fd = *(int *)argument;
	struct packet p = {};
	struct {
		struct nlmsghdr head;
		struct {
			struct nlattr head;
			uint32_t value;
		} attributes[2];
	} q = {};
	ssize_t n = recv(fd, &q, sizeof(q), 0);
	unsigned op = RDMA_NL_GET_OP(q.head.nlmsg_type);
	bool is_right = n == (ssize_t)q.head.nlmsg_len &&
			RDMA_NL_GET_CLIENT(q.head.nlmsg_type) == RDMA_NL_NLDEV &&
			q.head.nlmsg_flags == (NLM_F_REQUEST | NLM_F_DUMP);

	if (op != RDMA_NLDEV_CMD_GET)
		is_right &= q.attributes[0].head.nla_type == RDMA_NLDEV_ATTR_DEV_INDEX &&
			    q.attributes[0].head.nla_len == 8 && q.attributes[0].value == 3;
	if (is_right && op == RDMA_NLDEV_CMD_GET) {
		struct nlmsghdr *h = open_message(&p, RDMA_NLDEV_CMD_GET);

		put_device(&p);
		close_message(&p, h);
	} else if (is_right && op == RDMA_NLDEV_CMD_RES_QP_GET && n == 24) {
		put_qps(&p);
	} else if (is_right && op == RDMA_NLDEV_CMD_STAT_GET && n == 32 &&
		   q.attributes[1].head.nla_type == RDMA_NLDEV_ATTR_STAT_RES &&
		   q.attributes[1].value == RDMA_NLDEV_ATTR_RES_QP) {
		put_counters(&p);
	} else {
		put_done(&p, NLMSG_ERROR, -EINVAL);
	}
	(void)send(fd, p.bytes, p.size, 0);
	p.size = 0;
	put_done(&p, NLMSG_DONE, 0);
	(void)send(fd, p.bytes, p.size, MSG_NOSIGNAL);
	close(fd);
	return NULL;
}

static int theirs[8];
static pthread_t kernels[8];
static unsigned n_kernels;

static int open_kernel(void)
{
	int fds[2];

	assert_true(n_kernels < 8);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
	theirs[n_kernels] = fds[1];
	assert_int_equal(pthread_create(&kernels[n_kernels], NULL, answer_one, &theirs[n_kernels]),
			 0);
	n_kernels++;
	return fds[0];
}

static int open_none(void)
{
	return -EPROTONOSUPPORT;
}

static void test_a_kernel_is_asked(void **state)
{
	json_t *rows = json_array();
	char why[WHY_SIZE];

	(void)state;
	assert_int_equal(nldev_read(open_kernel, rows, why), 0);
	assert_int_equal(n_kernels, 3);
	while (n_kernels > 0)
		assert_int_equal(pthread_join(kernels[--n_kernels], NULL), 0);
	assert_int_equal(json_array_size(rows), 3);
	/* The first is bound to the counter, the second is not. */
	assert_int_equal(json_integer_value(json_object_get(json_array_get(rows, 0), "counter")), 5);
	assert_true(json_is_null(json_object_get(json_array_get(rows, 1), "counter")));
	assert_string_equal(json_string_value(json_object_get(json_array_get(rows, 2), "kind")),
			    "counter");
	json_decref(rows);
}

static void test_why_it_cannot_be_asked(void **state)
{
	json_t *rows = json_array();
	char why[WHY_SIZE];

	(void)state;
	assert_int_equal(nldev_read(open_none, rows, why), -EPROTONOSUPPORT);
	assert_string_equal(why, "the kernel lists none by netlink: Protocol not supported");
	assert_int_equal(json_array_size(rows), 0);
	json_decref(rows);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_devices_are_told),
		cmocka_unit_test(test_queue_pairs_are_told),
		cmocka_unit_test(test_counters_are_told),
		cmocka_unit_test(test_an_answer_ends),
		cmocka_unit_test(test_what_others_say_is_not_heard),
		cmocka_unit_test(test_they_are_no_more_than_so_many),
		cmocka_unit_test(test_damaged_packets_harm_nobody),
		cmocka_unit_test(test_a_kernel_is_asked),
		cmocka_unit_test(test_why_it_cannot_be_asked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
