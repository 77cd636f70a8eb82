/*
 * Parses any bytes as an order of an engine: an accepted one fits its memory, and a refusal has a
 * sentence. The first byte is the number of descriptors.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/sync/base/engine_order.h"
#include "tests/fuzz/fuzz.h"

#define MEMORY_SIZE (2 * MIB)

static int memory(void)
{
	int fd = memfd_create("memory", MFD_CLOEXEC);

	MUST(fd >= 0 && ftruncate(fd, (off_t)MEMORY_SIZE) == 0);
	return fd;
}

static void check_order(const struct engine_order *o)
{
	uint64_t total = 0;

	MUST(preamble_is_name(o->node) && strcmp(o->node, o->from) != 0);
	MUST(o->n_addresses <= STRIPES_MAX && o->chunk > 0 && o->stall_ns > 0);
	MUST(o->gpu[0] ? o->n_bytes <= o->map_size : o->data_offset + o->n_bytes <= MEMORY_SIZE);
	MUST(o->result_fd < 0 || o->gpu[0] || o->result_offset + o->result_bytes <= MEMORY_SIZE);
	for (size_t i = 0; i < o->ranges.n; i++) {
		MUST(o->ranges.at[i].size <= o->n_bytes);
		MUST(o->ranges.at[i].offset <= o->n_bytes - o->ranges.at[i].size);
		total += o->ranges.at[i].size;
	}
	MUST(total == o->total && (o->pem_fds[2] >= 0) == o->tls);
}

static void check_start(const json_t *message)
{
	char why[ENGINE_ORDER_WHY_SIZE] = "";
	struct next next;
	struct place place;

	if (engine_order_read_next(message, &next, why) == 0) {
		MUST(!next.node[0] || preamble_is_name(next.node));
		MUST(next.n_ways <= STRIPES_MAX);
		for (unsigned i = 0; i < next.n_ways; i++)
			MUST(next.ways[i].from < STRIPES_MAX && next.ways[i].to.size > 0);
	} else {
		MUST(why[0]);
	}
	if (engine_order_read_place(message, &place, why) == 0)
		MUST(place.rank < place.n_ranks && place.n_ranks >= 2);
}

static void check(struct json_packet *t)
{
	char why[ENGINE_ORDER_WHY_SIZE] = "";
	struct engine_order o;

	if (engine_order_read(t, &o, why) == 0) {
		check_order(&o);
		engine_order_deinit(&o);
	} else {
		MUST(why[0]);
	}
	check_start(t->message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct json_packet t = {.message = NULL};

	if (size == 0)
		return 0;
	t.message = json_loadb((const char *)data + 1, size - 1, JSON_REJECT_DUPLICATES, NULL);
	while (t.n_fds < data[0] % (JSON_PACKET_FDS_MAX + 1u))
		t.fds[t.n_fds++] = memory();
	if (json_is_object(t.message)) /* json_packet.c accepts nothing else */
		check(&t);
	json_packet_deinit(&t);
	return 0;
}
