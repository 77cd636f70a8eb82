/* Lists, seen through the numbers on their members. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "ipc/base/list.h"
#include "ipc/base/num.h"

struct member {
	int number;
	struct list link;
};

#define N 5

static struct list list;
static struct member members[N];

static int five_members(void **state)
{
	(void)state;
	list_init(&list);
	for (int i = 0; i < N; i++) {
		members[i].number = i;
		list_append(&list, &members[i].link);
	}
	return 0;
}

/* The numbers in order, once forwards and once backwards. */
static void check_order(const char *want)
{
	char forwards[64] = "", backwards[64] = "", *p = forwards;
	struct member *m;

	list_for_each(m, &list, link)
		p += sprintf(p, "%d", m->number);
	assert_string_equal(forwards, want);
	p = backwards + (p - forwards);
	for (struct list *l = list.prev; l != &list; l = l->prev)
		*--p = (char)('0' + container_of(l, struct member, link)->number);
	assert_ptr_equal(p, backwards);
	assert_string_equal(backwards, want);
}

static void members_stand_in_the_order_they_were_appended(void **state)
{
	(void)state;
	check_order("01234");
	assert_false(list_empty(&list));
	assert_int_equal(list_first(&list, struct member, link)->number, 0);
	assert_int_equal(list_last(&list, struct member, link)->number, 4);
}

static void an_empty_list_has_no_first_and_no_last(void **state)
{
	(void)state;
	list_init(&list);
	assert_true(list_empty(&list));
	assert_null(list_first(&list, struct member, link));
	assert_null(list_last(&list, struct member, link));
	check_order("");
}

static void appending_to_a_member_puts_in_front_of_it(void **state)
{
	struct member m = {.number = 9};

	(void)state;
	list_append(&members[2].link, &m.link);
	check_order("019234");
}

static void removing_keeps_the_others_in_order(void **state)
{
	(void)state;
	list_remove(&members[0].link);
	check_order("1234");
	list_remove(&members[2].link);
	check_order("134");
	list_remove(&members[4].link);
	check_order("13");
	assert_int_equal(list_last(&list, struct member, link)->number, 3);
}

static void removing_twice_is_harmless(void **state)
{
	(void)state;
	list_remove(&members[1].link);
	list_remove(&members[1].link);
	assert_true(list_empty(&members[1].link));
	check_order("0234");
	list_append(&list, &members[1].link);
	check_order("02341");
}

static void a_safe_walk_survives_the_removal_of_each_member(void **state)
{
	struct member *m, *tmp;
	int n = 0;

	(void)state;
	list_for_each_safe(m, tmp, &list, link) {
		assert_int_equal(m->number, n++);
		list_remove(&m->link);
		m->link = (struct list){0}; /* as if it were freed */
	}
	assert_int_equal(n, N);
	assert_true(list_empty(&list));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(members_stand_in_the_order_they_were_appended, five_members),
		cmocka_unit_test_setup(an_empty_list_has_no_first_and_no_last, five_members),
		cmocka_unit_test_setup(appending_to_a_member_puts_in_front_of_it, five_members),
		cmocka_unit_test_setup(removing_keeps_the_others_in_order, five_members),
		cmocka_unit_test_setup(removing_twice_is_harmless, five_members),
		cmocka_unit_test_setup(a_safe_walk_survives_the_removal_of_each_member, five_members),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
