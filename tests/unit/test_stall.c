/*
 * The cause of a stall, from counters that the kernel had for a known cause.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bpf/tcp/stall.h"
#include "ipc/base/num.h"

#define MS ((uint64_t)1000000)

static const struct totals none;

static struct totals sent(uint64_t bytes, uint64_t retrans)
{
	return (struct totals){.counter = {
				       [COUNTER_SUBMITTED] = bytes,
				       [COUNTER_DELIVERED] = bytes,
				       [COUNTER_WIRE] = bytes + retrans,
				       [COUNTER_RETRANS_BYTES] = retrans,
			       }};
}

static struct division divide(const struct totals *before, const struct totals *now)
{
	struct division d;

	assert_true(division_of(before, now, &d));
	return d;
}

/* As they were seen, 2.5 s each, on a link between two namespaces. */
static void test_what_had_most_of_the_time_is_named(void **state)
{
	static const struct {
		uint64_t bytes, retrans, ms[N_LIMITS];
		enum limit by;
	} recorded[] = {
		{10413016, 3368, {148, 2352, 0, 0, 0, 0, 0}, LIMIT_RECEIVE_WINDOW},
		{6493048, 0, {612, 0, 1892, 4, 0, 0, 0}, LIMIT_SEND_BUFFER},
		{2686976, 0, {8, 0, 0, 2492, 0, 0, 0}, LIMIT_PRODUCER},
		{35502240, 1968, {12, 0, 0, 4, 0, 592, 1892}, LIMIT_SILENT},
		{58803656, 918032, {2500, 0, 0, 0, 0, 0, 0}, LIMIT_LOSS},
		{43275680, 1248176, {1908, 0, 0, 4, 0, 592, 0}, LIMIT_LOSS},
		{300000000, 0, {2490, 10, 0, 0, 0, 0, 0}, LIMIT_BUSY},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(recorded); i++) {
		struct totals now = sent(recorded[i].bytes, recorded[i].retrans);

		for (int k = 0; k < N_LIMITS; k++)
			now.limit_ns[k] = recorded[i].ms[k] * MS;
		assert_int_equal(divide(&none, &now).by, recorded[i].by);
	}
}

static void test_where_much_is_lost_the_losses_take_the_time(void **state)
{
	struct totals now = sent(199 * 1000, 1000);
	struct division d;

	(void)state;
	now.limit_ns[LIMIT_BUSY] = 700 * MS;
	now.limit_ns[LIMIT_LOSS] = 200 * MS;
	now.limit_ns[LIMIT_RECEIVE_WINDOW] = 800 * MS;
	d = divide(&none, &now);
	assert_int_equal(d.ns[LIMIT_LOSS], 900 * MS);
	assert_int_equal(d.ns[LIMIT_BUSY], 0);
	assert_int_equal(d.by, LIMIT_LOSS);

	now.counter[COUNTER_WIRE]++; /* a little less than one of 200 */
	d = divide(&none, &now);
	assert_int_equal(d.ns[LIMIT_LOSS], 200 * MS);
	assert_int_equal(d.ns[LIMIT_BUSY], 700 * MS);
	assert_int_equal(d.by, LIMIT_RECEIVE_WINDOW);
}

static void test_what_was_before_does_not_count(void **state)
{
	struct totals before = sent(1 << 20, 1 << 19), now = sent(1 << 21, 1 << 19);

	(void)state;
	before.limit_ns[LIMIT_SILENT] = 9000 * MS;
	now.limit_ns[LIMIT_SILENT] = 9010 * MS;
	now.limit_ns[LIMIT_PRODUCER] = 20 * MS;
	assert_int_equal(divide(&before, &now).by, LIMIT_PRODUCER);
	assert_int_equal(divide(&before, &now).ns[LIMIT_SILENT], 10 * MS);
}

