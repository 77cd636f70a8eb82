/*
 * The two forms of a plan, JSON and binary: what is written is read, and nothing else is.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/train_model.h"

#define ROUNDS 100
#define GOLDEN "tests/unit/train_plan.json"

/* --- Round trips -------------------------------------------------------------------------------- */

static void assert_equal_plans(const struct weightd_plan *a, const struct weightd_plan *b)
{
	uint8_t hash_a[16], hash_b[16];
	char *json_a, *json_b, difference[256];

	assert_int_equal(a->image_size, b->image_size);
	assert_memory_equal(a->image, b->image, a->image_size);
	weightd_plan_hash(a, hash_a);
	weightd_plan_hash(b, hash_b);
	assert_memory_equal(hash_a, hash_b, sizeof(hash_a));
	assert_int_equal(weightd_plan_compare(a, b, difference, sizeof(difference)), 0);
	assert_string_equal(difference, "");
	/* The JSON has what is derived, too. */
	assert_int_equal(weightd_plan_json(a, &json_a), 0);
	assert_int_equal(weightd_plan_json(b, &json_b), 0);
	assert_string_equal(json_a, json_b);
	free(json_a);
	free(json_b);
}

static void plans_survive_both_of_their_forms_bit_for_bit(void **state)
{
	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct weightd_plan *p, *again = NULL;
		struct model m;
		uint64_t size;
		const void *image;
		char *json;

		model_draw(&m);
		for (size_t i = 0; i < ARRAY_LEN(m.groups); i++)
			m.groups[i].weight_decay = (double)random() / 3e12;
		if (model_is_possible(&m)) {
			p = model_plan(&m);
			image = weightd_plan_image(p, &size);
			assert_int_equal(weightd_plan_parse(image, size, &again), 0);
			assert_equal_plans(p, again);
			weightd_plan_free(again);
			assert_int_equal(weightd_plan_json(p, &json), 0);
			if (weightd_plan_parse_json(json, strlen(json), &again) < 0)
				fail_msg("%s", weightd_train_error());
			assert_equal_plans(p, again);
			free(json);
			weightd_plan_free(again);
			weightd_plan_free(p);
		}
		model_deinit(&m);
	}
}

/* People keep plans as files: a change of these bytes, or of the hash in them, is a change of the format. */
static void json_of_a_small_model_is_as_it_was(void **state)
{
	char golden[32768] = "";
	struct weightd_plan *p;
	struct model m;
	FILE *f = fopen(GOLDEN, "re");
	char *json;

	(void)state;
	assert_non_null(f);
	golden[fread(golden, 1, sizeof(golden) - 1, f)] = 0;
	(void)fclose(f);
	model_init_small(&m, "zero1");
	m.options.form = WEIGHTD_STEP_TWO_PHASE;
	m.options.bucket_bytes = 256;
	p = model_plan_of_release(&m, "0.1.0");
	assert_int_equal(weightd_plan_json(p, &json), 0);
	if (strcmp(golden, json)) {
		(void)puts(json);
		fail_msg("this is not " GOLDEN);
	}
	free(json);
	weightd_plan_free(p);
	model_deinit(&m);
}

/* --- Hostile input ------------------------------------------------------------------------------ */

static void check_hostile_image(const void *image, uint64_t size)
{
	struct weightd_plan *p = NULL;
	int r = weightd_plan_parse(image, size, &p);

	if (r == 0) {
		assert_int_equal(p->image_size, size);
		assert_memory_equal(p->image, image, size);
		weightd_plan_free(p);
		return;
	}
	assert_int_equal(r, -EBADMSG);
	assert_true(strlen(weightd_train_error()) > 0);
	assert_null(p);
}

static void damage_images(const char *strategy, uint32_t n_nodes)
{
	struct weightd_plan *p;
	struct model m;
	uint8_t *image;

	model_init_small(&m, strategy);
	m.options.n_nodes = n_nodes;
	m.tensors[1].unit = m.tensors[2].unit = 1;
	p = model_plan(&m);
	for (uint64_t size = 0; size < p->image_size; size++) {
		struct weightd_plan *none = NULL;

		image = malloc(size + 1); /* exactly as large, for sanitizers */
		memcpy(image, p->image, size);
		assert_int_equal(weightd_plan_parse(image, size, &none), -EBADMSG);
		free(image);
	}
	image = malloc(p->image_size + 1);
	for (uint64_t i = 0; i < p->image_size * 8; i++) {
		memcpy(image, p->image, p->image_size);
		image[i / 8] ^= (uint8_t)(1 << i % 8);
		check_hostile_image(image, p->image_size);
	}
	memcpy(image, p->image, p->image_size);
	image[p->image_size] = 0;
	assert_int_equal(weightd_plan_parse(image, p->image_size + 1, &p), -EBADMSG);
	assert_string_equal(weightd_train_error(), "the plan has 1 bytes behind its last tensor");
	free(image);
	weightd_plan_free(p);
	model_deinit(&m);
}

