/* Access: the table of permissions, and the users that cannot be named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <unistd.h>

#include "ipc/base/num.h"
#include "server/state/access.h"

/* None of them runs the tests. */
#define ALICE 40001
#define BOB 40002
#define STAFF 40010
#define GUESTS 40011
#define NOBODY 65534

#define R ACCESS_READ
#define W ACCESS_WRITE

struct who {
	uid_t uid;
	gid_t gid;
	gid_t groups[2];
	unsigned n_groups;
};

static struct channel_peer make_peer(const struct who *who)
{
	return (struct channel_peer){
		.pid = 1,
		.uid = who->uid,
		.gid = who->gid,
		.groups = (gid_t *)who->groups,
		.n_groups = who->n_groups,
	};
}

static const struct who owner = {ALICE, GUESTS, {0}, 0};
static const struct who member = {BOB, STAFF, {0}, 0};
static const struct who late_member = {BOB, GUESTS, {GUESTS, STAFF}, 2};
static const struct who other = {BOB, GUESTS, {GUESTS, 40012}, 2};
static const struct who root = {0, 0, {0}, 0};
static const struct who nobody = {NOBODY, NOBODY, {0}, 0};
static const struct who nobody_in_staff = {NOBODY, STAFF, {STAFF}, 1};
static const struct who bob_in_nogroup = {BOB, NOBODY, {0}, 0};
static const struct who bob_late_in_nogroup = {BOB, GUESTS, {NOBODY}, 1};
static const struct who alice_in_nogroup = {ALICE, NOBODY, {0}, 0};

static const struct {
	const char *what;
	const struct who *who;
	struct access access;
	unsigned may; /* R, W, both or none */
	bool owns;
} cases[] = {
	{"the owner by 0600", &owner, {ALICE, STAFF, 0600}, R | W, true},
	{"the owner by 0400", &owner, {ALICE, STAFF, 0400}, R, true},
	{"the owner by 0200", &owner, {ALICE, STAFF, 0200}, W, true},
	{"the owner is not the group", &owner, {ALICE, GUESTS, 0060}, 0, true},
	{"the owner is not the others", &owner, {ALICE, STAFF, 0066}, 0, true},
	{"a member by 0640", &member, {ALICE, STAFF, 0640}, R, false},
	{"a member by 0660", &member, {ALICE, STAFF, 0660}, R | W, false},
	{"a member by 0620", &member, {ALICE, STAFF, 0620}, W, false},
	{"a member is not the owner", &member, {ALICE, STAFF, 0600}, 0, false},
	{"a member is not the others", &member, {ALICE, STAFF, 0606}, 0, false},
	{"a supplementary member by 0640", &late_member, {ALICE, STAFF, 0640}, R, false},
	{"a supplementary member by 0604", &late_member, {ALICE, STAFF, 0604}, 0, false},
	{"another by 0644", &other, {ALICE, STAFF, 0644}, R, false},
	{"another by 0642", &other, {ALICE, STAFF, 0642}, W, false},
	{"another by 0660", &other, {ALICE, STAFF, 0660}, 0, false},
	{"root by 0000", &root, {ALICE, STAFF, 0000}, R | W, true},
	{"execution is nothing", &other, {ALICE, STAFF, 0111}, 0, false},
	{"nobody by 0604", &nobody, {ALICE, STAFF, 0604}, R, false},
	{"nobody is not nobody", &nobody, {NOBODY, STAFF, 0600}, 0, false},
	{"nobody where nobody owns, by 0002", &nobody, {NOBODY, NOBODY, 0662}, W, false},
	{"nobody is in no group", &nobody_in_staff, {ALICE, STAFF, 0660}, 0, false},
	{"no group is a group nobody can name", &bob_in_nogroup, {ALICE, NOBODY, 0660}, 0, false},
	{"nor as a supplementary one", &bob_late_in_nogroup, {ALICE, NOBODY, 0660}, 0, false},
	{"who is in it is one of the others", &bob_in_nogroup, {ALICE, NOBODY, 0664}, R, false},
	{"it takes nothing from the owner", &alice_in_nogroup, {ALICE, NOBODY, 0600}, R | W, true},
};

