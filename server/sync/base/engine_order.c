#include "server/sync/base/engine_order.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/base/limits.h"

#define CHUNK_MIN (64 * KIB)
#define CHUNK_MAX GIB
#define STALL_MAX_MS 3600000
#define RANKS_MAX 65536

void engine_order_init(struct engine_order *o)
{
	*o = (struct engine_order){.memory_fd = -1,
				   .result_fd = -1,
				   .tensors_fd = -1,
				   .plan_fd = -1,
				   .pem_fds = {-1, -1, -1}};
}

void engine_order_deinit(struct engine_order *o)
{
	ranges_deinit(&o->ranges);
	o->memory_fd = fd_close(o->memory_fd);
	o->result_fd = fd_close(o->result_fd);
	o->tensors_fd = fd_close(o->tensors_fd);
	o->plan_fd = fd_close(o->plan_fd);
	for (size_t i = 0; i < ARRAY_LEN(o->pem_fds); i++)
		o->pem_fds[i] = fd_close(o->pem_fds[i]);
}

int engine_order_wrong(char why[ENGINE_ORDER_WHY_SIZE], const char *what)
{
	(void)snprintf(why, ENGINE_ORDER_WHY_SIZE, "the order is wrong: %s", what);
	return -EBADMSG;
}

int engine_order_no_memory(char why[ENGINE_ORDER_WHY_SIZE])
{
	(void)snprintf(why, ENGINE_ORDER_WHY_SIZE, "no memory");
	return -ENOMEM;
}

static int read_name(const json_t *o, const char *key, char ret[PREAMBLE_NAME_SIZE])
{
	const char *name;

	if (field_string_or_null(o, key, PREAMBLE_NAME_SIZE - 1, &name) < 0)
		return -EBADMSG;
	if (name && !preamble_is_name(name))
		return -EBADMSG;
	(void)snprintf(ret, PREAMBLE_NAME_SIZE, "%s", name ? name : "");
	return 0;
}

static int from_digits(const char *text, uint64_t port, struct address *ret)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};

	*ret = (struct address){0};
	if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
		memcpy(&ret->at, &v4, sizeof(v4));
		ret->size = sizeof(v4);
	} else if (inet_pton(AF_INET6, text, &v6.sin6_addr) == 1) {
		memcpy(&ret->at, &v6, sizeof(v6));
		ret->size = sizeof(v6);
	} else {
		return -EBADMSG;
	}
	return 0;
}

int engine_order_read_address(const json_t *o, const char *key, uint64_t port, struct address *ret)
{
	const char *text;

	if (field_string(o, key, INET6_ADDRSTRLEN, &text) < 0)
		return -EBADMSG;
	return from_digits(text, port, ret);
}

static int read_addresses(const json_t *m, struct engine_order *o)
{
	json_t *all = NULL;
	const json_t *text;
	size_t i;

	if (!json_object_get(m, "address"))
		return o->from[0] ? -EBADMSG : 0;
	if (engine_order_read_address(m, "address", 0, &o->address) < 0)
		return -EBADMSG;
	o->addresses[0] = o->address;
	o->n_addresses = 1;
	if (!json_object_get(m, "addresses"))
		return 0;
	if (field_array(m, "addresses", STRIPES_MAX, &all) < 0 || !json_array_size(all))
		return -EBADMSG;
	o->n_addresses = (unsigned)json_array_size(all);
	json_array_foreach(all, i, text) if (!json_is_string(text) ||
					     from_digits(json_string_value(text), 0,
							 &o->addresses[i]) < 0) return -EBADMSG;
	return 0;
}

static int read_operation(const json_t *m, struct engine_order *o, char why[ENGINE_ORDER_WHY_SIZE])
{
	static const char *const names[] = {"broadcast", "average", "exchange"};
	const char *operation = NULL;
	unsigned i = 0;

	_Static_assert(ARRAY_LEN(names) == ENGINE_ORDER_OPERATIONS, "each has one");
	if (field_string_or_null(m, "operation", 9, &operation) < 0)
		i = ENGINE_ORDER_OPERATIONS;
	while (operation && i < ENGINE_ORDER_OPERATIONS && strcmp(operation, names[i]) != 0)
		i++;
	if (i == ENGINE_ORDER_OPERATIONS)
		return engine_order_wrong(
			why, "`operation` must be \"broadcast\", \"average\" or \"exchange\"");
	o->operation = (enum engine_order_operation)i;
	return 0;
}

