/*
 * Nodes of tests
 *
 * Children of the test, each a node, that meet at a port of 127.0.0.1.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "libclient/train/nodes/meet.h"
#include "tests/unit/train_ports.h"

/* Memory that the test and its nodes share. */
struct nodes {
	uint16_t port;
	int port_fd; /* holds it */
	pid_t test;
	pid_t pids[WEIGHTD_NODES_MAX];
	_Atomic uint64_t words[16]; /* of the test */
};

static struct nodes *nodes;

/* Of LeakSanitizer, which does not look at children otherwise; NULL: this program is built without. */
extern void __lsan_do_leak_check(void) __attribute__((weak));

/* In a node: a failure ends it, and the test sees its status. */
#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s (%s)\n", __func__, __LINE__, #condition,        \
				weightd_train_error());                                            \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

__attribute__((unused)) static int nodes_setup(void **state)
{
	(void)state;
	nodes = mmap(NULL, sizeof(*nodes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	assert_true(nodes != MAP_FAILED);
	nodes->port = ports_hold(&nodes->port_fd, 1);
	nodes->test = getpid();
	return 0;
}

__attribute__((unused)) static int nodes_teardown(void **state)
{
	(void)state;
	assert_int_equal(close(nodes->port_fd), 0);
	assert_int_equal(munmap(nodes, sizeof(*nodes)), 0);
	return 0;
}

__attribute__((unused)) static void nodes_fork(uint32_t node, void (*run)(uint32_t node))
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid > 0) {
		nodes->pids[node] = pid;
		return;
	}
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* it does not outlive the test */
	run(node);
	if (__lsan_do_leak_check)
		__lsan_do_leak_check();
	_exit(0);
}

/* Status of waitpid(). */
__attribute__((unused)) static int nodes_wait(uint32_t node)
{
	int status = -1;

	assert_int_equal(waitpid(nodes->pids[node], &status, 0), nodes->pids[node]);
	return status;
}

/* Runs the same in each node, all of which must return. */
__attribute__((unused)) static void nodes_run(uint32_t n, void (*run)(uint32_t node))
{
	for (uint32_t i = 0; i < n; i++)
		nodes_fork(i, run);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(nodes_wait(i), 0);
}

/* Entries of a folder such as /proc/self/fd. */
__attribute__((unused)) static uint32_t count_entries(const char *path)
{
	DIR *folder = opendir(path);
	uint32_t n = 0;

	assert(folder);
	while (readdir(folder))
		n++;
	(void)closedir(folder);
	return n;
}

__attribute__((unused)) static int never_ends(void *data, bool is_interrupted)
{
	(void)data;
	(void)is_interrupted;
	return 0;
}

__attribute__((unused)) static struct meet_place nodes_place(uint32_t node, uint32_t n)
{
	return (struct meet_place){
		.address = "127.0.0.1", .port = nodes->port, .node = node, .n_nodes = n};
}
