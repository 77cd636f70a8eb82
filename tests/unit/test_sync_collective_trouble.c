/* Averages, pushes and reshards in the midst of all kinds of trouble at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "collective_scene.h"
#include "ipc/base/num.h"
#include "sim_reshard.h"
#include "sim_trouble.h"

#define S SIM_SECOND

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_SEEDS 60
#else
#define N_SEEDS 300
#endif
/* The deadlines of all phases allow no longer sync, with any number of restarts. */
#define LONGEST_EVER (400 * S)

static unsigned some(struct sim *s)
{
	return 1 + (unsigned)sim_random(s, (1u << s->options.n_nodes) - 1);
}

static void ask_for_something(struct sim *s, unsigned node)
{
	static const char *const BUFFERS[] = {SIM_BUFFER, "other"};
	const char *buffer = BUFFERS[sim_random(s, 2)];
	uint64_t what = sim_random(s, 8);
	char sync[SYNC_ID_SIZE];

	if (what < 2)
		(void)sim_train(s, (unsigned)sim_random(s, s->options.n_nodes), buffer);
	else if (!s->nodes[node].agent)
		return;
	else if (what < 4)
		(void)sim_push(s, node, sync);
	else if (what < 6)
		(void)sim_reshard(s, node, some(s), some(s), sync);
	else
		(void)sim_average(s, node, buffer, sync);
}

/* Each node gets its part of all contents. */
static void assert_reshards(struct sim *s)
{
	unsigned all = (1u << s->options.n_nodes) - 1;
	char sync[SYNC_ID_SIZE];

	sim_run(s, LONGEST_EVER); /* a target waits for lost bytes without any job */
	assert_int_equal(sim_reshard(s, 0, all, all, sync), 0);
	assert_ends(s, "committed", 60 * S);
	for (unsigned i = 0; i < s->options.n_nodes; i++) {
		const struct sim_made *shard = sim_shard_of(s, sim_serves_of(s, i, SIM_SHARDS));

		assert_non_null(shard);
		assert_string_equal(shard->sync, sync);
	}
}

static void play(uint64_t seed)
{
	unsigned n = 2 + (unsigned)(seed % 4);
	struct sim *s = sim_new(&(struct sim_options){.n_nodes = n,
						      .n_publishers = 2,
						      .policy = (enum policy)(seed % 3),
						      .n_changed = seed % 5 * 3 * MIB,
						      .as_frames = seed % 2,
						      .seed = seed});

	for (unsigned i = 0; i < n; i++) {
		s->nodes[i].others = 1;
		(void)sim_train(s, i, "other");
		(void)sim_train(s, i, SIM_BUFFER);
	}
	sim_trouble(s, 80, ask_for_something);
	sim_end_trouble(s);
	assert_true(sim_run_until(s, sim_is_idle, 400 * S));
	assert_true(s->longest_ns < LONGEST_EVER);
	assert_well(s);
	assert_reshards(s);
	sim_free(s);
}

static void test_random_trouble_ends_with_the_same_everywhere(void **state)
{
	(void)state;
	sim_play(N_SEEDS, play);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_random_trouble_ends_with_the_same_everywhere,
					  scene_tell),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
