/*
 * Parses an arbitrary plan, as JSON or in its binary form by the first byte: what is accepted is written again, and is then
 * the same plan.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/train/plan/control.h"
#include "tests/fuzz/fuzz.h"

static void check_rest(const struct weightd_plan *p)
{
	struct weightd_traffic t = {.size = sizeof(t)};
	uint64_t end = 0;

	for (uint32_t r = 0; r < p->n_ranks; r++) {
		struct plan_interval updated = plan_updated(p, r);

		MUST(updated.begin <= updated.end && updated.end <= p->n_elements);
		MUST(plan_copy(p, r) < p->n_copies);
		MUST(weightd_plan_traffic(p, r, &t) == 0);
	}
	for (uint32_t i = 0; i < p->n_runs; i++) {
		MUST(p->runs[i].interval.begin == end && p->runs[i].group < p->n_groups);
		end = p->runs[i].interval.end;
	}
	MUST(end == p->n_elements);
	MUST(control_layout(p).size == weightd_plan_bytes(p, WEIGHTD_KIND_JOURNAL));
	for (uint32_t i = 0; i < p->n_parts; i++)
		MUST(p->parts[i].n * p->parts[i].stride / p->parts[i].stride == p->parts[i].n);
}

static void check_again(const struct weightd_plan *p)
{
	struct weightd_plan *again = NULL;
	char *json = NULL, difference[64];
	uint64_t size;
	const void *image = weightd_plan_image(p, &size);

	MUST(weightd_plan_parse(image, size, &again) == 0);
	MUST(weightd_plan_compare(p, again, difference, sizeof(difference)) == 0);
	weightd_plan_free(again);
	MUST(weightd_plan_json(p, &json) == 0);
	MUST(weightd_plan_parse_json(json, strlen(json), &again) == 0);
	MUST(weightd_plan_compare(p, again, difference, sizeof(difference)) == 0);
	weightd_plan_free(again);
	free(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct weightd_plan *p = NULL;
	int r;

	if (size == 0)
		return 0;
	r = data[0] == 'J' ? weightd_plan_parse_json((const char *)data + 1, size - 1, &p)
			   : weightd_plan_parse(data + 1, size - 1, &p);
	if (r < 0) {
		MUST(r == -EBADMSG && !p && weightd_train_error()[0]);
		return 0;
	}
	check_rest(p);
	check_again(p);
	weightd_plan_free(p);
	return 0;
}
