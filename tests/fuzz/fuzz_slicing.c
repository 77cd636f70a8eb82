/* Any bytes as rules of tensor parallelism: the shares that accepted ones give to ranks lie in the dimension, in order. */
#include <string.h>

#include "ipc/base/num.h"
#include "ipc/reshard/slicing_read.h"
#include "tests/fuzz/fuzz.h"

static void check_cut(const struct slicing *s, const struct slicing_rule *rule, uint64_t n,
		      unsigned rank, unsigned world)
{
	struct slicing_range ranges[SLICING_PARTS_MAX];
	char why[SLICING_WHY_SIZE] = "";
	unsigned n_ranges;
	uint64_t end = 0;

	if (slicing_cut(s, rule, n, rank, world, ranges, &n_ranges, why) < 0) {
		MUST(why[0] && memchr(why, '\0', sizeof(why)));
		return;
	}
	MUST(n_ranges <= SLICING_PARTS_MAX);
	for (unsigned i = 0; i < n_ranges; i++) {
		MUST(ranges[i].size > 0 && ranges[i].first >= end && ranges[i].first <= n &&
		     ranges[i].size <= n - ranges[i].first);
		end = ranges[i].first + ranges[i].size;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const names[] = {"a", "model.layers.0.self_attn.q_proj.weight",
					    "h.1.attn.c_attn.bias"};
	static const uint64_t sizes[] = {0, 1, 48, 50257, INT64_MAX};
	static const unsigned worlds[] = {1, 2, 3, 8, SLICING_WORLD_MAX};
	char why[SLICING_WHY_SIZE] = "";
	struct slicing s;
	unsigned line;

	if (slicing_read((const char *)data, size, &s, &line, why) < 0) {
		MUST(why[0] && memchr(why, '\0', sizeof(why)));
		for (const char *p = why; *p; p++)
			MUST((unsigned char)*p >= 0x20 && *p != 0x7f);
		return 0;
	}
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		const struct slicing_rule *rule = slicing_find(&s, names[i]);

		for (size_t k = 0; rule && rule->dim != SLICING_WHOLE && k < ARRAY_LEN(sizes); k++)
			for (size_t w = 0; w < ARRAY_LEN(worlds); w++)
				check_cut(&s, rule, sizes[k], worlds[w] - 1, worlds[w]);
	}
	slicing_deinit(&s);
	return 0;
}