static int read_names(const json_t *m, struct engine_order *o, char why[ENGINE_ORDER_WHY_SIZE])
{
	if (read_name(m, "node", o->node) < 0 || !o->node[0])
		return engine_order_wrong(why, "`node` must be 1 to 63 of a-z, 0-9, '.' and '-'");
	if (read_name(m, "from", o->from) < 0)
		return engine_order_wrong(why, "`from` must be the name of a node, or null");
	if (!strcmp(o->node, o->from))
		return engine_order_wrong(why, "a node cannot send to itself");
	if (field_bytes(m, "sync", o->sync, sizeof(o->sync)) < 0)
		return engine_order_wrong(why, "`sync` must be 16 hexadecimal digits");
	if (field_number(m, "epoch", INT64_MAX, &o->epoch) < 0)
		return engine_order_wrong(why, "`epoch` must be a number");
	if ((o->from[0] || o->operation != ENGINE_ORDER_BROADCAST) &&
	    field_bytes(m, "token", o->token, sizeof(o->token)) < 0)
		return engine_order_wrong(why, "`token` must be 64 hexadecimal digits");
	if (read_addresses(m, o) < 0)
		return engine_order_wrong(
			why, "`address` must be one of IPv4 or IPv6, in digits, and `addresses` up "
			     "to 8 of them");
	return 0;
}

static int read_numbers(const json_t *m, struct engine_order *o, char why[ENGINE_ORDER_WHY_SIZE])
{
	const char *security;
	uint64_t stall_ms;

	if (field_number(m, "n_bytes", INT64_MAX, &o->n_bytes) < 0)
		return engine_order_wrong(why, "`n_bytes` must be a number");
	if (o->operation == ENGINE_ORDER_EXCHANGE &&
	    field_number(m, "result_bytes", INT64_MAX, &o->result_bytes) < 0)
		return engine_order_wrong(why, "`result_bytes` must be a number");
	if (field_number_or(m, "data_offset", DATA_OFFSET_MAX, 0, &o->data_offset) < 0 ||
	    field_number_or(m, "result_offset", DATA_OFFSET_MAX, 0, &o->result_offset) < 0)
		return engine_order_wrong(
			why, "`data_offset` and `result_offset` must be up to 134217728");
	if (o->operation == ENGINE_ORDER_BROADCAST &&
	    ranges_from_json(json_object_get(m, "ranges"), o->n_bytes, &o->ranges) < 0)
		return engine_order_wrong(why,
					  "`ranges` must be [[offset, size], ...] within `n_bytes`");
	o->total = ranges_total(&o->ranges);
	if (field_number(m, "chunk", CHUNK_MAX, &o->chunk) < 0 || o->chunk < CHUNK_MIN)
		return engine_order_wrong(why, "`chunk` must be 64 KiB to 1 GiB");
	if (field_number(m, "stall_ms", STALL_MAX_MS, &stall_ms) < 0 || stall_ms == 0)
		return engine_order_wrong(why, "`stall_ms` must be 1 to 3600000");
	o->stall_ns = stall_ms * 1000000;
	if (field_string(m, "security", 4, &security) < 0 ||
	    (strcmp(security, "none") != 0 && strcmp(security, "tls") != 0))
		return engine_order_wrong(why, "`security` must be \"none\" or \"tls\"");
	o->tls = !strcmp(security, "tls");
	if (field_bool_or(m, "traced", false, &o->is_traced) < 0)
		return engine_order_wrong(why, "`traced` must be true or false");
	return 0;
}

static uint64_t result_bytes(const struct engine_order *o)
{
	return o->operation == ENGINE_ORDER_AVERAGE ? o->n_bytes : o->result_bytes;
}