static void test_what_was_called_something_else_is_taken_from_that(void **state)
{
	struct totals now = sent(1000, 0);
	struct division d;

	(void)state;
	now.limit_ns[LIMIT_BUSY] = (uint64_t)-200 * MS;
	now.limit_ns[LIMIT_RECEIVE_WINDOW] = 50 * MS;
	now.limit_ns[LIMIT_SEND_BUFFER] = 204 * MS;
	now.limit_ns[LIMIT_PACING] = 100 * MS;
	now.limit_ns[LIMIT_SILENT] = 300 * MS;
	d = divide(&none, &now);
	assert_int_equal(d.ns[LIMIT_BUSY], 0);
	assert_int_equal(d.ns[LIMIT_RECEIVE_WINDOW] + d.ns[LIMIT_SEND_BUFFER] + d.ns[LIMIT_PACING],
			 154 * MS);
	assert_int_equal(d.ns[LIMIT_SILENT], 300 * MS);
	assert_int_equal(d.by, LIMIT_SILENT);
}

static void test_what_looks_called_something_else_pays_before_what_TCP_measured(void **state)
{
	struct totals now = sent(1000, 0);
	struct division d;

	(void)state;
	now.limit_ns[LIMIT_BUSY] = (uint64_t)-200 * MS;
	now.limit_ns[LIMIT_RECEIVE_WINDOW] = 190 * MS;
	now.limit_ns[LIMIT_SEND_BUFFER] = 80 * MS;
	now.limit_ns[LIMIT_PRODUCER] = 90 * MS;
	now.limit_ns[LIMIT_PACING] = 100 * MS;
	d = divide(&none, &now);
	assert_int_equal(d.ns[LIMIT_RECEIVE_WINDOW], 190 * MS);
	assert_int_equal(d.ns[LIMIT_SEND_BUFFER], 70 * MS);
	assert_int_equal(d.ns[LIMIT_PRODUCER] + d.ns[LIMIT_PACING], 0);
	assert_int_equal(d.by, LIMIT_RECEIVE_WINDOW);
}

static void test_waiting_from_before_the_first_reading_is_not_in_the_time_since(void **state)
{
	struct totals before = sent(1000, 0), now = sent(1100, 100);
	struct division d;
	uint64_t sum = 0;

	(void)state;
	before.limit_ns[LIMIT_BUSY] = 25 * MS; /* since the last acknowledgement */
	now.limit_ns[LIMIT_BUSY] = 0; /* a look found 125 ms of waiting, 100 ms of them since */
	now.limit_ns[LIMIT_LOSS] = 125 * MS;
	d = divide(&before, &now);
	for (int i = 0; i < N_LIMITS; i++)
		sum += d.ns[i];
	assert_int_equal(sum, 100 * MS);
	assert_int_equal(d.ns[LIMIT_LOSS], 100 * MS);
}

static void test_nothing_holds_up_who_does_not_send(void **state)
{
	struct totals now = sent(0, 0);
	struct division d;

	(void)state;
	now.limit_ns[LIMIT_PRODUCER] = 1000 * MS;
	assert_false(division_of(&none, &now, &d));
	now.counter[COUNTER_SUBMITTED] = 64;
	now.counter[COUNTER_RECEIVED] = 65;
	assert_false(division_of(&none, &now, &d));
	now.counter[COUNTER_SUBMITTED] = 65;
	assert_true(division_of(&none, &now, &d));
}

static void test_what_sends_may_be_held_up_while_nothing_is_sent(void **state)
{
	struct totals since = sent(1000, 0), now = since;
	struct division d;

	(void)state;
	now.limit_ns[LIMIT_RECEIVE_WINDOW] = 700 * MS;
	assert_false(division_of(&since, &now, &d));
	assert_true(division_since(&since, &now, &d));
	assert_int_equal(d.ns[LIMIT_RECEIVE_WINDOW], 700 * MS);
	now.counter[COUNTER_RECEIVED] = now.counter[COUNTER_SUBMITTED] + 1;
	assert_false(division_since(&since, &now, &d));
}

static void test_a_stall_is_a_while_in_which_nothing_is_delivered(void **state)
{
	struct totals now = sent(1000, 0);
	struct stall s = {};
	enum limit cause;

	(void)state;
	assert_false(stall_cause(&s, &now, 900 * MS, 0, &cause)); /* there was no look */
	now.limit_ns[LIMIT_BUSY] = 5000 * MS;
	stall_look(&s, &now, 1000 * MS);
	now.limit_ns[LIMIT_RECEIVE_WINDOW] = 190 * MS;
	stall_look(&s, &now, 1199 * MS);
	assert_false(stall_cause(&s, &now, 1199 * MS, 0, &cause));
	assert_true(stall_cause(&s, &now, 1200 * MS, 0, &cause));
	assert_int_equal(cause, LIMIT_RECEIVE_WINDOW);
	assert_int_equal(s.since_ns, 1000 * MS);

	assert_false(stall_cause(&s, &now, 1239 * MS, 60000, &cause));
	assert_true(stall_cause(&s, &now, 1240 * MS, 60000, &cause));

	now.counter[COUNTER_DELIVERED]++;
	stall_look(&s, &now, 1300 * MS);
	assert_false(stall_cause(&s, &now, 1300 * MS, 0, &cause));
}