static void the_table_holds(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct channel_peer peer = make_peer(cases[i].who);
		const struct access *a = &cases[i].access;
		unsigned got = (access_allows(a, &peer, R) ? R : 0) |
			       (access_allows(a, &peer, W) ? W : 0);

		if (got != cases[i].may)
			fail_msg("%s: wanted %u, got %u", cases[i].what, cases[i].may, got);
		if (access_allows(a, &peer, R | W) != (got == (R | W)))
			fail_msg("%s: both at once is not both", cases[i].what);
		if (access_owns(a, &peer) != cases[i].owns)
			fail_msg("%s: owns is not %d", cases[i].what, cases[i].owns);
	}
}

static void members_of_the_admin_group_are_like_root(void **state)
{
	const struct access access = {ALICE, GUESTS, 0};
	const struct who *members[] = {&member, &late_member};
	const struct who *others[] = {&owner, &other, &nobody_in_staff};

	(void)state;
	for (int on = 1; on >= 0; on--) {
		access_set_admins(on ? STAFF : (gid_t)-1);
		for (size_t i = 0; i < ARRAY_LEN(members); i++) {
			struct channel_peer peer = make_peer(members[i]);

			assert_int_equal(access_is_admin(&peer), on);
			assert_int_equal(access_allows(&access, &peer, R | W), on);
			assert_int_equal(access_owns(&access, &peer), on);
		}
		for (size_t i = 0; i < ARRAY_LEN(others); i++) {
			struct channel_peer peer = make_peer(others[i]);

			assert_false(access_is_admin(&peer));
			assert_false(access_allows(&access, &peer, R));
		}
	}
}

static void the_groups_that_are_none_have_no_administrators(void **state)
{
	const struct who in_no_group = {BOB, (gid_t)-1, {(gid_t)-1}, 1};
	const struct access access = {ALICE, STAFF, 0};
	struct channel_peer lost = make_peer(&bob_in_nogroup), none = make_peer(&in_no_group);

	(void)state;
	access_set_admins(NOBODY); /* the group of a user with a group that cannot be named */
	assert_false(access_owns(&access, &lost));
	access_set_admins((gid_t)-1);
	assert_false(access_owns(&access, &none));
}

static void who_the_server_runs_as_is_like_root(void **state)
{
	const struct who self = {geteuid(), GUESTS, {0}, 0};
	const struct access access = {ALICE, STAFF, 0};
	struct channel_peer peer = make_peer(&self);

	(void)state;
	assert_true(access_allows(&access, &peer, R | W));
	assert_true(access_owns(&access, &peer));
}

static void root_is_root_whoever_the_server_runs_as(void **state)
{
	const struct who bob = {BOB, GUESTS, {0}, 0};
	const struct access access = {ALICE, STAFF, 0};
	struct channel_peer peer = make_peer(&root), self = make_peer(&bob);
	bool root_may, root_owns, self_may;

	(void)state;
	if (seteuid(BOB) < 0) {
		print_message("needs root\n");
		skip();
	}
	root_may = access_allows(&access, &peer, R | W);
	root_owns = access_owns(&access, &peer);
	self_may = access_allows(&access, &self, R | W);
	assert_int_equal(seteuid(getuid()), 0);
	assert_true(root_may);
	assert_true(root_owns);
	assert_true(self_may);
	assert_false(access_allows(&access, &self, R));
}

static void every_user_with_a_name_may_own(void **state)
{
	const struct who *users[] = {&owner, &member, &root, &alice_in_nogroup};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(users); i++) {
		struct channel_peer peer = make_peer(users[i]);

		assert_true(access_may_own(&peer));
	}
}

static void nobody_owns_unless_the_server_is_nobody(void **state)
{
	struct channel_peer peer = make_peer(&nobody);
	const struct access access = {NOBODY, NOBODY, 0600};
	bool may_own, owns;

	(void)state;
	assert_false(access_may_own(&peer));
	if (seteuid(NOBODY) < 0) {
		print_message("needs root\n");
		skip();
	}
	may_own = access_may_own(&peer);
	owns = access_owns(&access, &peer);
	assert_int_equal(seteuid(getuid()), 0);
	assert_true(may_own);
	assert_true(owns);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_table_holds),
		cmocka_unit_test(members_of_the_admin_group_are_like_root),
		cmocka_unit_test(the_groups_that_are_none_have_no_administrators),
		cmocka_unit_test(who_the_server_runs_as_is_like_root),
		cmocka_unit_test(root_is_root_whoever_the_server_runs_as),
		cmocka_unit_test(every_user_with_a_name_may_own),
		cmocka_unit_test(nobody_owns_unless_the_server_is_nobody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