static int read_memory(const json_t *m, struct engine_order *o, char why[ENGINE_ORDER_WHY_SIZE])
{
	const char *kind, *gpu;

	if (field_string_or_null(m, "memory", 4, &kind) < 0 ||
	    (kind && strcmp(kind, "host") != 0 && strcmp(kind, "cuda") != 0))
		return engine_order_wrong(why, "`memory` must be \"host\" or \"cuda\"");
	if (!kind || strcmp(kind, "cuda") != 0)
		return 0;
	if (field_string(m, "gpu", sizeof(o->gpu) - 1, &gpu) < 0)
		return engine_order_wrong(why, "`gpu` must be the GPU of the memory");
	if (field_number_or(m, "map_size", INT64_MAX, 0, &o->map_size) < 0 ||
	    o->map_size < o->n_bytes)
		return engine_order_wrong(why,
					  "`map_size` must be a number, and `n_bytes` at least");
	if (field_number_or(m, "result_map_size", INT64_MAX, 0, &o->result_map_size) < 0 ||
	    o->result_map_size < result_bytes(o))
		return engine_order_wrong(
			why, "`result_map_size` must be a number, and the result's bytes at least");
	(void)snprintf(o->gpu, sizeof(o->gpu), "%s", gpu);
	return 0;
}

/* A descriptor of GPU memory does not contain its size. */
static int check_size(const struct engine_order *o, int fd, uint64_t at, uint64_t n_bytes,
		      char why[ENGINE_ORDER_WHY_SIZE])
{
	uint64_t size;

	if (!o->gpu[0] && (fd_size(fd, &size) < 0 || size < at || size - at < n_bytes))
		return engine_order_wrong(why, "the memory is smaller than `n_bytes`");
	return 0;
}

/* With TLS, the CA, certificate and key are the last ones. */
static int take_pems(struct json_packet *t, struct engine_order *o, char why[ENGINE_ORDER_WHY_SIZE])
{
	if (!o->tls)
		return 0;
	if (t->n_fds < ARRAY_LEN(o->pem_fds))
		return engine_order_wrong(why, "CA, certificate and key must be attached");
	t->n_fds -= (unsigned)ARRAY_LEN(o->pem_fds);
	for (size_t i = 0; i < ARRAY_LEN(o->pem_fds); i++)
		o->pem_fds[i] = take_fd(t->fds[t->n_fds + i]);
	return 0;
}

static int take_broadcast_fds(struct json_packet *t, struct engine_order *o,
			      char why[ENGINE_ORDER_WHY_SIZE])
{
	if (t->n_fds != 1)
		return engine_order_wrong(why,
					  o->tls ? "memory, CA, certificate and key must be attached"
						 : "the memory must be attached, and nothing else");
	o->memory_fd = take_fd(t->fds[0]);
	return check_size(o, o->memory_fd, o->data_offset, o->n_bytes, why);
}

static int take_average_fds(struct json_packet *t, struct engine_order *o,
			    char why[ENGINE_ORDER_WHY_SIZE])
{
	int r;

	if (t->n_fds != 3)
		return engine_order_wrong(
			why, "source, result and the table of tensors must be attached");
	o->memory_fd = take_fd(t->fds[0]);
	o->result_fd = take_fd(t->fds[1]);
	o->tensors_fd = take_fd(t->fds[2]);
	r = check_size(o, o->memory_fd, o->data_offset, o->n_bytes, why);
	return r < 0 ? r : check_size(o, o->result_fd, o->result_offset, o->n_bytes, why);
}

/* A source or result of 0 bytes has no descriptor. */
static int take_exchange_fds(struct json_packet *t, struct engine_order *o,
			     char why[ENGINE_ORDER_WHY_SIZE])
{
	unsigned n = 0;
	int r = 0;

	if (t->n_fds != 1u + (o->n_bytes > 0) + (o->result_bytes > 0))
		return engine_order_wrong(
			why, "a source of `n_bytes`, a result of `result_bytes`, where there are "
			     "any, and the plan must be attached");
	if (o->n_bytes > 0) {
		o->memory_fd = take_fd(t->fds[n++]);
		r = check_size(o, o->memory_fd, o->data_offset, o->n_bytes, why);
	}
	if (r == 0 && o->result_bytes > 0) {
		o->result_fd = take_fd(t->fds[n++]);
		r = check_size(o, o->result_fd, o->result_offset, o->result_bytes, why);
	}
	o->plan_fd = take_fd(t->fds[n]);
	return r;
}

static int take_fds(struct json_packet *t, struct engine_order *o, char why[ENGINE_ORDER_WHY_SIZE])
{
	static int (*const take[])(struct json_packet *, struct engine_order *,
				   char[ENGINE_ORDER_WHY_SIZE]) = {
		[ENGINE_ORDER_BROADCAST] = take_broadcast_fds,
		[ENGINE_ORDER_AVERAGE] = take_average_fds,
		[ENGINE_ORDER_EXCHANGE] = take_exchange_fds,
	};
	int r = take_pems(t, o, why);

	return r < 0 ? r : take[o->operation](t, o, why);
}

