/*
 * A link counts calls, increments its uint16_t, and leaves no trace behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <linux/bpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bpf/probe/uprobe_multi.h"

static volatile uint16_t looks __attribute__((section(".probes"))) = 0;

static __attribute__((noinline)) void probed(void)
{
	__asm__ volatile("");
}

static long bpf(int command, union bpf_attr *attr)
{
	return syscall(SYS_bpf, command, attr, sizeof(*attr));
}

static int map_new(void)
{
	union bpf_attr attr = {
		.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 8, .max_entries = 1};

	return (int)bpf(BPF_MAP_CREATE, &attr);
}

static uint64_t count_of(int map)
{
	uint32_t key = 0;
	uint64_t value = 0;
	union bpf_attr attr = {.map_fd = (uint32_t)map,
			       .key = (uintptr_t)&key,
			       .value = (uintptr_t)&value};

	assert_int_equal(bpf(BPF_MAP_LOOKUP_ELEM, &attr), 0);
	return value;
}

/* Adds one to the map's value. */
static int program_new(int map)
{
	const struct bpf_insn code[] = {
		{.code = BPF_LD | BPF_DW | BPF_IMM,
		 .dst_reg = 1,
		 .src_reg = BPF_PSEUDO_MAP_VALUE,
		 .imm = map},
		{0},
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 2, .imm = 1},
		{.code = BPF_STX | BPF_DW | BPF_ATOMIC, .dst_reg = 1, .src_reg = 2, .imm = BPF_ADD},
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 0},
		{.code = BPF_JMP | BPF_EXIT},
	};
	union bpf_attr attr = {.prog_type = BPF_PROG_TYPE_KPROBE,
			       .insns = (uintptr_t)code,
			       .insn_cnt = sizeof(code) / sizeof(code[0]),
			       .license = (uintptr_t) "GPL",
			       .expected_attach_type = UPROBE_MULTI_ATTACH_TYPE};

	return (int)bpf(BPF_PROG_LOAD, &attr);
}

/* Offset of something of this program in its file. */
static uint64_t offset_of(const volatile void *address)
{
	uintptr_t at = (uintptr_t)address, from, to;
	uint64_t offset, ret = 0;
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "re");

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %*s %lx", &from, &to, &offset) == 3 && from <= at &&
		    at < to)
			ret = offset + (at - from);
	fclose(maps);
	assert_int_not_equal(ret, 0);
	return ret;
}

static void skip_for_want_of(const char *what)
{
	const char *required = getenv("WEIGHTD_REQUIRE");

	if (required && strstr(required, "bpf"))
		fail_msg("it needs %s", what);
	print_message("skipped: it needs %s\n", what);
	skip();
}

static void check_link(bool is_return)
{
	uint64_t offset = offset_of((void *)(uintptr_t)probed), counter = offset_of(&looks);
	struct uprobe_multi multi = {.path = "/proc/self/exe",
				     .offsets = &offset,
				     .counters = &counter,
				     .n = 1,
				     .is_return = is_return};
	int map = map_new(), program, link, r;

	if (map < 0 && errno == EPERM)
		skip_for_want_of("CAP_BPF");
	assert_true(map >= 0);
	program = program_new(map);
	if (program < 0 && (errno == EPERM || errno == EINVAL))
		skip_for_want_of("CAP_PERFMON and Linux 6.6");
	assert_true(program >= 0);
	r = uprobe_multi_attach(program, &multi, &link);
	assert_int_equal(r, 0);
	assert_int_equal(looks, 1);
	probed();
	probed();
	assert_int_equal(count_of(map), 2);
	close(link);
	assert_int_equal(looks, 0);
	probed();
	assert_int_equal(count_of(map), 2);
	close(program);
	close(map);
}

static void test_calls_are_seen_until_its_end(void **state)
{
	(void)state;
	check_link(false);
}

static void test_returns_are_seen_until_its_end(void **state)
{
	(void)state;
	check_link(true);
}

static void test_kernels_that_harm_who_returns_are_known(void **state)
{
#if defined(__x86_64__)
	static const char *const bad[] = {"6.11.0-29-generic", "6.11.11", "6.12.0",
					  "6.12.13+deb13",     "6.13.0",  "6.13.2-arch1"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_false(uprobe_multi_is_safe(bad[i]));
#endif
	static const char *const good[] = {"6.6.0",   "6.10.14",
					   "6.12.14", "6.12.57+deb13-amd64",
					   "6.13.3",  "6.14.0-1-cloud",
					   "6.18.44", "7.0.0"};

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
		assert_true(uprobe_multi_is_safe(good[i]));
	assert_false(uprobe_multi_is_safe("unknown"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_calls_are_seen_until_its_end),
		cmocka_unit_test(test_returns_are_seen_until_its_end),
		cmocka_unit_test(test_kernels_that_harm_who_returns_are_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
