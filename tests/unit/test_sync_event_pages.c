/* Event pages: an event about any number of nodes fits through the control socket. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/event_pages.h"
#include "server/sync/state/env.h"

static json_t *end_of(size_t n)
{
	json_t *nodes = json_array();
	char why[2 * WHY_SIZE], name[32];

	memset(why, 'w', sizeof(why) - 1);
	why[sizeof(why) - 1] = '\0';
	for (size_t i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "n%04zu", i);
		json_array_append_new(nodes, json_pack("{s:s, s:s}", "node", name, "why", why));
	}
	return json_pack("{s:s, s:s, s:s, s:o}", "event", "end", "sync", "0123456789abcdef",
			 "error", why, "nodes", nodes);
}

static void test_the_nodes_of_an_end_have_room_and_none_is_lost(void **state)
{
	static const size_t NUMBERS[] = {0, 1, 30, 31, 32, 33, 600, 1024};

	(void)state;
	for (size_t i = 0; i < sizeof(NUMBERS) / sizeof(NUMBERS[0]); i++) {
		cleanup(json_freep) json_t *event = end_of(NUMBERS[i]);
		cleanup(json_freep) json_t *before = json_deep_copy(event);
		cleanup(json_freep) json_t *pages = event_pages_split(event);
		cleanup(json_freep) json_t *all = json_array();
		size_t n = json_array_size(pages), j;
		json_t *page;

		json_array_foreach(pages, j, page)
		{
			const char *kind = json_string_value(json_object_get(page, "event"));

			assert_string_equal(kind, j + 1 < n ? "nodes" : "end");
			assert_true(json_dumpb(page, NULL, 0, JSON_COMPACT) < JSON_PACKET_SIZE_MAX);
			assert_string_equal(json_string_value(json_object_get(page, "sync")),
					    "0123456789abcdef");
			json_array_extend(all, json_object_get(page, "nodes"));
		}
		assert_true(json_equal(all, json_object_get(before, "nodes")));
		assert_true(json_equal(event, before));
		assert_non_null(json_object_get(json_array_get(pages, n - 1), "error"));
	}
}

static void test_an_event_without_nodes_is_one_part(void **state)
{
	cleanup(json_freep) json_t *event = json_pack("{s:s}", "event", "phase");
	cleanup(json_freep) json_t *pages = event_pages_split(event);

	(void)state;
	assert_int_equal(json_array_size(pages), 1);
	assert_true(json_equal(json_array_get(pages, 0), event));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_nodes_of_an_end_have_room_and_none_is_lost),
		cmocka_unit_test(test_an_event_without_nodes_is_one_part),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
