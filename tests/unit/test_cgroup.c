/*
 * The container in the path of a control group, and the best of several paths.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bpf/base/cgroup.h"

#define ID "0f3f6b2c8a1d4e5f90718263544536271809f0e1d2c3b4a5968778695a4b3c2d"
#define POD "kubepods-burstable-pod1f4c2a77_6e0b_4a57_9d5e_3b1f0a9c8d7e"

static void test_containers_are_found_in_paths(void **state)
{
	static const struct {
		const char *path, *container;
	} cases[] = {
		{"/docker/" ID, ID},
		{"/system.slice/docker-" ID ".scope", ID},
		{"/docker/" ID "/init.scope", ID},
		{"/docker/" ID "/system.slice/a.service", ID},
		{"/user.slice/user-1000.slice/user@1000.service/user.slice/docker-" ID ".scope", ID},
		{"/kubepods.slice/kubepods-burstable.slice/" POD ".slice/cri-containerd-" ID ".scope",
		 ID},
		{"/kubepods.slice/" POD ".slice/crio-" ID ".scope", ID},
		{"/kubepods.slice/" POD ".slice/crio-" ID ".scope/container", ID},
		{"/kubepods/burstable/pod1f4c2a77-6e0b-4a57-9d5e-3b1f0a9c8d7e/" ID, ID},
		{"/system.slice/containerd.service/" POD ".slice:cri-containerd:" ID, ID},
		{"/machine.slice/libpod-" ID ".scope", ID},
		{"/machine.slice/libpod-" ID ".scope/container", ID},
		{"/libpod_parent/libpod-" ID, ID},
		{"/default/" ID, ID},
		{"/system.slice/nerdctl-" ID ".scope", ID},
		{"/ecs/0123456789abcdef0123456789abcdef/" ID, ID},
		{"/docker/0123456789ab", "0123456789ab"},
		{"/../../docker-" ID ".scope", ID},
		{"/", NULL},
		{"", NULL},
		{"/init.scope", NULL},
		{"/user.slice/user-1000.slice/session-2.scope", NULL},
		{"/user.slice/user-1000.slice/user@1000.service/app.slice/app-firefox-4711.scope",
		 NULL},
		{"/system.slice/system-getty.slice/getty@tty1.service", NULL},
		{"/system.slice/run-r0123456789abcdef0123456789abcdef.scope", NULL},
		{"/kubepods/burstable/pod1f4c2a77-6e0b-4a57-9d5e-3b1f0a9c8d7e", NULL},
		{"/kubepods.slice/kubepods-burstable.slice/" POD ".slice", NULL},
		{"/machine.slice/libpod-conmon-" ID ".scope", NULL},
		{"/kubepods.slice/" POD ".slice/crio-conmon-" ID ".scope", NULL},
		{"/system.slice/slurmstepd.scope/job_812/step_0/user/task_0", NULL},
		{"/docker/" ID "0", NULL},
		{"/docker/0123456789a", NULL},
		{"/docker/0123456789AB", NULL},
		{"/docker-.scope", NULL},
		{"/.scope", NULL},
		{"////", NULL},
	};
	char id[CONTAINER_SIZE];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		bool found = cgroup_container(cases[i].path, id);

		if (!found != !cases[i].container || (found && strcmp(id, cases[i].container) != 0))
			fail_msg("%s: %s", cases[i].path, found ? id : "none");
	}
}

static void test_of_several_paths_the_one_that_says_most_is_taken(void **state)
{
	static const struct {
		const char *text, *path;
	} cases[] = {
		{"0::/system.slice/a.service\n", "/system.slice/a.service"},
		{"0::/\n", "/"},
		{"12:pids:/docker/" ID "\n1:name=systemd:/docker/" ID "\n0::/\n", "/docker/" ID},
		{"5:memory:/user.slice\n1:name=systemd:/user.slice/session-2.scope\n0::/\n",
		 "/user.slice/session-2.scope"},
		{"5:memory:/a/long/path/of/version/1\n0::/short\n", "/short"},
		{"5:memory:/kubepods/" ID "\n0::/system.slice/containerd.service\n", "/kubepods/" ID},
		{"0::/with:colons:in/it\n", "/with:colons:in/it"},
		{"0::/no/line/feed", "/no/line/feed"},
		{"", NULL},
		{"\n\n", NULL},
		{"::\n:", NULL},
		{"nonsense\n0:/\n0::relative\n", NULL},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char *text = strdup(cases[i].text);
		const char *path = cgroup_parse(text);

		if (!path != !cases[i].path || (path && strcmp(path, cases[i].path) != 0))
			fail_msg("%s: %s", cases[i].text, path ? path : "none");
		free(text);
	}
}

static void test_a_process_that_is_gone_is_in_none(void **state)
{
	char *path = cgroup_of(getpid());

	(void)state;
	assert_true(!path || *path == '/');
	free(path);
	assert_null(cgroup_of(INT32_MAX));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_containers_are_found_in_paths),
		cmocka_unit_test(test_of_several_paths_the_one_that_says_most_is_taken),
		cmocka_unit_test(test_a_process_that_is_gone_is_in_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
