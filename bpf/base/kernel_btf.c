/*
 * libbpf 1.1 has no option for that. Its own calls of btf__load_vmlinux_btf() lead to the function here, as to one of
 * libbpf's that a program brings itself; with a libbpf that binds them at its build, nothing is shared, and all works.
 * Only the loop's thread loads programs.
 */
#include "bpf/base/kernel_btf.h"

#include <bpf/btf.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

static bool is_held;
static struct btf *held;

static struct btf *btf_parse(void)
{
	struct btf *btf = btf__parse("/sys/kernel/btf/vmlinux", NULL);

	if (!btf && errno != ENOMEM)
		errno = ESRCH; /* as libbpf's */
	return btf;
}

/* The caller frees the result, which then has no types but those of another one. */
struct btf *btf__load_vmlinux_btf(void)
{
	if (!is_held)
		return btf_parse();
	if (!held)
		held = btf_parse();
	return held ? btf__new_empty_split(held) : NULL;
}

void kernel_btf_hold(void)
{
	is_held = true;
}

void kernel_btf_drop(void)
{
	is_held = false;
	btf__free(held);
	held = NULL;
}