static void damaged_images_are_refused_or_are_plans(void **state)
{
	(void)state;
	damage_images("shared", 1);
	damage_images("zero3", 3);
}

static void replace(const char *json, const char *from, const char *to, const char *sentence)
{
	const char *at = strstr(json, from);
	struct weightd_plan *p = NULL;
	char *text = malloc(strlen(json) + strlen(to) + 1);

	if (!at)
		fail_msg("the JSON lacks %s", from);
	(void)sprintf(text, "%.*s%s%s", (int)(at - json), json, to, at + strlen(from));
	assert_int_equal(weightd_plan_parse_json(text, strlen(text), &p), -EBADMSG);
	if (!strstr(weightd_train_error(), sentence))
		fail_msg("'%s' lacks '%s'", weightd_train_error(), sentence);
	assert_null(p);
	free(text);
}

static void json_that_is_no_plan_is_refused_by_the_path_of_the_member(void **state)
{
	static const struct {
		const char *from, *to, *sentence;
	} cases[] = {
		{"{", "[", "the plan is not JSON: line "},
		{"\"format\": \"weightd-plan 4\"", "\"format\": \"weightd-plan 1\"",
		 "format of the plan must be \"weightd-plan 4\""},
		{"\"grad_dtype\": \"F32\"", "\"grad_dtype\": \"F99\"",
		 "grad_dtype of the plan must be an element type"},
		{"\"scaling\": null", "\"scaling\": 1",
		 "scaling of the plan must be null or an object"},
		{"\"scaling\": null", "\"scaling\": {\"init\": 1, \"growth\": 2, \"backoff\": 1}",
		 "scaling.interval of the plan must be an integer"},
		{"\"frozen\": false", "\"frozen\": 0",
		 "tensors[0].frozen of the plan must be true or false"},
		{"\"release\": \"", "\"release\": \"!", "is no release"},
		{"\"name\": \"dp\"", "\"name\": 3", "mesh[0].name of the plan must be a string"},
		{"\"size\": 3", "\"size\": -3", "mesh[0].size of the plan must be an integer"},
		{"\"n_nodes\": 1,", "", "n_nodes of the plan must be an integer"},
		{"\"n_nodes\": 1", "\"n_nodes\": 0",
		 "n_nodes of the plan does not follow from its options, which make it 1"},
		{"\"n_nodes\": 1", "\"n_nodes\": 2", "3 ranks cannot be on 2 nodes"},
		{"\"n_nodes\": 1", "\"n_nodes\": 4294967295", "4294967295 nodes are too many"},
		{"\"sync_every\": 0", "\"sync_every\": 1", "sync_every is 1, and there is one node"},
		{"\"sync_every\": 0", "\"sync_every\": -1",
		 "sync_every of the plan must be an integer"},
		{"\"n_exchanges\": 0", "\"n_exchanges\": 1",
		 "n_exchanges of the plan does not follow"},
		{"\"exchange\": null", "\"exchange\": 1",
		 "ops[0].exchange of the plan does not follow"},
		{"\"every\": 1", "\"every\": 2", "ops[0].every of the plan does not follow"},
		{"\"strategy\": \"zero1\"", "\"strategy\": \"zero\"",
		 "the strategy 'zero' is unknown"},
		{"\"optimizer\": \"adamw\"", "\"optimizer\": \"lion\"",
		 "optimizer of the plan must be \"adamw\", \"adam\" or \"sgd\""},
		{"\"form\": \"two-phase\"", "\"form\": \"auto\"", "form of the plan must be"},
		{"\"bucket_bytes\": 256", "\"bucket_bytes\": \"1\"",
		 "bucket_bytes of the plan must be"},
		{"\"bucket_bytes\": 256", "\"bucket_bytes\": 0",
		 "bucket_bytes of the plan does not follow from its options, which make it 26214400"},
		{"\"overlap\": false", "\"overlap\": null",
		 "overlap of the plan must be true or false"},
		{"\"journal\": true,", "", "journal of the plan must be true or false"},
		{"\"beta1\": ", "\"beta1\": 1", "parameter group 0 has betas 1"},
		{"\"eps\": ", "\"eps\": false, \"e\": ", "groups[0].eps of the plan must be a number"},
		{"\"dtype\": \"F32\"", "\"dtype\": \"F99\"", "tensors[0].dtype of the plan must be"},
		{"\"role\": \"param\"", "\"role\": \"\"", "tensors[0].role of the plan must be"},
		{"\"unit\": 0", "\"unit\": 1",
		 "tensors[0].unit of the plan does not follow from its options, which make it 0"},
		{"\"keeps_units\": false", "\"keeps_units\": true",
		 "keeps_units is for the strategy 'zero3', and this one is 'zero1'"},
		{"\"group\": 1", "\"group\": 4294967296", "tensors[0].group of the plan must be"},
		{"\"shape\": [", "\"shape\": [ -1,", "tensors[0].shape[0] of the plan must be"},
		{"\"offset\": 0", "\"offset\": 64",
		 "tensors[0].offset of the plan does not follow from its options, which make it 0"},
		{"\"n_elements\": 448", "\"n_elements\": 480",
		 "n_elements of the plan does not follow"},
		{"\"cuts\": [", "\"cuts\": [ 0,", "cuts of the plan has 5 values"},
		{"\"stride\": ", "\"stride\": 1", "parts[0].stride of the plan does not follow"},
		{"\"lag\": 0", "\"lag\": 1", "ops[0].lag of the plan does not follow"},
		{"\"waits\": \"PARAM\"", "\"waits\": null",
		 "ops[0].waits of the plan does not follow from its options, which make it \"PARAM\""},
		{"\"hash\": \"", "\"hash\": \"0", "hash of the plan does not follow"},
		{"\"staleness\": 0", "\"staleness\": 0, \"extra\": 1",
		 "the top of the plan has a member 'extra', which is unknown"},
		{"\"staleness\": 0", "\"staleness\": 0, \"staleness\": 0", "the plan is not JSON"},
		{"\"sent\": 0", "\"sent\": 0, \"x\": 0",
		 "traffic[0] of the plan has a member 'x', which is unknown"},
		{"\"read\": ", "\"was\": ", "traffic[0].read of the plan is missing"},
	};
	struct weightd_plan *p;
	struct model m;
	char *json;

	(void)state;
	model_init_small(&m, "zero1");
	m.options.form = WEIGHTD_STEP_TWO_PHASE;
	m.options.bucket_bytes = 256;
	p = model_plan(&m);
	assert_int_equal(weightd_plan_json(p, &json), 0);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		replace(json, cases[i].from, cases[i].to, cases[i].sentence);
	assert_int_equal(weightd_plan_parse_json("[]", 2, &p), -EBADMSG);
	assert_string_equal(weightd_train_error(), "the plan must be a JSON object");
	free(json);
	weightd_plan_free(p);
	model_deinit(&m);
}