static void take(struct stalls *s, uint64_t since_ms, uint64_t until_ms)
{
	stalls_take(s, &(struct stalled){since_ms * MS, until_ms * MS, LIMIT_SILENT});
}

static void test_the_longest_stalls_are_kept(void **state)
{
	struct stalls s = {};

	(void)state;
	for (unsigned i = 1; i <= STALLS_MAX; i++)
		take(&s, i * 1000, i * 1000 + (i == 2 ? 300 : 400));
	assert_int_equal(s.n, STALLS_MAX);
	take(&s, 20000, 20300);
	assert_int_equal(s.list[1].since_ns, 2000 * MS); /* no shorter than that */
	take(&s, 20000, 20350);
	assert_int_equal(s.n, STALLS_MAX);
	assert_int_equal(s.list[0].since_ns, 1000 * MS);
	assert_int_equal(s.list[1].since_ns, 3000 * MS);
	assert_int_equal(s.list[STALLS_MAX - 1].since_ns, 20000 * MS);
	take(&s, 20000, 20500); /* goes on */
	assert_int_equal(s.n, STALLS_MAX);
	assert_int_equal(s.list[STALLS_MAX - 1].until_ns, 20500 * MS);
	assert_int_equal(s.list[STALLS_MAX - 2].since_ns, STALLS_MAX * 1000 * MS);
}

static void test_who_does_not_send_does_not_stall(void **state)
{
	struct totals now = sent(0, 0);
	struct stall s = {};
	enum limit cause;

	(void)state;
	stall_look(&s, &now, 1000 * MS);
	assert_false(stall_cause(&s, &now, 9000 * MS, 0, &cause));
	now.counter[COUNTER_SUBMITTED] = 64; /* these are not acknowledged */
	assert_true(stall_cause(&s, &now, 9000 * MS, 0, &cause));
	now.counter[COUNTER_RECEIVED] = 65;
	assert_false(stall_cause(&s, &now, 9000 * MS, 0, &cause));
}

static void rest(struct rest *r, uint64_t producer_ms, bool has_all)
{
	struct totals now = {.limit_ns = {[LIMIT_PRODUCER] = producer_ms * MS}};

	rest_look(r, &now, has_all);
}

static void test_rest_is_between_two_looks_at_all(void **state)
{
	struct rest r = {};

	(void)state;
	rest(&r, 100, false);
	rest(&r, 200, true);
	assert_int_equal(r.ns, 0);
	rest(&r, 350, true);
	rest(&r, 340, true); /* as TCP calls it something else */
	rest(&r, 400, true);
	assert_int_equal(r.ns, 210 * MS);
	rest(&r, 450, false);
	rest(&r, 900, false);
	assert_int_equal(r.ns, 260 * MS);
}

static void test_rest_is_counted_from_below_nothing(void **state)
{
	struct rest r = {};

	(void)state;
	rest(&r, 100, true);
	rest(&r, (uint64_t)-50, true); /* it waited in vain */
	assert_int_equal(r.ns, 0);
	rest(&r, (uint64_t)-20, true);
	rest(&r, 10, true);
	assert_int_equal(r.ns, 60 * MS);
}

static void test_rest_held_up_nobody(void **state)
{
	struct division d = {.ns = {[LIMIT_PRODUCER] = 900 * MS, [LIMIT_LOSS] = 300 * MS},
			     .by = LIMIT_PRODUCER};

	(void)state;
	division_rest(&d, 500 * MS);
	assert_int_equal(d.ns[LIMIT_PRODUCER], 400 * MS);
	assert_int_equal(d.by, LIMIT_PRODUCER);
	division_rest(&d, 500 * MS);
	assert_int_equal(d.ns[LIMIT_PRODUCER], 0);
	assert_int_equal(d.by, LIMIT_LOSS);
}

