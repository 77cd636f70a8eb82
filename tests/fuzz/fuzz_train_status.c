/*
 * Reads the status of ranks from arbitrary words. The first byte chooses the plan, and bit 7 puts a valid head before the
 * rest; the second one is the process of all ranks.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/train/plan/control.h"
#include "libclient/train/plan/rank_status.h"
#include "tests/fuzz/fuzz.h"

#define HEAD 0x80

static struct weightd_plan *plan_make(uint32_t n_ranks, enum weightd_step_form form)
{
	static const uint64_t shape[] = {24, 16};
	const struct weightd_train_tensor tensor = {.size = sizeof(tensor),
						    .name = "w",
						    .shape = shape,
						    .n_dims = 2,
						    .dtype = WEIGHTD_F32,
						    .role = WEIGHTD_PARAM};
	const struct weightd_group group = {.size = sizeof(group), .eps = 1e-8};
	const struct weightd_mesh_dim dim = {"dp", n_ranks};
	struct weightd_plan_options options = {.size = sizeof(options),
					       .strategy = "shared",
					       .optimizer = WEIGHTD_ADAMW,
					       .groups = &group,
					       .n_groups = 1,
					       .form = form,
					       .n_copies = 1};
	struct weightd_mesh *mesh = NULL;
	struct weightd_plan *p = NULL;

	MUST(weightd_mesh_new(&dim, 1, &mesh) == 0);
	options.mesh = mesh;
	MUST(weightd_plan_new(&tensor, 1, &options, &p) == 0);
	weightd_mesh_free(mesh);
	return p;
}

static void read_ranks(const struct weightd_plan *p, const uint8_t *words, int holder)
{
	for (uint32_t i = 0; i < p->n_ranks; i++) {
		struct weightd_rank_status s;

		rank_status_read(p, words, i, holder, 1ull << 40, &s);
		MUST(s.rank == i && s.pid == holder && weightd_rank_phase_name(s.phase));
		MUST(s.waits_for < p->n_ranks || s.waits_for == UINT32_MAX);
		MUST(s.phase == WEIGHTD_RANK_WAITING || s.waits_for == UINT32_MAX);
		MUST(memchr(s.what, 0, sizeof(s.what)));
		MUST(s.phase == WEIGHTD_RANK_GONE ? isnan(s.since_s)
						  : s.since_s >= 0 && s.since_s < 1e6);
		MUST(s.computing_s >= 0 && s.waiting_s >= 0 && s.updating_s >= 0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct weightd_plan *plans[3];
	const struct weightd_plan *p;
	struct control_head head = {.magic = CONTROL_MAGIC, .abi = CONTROL_ABI};
	uint64_t n;
	uint8_t *words;
	int r;

	if (!plans[0]) {
		plans[0] = plan_make(1, WEIGHTD_STEP_FUSED);
		plans[1] = plan_make(3, WEIGHTD_STEP_TWO_PHASE);
		plans[2] = plan_make(WEIGHTD_RANKS_MAX, WEIGHTD_STEP_FUSED);
	}
	if (size < 2)
		return 0;
	p = plans[(data[0] & ~HEAD) % 3];
	n = data[0] & HEAD ? rank_status_size(p) : size - 2;
	words = calloc(1, n ? n : 1); /* ASan sees a read past the end */
	MUST(words);
	memcpy(words, data + 2, size - 2 < n ? size - 2 : n);
	if (data[0] & HEAD) {
		head.n_ranks = p->n_ranks;
		memcpy(words, &head, sizeof(head));
	}
	r = rank_status_check(p, words, n, "job");
	MUST(r == 0 || r == -ENODATA || r == -EPROTOTYPE);
	if (r == 0)
		read_ranks(p, words, (int)(int8_t)data[1]);
	free(words);
	return 0;
}