/* Units too: they follow from the tensors, and so do rooms and what is asked for. */
static void json_with_forged_units_is_refused(void **state)
{
	static const struct {
		const char *from, *to, *sentence;
	} cases[] = {
		{"\"unit\": 1", "\"unit\": 2", "'h.0.bias' is in unit 2, where unit 1 is next"},
		{"\"unit\": 1", "\"unit\": -1", "tensors[1].unit of the plan must be an integer"},
		{"\"unit\": 1", "\"unit\": 0", "'h.0.bias' has level 1, and its unit 0 has level 0"},
		{"\"n_asked\": ", "\"n_asked\": 1", "n_asked of the plan does not follow"},
		{"\"level\": 1", "\"level\": 8", "'h.0.bias' has level 8"},
		{"\"level\": 1,", "", "tensors[1].level of the plan must be an integer"},
		{"\"keeps_units\": false", "\"keeps_units\": true",
		 "of the plan does not follow from its options"},
		{"\"without_prefetch\": false", "\"without_prefetch\": 1",
		 "without_prefetch of the plan must be true or false"},
		{"\"overlap\": true", "\"overlap\": false",
		 "overlap of the plan does not follow from its options, which make it true"},
		/* The first FETCH. */
		{"\"bucket\": 1", "\"bucket\": null",
		 "ops[1].bucket of the plan does not follow from its options, which make it 1"},
		{"\"room\": 0", "\"room\": 1",
		 "units[0].room of the plan does not follow from its options, which make it 0"},
		{"\"rooms\": [", "\"rooms\": [ 1,", "rooms of the plan has 3 values"},
	};
	struct weightd_plan *p;
	struct model m;
	char *json;

	(void)state;
	model_init_small(&m, "zero3");
	m.options.n_nodes = 3;
	m.tensors[1].unit = m.tensors[2].unit = 1;
	m.tensors[1].level = m.tensors[2].level = 1;
	p = model_plan(&m);
	assert_int_equal(weightd_plan_json(p, &json), 0);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		replace(json, cases[i].from, cases[i].to, cases[i].sentence);
	free(json);
	weightd_plan_free(p);
	model_deinit(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plans_survive_both_of_their_forms_bit_for_bit),
		cmocka_unit_test(json_of_a_small_model_is_as_it_was),
		cmocka_unit_test(damaged_images_are_refused_or_are_plans),
		cmocka_unit_test(json_that_is_no_plan_is_refused_by_the_path_of_the_member),
		cmocka_unit_test(json_with_forged_units_is_refused),
	};

	srandom(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