static enum limit limit_with(struct sender s)
{
	return limit_of_busy(&(struct sender){
		.buffer = 65536,
		.queued = s.queued ? s.queued : 69320,
		.notsent = s.notsent,
		.mss = 1448,
		.n_packets = s.n_packets ? s.n_packets : 45,
		.cwnd = 250,
		.since_ack_us = s.since_ack_us ? s.since_ack_us : 50000,
		.srtt_us = 40000,
		.max_pacing_rate = UINT64_MAX,
	});
}

static void test_where_all_is_on_its_way_there_is_no_room_or_no_more(void **state)
{
	(void)state;
	assert_int_equal(limit_with((struct sender){}), LIMIT_SEND_BUFFER);
	assert_int_equal(limit_with((struct sender){.queued = 43692}), LIMIT_SEND_BUFFER);
	assert_int_equal(limit_with((struct sender){.queued = 43690}),
			 LIMIT_PRODUCER); /* there is room */
	assert_int_equal(limit_with((struct sender){.notsent = 1447}), LIMIT_SEND_BUFFER);
	assert_int_equal(limit_with((struct sender){.notsent = 1448}), LIMIT_BUSY);
	assert_int_equal(limit_with((struct sender){.n_packets = 250}),
			 LIMIT_BUSY); /* TCP dares no more */
	assert_int_equal(limit_with((struct sender){.since_ack_us = 90001}), LIMIT_BUSY); /* lost */
}

static void test_what_has_arrived_says_nothing_of_the_time_before(void **state)
{
	const struct sender s = {
		.buffer = 65536,
		.mss = 1448,
		.cwnd = 10,
		.max_pacing_rate = UINT64_MAX,
	};

	(void)state;
	assert_int_equal(limit_of_busy(&s), LIMIT_BUSY);
}

static void test_who_could_send_more_is_paced_by_the_rate_that_was_set(void **state)
{
	const struct sender paced = {
		.notsent = 1448,
		.mss = 1448,
		.n_packets = 9,
		.cwnd = 10,
		.pacing_rate = 1000000,
		.max_pacing_rate = 1000000,
	};
	struct sender s = paced;

	(void)state;
	assert_int_equal(limit_of_busy(&s), LIMIT_PACING);
	s.n_packets = 10;
	assert_int_equal(limit_of_busy(&s), LIMIT_BUSY); /* TCP dares no more */
	s = paced;
	s.notsent = 0;
	assert_int_equal(limit_of_busy(&s), LIMIT_PRODUCER); /* there is no more */
	s = paced;
	s.pacing_rate--;
	assert_int_equal(limit_of_busy(&s), LIMIT_BUSY); /* TCP paces by itself */
	s = paced;
	s.pacing_rate = s.max_pacing_rate = UINT64_MAX;
	assert_int_equal(limit_of_busy(&s), LIMIT_BUSY); /* it was never set */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_had_most_of_the_time_is_named),
		cmocka_unit_test(test_where_much_is_lost_the_losses_take_the_time),
		cmocka_unit_test(test_what_was_before_does_not_count),
		cmocka_unit_test(test_what_was_called_something_else_is_taken_from_that),
		cmocka_unit_test(test_what_looks_called_something_else_pays_before_what_TCP_measured),
		cmocka_unit_test(test_waiting_from_before_the_first_reading_is_not_in_the_time_since),
		cmocka_unit_test(test_nothing_holds_up_who_does_not_send),
		cmocka_unit_test(test_what_sends_may_be_held_up_while_nothing_is_sent),
		cmocka_unit_test(test_a_stall_is_a_while_in_which_nothing_is_delivered),
		cmocka_unit_test(test_the_longest_stalls_are_kept),
		cmocka_unit_test(test_who_does_not_send_does_not_stall),
		cmocka_unit_test(test_rest_is_between_two_looks_at_all),
		cmocka_unit_test(test_rest_is_counted_from_below_nothing),
		cmocka_unit_test(test_rest_held_up_nobody),
		cmocka_unit_test(test_where_all_is_on_its_way_there_is_no_room_or_no_more),
		cmocka_unit_test(test_what_has_arrived_says_nothing_of_the_time_before),
		cmocka_unit_test(test_who_could_send_more_is_paced_by_the_rate_that_was_set),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