int engine_order_read(struct json_packet *t, struct engine_order *ret,
		      char why[ENGINE_ORDER_WHY_SIZE])
{
	struct engine_order o;
	int r;

	engine_order_init(&o);
	r = read_operation(t->message, &o, why);
	if (r == 0)
		r = read_names(t->message, &o, why);
	if (r == 0)
		r = read_numbers(t->message, &o, why);
	if (r == 0)
		r = read_memory(t->message, &o, why);
	if (r == 0)
		r = take_fds(t, &o, why);
	if (r < 0) {
		engine_order_deinit(&o);
		return r;
	}
	*ret = o;
	return 0;
}

static int read_ways(const json_t *to, struct next *n)
{
	json_t *all;
	const json_t *way;
	size_t i;
	uint64_t port, from;

	if (!json_object_get(to, "stripes"))
		return 0;
	if (field_array(to, "stripes", STRIPES_MAX, &all) < 0)
		return -EBADMSG;
	json_array_foreach(all, i, way)
	{
		if (field_number(way, "port", UINT16_MAX, &port) < 0 || port == 0 ||
		    engine_order_read_address(way, "address", port, &n->ways[i].to) < 0 ||
		    field_number(way, "from", STRIPES_MAX - 1, &from) < 0)
			return -EBADMSG;
		n->ways[i].from = (unsigned)from;
	}
	n->n_ways = (unsigned)json_array_size(all);
	return 0;
}

int engine_order_read_rate(const json_t *message, uint64_t *ret, char why[ENGINE_ORDER_WHY_SIZE])
{
	uint64_t rate;

	if (field_number_or(message, "max_rate", INT64_MAX, 0, &rate) < 0 ||
	    (rate && rate < ENGINE_ORDER_RATE_MIN))
		return engine_order_wrong(why,
					  "`max_rate` must be 0 or at least 65536 bytes a second");
	*ret = rate;
	return 0;
}

int engine_order_read_place(const json_t *message, struct place *ret,
			    char why[ENGINE_ORDER_WHY_SIZE])
{
	struct place p = {0};
	uint64_t rank, n_ranks;

	if (engine_order_read_rate(message, &p.max_rate, why) < 0)
		return -EBADMSG;
	if (field_number(message, "n_ranks", RANKS_MAX, &n_ranks) < 0 || n_ranks < 2)
		return engine_order_wrong(why, "`n_ranks` must be 2 to 65536");
	if (field_number(message, "rank", n_ranks - 1, &rank) < 0)
		return engine_order_wrong(why, "`rank` must be less than `n_ranks`");
	if (field_bytes(message, "hello", p.id, sizeof(p.id)) < 0)
		return engine_order_wrong(
			why, "`hello` must be that of the source, 256 hexadecimal digits");
	p.rank = (unsigned)rank;
	p.n_ranks = (unsigned)n_ranks;
	*ret = p;
	return 0;
}

int engine_order_read_next(const json_t *message, struct next *ret, char why[ENGINE_ORDER_WHY_SIZE])
{
	const json_t *to = json_object_get(message, "next");
	struct next n = {0};
	uint64_t port;

	if (engine_order_read_rate(message, &n.max_rate, why) < 0)
		return -EBADMSG;
	if (!to)
		return engine_order_wrong(why, "`next` must be present, or null");
	if (json_is_null(to)) {
		*ret = n;
		return 0;
	}
	if (read_name(to, "node", n.node) < 0 || !n.node[0])
		return engine_order_wrong(why,
					  "`next.node` must be 1 to 63 of a-z, 0-9, '.' and '-'");
	if (field_number(to, "port", UINT16_MAX, &port) < 0 || port == 0)
		return engine_order_wrong(why, "`next.port` must be 1 to 65535");
	if (engine_order_read_address(to, "address", port, &n.address) < 0)
		return engine_order_wrong(why,
					  "`next.address` must be one of IPv4 or IPv6, in digits");
	if (field_bytes(to, "token", n.token, sizeof(n.token)) < 0)
		return engine_order_wrong(why, "`next.token` must be 64 hexadecimal digits");
	if (read_ways(to, &n) < 0)
		return engine_order_wrong(why,
					  "`next.stripes` must be up to 8 of {address, port, from}");
	*ret = n;
	return 0;
}
