/*
 * Parses any bytes as the bytes of links, of an engine or a plan: accepted sums do not overflow,
 * for any link.
 */
#include "ipc/base/num.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/state/collective_op.h"
#include "tests/fuzz/fuzz.h"

static void check_links(const struct collective_op *op, const struct flows *f)
{
	for (unsigned i = 0; i < f->n; i++) {
		uint64_t links = 0;

		for (unsigned j = 0; j < f->n; j++) {
			if (i == j)
				continue;
			MUST(op->planned(f, i, j) <= (uint64_t)INT64_MAX / COLLECTIVE_OP_NODES_MAX);
			MUST(op->planned(f, i, j) >= op->bytes(f, i, j));
			links += op->planned(f, j, i);
		}
		MUST(collective_op_planned(op, f, i) == links);
	}
}

static void check_average(const struct collective_op *op, const struct flows *f)
{
	uint64_t total = f->reduced;

	for (unsigned i = 0; i < f->n; i++) {
		MUST(f->at[i].n_pieces <= f->at[i].n_bytes);
		total += f->at[i].n_bytes;
	}
	MUST(op->changed(f) == total);
	check_links(op, f);
}

static void check_reshard(const char *engine, struct flows *f)
{
	const struct collective_op *op = collective_op_find("reshard", engine);
	uint64_t total = 0, most = collective_op_most(&f->plan);

	MUST(op->read(NULL, f->plan.n_nodes, f) == 0);
	for (unsigned i = 0; i < f->n; i++) {
		MUST(op->expected(f, i) <= f->plan.nodes[i].size[MOVES_TO]);
		MUST(op->expected(f, i) <= most);
		total += op->expected(f, i);
	}
	MUST(op->changed(f) == total);
	check_links(op, f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const engines[] = {"gloo", "nccl"};
	cleanup(json_freep) json_t *opened = NULL;
	char why[MOVES_WHY_SIZE];
	struct flows f = {0};

	if (size == 0)
		return 0;
	if (moves_decode_links(data, size, &f.plan, why) == 0) {
		for (unsigned i = 0; i < ARRAY_LEN(engines); i++)
			check_reshard(engines[i], &f);
		moves_deinit(&f.plan);
		return 0;
	}
	opened = json_loadb((const char *)data + 1, size - 1, 0, NULL);
	for (unsigned i = 0; opened && i < ARRAY_LEN(engines); i++) {
		const struct collective_op *op = collective_op_find("average", engines[i]);

		if (op->read(opened, data[0], &f) == 0)
			check_average(op, &f);
	}
	return 0;
}
